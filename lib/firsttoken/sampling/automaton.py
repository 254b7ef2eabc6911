"""From a regular expression to an automaton over bytes: parse it, Thompson, subsets.

`constrained.Regex` is the language of such an automaton, and says which syntax it takes.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

# Groups within each other: a thread may lack the stack for more.
_MAX_DEPTH = 100
# The most steps of work for each allowed state: patterns that people write need a fifth of it.
_WORK_PER_STATE = 1000


def automaton(pattern: str, max_states: int) -> tuple[list[dict[int, int]], dict[int, int]]:
    r"""Return (table, missing): the state after each byte, and how few bytes complete a match.

    State 0 is the first. States from which no match can be reached are left out. Whatever the
    pattern, time and memory grow with its length and with `max_states`, and with nothing else.

    Raises: ValueError for other syntax, naming the position; for groups that lie over a hundred
            deep; for a pattern that matches nothing, and one that needs more states or more work
            than `max_states` allows.
    Source: Thompson 1968, doi:10.1145/363347.363387; Rabin & Scott 1959, doi:10.1147/rd.32.0114

    >>> table, missing = automaton("ab?", max_states=10)
    >>> table[0], sorted(missing.items())
    ({97: 1}, [(0, 1), (1, 0), (2, 0)])
    """
    tree = parse(pattern)
    steps, jumps, end = _nondeterministic(tree, max_states)
    table, accepting = _deterministic(steps, jumps, end, max_states)
    missing = _distances(table, accepting)
    if 0 not in missing:
        raise ValueError(f"pattern {pattern!r} matches no text at all")
    return [{b: s for b, s in row.items() if s in missing} for row in table], missing


def parse(pattern: str, search: bool = False) -> tuple:
    """Return the syntax tree of a pattern, made of tuples.

    ("chars", ranges of code points), ("sequence", trees), ("either", trees), ("repeat", tree, low,
    high or None). What matches the empty text alone is an empty sequence: the whole, or an option.

    With `search` the pattern may match anywhere in a text, as JSON Schema has it: the tree is that
    of all texts that contain a match. Then `^` and `$` may begin and end the pattern, and each of
    its outermost alternatives.

    Raises: ValueError for other syntax, naming the position, and groups over a hundred deep.

    >>> parse("(ab*)")
    ('sequence', [('chars', ((97, 97),)), ('repeat', ('chars', ((98, 98),)), 0, None)])
    """
    return _Parser(pattern, search).parse()


_Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included
_CLASSES: dict[str, _Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20)),
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_LAST = 0x10FFFF
_NOTHING: tuple = ("sequence", [])  # matches the empty text
_ANYTHING: tuple = "repeat", ("chars", ((0, _LAST),)), 0, None


class _Parser:
    """Read a pattern into its syntax tree: see `parse`."""

    def __init__(self, pattern: str, search: bool):
        self.pattern, self.search, self.at, self.depth = pattern, search, 0, 0

    def parse(self) -> tuple:
        tree = self.either()
        if self.at < len(self.pattern):  # only a parenthesis stops earlier
            raise self.error("unbalanced )")
        return tree

    def error(self, what: str, back: int = 0) -> ValueError:
        shown = self.pattern if len(self.pattern) <= 80 else f"{self.pattern[:80]}…"
        return ValueError(f"pattern {shown!r}, position {self.at - back}: {what}")

    def peek(self, ahead: int = 0) -> str:
        """Return the next character, or one `ahead` of it; "" behind the end."""
        return self.pattern[self.at + ahead : self.at + ahead + 1]

    def take(self, text: str) -> bool:
        """Step over the text if it comes next."""
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def next(self, what: str) -> str:
        if not self.peek():
            raise self.error(f"the pattern ends within {what}")
        self.at += 1
        return self.pattern[self.at - 1]

    def either(self) -> tuple:
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        if all(option == _NOTHING for option in options):
            return _NOTHING
        return options[0] if len(options) == 1 else ("either", options)

    def sequence(self) -> tuple:
        searched = self.search and self.depth == 0
        items = [_ANYTHING] if searched and not self.take("^") else []
        while self.peek() not in ("", "|", ")"):
            if searched and self.peek() == "$" and self.peek(1) in ("", "|"):
                break
            item = self.repeated(self.single())
            # What adds nothing is left out: repeated, it would cost time and lead nowhere.
            if item != _NOTHING:
                items.append(item)
        if searched and not self.take("$"):
            items.append(_ANYTHING)
        return items[0] if len(items) == 1 else ("sequence", items)

    def repeated(self, item: tuple) -> tuple:
        if self.peek() not in ("*", "+", "?", "{"):
            return item
        sign = self.next("a quantifier")
        if sign == "{":
            start = self.at
            while self.peek() in tuple("0123456789,"):
                self.at += 1
            low, comma, high = self.pattern[start : self.at].partition(",")
            if not (low or comma) or "," in high or not self.take("}"):
                raise self.error("expected {m}, {m,}, {,n} or {m,n}; a literal brace needs a \\")
            bounds = int(low or 0), int(high) if high else None if comma else int(low)
        else:
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        if bounds[1] is not None and bounds[0] > bounds[1]:
            raise self.error(f"{bounds[0]} is more than {bounds[1]}", back=1)
        if self.peek() in ("*", "+", "?", "{"):
            raise self.error("a second quantifier: lazy and possessive ones are not supported")
        if item == _NOTHING or bounds == (0, 0):
            return _NOTHING
        return item if bounds == (1, 1) else ("repeat", item, *bounds)

    def single(self) -> tuple:
        char = self.next("an item")
        if char == "(":
            if self.peek() == "?" and not self.take("?:"):
                raise self.error("of the groups (?… only (?:…) is supported")
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                raise self.error(f"more than {_MAX_DEPTH} groups within each other", back=1)
            inner = self.either()
            if not self.take(")"):
                raise self.error("missing )")
            self.depth -= 1
            return inner
        if char == "[":
            return "chars", self.character_class()
        if char == ".":
            return "chars", _complement([(0x0A, 0x0A)])
        if char == "\\":
            return "chars", self.escape()
        if char in "*+?{":
            raise self.error(f"nothing to repeat before {char}", back=1)
        if char in "]}^$":
            where = "stand outside of groups" if self.search else "are not needed"
            raise self.error(f"write \\{char} for the sign; anchors {where}", back=1)
        return "chars", ((ord(char), ord(char)),)

    def escape(self) -> _Ranges:
        char = self.next("an escape")
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else _complement(ranges)
        if char in "xu":
            digits = [self.next("an escape") for _ in range(2 if char == "x" else 4)]
            if not set(digits) <= set("0123456789abcdefABCDEF"):
                raise self.error(f"\\{char} needs {len(digits)} hexadecimal digits", back=1)
            code = int("".join(digits), 16)
        elif char in _CONTROLS:
            code = ord(_CONTROLS[char])
        elif char.isascii() and char.isalnum():
            raise self.error(f"\\{char} is not supported", back=1)
        else:
            code = ord(char)
        return ((code, code),)

    def character_class(self) -> _Ranges:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        if self.peek() == "]":
            raise self.error("an empty class; write \\] for the sign")
        while not self.take("]"):
            first = self.class_member()
            if self.peek() == "-" and self.peek(1) != "]":
                self.at += 1
                last = self.class_member()
                ends = first[0][0], last[-1][1]
                if any(low != high for low, high in first + last) or ends[0] > ends[1]:
                    raise self.error("a range needs two characters in rising order", back=1)
                first = (ends,)
            ranges += first
        outside = _complement(ranges)
        return outside if negated else _complement(outside)  # in order, and none twice

    def class_member(self) -> _Ranges:
        char = self.next("a class")
        return self.escape() if char == "\\" else ((ord(char), ord(char)),)


def _complement(ranges: Sequence[tuple[int, int]]) -> _Ranges:
    """Return the code points in none of the ranges."""
    outside, free = [], 0
    for low, high in sorted(ranges):
        if low > free:
            outside.append((free, low - 1))
        free = max(free, high + 1)
    return (*outside, (free, _LAST)) if free <= _LAST else tuple(outside)


def _too_much(what: str, max_states: int) -> ValueError:
    return ValueError(f"the pattern needs more {what} than max_states {max_states} allows")


def _utf8(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut a range of code points into runs of byte ranges: é to ü is C3 and A9 … BC.

    Surrogates (D800 … DFFF) are left out: UTF-8 has no bytes for them.
    """
    last_of_kind = (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, _LAST)  # of each length, and around those
    for first, last in zip((0, *(end + 1 for end in last_of_kind)), last_of_kind, strict=False):
        start, end = max(low, first), min(high, last)
        if start <= end and first != 0xD800:
            yield from _byte_ranges(chr(start).encode(), chr(end).encode())


def _byte_ranges(low: bytes, high: bytes) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut the characters between two of one length so that all bytes vary on their own."""
    if not low:
        yield ()
    elif low[0] == high[0]:
        for rest in _byte_ranges(low[1:], high[1:]):
            yield ((low[0], low[0]), *rest)
    else:
        n_rest = len(low) - 1
        smallest, largest = b"\x80" * n_rest, b"\xbf" * n_rest
        first, last = low[0], high[0]
        if low[1:] > smallest:
            yield from _byte_ranges(low, low[:1] + largest)
            first += 1
        if high[1:] < largest:
            last -= 1
        if first <= last:
            yield ((first, last), *[(0x80, 0xBF)] * n_rest)
        if high[1:] < largest:
            yield from _byte_ranges(high[:1] + smallest, high)


def _nondeterministic(tree: tuple, max_states: int) -> tuple[list, list, int]:
    """Return (steps, jumps, end) of Thompson's automaton: State 0 is the first, `end` the last.

    steps[state] holds (low, high, after): a byte in low … high leads to the state `after`.
    jumps[state] holds the states that it leads to without a byte. A part of the pattern never leads
    back to the state it starts from, so that several parts may start from one; what repeats gets a
    state of its own.
    """
    steps: list[list[tuple[int, int, int]]] = []
    jumps: list[list[int]] = []
    left = _WORK_PER_STATE * max_states

    def new() -> int:
        if len(steps) >= max_states:
            raise ValueError(f"the pattern needs more than max_states {max_states}")
        steps.append([])
        jumps.append([])
        return len(steps) - 1

    def add(tree: tuple, start: int) -> int:
        """Add a part that starts from a state, and return the state where it ends."""
        nonlocal left
        kind, content, *bounds = tree
        if kind == "chars":
            left -= len(content)
            if left < 0:
                raise _too_much("work", max_states)
            behind = {(): new()}  # the rest of a character: the state before it

            def before(rest: tuple) -> int:
                if rest not in behind:
                    behind[rest] = new()
                    steps[behind[rest]].append((*rest[0], before(rest[1:])))
                return behind[rest]

            for first, *rest in (run for ends in content for run in _utf8(*ends)):
                steps[start].append((*first, before(tuple(rest))))
            return behind[()]
        if kind == "sequence":
            for part in content:
                start = add(part, start)
            return start
        if kind == "either":
            ends = [add(option, start) for option in content]
            if len(ends) == 1:
                return ends[0]
            end = new()
            for option_end in ends:
                jumps[option_end].append(end)
            return end
        low, high = bounds
        for _ in range(low):
            start = add(content, start)
        if high is None:
            loop = new()
            jumps[start].append(loop)
            jumps[add(content, loop)].append(loop)
            return loop
        end = new()
        for _ in range(high - low):
            jumps[start].append(end)
            start = add(content, start)
        jumps[start].append(end)
        return end

    return steps, jumps, add(tree, new())


def _deterministic(
    steps: list, jumps: list, end: int, max_states: int
) -> tuple[list[dict[int, int]], set[int]]:
    """Return (table, accepting): each state is a set that Thompson's may be in at once."""
    reachable: dict[frozenset[int], frozenset[int]] = {}

    def with_jumps(states: frozenset[int]) -> frozenset[int]:
        if states not in reachable:
            found, todo = set(states), list(states)
            while todo:
                ahead = [s for s in jumps[todo.pop()] if s not in found]
                found.update(ahead)
                todo += ahead
            reachable[states] = frozenset(found)
        return reachable[states]

    left = _WORK_PER_STATE * max_states
    sets = [with_jumps(frozenset([0]))]
    number = {sets[0]: 0}
    table = []
    for states in sets:  # grows while it is read
        targets = defaultdict(set)
        for low, high, target in (step for state in states for step in steps[state]):
            left -= high + 1 - low
            if left < 0:
                raise _too_much("work", max_states)
            for byte in range(low, high + 1):
                targets[byte].add(target)
        row = {}
        for byte, ahead in targets.items():
            after = with_jumps(frozenset(ahead))
            left -= len(after)
            if after not in number:
                if len(sets) >= max_states:
                    raise ValueError(f"the pattern needs more than max_states {max_states}")
                number[after] = len(sets)
                sets.append(after)
            row[byte] = number[after]
        table.append(row)
    return table, {number[states] for states in sets if end in states}


def _distances(table: list[dict[int, int]], accepting: set[int]) -> dict[int, int]:
    """Return how far each state is from an accepting one, leaving out those that reach none."""
    before = defaultdict(set)
    for state, row in enumerate(table):
        for after in row.values():
            before[after].add(state)
    distance, todo = dict.fromkeys(accepting, 0), deque(accepting)
    while todo:
        state = todo.popleft()
        for earlier in before[state] - distance.keys():
            distance[earlier] = distance[state] + 1
            todo.append(earlier)
    return distance
