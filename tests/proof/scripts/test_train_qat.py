"""scripts/train_qat.py: what training rounds is what is stored, and rounding lets gradients by."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firsttoken.models.llama_torch import Llama
from firsttoken.quantization import gptq, quantize

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_qat as script

STREAM = np.random.default_rng(1).integers(1024, size=5000).astype(np.uint16)
SCALE = script.quick_scale()
RECIPE = replace(SCALE.recipe, steps=4, short_steps=2)
TARGET = Llama.from_pretrained(ROOT / "data" / "model" / "target")
TOY = script.toy(TARGET)
WINDOWS = script.split_windows(replace(SCALE, choosing=2))[0]


def learner(way: str, bits: int = 2, rate: float = 1e-3, recipe=RECIPE) -> script.Learner:
    return script.Learner(way, bits, TOY, recipe, rate)


@given(
    arrays(np.float32, (3, 96), elements=st.floats(-8, 8, width=32)),
    st.sampled_from((2, 3, 4, 8)),
)
def test_training_rounds_to_the_very_numbers_of_quantize(w, bits):
    ours = script.StraightThrough.apply(torch.from_numpy(w), bits).numpy()
    expected = quantize(w, bits, axis=0, group_size=script.GROUP).dequantize()
    assert ours.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("way", script.WAYS)
def test_a_learner_s_loss_is_that_of_the_rounded_model(way, bits):
    s = learner(way, bits)
    expected = script.nats(script.rounded(TOY, bits), WINDOWS)
    assert script.nats(s.model, WINDOWS) == expected
    assert script.nats(script.unrounded(s.model), WINDOWS) == script.nats(TOY, WINDOWS) != expected
    tokens = torch.from_numpy(WINDOWS[:, :33])
    s.learn(1, tokens[:, :-1], tokens[:, 1:], TOY(tokens[:, :-1]))
    assert script.nats(s.model, WINDOWS) == script.nats(script.rounded(s.model, bits), WINDOWS)


def test_gptq_is_the_library_s_and_sees_only_its_rows():
    rows = script.text_rows(STREAM, (2, 64))
    ours = script.gptq_rounded(TOY, 3, rows)
    seen = []
    first = TOY.model.layers[0].self_attn.q_proj
    hook = first.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    TOY(rows)
    hook.remove()
    x, w = seen[0].flatten(0, 1).numpy(), first.weight.numpy().T
    expected = gptq(w, x, 3, script.GROUP).dequantize().T
    assert np.array_equal(ours.model.layers[0].self_attn.q_proj.weight.numpy(), expected)


@given(
    arrays(np.float32, (2, 64), elements=st.floats(-4, 4, width=32)),
    arrays(np.float32, (2, 64), elements=st.floats(-4, 4, width=32)),
    st.sampled_from((2, 3)),
)
def test_a_gradient_passes_straight_through(w, outer, bits):
    """By the weight it is what it is by the rounded weight, wherever that stands."""
    weight, outer = torch.from_numpy(w).requires_grad_(True), torch.from_numpy(outer)
    out = script.StraightThrough.apply(weight, bits)
    (out**2 * outer).sum().backward()
    torch.testing.assert_close(weight.grad, 2 * out.detach() * outer, rtol=0, atol=0)


def check_report(stored: dict, scale: script.Scale) -> None:
    """All figures of a report that follow from others do."""
    assert stored["provenance"]["seeds"] == list(scale.seeds)
    assert stored["recipe"] == json.loads(json.dumps(script.said_of(scale.recipe)))
    start, losses = stored["before"], {}
    for run in stored["runs"]:
        losses.setdefault((run["way"], run["bits"]), []).append(run["nats_per_token"])
    ways = ("GPTQ", *script.WAYS)
    assert set(losses) == {(way, bits) for way in ways for bits in scale.bits}
    assert {len(values) for values in losses.values()} == {len(scale.seeds)}
    # Before the first step all models of so many bits are one.
    firsts = {(r["bits"], r["curve"][0][1]) for r in stored["runs"] if "curve" in r}
    assert len(firsts) == len(scale.bits)
    for bits in scale.bits:
        losses["nearest", bits] = [start["nearest"][str(bits)]["nats_per_token"]]
        losses["unquantised", bits] = [start["target"]["nats_per_token"]]
    for d in stored["differences"]:
        a, b = (losses[d[key], d["bits"]] for key in ("way", "minus"))
        assert d["mean"] == pytest.approx(np.mean(a) - np.mean(b), abs=2e-4)
    for row in stored["rates"]["found"]:
        tried = dict(row["tried"])
        assert min(tried, key=tried.get) == row["chosen"]
    assert stored["rates"]["seed"] not in scale.seeds


def test_the_report_of_a_whole_run(tmp_path, monkeypatch):
    """A toy, on a text of its own; a second call finds all of it."""
    monkeypatch.setattr(script, "training_stream", lambda *_: STREAM)
    call = ["--quick", f"--work={tmp_path}", f"--out={tmp_path}/out"]
    script.main(call)
    stored = json.loads((tmp_path / "qat.json").read_text())
    check_report(stored, SCALE)
    assert stored["provenance"]["measured_code"] == script.MEASURED_CODE
    assert str(tmp_path) not in json.dumps(stored)  # nothing about whose machine it was
    assert not (tmp_path / "out").exists()  # a quick run is no result
    table = script.table(stored)
    assert all(f"{bits} bits  {way}" in table for bits in (2, 3) for way in script.WAYS)
    for name in ("train", "gptq_rounded", "rounded"):
        monkeypatch.setattr(script, name, None)
    script.main(call)
    assert json.loads((tmp_path / "qat.json").read_text())["runs"] == stored["runs"]


def test_the_stored_report_is_whole():
    check_report(json.loads((ROOT / "data" / "measured" / "qat.json").read_text()), script.Scale())
