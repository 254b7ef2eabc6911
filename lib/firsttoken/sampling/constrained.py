"""Structured output: masks that let a model say nothing but what a language allows.

A language is an automaton over bytes. `Regex` is one with finitely many states, `Json` adds a
stack. `Constraint` follows the text of one request through it and says, at every step, which
tokens of a vocabulary keep a valid text possible.
"""

import copy
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from firsttoken.checks import check_count
from firsttoken.sampling.automaton import automaton

Array = np.ndarray
State = Any  # hashable; each language has states of its own
_KEPT_BYTES = 2**28  # of masks: each has two numbers for every token that it allows
Place = tuple[str, str, int]  # within a JSON document: open brackets, part, number


class Language(Protocol):
    """A set of texts in UTF-8, read byte by byte.

    Bytes, because a token is a run of bytes and may end in the middle of a character.
    """

    start: State

    def step(self, state: State, byte: int) -> State | None:
        """Return the state after one more byte; None where no text of the language goes on so."""

    def n_missing(self, state: State) -> int:
        """Return how few bytes complete the text: 0 where it is complete, and may end."""


class Constraint:
    """What one request may say next: a language, a vocabulary, and the tokens chosen so far.

    `mask` says which tokens may follow, `advance` adds the one that was chosen, and `rollback`
    takes tokens back, as speculation must when a guess is rejected.

    A token is allowed if the bytes so far, with its own, can still be completed. Tokens without
    bytes (special ones) never are. Each byte that the language may need should be a token, too, as
    in a byte-level vocabulary; where one is missing, the mask may find nothing to allow.

    The tokens `eos_ids` end the text. They are allowed where it is complete, and only there, and
    are no part of it. Usually they are the model's own. For a model that seldom ends a text, take
    what it writes behind a complete one: all tokens that begin with a line end, say.

    The vocabulary is stored as a tree of shared beginnings, so that a beginning which leads
    nowhere rules out all its tokens at once. The masks of the last states are kept, up to 256 MiB.
    Copies share both, and so do the constraints of other languages (`with_language`).

    Shapes: tokens: the bytes of each of the V tokens; mask(): (V,), booleans
    Raises: ValueError for eos_ids that are empty or outside the vocabulary, for a token that is
            not allowed, and for taking back more than there is.
    Source: Willard & Louf 2023, arXiv:2307.09702, sec. 3 and 4 (there, over characters)

    >>> constraint = Constraint(Regex("a+b"), [b"", b"a", b"b", b"aab", b"ba"], eos_ids=[0])
    >>> constraint.mask().tolist()
    [False, True, False, True, False]
    >>> constraint.advance(3)
    >>> constraint.mask().tolist()
    [True, False, False, False, False]
    >>> constraint.rollback(1)
    >>> constraint.complete
    False
    """

    def __init__(self, language: Language, tokens: Sequence[bytes], eos_ids: Sequence[int]):
        if not eos_ids or not all(0 <= i < len(tokens) for i in eos_ids):
            raise ValueError(f"eos_ids must be ids in 0 … {len(tokens) - 1}, got {list(eos_ids)}")
        self._language, self._tokens, self._eos_ids = language, list(tokens), frozenset(eos_ids)
        self._tree: dict = {}  # byte: (ids of the tokens that end here, the tree behind it)
        for token, text in enumerate(tokens):
            branch = self._tree if token not in self._eos_ids else {}
            for byte in text:
                ids, branch = branch.setdefault(byte, ([], {}))
            if text:
                ids.append(token)
        self._costs = _Costs()
        self._states: list[State] = [language.start]  # after each token; None after the last

    @property
    def finished(self) -> bool:
        """Whether the text has ended."""
        return self._states[-1] is None

    @property
    def complete(self) -> bool:
        """Whether the text so far is one of the language: it may end here."""
        return self.finished or self._language.n_missing(self._states[-1]) == 0

    def mask(self, budget: float = math.inf) -> Array:
        """Return which tokens are allowed next; none once the text has ended.

        With a `budget`, only those with which the text can be completed and ended within so many
        tokens, the next one included, if each missing byte takes a token. A budget that suffices
        at first does so to the end.
        """
        allowed = np.zeros(len(self._tokens), dtype=bool)
        if not self.finished:
            ids, costs = self._cost(self._states[-1])
            allowed[ids[costs <= budget]] = True
        return allowed

    def advance(self, token: int) -> None:
        """Add a token to the text; one that is not allowed raises, and changes nothing."""
        if not 0 <= token < len(self._tokens):
            raise ValueError(f"token {token} is outside 0 … {len(self._tokens) - 1}")
        state = self._states[-1]
        if token in self._eos_ids:
            allowed, after = not self.finished and self.complete, None
        else:
            after = None if self.finished else state
            for byte in self._tokens[token]:
                after = None if after is None else self._language.step(after, byte)
            allowed = after is not None and self._tokens[token] != b""
        if not allowed:
            raise ValueError(
                f"token {token} ({self._tokens[token]!r}) is not allowed after "
                f"{len(self._states) - 1} tokens"
            )
        self._states.append(after)

    def rollback(self, n: int) -> None:
        """Take back the last n tokens."""
        if not 0 <= n < len(self._states):
            raise ValueError(f"n must lie in 0 … {len(self._states) - 1}, got {n}")
        del self._states[len(self._states) - n :]

    def copy(self) -> "Constraint":
        """Return an independent copy: another request at the same point of the text."""
        other = copy.copy(self)
        other._states = self._states.copy()
        return other

    def with_language(self, language: Language) -> "Constraint":
        """Return the constraint of another language, at its start, over the same vocabulary.

        A large vocabulary takes a second and tens of MB to store: whoever has many languages
        stores it once.

        >>> digits = Constraint(Regex("[0-9]"), [b"", b"a", b"1"], eos_ids=[0])
        >>> digits.with_language(Regex("a*")).mask().tolist()
        [True, True, False]
        """
        other = copy.copy(self)
        other._language, other._states = language, [language.start]
        return other

    def min_tokens(self) -> float:
        """Return how many tokens suffice to end the text: one per missing byte, and the end."""
        return 0 if self.finished else self._language.n_missing(self._states[-1]) + 1

    def _cost(self, state: State) -> Array:
        """Return two rows: the tokens that may be next, and how many suffice to the end with each.

        Most states allow few: a row for the whole vocabulary would be zeros for the most part.
        """
        key = self._language, state
        if key not in self._costs:
            language = self._language
            allowed = sorted(self._eos_ids) if language.n_missing(state) == 0 else []
            costs = [1] * len(allowed)
            todo = [(state, self._tree)]
            while todo:
                before, branches = todo.pop()
                for byte, (ids, behind) in branches.items():
                    after = language.step(before, byte)
                    if after is not None:
                        allowed += ids
                        # The token itself, the missing bytes one by one, the end.
                        costs += [1 + language.n_missing(after) + 1] * len(ids)
                        todo.append((after, behind))
            self._costs.keep(key, np.array([allowed, costs], dtype=np.int32))
        return self._costs[key]


class _Costs(dict[tuple[Language, State], Array]):
    """What each state allows; the oldest go when all together take too much memory."""

    n_bytes = 0

    def keep(self, key: tuple[Language, State], cost: Array) -> None:
        self[key] = cost
        self.n_bytes += sys.getsizeof(cost)
        while self.n_bytes > _KEPT_BYTES and len(self) > 1:
            self.n_bytes -= sys.getsizeof(self.pop(next(iter(self))))


def keep_allowed(logits: Array, mask: Array) -> Array:
    """Set the logits that a mask forbids to -inf: the filter that comes before all others.

    The others always keep some tokens of those they see. If the mask came after them, it might
    allow none of these.

    Shapes: logits and result: (…, V), -inf where dropped; mask: (V,) or (…, V), booleans
    Raises: ValueError for other shapes, and where the mask allows nothing.

    >>> keep_allowed(np.array([3.0, 2.0, 1.0]), np.array([False, True, True])).tolist()
    [-inf, 2.0, 1.0]
    """
    logits, mask = np.asarray(logits), np.asarray(mask)
    if mask.shape not in (logits.shape, logits.shape[-1:]) or mask.dtype != bool:
        raise ValueError(
            f"mask must be booleans {logits.shape[-1:]} like the logits {logits.shape}, "
            f"got {mask.dtype} {mask.shape}"
        )
    if not mask.any(axis=-1).all():
        raise ValueError("mask allows no token: the text has ended, or the vocabulary lacks a byte")
    return np.where(mask, logits, -math.inf)


def accepts(language: Language, text: str | bytes) -> bool:
    """Say whether a text belongs to a language.

    >>> accepts(Regex("[0-9]+"), "2017"), accepts(Json(), '{"a": [1, 2]}'), accepts(Json(), "[1,")
    (True, True, False)
    """
    state = language.start
    for byte in text.encode() if isinstance(text, str) else text:
        state = language.step(state, byte)
        if state is None:
            return False
    return language.n_missing(state) == 0


def shortest_completion(language: Language, text: str | bytes) -> bytes:
    """Return the fewest bytes that complete the beginning of a text.

    Raises: ValueError for a text that nothing completes.

    >>> shortest_completion(Json(), '{"a": [1, 2')
    b']}'
    """
    state = language.start
    for byte in text.encode() if isinstance(text, str) else text:
        state = None if state is None else language.step(state, byte)
    if state is None:
        raise ValueError(f"text {text!r} is no beginning of a text of the language")
    rest = bytearray()
    while missing := language.n_missing(state):
        steps = ((byte, language.step(state, byte)) for byte in range(256))
        byte, state = next(
            (byte, after)
            for byte, after in steps
            if after is not None and language.n_missing(after) == missing - 1
        )
        rest.append(byte)
    return bytes(rest)


def sequence_distributions(
    next_distribution: Callable[[list[int]], Array], constraint: Constraint, max_tokens: int
) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]]:
    """Return (masked, conditioned): how likely each valid text is in two ways of asking for one.

    `masked` draws token by token, each time from what the mask leaves. `conditioned` draws texts
    until one is valid. They differ: where the mask takes much of the probability, the first
    pretends that nothing was lost. A text's two probabilities before normalising differ by the
    product of the masses that the mask left on its way.

    All texts of at most `max_tokens` tokens are tried, the end included: for small languages
    only. What `masked` lacks to 1 goes to texts that are longer. Keys are tokens: a text that
    can be cut into tokens in two ways appears twice.

    Shapes: next_distribution(ids): (V,), the probabilities after the ids chosen so far
    Raises: ValueError where no text of positive probability ends in time.
    Source: Park et al. 2024, arXiv:2405.21047, sec. 2

    >>> chain = {(): [0, 0.9, 0.1], (1,): [0.01, 0.99, 0], (2,): [1, 0, 0]}
    >>> constraint = Constraint(Regex("a|b"), [b"", b"a", b"b"], eos_ids=[0])
    >>> masked, conditioned = sequence_distributions(
    ...     lambda ids: np.array(chain[tuple(ids)]), constraint, max_tokens=2
    ... )
    >>> {ids: round(p, 3) for ids, p in masked.items()}
    {(1, 0): 0.9, (2, 0): 0.1}
    >>> {ids: round(p, 3) for ids, p in conditioned.items()}
    {(1, 0): 0.083, (2, 0): 0.917}
    """
    masked, free = {}, {}

    def visit(ids: list[int], constraint: Constraint, p_masked: float, p_free: float) -> None:
        left = np.where(constraint.mask(), next_distribution(ids), 0)
        for token in np.flatnonzero(left).tolist():
            after = constraint.copy()
            after.advance(token)
            text, p = [*ids, token], float(left[token])
            ahead = p_masked * p / float(left.sum()), p_free * p
            if after.finished:
                masked[tuple(text)], free[tuple(text)] = ahead
            elif len(text) < max_tokens:
                visit(text, after, *ahead)

    visit([], constraint, 1.0, 1.0)
    total = sum(free.values())
    if total == 0:
        raise ValueError(f"no text of positive probability ends within max_tokens {max_tokens}")
    return masked, {ids: p / total for ids, p in free.items()}


class Regex:
    r"""The texts that a regular expression matches from beginning to end.

    Literals, `.`, classes such as `[a-z_]` and `[^"]`, groups, `|`, `*`, `+`, `?`, `{m,n}`. The
    escapes \d \w \s \D \W \S mean ASCII; \n \t \r \f \v \xhh \uhhhh mean characters, and any sign
    may be escaped; \ [ ] ( ) { } . | * + ? ^ $ must be. The language is that of
    `re.fullmatch(pattern, text, re.ASCII)`. No anchors: the whole text has to match anyway.
    No lookaround and no backreferences: these are not regular.

    The pattern becomes a nondeterministic automaton (Thompson), then a deterministic one whose
    states are sets of its states. Some patterns need exponentially many: `max_states` limits them.
    A state from which no match can be reached is left out.

    Raises: ValueError for other syntax, naming the position, and groups over a hundred deep; for a
            pattern that matches nothing, and one that needs more states, or more work than a
            thousand steps for each state that it may have.
    Source: Thompson 1968, doi:10.1145/363347.363387; Rabin & Scott 1959, doi:10.1147/rd.32.0114

    >>> Regex("(ab|ac)*").n_states
    4
    """

    start = 0

    def __init__(self, pattern: str, max_states: int = 10_000):
        self._table, self._missing = automaton(pattern, max_states)

    @property
    def n_states(self) -> int:
        """How many states the deterministic automaton has."""
        return len(self._missing)

    def step(self, state: int, byte: int) -> int | None:
        """Return the state after one more byte, or None."""
        return self._table[state].get(byte)

    def n_missing(self, state: int) -> int:
        """Return how few bytes complete a match."""
        return self._missing[state]


class Json:
    """JSON documents with at most `max_depth` brackets open at once.

    Strings, numbers and the three literals are regular. Nesting is not: what closes must match
    what was opened, so the automaton has a stack of the open brackets besides.

    `root="object"` admits objects only, as services that promise "a JSON object" do. JSON allows
    any number of spaces, tabs and line ends between its parts, and a model may want nothing
    else: `max_spaces` limits how many follow one another (None: no limit).

    A state is (open brackets, place, number): within a string, number or literal ("in …") the
    number is the state of its automaton, elsewhere the spaces so far where they are limited.

    Python's `json.loads` takes every such text (but one with a number of over 4,300 digits) and
    some more: NaN, Infinity and -Infinity, which are no JSON.

    Raises: ValueError for a negative max_depth, none for an object, a negative max_spaces, and
            another root.
    Source: RFC 8259, sec. 2 to 7

    >>> language = Json(max_depth=2)
    >>> [accepts(language, text) for text in ("[[]]", "[[[]]]", "[1,]", "01", " -1.5e3 ")]
    [True, False, False, False, True]
    """

    def __init__(self, max_depth: int = 16, root: str = "value", max_spaces: int | None = None):
        if root not in ("value", "object"):
            raise ValueError(f"root must be 'value' or 'object', got {root!r}")
        check_count("max_depth", max_depth, at_least=1 if root == "object" else 0)
        if max_spaces is not None:
            check_count("max_spaces", max_spaces)
        self.max_depth, self.max_spaces, self.start = max_depth, max_spaces, ("", root, 0)
        string = r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
        number = r"-?(0|[1-9]\d*)(\.\d+)?([eE][+\-]?\d+)?"
        self._name, self._scalar = Regex(string), Regex(f"{string}|{number}|true|false|null")

    def step(self, state: Place, byte: int) -> Place | None:
        """Return the state after one more byte, or None."""
        stack, place, number = state
        if place in ("in name", "in value"):
            language = self._name if place == "in name" else self._scalar
            after = language.step(number, byte)
            if after is not None:
                return stack, place, after
            if language.n_missing(number):
                return None
            # The string, number or literal has ended with the byte before.
            place, number = "colon" if place == "in name" else "after", 0
        char = chr(byte)
        if char not in " \t\n\r":
            return self._step_between(stack, place, char)
        if self.max_spaces is None:
            return stack, place, 0
        return (stack, place, number + 1) if number < self.max_spaces else None

    def n_missing(self, state: Place) -> int:
        """Return how few bytes complete the document: the part begun, and all closing brackets."""
        stack, place, number = state
        if place == "in name":
            return self._name.n_missing(number) + len(":0") + len(stack)
        if place == "in value":
            return self._scalar.n_missing(number) + len(stack)
        shortest = {"object": "{}", "value": "0", "name": '"":0', "colon": ":0"}
        return len(shortest.get(place, "")) + len(stack)

    def _step_between(self, stack: str, place: str, char: str) -> Place | None:
        """Read a sign outside of strings, numbers and literals."""
        closes = {"[": "]", "{": "}"}.get(stack[-1:]) == char
        if place == "colon":
            return (stack, "value", 0) if char == ":" else None
        if place == "after" and char == "," and stack:
            return stack, "name" if stack[-1] == "{" else "value", 0
        if place in ("after", "first name", "first value") and closes:
            return stack[:-1], "after", 0
        if place == "after":
            return None
        if place in ("name", "first name"):
            within = self._name.step(self._name.start, ord(char))
            return None if within is None else (stack, "in name", within)
        if char == "{" or (char == "[" and place != "object"):
            inside = "first name" if char == "{" else "first value"
            return (stack + char, inside, 0) if len(stack) < self.max_depth else None
        within = None if place == "object" else self._scalar.step(self._scalar.start, ord(char))
        return None if within is None else (stack, "in value", within)
