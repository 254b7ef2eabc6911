"""SmolLM2 in the page: the library's numbers, its texts, and what it takes."""

import numpy as np
import pytest

from browser.fixtures import _watched
from browser.playground import served_stage
from firsttoken.generate import generate
from firsttoken.live import assets
from firsttoken.models.chat import chat_template
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams

REAL = assets.real_file()
pytestmark = pytest.mark.skipif(REAL is None, reason="SmolLM2 is not installed")

QUESTIONS = [
    "What is the capital of France?",
    "Explain why the sky is blue.",
    "Write a Python function that adds two numbers.",
    "Tell me a short story about a cat.",
    "List three fruits.",
]
# What the issue of rounding leaves: sums of float32 numbers in another order.
TOLERANCE = 2e-3
MOST_BYTES = 350_000_000


@pytest.fixture(scope="module")
def _served_real(browser, tmp_path_factory):
    with served_stage(browser, tmp_path_factory.mktemp("real"), REAL) as stage:
        yield stage


@pytest.fixture
def real_stage(_served_real):
    yield from _watched(_served_real)


@pytest.fixture(scope="module")
def real():
    return load_model("smollm2"), tokenizer("smollm2")


def test_answers_are_the_librarys(real_stage, real):
    """Greedy, 64 tokens each; then the same seed twice, and the memory that all took."""
    model, words = real
    page = real_stage.real_engine()
    template = chat_template("smollm2")
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        ids = page.evaluate("async messages => (await engine.chat({messages})).ids", messages)
        assert ids == template.encode(messages)
        given = {"ids": ids, "params": {"temperature": 0}, "max_tokens": 64}
        written = page.evaluate("asked => engine.write(asked).done", given)
        expected = generate(model, ids, SamplingParams(temperature=0, max_tokens=64)).ids
        assert written["ids"] == list(expected), question
        assert written["text"] == words.decode(expected)
    given["params"] = {"temperature": 1, "seed": 7}
    once, twice = (page.evaluate("asked => engine.write(asked).done", given) for _ in range(2))
    assert once["text"] == twice["text"]
    assert page.evaluate("engine.stats()")["memory_bytes"] < MOST_BYTES


def test_logits_are_within_rounding(real_stage, real):
    model, words = real
    page = real_stage.real_engine()
    text = data_path("heldout_english.txt").read_text("utf-8")[:700]
    ids = words.encode(text)
    last = page.evaluate(
        "async ids => Array.from((await engine.logits({model: 'target', ids})).slice(-49152))", ids
    )
    assert np.abs(np.array(last) - model([ids])[0, -1]).max() < TOLERANCE


def test_guesses_from_the_text_change_nothing(real_stage, real):
    model, _ = real
    page = real_stage.real_engine()
    quote = "Repeat this sentence twice: The cat sat on the mat because the mat was warm and dry."
    ids = chat_template("smollm2").encode([{"role": "user", "content": quote}])
    given = {"ids": ids, "params": {"temperature": 0}, "max_tokens": 48}
    guessed = page.evaluate(
        "asked => engine.speculate({...asked, draft: 'suffix_automaton', gamma: 4}).done", given
    )
    expected = generate(model, ids, SamplingParams(temperature=0, max_tokens=48)).ids
    assert guessed["ids"] == list(expected)
    assert sum(each["accepted"] for each in guessed["rounds"]) >= 5
