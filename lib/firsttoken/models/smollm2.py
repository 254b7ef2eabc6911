"""The book's real model in a chapter: measured here, or as a stored run found it."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from firsttoken.checks import check_choice
from firsttoken.models.llama import load_model
from firsttoken.models.protocols import Model
from firsttoken.models.tokenizer import Tokenizer, tokenizer
from firsttoken.paths import data_path

# Where scripts/measure_smollm2.py wants what chapters measure.
KEEP_IN = "FIRSTTOKEN_KEEP_SMOLLM2"


@cache
def load_smollm2() -> tuple[Model, Tokenizer]:
    """Return SmolLM2 and its tokenizer, loaded once and kept.

    Raises: ValueError that says how to get it, where it is not installed.
    """
    return load_model("smollm2"), tokenizer("smollm2")


def on_smollm2(name: str, measure: Callable[[Model, Tokenizer], Any]) -> Any:
    """Return what `measure(model, tokenizer)` finds on SmolLM2, or what a stored run found.

    For cells that want the real model where it may be missing: then one line says how to get it,
    and the stored run of that name takes its place. Whichever it is, the result has been through
    JSON: keys are strings, tuples are lists.

    Raises: ValueError for a name of no stored run, where the model is not installed.
    """
    try:
        model, words = load_smollm2()
    except ValueError as missing:
        print(f"{missing}\nUntil then, what it found on {_machine()}:")
        return stored_smollm2(name)
    found = json.dumps(measure(model, words), indent=1)
    if folder := os.environ.get(KEEP_IN):
        Path(folder, f"{name}.json").write_text(found, encoding="utf-8")
    return json.loads(found)


def stored_smollm2(name: str) -> Any:
    """Return what a stored run of `on_smollm2(name, ...)` found.

    Raises: ValueError for a name of no stored run.
    """
    found = _stored()["found"]
    check_choice("name", name, found)
    return found[name]


@cache
def _stored() -> dict[str, Any]:
    return json.loads(data_path("measured/smollm2.json").read_text("utf-8"))


def _machine() -> str:
    taken = _stored()["provenance"]
    return f"{taken['machine']}, {taken['date'][:10]}"
