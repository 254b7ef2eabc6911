"""The shipped draft as an engine's model, and text that it has not seen."""

import pytest

from firsttoken.llama import load_model
from firsttoken.paths import data_path
from firsttoken.tokenizer import tokenizer


@pytest.fixture(scope="module")
def draft():
    return load_model("draft")


@pytest.fixture(scope="module")
def heldout():
    return tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8")[:30_000])
