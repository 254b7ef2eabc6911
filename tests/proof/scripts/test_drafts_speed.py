"""benchmarks/drafts_speed.py: what is raced, what is timed, and what is made of the times."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from firsttoken.generate import generate
from firsttoken.models.llama import load_model
from firsttoken.sampling import SamplingParams

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "drafts_speed", ROOT / "benchmarks" / "drafts_speed.py"
)
speed = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(speed)


@pytest.fixture(scope="module")
def target():
    return load_model("target")


@pytest.mark.parametrize("way", speed.WAYS)
def test_the_ways_to_multiply_give_one_result(target, way):
    tokens = speed.held_out()[:5]
    expected = target([tokens])
    with speed.products(way):
        got = target([tokens])
    np.testing.assert_allclose(got, expected, atol=1e-3)
    assert np.array_equal(target([tokens]), expected)  # and the model is as it was


def test_what_is_timed_writes_the_same_text_and_counts_every_pass(target):
    prompt, params = speed.held_out()[:16], SamplingParams(0, max_tokens=20)
    timed = speed.TimedTarget(target)
    plain = generate(target, prompt, params, ignore_eos=True).ids
    draft = speed.MedusaDraft(target, np.zeros((2, 192, 192)))
    for given in (draft, load_model("draft"), lambda ids, n: ids[-n:] if n else []):
        wrapped = speed.TimedDraft(given) if hasattr(given, "propose") else speed.Timed(given)
        _, text = speed.write(timed, wrapped, prompt, params, 2)
        assert text.ids == plain and sum(wrapped.seconds.values()) > 0
    spent = speed.costs(target, lambda _: draft, 2, [prompt], 0.0, 20)
    assert set(spent) == {"draft", "check", "rest"} and min(spent.values()) > 0
