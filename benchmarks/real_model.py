"""SmolLM2 on this machine: this library's programs, transformers and llama.cpp, in one run.

    python benchmarks/real_model.py         # prints, writes data/measured/real_model.json
    python benchmarks/real_model.py --rounds 1 --out mine.json    # shorter

All of them write greedy tokens behind the same prompt, read a prompt of 512 tokens, and make
passes over a few tokens, in turns, on one thread and on two. What counts are ratios within a turn,
and beside them the time that the weights' bytes alone take: those of a step, over the rate at which
the same threads read an array that no cache holds, measured in the same turns.

llama.cpp takes part where `llama-cpp-python` is installed. It is compiled on this machine, for this
processor: pip install llama-cpp-python. On a processor with AMX 0.3.36 may end in an illegal
instruction (github.com/ggml-org/llama.cpp/pull/26954); then compile it without:

    flags="-mno-amx-int8 -mno-amx-tile"
    CMAKE_ARGS="-DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags'" pip install llama-cpp-python
"""

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from firsttoken.generate import generate
from firsttoken.models.chat import chat_template
from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path, smollm2_path
from firsttoken.provenance import code_digest, commit, instruction_sets, load_average, processor
from firsttoken.quantization import quantize
from firsttoken.quantization.quantization_torch import QuantizedLinear, with_quantized_weights
from firsttoken.sampling import SamplingParams

MEASURED_CODE = code_digest(
    [
        "attention",
        "models/chat",
        "models/checkpoint",
        "generate/drafting",
        "generate/loop",
        "models/gguf",
        "kv_cache",
        "models/llama",
        "models/llama_torch",
        "quantization",
        "models/rope",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "models/threads",
    ]
)
N_PROMPT, N_NEW, N_LONG, N_TEXT = 64, 24, 512, 64
PASSES = (1, 2, 4, 8, 16)
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three fruits.",
    "Explain in two sentences what a cache is.",
    "Write a Python function that adds two numbers.",
)


class Ours:
    """A model of this library, with a cache that holds the prompt."""

    def __init__(self, model, prompt: list[int]):
        self.model, self.prompt = model, prompt
        self.cache = model.new_cache(capacity=N_LONG + 1)
        self.read(N_PROMPT)
        parts = [m for m in getattr(model, "modules", list)() if isinstance(m, QuantizedLinear)]
        if parts:
            norms = sum(p.nbytes for name, p in model.named_parameters() if "norm" in name)
            self.bytes = sum(part.nbytes for part in parts) + norms
        else:
            item = next(model.parameters()).element_size() if hasattr(model, "parameters") else 4
            self.bytes = model.arch.n_params * item

    def read(self, n: int) -> None:
        """Read a prompt of n tokens."""
        self.cache.truncate(0)
        self.model([self.prompt[:n]], self.cache)

    def write(self, n: int) -> None:
        """Write n greedy tokens, one pass for each."""
        self.cache.truncate(N_PROMPT)
        token = self.prompt[0]
        for _ in range(n):
            token = int(self.model([[token]], self.cache)[0, -1].argmax())

    def check(self, n: int) -> None:
        """One pass over n tokens."""
        self.cache.truncate(N_PROMPT)
        self.model([self.prompt[:n]], self.cache)


class Transformers:
    """transformers, with the weights that this library reads from the file."""

    def __init__(self, dtype: torch.dtype, prompt: list[int]):
        c = read_checkpoint(smollm2_path())
        config = LlamaConfig(
            vocab_size=c.arch.vocab_size,
            hidden_size=c.arch.d_model,
            intermediate_size=c.arch.d_ff,
            num_hidden_layers=c.arch.n_layers,
            num_attention_heads=c.arch.n_heads,
            num_key_value_heads=c.arch.n_kv_heads,
            rms_norm_eps=c.norm_eps,
            rope_theta=c.rope_theta,
            tie_word_embeddings=True,
        )
        self.model = LlamaForCausalLM(config).eval()
        weights = {name: torch.tensor(np.asarray(w)) for name, w in c.weights.items()}
        self.model.load_state_dict(weights, strict=False)
        self.model.to(dtype)
        self.prompt = torch.tensor([prompt])
        self.bytes = c.arch.n_params * dtype.itemsize
        self.read(N_PROMPT)

    def read(self, n: int) -> None:
        self.cache = self.model(self.prompt[:, :n], use_cache=True).past_key_values

    def _back(self) -> None:
        if n_behind := self.cache.get_seq_length() - N_PROMPT:
            self.cache.crop(-n_behind)

    def write(self, n: int) -> None:
        token = self.prompt[:, :1]
        self._back()
        for _ in range(n):
            token = self.model(token, past_key_values=self.cache).logits[:, -1:].argmax(-1)

    def check(self, n: int) -> None:
        self._back()
        self.model(self.prompt[:, :n], past_key_values=self.cache)


class LlamaCpp:
    """llama.cpp on the file itself."""

    def __init__(self, n_threads: int, prompt: list[int]):
        from llama_cpp import Llama

        options = {"n_threads": n_threads, "n_threads_batch": n_threads, "verbose": False}
        options |= {"n_ctx": 2 * N_LONG, "n_batch": N_LONG}
        self.model = Llama(str(smollm2_path()), logits_all=True, **options)
        self.reader = Llama(str(smollm2_path()), **options)  # logits of the last token alone
        self.prompt = prompt
        self.bytes = smollm2_path().stat().st_size
        self.model.eval(prompt[:N_PROMPT])

    def read(self, n: int) -> None:
        self.reader.reset()
        self.reader.eval(self.prompt[:n])

    def _back(self) -> None:
        self.model.n_tokens = N_PROMPT  # the next pass forgets what lies behind

    def write(self, n: int) -> None:
        self._back()
        token = self.prompt[0]
        for _ in range(n):
            self.model.eval([token])
            token = int(self.model.scores[self.model.n_tokens - 1].argmax())

    def check(self, n: int) -> None:
        self._back()
        self.model.eval(self.prompt[:n])


def programs(n_threads: int, prompt: list[int]) -> dict:
    """Name to what writes, reads and checks."""
    exact = load_model("smollm2", "torch", n_threads=n_threads)
    int8 = with_quantized_weights(exact, lambda w: quantize(w, 8, axis=1))
    int4 = with_quantized_weights(exact, lambda w: quantize(w, 4, axis=1, group_size=32))
    found = {
        "numpy fp32": Ours(load_model("smollm2", n_threads=n_threads), prompt),
        "torch int8": Ours(int8.to(torch.bfloat16), prompt),
        "torch int4": Ours(int4.to(torch.bfloat16), prompt),
        "torch bf16": Ours(exact.to(torch.bfloat16), prompt),
        "transformers fp32": Transformers(torch.float32, prompt),
        "transformers bf16": Transformers(torch.bfloat16, prompt),
    }
    try:
        found["llama.cpp q4_1"] = LlamaCpp(n_threads, prompt)
    except ImportError:
        print("llama-cpp-python is not installed: without llama.cpp")
    return found


def compare(n_threads: int, prompt: list[int], rounds: int) -> dict:
    """Return for each program what its turns took."""
    torch.set_num_threads(n_threads)
    runs = programs(n_threads, prompt)
    array = np.ones(150_000_000, np.float32)  # more than the weights
    seconds: dict[tuple, list[float]] = defaultdict(list)

    def timed(key: tuple, what: Callable[[], object]) -> None:
        start = time.perf_counter()
        what()
        seconds[key].append(time.perf_counter() - start)

    with torch.inference_mode():
        for turn in tqdm(range(rounds + 1), desc=f"{n_threads} threads"):
            if turn == 1:  # the first one warms up
                seconds.clear()
            for name, run in runs.items():
                with threadpool_limits(n_threads, "blas"):
                    timed(("array",), lambda: array @ array)
                timed((name, "write"), lambda run=run: run.write(N_NEW))
                for n in PASSES:
                    timed((name, n), lambda run=run, n=n: run.check(n))
            for name, run in runs.items():
                timed((name, "long"), lambda run=run: run.read(N_LONG))
                run.read(N_PROMPT)
    bandwidth = array.nbytes / float(np.quantile(seconds["array",], 0.25))
    base = np.array(seconds["numpy fp32", "write"])
    report = {}
    for name, run in runs.items():
        took = np.array(seconds[name, "write"])
        step_s = float(np.median(took)) / N_NEW
        one = float(np.median(seconds[name, 1]))
        report[name] = {
            "tokens_per_s": round(1 / step_s, 2),
            "times_numpy": [
                round(float(np.quantile(base / took, q)), 2) for q in (0.5, 0.25, 0.75)
            ],
            "prompt_tokens_per_s": round(N_LONG / float(np.median(seconds[name, "long"])), 1),
            "weight_bytes": run.bytes,
            "share_of_bound": round(run.bytes / bandwidth / step_s, 3),
            "steps_of_a_pass": {
                n: round(float(np.median(seconds[name, n])) / one, 2) for n in PASSES
            },
        }
    return {"read_bytes_per_s": round(bandwidth), "programs": report}


def texts() -> dict:
    """Return the greedy answers to five questions, and where two programs part."""
    words, template = tokenizer("smollm2"), chat_template("smollm2")
    params = SamplingParams(temperature=0, max_tokens=N_TEXT)
    model = load_model("smollm2", n_threads=None)
    theirs = Transformers(torch.float32, [1] * N_PROMPT).model
    found = []
    for question in QUESTIONS:
        prompt = template.encode([{"role": "user", "content": question}])
        ids = generate(model, prompt, params, ignore_eos=True).ids
        with torch.inference_mode():
            expected = (
                theirs(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].argmax(-1)
            )
        found.append(
            {
                "question": question,
                "answer": words.decode(ids),
                "same_as_transformers": ids == expected.tolist(),
                "same_tokens_as_llama_cpp": _in_common(prompt, ids),
            }
        )
    return {"tokens": N_TEXT, "answers": found}


def _in_common(prompt: list[int], ids: list[int]) -> int | None:
    """Return how many greedy tokens llama.cpp writes alike; None where it is not installed.

    It rounds what a product reads to 8 bits, 32 numbers at a time, so near ties fall otherwise.
    """
    try:
        from llama_cpp import Llama
    except ImportError:
        return None
    model = Llama(str(smollm2_path()), n_ctx=1024, logits_all=True, verbose=False)
    model.eval(prompt)
    for i, token in enumerate(ids):
        if int(model.scores[model.n_tokens - 1].argmax()) != token:
            return i
        model.eval([token])
    return len(ids)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="how many turns each program has")
    parser.add_argument("--out", type=Path, default=data_path("measured/real_model.json"))
    options = parser.parse_args()
    busy, started_at = load_average(), commit()
    text = data_path("heldout_english.txt").read_text(encoding="utf-8")
    prompt = tokenizer("smollm2").encode(text)[:N_LONG]
    report = {
        "tokens": {"prompt": N_PROMPT, "new": N_NEW, "long": N_LONG, "rounds": options.rounds},
        "threads": {n: compare(n, prompt, options.rounds) for n in (1, 2)},
        "texts": texts(),
        "provenance": {
            "commit": started_at,
            "measured_code": MEASURED_CODE,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor()} ({instruction_sets()}), {os.cpu_count()} cores",
            "load_average_before": busy,
            "versions": {
                name: _version(name)
                for name in ("numpy", "torch", "transformers", "llama-cpp-python")
            },
        },
    }
    for n, found in report["threads"].items():
        print(f"\n{n} threads; an array is read at {found['read_bytes_per_s'] / 1e9:.1f} GB/s")
        for name, row in found["programs"].items():
            median, low, high = row["times_numpy"]
            print(
                f"{name:18s} {row['tokens_per_s']:6.1f} tokens/s  {median:5.2f} times NumPy"
                f" ({low:.2f} … {high:.2f})  {row['share_of_bound']:.2f} of the bound"
                f"  prompt {row['prompt_tokens_per_s']:6.0f} tokens/s  passes",
                *row["steps_of_a_pass"].values(),
            )
    for row in report["texts"]["answers"]:
        print(
            row["same_as_transformers"], row["same_tokens_as_llama_cpp"], repr(row["answer"][:60])
        )
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
