"""The shipped draft as an engine's model, and text that it has not seen."""

import pytest

from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path


@pytest.fixture(scope="module")
def draft():
    return load_model("draft")


@pytest.fixture(scope="module")
def heldout():
    return tokenizer().encode(data_path("heldout.txt").read_text(encoding="utf-8")[:30_000])
