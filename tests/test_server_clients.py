"""The server as clients see it that nobody here wrote: every answer is the engine's alone."""

import asyncio
import json
import re
import time
from dataclasses import replace
from typing import Literal

import jsonschema
import numpy as np
import openai
import pydantic
import pytest
from prometheus_client.parser import text_string_to_metric_families

from firsttoken.constrained import Constraint, Json, Regex
from firsttoken.generate import generate
from firsttoken.llama import load_model
from firsttoken.lora import Adapter, merge_adapter
from firsttoken.metrics import summarize
from firsttoken.sampling import SamplingParams
from firsttoken.server.app import ServerSettings
from firsttoken.server.chat import render_chat
from firsttoken.server.json_schema import schema_regex
from served import NAME, WORDS, Served, eventually


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
    {"seed": 3, "max_tokens": 1},
    {"seed": 4, "stop": ["e", "in"]},
    {"seed": 4, "stop": "a"},
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


def test_ids_are_taken_as_they_are(served, client):
    prompts = [[5, 6, 7], [8, 300]]
    got = complete(client, prompts, {"temperature": 0})
    assert [c.text for c in got.choices] == [
        alone(served, prompt, {"temperature": 0}).text for prompt in prompts
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_chat_is_the_completion_of_its_template(served, client, stream, limit):
    want = alone(
        served,
        render_chat([(m["role"], m["content"]) for m in HELLO]),
        {"seed": 3, "max_tokens": 20, "stop": ["qu"]},
    )
    got = client.chat.completions.create(
        model=NAME, messages=HELLO, seed=3, stop=["qu"], stream=stream, **{limit: 20}
    )
    if stream:
        first, *chunks = got
        assert first.choices[0].delta.role == "assistant"
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


def test_a_chat_without_a_limit_fills_the_context_at_most(served, client):
    got = client.chat.completions.create(
        model=NAME, messages=HELLO, temperature=0, extra_body={"ignore_eos": True}
    )
    assert got.usage.total_tokens == 512 and got.choices[0].finish_reason == "length"


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


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_is_kept_in_time(served, client, seed):
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
    got = client.chat.completions.create(
        model=NAME, messages=HELLO, response_format=form, seed=seed, max_tokens=60
    )
    text = got.choices[0].message.content
    jsonschema.validate(json.loads(text), SCHEMA)
    tokens = [WORDS.token_bytes(i) for i in range(WORDS.vocab_size)]
    prompt = render_chat([(m["role"], m["content"]) for m in HELLO])
    want = generate(
        served.model,
        WORDS.encode_document(prompt),
        SamplingParams(seed=seed, max_tokens=60),
        tokenizer=WORDS,
        constraint=Constraint(Regex(schema_regex(SCHEMA)), tokens, served.model.eos_ids),
        close_in_time=True,
    )
    assert text == want.text


@pytest.mark.parametrize("seed", range(3))
def test_a_json_object_is_one(client, seed):
    got = client.chat.completions.create(
        model=NAME,
        messages=HELLO,
        response_format={"type": "json_object"},
        seed=seed,
        max_tokens=50,
    )
    assert isinstance(json.loads(got.choices[0].message.content), dict)
    assert Json(root="object")


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
    starts = np.cumsum([0] + [len(WORDS.decode([token])) for token in want.ids])[:-1]
    assert joined["text_offset"] == starts.tolist()


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


def test_the_shipped_model_answers(client):
    """Its rounding may depend on neighbours; alone it has none."""
    model = load_model("draft")
    with (
        Served(model, prefix_caching=False) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as own,
    ):
        for options in ({"temperature": 0}, {"seed": 3, "n": 1}):
            want = generate(
                model,
                WORDS.encode_document(PROMPT),
                SamplingParams(max_tokens=24, **{k: v for k, v in options.items() if k != "n"}),
                tokenizer=WORDS,
            )
            assert complete(own, PROMPT, options, max_tokens=24).choices[0].text == want.text


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


def test_models_are_listed(client):
    (card,) = client.models.list().data
    assert card.id == NAME and card.object == "model"
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.models.retrieve("other/one")


def test_errors_come_as_the_client_knows_them(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
        client.completions.create(model=NAME, prompt="a", temperature=-2)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.completions.create(model=NAME, prompt="a", extra_body={"nonsense": 1})
    assert unknown.value.param == "nonsense"


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


def test_other_addresses_and_methods_are_told_in_the_same_format(served):
    for path, status in (("/v2/models", 404), ("/v1/completions", 405)):
        got = served.get(path)
        assert got.status_code == status and path in got.json()["error"]["message"]


# What is counted.


def read_metrics(served) -> dict:
    """Return {name: value} of the samples without labels of their own."""
    families = text_string_to_metric_families(served.get("/metrics").text)
    found: dict = {}
    for sample in (s for family in families for s in family.samples):
        labels = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
        found[sample.name, *labels.values()] = sample.value
    return found


def test_metrics_agree_with_the_books_own(client):
    with (
        Served() as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as own,
    ):
        wants = [alone(served, PROMPT, {"seed": i}) for i in range(5)]
        for i in range(5):
            complete(own, PROMPT, {"seed": i})
        found = read_metrics(served)
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
        parts = ("queue", "prefill", "decode")
        total = sum(found[f"vllm:request_{part}_time_seconds_sum",] for part in parts)
        assert total == pytest.approx(found["vllm:e2e_request_latency_seconds_sum",])
        queries, hits = (found[f"vllm:prefix_cache_{x}_total",] for x in ("queries", "hits"))
        assert queries == 5 * n_prompt and hits == served.front.stats.cached_tokens
        assert found["vllm:num_requests_running",] == found["vllm:num_requests_waiting",] == 0
        assert found["vllm:kv_cache_usage_perc",] == 0

        shown = served.get("/dashboard.json").json()
        assert shown["healthy"] and shown["answers"] == 5
        assert shown["new_tokens"] == sum(len(w.ids) for w in wants)
        assert shown["ttft"]["p50"] == summarize(traces).ttft[50]


def test_times_of_both_processes_are_on_one_clock(served):
    """The engine's clock is younger than the front's process, and begins at another moment."""
    assert 0 < served.front.hello.zero_s < time.perf_counter()
    early_s = time.perf_counter() - served.front.hello.zero_s
    before = served.front.now_s()
    assert early_s <= before <= time.perf_counter() - served.front.hello.zero_s
    assert served.post(prompt="a", max_tokens=5, ignore_eos=True).status_code == 200
    after = served.front.now_s()
    trace = served.api.counters.recent()[-1]
    times = [before, trace.arrival_s, *trace.token_times_s, after]
    assert times == sorted(times) and len(set(times)) == 8
    sums = {name[0]: value for name, value in read_metrics(served).items() if "_sum" in name[0]}
    parts = ("queue", "prefill", "decode")
    assert all(sums[f"vllm:request_{part}_time_seconds_sum"] > 0 for part in parts)


def test_the_dashboard_asks_nobody_else(served):
    page = served.get("/").text
    addresses = re.findall(r"(?:https?:)?//[\w.]+", page)
    assert addresses == [] and re.findall(r"fetch\(\"(.*?)\"", page) == ["dashboard.json"]
