"""Every draft of chapter 13 against the fastest plain loop, and what a check of guesses costs.

    python benchmarks/drafts_speed.py            # writes data/measured/drafts_speed.json
    python benchmarks/drafts_speed.py --table    # shows what is stored
    python benchmarks/drafts_speed.py --quick    # one round of few tokens, writes nothing

Places are taken evenly from the held-out text, but at temperature 0 those only where the plain
greedy text does not go round in a loop: in a loop every draft is right. How far to guess is chosen
for each draft and temperature on other places than those of the race. In the race every loop
writes each text in turn, several times; a gain is the ratio of neighbouring runs. `times` is the
ratio of the lower quartiles, taken place by place and multiplied together.

Costs are those inside the loops. A pass is also timed apart, with its products done in three ways:
all rows in one product with the whole matrix, row by row through its panels, and panel by panel
with all rows at once, as the library does on this processor.

With `--work` the drafts that are not shipped are raced as well, from where
`scripts/train_drafts.py` has left them.
"""

import argparse
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

# One thread: products this small gain nothing from more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from firsttoken.drafts import FirstDraft, SuffixDraft, best_tree
from firsttoken.drafts.heads import (
    EagleDraft,
    MedusaDraft,
    MultiTokenDraft,
    RecurrentDraft,
    multi_token_heads,
)
from firsttoken.generate import Generation, generate, prompt_lookup, speculative_generate
from firsttoken.models.llama import Llama, load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor
from firsttoken.sampling import SamplingParams
from firsttoken.speculative import Round, acceptance_by_position

MEASURED_CODE = code_digest(
    [
        "attention",
        "models/checkpoint",
        "generate/sequence",
        "drafts/growing",
        "drafts/heads",
        "drafts/lookup",
        "drafts/planning",
        "drafts/suffix_automaton",
        "drafts/typical",
        "speculative/trees",
        "generate/drafting",
        "generate/loop",
        "kv_cache",
        "models/llama",
        "models/llama_torch",
        "models/rope",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "speculative/speed",
        "speculative/verification",
        "models/threads",
    ]
)
N_PLACES, N_PROMPT, N_NEW, N_ROUNDS = 6, 64, 128, 5
N_TRIED = 400  # greedy texts; few do not loop
GAMMAS, TREES = (1, 2, 3, 4, 6), (6, 10)
TEMPERATURES = (0.0, 1.0)
ROWS = range(1, 10)
SURE = 0.5  # below this probability of its guess, a draft that stops makes no more
LONG = 2  # tokens that must have stood before, where a look-up goes first


@dataclass(frozen=True)
class Candidate:
    """A way to guess: `make(setting)` returns the draft; a setting is a γ, or a tree's size."""

    make: Callable[[int], object]
    settings: tuple[int, ...] = GAMMAS


def candidates(target: Llama, work: Path | None, alpha: dict[str, list]) -> dict[str, Candidate]:
    """Return what is raced; `alpha` has for each draft of features its ranks, for its tree."""

    def tree(name: str, setting: int) -> list[int]:
        return best_tree(np.array(alpha[name]), setting)

    def look_up(ids: list[int], n: int) -> list[int]:
        return prompt_lookup(ids, 3, n)

    models = {
        "shipped draft": load_model("draft"),
        "pruned draft": load_model(data_path("model/pruned_draft")),
    }
    found = {
        "prompt lookup": Candidate(lambda _: look_up),
        "suffix automaton": Candidate(lambda _: SuffixDraft()),
        "Medusa": Candidate(lambda _: MedusaDraft(target), (1, 2, 3, 4)),
        "Medusa, tree": Candidate(
            lambda n: MedusaDraft(target, tree=tree("medusa", n)), (4, *TREES)
        ),
        "recurrent head": Candidate(lambda _: RecurrentDraft(target)),
        "recurrent head, tree": Candidate(
            lambda n: RecurrentDraft(target, tree=tree("recurrent", n)), (4, *TREES)
        ),
        "EAGLE": Candidate(lambda _: EagleDraft(target)),
        "EAGLE, while sure": Candidate(
            lambda _: EagleDraft(target, min_confidence=SURE), (3, 4, 6, 8)
        ),
        "suffix, else EAGLE": Candidate(
            lambda _: FirstDraft(
                SuffixDraft(min_match=LONG), EagleDraft(target, min_confidence=SURE)
            ),
            (3, 4, 6, 8),
        ),
        "suffix, else recurrent": Candidate(
            lambda _: FirstDraft(
                SuffixDraft(min_match=LONG), RecurrentDraft(target, min_confidence=SURE)
            ),
            (2, 3, 4, 6, 8),
        ),
        "EAGLE, tree": Candidate(lambda n: EagleDraft(target, tree=tree("eagle", n)), (4, *TREES)),
    }
    if work is not None:
        models["distilled further"] = load_model(work / "distilled")
        found["EAGLE, first form"] = Candidate(lambda _: EagleDraft(target, work / "eagle"))
        found["multi-token heads"] = Candidate(
            lambda _: MultiTokenDraft(target, multi_token_heads(target, work / "multi_token")),
            (1, 2, 3),
        )
    return {n: Candidate(lambda _, m=m: m) for n, m in models.items()} | found


# Places


def loops(ids: Sequence[int], longest: int = 48, span: int = 24) -> bool:
    """Say whether a text repeats itself: `span` tokens in a row as those a period before.

    >>> loops([1, 2, 3] * 20), loops(list(range(100)))
    (True, False)
    """
    text = np.asarray(ids)
    for period in range(1, longest + 1):
        same = text[period:] == text[:-period]
        runs = (len(list(run)) for equal, run in itertools.groupby(same) if equal)
        if max(runs, default=0) >= max(span, period):
            return True
    return False


def places(target: Llama, temperature: float, n_new: int) -> tuple[list[int], list[int], int]:
    """Return (starts to choose γ on, starts of the race, starts tried); they take turns."""
    ids = held_out()
    wanted, found, tried = 2 * N_PLACES, list[int](), 0
    for start in np.linspace(0, len(ids) - N_PROMPT, N_TRIED, dtype=int).tolist():
        if temperature > 0:
            found.append(start)
            continue
        tried += 1
        params = SamplingParams(0, max_tokens=n_new)
        if not loops(generate(target, ids[start : start + N_PROMPT], params, ignore_eos=True).ids):
            found.append(start)
    if temperature == 0 and len(found) < wanted:
        raise SystemExit(f"only {len(found)} of {tried} places do not loop, {wanted} are needed")
    spread = [found[i] for i in np.linspace(0, len(found) - 1, wanted, dtype=int)]
    return spread[1::2], spread[::2], tried


def held_out() -> list[int]:
    return tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8"))


# The race


def write(target, draft, prompt, params, gamma: int) -> tuple[float, Generation]:
    """Return (seconds, text) of one run; without a draft, plain decoding."""
    start = time.perf_counter()
    if draft is None:
        text = generate(target, prompt, params, ignore_eos=True)
    else:
        text = speculative_generate(target, draft, prompt, params, gamma, ignore_eos=True)
    return time.perf_counter() - start, text


def race(
    loops_: dict[str, tuple[object, object, int]],
    prompts: list[list[int]],
    temperature: float,
    n_rounds: int,
    n_new: int,
    first_seed: int,
) -> tuple[dict[str, np.ndarray], dict[str, list[Generation]]]:
    """Return, by name: seconds (rounds, places), and the texts. `loops_`: (target, draft, γ)."""
    seconds = {name: np.zeros((n_rounds, len(prompts))) for name in loops_}
    texts: dict[str, list[Generation]] = defaultdict(list)
    for at in tqdm(list(np.ndindex(n_rounds, len(prompts))), f"temperature {temperature}"):
        params = SamplingParams(temperature, max_tokens=n_new, seed=first_seed + at[0])
        for name, (target, draft, gamma) in loops_.items():
            seconds[name][at], text = write(target, draft, prompts[at[1]], params, gamma)
            texts[name].append(text)
    return seconds, texts


def times(plain: np.ndarray, other: np.ndarray) -> float:
    """Return how many times faster: ratios of lower quartiles (rounds, places), multiplied."""
    low = np.percentile(plain, 25, axis=0) / np.percentile(other, 25, axis=0)
    return float(np.exp(np.log(low).mean()))


# What things cost


class Timed:
    """A model or a draft that notes how long each call takes: a pass by the tokens it reads."""

    def __init__(self, inner):
        self._inner, self.seconds = inner, defaultdict(float)
        for name in ("arch", "eos_ids", "new_cache", "observe"):
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))

    def _timed(self, kind, function, *args):
        start = time.perf_counter()
        result = function(*args)
        self.seconds[kind] += time.perf_counter() - start
        return result

    def __call__(self, *args):
        return self._timed("call", self._inner, *args)


class TimedTarget(Timed):
    """A target, whose pass may come in two halves."""

    def features(self, *args):
        return self._timed("features", self._inner.features, *args)

    def logits(self, features):
        return self._timed("logits", self._inner.logits, features)


class TimedDraft(Timed):
    """A draft that has `propose`; whoever has `observe` gets it without being timed."""

    def propose(self, request, n):
        return self._timed("propose", self._inner.propose, request, n)


def costs(target, make, gamma: int, prompts, temperature: float, n_new: int) -> dict:
    """Return where the time of a loop goes, in milliseconds a round."""
    draft = make(gamma)
    timed = TimedDraft(draft) if hasattr(draft, "propose") else Timed(draft)
    checks = TimedTarget(target)
    total, n_rounds = 0.0, 0
    params = SamplingParams(temperature, max_tokens=n_new, seed=0)
    for prompt in prompts:
        seconds, text = write(checks, timed, prompt, params, gamma)
        total, n_rounds = total + seconds, n_rounds + len(text.rounds)
    spent = {
        "check": checks.seconds["call"] + checks.seconds["features"] + checks.seconds["logits"],
        "draft": sum(timed.seconds.values()),
    }
    spent["rest"] = total - sum(spent.values())
    return {name: round(1e3 * s / n_rounds, 4) for name, s in spent.items()}


def plain_step(target, prompts, temperature: float, n_new: int) -> dict:
    """Return the milliseconds of a plain token: the pass in it, and the rest."""
    inside, total, n_passes = Timed(target), 0.0, 0
    params = SamplingParams(temperature, max_tokens=n_new, seed=0)
    for prompt in prompts:
        seconds, _ = write(inside, None, prompt, params, 0)
        total, n_passes = total + seconds, n_passes + n_new
    passes = inside.seconds["call"]
    return {
        "pass": round(1e3 * passes / n_passes, 4),
        "rest": round(1e3 * (total - passes) / n_passes, 4),
    }


# A pass, by how its products are done


@contextmanager
def products(way: str) -> Iterator[None]:
    """Let the model multiply a few rows in another way."""
    from firsttoken.models import llama

    if way == "panel by panel":
        with patch.object(llama, "few_rows_in_one", lambda: True):
            yield
    elif way == "row by row":
        no_kernels = patch.object(llama, "few_rows_in_one", lambda: False)
        with no_kernels, patch.object(llama._Matrix, "few", max(ROWS)):
            yield
    else:
        kept: dict[int, np.ndarray] = {}

        def whole(self, x):
            if id(self) not in kept:
                kept[id(self)] = np.ascontiguousarray(np.asarray(self))
            return x @ kept[id(self)]

        with patch.object(llama._Matrix, "__rmatmul__", whole):
            yield


WAYS = ("whole matrix", "row by row", "panel by panel")


def passes(target: Llama, prompt: list[int], n_rounds: int, n_blocks: int = 3) -> dict:
    """Return by way: milliseconds (lower quartile) of a pass over 1 … 9 tokens, and of products.

    The ways take turns in blocks, each begun by passes that are not counted: the matrices of one
    push those of another out of the processor's caches.
    """
    cache = target.new_cache(1, N_PROMPT + max(ROWS))
    target([prompt], cache)
    found: dict[str, dict[int, list[float]]] = {way: {n: [] for n in ROWS} for way in WAYS}
    alone: dict[str, dict[int, list[float]]] = {way: {n: [] for n in ROWS} for way in WAYS}
    inputs = {n: _inputs(target, n) for n in ROWS}

    def one_pass(n: int) -> None:
        target([prompt[:n]], cache)
        cache.truncate(N_PROMPT)

    def all_products(n: int) -> None:
        for x, matrix in inputs[n]:
            x @ matrix

    for way in tqdm(WAYS * n_blocks, "passes"):
        with products(way):
            for work, seconds in ((one_pass, found[way]), (all_products, alone[way])):
                for _ in range(5):
                    work(1)
                for n in list(ROWS) * n_rounds:
                    start = time.perf_counter()
                    work(n)
                    seconds[n].append(time.perf_counter() - start)
    return {
        way: {
            "pass_ms": [_low(found[way][n]) for n in ROWS],
            "products_ms": [_low(alone[way][n]) for n in ROWS],
        }
        for way in WAYS
    }


def _inputs(target: Llama, n: int) -> list[tuple[np.ndarray, object]]:
    """Return rows and matrices of all products of a pass over n tokens."""
    rng = np.random.default_rng(0)
    matrices = [
        m for block in target.blocks for m in (block.qkv, block.out, block.gate_up, block.down)
    ]
    matrices.append(target.unembedding)
    return [(rng.normal(size=(1, n, m.shape[0])).astype(np.float32), m) for m in matrices]


def _low(seconds: Sequence[float]) -> float:
    return round(1e3 * float(np.percentile(seconds, 25)), 4)


# The report


def compare(target, found: dict[str, Candidate], temperature: float, scale: "Scale") -> dict:
    """Choose settings, race, and say what things cost, at one temperature."""
    ids = held_out()
    choosing, racing, tried = places(target, temperature, scale.n_new)
    prompts = {
        name: [ids[start : start + N_PROMPT] for start in starts[: scale.n_places]]
        for name, starts in (("choose", choosing), ("race", racing))
    }
    plain = {"plain": (target, None, 0)}
    other = {"plain, PyTorch": (load_model("target", "torch"), None, 0)}
    every = {
        f"{name} @ {setting}": (target, candidate.make(setting), setting)
        for name, candidate in found.items()
        for setting in candidate.settings
    }
    options = temperature, scale.n_choose, scale.n_new
    seconds, _ = race(plain | every, prompts["choose"], *options, first_seed=100)
    gains = {name: times(seconds["plain"], seconds[name]) for name in every}
    best = {
        name: max(candidate.settings, key=lambda s: gains[f"{name} @ {s}"])
        for name, candidate in found.items()
    }
    chosen = {name: every[f"{name} @ {setting}"] for name, setting in best.items()}
    options = temperature, scale.n_rounds, scale.n_new
    seconds, texts = race(plain | other | chosen, prompts["race"], *options, first_seed=0)
    fastest = min([*plain, *other], key=lambda name: float(np.percentile(seconds[name], 25)))
    rows = {}
    for name, setting in best.items():
        ratio = seconds[fastest] / seconds[name]
        rounds = [r for text in texts[name] for r in text.rounds]
        alpha, reached = acceptance_by_position(rounds)
        rows[name] = {
            "setting": setting,
            "times": round(times(seconds[fastest], seconds[name]), 4),
            "quartiles": np.percentile(ratio, [25, 75]).round(4).tolist(),
            "tokens_per_pass": round(_tokens_per_pass(rounds), 4),
            "alpha": np.nan_to_num(alpha).round(4).tolist(),
            "reached": reached.tolist(),
            "ms_per_round": costs(
                target, found[name].make, setting, prompts["race"], temperature, scale.n_new
            ),
            "by_setting": {s: round(gains[f"{name} @ {s}"], 4) for s in found[name].settings},
        }
    report = {
        "fastest_plain": fastest,
        "plain_ms_per_token": {
            name: round(1e3 * float(np.percentile(seconds[name], 25)) / scale.n_new, 4)
            for name in [*plain, *other]
        },
        "plain_ms": plain_step(target, prompts["race"], temperature, scale.n_new),
        "places": racing[: scale.n_places],
        "drafts": rows,
    }
    if temperature == 0:
        report["tried"] = tried
        expected = [text.ids for text in texts["plain"]]
        report["same_text"] = all([text.ids for text in texts[n]] == expected for n in best)
    return report


def _tokens_per_pass(rounds: list[Round]) -> float:
    return 1 + sum(r.accepted for r in rounds) / len(rounds)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    n_places: int = N_PLACES
    n_new: int = N_NEW
    n_rounds: int = N_ROUNDS
    n_choose: int = 2
    n_passes: int = 60


def table(report: dict) -> None:
    """Print what came out."""
    for tau, r in report["temperatures"].items():
        print(
            f"\ntemperature {tau}: plain {r['plain_ms_per_token']} ms a token, step {r['plain_ms']}"
        )
        print(f"{'':20s} at  times (quartiles)      tokens/pass  ms a round: draft check rest")
        for name, row in r["drafts"].items():
            low, high = row["quartiles"]
            ms = row["ms_per_round"]
            print(
                f"{name:20s} {row['setting']:2d}  {row['times']:.2f} ({low:.2f} … {high:.2f})"
                f"   {row['tokens_per_pass']:8.2f}         {ms['draft']:.2f} {ms['check']:.2f} "
                f"{ms['rest']:.2f}"
            )
    print("\na pass over 1 … 9 tokens, in steps of one token panel by panel")
    one = report["passes"]["panel by panel"]["pass_ms"][0]
    for way, row in report["passes"].items():
        print(f"{way:15s}", *(f"{ms / one:5.2f}" for ms in row["pass_ms"]))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=data_path("measured/drafts_speed.json"))
    parser.add_argument("--work", type=Path, help="drafts that are not shipped")
    parser.add_argument("--quick", action="store_true", help="a few tokens, writes nothing")
    parser.add_argument("--table", action="store_true", help="show what is stored")
    options = parser.parse_args(argv)
    if options.table:
        table(json.loads(options.out.read_text("utf-8")))
        return
    scale = Scale(2, 24, 1, 1, 3) if options.quick else Scale()
    started_at, busy = commit(), load_average()
    target = load_model("target")
    measured = json.loads(data_path("measured/drafts.json").read_text("utf-8"))
    shipped = measured["shipped"]
    alpha = {
        "medusa": measured["measured"][shipped["medusa_heads"]]["ranks"],
        "recurrent": measured["measured"][shipped["recurrent_head"]]["ranks"],
        "eagle": measured["measured"][shipped["eagle_draft"]]["ranks"],
    }
    found = candidates(target, options.work, alpha)
    report = {
        "tokens": {"prompt": N_PROMPT, "new": scale.n_new, "rounds": scale.n_rounds},
        "temperatures": {f"{t:g}": compare(target, found, t, scale) for t in TEMPERATURES},
        "passes": passes(target, held_out()[:N_PROMPT], scale.n_passes),
        "provenance": {
            "commit": started_at,
            "measured_code": MEASURED_CODE,
            "seeds": "0 to rounds - 1 in the race, from 100 where settings are chosen",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor()}, 1 thread",
            "load_average_before": busy,
            "versions": {name: version(name) for name in ("numpy", "torch")},
        },
    }
    table(report)
    if not options.quick:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
