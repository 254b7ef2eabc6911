"""The forms of answers against the package jsonschema, both ways: all valid, and all of them."""

import functools
import itertools
import json
import re

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from firsttoken.sampling.constrained import Regex, accepts, shortest_completion
from firsttoken.server.json_schema import schema_regex

MAX_STATES = 6_000


def _pattern(validator, pattern, value, schema):
    """Read a pattern as JSON Schema does: \\d means ASCII, and $ only the very end."""
    if validator.is_type(value, "string"):
        ends = re.sub(r"(?<!\\)((?:\\\\)*)\$(?=$|\|)", r"\1\\Z", pattern)
        if not re.search(ends, value, re.ASCII):
            yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _pattern})

signs = st.sampled_from([*'ab1 -"\\\n\x01\x1fé🙂/', "\x7f"])
atoms = signs.map(re.escape).map(lambda c: c.replace("\\\n", "\\n")) | st.sampled_from(
    ["[ -~]", "[A-z]", '[^"]', "[^a]", r"\d", r"\w", r"[\s\S]", ".", r"\$", r"\/", '[\\t-"]']
)
pieces = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{1,2}", "{0}"])),
    ),
    max_leaves=4,
)
patterns = st.lists(
    st.builds("{}{}{}".format, st.sampled_from(["^", ""]), pieces, st.sampled_from(["$", ""])),
    min_size=1,
    max_size=2,
).map("|".join)
scalars = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 2, -7, 12, 1.0, 2.5, "", "a", 'b"\\', "\n", "é🙂"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=3,
)
limits = st.integers(-120, 120) | st.sampled_from([0.5, -2.5, 1e3])
few = st.integers(0, 2)
KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]
some_types = st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)


def a_choice_of(**keywords):
    return st.fixed_dictionaries({}, optional=keywords)


def joined(*parts):
    return st.tuples(*parts).map(lambda found: {k: v for part in found for k, v in part.items()})


leaves = joined(
    st.fixed_dictionaries(
        {"type": some_types}, optional={"title": st.just("x"), "format": st.just("email")}
    ),
    st.one_of(
        st.fixed_dictionaries({"pattern": patterns}),
        a_choice_of(minLength=few, maxLength=st.integers(0, 3)),
        a_choice_of(minimum=limits, maximum=limits, exclusiveMinimum=limits),
        a_choice_of(exclusiveMaximum=limits, const=scalars),
        st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=5)}),
        st.just({"$ref": "#/$defs/pair"}),
    ),
)


def larger(inner):
    names = st.sampled_from(["a", "b", 'c"', "é"])
    return joined(
        a_choice_of(type=some_types, anyOf=st.lists(inner, min_size=1, max_size=2)),
        a_choice_of(allOf=st.lists(inner, min_size=1, max_size=2)),
        st.one_of(
            a_choice_of(items=inner, minItems=few, maxItems=st.integers(0, 3)),
            a_choice_of(
                properties=st.dictionaries(names, inner, max_size=3),
                required=st.lists(names, max_size=2),
                additionalProperties=st.booleans() | inner,
            ),
            st.just({}),
        ),
        a_choice_of(enum=st.lists(values, min_size=1, max_size=4)),
    )


PAIR = {"enum": [0, "pair", None, {"a": 1}], "description": "a pair"}
schemas = st.recursive(leaves, larger, max_leaves=5).map(lambda s: s | {"$defs": {"pair": PAIR}})


def language(schema) -> Regex | None:
    """Return the form of a schema, None where it allows no value; drop it if refused by name."""
    try:
        return Regex(schema_regex(schema), MAX_STATES)
    except ValueError as error:
        if "no value is allowed" in str(error) or "matches no text" in str(error):
            return None
        assert re.search(
            "not supported|type must be one of|required must list|needs items|needs more",
            str(error),
        ), error
        assume(False)


def walk(form: Regex, choices) -> str:
    """Return a text of the form: some bytes as chosen, then the shortest end."""
    text, state = b"", form.start
    for choice in choices:
        bytes_ahead = [b for b in range(256) if form.step(state, b) is not None]
        if not bytes_ahead:
            break
        # Half of the time what a careless form would let through: a quote, a backslash, an end.
        wild = [b for b in b'"\\\n\x1f}]' if b in bytes_ahead] if choice % 2 else []
        byte = (wild or bytes_ahead)[choice // 2 % len(wild or bytes_ahead)]
        text, state = text + bytes([byte]), form.step(state, byte)
    return (text + shortest_completion(form, text)).decode()


@given(schema=schemas, choices=st.lists(st.integers(0, 10_000), max_size=30))
def test_what_is_let_through_is_json_that_the_schema_accepts(schema, choices):
    form = language(schema)
    assume(form is not None)
    Validator(schema).validate(json.loads(walk(form, choices)))


@st.composite
def candidates(draw, schema, depth=0):
    """Draw a value that has a chance: from what a schema names, or a change of it."""
    pool = [schema, *schema.get("anyOf", []), *schema.get("allOf", [])]
    at = draw(st.sampled_from(pool))
    if at is not schema and depth < 3:
        return draw(candidates(at, depth + 1))
    if "enum" in at or "const" in at:
        return draw(st.sampled_from([*at.get("enum", []), at.get("const")]))
    kinds = at.get("type", KINDS)
    kind = draw(st.sampled_from([kinds] if isinstance(kinds, str) else kinds))
    inner = (lambda s: candidates(s, depth + 1)) if depth < 3 else (lambda s: scalars)
    if kind == "object":
        named = at.get("properties", {})
        return {n: draw(inner(s)) for n, s in named.items() if draw(st.integers(0, 3))}
    if kind == "array":
        return draw(st.lists(inner(at.get("items", {})), max_size=3))
    if kind == "string" and "pattern" in at:
        found = draw(st.from_regex(re.compile(at["pattern"], re.ASCII)))
        return found.encode("utf-8", "replace").decode()
    if kind == "string":
        return draw(st.text(signs, max_size=4))
    if kind == "number":
        return draw(st.floats(-150, 150) | st.integers(-150, 150))
    return draw(
        {"integer": st.integers(-150, 150), "boolean": st.booleans(), "null": st.none()}[kind]
    )


def closed(schema):
    """Return a schema that accepts no more, and only objects of named properties."""
    if not isinstance(schema, dict) or {"enum", "const"} & schema.keys():
        return schema
    made = {key: value for key, value in schema.items() if key not in PARTS}
    for key in PARTS & schema.keys():
        part = schema[key]
        made[key] = (
            {name: closed(s) for name, s in part.items()} if key == "properties" else
            [closed(s) for s in part] if isinstance(part, list) else closed(part)
        )  # fmt: skip
    offers = {"anyOf", "allOf", "$ref"} & schema.keys()
    free = isinstance(schema.get("additionalProperties"), dict)
    if "properties" in schema or not (offers or free):
        made["additionalProperties"] = False
    return made


PARTS = {"properties", "items", "anyOf", "allOf", "additionalProperties"}


def orders(value):
    """Yield a value with the properties of its objects in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*map(orders, value)))
    elif isinstance(value, dict):
        for names in itertools.permutations(value):
            for parts in itertools.product(*(orders(value[name]) for name in names)):
                yield dict(zip(names, parts, strict=True))
    else:
        yield value


@given(data=st.data())
def test_what_the_schema_accepts_is_let_through(data):
    """As `json.dumps` writes it, where objects hold named properties in the schema's order."""
    schema = data.draw(schemas)
    form = language(schema)
    value = data.draw(candidates(schema))
    text = json.dumps(value, ensure_ascii=False)
    assume(not re.search(r"\.0\b", text))  # a whole number with a point
    assume(Validator(closed(schema)).is_valid(value))
    written = (json.dumps(v, ensure_ascii=False) for v in itertools.islice(orders(value), 100))
    assert form is not None and any(accepts(form, each) for each in written), value


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        # Each belonged to a form that let through what is no JSON, or no such value.
        ({"type": "string", "pattern": "^[ -~]+$"}, ['"a\\\\b"', '"\\""'], ['"a"b"', '""']),
        ({"type": "string", "pattern": "^[A-z]$"}, ['"\\\\"', '"a"'], ['"\\"', '"é"']),
        ({"type": "string", "pattern": r"^a\$$"}, ['"a$"'], ['"a"', '"a\\"']),
        ({"type": "string", "pattern": r"^\/$"}, ['"/"'], ['"\\/"']),
        ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"']),
        ({"type": "string", "maxLength": 1}, ['"\\u0001"', '"🙂"'], ['"ab"']),
        ({"type": "integer", "enum": ["one", 1, 2.0, 2.5]}, ["1", "2.0"], ['"one"', "2.5"]),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 21}, ["1", "20"], ["0", "21"]),
        ({"const": 1, "enum": [True, 1.0]}, ["1.0"], ["true"]),
        ({"enum": ["", "a"], "minLength": 1, "maxLength": 1}, ['"a"'], ['""']),
        (
            {"enum": [{"a": 1}, {"a": "x"}], "properties": {"a": {"type": "string"}}},
            ['{"a": "x"}'],
            ['{"a": 1}'],
        ),
        ({"enum": [{}, {"a": 1}], "additionalProperties": False}, ["{}"], ['{"a": 1}']),
        ({"enum": [1, 2, 3], "exclusiveMinimum": 1, "exclusiveMaximum": 3}, ["2"], ["1", "3"]),
        ({"enum": [1, 2, 3], "minimum": 2, "maximum": 2}, ["2"], ["1", "3"]),
        (
            {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
            ["{}", '{"a": null}', '{"b": null}', '{"a": null, "b": null}'],
            ['{"b": null, "a": null}', '{"c": null}'],
        ),
        ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
        ({"enum": [[], [1], [1, 2]], "minItems": 1, "maxItems": 1}, ["[1]"], ["[]", "[1, 2]"]),
        ({"enum": [[], [1]], "minItems": 1, "maxItems": 1}, ["[1]"], ["[]"]),
        (
            {"type": "object", "additionalProperties": {"type": "null"}},
            ["{}", '{"k": null}'],
            ["[]"],
        ),
        (
            {"anyOf": [{"type": "null"}, {"type": "string"}], "maxLength": 0},
            ["null", '""'],
            ['"a"'],
        ),
        (
            {"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string"}}},
            ['"ab"'],
            ['"a"'],
        ),
    ],
    ids=range(21),
)
def test_what_forms_had_got_wrong(schema, taken, refused):
    form = Regex(schema_regex(schema))
    assert all(
        accepts(form, text) and Validator(schema).is_valid(json.loads(text)) for text in taken
    )
    assert not any(accepts(form, text) for text in refused)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 9), (7, 123), (120, 127), (1199, 1203), (-45, 8), (-120, -101)]
)
def test_whole_numbers_between_two(first, last):
    """Those within, however many digits the two share, and however the bounds are given."""
    for bounds in (
        {"minimum": first, "maximum": last},
        {"exclusiveMinimum": first - 1, "exclusiveMaximum": last + 1},
        {"minimum": first - 0.5, "exclusiveMaximum": last + 0.5},
    ):
        form = Regex(schema_regex({"type": "integer", **bounds}))
        taken = [n for n in range(-1300, 1301) if accepts(form, str(n))]
        assert taken == list(range(first, last + 1))


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [[i] for i in range(9000)], "items": {"enum": list(range(9000))}},
        {"enum": list(range(9000)), "allOf": [{"minimum": i} for i in range(200)]},
        {"enum": [{"a": 1}] * 900, "required": ["a"] * 9000},
        {"anyOf": [{"type": "null"}] * 20_000},
        {"allOf": [{"anyOf": [{"type": "null"}, {"type": "string"}]}] * 40},
        {"type": "object", "properties": {str(i): {"type": "null"} for i in range(5000)}},
        {"type": "string", "pattern": "^" + "(" * 300},
        {
            "$defs": {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(30)}
            | {"30": {"type": "null"}},
            "$ref": "#/$defs/0",
        },
        functools.reduce(lambda s, _: {"type": "array", "items": s}, range(99), {"type": "null"}),
    ],
    ids=range(9),
)
def test_a_schema_costs_no_more_than_its_limit(schema):
    with pytest.raises(ValueError, match=r"too large|within each other|combinations|position"):
        schema_regex(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"const": [1], "items": 5}, "#/items: must be an object, got 5"),
        ({"const": {"a": 1}, "properties": {"a": 5}}, "#/properties/a: must be an object"),
        (
            {"type": "object", "properties": {"a": {"type": "thing"}}},
            "#/properties/a: type must be one of",
        ),
        ({"type": "object", "properties": {"a": 5}}, "#/properties/a: must be an object"),
        (
            {"type": "object", "additionalProperties": {"type": "thing"}},
            "#/additionalProperties: type must be one of",
        ),
        (
            {"const": {"a": 1}, "additionalProperties": 5},
            "#: additionalProperties must be true, false or",
        ),
        ({"anyOf": [{"type": "null"}, {"allOf": [5]}]}, "#/anyOf/1/allOf/0: must be an object"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "maxLength": -1}}},
            r"#/\$defs/a: maxLength must be a whole number from 0 on",
        ),
        ({"type": "object", "properties": 5}, "#: properties must be an object"),
        ({"type": "object", "required": ["b"]}, "#: required must list names of properties"),
        ({"type": "array"}, "#: an array needs items"),
        ({"type": "array", "items": {"enum": []}}, "#/items: enum must be a list"),
        ({"anyOf": []}, "#: anyOf must be a list"),
        ({"anyOf": [{"$ref": "#/$defs/b"}]}, "#/anyOf/0: .*not among the definitions"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads back to itself"),
        ({"type": "string", "minLength": -1}, "#: minLength must be a whole number from 0 on"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "#: pattern beside minLength or max"),
        ({"type": "string", "pattern": 5}, "#: pattern must be a string"),
        ({"type": "integer", "minimum": "a"}, "#: minimum must be a number"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no value is allowed by all"),
    ],
    ids=range(20),
)
def test_an_error_says_where_in_the_schema_what_is_wrong(schema, message):
    with pytest.raises(ValueError, match=message):
        schema_regex(schema)
