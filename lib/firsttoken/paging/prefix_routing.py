"""Chats over prefix caches: which replica serves a turn, and how much of its prompt is there."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.checks import check_choice, check_count
from firsttoken.paging.pool import BlockPool

Array = np.ndarray
Length = int | Callable[[np.random.Generator], int]

ROUTES = ("round_robin", "conversation", "prefix")


@dataclass(frozen=True)
class Turn:
    """A message in a chat: the prompt is all that was said so far, in token ids.

    Units:  seconds
    """

    arrival_s: float
    conversation: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def chat_trace(
    n_conversations: int,
    rng: np.random.Generator,
    *,
    rate: float = 1.0,
    think_s: float = 30.0,
    n_turns: Length = 5,
    n_system: int = 256,
    n_user: Length = 64,
    n_answer: Length = 192,
    vocab_size: int = 32000,
) -> list[Turn]:
    """Return the turns of many chats, by arrival: prompts that share a start and grow.

    Every conversation starts with the same system prompt. A turn's prompt is that of the turn
    before, its answer, and a new message of the user. Conversations begin at random, `rate` per
    second, and think an exponential time with mean `think_s` from one turn to the next. Messages
    are random tokens: only whether they are equal matters here.

    Units:  conversations/s, seconds, tokens. A length is a number, or draws one from `rng`.
    Raises: ValueError for a rate or think time that is not positive, and lengths below one
            (n_system: below zero).

    >>> turns = chat_trace(2, np.random.default_rng(0), n_turns=3)
    >>> sorted(len(turn.prompt) for turn in turns)  # 256 + 64, and 192 + 64 more each turn
    [320, 320, 576, 576, 832, 832]
    """
    for name, value in (("rate", rate), ("think_s", think_s)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
    check_count("n_conversations", n_conversations, at_least=1)
    check_count("vocab_size", vocab_size, at_least=1)
    check_count("n_system", n_system)

    def draw(name: str, length: Length) -> int:
        return check_count(name, length(rng) if callable(length) else length, at_least=1)

    def message(n: int) -> tuple[int, ...]:
        return tuple(rng.integers(vocab_size, size=n).tolist())

    system = message(n_system)
    begins = np.cumsum(rng.exponential(1 / rate, size=n_conversations)).tolist()
    turns = []
    for conversation, arrival_s in enumerate(begins):
        text = system
        for _ in range(draw("n_turns", n_turns)):
            text += message(draw("n_user", n_user))
            answer = message(draw("n_answer", n_answer))
            turns.append(Turn(arrival_s, conversation, text, answer))
            text += answer
            arrival_s += float(rng.exponential(think_s))
    return sorted(turns, key=lambda turn: turn.arrival_s)


@dataclass(frozen=True)
class Replay:
    """What happened to the prompt of each turn; arrays with one entry per turn.

    pool: which pool served it. n_prompt: its tokens. n_cached: those found in that pool.
    n_loaded: those found beyond them in host memory. The rest had to be computed.
    work: of each pool's replica, the tokens it computed, prompts and answers.
    """

    pool: Array
    n_prompt: Array
    n_cached: Array
    n_loaded: Array
    work: Array

    @property
    def n_computed(self) -> Array:
        """The prompt tokens that no cache had."""
        return self.n_prompt - self.n_cached - self.n_loaded

    @property
    def hit_rate(self) -> float:
        """The share of all prompt tokens that was in the pool's cache or came from the host's."""
        return 1 - float(self.n_computed.sum() / self.n_prompt.sum())

    @property
    def imbalance(self) -> float:
        """The work of the busiest replica over the mean; 1 is perfect balance."""
        return float(self.work.max() / self.work.mean())


def replay(
    turns: Iterable[Turn],
    pools: Sequence[BlockPool],
    route: str = "prefix",
    host: BlockPool | None = None,
    max_imbalance: float = 1.1,
) -> Replay:
    """Serve turns one after another from one or more pools, and count what was cached.

    Each pool stands for a replica of the model with a prefix cache of its own. `route` says which
    one serves a turn: "round_robin" the next, "conversation" always the same one for a
    conversation, "prefix" the one that has most of the prompt cached, or of equals the one with
    the least work so far. It passes over replicas with more than `max_imbalance` times the mean
    work: the prefix alone would send everybody with the same system prompt to one of them.

    `host` is a second tier behind all of them, in host memory, slower and larger. Every block of a
    turn is also stored there, and blocks that a pool has lost are loaded instead of computed.

    A turn ends before the next one starts, so it competes with the cache of earlier turns only.

    Units:  tokens
    Raises: ValueError for no turns or pools, pools without prefix caching or of different block
            sizes, an unknown route, a max_imbalance below 1, and a turn that does not fit into a
            pool.
    Source: Zheng et al. 2023, arXiv:2312.07104 (hit rate); Srivatsa et al. 2024, arXiv:2407.00023
            (routing by prefix and load)

    >>> turns = chat_trace(40, np.random.default_rng(0))
    >>> for route in ROUTES:
    ...     pools = [BlockPool(1000, 16, prefix_caching=True) for _ in range(4)]
    ...     print(route, round(replay(turns, pools, route).hit_rate, 2))
    round_robin 0.56
    conversation 0.92
    prefix 0.9
    """
    turns = list(turns)
    _check_replay(turns, pools, route, host)
    if not max_imbalance >= 1:
        raise ValueError(f"max_imbalance must be at least 1, got {max_imbalance}")
    work = [0] * len(pools)
    rows = []
    for i, turn in enumerate(turns):
        n_prompt = len(turn.prompt)
        if route == "round_robin":
            at = i % len(pools)
        elif route == "conversation":
            at = turn.conversation % len(pools)
        else:
            mean = sum(work) / len(work)
            calm = [j for j, done in enumerate(work) if done / max_imbalance <= mean]
            at = max(calm, key=lambda j: (pools[j].n_cached(turn.prompt), -work[j]))
        n_cached = pools[at].allocate(i, turn.prompt)
        for token in turn.answer:
            pools[at].append(i, token)
        pools[at].free(i)
        n_loaded = 0
        if host is not None:
            n_loaded = max(0, host.n_cached(turn.prompt) - n_cached)
            host.allocate(i, turn.prompt + turn.answer)
            host.free(i)
        work[at] += n_prompt - n_cached - n_loaded + len(turn.answer)
        rows.append((at, n_prompt, n_cached, n_loaded))
    pool, n_prompts, n_cached_tokens, n_loaded_tokens = np.array(rows).T
    return Replay(pool, n_prompts, n_cached_tokens, n_loaded_tokens, np.array(work))


def _check_replay(
    turns: list[Turn], pools: Sequence[BlockPool], route: str, host: BlockPool | None
) -> None:
    tiers = [*pools] if host is None else [*pools, host]
    if not turns or not pools:
        raise ValueError(f"{len(turns)} turns and {len(pools)} pools, expected at least one each")
    check_choice("route", route, ROUTES)
    if not all(tier.prefix_caching and tier.block_size == pools[0].block_size for tier in tiers):
        raise ValueError("pools and host must have prefix caching and blocks of one size")
    longest = max(len(turn.prompt) + len(turn.answer) for turn in turns)
    for tier in tiers:
        if longest > tier.n_free * tier.block_size:
            raise ValueError(
                f"a turn of {longest} tokens does not fit into a pool with {tier.n_free} blocks "
                f"of {tier.block_size} free"
            )
