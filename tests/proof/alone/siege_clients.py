"""Clients of every kind, in their hundreds, and what may become of what they ask.

`besiege` lets them loose on a server. What a client asks for is drawn from its own seed: a kind
(`KINDS`) and a manner (whole, streamed, read slowly, hung up on). Each request comes to exactly one
outcome, and each answer is checked against what its kind promises.
"""

import asyncio
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import jsonschema

from firsttoken.engine import decision_margins
from firsttoken.generate import generate
from firsttoken.models.chat import ChatTemplate, render_chat
from firsttoken.models.protocols import Model
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.sampling import SamplingParams
from server.served import NAME
from server.test_faults import raw

# Rounding may decide between two tokens whose logits are as close as this.
CLOSE = 1e-2
# Longer than anything here takes: who meets it hangs.
HANGS_S = 300.0
REASONS = {"stop", "length", "abort"}
PROMPTS = "def mean(values):\n", "The capital of France is", "x = [1, 2", "a"
CHATS = "What is the capital of France?", "Count to ten."
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
    "required": ["ok"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Case:
    """A greedy request and the text that `generate` gives it alone."""

    path: str
    fields: dict[str, Any]
    text: str


def greedy_cases(models: dict[str, Model], words: Tokenizer, max_tokens: int) -> list[Case]:
    """Return greedy requests to each model (the base and its adapters), by name, with answers.

    Those in which rounding could decide are left out.
    """
    cases = []
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    template = words.chat_template and ChatTemplate(words.chat_template, words)
    asked = [("completions", {"prompt": p}, [*words.start_ids, *words.encode(p)]) for p in PROMPTS]
    for text in CHATS:
        said = {"role": "user", "content": text}
        plain = render_chat([("user", text)])
        ids = template.encode([said]) if template else [*words.start_ids, *words.encode(plain)]
        asked.append(("chat/completions", {"messages": [said]}, ids))
    for name, model in models.items():
        for path, fields, ids in asked:
            alone = generate(model, ids, params, tokenizer=words)
            if decision_margins(model, ids, alone.ids, params).min() > CLOSE:
                wanted = {"model": name, "temperature": 0, "max_tokens": max_tokens}
                cases.append(Case(path, fields | wanted, alone.text or ""))
        assert any(case.fields["model"] == name for case in cases)
    return cases


@dataclass
class Choice:
    """One of the answers to a request."""

    text: str = ""
    reason: str | None = None
    n_logprobs: int = 0


Check = Callable[[Choice], object]


@dataclass
class Wish:
    """What a client asks for: a request, and what each answer to it must be like."""

    path: str
    fields: dict[str, Any]
    check: Check = lambda choice: None


def _sampled(draw: random.Random, siege: "Siege") -> Wish:
    fields = {"temperature": draw.choice([0.5, 1.0]), "seed": draw.randrange(1000)}
    fields |= draw.choice([{}, {"top_k": 5}, {"top_p": 0.8}, {"frequency_penalty": 0.5}])
    fields |= {"n": draw.choice([1, 1, 2, 4]), "priority": draw.randrange(-2, 3)}
    if draw.random() < 0.5:
        prompt = " ".join(draw.choice(PROMPTS) for _ in range(draw.randrange(1, 8)))
        return Wish("completions", {"prompt": [prompt] * draw.choice([1, 1, 2])} | fields)
    said = [{"role": "user", "content": draw.choice(CHATS)}]
    return Wish("chat/completions", {"messages": said} | fields)


def _greedy(draw: random.Random, siege: "Siege") -> Wish:
    case = draw.choice(siege.cases)

    def check(choice: Choice) -> None:
        assert choice.text == case.text, case

    more = {"n": draw.choice([1, 1, 3]), "priority": draw.choice([0, 0, -1])}
    return Wish(case.path, case.fields | more, check)


def _logprobs(draw: random.Random, siege: "Siege") -> Wish:
    def check(choice: Choice) -> None:
        # The token that ends an answer is told too.
        assert siege.max_tokens == choice.n_logprobs

    fields = {"prompt": draw.choice(PROMPTS), "logprobs": draw.choice([0, 3]), "ignore_eos": True}
    return Wish("completions", fields, check)


def _stop(draw: random.Random, siege: "Siege") -> Wish:
    stop = draw.choice([["e"], ["\n", "an"], [" ", "zzz"]])

    def check(choice: Choice) -> None:
        assert not any(s in choice.text for s in stop)

    return Wish("completions", {"prompt": draw.choice(PROMPTS), "stop": stop}, check)


def _deadline(draw: random.Random, siege: "Siege") -> Wish:
    fields = {"deadline_s": draw.choice([0.01, 0.3, 1.0]), "ignore_eos": True, "max_tokens": 100}
    return Wish("completions", {"prompt": draw.choice(PROMPTS)} | fields)


def _form(draw: random.Random, siege: "Siege") -> Wish:
    """A regular expression (many different ones), a choice, a schema, any object."""

    def object_of(schema: dict[str, Any]) -> Check:
        return lambda choice: jsonschema.validate(json.loads(choice.text), schema)

    pattern = f"[ab]{{1,3}}={draw.randrange(100)}"
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
    options: list[tuple[dict[str, Any], Check]] = [
        ({"guided_regex": pattern}, lambda choice: _holds(re.fullmatch(pattern, choice.text))),
        ({"guided_choice": ["yes", "no"]}, lambda choice: _holds(choice.text in ("yes", "no"))),
        ({"response_format": form}, object_of(SCHEMA)),
        ({"response_format": {"type": "json_object"}}, object_of({"type": "object"})),
    ]
    fields, check = draw.choice(options)
    return Wish(
        "completions", {"prompt": draw.choice(PROMPTS), "max_tokens": 24, "seed": 1} | fields, check
    )


def _holds(it: object) -> None:
    assert it


KINDS = (_greedy, _greedy, _sampled, _sampled, _logprobs, _stop, _deadline, _form)
BAD: tuple[dict[str, Any] | bytes, ...] = (
    {"temperature": -1},
    {"max_tokens": 10**6},
    {"prompt": [3, -1]},
    {"prompt": "a " * 10_000},  # read in a thread
    {"model": "gpt-9"},
    {"guided_regex": "(a"},
    {"echo": True},
    b"{",
    b'{"model": "\xff"}',
)
GARBAGE = b"\0" * 50, b"GET\r\n\r\n", b"A" * 100_000


@dataclass
class Siege:
    """A crowd at a server's door, and all that they have met.

    `cases` are its greedy requests; `max_tokens` what other clients want at most; `outcomes` counts
    what became of requests, `cuts` how connections broke, and `first_s` and `gap_s` are what the
    readers of streams measured: seconds to the first token, and to the next, as a mean.
    """

    url: str
    cases: list[Case]
    max_tokens: int
    seed: int = 0
    n_clients: int = 200
    outcomes: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    ends: bool = False

    def run(self, seconds: float, kill: Callable[[], object] | None = None) -> Counter[str]:
        """Let them ask for so many seconds, then kill what is to be killed; return the outcomes.

        Where nothing is killed, those who wait get their answers. Else they ask until they are
        told, or see, that the server is down.
        """
        self.outcomes.clear()
        self.cuts.clear()
        self.first_s.clear()
        self.gap_s.clear()
        self.ends = False
        asyncio.run(self._run(seconds, kill))
        return self.outcomes

    async def _run(self, seconds: float, kill: Callable[[], object] | None) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with (
            asyncio.timeout(seconds + HANGS_S),
            httpx.AsyncClient(base_url=self.url, timeout=None, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            for i in range(self.n_clients):
                group.create_task(self._client(client, random.Random(f"{self.seed} {i}")))
            await asyncio.sleep(seconds)
            if kill is None:
                self.ends = True
            else:
                kill()

    async def _client(self, client: httpx.AsyncClient, draw: random.Random) -> None:
        await asyncio.sleep(draw.random())
        while not self.ends:
            outcome = await self._once(client, draw)
            self.outcomes[outcome] += 1
            if outcome in ("down", "cut"):
                return
            # Who was refused comes again later: a crowd, and no flood.
            await asyncio.sleep(3 * draw.random() if outcome in ("full", "refused") else 0)

    async def _once(self, client: httpx.AsyncClient, draw: random.Random) -> str:
        manner = draw.choices(
            ("whole", "stream", "leaves", "slow", "bad", "garbage"), (8, 8, 3, 1, 2, 1)
        )[0]
        wish = draw.choice(KINDS)(draw, self)
        wish.fields = {"model": NAME, "max_tokens": self.max_tokens} | wish.fields
        try:
            if manner == "whole":
                return await self._whole(client, wish)
            if manner == "stream":
                return await self._stream(client, wish)
            if manner == "bad":
                return await self._bad(client, draw.choice(BAD))
            return await self._by_hand(manner, draw, wish)
        except (httpx.TransportError, OSError, asyncio.IncompleteReadError) as error:
            self.cuts[f"{manner}: {error!r}"] += 1
            return "cut"

    async def _whole(self, client: httpx.AsyncClient, wish: Wish) -> str:
        got = await client.post(f"/v1/{wish.path}", json=wish.fields)
        if got.status_code != 200:
            return _refusal(got.status_code, got.json(), got.headers)
        choices: dict[int, Choice] = {}
        for told in got.json()["choices"]:
            assert told["index"] not in choices
            choices[told["index"]] = Choice()
            _note(choices[told["index"]], told)
        _check(wish, choices, got.json()["usage"])
        return "answered"

    async def _stream(self, client: httpx.AsyncClient, wish: Wish) -> str:
        fields = wish.fields | {"stream": True, "stream_options": {"include_usage": True}}
        choices: dict[int, Choice] = {}
        usage, ended, times = None, False, [time.monotonic()]
        async with client.stream("POST", f"/v1/{wish.path}", json=fields) as got:
            if got.status_code != 200:
                return _refusal(got.status_code, json.loads(await got.aread()), got.headers)
            async for line in got.aiter_lines():
                if not line:
                    continue
                assert line.startswith("data: ") and not ended
                if line == "data: [DONE]":
                    ended = True
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    assert chunk["error"]["code"] == "engine_down", chunk
                    return "down"
                usage = chunk["usage"]
                for told in chunk["choices"]:
                    choice = choices.setdefault(told["index"], Choice())
                    assert choice.reason is None, "something came behind the end"
                    _note(choice, told)
                    times.append(time.monotonic())
        assert ended, "a stream ended without its mark"
        _check(wish, choices, usage)
        if usage["completion_tokens"] > 1 and len(choices) == 1:
            self.first_s.append(times[1] - times[0])
            self.gap_s.append((times[-1] - times[1]) / (usage["completion_tokens"] - 1))
        return "answered"

    async def _bad(self, client: httpx.AsyncClient, fields: dict[str, Any] | bytes) -> str:
        body = fields if isinstance(fields, bytes) else json.dumps({"model": NAME} | fields)
        headers = {"Content-Type": "application/json"}
        got = await client.post("/v1/completions", content=body, headers=headers)
        outcome = _refusal(got.status_code, got.json(), got.headers)
        assert outcome != "full", "a bad request got into the queue"
        return outcome

    async def _by_hand(self, manner: str, draw: random.Random, wish: Wish) -> str:
        """Send garbage, leave in the middle of an answer or of the request, or read in drops."""
        with socket.socket() as connection:
            if manner == "slow":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.setblocking(False)
            address = "127.0.0.1", httpx.URL(self.url).port
            await asyncio.get_running_loop().sock_connect(connection, address)
            reader, writer = await asyncio.open_connection(sock=connection, limit=2048)
            try:
                return await self._talk(manner, draw, wish, reader, writer)
            finally:
                writer.transport.abort()

    async def _talk(
        self,
        manner: str,
        draw: random.Random,
        wish: Wish,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> str:
        if manner == "garbage":
            writer.write(draw.choice(GARBAGE))
            writer.write_eof()
            got = await reader.read()
            assert b" 400 " in got
            return "refused"
        whole = raw(wish.fields | {"stream": draw.random() < 0.7}, wish.path)
        if manner == "leaves":
            writer.write(whole[: draw.choice([draw.randrange(len(whole)), len(whole)])])
            await asyncio.sleep(draw.random() * draw.choice([0.1, 2]))
            return "left"
        writer.write(whole)
        for _ in range(draw.randrange(40)):
            if not await reader.read(draw.choice([1, 100])):
                break
            await asyncio.sleep(draw.random() / 5)
        return "left"


def _note(choice: Choice, told: dict[str, Any]) -> None:
    said = told.get("message") or told.get("delta") or told
    choice.text += said.get("content") or said.get("text") or ""
    choice.reason = told["finish_reason"]
    choice.n_logprobs += len((told["logprobs"] or {}).get("tokens", ()))


def _check(wish: Wish, choices: dict[int, Choice], usage: dict[str, Any]) -> None:
    """Hold an answer to what is promised: as many as asked for, all ended, and as their kind is."""
    prompt = wish.fields.get("prompt")
    n_prompts = len(prompt) if isinstance(prompt, list) else 1
    n = wish.fields.get("n", 1) * n_prompts
    assert sorted(choices) == list(range(n))
    assert usage["completion_tokens"] <= n * wish.fields["max_tokens"]
    for choice in choices.values():
        assert choice.reason in REASONS
        assert choice.reason != "abort" or "deadline_s" in wish.fields
        wish.check(choice)


def _refusal(status: int, body: dict[str, Any], headers: httpx.Headers) -> str:
    """Return what kind of refusal an answer is; each says what is wrong."""
    error = body["error"]
    assert error["message"] and error["type"], body
    if status == 429:
        assert 1 <= int(headers["Retry-After"]) <= 60
        return "full"
    if status == 503:
        assert error["code"] == "engine_down"
        return "down"
    assert status in (400, 404), (status, body)
    return "refused"
