"""The server under load: what HTTP costs, whose clocks agree, what the simulator foresaw, a crowd.

    python benchmarks/server.py          # prints tables, writes data/measured/server.json
    python benchmarks/server.py --quick  # seconds; writes nothing unless told where
    python benchmarks/server.py --guidellm /elsewhere/bin/guidellm    # a public load generator

guidellm takes part where it is on the PATH, too. The server has two processes, one for HTTP and one
for its engine; its clients are a third: this one. The engine alone runs here, with the same
requests, while the server is idle; the two take turns. The simulator gets the costs of the engine's
steps, which are measured here, too, and knows nothing of HTTP.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from firsttoken.batching import Request, simulate
from firsttoken.engine import Engine, MeasuredCost, decision_margins, measure_cost
from firsttoken.generate import generate
from firsttoken.metrics import RequestTrace, summarize
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, load_average, processor
from firsttoken.sampling import SamplingParams

MEASURED_CODE = code_digest(
    [
        "batching",
        "models/chat",
        "generate/sequence",
        "engine",
        "generate/drafting",
        "generate/loop",
        "models/llama",
        "metrics",
        "paging",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        # Not what starts it: `__main__` and its options decide no number.
        "server/answers",
        "server/app",
        "server/counters",
        "server/engine_client",
        "server/engine_process",
        "server/errors",
        "server/json_schema",
        "server/messages",
        "server/protocol",
        "server/schema",
        "server/text",
        "server/translation",
    ]
)

SEED, NAME, CONCURRENCY, N_PROMPT, N_OUTPUT = 0, "first-token", 8, 128, 64
MAX_BATCH, TOKEN_BUDGET = 16, 256
# Turns of two seconds: a slow half minute of the machine hits the engine alone and HTTP alike.
N_REQUESTS, ROUNDS, N_FOR_GUIDELLM, MINUTE_S, N_CLIENTS = 32, 20, 96, 60.0, 200
QUICK = {"n_requests": 16, "rounds": 1, "n_for_guidellm": 16, "seconds": 3.0, "n_clients": 20}
WHO = "front", "engine"
# What all clients of the first part ask for: a fixed length, greedily.
WANTED = {"max_tokens": N_OUTPUT, "temperature": 0, "ignore_eos": True}
# A choice that is closer than this may fall another way beside neighbours: rounding.
CLOSE = 1e-4


@dataclass
class Sent:
    """What a client saw of one request, on this machine's monotonic clock."""

    start_s: float
    token_times_s: list[float] = field(default_factory=list)
    text: str = ""
    n_tokens: int = 0


def request(fields: dict[str, Any]) -> bytes:
    """Return a request as it goes over the wire."""
    body = json.dumps({"model": NAME} | fields).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """The leanest client there is: one connection, kept for all its requests."""

    def __init__(self, port: int):
        self._port = port

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def send(self, fields: dict[str, Any]) -> None:
        """Send a request for a stream."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        self._writer.write(request(options | fields))

    def vanish(self) -> None:
        """Go without a word."""
        self._writer.transport.abort()

    async def ask(self, fields: dict[str, Any]) -> Sent:
        """Ask, and note when each piece of the answer came.

        Raises: RuntimeError for any answer but a complete one.
        """
        sent = Sent(time.monotonic())
        self.send(fields)
        status = await self._reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r}")
        async for line in self._reader:
            if line.startswith(b"data: {"):
                self._note(sent, json.loads(line[6:]))
            elif line == b"0\r\n":  # the last chunk of the body
                await self._reader.readline()
                return sent
        raise RuntimeError("the stream ended too early")

    def _note(self, sent: Sent, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise RuntimeError(chunk)
        if not chunk["choices"]:
            sent.n_tokens = chunk["usage"]["completion_tokens"]
            return
        (choice,) = chunk["choices"]
        sent.text += choice["text"]
        if choice["finish_reason"] is None:
            sent.token_times_s.append(time.monotonic())


def prompts(n: int) -> list[list[int]]:
    """Return texts of real code, all different, so that the prefix cache helps nobody."""
    ids = tokenizer().encode(data_path("heldout.txt").read_text("utf-8"))
    return [ids[i * N_PROMPT : (i + 1) * N_PROMPT] for i in range(n)]


async def through_http(port: int, texts: list[list[int]]) -> tuple[float, list[Sent]]:
    """Keep CONCURRENCY requests under way until all are done; return the seconds and answers."""
    todo, answers = list(enumerate(texts)), {}

    async def client() -> None:
        async with Client(port) as own:
            while todo:
                i, text = todo.pop(0)
                answers[i] = await own.ask({"prompt": text} | WANTED)

    start = time.monotonic()
    await asyncio.gather(*(client() for _ in range(CONCURRENCY)))
    return time.monotonic() - start, [answers[i] for i in range(len(texts))]


async def unstreamed(port: int, texts: list[list[int]]) -> float:
    """The same, but each answer comes at once at its end; return the seconds."""
    todo = list(texts)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while todo:
            writer.write(request({"prompt": todo.pop(0), "stream": False} | WANTED))
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].split()[0]
            await reader.readexactly(int(length))
        writer.close()

    start = time.monotonic()
    await asyncio.gather(*(client() for _ in range(CONCURRENCY)))
    return time.monotonic() - start


def engine_alone(engine: Engine, texts: list[list[int]]) -> tuple[float, list[str]]:
    """The same with the engine in this process, in a thread.

    That matters: outside of the main thread, glibc keeps the memory that arrays have left. So if
    one of the two has it easier, it is not the server.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_engine_alone, engine, texts).result()


def _engine_alone(engine: Engine, texts: list[list[int]]) -> tuple[float, list[str]]:
    params = SamplingParams(temperature=0.0, max_tokens=N_OUTPUT)
    todo, answers, start = list(texts), {}, time.monotonic()
    ids = []
    while todo or engine.unfinished:
        while todo and engine.stats.running + engine.stats.waiting < CONCURRENCY:
            ids.append(engine.submit(todo.pop(0), params, ignore_eos=True))
        answers |= engine.step()
    return time.monotonic() - start, [answers[i].text for i in ids]


def scrape(port: int) -> dict[str, float]:
    """Return the server's metrics by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
    return {s.name: s.value for family in families for s in family.samples}


def mean_since(before: dict[str, float], after: dict[str, float], name: str) -> float:
    """Return the mean that a histogram of the server saw between two looks."""
    total, n = (after[f"{name}_{x}"] - before.get(f"{name}_{x}", 0) for x in ("sum", "count"))
    return total / n


def compare(pid: int, port: int, engine: Engine, n_requests: int, rounds: int) -> dict[str, Any]:
    """Time HTTP and the engine alone, in turn; compare the clients' clock with the server's."""
    texts = prompts(n_requests)
    asyncio.run(through_http(port, texts[:CONCURRENCY]))
    engine_alone(engine, texts[:CONCURRENCY])
    rows, unlike = [], 0
    for _ in range(rounds):
        alone_s, alone = engine_alone(engine, texts)
        before, cpu_before = scrape(port), cpu_s(pid)
        http_s, sent = asyncio.run(through_http(port, texts))
        after, cpu_after = scrape(port), cpu_s(pid)
        whole_s = asyncio.run(unstreamed(port, texts))
        unlike += sum(a.text != b for a, b in zip(sent, alone, strict=True))
        traces = [RequestTrace(s.start_s, tuple(s.token_times_s), N_PROMPT) for s in sent]
        seen = summarize(traces)
        n_tokens = sum(s.n_tokens for s in sent)
        rows.append(
            {
                "alone_tokens_per_s": n_requests * N_OUTPUT / alone_s,
                "http_tokens_per_s": n_tokens / http_s,
                "whole_tokens_per_s": n_requests * N_OUTPUT / whole_s,
                "client_ttft_s": statistics.fmean(t.ttft for t in traces),
                "server_ttft_s": mean_since(before, after, "vllm:time_to_first_token_seconds"),
                # Characters that are cut between tokens come together: a mean over all tokens.
                "client_tpot_s": statistics.fmean(
                    (t.e2e - t.ttft) / (N_OUTPUT - 1) for t in traces
                ),
                "server_tpot_s": mean_since(before, after, "vllm:inter_token_latency_seconds"),
                "server_tokens_per_s": (
                    after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
                )
                / http_s,
                "client_ttft_p95_s": seen.ttft[95],
                "front_cpu_s_per_token": (cpu_after[0] - cpu_before[0]) / n_tokens,
                "engine_cpu_s_per_token": (cpu_after[1] - cpu_before[1]) / n_tokens,
            }
        )
    return {"rounds": rows, "answers": rounds * n_requests, "unlike": unlike}


def measured_cost() -> MeasuredCost:
    """Return what the steps of an engine in a thread cost, at the sizes of this load."""
    with ThreadPoolExecutor(1) as thread:
        sizes = CONCURRENCY, TOKEN_BUDGET, N_PROMPT, N_OUTPUT
        return thread.submit(measure_cost, load_model(), *sizes).result()


def predict(cost: MeasuredCost, n_requests: int) -> dict[str, float]:
    """Return what the simulator says of CONCURRENCY clients, each with one request at a time.

    When a request comes depends on when an answer ends: so the trace is simulated again and again,
    until requests come right behind the answers. By then the engine's next step has begun.
    """
    arrivals, before = [0.0] * n_requests, None
    while arrivals != before:
        requests = [Request(arrival_s, N_PROMPT, N_OUTPUT) for arrival_s in arrivals]
        traces = simulate(requests, "chunked", cost, max_batch=MAX_BATCH, token_budget=TOKEN_BUDGET)
        ends = sorted(trace.token_times_s[-1] for trace in traces)
        later = [end_s + 1e-6 for end_s in ends[: n_requests - CONCURRENCY]]
        arrivals, before = [0.0] * CONCURRENCY + later, arrivals
    return {
        "ttft_s": statistics.fmean(trace.ttft for trace in traces),
        "tpot_s": statistics.fmean(trace.tpot or 0.0 for trace in traces),
        "tokens_per_s": n_requests * N_OUTPUT / ends[-1],
    }


@dataclass
class Tally:
    """What became of the requests of the crowd."""

    right: int = 0
    close: int = 0
    wrong: int = 0
    left: int = 0
    refused: int = 0
    lost: int = 0


def crowd(port: int, pid: int, seconds: float, n_clients: int) -> dict[str, Any]:
    """Let many clients come and go for a while, a fifth of them without saying goodbye."""
    model, words = load_model(), tokenizer()
    draw = random.Random(SEED)
    cases = []
    for text in prompts(40):
        text = text[: draw.randint(1, N_PROMPT)]
        params = SamplingParams(
            temperature=draw.choice([0.0, 1.0]), seed=draw.randint(0, 99), max_tokens=12
        )
        cases.append((text, params, generate(model, text, params, tokenizer=words)))
    tally, end = Tally(), time.monotonic() + seconds
    resident: list[int] = []

    async def client(i: int) -> None:
        own = random.Random(SEED * 1000 + i)
        while time.monotonic() < end:
            text, params, alone = own.choice(cases)
            fields = {
                "prompt": text,
                "temperature": params.temperature,
                "seed": params.seed,
                "max_tokens": params.max_tokens,
            }
            if own.random() < 0.2:
                async with Client(port) as bad:
                    bad.send(fields)
                    await asyncio.sleep(own.random() / 2)
                    bad.vanish()
                tally.left += 1
                continue
            try:
                async with Client(port) as good:
                    sent = await good.ask(fields)
            except RuntimeError as error:
                refused = "429" in str(error)
                tally.refused += refused
                tally.lost += not refused
                await asyncio.sleep(1.0)
            except OSError:
                tally.lost += 1
            else:
                same = sent.text == alone.text
                close = not same and _is_close(model, text, params, alone)
                tally.right += same
                tally.close += close
                tally.wrong += not same and not close

    async def watch() -> None:
        while time.monotonic() < end:
            resident.append(resident_bytes(pid))
            await asyncio.sleep(seconds / 12)

    async def main() -> None:
        await asyncio.gather(watch(), *(client(i) for i in range(n_clients)))

    asyncio.run(main())
    deadline = time.monotonic() + 20
    while held := _held(port):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return {
        "seconds": seconds,
        "clients": n_clients,
        **vars(tally),
        "blocks_held_after": held,
        "resident_bytes": resident,
    }


def _is_close(model: Any, text: list[int], params: SamplingParams, alone: Any) -> bool:
    """Say whether some choice of an answer was so close that rounding may decide it."""
    return bool(decision_margins(model, text, alone.ids, params).min() < CLOSE)


def _held(port: int) -> float:
    found = scrape(port)
    return found["vllm:kv_cache_usage_perc"] + found["vllm:num_requests_running"]


def processes(pid: int) -> tuple[psutil.Process, psutil.Process]:
    """Return the server's two processes, the front and the engine."""
    front = psutil.Process(pid)
    # There is another child, multiprocessing's tracker, which does nothing.
    return front, max(front.children(), key=lambda child: child.memory_info().rss)


def resident_bytes(pid: int) -> int:
    """Return the memory that a server holds."""
    return sum(process.memory_info().rss for process in processes(pid))


def cpu_s(pid: int) -> list[float]:
    """Return how long the front and the engine of a server have computed."""
    return [sum(process.cpu_times()[:2]) for process in processes(pid)]


def public_generator(port: int, program: str, n_requests: int) -> dict[str, Any]:
    """Let guidellm measure the server, and compare its figures with the server's."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            *(program, "run", "--disable-console"),
            *(
                "--backend",
                f"kind=openai_http,target=http://127.0.0.1:{port},model={NAME},"
                "request_format=/v1/completions",
            ),
            *("--profile", f"kind=concurrent,streams={CONCURRENCY}"),
            *("--constraint", f"kind=max_requests,count={n_requests}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={N_PROMPT},output_tokens={N_OUTPUT}"),
            *("--tokenizer", f"kind=hf_auto,model={data_path('model')}"),
            *("--output", f"kind=json,path={out}"),
        ]
        own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        before = scrape(port)
        subprocess.run(command, check=True, env=own | {"HF_HUB_OFFLINE": "1"}, cwd=folder)
        after = scrape(port)
        (run,) = json.loads(out.read_text())["benchmarks"]
    found = {
        name: of["successful"]["mean"]
        for name, of in run["metrics"].items()
        if name in ("time_to_first_token_ms", "inter_token_latency_ms")
    }
    n_new = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    return {
        "requests": run["metrics"]["request_totals"],
        "generator_ttft_s": found["time_to_first_token_ms"] / 1e3,
        "server_ttft_s": mean_since(before, after, "vllm:time_to_first_token_seconds"),
        "generator_itl_s": found["inter_token_latency_ms"] / 1e3,
        "server_itl_s": mean_since(before, after, "vllm:inter_token_latency_seconds"),
        "generator_tokens_per_s": n_requests * N_OUTPUT / run["duration"],
        "server_tokens": n_new,
        "duration_s": run["duration"],
    }


@contextmanager
def running_server(*options: str) -> Iterator[tuple[int, int]]:
    """Run the server on a free port, and yield its process and port once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "firsttoken.server", "--port", str(port), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            try:
                scrape(port)
            except OSError:
                time.sleep(0.1)
            else:
                yield server.pid, port
                return
        raise RuntimeError(f"the server ended with {server.returncode}")
    finally:
        server.terminate()
        server.wait(60)


def measurements(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return what each load generator saw, under the names of the prediction."""
    rounds, names = report["overhead"]["rounds"], ("ttft_s", "tpot_s", "tokens_per_s")
    own = ("client_ttft_s", "client_tpot_s", "http_tokens_per_s")
    found = {
        "these clients": {
            name: statistics.median(row[key] for row in rounds)
            for name, key in zip(names, own, strict=True)
        }
    }
    if report["guidellm"]:
        theirs = ("generator_ttft_s", "generator_itl_s", "generator_tokens_per_s")
        found["guidellm"] = {
            name: report["guidellm"][key] for name, key in zip(names, theirs, strict=True)
        }
    return found


def show(report: dict[str, Any]) -> None:
    """Print what was found."""
    for row in report["overhead"]["rounds"]:
        streamed, whole = (
            100 * (1 - row[f"{way}_tokens_per_s"] / row["alone_tokens_per_s"])
            for way in ("http", "whole")
        )
        print(
            f"alone {row['alone_tokens_per_s']:.0f} tokens/s; HTTP {row['http_tokens_per_s']:.0f}, "
            f"{streamed:.1f} % less; answers that come whole {whole:.1f} % less"
        )
        spent = (f"{who} {1e6 * row[f'{who}_cpu_s_per_token']:.0f} µs" for who in WHO)
        print(f"    processor time per streamed token: {', '.join(spent)}")
        for name in ("ttft", "tpot"):
            times = (f"{who} {1e3 * row[f'{who}_{name}_s']:.2f} ms" for who in ("client", "server"))
            print(f"    {name}: {', '.join(times)}")
    for who, seen in measurements(report).items():
        ratios = {name: report["prediction"][name] / value for name, value in seen.items()}
        errors = (f"{name} {100 * (ratio - 1):+.0f} %" for name, ratio in ratios.items())
        print(f"the simulator against {who}:", ", ".join(errors))
    print({name: v for name, v in report["crowd"].items() if name != "resident_bytes"})
    print("MB resident:", [round(n / 1e6) for n in report["crowd"]["resident_bytes"]])
    if report["guidellm"]:
        print("guidellm:", report["guidellm"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="default: data/measured/server.json")
    parser.add_argument("--quick", action="store_true", help="few and short")
    parser.add_argument(
        "--guidellm",
        default=shutil.which("guidellm"),
        help="the program (default: where it is installed)",
    )
    options = parser.parse_args()
    sizes = {
        "n_requests": N_REQUESTS,
        "rounds": ROUNDS,
        "n_for_guidellm": N_FOR_GUIDELLM,
        "seconds": MINUTE_S,
        "n_clients": N_CLIENTS,
    }
    if options.quick:
        sizes = QUICK
    load = load_average()
    words = tokenizer()
    report: dict[str, Any] = {
        "seed": SEED,
        "concurrency": CONCURRENCY,
        "n_prompt": N_PROMPT,
        "n_output": N_OUTPUT,
    }
    # Every round brings the same texts: no cache may remember them.
    engine = Engine(load_model(), 512, 16, MAX_BATCH, TOKEN_BUDGET, tokenizer=words)
    report["prediction"] = predict(measured_cost(), sizes["n_requests"])
    with running_server("--no-prefix-caching") as (pid, port):
        report["overhead"] = compare(pid, port, engine, sizes["n_requests"], sizes["rounds"])
        report["guidellm"] = (
            public_generator(port, options.guidellm, sizes["n_for_guidellm"])
            if options.guidellm
            else None
        )
    with running_server() as (pid, port):
        report["crowd"] = crowd(port, pid, sizes["seconds"], sizes["n_clients"])
    report |= {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "load_average_before": load,
        "versions": {name: version(name) for name in ("numpy", "starlette", "uvicorn")},
    }
    show(report)
    if options.out is None and not options.quick:
        options.out = data_path("measured/server.json")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
