"""benchmarks/drafts_speed.py: what is raced, what is timed, and what is made of the times."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from firsttoken.generate import generate
from firsttoken.llama import load_model
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


@pytest.mark.parametrize("period", [1, 3, 17, 40])
def test_a_text_that_goes_round_loops(period):
    rng = np.random.default_rng(period)
    lead, turn = rng.integers(1024, size=50).tolist(), rng.integers(1024, size=period).tolist()
    assert speed.loops(lead + turn * (2 + 30 // period) + lead[::-1])
    assert not speed.loops(lead + turn)
    assert not speed.loops(lead + turn + turn[: min(period, 20) - 1])


def test_gains_are_ratios_of_lower_quartiles_place_by_place():
    """A machine that is slow for a while, and places of unlike length, change nothing."""
    plain = np.array([[1.0, 4.0]] * 5)
    other = plain / 2
    assert speed.times(plain, other) == pytest.approx(2)
    plain[0], other[3] = plain[0] * 9, other[3] * 9
    assert speed.times(plain, other) == pytest.approx(2)
    assert speed.times(plain, np.array([[1.0, 1.0]] * 5)) == pytest.approx(2)  # 1 and 4


def test_places_of_the_race_do_not_loop_and_are_not_those_of_the_choice(target, monkeypatch):
    monkeypatch.setattr(speed, "N_TRIED", 100)  # enough of these shorter texts do not loop
    choosing, racing, tried = speed.places(target, 0.0, 48)
    assert len(choosing) == len(racing) == speed.N_PLACES
    assert not set(choosing) & set(racing) and tried >= 2 * speed.N_PLACES
    ids, params = speed.held_out(), SamplingParams(0, max_tokens=48)
    for start in racing:
        text = generate(target, ids[start : start + speed.N_PROMPT], params, ignore_eos=True)
        assert not speed.loops(text.ids)
    choosing, racing, tried = speed.places(target, 1.0, 48)
    assert tried == 0 and not set(choosing) & set(racing)


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


def test_the_stored_run_is_whole_and_says_so(capsys):
    report = json.loads((ROOT / "data" / "measured" / "drafts_speed.json").read_text("utf-8"))
    assert report["temperatures"]["0"]["same_text"] is True
    for found in report["temperatures"].values():
        assert found["fastest_plain"] == "plain" and len(found["places"]) == speed.N_PLACES
        for row in found["drafts"].values():
            low, high = row["quartiles"]
            assert low <= high and 1 <= row["tokens_per_pass"] <= row["setting"] + 1
    one, *_ = report["passes"]["panel by panel"]["pass_ms"]
    assert one > 0
    speed.table(report)
    assert "tokens/pass" in capsys.readouterr().out
