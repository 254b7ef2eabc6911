"""What the command line may say, and the engine that it asks for."""

import argparse
import os
from collections.abc import Sequence

from firsttoken.engine import Engine
from firsttoken.llama import load_model
from firsttoken.lora import Adapter, load_adapter
from firsttoken.tokenizer import tokenizer


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line."""
    made = argparse.ArgumentParser(
        "python -m firsttoken.server",
        description="Start the server: python -m firsttoken.server --port 8000.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--host", default="127.0.0.1", help="whom to listen to (default: this machine only)")
    add("--port", type=int, default=8000, help="0 takes a free one; the first line says which")
    add("--model", default="target", help="target, draft, or a directory with a Llama checkpoint")
    add("--tokenizer", default=None, help="the tokenizer.json of another checkpoint")
    add("--backend", choices=("numpy", "torch"), default="numpy")
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
    add("--no-prefix-caching", action="store_true")
    add("--max-body-bytes", type=int, default=2**20)
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


def make_engine(options: argparse.Namespace) -> Engine:
    """Return the engine that the command line asks for.

    Raises: ValueError for an option that names nothing, or is out of range.
    """
    return Engine(
        load_model(options.model, options.backend),
        options.n_blocks,
        options.block_size,
        options.max_batch,
        options.token_budget or None,
        prefix_caching=not options.no_prefix_caching,
        tokenizer=tokenizer(options.tokenizer),
        max_waiting=options.max_waiting,
        draft=None if options.draft is None else load_model(options.draft, options.backend),
        gamma=options.gamma,
        adapters=adapters(options.adapter, options.served_model_name),
        max_adapters=options.max_adapters,
    )
