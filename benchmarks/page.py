"""What the model in the page costs, beside the same passes of the NumPy library.

    python book/bundle.py                # once: makes what the page runs
    PYTHONPATH=tests python benchmarks/page.py    # prints a table, writes data/measured/page.json
    PYTHONPATH=tests python benchmarks/page.py --rounds 4 --out mine.json    # shorter

It opens its page as the browser tests do, whose modules PYTHONPATH names.

A browser without a window runs the live views' models: the shipped target and draft, and SmolLM2 if
it is installed. Each pass is timed in the page and in this program in turn, many times; what counts
is the lower quartile of each, and their ratio within this one run. Both make the logits of a pass's
last token alone. Then the page's engines write whole texts, plainly and by speculation, and the
views write theirs while the page notes how evenly its frames come.
"""

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

# One thread, as the page has.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from playwright.sync_api import Page, sync_playwright
from tqdm import tqdm

from browser.fixtures import FLAGS
from browser.playground import Stage, served_stage
from browser.visit import ROOT
from firsttoken import live
from firsttoken.live import assets
from firsttoken.models.chat import chat_template
from firsttoken.models.llama import Llama, load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.provenance import code_digest, commit, instruction_sets, load_average, processor

MEASURED_CODE = code_digest(
    [
        "attention",
        "models/chat",
        "kv_cache",
        "models/llama",
        "models/rope",
        "models/threads",
        "live/engine/blocks.wat",
        "live/engine/cache.js",
        "live/engine/client.js",
        "live/engine/draft_heads.js",
        "live/engine/drafts.js",
        "live/engine/generate.js",
        "live/engine/gguf.js",
        "live/engine/gguf_llama.js",
        "live/engine/kernel.wat",
        "live/engine/last_text.js",
        "live/engine/llama.js",
        "live/engine/matrix.js",
        "live/engine/memory.js",
        "live/engine/random.js",
        "live/engine/sampling.js",
        "live/engine/shipped.js",
        "live/engine/speculative.js",
        "live/engine/suffix.js",
        "live/engine/worker.js",
        "live/views/cache.js",
        "live/views/drafts.js",
        "live/views/next_token.js",
        "live/views/parts.js",
        "live/views/rounds.js",
        "live/views/speculation.js",
        "live/views/writing.js",
    ]
)

CONTEXTS, CHECKED, PROMPT = (1, 128, 256, 500), range(1, 10), 500
ROUNDS, BATCH_S = 40, 0.01
WRITTEN, GAMMAS = 200, (1, 2, 4)  # tokens of a text; guesses in a round
REAL_WRITTEN, QUESTION = 64, "Explain why the sky is blue, and repeat the main sentence twice."

# The model without the worker around it: from the sources, and a way to either kind of file.
MODULE = """export { createModel } from "./shipped.js";
export { unpack } from "./packed.js";
import { openGguf } from "./gguf_llama.js";
import { openKernel } from "./memory.js";
export function ggufModel(bytes) {
    const heap = openKernel();
    const at = heap.take(bytes.length);
    new Uint8Array(heap.kernel.memory.buffer).set(bytes, at);
    return openGguf(heap, at, bytes.length).model;
}
"""
LOAD = """async ([code, name]) => {
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const { createModel, ggufModel, unpack } = await import(address);
    const manifest = await (await fetch(new URL("manifest.json", window.assets))).json();
    const get = async (name) => (await fetch(new URL(name, window.assets))).arrayBuffer();
    if (name === "smollm2") {
        const parts = await Promise.all(manifest.real.parts.map(get));
        window.model = ggufModel(new Uint8Array(await new Blob(parts).arrayBuffer()));
        return;
    }
    const file = async (path) => unpack(await get(`${path}.gz`), path, manifest[path]);
    const config = new TextDecoder().decode(await file(`${name}/config.json`));
    window.model = createModel(JSON.parse(config), await file(`${name}/model.safetensors`));
}"""
# What is timed is {n_cached, n_new}, n_cached null without a cache. The page's clock may be as
# coarse as 0.1 ms, so that many passes are timed together.
READ = """async ({ ids, n_cached, n_new, passes }) => {
    const { model } = window;
    const cache = (window.cache ??= model.newCache(512));
    const held = n_cached ?? 0;
    if (n_cached !== null && window.held !== held) {
        cache.truncate(0);
        if (held) model.lastLogits(ids.slice(0, held), cache);
        window.held = held;
    }
    const unread = ids.slice(held, held + n_new);
    const start = performance.now();
    for (let i = 0; i < passes; i += 1) {
        cache.truncate(held);
        if (n_cached === null) model.lastLogits(unread);
        else model.lastLogits(unread, cache);
    }
    return (performance.now() - start) / passes / 1000;
}"""
# One text by the plain loop (gamma 0) or by speculation; the seconds of a token.
WRITE = """async ({ ids, gamma, seed, max_tokens, draft }) => {
    const asked = { ids, params: { temperature: 0.5, seed }, max_tokens, gamma, top: 0 };
    const { speculate, write } = window.engine;
    const job = gamma ? speculate({ ...asked, draft }) : write({ ...asked, use_cache: true });
    const written = await job.done;
    return written.seconds / written.ids.length;
}"""
# Press a view's button and note when frames come, until the view has written its text.
FRAMES = """async (name) => {
    const named = (text) =>
        [...document.querySelectorAll("button")].find((button) => button.textContent === text);
    const frames = [];
    named(name).click();
    while (!named("Stop")) await new Promise((resolve) => setTimeout(resolve));
    while (named("Stop")) frames.push(await new Promise(requestAnimationFrame));
    return frames.slice(1).map((now, i) => now - frames[i]);
}"""


def passes() -> dict[str, tuple[int | None, int]]:
    """Return what is timed: name to (tokens in the cache or None without one, tokens read)."""
    return {
        **{f"1 token after {n}": (n, 1) for n in CONTEXTS},
        **{f"{n} tokens after 256": (256, n) for n in CHECKED if n > 1},
        "1 token after 256, no cache": (None, 257),
        f"prompt of {PROMPT}": (None, PROMPT),
    }


class InPage:
    """The passes of the model in a page."""

    def __init__(self, page: Page, ids: list[int]):
        self.page, self.ids = page, ids

    def seconds(self, n_cached: int | None, n_new: int, n_passes: int) -> float:
        """Return the mean seconds of a pass."""
        asked = {"ids": self.ids, "n_cached": n_cached, "n_new": n_new, "passes": n_passes}
        return self.page.evaluate(READ, asked)


class InPython:
    """The same passes of the library."""

    def __init__(self, model: Llama, ids: list[int]):
        self.model, self.ids = model, ids
        self.caches: dict[int | None, object] = {None: None}

    def seconds(self, n_cached: int | None, n_new: int, n_passes: int) -> float:
        """Return the mean seconds of a pass."""
        if n_cached not in self.caches:
            self.caches[n_cached] = self.model.new_cache()
            self.model.features([self.ids[:n_cached]], self.caches[n_cached])
        cache, held = self.caches[n_cached], n_cached or 0
        unread = [self.ids[held : held + n_new]]
        start = time.perf_counter()
        for _ in range(n_passes):
            if cache is not None:
                cache.truncate(held)
            self.model.logits(self.model.features(unread, cache)[0, -1])
        return (time.perf_counter() - start) / n_passes


def race(readers: dict[str, InPage | InPython], n_rounds: int) -> dict[str, dict[str, float]]:
    """Return the lower quartile of the milliseconds of each pass of each reader, read in turn."""
    often = {
        (name, reader): max(1, round(BATCH_S / readers[reader].seconds(*sizes, 2)))
        for name, sizes in passes().items()
        for reader in readers
    }
    seconds = defaultdict(list)
    for _ in tqdm(range(n_rounds), desc="rounds"):
        for name, sizes in passes().items():
            for reader in readers:
                spent = readers[reader].seconds(*sizes, often[name, reader])
                seconds[name, reader].append(spent)
    return {
        name: {r: 1e3 * float(np.quantile(seconds[name, r], 0.25)) for r in readers}
        for name in passes()
    }


def writing(page: Page, ids: list[int], draft: str, n: int, n_rounds: int) -> dict[str, float]:
    """Return the tokens per second of whole texts, the choice of each token included."""
    seconds = defaultdict(list)
    for seed in tqdm(range(n_rounds + 1), desc="texts"):
        for gamma in (0, *GAMMAS):
            asked = {"ids": ids, "gamma": gamma, "seed": seed, "max_tokens": n, "draft": draft}
            seconds[gamma].append(page.evaluate(WRITE, asked))
    rates = {g: 1 / float(np.quantile(s[1:], 0.25)) for g, s in seconds.items()}  # 1: warm by then
    return {f"gamma {g}" if g else "plain": round(rate, 1) for g, rate in rates.items()}


def frames(stage: Stage) -> dict[str, dict[str, float]]:
    """Return how evenly a page's frames come while a view writes."""
    views = {
        "next token": (live.next_token(max_tokens=WRITTEN), "Generate"),
        "cache": (live.cache(max_tokens=WRITTEN), "Write"),
        "cache, off": (live.cache(max_tokens=WRITTEN, use_cache=False), "Write"),
        "speculation": (live.speculation(max_tokens=WRITTEN), "Write"),
    }
    found = {}
    for name, (view, button) in views.items():
        page = stage.open(view)
        page.locator(".ft-live-start").click()
        page.get_by_role("button", name=button, exact=True).wait_for()
        page.evaluate(FRAMES, button)  # warms up
        gaps = page.evaluate(FRAMES, button)
        found[name] = {
            "frames": len(gaps),
            "median_ms": round(float(np.median(gaps)), 1),
            "95_percent_ms": round(float(np.quantile(gaps, 0.95)), 1),
        }
        stage.close()
    return found


def derived(ms: dict[str, dict[str, float]]) -> dict[str, object]:
    """Return what follows from the times in the page, and from those of Python for comparison."""
    step = ms["1 token after 256"]
    return {
        "tokens_per_s": {
            str(n): round(1e3 / ms[f"1 token after {n}"]["page"], 1) for n in CONTEXTS
        },
        "prompt_tokens_per_s": round(1e3 * PROMPT / ms[f"prompt of {PROMPT}"]["page"], 1),
        "pass_relative_to_one_token": {
            reader: {
                str(n): round(ms[f"{n} tokens after 256"][reader] / step[reader], 2)
                for n in CHECKED
                if n > 1
            }
            for reader in ("page", "numpy")
        },
    }


def model_module(folder: Path) -> str:
    """Return the engine's model as one module."""
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "book" / "bundle.py")
    bundle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bundle)
    bundle.bundled()  # makes the kernels that the module takes in
    engine = shutil.copytree(bundle.LIVE / "engine", folder / "engine")
    (engine / "entry.js").write_text(MODULE, "utf-8")
    bundle.esbuild(engine / "entry.js", folder / "model.js", "--loader:.wasm=binary")
    return (folder / "model.js").read_text("utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=data_path("measured/page.json"))
    options = parser.parse_args()
    load = load_average()
    real = assets.real_file()
    texts = {"target": "heldout.txt", "draft": "heldout.txt"}
    texts |= {"smollm2": "heldout_english.txt"} if real else {}
    chromium = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    if chromium is None:
        sys.exit("benchmarks/page.py: no chromium found; install it or set CHROMIUM to its path.")
    results: dict[str, Any] = {"tokens_per_s_of_texts": {}}
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=FLAGS) as browser,
        served_stage(browser, Path(folder), real) as stage,
    ):
        browser_version = browser.version
        module = model_module(Path(folder))
        for name, text in texts.items():
            words = tokenizer("smollm2" if name == "smollm2" else None)
            ids = words.encode(data_path(text).read_text("utf-8"))[:512]
            n_rounds = max(1, options.rounds // 8) if name == "smollm2" else options.rounds
            page = stage.empty_page()
            page.evaluate(LOAD, [module, name])
            readers = {"page": InPage(page, ids), "numpy": InPython(load_model(name), ids)}
            ms = race(readers, n_rounds)
            stage.close()
            results[name] = {
                "ms": {case: {r: round(t, 4) for r, t in row.items()} for case, row in ms.items()},
                "times_faster_than_numpy": {
                    case: round(row["numpy"] / row["page"], 2) for case, row in ms.items()
                },
                **derived(ms),
            }
            for case, row in ms.items():
                print(f"{name:7s} {case:28s} page {row['page']:8.3f}  numpy {row['numpy']:8.3f} ms")
        ids = tokenizer().encode("def read(path):\n")
        rates = results["tokens_per_s_of_texts"]
        page = stage.engine(draft=True)
        rates["target"] = writing(page, ids, "draft", WRITTEN, options.rounds // 4)
        stage.close()
        if real:
            ids = chat_template("smollm2").encode([{"role": "user", "content": QUESTION}])
            page, n_rounds = stage.real_engine(), max(1, options.rounds // 16)
            rates["smollm2"] = writing(page, ids, "suffix_automaton", REAL_WRITTEN, n_rounds)
            results["smollm2"]["memory_bytes"] = page.evaluate("engine.stats()")["memory_bytes"]
            stage.close()
        results["frames"] = frames(stage)
    print("tokens per second:", results["tokens_per_s_of_texts"])
    print("frames:", results["frames"])
    report = {
        "rounds": options.rounds,
        "results": results,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "measured_code": MEASURED_CODE,
        "machine": f"{processor()} ({instruction_sets()}), {os.cpu_count()} cores",
        "load_average_before": load,
        "versions": {"chromium": browser_version, "numpy": version("numpy")},
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
