"""Requests as they arrive: drawn from a distribution of gaps, or read from a file."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from firsttoken.batching.records import Request
from firsttoken.checks import check_count

Length = int | Callable[[np.random.Generator], int]


def poisson_trace(
    rate: float,
    n: int,
    rng: np.random.Generator,
    n_prompt: Length = 512,
    n_output: Length = 128,
) -> list[Request]:
    """Return n requests of users who do not know of each other: exponential gaps, mean 1/rate.

    A length is a number of tokens, or a function that draws one from `rng`. The arrivals are drawn
    first, so that the same seed gives the same arrivals whatever the lengths.

    Units:  requests/s, tokens; the clock starts at 0
    Raises: ValueError for a rate that is not positive, a negative n, and lengths below one token.

    >>> trace = poisson_trace(2.0, 1000, np.random.default_rng(0))
    >>> 480 < trace[-1].arrival_s < 520, trace[0].n_prompt
    (True, 512)
    """
    _check_arrivals(rate, n)
    return _trace(rng.exponential(1 / rate, size=n), rng, n_prompt, n_output)


def bursty_trace(
    rate: float,
    n: int,
    rng: np.random.Generator,
    cv: float = 3.0,
    n_prompt: Length = 512,
    n_output: Length = 128,
) -> list[Request]:
    """Return n requests that come in bursts: gaps of mean 1/rate, most short and a few long.

    Gaps follow a gamma distribution. `cv`, their standard deviation over their mean, says how
    bursty they are: 1 is Poisson, 0 would be a metronome. All else is as in `poisson_trace`.

    Units:  requests/s, tokens; the clock starts at 0
    Raises: ValueError for a rate or cv that is not positive, a negative n, and lengths below one.
    Source: vLLM, `vllm bench serve --burstiness`, which is 1/cv²

    >>> trace = bursty_trace(2.0, 1000, np.random.default_rng(0), cv=3.0)
    >>> gaps = np.diff([request.arrival_s for request in trace])
    >>> bool(np.median(gaps) < 0.05), bool(gaps.max() > 5)
    (True, True)
    """
    _check_arrivals(rate, n)
    if not 0 < cv < math.inf:
        raise ValueError(f"cv must be positive and finite, got {cv!r}")
    return _trace(rng.gamma(cv**-2, cv**2 / rate, size=n), rng, n_prompt, n_output)


def _trace(
    gaps: np.ndarray, rng: np.random.Generator, n_prompt: Length, n_output: Length
) -> list[Request]:
    arrivals = np.cumsum(gaps).tolist()
    prompts, outputs = (
        [length(rng) if callable(length) else length for _ in arrivals]
        for length in (n_prompt, n_output)
    )
    return [Request(*fields) for fields in zip(arrivals, prompts, outputs, strict=True)]


def load_trace(path: str | Path) -> list[Request]:
    """Read requests from a CSV file with the columns arrival_s, n_prompt and n_output.

    Other columns are left alone, and the order of the file is kept. Published traces convert to
    it. Azure's (AzurePublicDataset, LLM inference 2023): seconds since the first TIMESTAMP,
    ContextTokens, GeneratedTokens. BurstGPT's: Timestamp, Request tokens, Response tokens,
    without the requests that failed, which have 0 response tokens.

    Units:  seconds, tokens
    Raises: ValueError for a missing column, and for a value that is no such number, with its line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("arrival_s,n_prompt,n_output\\n0.5,512,128\\n")
    ...     load_trace(path) == [Request(arrival_s=0.5, n_prompt=512, n_output=128)]
    True
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        missing = {"arrival_s", "n_prompt", "n_output"} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"path {path} has no column {', '.join(sorted(missing))}")
        requests = []
        for row in rows:
            try:
                request = Request(
                    float(row["arrival_s"]), int(row["n_prompt"]), int(row["n_output"])
                )
            except (TypeError, ValueError) as error:
                raise ValueError(f"path {path}, line {rows.line_num}: {error}") from None
            requests.append(request)
    return requests


def _check_arrivals(rate: float, n: int) -> None:
    if not 0 < rate < math.inf:
        raise ValueError(f"rate must be positive and finite, got {rate!r} requests/s")
    check_count("n", n)
