"""Measure what more tries bring the shipped model, on two tasks from the held-out text.

    python scripts/measure_search.py            # writes data/measured/search.json, ~15 minutes
    python scripts/measure_search.py --quick    # a few tasks and tries, prints only

"name": after `self.` or another dot, which name did the author write? Right: the same name.
"line": a line is cut inside a bracket; finish it. Right: `ast.parse` takes the statement.

The first has a truth that nobody has at hand when the model is used, so a verifier is only a bound
there; the second has a verifier that anybody can run.
"""

import argparse
import ast
import functools
import io
import itertools
import json
import platform
import random
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from firsttoken.generate.search import (
    beam_search,
    best_of_n_accuracy,
    majority_vote,
    sample_n,
    total_logprob,
    vote_accuracy,
)
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit
from firsttoken.sampling import SamplingParams

MEASURED_CODE = code_digest(
    [
        "attention",
        "models/evaluation",
        "generate/drafting",
        "generate/loop",
        "kv_cache",
        "models/llama",
        "models/rope",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "generate/search",
        "models/threads",
    ]
)

ROOT = Path(__file__).parents[1]
SEED = 0
N_TASKS_AND_TRIES, N_QUICK = (150, 16), (4, 4)
PROMPT_TOKENS = 128
TEMPERATURES = (0.6, 1.0)
BEAM_WIDTHS = (1, 2, 4, 8)
# What ends a name: everything in ASCII that cannot be part of one.
NAME_ENDS = tuple(c for c in map(chr, range(128)) if not (c.isalnum() or c == "_"))


@dataclass(frozen=True)
class Task:
    """A beginning, how long an answer may be, what ends it, and which answers are right."""

    prompt: str
    max_tokens: int
    stop: tuple[str, ...]
    is_right: Callable[[str], bool]
    truth: str | None = None


def name_tasks(text: str) -> list[Task]:
    """Return a task for each name behind a dot, in code."""
    starts, tasks = line_starts(text), []
    for dot, name in itertools.pairwise(code_tokens(text)):
        if dot.string == "." and name.type == tokenize.NAME:
            truth, at = name.string, starts[name.start[0]] + name.start[1]
            tasks.append(Task(text[:at], 10, NAME_ENDS, truth.__eq__, truth))
    return tasks


def line_tasks(text: str) -> list[Task]:
    """Return a task for each bracket that opens in a statement of one line."""
    one_line = {
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign | ast.Return | ast.Expr) and node.lineno == node.end_lineno
    }
    starts, tasks = line_starts(text), []
    for token in code_tokens(text):
        row, column = token.end
        if token.type == tokenize.OP and token.string in "([{" and row in one_line:
            begun = token.line[:column]
            is_right = functools.partial(completes, begun)
            tasks.append(Task(text[: starts[row] + column], 30, ("\n",), is_right))
    return tasks


def code_tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def completes(begun: str, end: str) -> bool:
    """Say whether a line of code, begun and ended so, is Python."""
    try:
        ast.parse(textwrap.dedent(begun + end))
    except (SyntaxError, ValueError):
        return False
    return True


def line_starts(text: str) -> list[int]:
    """Return where each line begins; lines count from 1."""
    return np.cumsum([0, 0, *map(len, text.splitlines(keepends=True))]).tolist()


def measure(
    model, tok, tasks: list[Task], n: int, temperature: float, greedy: list[list[bool]]
) -> dict:
    """Return, for each number of tries up to n, the share of tasks answered rightly."""
    counts = [2**i for i in range(n.bit_length()) if 2**i <= n]
    rng = np.random.default_rng(SEED)
    verifier, likeliest, vote, lengths = [], [], [], []
    for task in tqdm(tasks, desc=f"temperature {temperature}"):
        prompt = prompt_ids(tok, task)
        params = SamplingParams(
            temperature=temperature, max_tokens=task.max_tokens, stop=task.stop, seed=SEED
        )
        tries = sample_n(model, prompt, params, n, tokenizer=tok)
        right = [task.is_right(one.text) for one in tries]
        scores = [total_logprob(model, prompt, one.ids) for one in tries]
        lengths += [len(one.ids) for one in tries]
        verifier.append([best_of_n_accuracy(right, right, k) for k in counts])
        likeliest.append([best_of_n_accuracy(scores, right, k) for k in counts])
        if task.truth is not None:
            answers = [one.text if one.finish_reason == "stop" else None for one in tries]
            vote.append([vote_accuracy(answers, task.truth, k, rng) for k in counts])
    curves = {"verifier": verifier, "likeliest": likeliest} | ({"vote": vote} if vote else {})
    return {
        "temperature": temperature,
        "tries": counts,
        "tokens_per_try": float(np.mean(lengths)),
        "curves": {name: summary(rows) | paired(rows, greedy) for name, rows in curves.items()},
    }


def beams(model, tok, tasks: list[Task], width: int) -> dict:
    """Return for each task whether the best beam is right; width 1 is greedy choice.

    `cut` says whether max_tokens came before the end. (Some texts are right all the same.)
    """
    right, n_tokens, cut = [], [], []
    for task in tqdm(tasks, desc=f"beams {width}"):
        ends = [
            i
            for i in range(tok.vocab_size)
            if i in model.eos_ids or any(stop in tok.decode([i]) for stop in task.stop)
        ]
        found = beam_search(
            model, prompt_ids(tok, task), width, task.max_tokens, length_penalty=0.0, eos_ids=ends
        )
        text = tok.decode(found[0].ids)
        end = min((at for stop in task.stop if (at := text.find(stop)) >= 0), default=len(text))
        right.append([task.is_right(text[:end])])
        n_tokens.append(len(found[0].ids))
        cut.append(not found[0].finished)
    return {"width": width, "n_tokens": n_tokens, "right": right, "cut": cut}


def beams_summary(found: dict) -> dict:
    """Return means over the tasks of what `beams` found."""
    cut, right = np.array(found["cut"]), np.array(found["right"])[:, 0]
    return {
        "width": found["width"],
        "tokens": float(np.mean(found["n_tokens"])),
        "n_cut": int(cut.sum()),
        "n_cut_and_wrong": int((cut & ~right).sum()),
        **summary(found["right"]),
    }


def prompt_ids(tok, task: Task) -> list[int]:
    # A few characters per token: enough text for the tokens that are kept.
    return tok.encode(task.prompt[-20 * PROMPT_TOKENS :])[-PROMPT_TOKENS:]


def summary(rows: list[list[float]]) -> dict:
    """Return mean and standard error over tasks."""
    error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
    return {"accuracy": np.mean(rows, axis=0).tolist(), "standard_error": error.tolist()}


def paired(rows: list[list[float]], greedy: list[list[bool]]) -> dict:
    """Return mean and standard error of the differences from greedy choice, task by task."""
    found = summary(np.subtract(rows, greedy, dtype=float).tolist())
    return {"minus_greedy": found["accuracy"], "minus_greedy_error": found["standard_error"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few tasks, nothing written")
    quick = parser.parse_args().quick
    n_tasks, n_tries = N_QUICK if quick else N_TASKS_AND_TRIES

    started_at = commit()  # the code that runs, whatever is committed meanwhile
    model, tok = load_model(), tokenizer()
    text = data_path("heldout.txt").read_text(encoding="utf-8")
    report: dict = {"tasks": {}}
    for kind, all_tasks in (("name", name_tasks(text)), ("line", line_tasks(text))):
        tasks = random.Random(SEED).sample(all_tasks, n_tasks)
        # What one gets for always saying the same: the most frequent name, or a closed bracket.
        constant = majority_vote([task.truth for task in tasks]) or ")"
        searched = [beams(model, tok, tasks, width) for width in BEAM_WIDTHS]
        greedy = searched[0]["right"]
        report["tasks"][kind] = {
            "n": n_tasks,
            "of": len(all_tasks),
            "constant_answer": sum(task.is_right(constant) for task in tasks) / n_tasks,
            "beams": [beams_summary(found) for found in searched],
            "samples": [measure(model, tok, tasks, n_tries, t, greedy) for t in TEMPERATURES],
        }
        print(json.dumps(report["tasks"][kind], indent=1))
    if quick:
        return
    report["provenance"] = {
        "script": "scripts/measure_search.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": started_at,
        "measured_code": MEASURED_CODE,
        "versions": {"firsttoken": version("firsttoken"), "numpy": version("numpy")}
        | {"python": platform.python_version()},
        "seed": SEED,
        "prompt_tokens": PROMPT_TOKENS,
    }
    path = ROOT / "data" / "measured" / "search.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print("written:", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
