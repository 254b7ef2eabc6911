"""The server as clients see it that nobody here wrote: every answer is the engine's alone."""

import asyncio
import collections.abc
import json
import re
import types
import typing
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jsonschema
import numpy as np
import openai
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from firsttoken.generate import generate
from firsttoken.metrics import summarize
from firsttoken.models.chat import render_chat
from firsttoken.models.llama import load_model
from firsttoken.models.lora import Adapter, merge_adapter
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Constraint, Regex
from firsttoken.server.app import ServerSettings
from firsttoken.server.errors import ApiError
from firsttoken.server.schema import ChatRequest, CompletionRequest
from firsttoken.server.translation import Translator, ignored, parse
from server.served import NAME, WORDS, ExactModel, Served, eventually


class Thing(pydantic.BaseModel):
    """What `parse` of the client reads."""

    name: str
    size: int | None
    kinds: list[Literal["round", "flat"]]


PROMPT = "def mean(values):\n"
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\nthere!"}]
OPTIONS = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.8, "seed": 5},
    {"seed": 1, "extra_body": {"top_k": 3, "min_p": 0.05, "repetition_penalty": 1.3}},
    {"seed": 2, "presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"seed": 4, "stop": ["e", "in"]},
    {"temperature": 0, "extra_body": {"ignore_eos": True}, "max_tokens": 40},
    {"seed": 6, "extra_body": {"guided_regex": "[a-z]{3,5}=[0-9]+"}, "max_tokens": 24},
    {"seed": 7, "extra_body": {"structured_outputs": {"choice": ["yes", "no", "né"]}}},
]


@pytest.fixture(scope="module")
def served():
    with Served(apart=True) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    yield
    if "served" in request.fixturenames:
        eventually(lambda: request.getfixturevalue("served").idle)


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def alone(served, prompt, options, index=0):
    """Return what `generate` says alone: the oracle."""
    options = {"seed": 0, "max_tokens": 16} | options
    more = dict(options.pop("extra_body", {}))
    ignore_eos, constraint = more.pop("ignore_eos", False), None
    language = None
    if "guided_regex" in more:
        language = Regex(more.pop("guided_regex"))
    if "structured_outputs" in more:
        language = Regex("|".join(more.pop("structured_outputs")["choice"]))
    if language is not None:
        constraint = Constraint(
            language, [WORDS.token_bytes(i) for i in range(WORDS.vocab_size)], served.model.eos_ids
        )
    params = SamplingParams(**options, **more)
    params = replace(params, seed=params.seed + index)
    ids = WORDS.encode_document(prompt) if isinstance(prompt, str) else prompt
    return generate(
        *(served.model, ids, params, True, None, WORDS, ignore_eos, constraint),
        close_in_time=constraint is not None,
    )


REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


def complete(client, prompt, options, **more):
    return client.completions.create(model=NAME, prompt=prompt, **({"seed": 0} | options), **more)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_completion_is_what_generate_says(served, client, options):
    want = alone(served, PROMPT, options)
    got = complete(client, PROMPT, options)
    assert got.object == "text_completion" and got.model == NAME and got.id.startswith("cmpl-")
    assert [(c.text, c.finish_reason) for c in got.choices] == [
        (want.text, REASONS[want.finish_reason])
    ]
    n_prompt = len(WORDS.encode_document(PROMPT))
    usage = got.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (n_prompt, len(want.ids))
    assert usage.total_tokens == n_prompt + len(want.ids)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_stream_says_the_same_in_pieces(served, client, options):
    want = alone(served, PROMPT, options)
    usage = {"include_usage": True}
    chunks = list(complete(client, PROMPT, options, stream=True, stream_options=usage))
    *chunks, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == len(want.ids)
    texts = [chunk.choices[0].text for chunk in chunks]
    assert "".join(texts) == want.text
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + [
        REASONS[want.finish_reason]
    ]
    assert len(chunks) <= len(want.ids) + 1 and len({chunk.id for chunk in chunks}) == 1
    if not options.get("stop") and len(want.ids) > 8:
        assert len(chunks) > len(want.ids) / 2, "the text came at once, not in pieces"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_several_answers_of_each(served, client, stream):
    prompts, n = ["a", "def f(", ""], 3
    options = {"seed": 9, "n": n, "max_tokens": 12, "stop": ["q"]}
    wants = [
        alone(served, prompt, {"seed": 9, "max_tokens": 12, "stop": ["q"]}, i)
        for prompt in prompts
        for i in range(n)
    ]
    if stream:
        texts, reasons = [""] * 9, [None] * 9
        for chunk in complete(client, prompts, options, stream=True):
            (choice,) = chunk.choices
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
        got = list(zip(texts, reasons, strict=True))
    else:
        answer = complete(client, prompts, options)
        assert [c.index for c in answer.choices] == list(range(9))
        got = [(c.text, c.finish_reason) for c in answer.choices]
        n_prompt = sum(len(WORDS.encode_document(prompt)) for prompt in prompts)
        assert answer.usage.prompt_tokens == n_prompt
        assert answer.usage.completion_tokens == sum(len(want.ids) for want in wants)
    assert got == [(want.text, REASONS[want.finish_reason]) for want in wants]
    assert len({text for text, _ in got}) > 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_the_completion_of_its_template(served, client, stream):
    want = alone(
        served,
        render_chat([(m["role"], m["content"]) for m in HELLO]),
        {"seed": 3, "max_tokens": 20, "stop": ["qu"]},
    )
    got = client.chat.completions.create(
        model=NAME, messages=HELLO, seed=3, stop=["qu"], stream=stream, max_completion_tokens=20
    )
    if stream:
        chunks = list(got)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == want.text
        assert chunks[-1].choices[0].finish_reason == REASONS[want.finish_reason]
    else:
        assert got.choices[0].message.role == "assistant"
        assert got.choices[0].message.content == want.text
        assert got.choices[0].finish_reason == REASONS[want.finish_reason]
        assert got.usage.completion_tokens == len(want.ids)


def test_the_helpers_of_the_client_work(client):
    """`stream` puts the pieces together itself, `parse` asks for a schema and reads the answer."""
    choices = {"guided_choice": ["yes", "no"]}
    with client.chat.completions.stream(model=NAME, messages=HELLO, extra_body=choices) as stream:
        assert stream.get_final_completion().choices[0].message.content in ("yes", "no")
    got = client.chat.completions.parse(
        model=NAME, messages=HELLO, response_format=Thing, seed=1, max_tokens=100
    )
    assert isinstance(got.choices[0].message.parsed, Thing)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "kind": {"enum": ["round", "flat"]},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_is_kept_in_time(client, seed):
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
    got = client.chat.completions.create(
        model=NAME, messages=HELLO, response_format=form, seed=seed, max_tokens=60
    )
    jsonschema.validate(json.loads(got.choices[0].message.content), SCHEMA)


def test_a_json_object_is_one(client):
    form = {"type": "json_object"}
    got = client.chat.completions.create(
        model=NAME, messages=HELLO, response_format=form, seed=1, max_tokens=50
    )
    assert isinstance(json.loads(got.choices[0].message.content), dict)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def expected_logprobs(served, prompt, answer, k):
    """Return (token, logprob, the k likeliest) of each token, by passes over the whole text."""
    ids, told = WORDS.encode_document(prompt), []
    for i, token in enumerate(answer.ids):
        cache = served.model.new_cache(1, 512)
        p = log_softmax(np.asarray(served.model([[*ids, *answer.ids[:i]]], cache))[0, -1])
        top = np.argsort(-p, kind="stable")[:k]
        told.append((token, p[token], [(int(j), p[j]) for j in top]))
    return told


def names(token):
    raw = WORDS.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in raw)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("k", [0, 3])
def test_logprobs_of_completions(served, client, stream, k):
    options = {"seed": 8, "max_tokens": 6, "temperature": 0.5}
    want = alone(served, PROMPT, options)
    expected = expected_logprobs(served, PROMPT, want, k)
    got = complete(client, PROMPT, options, logprobs=k, stream=stream)
    parts = [c.choices[0].logprobs for c in got] if stream else [got.choices[0].logprobs]
    parts = [part for part in parts if part is not None]
    joined = {f: [x for p in parts for x in getattr(p, f)] for f in type(parts[0]).model_fields}
    assert joined["tokens"] == [names(token) for token, _, _ in expected]
    np.testing.assert_allclose(joined["token_logprobs"], [p for _, p, _ in expected], atol=1e-4)
    for told, (token, p, top) in zip(joined["top_logprobs"], expected, strict=True):
        assert told.keys() == {names(j) for j, _ in top} | {names(token)}
        assert told[names(token)] == pytest.approx(p, abs=1e-4)
    offsets = joined["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0
    for name, offset in zip(joined["tokens"], offsets, strict=True):
        # A token that is text of its own stands where its offset says; the others have no length.
        assert name.startswith(("bytes:", "<|")) or want.text.startswith(name, offset)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("k", [None, 2])
def test_logprobs_of_chats(served, client, stream, k):
    prompt = render_chat([(m["role"], m["content"]) for m in HELLO])
    want = alone(served, prompt, {"seed": 8, "max_tokens": 6})
    expected = expected_logprobs(served, prompt, want, k or 0)
    got = client.chat.completions.create(
        *(),
        model=NAME,
        messages=HELLO,
        seed=8,
        max_tokens=6,
        logprobs=True,
        stream=stream,
        **({} if k is None else {"top_logprobs": k}),
    )
    parts = [c.choices[0].logprobs for c in got] if stream else [got.choices[0].logprobs]
    told = [entry for part in parts if part is not None for entry in part.content]
    assert [entry.token for entry in told] == [names(token) for token, _, _ in expected]
    assert [bytes(e.bytes) for e in told] == [WORDS.token_bytes(t) for t in want.ids]
    np.testing.assert_allclose([e.logprob for e in told], [p for _, p, _ in expected], atol=1e-4)
    for entry, (_, _, top) in zip(told, expected, strict=True):
        assert [e.token for e in entry.top_logprobs] == [names(j) for j, _ in top]


def test_many_at_once_are_as_alone(served):
    """Forty clients over a batch of eight, all different, streamed or not."""

    async def ask(client, i):
        options = {"seed": i, "max_tokens": 5 + i % 20, "temperature": i % 3 / 2}
        prompt = PROMPT * (1 + i % 4) + str(i)
        want = alone(served, prompt, options)
        if i % 2:
            got = await client.completions.create(model=NAME, prompt=prompt, **options)
            text = got.choices[0].text
        else:
            stream = await client.completions.create(
                model=NAME, prompt=prompt, stream=True, **options
            )
            text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == want.text

    async def main():
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0
        ) as client:
            await asyncio.gather(*(ask(client, i) for i in range(40)))

    asyncio.run(main())


# Adapters.


def random_adapter(seed: int) -> Adapter:
    """Return a change of the draft model that is large enough to change what it says."""
    draw, d = np.random.default_rng(seed), load_model("draft").arch.d_model
    pairs = {(0, "o_proj"): (draw.normal(size=(2, d)), draw.normal(size=(d, 2)) / 4)}
    return Adapter(2, 2.0, pairs)


def test_adapters_are_models_of_their_own_beside_the_base():
    """Asked at once, each says what the merged model says alone, and the base stays the base."""
    base, made = load_model("draft"), {"loud": random_adapter(1), "soft/one": random_adapter(2)}
    models = {NAME: base} | {name: merge_adapter(base, a) for name, a in made.items()}
    ids = WORDS.encode_document(PROMPT)
    params = SamplingParams(temperature=0.0, max_tokens=12)
    wants = {name: generate(m, ids, params, tokenizer=WORDS).text for name, m in models.items()}
    assert len(set(wants.values())) == 3

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as own:
            cards = {card.id: card async for card in own.models.list()}
            assert list(cards) == list(wants)
            assert [card.parent for card in cards.values()] == [None, NAME, NAME]
            assert (await own.models.retrieve("soft/one")).id == "soft/one"
            asks = [
                own.completions.create(model=name, prompt=PROMPT, temperature=0, max_tokens=12)
                for name in [*wants, *wants]
            ]
            for got, name in zip(await asyncio.gather(*asks), [*wants, *wants], strict=True):
                assert got.model == name and got.choices[0].text == wants[name]
            with pytest.raises(openai.NotFoundError, match="loud, soft/one"):
                await own.completions.create(model="quiet", prompt=PROMPT)

    with Served(base, adapters=made) as served:
        asyncio.run(main())
        eventually(lambda: served.idle)


# Models, keys, errors.


def test_errors_come_as_the_client_knows_them(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
        client.completions.create(model=NAME, prompt="a", temperature=-2)
    assert wrong.value.param == "temperature"


def test_a_key_is_asked_for():
    settings = ServerSettings(api_key="s3cret-ü")
    with Served(settings=settings) as served:
        for key in ("wrong", "s3cret", "s3cret-u"):
            headers = {"Authorization": f"Bearer {key}"}
            for path in ("/v1/models", f"/v1/models/{NAME}"):
                assert served.get(path, headers=headers).status_code == 401
        assert served.post(prompt="a").status_code == 401
        assert served.get("/health").status_code == served.get("/metrics").status_code == 200
        right = {"Authorization": "Bearer s3cret-ü".encode()}
        assert served.get("/v1/models", headers=right).status_code == 200
        wrong_kind = {"Authorization": "Basic s3cret-ü".encode()}
        assert served.get("/v1/models", headers=wrong_kind).status_code == 401


# What is counted.


COMMON = ("engine", "model_name")


def test_metrics_agree_with_the_books_own(client):
    with (
        Served() as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as own,
    ):
        wants = [alone(served, PROMPT, {"seed": i}) for i in range(5)]
        for i in range(5):
            complete(own, PROMPT, {"seed": i})
        families = text_string_to_metric_families(served.get("/metrics").text)
        found = {
            (sample.name, *(v for k, v in sample.labels.items() if k not in COMMON)): sample.value
            for family in families
            for sample in family.samples
        }
        traces = served.api.counters.recent()
        n_prompt = len(WORDS.encode_document(PROMPT))
        assert found["vllm:prompt_tokens_total",] == 5 * n_prompt
        assert found["vllm:generation_tokens_total",] == sum(len(w.ids) for w in wants)
        for reason in ("stop", "length"):
            n = sum(REASONS[want.finish_reason] == reason for want in wants)
            assert found.get(("vllm:request_success_total", reason), 0) == n
        for name, values in {
            "time_to_first_token_seconds": [t.ttft for t in traces],
            "e2e_request_latency_seconds": [t.e2e for t in traces],
            "inter_token_latency_seconds": np.concatenate([t.itl for t in traces]),
            "request_time_per_output_token_seconds": [t.tpot for t in traces],
        }.items():
            assert found[f"vllm:{name}_sum",] == pytest.approx(sum(values))
            assert found[f"vllm:{name}_count",] == len(values)
        shown = served.get("/dashboard.json").json()
        assert shown["healthy"] and shown["answers"] == 5
        assert shown["new_tokens"] == sum(len(w.ids) for w in wants)
        assert shown["ttft"]["p50"] == summarize(traces).ttft[50]


# What clients send that a specification seldom shows.


def test_an_answer_goes_back_into_the_chat_as_the_client_returned_it(client):
    def ask(messages):
        got = client.chat.completions.create(
            model=NAME, messages=messages, temperature=0, max_tokens=6
        )
        return got.choices[0].message

    first = ask(HELLO)
    plain = [*HELLO, {"role": "assistant", "content": first.content}, HELLO[1]]
    want = ask(plain).content
    parsed = client.chat.completions.parse(
        model=NAME, messages=HELLO, response_format=Thing, seed=1, max_tokens=100
    )
    for said in (first, first.model_dump(), first.to_dict(), first.model_dump(exclude_unset=True)):
        assert ask([*HELLO, said, HELLO[1]]).content == want
    with warnings.catch_warnings():  # the client's own, of what it has added to the message
        warnings.simplefilter("ignore")
        assert ask([*HELLO, parsed.choices[0].message, HELLO[1]]).content
    assert ask([*HELLO, {"role": "assistant", "content": None}, HELLO[1]]).content


@pytest.mark.parametrize("chat", [False, True])
def test_the_first_chunk_comes_with_the_first_token(client, chat):
    """So a client that takes it for that reads the time that the server counts."""
    options = {"stream": True, "max_tokens": 5, "temperature": 0, "model": NAME}
    options["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    create = client.chat.completions.create if chat else client.completions.create
    chunks = list(create(**options, **({"messages": HELLO} if chat else {"prompt": "🦜"})))
    assert chunks[0].choices and chunks[0].usage.completion_tokens == 1


def test_the_usage_tells_what_the_prefix_cache_saved():
    prompt = [5, 6, 7, 8] * 10
    with Served(block_size=4) as served:
        for n, stream in ((1, False), (3, False), (2, True)):
            before = served.front.stats.cached_tokens
            fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            got = served.post(prompt=prompt, max_tokens=2, n=n, ignore_eos=True, **fields)
            last = got.text.split("data: ")[-2] if stream else got.text
            found = json.loads(last)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert found == (39 if before or n > 1 else 0)  # the last token is read again
            if n == 1:
                assert served.front.stats.cached_tokens - before == found


def test_fields_without_effect_are_ignored_and_the_log_says_so_once(served, caplog):
    for _ in range(2):
        got = served.post(prompt="a", cache_salt="x", user="me", min_tokens=0, logit_bias={})
        assert got.status_code == 200
    told = [r.getMessage() for r in caplog.records if "cache_salt" in r.getMessage()]
    assert len(told) == 1
    chat = {"messages": HELLO, "temperature": 0, "max_completion_tokens": 10**6, "ignore_eos": True}
    choice = served.post("chat/completions", **chat).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    tools = {"tools": [{"type": "function"}], "max_tokens": 1, "messages": HELLO}
    assert served.post("chat/completions", **tools, tool_choice="none").status_code == 200
    refused = served.post("chat/completions", **tools).json()["error"]
    assert refused["param"] == "tools" and "not supported here" in refused["message"]


def values_of(kind, depth=0):
    """Return a strategy of what a client's type says it may send."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return values_of(inner[0], depth)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(option, depth) for option in inner])
    if typing_extensions.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        chosen = {n: values_of(h, depth + 1) for n, h in hints.items() if depth < 4}
        required = {
            n: s for n, s in chosen.items() if typing.get_origin(hints[n]) is typing.Required
        }
        rest = {n: s for n, s in chosen.items() if n not in required}
        few = st.sets(st.sampled_from(sorted(rest)), max_size=3) if rest else st.just(set())
        return few.flatmap(
            lambda names: st.fixed_dictionaries(required | {n: rest[n] for n in names})
        )
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        return st.lists(values_of(inner[0], depth + 1), max_size=2)
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(st.sampled_from(["5", "type"]), values_of(inner[1], depth + 1))
    plain = {str: st.text("aé", max_size=3), bool: st.booleans(), type(None): st.none()}
    plain |= {int: st.integers(-1, 600), float: st.integers(-3, 3) | st.floats(-3, 3)}
    return plain.get(kind, st.none() | st.booleans() | st.text("a", max_size=2))


CHATS = values_of(openai.types.chat.completion_create_params.CompletionCreateParamsNonStreaming)
COMPLETIONS = values_of(openai.types.completion_create_params.CompletionCreateParamsNonStreaming)


@given(st.tuples(st.just(True), CHATS) | st.tuples(st.just(False), COMPLETIONS), st.booleans())
def test_what_the_clients_types_allow_is_taken_or_refused_by_name(asked, simple):
    """The model's name is ours; every second chat says plain things, so that many get through."""
    is_chat, fields = asked
    fields = {**fields, "model": NAME}
    if simple:
        fields |= {"messages": HELLO} if is_chat else {"prompt": "a"}
    made = Translator(ExactModel.arch, WORDS, NAME, [], 600, 8)
    try:
        kind = ChatRequest if is_chat else CompletionRequest
        request = parse(kind, json.dumps(fields).encode())
        assert (made.chat if is_chat else made.completion)(request).asks
    except ApiError as error:
        told = error.body["error"]
        assert error.status == 400 and told["param"].split(".")[0].split("[")[0] in fields
        assert told["message"].startswith(told["param"])
        assert not re.search(
            "Input should|Field required|Value error|pydantic|cannot be read", str(error)
        )


def test_chapter_17_says_what_becomes_of_each_field():
    notebook = Path(__file__).parents[2] / "notebooks" / "17_engine.ipynb"
    cells = {c["id"]: "".join(c["source"]) for c in json.loads(notebook.read_text())["cells"]}
    rows = {
        line.split("|")[1].strip(): re.findall("`(\\w+)`", line)
        for line in cells["http-form"].splitlines()
        if line.startswith("|")
    }
    kinds = (CompletionRequest, {"prompt": "a"}), (ChatRequest, {"messages": HELLO})
    for name in rows["Supported"]:
        assert any(name in kind.model_fields for kind, _ in kinds), name
    for name in rows["Ignored"] + rows["Refused"]:
        told = []
        for kind, plain in kinds:
            body = json.dumps({"model": NAME, name: ["x"], **plain}).encode()
            try:
                told.append(name in ignored(parse(kind, body)))
            except ApiError as error:
                told.append(error.body["error"]["param"])
        assert told == [True, True] if name in rows["Ignored"] else name in told, (name, told)
