"""The parts of the server: requests read, forms of answers, text held back, chunks, chat."""

import json
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.generate.sequence import TokenSequence
from firsttoken.models.chat import render_chat
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Regex, accepts
from firsttoken.server.answers import _encode, event
from firsttoken.server.errors import ApiError
from firsttoken.server.json_schema import literal, schema_regex
from firsttoken.server.schema import ChatRequest, CompletionRequest
from firsttoken.server.text import HeldText
from firsttoken.server.translation import Translator, parse
from server.served import NAME, WORDS, ExactModel

MODEL = ExactModel()

# Text in pieces.

texts = st.text("ab\né🙂", max_size=30)
stops = st.lists(st.text("ab\né", min_size=1, max_size=4), max_size=3)


def split_bytes(text: str) -> list[int]:
    """Return ids that stand for one byte each, so that characters are cut."""
    single = {WORDS.token_bytes(i): i for i in range(WORDS.vocab_size)}
    return [single[bytes([byte])] for byte in text.encode()]


@given(text=texts, stop=stops, cut=st.booleans())
def test_pieces_add_up_to_the_answer_and_show_nothing_of_a_stop_string(text, stop, cut):
    """The oracle is the text of `TokenSequence`, which sees the whole answer."""
    ids = split_bytes(text) if cut else WORDS.encode(text)
    params = SamplingParams(max_tokens=len(ids) + 1, stop=tuple(stop))
    answer = TokenSequence(MODEL, [0], params, tokenizer=WORDS)
    held = HeldText(WORDS, stop)
    pieces = []
    answer.note_prefill()
    for token in [*ids, 0]:
        pieces.append(held.push(token))
        answer.append(token)
        assert not any(s in "".join(pieces) for s in stop)
        if answer.finish_reason:
            break
    whole = answer.result().text
    assert whole.startswith("".join(pieces))
    assert "".join(pieces) + held.finish(whole) == whole


@given(text=texts, stop=stops)
def test_no_more_is_held_back_than_must_be(text, stop):
    """What is held could become a stop string, or is a part of a character."""
    held, said = HeldText(WORDS, stop), ""
    for i, token in enumerate(split_bytes(text)):
        said += held.push(token)
        known = text.encode()[: i + 1].decode("utf-8", errors="ignore")
        if any(s in known for s in stop):
            break
        rest = known[len(said) :]
        assert not rest or any(s.startswith(rest) and s != rest for s in stop)


# Forms of answers.

PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
    "required": ["b"],
}


@pytest.mark.parametrize(
    ("schema", "value", "holds"),
    [
        (PAIR, {"b": None}, True),
        (PAIR, {"a": 1}, False),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1], False),
        ({"type": "array", "items": {"type": "integer"}}, [1, -2, 30], True),
        ({"type": "string"}, 'é"\\\n', True),
        ({"type": "number"}, -1.5e-07, True),
    ],
)
def test_what_json_writes_is_taken_or_not(schema, value, holds):
    assert accepts(Regex(schema_regex(schema)), json.dumps(value)) == holds


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "number", "minimum": 3}, "#: minimum of other than integers"),
        ({"type": "tuple"}, "got 'tuple'"),
        ({"$ref": "#/$defs/a"}, "not among the definitions"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "back to itself"),
        ({"type": "object", "required": ["a"]}, "required must list"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#: no value is allowed"),
        ({"type": "string", "pattern": "a)|(b"}, r"position 1: unbalanced \)"),
        ({"enum": []}, "enum must be a list"),
        ({"type": "object", "properties": {"a": {"type": "object", "properties": 3}}}, "/a: prop"),
        ({"type": "object", "properties": {}, "additionalProperties": {}}, "additionalProperties"),
    ],
)
def test_what_is_not_supported_is_named(schema, message):
    with pytest.raises(ValueError, match=message):
        schema_regex(schema)


@given(st.text(max_size=8))
def test_a_literal_matches_itself_alone(text):
    pattern = literal(text)
    assert accepts(Regex(pattern), text)
    assert not accepts(Regex(pattern), text + "a")


# Requests.


def translator(**changes) -> Translator:
    options = {
        "arch": MODEL.arch,
        "tokenizer": WORDS,
        "name": NAME,
        "adapters": ["loud"],
        "n_places": 2000,
        "max_answers": 8,
    }
    return Translator(**(options | changes))


def refusal(kind, fields: dict | bytes, **changes) -> ApiError:
    body = fields if isinstance(fields, bytes) else json.dumps({"model": NAME} | fields).encode()
    made = translator(**changes)
    translate = made.completion if kind is CompletionRequest else made.chat
    with pytest.raises(ApiError) as raised:
        translate(parse(kind, body))
    return raised.value


HELLO = [{"role": "user", "content": "hello"}]
BAD_COMPLETIONS = [
    ({"temperature": "hot"}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 512}, "max_tokens"),
    ({"n": 9}, "n"),
    ({"prompt": ["a"] * 9}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [3, -1]}, "prompt[1]"),
    ({"prompt": "a" * 10**6}, "prompt"),
    ({"top_p": 1.1}, "top_p"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"seed": -1}, "seed"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"logprobs": 21}, "logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"echo": True}, "echo"),
    ({"min_tokens": 1}, "min_tokens"),
    ({"model": "gpt-9"}, "model"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"guided_regex": "a{30}", "max_tokens": 20}, "max_tokens"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ({"structured_outputs": {"regex": "(((a{999}){999}){999}"}}, "structured_outputs.regex"),
    ({"priority": 2**40}, "priority"),
]
BAD_CHATS = [
    ({}, "messages"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": "a " * 600}]}, "messages"),
    ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
    ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
    ({"messages": HELLO, "response_format": {"type": "yaml"}}, "response_format.type"),
    (
        {
            "messages": HELLO,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "minProperties": 1}},
            },
        },
        "response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [(CompletionRequest, *bad) for bad in BAD_COMPLETIONS] + [(ChatRequest, *b) for b in BAD_CHATS],
)
def test_a_wrong_field_is_named(kind, fields, param):
    error = refusal(kind, fields)
    assert error.status == (404 if fields.get("model") == "gpt-9" else 400)
    told = error.body["error"]
    assert told["param"] == param and told["type"] and param.partition("[")[0] in told["message"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The shipped tokenizer with a chat template, as of a model that was tuned for chats."""
    folder = tmp_path_factory.mktemp("tuned")
    shutil.copy(data_path("model/tokenizer.json"), folder)
    source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    source += "{% endif %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
    config = {"eos_token": "<|endoftext|>", "chat_template": source}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer(folder)


def test_a_chat_is_written_by_the_models_own_template(tuned):
    """A mark in a message stays text, and parts of a message are one text."""
    made = Translator(ExactModel.arch, tuned, NAME, [], 600, 8)
    text = "Hi<|endoftext|>"
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "<|endoftext|>"}]
    for content in (text, parts):
        fields = {"model": NAME, "messages": [{"role": "user", "content": content}]}
        (ask,) = made.chat(parse(ChatRequest, json.dumps(fields).encode())).asks
        assert ask.prompt_ids == [*tuned.encode(f"user: {text}"), 0]
    for message, told in (
        ({"role": "system", "content": "Hi"}, "messages.* no system"),
        ({"role": "user", "content": "a " * 3000}, "messages has .* tokens, expected fewer"),
        ({"role": "user", "content": "a " * 600}, "messages has .* tokens, expected fewer"),
    ):
        fields = {"model": NAME, "messages": [message]}
        with pytest.raises(ApiError, match=told) as error:
            made.chat(parse(ChatRequest, json.dumps(fields).encode()))
        assert error.value.body["error"]["param"] == "messages"


def test_no_likeliest_tokens_may_be_asked_for_without_logprobs():
    """As vLLM has it: 0 asks for nothing."""
    fields = {"model": NAME, "messages": HELLO, "top_logprobs": 0}
    assert parse(ChatRequest, json.dumps(fields).encode()).top_logprobs == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"model": "m", "prompt": "\xff"}',
        rb'{"model": "first-token", "prompt": "\ud800"}',
        b"[" * 100_000,
        b'{"model": "first-token", "temperature": NaN}',
        b'{"model": "first-token", "temperature": Infinity}',
        b'{"model": "first-token", "seed": ' + b"9" * 5000 + b"}",
    ],
    ids=range(9),
)
def test_what_is_no_request_is_refused(body):
    assert refusal(CompletionRequest, body).status == 400


def test_the_pool_limits_the_answer_where_it_is_smaller_than_the_context():
    error = refusal(CompletionRequest, {"max_tokens": 32, "prompt": ""}, n_places=31)
    assert error.body["error"]["param"] == "max_tokens"
    job = translator(n_places=32).completion(
        parse(CompletionRequest, json.dumps({"model": NAME, "max_tokens": 32}).encode())
    )
    assert job.asks[0].prompt_ids == [0]


def test_null_means_the_default():
    names = set(CompletionRequest.model_fields) - {"model", "prompt"}
    nulls = {"model": NAME, "prompt": "a"} | dict.fromkeys(names)
    plain = json.dumps({"model": NAME, "prompt": "a"}).encode()
    jobs = [
        translator().completion(parse(CompletionRequest, body))
        for body in (json.dumps(nulls).encode(), plain)
    ]
    assert jobs[0] == jobs[1]
    assert jobs[0].asks[0].params == SamplingParams()


# Chat.


@given(st.lists(st.tuples(st.sampled_from(["user", "system"]), st.text("a\n#", max_size=9))))
def test_a_chat_is_all_comments(messages):
    text = render_chat(messages)
    assert all(line.startswith("# ") for line in text.split("\n"))
    assert text.endswith("# assistant:")
    assert len(re.findall(r"^# (?:user|system): ", text, re.MULTILINE)) == len(messages)


def test_an_event_is_one_line_however_a_client_splits_lines():
    """The JSON is the same, and all other text goes as it is."""
    text = "a\x85b\u2028c\u2029d\x0b\x0c\x1c\x1d\x1e\r\n naïve 🙂"
    sent = event({"text": text}).decode()
    line, end = sent.splitlines()
    assert end == "" and json.loads(line.removeprefix("data: ")) == {"text": text}
    assert "naïve 🙂" in line
    assert _encode({"text": text}) == line.removeprefix("data: ")  # of a chunk's parts, too
