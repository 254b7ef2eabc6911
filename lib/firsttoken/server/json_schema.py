"""A useful subset of JSON Schema as a regular expression, for `constrained.Regex`."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from firsttoken.sampling.automaton import parse
from firsttoken.sampling.constrained import Regex, accepts

_STRING = r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_INTEGER = r"-?(0|[1-9]\d*)"
_NUMBER = _INTEGER + r"(\.\d+)?([eE][+\-]?\d+)?"
_SPACE = " ?"
_DEFINITIONS = "$defs", "definitions"
_BOUNDS = "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"
# Keywords that forbid values and are not supported, each with a setting that forbids nothing. Those
# that are neither listed here nor read below only describe, as format, title and default.
_REFUSED: dict[str, Any] = {
    "oneOf": None,
    "not": None,
    "if": None,
    "prefixItems": [],
    "additionalItems": True,
    "contains": None,
    "uniqueItems": False,
    "unevaluatedItems": True,
    "patternProperties": {},
    "propertyNames": {},
    "minProperties": 0,
    "maxProperties": None,
    "dependentRequired": {},
    "dependentSchemas": {},
    "dependencies": {},
    "unevaluatedProperties": True,
    "multipleOf": None,
    "$dynamicRef": None,
    "$recursiveRef": None,
}
# Limits of a client's schema: its depth, the work, combinations of anyOf, and characters of the
# expression, where a part counts again in each part that contains it.
_MAX_DEPTH, _MAX_WORK, _MAX_COMBINATIONS, _MAX_CHARS = 32, 100_000, 256, 400_000
# Work to read a schema, and to make a pattern that values of enum must match; its most states.
_READ_COST, _PATTERN_COST, _PATTERN_STATES = 10, 5_000, 500
_MAX_BOUND, _MAX_PATTERN = 10**18, 10_000


def schema_regex(schema: Any) -> str:
    r"""Return a regular expression whose every match is a JSON document that the schema accepts.

    Supported are: type (one, or a list), enum, const, anyOf, allOf, $ref to $defs; of objects
    properties, required and additionalProperties; of arrays items, minItems and maxItems; of
    strings minLength, maxLength or pattern; of integers minimum, maximum and their exclusive forms.
    Keywords beside each other all apply, also those beside a `$ref`. Keywords that forbid nothing
    are ignored, format among them; others are refused by name.

    Within that, what the schema accepts matches as `json.dumps(…, ensure_ascii=False)` writes it,
    with four limits: an object holds its named properties only, in the order of the schema, and
    free ones where none has a name; whole numbers are written without point and exponent; one
    space may stand behind a comma and a colon, and no other; in a `pattern` \d, \w and \s mean
    ASCII, and `$` the very end. A schema that refers to itself has no regular expression.

    Raises: ValueError that names the place, and what is not supported, allows no value, or is too
            much: time and memory grow with the schema up to a fixed limit.
    Source: JSON Schema 2020-12, core and validation

    >>> schema_regex({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    '\\{"a": ?1\\}'
    >>> print(schema_regex({"type": "integer", "minimum": 7, "exclusiveMaximum": 30}))
    ([7-9]|[1-2]\d{1})
    """
    definitions: dict[str, Any] = {}
    if isinstance(schema, Mapping):
        for name in _DEFINITIONS:
            found = schema.get(name, {})
            _expect(isinstance(found, Mapping), f"#/{name}", "must be an object")
            definitions |= {f"#/{name}/{key}": value for key, value in found.items()}
    made = _Reader(definitions).read([_Place(schema, "#", (), 0)])
    _expect(made is not None, "#", "no value is allowed by all of its keywords")
    assert made is not None
    return made


def _expect(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"schema at {where}: {what}")


def literal(text: str) -> str:
    r"""Return the expression that matches a text and nothing else.

    >>> literal("1+1?")
    '1\\+1\\?'
    """
    return re.sub(r"([\\\[\](){}.|*+?^$])", r"\\\1", text)


def quoted(tree: tuple) -> str:
    r"""Return the expression of texts as JSON writes them between quotes, from a syntax tree.

    Quotes, backslashes and control characters stand as their escapes, and as nothing else, so that
    what matches can never leave its string.

    >>> from firsttoken.sampling.automaton import parse
    >>> print(quoted(parse('a"')))
    a\\"
    """
    kind, content, *bounds = tree
    if kind == "chars":
        return _quoted_chars(content)
    if kind == "sequence":
        return "".join(map(quoted, content))
    if kind == "either":
        return f"({'|'.join(map(quoted, content))})"
    low, high = bounds
    return f"({quoted(content)}){{{low},{'' if high is None else high}}}"


def _quoted_chars(ranges: Iterable[tuple[int, int]]) -> str:
    escaped = [c for c in (*range(0x20), 0x22, 0x5C) if any(a <= c <= b for a, b in ranges)]
    plain = [
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
        if max(low, first) <= min(high, last)
    ]
    options = []
    if len(plain) == 1 and plain[0][0] == plain[0][1]:
        options.append(literal(chr(plain[0][0])))
    elif plain:
        options.append(f"[{''.join(f'{_char(a)}-{_char(b)}' for a, b in plain)}]")
    short = [e[1] for e in (json.dumps(chr(code))[1:-1] for code in escaped) if len(e) == 2]
    ways = [_one_of(short)] if short else []
    for tens in (0, 1):
        units = [f"{code % 16:x}" for code in escaped if code // 16 == tens]
        ways += [f"u00{tens}{_one_of(units)}"] if units else []
    if ways:
        options.append(r"\\" + (ways[0] if len(ways) == 1 else f"({'|'.join(ways)})"))
    if not options:
        return r"[^\s\S]"  # matches nothing
    return options[0] if len(options) == 1 else f"({'|'.join(options)})"


def _one_of(signs: list[str]) -> str:
    return literal(signs[0]) if len(signs) == 1 else f"[{''.join(map(literal, signs))}]"


def _char(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else chr(code)


_ANY_CHAR = _quoted_chars([(0, 0x10FFFF)])


class _Place(NamedTuple):
    """A schema, where it stands, the references that led to it, and how deep it lies."""

    schema: Any
    where: str
    within: tuple[str, ...]
    depth: int

    def inside(self, schema: Any, *names: object) -> "_Place":
        where = "/".join([self.where, *map(str, names)])
        return _Place(schema, where, self.within, self.depth + 1)


# Schemas that must all hold, with $ref and anyOf resolved.
_Together = list[_Place]


class _Reader:
    """Reads a schema, with the definitions it may refer to."""

    def __init__(self, definitions: Mapping[str, Any]):
        self._definitions = definitions
        self._work = self._n_chars = 0
        self._keys: dict[int, frozenset[Any]] = {}  # of the values of a schema, by its id
        self._languages: dict[str, Regex] = {}  # of patterns that values are held to
        self._of_type: dict[str, Callable[[_Together], str | None]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "number": self._number,
            "integer": self._integer,
            "boolean": lambda _: "(true|false)",
            "null": lambda _: "null",
        }

    def read(self, places: Sequence[_Place]) -> str | None:
        """Return the expression of schemas that hold at once; None where they allow no value."""
        options = [self._one(together) for together in self._alternatives(places)]
        return self._either(dict.fromkeys(o for o in options if o is not None))

    def _either(self, options: Iterable[str]) -> str | None:
        found = list(options)
        if not found:
            return None
        return self._counted(found[0] if len(found) == 1 else f"({'|'.join(found)})")

    def _spend(self, work: int, where: str) -> None:
        self._work += work
        _expect(self._work <= _MAX_WORK, where, "takes too long to read: it is too large")

    def _counted(self, expression: str) -> str:
        self._n_chars += len(expression)
        if self._n_chars > _MAX_CHARS:
            raise ValueError("the schema is too large: its expression grows beyond all limits")
        return expression

    def _alternatives(self, places: Sequence[_Place]) -> list[_Together]:
        """Return the ways in which all schemas can hold: references and anyOf resolved."""
        ways: list[_Together] = [[]]
        for place in places:
            ways = [[*way, *more] for more in self._ways(place) for way in ways]
            _expect(
                len(ways) <= _MAX_COMBINATIONS,
                place.where,
                f"more than {_MAX_COMBINATIONS} combinations of anyOf",
            )
        return ways

    def _ways(self, place: _Place) -> list[_Together]:
        schema, where, within, depth = place
        self._spend(_READ_COST, where)
        _expect(depth <= _MAX_DEPTH, where, f"more than {_MAX_DEPTH} schemas within each other")
        if not isinstance(schema, Mapping):
            raise ValueError(f"schema at {where}: must be an object, got {schema!r:.50}")
        refused = [k for k in schema if k in _REFUSED and schema[k] not in (None, _REFUSED[k])]
        _expect(not refused, where, f"{', '.join(refused)} not supported")
        parts = [[[place]]]
        if "$ref" in schema:
            name = schema["$ref"]
            known = isinstance(name, str) and name in self._definitions
            _expect(known, where, f"$ref {name!r:.80} is not among the definitions")
            _expect(name not in within, where, f"$ref {name!r} leads back to itself")
            there = _Place(self._definitions[name], name, (*within, name), depth + 1)
            parts.append(self._ways(there))
        for key in ("anyOf", "allOf"):
            if key in schema:
                options = schema[key]
                _expect(isinstance(options, list) and options != [], where, f"{key} must be a list")
                inside = [place.inside(s, key, i) for i, s in enumerate(options)]
                if key == "allOf":
                    parts.append(self._alternatives(inside))
                else:
                    parts.append([way for option in inside for way in self._ways(option)])
        ways: list[_Together] = [[]]
        for part in parts:
            _expect(
                len(ways) * len(part) <= _MAX_COMBINATIONS,
                where,
                f"more than {_MAX_COMBINATIONS} combinations of anyOf",
            )
            ways = [[*way, *more] for more in part for way in ways]
        return ways

    def _one(self, together: _Together) -> str | None:
        """Return the expression of schemas that hold at once, without anyOf and references."""
        types = self._types(together)
        values = [place for place in together if {"enum", "const"} & set(place.schema)]
        if values:
            allowed = [v for v in _values(values[0]) if self._all_allow(v, together)]
            return self._either(dict.fromkeys(_document(v, values[0].where) for v in allowed))
        where = together[-1].where
        _expect(types is not None, where, f"type must be one of {', '.join(self._of_type)}")
        assert types is not None
        options = [self._of_type[kind](together) for kind in types]
        return self._either(o for o in options if o is not None)

    def _types(self, together: _Together) -> list[str] | None:
        """Return which types all schemas allow; None where none of them names any."""
        left, named = list(self._of_type), False
        for schema, where, *_ in together:
            if "type" in schema:
                types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
                _expect(
                    0 < len(types) <= len(self._of_type)
                    and all(isinstance(t, str) and t in self._of_type for t in types),
                    where,
                    f"type must be one of {', '.join(self._of_type)}, or a list of them, "
                    f"got {schema['type']!r:.80}",
                )
                # Each whole number is a number.
                types = types + ["integer"] * ("number" in types)
                left, named = [kind for kind in left if kind in types], True
        if "number" in left:
            left.remove("integer")
        return left if named else None

    # The same keywords as a test of one value, for those of enum and const.

    def _allows(self, value: Any, place: _Place) -> bool:
        return any(self._all_allow(value, way) for way in self._alternatives([place]))

    def _all_allow(self, value: Any, together: _Together) -> bool:
        self._spend(sum(1 + len(_required(place)) for place in together), together[-1].where)
        kind = _type(value)
        types = self._types(together)
        if types is not None and not {kind, "number" if kind == "integer" else kind} & set(types):
            return False
        for place in together:
            if {"enum", "const"} & set(place.schema):
                number = id(place.schema)
                if number not in self._keys:
                    self._keys[number] = frozenset(map(_key, _values(place)))
                if _key(value) not in self._keys[number]:
                    return False
        return self._content_allowed(value, kind, together)

    def _content_allowed(self, value: Any, kind: str, together: _Together) -> bool:
        if kind == "string":
            low, high = _counts(together, "minLength", "maxLength")
            text = json.dumps(value, ensure_ascii=False)
            return low <= len(value) <= high and all(
                accepts(self._language(place), text)
                for place in together
                if place.schema.get("pattern") is not None
            )
        if kind in ("integer", "number"):
            first, last = _limits(together)
            return all(_within(value, place) for place in together) and first <= last
        if kind == "array":
            low, high = _counts(together, "minItems", "maxItems")
            items = [p.inside(p.schema["items"], "items") for p in together if "items" in p.schema]
            return low <= len(value) <= high and all(
                self._allows(each, place) for each in value for place in items
            )
        if kind == "object":
            for name, each in value.items():
                inside = _property(name, together)
                if inside is None or not all(self._allows(each, place) for place in inside):
                    return False
            return all(name in value for place in together for name in _required(place))
        return True

    def _language(self, place: _Place) -> Regex:
        pattern = place.schema["pattern"]
        if not isinstance(pattern, str) or pattern not in self._languages:
            (tree,) = _patterns([place])
            self._spend(_PATTERN_COST, place.where)
            self._languages[pattern] = Regex(f'"{quoted(tree)}"', _PATTERN_STATES)
        return self._languages[pattern]

    # Expressions, type by type.

    def _object(self, together: _Together) -> str | None:
        names = list(dict.fromkeys(n for place in together for n in _properties(place)))
        required = [name for place in together for name in _required(place)]
        unknown = [name for name in required if name not in names]
        where = together[-1].where
        _expect(not unknown, where, "required must list names of properties")
        free = _free(together)
        if not names and free:
            value = self.read(free)
            if value is None:
                return r"\{\}"
            part = f"{_STRING}:{_SPACE}{value}"
            return self._counted(rf"\{{({part}(,{_SPACE}{part})*)?\}}")
        before, after, optional, seen = "", "", [], False
        for name in names:
            self._spend(len(together), where)
            inside = _property(name, together)
            value = None if inside is None else self.read(inside)
            if value is None:
                if name in required:
                    return None
                continue
            part = self._counted(f"{_document(name, where)}:{_SPACE}{value}")
            if name in required:
                after, seen = f"{after},{_SPACE}{part}" if seen else part, True
            elif seen:
                after += f"(,{_SPACE}{part})?"
            else:
                before += f"({part},{_SPACE})?"
                optional.append(part)
        if seen:
            return self._counted(rf"\{{{before}{after}\}}")
        # None is required: an option for each that may be the first.
        options, rest = [], ""
        for part in reversed(optional):
            options.append(self._counted(part + rest))
            rest = self._counted(f"(,{_SPACE}{part})?{rest}")
        return self._counted(rf"\{{({'|'.join(reversed(options))})?\}}") if options else r"\{\}"

    def _array(self, together: _Together) -> str | None:
        items = [p.inside(p.schema["items"], "items") for p in together if "items" in p.schema]
        low, high = _counts(together, "minItems", "maxItems")
        if high == 0 and low == 0:
            return r"\[\]"
        _expect(items != [], together[-1].where, "an array needs items")
        item = self.read(items)
        if low > high or item is None:
            return None if low else r"\[\]"
        last = "" if high == math.inf else int(high) - 1
        more = f"(,{_SPACE}{item}){{{max(low - 1, 0)},{last}}}"
        return self._counted(rf"\[{item}{more}\]" if low else rf"\[({item}{more})?\]")

    def _string(self, together: _Together) -> str | None:
        low, high = _counts(together, "minLength", "maxLength")
        if low > high:
            return None
        trees, where = _patterns(together), together[-1].where
        if trees:
            bounded = low > 0 or high < math.inf
            _expect(len(trees) == 1, where, "more than one pattern not supported")
            _expect(not bounded, where, "pattern beside minLength or maxLength not supported")
            return self._counted(f'"({quoted(trees[0])})"')
        if not low and high == math.inf:
            return _STRING
        # A \u escape may be half a character: where lengths count, it is allowed only for signs
        # that have no other form.
        return f'"{_ANY_CHAR}{{{low},{"" if high == math.inf else int(high)}}}"'

    def _number(self, together: _Together) -> str | None:
        bounds = sorted({key for place in together for key in _BOUNDS if key in place.schema})
        _expect(
            not bounds,
            together[-1].where,
            f"{', '.join(bounds)} of other than integers not supported",
        )
        return _NUMBER

    def _integer(self, together: _Together) -> str | None:
        low, high = _limits(together)
        if low > high:
            return None
        if low == -math.inf and high == math.inf:
            return _INTEGER
        options = []
        if low < 0:
            options += [f"-{digits}" for digits in _magnitudes(max(1, -high), -low)]
        if high >= 0:
            options += _magnitudes(max(0, low), high)
        return self._either(options)


def _values(place: _Place) -> list[Any]:
    """Return the values that enum and const name."""
    schema, where, *_ = place
    values = schema.get("enum", [schema.get("const")])
    _expect(isinstance(values, list) and values != [], where, "enum must be a list")
    if "const" in schema:
        same = _key(schema["const"])
        values = [value for value in values if _key(value) == same]
    return values


def _key(value: Any) -> Any:
    """Return what is equal for values that JSON Schema calls equal: 1 and 1.0, not 1 and true."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_key, value))
    return isinstance(value, bool), value


def _type(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (str, "string"), (list, "array"), (Mapping, "object")):
        if isinstance(value, kind):
            return name
    if value is None:
        return "null"
    return "integer" if isinstance(value, int) or value.is_integer() else "number"


def _document(value: Any, where: str) -> str:
    """Return the expression for one JSON value."""
    try:
        return literal(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except ValueError:
        raise ValueError(f"schema at {where}: holds a number that is no JSON") from None


def _properties(place: _Place) -> Mapping[str, Any]:
    found = place.schema.get("properties", {})
    _expect(isinstance(found, Mapping), place.where, "properties must be an object")
    return found


def _required(place: _Place) -> list[str]:
    found = place.schema.get("required", [])
    right = isinstance(found, list) and all(isinstance(name, str) for name in found)
    _expect(right, place.where, "required must be a list of names")
    return found


def _more(place: _Place) -> Any:
    found = place.schema.get("additionalProperties", True)
    right = isinstance(found, bool | Mapping)
    _expect(right, place.where, "additionalProperties must be true, false or a schema")
    return found


def _free(together: _Together) -> list[_Place]:
    """Return the schemas of properties that none names; nothing where there may be no such."""
    found = [(place, _more(place)) for place in together]
    if any(more is False for _, more in found):
        return []
    return [p.inside(more, "additionalProperties") for p, more in found if more is not True]


def _property(name: str, together: _Together) -> list[_Place] | None:
    """Return the schemas of one property; None where it is forbidden."""
    inside = []
    for place in together:
        properties, more = _properties(place), _more(place)
        if name in properties:
            inside.append(place.inside(properties[name], "properties", name))
        elif more is False:
            return None
        elif more is not True:
            inside.append(place.inside(more, "additionalProperties"))
    return inside


def _counts(together: _Together, low_name: str, high_name: str) -> tuple[int, float]:
    """Return the least and the largest count that all schemas allow."""
    low, high = 0, math.inf
    for schema, where, *_ in together:
        for name in (low_name, high_name):
            value = schema.get(name)
            if value is not None:
                right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
                _expect(right, where, f"{name} must be a whole number from 0 on, got {value!r:.50}")
        low = max(low, schema.get(low_name) or 0)
        if schema.get(high_name) is not None:
            high = min(high, schema[high_name])
    return low, high


def _patterns(together: _Together) -> list[tuple]:
    """Return the syntax trees of all patterns."""
    trees: dict[str, tuple] = {}
    for schema, where, *_ in together:
        pattern = schema.get("pattern")
        if pattern is not None:
            short = isinstance(pattern, str) and len(pattern) <= _MAX_PATTERN
            _expect(short, where, f"pattern must be a string of at most {_MAX_PATTERN} characters")
            try:
                trees[pattern] = parse(pattern, search=True)
            except ValueError as error:
                raise ValueError(f"schema at {where}: {error}") from None
    return list(trees.values())


def _bound(place: _Place, name: str) -> float | int | None:
    value = place.schema.get(name)
    if value is not None:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        right = right and abs(value) <= _MAX_BOUND
        _expect(right, place.where, f"{name} must be a number of at most 10^18, got {value!r:.50}")
    return value


def _within(value: float, place: _Place) -> bool:
    low, above, high, below = (_bound(place, name) for name in _BOUNDS)
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
        and (below is None or value < below)
    )


def _limits(together: _Together) -> tuple[float, float]:
    """Return the least and the largest whole number that all schemas allow, or infinities."""
    first: float = -math.inf
    last: float = math.inf
    for place in together:
        low, above, high, below = (_bound(place, name) for name in _BOUNDS)
        first = max(
            first,
            -math.inf if low is None else math.ceil(low),
            -math.inf if above is None else math.floor(above) + 1,
        )
        last = min(
            last,
            math.inf if high is None else math.floor(high),
            math.inf if below is None else math.ceil(below) - 1,
        )
    return first, last


def _magnitudes(low: float, high: float) -> list[str]:
    """Return expressions of the whole numbers from low, not negative, to high, perhaps infinite."""
    first, found = str(low), []
    last = "9" * len(first) if high == math.inf else str(high)
    while len(first) < len(last):
        found += _digits(first, "9" * len(first))
        first = "1" + "0" * len(first)
    found += _digits(first, last)
    return found + [rf"[1-9]\d{{{len(first)},}}"] * (high == math.inf)


def _digits(low: str, high: str) -> list[str]:
    """Cut the numbers between two of as many digits so that all digits vary on their own."""
    if not low:
        return [""]
    if low[0] == high[0]:
        return [low[0] + rest for rest in _digits(low[1:], high[1:])]
    n_rest = len(low) - 1
    first, last, found = int(low[0]), int(high[0]), []
    if low[1:] > "0" * n_rest:
        found += [low[0] + rest for rest in _digits(low[1:], "9" * n_rest)]
        first += 1
    if high[1:] < "9" * n_rest:
        found += [high[0] + rest for rest in _digits("0" * n_rest, high[1:])]
        last -= 1
    if first <= last:
        found.append(f"[{first}-{last}]" + (rf"\d{{{n_rest}}}" if n_rest else ""))
    return found
