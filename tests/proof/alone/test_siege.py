"""Two hundred clients of every kind against the server as readers start it, and processes killed.

Laws, whatever the machine does: each request has one outcome, of a kind that is promised; greedy
answers are those of `generate` alone; nobody waits for ever; nothing is held or grows, and no
process stays. Times are printed beside what the simulator says of the same arrivals.

A siege lasts FIRSTTOKEN_SIEGE_S seconds for each model, 15 unless it is set; ten minutes and the
figures, on a quiet machine:

    FIRSTTOKEN_SIEGE_S=600 python -m pytest -s tests/proof/alone/test_siege.py
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from firsttoken.batching import Request, Speculation, poisson_trace, simulate
from firsttoken.engine import record_steps
from firsttoken.engine.cost import fit_cost
from firsttoken.metrics import RequestTrace, summarize
from firsttoken.models.llama import load_model
from firsttoken.models.lora import Adapter, load_adapter, merge_adapter, save_adapter
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.paging import BlockPool
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams
from firsttoken.server.options import make_engine, parser, tokenizer_of
from firsttoken.speculative import acceptance_by_position
from proof.alone.siege_clients import Case, Siege, greedy_cases
from proof.server.test_server_processes import gone, start
from server.served import NAME, eventually

SIEGE_S = float(os.environ.get("FIRSTTOKEN_SIEGE_S", "15"))
MAX_BATCH, N_BLOCKS, BLOCK_SIZE, BUDGET, GAMMA = 16, 96, 16, 256, 4
# What may come and go: a thread of the front that has met its first long text keeps 5 MiB.
ALLOWED_MB = 48
LOAD = 0.6  # of what the simulator says the engine can do, where times are compared
# What the server's log may say of such clients.
KNOWN = "Invalid HTTP request received.", "a client did not read its stream: dropped"


@dataclass(frozen=True)
class World:
    """A model as it is served, and greedy answers of it and its adapter."""

    options: tuple[str, ...]
    words: Tokenizer
    cases: list[Case]
    max_tokens: int


@pytest.fixture(scope="module", params=["target", "smollm2"])
def world(request, tmp_path_factory) -> World:
    """The shipped model with a draft and an adapter; the real one with an adapter made here."""
    try:
        model = load_model(request.param)
    except ValueError as missing:
        pytest.skip(str(missing))
    if request.param == "target":
        adapter, more = load_adapter("capitals"), ("--adapter", "capitals", "--draft", "draft")
        max_tokens, max_waiting = 24, 120
    else:
        draw, d = np.random.default_rng(0), model.arch.d_model
        pairs = {(0, "o_proj"): (draw.normal(size=(2, d)), draw.normal(size=(d, 2)) / 4)}
        adapter, folder = Adapter(2, 2.0, pairs), tmp_path_factory.mktemp("made")
        save_adapter(adapter, folder)
        more, max_tokens, max_waiting = ("--adapter", f"made={folder}"), 8, 24
    sizes = {"n-blocks": N_BLOCKS, "block-size": BLOCK_SIZE, "max-batch": MAX_BATCH}
    sizes |= {"token-budget": BUDGET, "gamma": GAMMA, "max-waiting": max_waiting}
    named = [text for name, n in sizes.items() for text in (f"--{name}", str(n))]
    options = ("--model", request.param, *more, *named)
    words = tokenizer_of(parser().parse_args(options))
    models = {NAME: model, more[1].partition("=")[0]: merge_adapter(model, adapter)}
    return World(options, words, greedy_cases(models, words, max_tokens), max_tokens)


class Running:
    """The program, its address, and the processes that belong to it."""

    def __init__(self, program: subprocess.Popen, url: str):
        self.program, self.url = program, url
        self.front = psutil.Process(program.pid)
        self.others = self.front.children(recursive=True)
        # The other child is multiprocessing's tracker, which does nothing.
        self.engine = max(self.others, key=lambda process: process.memory_info().rss)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and all blocks are free."""
        families = text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text)
        values = {s.name: s.value for family in families for s in family.samples}
        names = "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"
        return not any(values[f"vllm:{name}"] for name in names)

    def n_files(self) -> list[int]:
        """Return how many files and connections the front and the engine hold."""
        return [process.num_fds() for process in (self.front, self.engine)]

    def resident_mb(self) -> list[float]:
        """Return the memory that the front and the engine hold."""
        return [process.memory_info().rss / 2**20 for process in (self.front, self.engine)]

    def stop(self) -> None:
        """Ask the program to end; see that it does, in order, and leaves no process."""
        self.program.terminate()
        self.program.communicate(timeout=300)
        assert self.program.returncode == 0
        eventually(lambda: all(map(gone, self.others)))


@contextmanager
def running(world: World, log: Path, port: int = 0) -> Iterator[Running]:
    """Start the program; its log must say nothing but what is known of bad clients."""
    with log.open("w") as file:
        program, url = start(*world.options, "--port", str(port), stderr=file)
    try:
        yield Running(program, url)
    finally:
        program.kill()
        program.communicate()
    unknown = [line for line in log.read_text().splitlines() if not line.endswith(KNOWN)]
    assert unknown == []


def test_a_siege_leaves_no_trace(world, tmp_path, capsys):
    with running(world, tmp_path / "log") as server:
        siege = Siege(server.url, world.cases, world.max_tokens)
        siege.run(max(6.0, SIEGE_S / 4))
        eventually(lambda: server.idle)
        files, before_mb = server.n_files(), server.resident_mb()
        siege.seed += 1
        outcomes = siege.run(SIEGE_S)
        eventually(lambda: server.idle)
        eventually(lambda: server.n_files() == files)
        after_mb = server.resident_mb()
        with capsys.disabled():
            print(f"\n{world.options[1]}: {dict(outcomes)}")
            print(f"MiB of front and engine, warm {before_mb}, after {after_mb}")
            print(f"siege: {percentiles(siege.first_s, siege.gap_s)}")
        assert not siege.cuts
        assert outcomes.keys() <= {"answered", "refused", "full", "left"} and outcomes["answered"]
        assert (np.subtract(after_mb, before_mb) < ALLOWED_MB).all()
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        told = beside_the_simulator(world, server.url)
        with capsys.disabled():
            print(told)
        server.stop()


def test_killed_processes_are_told_of_and_leave_nothing(world, tmp_path):
    """First the engine, then, of a new server at the same port, the front."""
    with running(world, tmp_path / "first") as server:
        port = httpx.URL(server.url).port
        siege = Siege(server.url, world.cases, world.max_tokens)
        outcomes = siege.run(3.0, server.engine.kill)
        # Each client has been told; whoever was just hanging up or talking nonsense comes again.
        assert outcomes["down"] == siege.n_clients and "cut" not in outcomes
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503 and "killed" in health.json()["reason"]
        server.stop()
    with running(world, tmp_path / "second", port) as server:
        outcomes = siege.run(3.0, server.front.kill)
        assert outcomes["cut"] == siege.n_clients and "down" not in outcomes
        server.program.communicate(timeout=300)
        eventually(lambda: all(map(gone, server.others)))
    with running(world, tmp_path / "third", port) as server:
        assert siege.run(3.0).keys() <= {"answered", "refused", "full", "left"}
        eventually(lambda: server.idle)
        server.stop()


# Times: what is measured, and what the simulator says.


def percentiles(first_s: list[float], gap_s: list[float]) -> str:
    """Return the median and the 99th percentile of both, in words."""
    if not first_s:
        return "no stream of one answer"
    p = [np.percentile(values, (50, 99)) * 1e3 for values in (first_s, gap_s)]
    return (
        f"{len(first_s)} streams; TTFT p50 {p[0][0]:.0f} p99 {p[0][1]:.0f} ms, "
        f"TPOT p50 {p[1][0]:.1f} p99 {p[1][1]:.1f} ms"
    )


def beside_the_simulator(world: World, url: str) -> str:
    """Send requests that arrive at random; return what readers and the simulator see of them."""
    ids = world.words.encode(data_path("heldout.txt").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    lengths = {
        "n_prompt": lambda rng: int(rng.integers(8, 97)),
        "n_output": lambda rng: int(rng.integers(2, 2 * world.max_tokens)),
    }
    burst = poisson_trace(1e9, 2 * MAX_BATCH, rng, **lengths)  # all at once
    predict = measured_simulator(world, burst, ids)
    rate = LOAD * summarize(predict(burst)).requests_per_s
    trace = poisson_trace(rate, max(8, int(rate * SIEGE_S / 2)), rng, **lengths)
    # However many: each begins at a place of its own, so that no prefix is cached.
    places = [101 * i % (len(ids) - 96) for i in range(len(trace))]
    assert len(set(places)) == len(places)
    prompts = [ids[at : at + r.n_prompt] for at, r in zip(places, trace, strict=True)]
    seen, said = asyncio.run(serve(url, trace, prompts)), predict(trace)
    lines = [
        f"{who}: {percentiles([t.ttft for t in traces], [t.tpot for t in traces])}"
        for who, traces in (("readers", seen), ("simulator", said))
    ]
    return "\n".join([f"at {rate:.1f} requests/s, {LOAD:.0%} of the most:", *lines])


def measured_simulator(world: World, burst: list[Request], ids: list[int]):
    """Return the simulator of such a server, with the costs of an engine's steps here."""
    engine = make_engine(parser().parse_args([*world.options, "--max-waiting", str(len(burst))]))
    steps = record_steps(engine)
    for i, request in enumerate(burst):
        params = SamplingParams(temperature=0.0, max_tokens=request.n_output)
        prompt = ids[-96 * (i + 1) :][: request.n_prompt]
        engine.submit(prompt, params, ignore_eos=True)
    rounds = [r for answer in engine.run().values() for r in answer.rounds or ()]
    cost = fit_cost(steps)
    options = {"max_batch": MAX_BATCH, "token_budget": BUDGET}
    if rounds:
        alpha, _ = acceptance_by_position(rounds)
        # Drafting is in the time of the measured steps.
        options["speculation"] = Speculation(alpha.tolist(), GAMMA, lambda n, gamma: 0.0)
    return lambda trace: simulate(
        trace, "chunked", cost, pool=BlockPool(N_BLOCKS, BLOCK_SIZE), **options
    )


async def serve(url: str, trace: list[Request], prompts: list[list[int]]) -> list[RequestTrace]:
    """Send each request when it arrives; return when its tokens came."""
    begin_s = time.monotonic()

    async def ask(client: httpx.AsyncClient, request: Request, prompt: list[int]) -> RequestTrace:
        await asyncio.sleep(begin_s + request.arrival_s - time.monotonic())
        fields = {"model": NAME, "prompt": prompt, "temperature": 0, "stream": True}
        fields |= {"max_tokens": request.n_output, "ignore_eos": True}
        sent_s, times_s = time.monotonic(), []
        async with client.stream("POST", "/v1/completions", json=fields) as got:
            async for line in got.aiter_lines():
                if re.match(r"data: \{", line):
                    times_s.append(time.monotonic())
        # A token without text of its own has no chunk: those between come evenly, for all we know.
        evenly = np.linspace(times_s[0], times_s[-1], request.n_output).tolist()
        return RequestTrace(sent_s, tuple(evenly), request.n_prompt)

    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        asked = (ask(client, *pair) for pair in zip(trace, prompts, strict=True))
        return await asyncio.gather(*asked)
