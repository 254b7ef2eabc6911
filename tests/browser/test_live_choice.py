"""Live views: tokens, chances and choices in the page are the library's."""

import pytest

from firsttoken.generate import generate, speculative_generate
from firsttoken.llama import load_model
from firsttoken.sampling import SamplingParams
from firsttoken.tokenizer import tokenizer

pytestmark = pytest.mark.browser

JOB = "([job, asked]) => window.engine[job](asked).done"


def test_the_same_seed_gives_the_same_text(stage):
    page = stage.engine(draft=True)
    ids = tokenizer().encode("def main():\n    ")
    params = SamplingParams(seed=3, temperature=0.8, max_tokens=100)
    asked = {"ids": ids, "params": {"seed": 3, "temperature": 0.8}, "max_tokens": 100}
    assert page.evaluate(JOB, ["write", asked])["ids"] == generate(target(), ids, params).ids
    speculative = speculative_generate(target(), load_model("draft"), ids, params)
    got = page.evaluate(JOB, ["speculate", asked])
    assert got["ids"] == speculative.ids
    assert got["rounds"] == [round_._asdict() for round_ in speculative.rounds]


def target():
    return load_model("target")
