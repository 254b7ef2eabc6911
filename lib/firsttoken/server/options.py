"""The server's command line, and the engine that it asks for."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firsttoken.engine import Engine
from firsttoken.models.llama import load_model
from firsttoken.models.lora import Adapter, load_adapter
from firsttoken.models.protocols import Model
from firsttoken.models.tokenizer import Tokenizer, tokenizer


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        "python -m firsttoken.server",
        description="Start the server: python -m firsttoken.server --port 8000.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--host", default="127.0.0.1", help="whom to listen to (default: this machine only)")
    add("--port", type=int, default=8000, help="0 takes a free one; the first line says which")
    add("--model", default="target", help="target, draft, smollm2, a directory, a GGUF file")
    add(
        "--tokenizer",
        default=None,
        help="a tokenizer.json, a directory, a GGUF file (default: the model's own)",
    )
    add("--backend", choices=("numpy", "torch"), default="numpy", help="what computes")
    add("--served-model-name", default="first-token", help="the name that clients ask for")
    add("--api-key", default=os.environ.get("FIRSTTOKEN_API_KEY"), help="clients must send it")
    add("--n-blocks", type=int, default=512, help="blocks of the cache")
    add("--block-size", type=int, default=16, help="tokens per block")
    add("--max-batch", type=int, default=16, help="requests that run at once")
    add("--token-budget", type=int, default=256, help="most tokens per step (0: no limit)")
    add("--max-waiting", type=int, default=256, help="most requests in the queue")
    add("--draft", help="guess with this model first: draft, or a directory")
    add(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a LoRA adapter that clients ask for by NAME; a shipped one needs no DIR; repeatable",
    )
    add("--max-adapters", type=int, help="most different adapters that run at once")
    add("--gamma", type=int, default=4, help="guesses per step, with --draft")
    add("--no-prefix-caching", action="store_true", help="forget blocks that no request holds")
    add("--max-body-bytes", type=int, default=2**20, help="the longest request that is read")
    add("--idle-s", type=int, default=30, help="how long a connection may stand without a request")
    add("--drain-s", type=int, default=30, help="how long a stop waits for what is under way")
    return made


def adapters(named: Sequence[str], base: str) -> dict[str, Adapter]:
    """Return the adapters that the command line names.

    Raises: ValueError for a name that is given twice, or is that of the base.
    """
    found: dict[str, Adapter] = {}
    for text in named:
        name, _, folder = text.partition("=")
        if not name or name == base or name in found:
            raise ValueError(f"--adapter {text}: expected a name of its own")
        found[name] = load_adapter(folder or name)
    return found


class PaddedEngine(Engine):
    """An engine that never chooses a token which its tokenizer does not know.

    Vocabularies are often padded: a model has more rows than there are tokens (Qwen2.5 has 152,064
    for 151,665), and nothing trained the rest. The logits of these rows become minus infinity.

    Raises: ValueError for a tokenizer with more tokens than the model has rows, and one with so
            few, less than seven in eight, that it belongs to another model.
    """

    def __init__(self, model: Model, *arguments: Any, tokenizer: Tokenizer, **options: Any):
        n_rows = model.arch.vocab_size
        if not 7 / 8 * n_rows <= tokenizer.vocab_size <= n_rows:
            raise ValueError(
                f"tokenizer has {tokenizer.vocab_size} tokens, the model {n_rows}: they do not "
                "belong together"
            )
        super().__init__(model, *arguments, tokenizer=tokenizer, **options)
        self._padding = np.arange(n_rows) >= tokenizer.vocab_size

    def _logits(self, *arguments: Any) -> list[np.ndarray]:
        found = super()._logits(*arguments)
        if not self._padding.any():
            return found
        return [np.where(self._padding, -np.inf, rows).astype(rows.dtype) for rows in found]


def loaded(name: str, backend: str, tokenizer: Tokenizer) -> Model:
    """Return a model; if its config names no token that ends a text, its tokenizer's does.

    Raises: ValueError as `load_model`.
    """
    model = load_model(name, backend)
    if not model.eos_ids and tokenizer.eos_id is not None:
        model.eos_ids = (tokenizer.eos_id,)
    return model


def tokenizer_of(options: argparse.Namespace) -> Tokenizer:
    """Return the tokenizer that the command line names, else the one beside the model's weights.

    Raises: ValueError as `tokenizer`.
    """
    path = Path(options.model)
    brings_one = options.model == "smollm2" or path.is_file() or (path / "tokenizer.json").exists()
    return tokenizer(options.tokenizer or (options.model if brings_one else None))


def make_engine(options: argparse.Namespace) -> Engine:
    """Return the engine that the command line asks for.

    Raises: ValueError for an option that names nothing, or is out of range, and a model and a
            tokenizer of different sizes.
    """
    tokenizer = tokenizer_of(options)
    draft = None if options.draft is None else loaded(options.draft, options.backend, tokenizer)
    return PaddedEngine(
        loaded(options.model, options.backend, tokenizer),
        options.n_blocks,
        options.block_size,
        options.max_batch,
        options.token_budget or None,
        prefix_caching=not options.no_prefix_caching,
        tokenizer=tokenizer,
        max_waiting=options.max_waiting,
        draft=draft,
        gamma=options.gamma,
        adapters=adapters(options.adapter, options.served_model_name),
        max_adapters=options.max_adapters,
    )
