"""Test-time search: more than one try at an answer, and ways to choose among the tries."""

import math
import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from firsttoken.checks import check_count
from firsttoken.generate.loop import generate
from firsttoken.generate.sequence import Generation
from firsttoken.models.evaluation import token_losses
from firsttoken.models.protocols import Cache, Model
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Constraint
from firsttoken.sampling.logits import log_softmax

Array = np.ndarray


@dataclass(frozen=True)
class Beam:
    """One candidate of a beam search: its new tokens, the end-of-sequence token included.

    `logprob` is the sum of log p over the tokens, in nats; `score` is what beams are ranked by.
    `finished` says whether the text ended, or was cut at max_tokens.
    """

    ids: list[int]
    logprob: float
    score: float
    finished: bool


def beam_search(
    model: Model,
    prompt_ids: Sequence[int],
    beam_width: int,
    max_tokens: int,
    length_penalty: float = 1.0,
    constraint: Constraint | None = None,
    eos_ids: Sequence[int] | None = None,
) -> list[Beam]:
    """Look for the likeliest continuations, following `beam_width` of them side by side.

    In each step every beam is extended by every token. The likeliest `beam_width` that go on
    are followed; of those that end, each that ranks as high is kept as a candidate. A width of 1
    is greedy choice; one that holds all texts is an exhaustive search.

    Longer texts are less likely: candidates are compared by logprob / n_tokens**length_penalty.
    0 compares probabilities, 1 the mean over tokens. The search ends when no followed beam can
    still get among the candidates, or at max_tokens, where the followed beams join them.

    The prompt is computed once. Then each beam is a row of the cache, and the rows are copied
    when beams branch. `eos_ids` are the tokens that end a text (None: those of the model); with
    all that hold a line end, a text is a line.

    Under a `constraint` the mask only forbids: nothing is renormalised, and the candidates are
    ranked by what the model thinks of them. Where it leaves fewer than `beam_width` beams, fewer
    come back, perhaps none.

    Shapes: prompt_ids: at least one id; result: at most beam_width candidates, the best first
    Raises: ValueError for sizes below 1, an empty prompt, and texts longer than the context.
    Source: candidates and score as in transformers (generation/utils.py, _beam_search with
            early_stopping="never"); the idea: Lowerre 1976 (the HARPY system)
    """
    prompt = [operator.index(i) for i in prompt_ids]
    check_count("beam_width", beam_width, at_least=1)
    check_count("max_tokens", max_tokens, at_least=1)
    if not prompt:
        raise ValueError("prompt_ids must hold at least one id, got none")
    context = model.arch.max_context
    if context is not None and len(prompt) + max_tokens > context:
        raise ValueError(
            f"{len(prompt)} prompt_ids and max_tokens {max_tokens} pass the context of {context}"
        )
    ends = frozenset(model.eos_ids if eos_ids is None else eos_ids)
    cache = model.new_cache(1, len(prompt))
    logits = np.asarray(model([prompt], cache))[:, -1]  # [beams, V]
    beams = [Beam([], 0.0, 0.0, False)]
    constraints = [] if constraint is None else [constraint]  # one for each beam
    candidates: list[Beam] = []
    for n_tokens in range(1, max_tokens + 1):
        logprobs = log_softmax(logits) + np.array([[beam.logprob] for beam in beams])
        if constraints:
            logprobs = np.where([c.mask() for c in constraints], logprobs, -math.inf)
        # Even if every beam ended in every possible way, enough that go on would be among these.
        n_best = beam_width * (1 + len(ends))
        best = np.argsort(-logprobs, axis=None, kind="stable")[:n_best]
        followed: list[tuple[int, Beam]] = []  # (the row it extends, the beam)
        for rank, place in enumerate(best):
            row, token = (int(i) for i in np.unravel_index(place, logprobs.shape))
            logprob = float(logprobs[row, token])
            if logprob == -math.inf:
                break
            score = logprob / n_tokens**length_penalty
            ended = token in ends
            beam = Beam([*beams[row].ids, token], logprob, score, ended)
            if not ended and n_tokens < max_tokens:
                followed.append((row, beam))
            elif rank < beam_width:
                candidates.append(beam)
        candidates = sorted(candidates, key=lambda beam: -beam.score)[:beam_width]
        if not followed:
            break
        rows, beams = (list(part) for part in zip(*followed[:beam_width], strict=True))
        # A logprob only falls from here; the divisor is largest at one of the two ends.
        divisor = max(n**length_penalty for n in (n_tokens + 1, max_tokens))
        if len(candidates) == beam_width and beams[0].logprob / divisor <= candidates[-1].score:
            break
        if constraints:
            constraints = [constraints[row].copy() for row in rows]
            for branch, beam in zip(constraints, beams, strict=True):
                branch.advance(beam.ids[-1])
        cache = _select_rows(model, cache, rows)
        logits = np.asarray(model([beam.ids[-1:] for beam in beams], cache))[:, -1]
    return candidates


def sample_n(
    model: Model, prompt_ids: Sequence[int], params: SamplingParams, n: int, **options: Any
) -> list[Generation]:
    """Return n independent continuations: with seed, seed + 1, … (a seed of None stays None).

    `options` go to `generate`, as `tokenizer` or `constraint`.

    Raises: ValueError for an n that is no count of at least 1, and as `generate`.
    """
    check_count("n", n, at_least=1)
    seeds = [None if params.seed is None else params.seed + i for i in range(n)]
    return [generate(model, prompt_ids, replace(params, seed=s), **options) for s in seeds]


def total_logprob(model: Model, prompt_ids: Sequence[int], ids: Sequence[int]) -> float:
    """Return log p of the new tokens together, as the model alone sees it: at temperature 1.

    One pass over the finished text: to score is a prefill, and cheaper than to generate.

    Units:  nats
    Raises: ValueError for an empty prompt or no new tokens.
    """
    if not len(prompt_ids) or not len(ids):
        raise ValueError(f"prompt_ids ({len(prompt_ids)}) and ids ({len(ids)}) must not be empty")
    return -float(token_losses(model, [*prompt_ids, *ids])[-len(ids) :].sum())


def majority_vote(answers: Sequence[Hashable | None]) -> Hashable | None:
    """Return the most frequent answer; of equally frequent ones, that which came first.

    None is no answer and has no vote; without any vote the result is None.

    Source: Wang et al. 2023, arXiv:2203.11171, sec. 2 ("self-consistency")

    >>> majority_vote(["7", "5", None, None, None, "5"])
    '5'
    """
    votes = Counter(answer for answer in answers if answer is not None)
    return votes.most_common(1)[0][0] if votes else None


def best_of_n_accuracy(scores: Sequence[float], correct: Sequence[bool], n: int) -> float:
    """Return how often the best-scored of n tries is correct: the mean over all n of those given.

    With a verifier as the score (correct itself), that is pass@n: at least one of n is right.

    Shapes: scores, correct: (N,), one for each try; 1 ≤ n ≤ N
    Raises: ValueError for other lengths.
    Source: with a verifier, Chen et al. 2021, arXiv:2107.03374, eq. 1

    >>> best_of_n_accuracy([-3.0, -1.0, -2.0], [True, False, False], 2)
    0.0
    >>> round(best_of_n_accuracy([1, 0, 0], [True, False, False], 2), 3)
    0.667
    """
    ranked, hit = np.asarray(scores, dtype=float), np.asarray(correct)
    if ranked.shape != hit.shape or ranked.ndim != 1:
        raise ValueError(f"scores {ranked.shape} and correct {hit.shape} must both be (N,)")
    n_tries = len(ranked)
    if check_count("n", n, at_least=1) > n_tries:
        raise ValueError(f"n must lie in 1 … {n_tries}, the number of tries; got {n}")
    falling = np.argsort(-ranked, kind="stable")
    # The try of rank r is chosen if it is drawn, and the other n - 1 come from behind it.
    chosen = [math.comb(n_tries - 1 - rank, n - 1) for rank in range(n_tries)]
    hits = sum(ways for ways, i in zip(chosen, falling, strict=True) if hit[i])
    return hits / math.comb(n_tries, n)


def vote_accuracy(
    answers: Sequence[Hashable | None],
    truth: Hashable,
    n: int,
    rng: np.random.Generator,
    n_draws: int = 1000,
) -> float:
    """Return how often a vote of n tries finds the truth: over random n of those given.

    Shapes: answers: (N,), one for each try; 1 ≤ n ≤ N
    Raises: ValueError for an n that is not there.

    >>> vote_accuracy(["5", "7", "5"], "5", 3, np.random.default_rng(0))
    1.0
    """
    if check_count("n", n, at_least=1) > len(answers):
        raise ValueError(f"n must lie in 1 … {len(answers)}, the number of answers; got {n}")
    check_count("n_draws", n_draws, at_least=1)
    draws = (rng.permutation(len(answers))[:n] for _ in range(n_draws))
    return sum(majority_vote([answers[i] for i in draw]) == truth for draw in draws) / n_draws


def _select_rows(model: Model, cache: Cache, rows: list[int]) -> Cache:
    """Return a cache whose row i is row rows[i] of another, with room for one more token."""
    selected = model.new_cache(len(rows), cache.length + 1)
    for layer in range(model.arch.n_layers):
        selected.append(layer, cache.keys(layer)[rows], cache.values(layer)[rows])
    return selected
