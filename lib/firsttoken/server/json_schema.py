"""A useful subset of JSON Schema as a regular expression, for `constrained.Regex`."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_STRING = r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))'  # up to its closing quote
_INTEGER = r"-?(0|[1-9]\d*)"
_NUMBER = _INTEGER + r"(\.\d+)?([eE][+\-]?\d+)?"
_SPACE = " ?"
# They describe, and forbid nothing.
_NOTES = {"title", "description", "default", "examples", "deprecated", "$comment", "$schema", "$id"}
_DEFINITIONS = {"$defs", "definitions"}


def schema_regex(schema: Any) -> str:
    r"""Return a regular expression whose every match is a JSON document that the schema accepts.

    Supported: type (one, or a list), enum, const, anyOf, $ref to $defs; of objects properties,
    required and additionalProperties (a match holds the named properties only, in their order);
    of arrays items, minItems and maxItems; of strings minLength, maxLength and pattern, which must
    match as a whole. A schema that refers to itself has no regular expression. One space may stand
    behind a comma and a colon, and no other.

    Raises: ValueError that names the place and the keyword which is not supported.
    Source: JSON Schema 2020-12, core and validation

    >>> schema_regex({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    '\\{"a": ?1\\}'
    """
    definitions: dict[str, Any] = {}
    if isinstance(schema, Mapping):
        for name in _DEFINITIONS:
            found = schema.get(name, {})
            _expect(isinstance(found, Mapping), f"#/{name}", "must be an object")
            definitions |= {f"#/{name}/{key}": value for key, value in found.items()}
    return _Reader(definitions).read(schema, "#", ())


def _expect(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"schema at {where}: {what}")


def literal(text: str) -> str:
    r"""Return the expression that matches a text and nothing else.

    >>> literal("1+1?")
    '1\\+1\\?'
    """
    return re.sub(r"([\\\[\](){}.|*+?^$])", r"\\\1", text)


def _document(value: Any) -> str:
    """Return the expression for one JSON value."""
    return literal(json.dumps(value, ensure_ascii=False))


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"({'|'.join(options)})"


class _Reader:
    """Read a schema, with the definitions it may refer to."""

    def __init__(self, definitions: Mapping[str, Any]):
        self._definitions = definitions
        self._of_type: dict[str, Callable[[Mapping[str, Any], str, tuple[str, ...]], str]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": lambda *_: _INTEGER,
            "number": lambda *_: _NUMBER,
            "boolean": lambda *_: "(true|false)",
            "null": lambda *_: "null",
        }

    def read(self, schema: Any, where: str, within: tuple[str, ...]) -> str:
        """Return the expression of a schema; `within` are the references that led to it."""
        _expect(isinstance(schema, Mapping), where, f"must be an object, got {schema!r}")
        keys = set(schema) - _NOTES - _DEFINITIONS
        if "$ref" in keys:
            name = schema["$ref"]
            self._only(keys, {"$ref"}, where)
            _expect(name in self._definitions, where, f"$ref {name!r} is not among the definitions")
            _expect(name not in within, where, f"$ref {name!r} leads back to itself")
            return self.read(self._definitions[name], name, (*within, name))
        if "anyOf" in keys:
            self._only(keys, {"anyOf"}, where)
            options = schema["anyOf"]
            _expect(isinstance(options, list) and options != [], where, "anyOf must be a list")
            places = (f"{where}/anyOf/{i}" for i in range(len(options)))
            read = [self.read(s, place, within) for s, place in zip(options, places, strict=True)]
            return _either(read)
        if "enum" in keys or "const" in keys:
            self._only(
                keys, {"enum", "const", "type"} - ({"const"} if "enum" in keys else {"enum"}), where
            )
            values = schema["enum"] if "enum" in keys else [schema["const"]]
            _expect(isinstance(values, list) and values != [], where, "enum must be a list")
            return _either([_document(value) for value in values])
        types = schema.get("type")
        types = types if isinstance(types, list) else [types]
        _expect(
            types != [] and all(isinstance(t, str) and t in self._of_type for t in types),
            where,
            f"type must be one of {', '.join(self._of_type)}, or a list of them, "
            f"got {schema.get('type')!r}",
        )
        allowed = {"type"}
        for kind in types:
            allowed |= _KEYWORDS.get(kind, set())
        self._only(keys, allowed, where)
        return _either([self._of_type[kind](schema, where, within) for kind in types])

    def _only(self, keys: set[str], allowed: set[str], where: str) -> None:
        others = sorted(keys - allowed)
        _expect(not others, where, f"{', '.join(others)} not supported here")

    def _object(self, schema: Mapping[str, Any], where: str, within: tuple[str, ...]) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        _expect(isinstance(properties, Mapping), where, "properties must be an object")
        _expect(
            isinstance(required, list) and all(name in properties for name in required),
            where,
            "required must list names of properties",
        )
        more = schema.get("additionalProperties", False)
        _expect(isinstance(more, bool), where, "additionalProperties must be true or false")
        parts = [
            (
                f"{_document(name)}:{_SPACE}"
                + self.read(value, f"{where}/properties/{name}", within),
                name in required,
            )
            for name, value in properties.items()
        ]
        # From the last: what may follow where something stands before it, and where nothing does.
        after, first = "", ""
        for part, needed in reversed(parts):
            begun = part + after
            after = f",{_SPACE}{begun}" if needed else f"(,{_SPACE}{part})?{after}"
            without = f"({begun}|{first})" if first else f"({begun})?"
            first = begun if needed else without
        return rf"\{{{first}\}}"

    def _array(self, schema: Mapping[str, Any], where: str, within: tuple[str, ...]) -> str:
        _expect("items" in schema, where, "an array needs items")
        item = self.read(schema["items"], f"{where}/items", within)
        low, high = self._bounds(schema, "minItems", "maxItems", where)
        if high == 0:
            return r"\[\]"
        more = f"(,{_SPACE}{item}){{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
        return rf"\[{item}{more}\]" if low else rf"\[({item}{more})?\]"

    def _string(self, schema: Mapping[str, Any], where: str, within: tuple[str, ...]) -> str:
        if "pattern" in schema:
            _expect(
                not {"minLength", "maxLength"} & set(schema),
                where,
                "pattern beside minLength or maxLength not supported",
            )
            pattern = schema["pattern"]
            _expect(isinstance(pattern, str), where, "pattern must be a string")
            plain = pattern.removeprefix("^").removesuffix("$")
            _expect(
                not re.search(r'["\\\x00-\x1f]', re.sub(r"\\[dws\[\](){}.|*+?^$\-]", "", plain))
                and not re.search(r"\[\^|\\s|(?<!\\)\.", plain),
                where,
                "pattern must not be able to match quotes, backslashes and control characters",
            )
            return f'"({plain})"'
        low, high = self._bounds(schema, "minLength", "maxLength", where)
        if not low and high is None:
            return f'{_STRING}*"'
        # A \u escape may be half a character, so where lengths count there are none.
        return rf'"([^"\\\x00-\x1f]|\\["\\/bfnrt]){{{low},{"" if high is None else high}}}"'

    def _bounds(
        self, schema: Mapping[str, Any], low_name: str, high_name: str, where: str
    ) -> tuple[int, int | None]:
        low, high = schema.get(low_name, 0), schema.get(high_name)
        for name, value in ((low_name, low), (high_name, high)):
            if value is not None:
                right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
                _expect(right, where, f"{name} must be a whole number from 0 on, got {value!r}")
        _expect(high is None or low <= high, where, f"{low_name} {low} is above {high_name} {high}")
        return low, high


_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern"},
}
