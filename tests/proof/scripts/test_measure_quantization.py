"""scripts/measure_quantization.py: what it rounds is what it says, and a stop loses nothing."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firsttoken.architectures import Architecture
from firsttoken.checkpoint import weight_shapes
from firsttoken.llama_torch import Llama
from firsttoken.quantization import (
    GGUF_LAYOUTS,
    awq_scale,
    gptq,
    llm_int8_matmul,
    microscale,
    pack_gguf,
    quantize,
)

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import measure_quantization as script

ARCH = Architecture("toy", 2, 64, 4, 2, 16, 128, 1024, tied_embeddings=True, max_context=512)
RNG = np.random.default_rng(0)
WINDOWS = RNG.integers(1024, size=(6, 65))
TOKENS = torch.from_numpy(WINDOWS[:2, :-1])


@pytest.fixture(scope="module")
def model() -> Llama:
    """An untrained model whose weights are so large that every part of it shows."""
    weights = {
        name: np.ones(shape) if len(shape) == 1 else RNG.normal(size=shape) / 6
        for name, shape in weight_shapes(ARCH).items()
    }
    return Llama(ARCH, weights)


@pytest.fixture(scope="module")
def inputs(model) -> dict:
    return {(i, kind): x for i, seen in script.read_by(model, TOKENS) for kind, x in seen.items()}


def logits(model, setting, inputs) -> torch.Tensor:
    return script.quantised(model, setting, TOKENS, inputs)(TOKENS)


# What matrices read


def test_what_matrices_read_is_what_a_pass_brings_them(model, inputs):
    seen = {}
    hooks = [
        layers[0].register_forward_pre_hook(lambda _, x, at=(i, kind): seen.update({at: x[0]}))
        for i, kind, layers in script.matrices(model)
    ]
    model(TOKENS)
    for hook in hooks:
        hook.remove()
    assert seen.keys() == inputs.keys() and len(seen) == 2 * 4
    for at, x in seen.items():
        np.testing.assert_allclose(inputs[at], x.flatten(0, 1), atol=1e-5)


def test_gptq_reads_what_the_rounded_layers_before_it_compute(model, inputs):
    how = script.Weights("gptq", 3, 32)
    rounded = script.quantised(model, script.Setting("weights", how), TOKENS, inputs)
    for i, block in enumerate(rounded.model.layers):
        # All matrices of a layer are rounded from what the layer read before.
        for kind, name in (("attention", "self_attn.q_proj"), ("down", "mlp.down_proj")):
            w = model.model.layers[i].get_submodule(name).weight.numpy().T
            expected = gptq(w, inputs[i, kind], 3, 32).dequantize()
            same = np.array_equal(block.get_submodule(name).weight.numpy().T, expected)
            assert same == (i == 0)


# Weights


@pytest.mark.parametrize("group", ["tensor", "channel", 32])
def test_scales_are_shared_where_the_group_says(group):
    """A large weight costs those resolution that share its scale, and no others."""
    w = RNG.normal(size=(64, 8)).astype(np.float32)
    loud = w.copy()
    loud[3, 2] = 1000
    changed = script.rounded(w, script.Weights("nearest", 8, group)) != script.rounded(
        loud, script.Weights("nearest", 8, group)
    )
    reach = {"tensor": np.ones_like(w), "channel": np.eye(8)[2][None].repeat(64, 0)}
    expected = reach["channel"] * (np.arange(64) < 32)[:, None] if group == 32 else reach[group]
    assert not changed[expected == 0].any() and changed[expected == 1].mean() > 0.8


def test_each_method_is_the_library_s():
    w, x = RNG.normal(size=(64, 8)).astype(np.float32), RNG.normal(size=(99, 64))
    low = script.rounded(w - 3, script.Weights("zero_point", 4, 32))
    np.testing.assert_array_equal(low, quantize(w - 3, 4, 1, 32, symmetric=False).dequantize())
    (got,) = script.rounded_together([w], x, script.Weights("gptq", 3, 32))
    np.testing.assert_array_equal(got, gptq(w, x, 3, 32).dequantize())
    for name in ("mxfp4", "nvfp4"):
        got = script.rounded(w, script.Weights(name, 4, 32))
        np.testing.assert_array_equal(
            got, microscale(np.ascontiguousarray(w.T), name).dequantize().T
        )
    for name in ("q8_0", "q4_0"):
        got = script.rounded(w, script.Weights(name, 4, 32))
        assert 0 < np.abs(got - w).max() < 0.4
        # Blocks lie along the inputs: the others do not change with the first.
        other = script.rounded(np.where(np.arange(64)[:, None] < 32, 9, w), script.Weights(name, 4))
        np.testing.assert_array_equal(got[32:], other[32:])


def test_awq_has_one_scale_for_matrices_that_read_the_same():
    ws = [RNG.normal(size=(64, n)).astype(np.float32) for n in (8, 16)]
    x = RNG.normal(size=(99, 64)) * np.geomspace(0.1, 10, 64)
    s = awq_scale(x, np.hstack(ws), 3, 32)[:, None]
    assert s.max() > 2 * s.min()
    for got, w in zip(
        script.rounded_together(ws, x, script.Weights("awq", 3, 32)), ws, strict=True
    ):
        np.testing.assert_array_equal(got, quantize(w * s, 3, 1, 32).dequantize() / s)


def test_fp8_with_a_scale_uses_the_whole_range():
    w = RNG.normal(size=(64, 8)).astype(np.float32) * np.geomspace(1e-4, 1, 8).astype(np.float32)
    error = {
        group: np.abs(script.rounded(w, script.Weights("fp8", 8, group)) / w - 1).max(axis=0)
        for group in ("none", "tensor", "channel")
    }
    assert error["channel"][:1] < error["tensor"][:1] <= error["none"][:1] == 1  # gone
    assert np.median(error["channel"]) <= 2**-4 + 1e-6  # half a step of three bits


@pytest.mark.parametrize(
    "how",
    [
        script.Weights("nearest", 4, "tensor"),
        script.Weights("nearest", 3, "channel"),
        script.Weights("gptq", 5, 16),
        script.Weights("q4_0", 4, 32),
        script.Weights("q8_0", 8, 32),
        script.Weights("mxfp4", 4, 32),
        script.Weights("mxfp8", 8, 32),
        script.Weights("nvfp4", 4, 16),
        script.Weights("q4_0", 4, 32, embedding=True),
    ],
)
def test_bits_are_those_that_the_library_stores(model, how):
    """Its scales are float32, and count 16 bits here."""
    total = n = 0
    shapes = [m.weight.shape for _, _, ms in script.matrices(model) for m in ms]
    shapes += [model.model.embed_tokens.weight.shape] * how.embedding
    for shape in shapes:
        w = np.ones(shape, np.float32)
        n += w.size
        if how.method in GGUF_LAYOUTS:
            total += 8 * pack_gguf(w, how.method).size
        elif how.method in ("mxfp4", "mxfp8", "nvfp4"):
            total += 8 * microscale(w, how.method).nbytes
        else:
            q = quantize(w.T, how.bits, **how.options)
            total += 8 * q.packed.size + 16 * q.scale.size
    bits = script.weight_bits(model, how)
    assert bits["bits_per_weight"] == pytest.approx(total / n)
    assert bits["model_bytes"] == math.ceil((total + 16 * (ARCH.n_params - n)) / 8)


def test_what_else_is_stored_counts(model):
    plain, zero, awq = (
        script.weight_bits(model, script.Weights(m, 4, 32))["bits_per_weight"]
        for m in ("nearest", "zero_point", "awq")
    )
    assert plain == 4.5 and zero == 4.5 + 4 / 32
    n_weights = sum(m.weight.numel() for _, _, ms in script.matrices(model) for m in ms)
    assert awq == pytest.approx(4.5 + 2 * 16 * 64 / n_weights)  # o_proj of two layers


def test_the_embedding_is_rounded_in_both_roles(model, inputs):
    one = script.Weights("nearest", 4, 32)
    plain, both = (
        script.quantised(model, script.Setting("weights", how), TOKENS, inputs)
        for how in (one, replace(one, embedding=True))
    )
    assert torch.equal(plain.lm_head.weight, model.lm_head.weight)
    assert both.lm_head.weight is both.model.embed_tokens.weight
    expected = quantize(model.lm_head.weight.numpy(), 4, axis=0, group_size=32).dequantize()
    np.testing.assert_array_equal(both.lm_head.weight, expected)
    assert script.snr_db(model, plain) == script.snr_db(model, both)
    eight = script.quantised(model, script.Setting("weights", replace(one, bits=8)), TOKENS, inputs)
    assert 20 < script.snr_db(model, eight) - script.snr_db(model, plain) < 30  # 4 bits, 6 dB each


# Activations

NUMBERS = arrays(np.float32, (3, 32), elements=st.floats(-100, 100, width=32))


@settings(max_examples=50)
@given(x=NUMBERS, bits=st.sampled_from([4, 8]))
def test_nearest_is_quantize(x, bits):
    """Up to ties, which one of the two may round in float32 and the other not."""
    expected = quantize(x, bits, axis=0).dequantize()
    got = script.nearest(torch.from_numpy(x), bits).numpy()
    step = np.abs(x).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    away = np.abs(x / np.where(step > 0, step, 1)) % 1
    differ = np.abs(got - expected) > 1e-5 * np.abs(x).max()
    assert np.all(np.abs(away[differ] - 0.5) < 1e-4)


@pytest.mark.parametrize("threshold", [0.5, 6.0, 100.0])
def test_outliers_apart_is_llm_int8(threshold):
    x = RNG.normal(size=(2, 20, 32)).astype(np.float32)
    x[:, :, 5] *= 20
    w = RNG.normal(size=(32, 12)).astype(np.float32)
    how = script.Activations(8, weight_bits=8, threshold=threshold)
    got = script.Rounding(torch.from_numpy(w.T), how, None)(torch.from_numpy(x))
    for mine, window in zip(got, x, strict=True):
        np.testing.assert_allclose(mine, llm_int8_matmul(window, w, threshold), atol=1e-4)


@pytest.mark.parametrize("name", ["hadamard", "random"])
def test_a_rotation_changes_nothing_but_rounding(name):
    x = torch.randn(7, 64, generator=torch.manual_seed(0))
    x[:, 3] = 20
    w = torch.randn(24, 64, generator=torch.manual_seed(1))
    fine = script.Rounding(w, script.Activations(20, weight_bits=20, rotation=name), None)
    torch.testing.assert_close(fine(x), x @ w.T, rtol=1e-3, atol=0.05)
    fine.rotation = fine.rotation.T.roll(1, 0)  # not the one that the weights were turned by
    assert (fine(x) - x @ w.T).abs().max() > 10
    coarse = {
        r: (script.Rounding(w, script.Activations(4, rotation=r), None)(x) - x @ w.T)
        .square()
        .mean()
        for r in (None, name)
    }
    assert coarse[name] < coarse[None] / 2


def test_fixed_scales_clip_and_one_kind_alone_is_touched(model, inputs):
    x = torch.tensor([[0.5, -3.0, 10.0]])
    assert script.nearest(x, 8, torch.tensor(2.0))[0, 1:].tolist() == [-2.0, 2.0]
    how = script.Activations(8, "tensor", only="down")
    changed = script.quantised(model, script.Setting("a", activations=how), TOKENS, inputs)
    for i, block in enumerate(changed.model.layers):
        assert block.mlp.down_proj.peak == np.abs(inputs[i, "down"]).max()
    kinds = [type(m) for _, _, ms in script.matrices(changed) for m in ms]
    assert kinds.count(script.Rounding) == 2


def test_many_bits_change_nothing(model, inputs):
    exact = model(TOKENS)
    for setting in (
        script.Setting("a", activations=script.Activations(20, weight_bits=20)),
        script.Setting("a", activations=script.Activations(20, "tensor")),
        script.Setting("c", cache=script.Cache(20, "channel", "token")),
        script.Setting("c", cache=script.Cache(20, "token", "channel", before_rope=True)),
    ):
        torch.testing.assert_close(logits(model, setting, inputs), exact, atol=2e-3, rtol=1e-3)
    before = {name: w.clone() for name, w in model.state_dict().items()}
    for setting in (script.Setting("w", script.Weights("nearest", 2)), *script.together()):
        assert (logits(model, setting, inputs) - exact).abs().max() > 0.1
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


def test_outliers_are_found_where_they_are():
    x = RNG.normal(size=(2 * 50, 64)).astype(np.float32)
    x[:50, 7] = 40  # in one window of two
    (row,) = script.outliers({(0, "down"): x}, windows=2)
    above = dict(zip(script.THRESHOLDS, row["features_above"], strict=True))
    assert above[24.0] == above[12.0] == above[6.0] == 0.5 / 64
    assert row["numbers_above"][2] == 0.5 / 64
    assert row["max"] == 40 and row["kurtosis"] > 30 > 4 > row["rotated"]["kurtosis"]
    assert row["rotated"]["rms"] == pytest.approx(row["rms"], rel=1e-4)  # lengths are kept


# Cache


@settings(max_examples=50)
@given(x=NUMBERS, bits=st.integers(2, 8))
def test_codes_reach_from_the_smallest_to_the_largest(x, bits):
    got = script.between_extremes(torch.from_numpy(x), bits, dim=-1).numpy()
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    assert np.all(np.abs(got - x) <= (high - low) / (2**bits - 1) * 0.501 + 1e-4)
    np.testing.assert_allclose(got.min(1), low[:, 0], atol=1e-4)
    assert all(len(np.unique(row)) <= 2**bits for row in got)


def test_channels_with_an_offset_want_a_scale_of_their_own():
    x = torch.randn(1, 2, 64, 16, generator=torch.manual_seed(0))
    x[..., 3] += 30
    errors = {
        way: (script.rounded_heads(x, 2, way) - x).square().mean() for way in ("token", "channel")
    }
    assert 10 * errors["channel"] < 2 < errors["token"]
    assert script.rounded_heads(x, 2, None) is x
    # Tokens share a scale 32 by 32.
    later = x.clone()
    later[:, :, 32:] = 7
    ours, theirs = (script.rounded_heads(part, 2, "channel") for part in (x, later))
    assert torch.equal(ours[:, :, :32], theirs[:, :, :32])


def test_keys_and_values_are_rounded_where_they_should_be(model, inputs):
    """Attention gets the rounded ones, and nothing else changes."""
    read = []
    plain = copy.deepcopy(model)._mix(None)

    def spy(cache):
        return lambda layer, q, k, v: read.append((k, v)) or plain(layer, q, k, v)

    exact = script.quantised(model, script.EXACT, TOKENS, inputs)
    exact._mix = spy
    exact(TOKENS)
    k, v = read[0]
    for how, expected in (
        (script.Cache(2, "token", None), (script.rounded_heads(k, 2, "token"), v)),
        (script.Cache(2, None, "channel"), (k, script.rounded_heads(v, 2, "channel"))),
    ):
        other = script.quantised(model, script.EXACT, TOKENS, inputs)
        other._mix = spy
        read.clear()
        script.quantise_cache(other, how)
        other(TOKENS)
        for got, wanted in zip(read[0], expected, strict=True):
            torch.testing.assert_close(got, wanted)
    rope = script.Cache(2, "channel", None, before_rope=True)
    a, b = (
        logits(model, script.Setting("c", cache=how), inputs)
        for how in (rope, replace(rope, before_rope=False))
    )
    assert (a - b).abs().max() > 0.01


# The report


def test_differences_are_those_of_the_means_and_windows_are_paired():
    nats = RNG.gamma(9, 100, size=len(WINDOWS))
    more = nats + 3 + RNG.normal(size=len(WINDOWS))
    (a, b) = (script.figures(list(x), list(nats), WINDOWS) for x in (nats, more))
    gap = b["minus_unquantised"]
    assert gap["mean"] == pytest.approx(b["bits_per_byte"] - a["bits_per_byte"])
    assert a["minus_unquantised"]["half_width_95"] == 0
    # Windows differ by hundreds, the differences by one.
    assert 0 < gap["half_width_95"] < 2 * gap["mean"]
    total = nats.sum() / math.log(2) / script.n_bytes(WINDOWS).sum()
    assert a["bits_per_byte"] == pytest.approx(total)


def test_every_setting_has_a_name_and_fits_the_model():
    todo = script.settings()
    assert len({setting.key for setting in todo}) == len(todo)
    sizes = {s.weights.group for s in todo if s.weights} - {"none", "tensor", "channel"}
    target = json.loads((ROOT / "data" / "model" / "target" / "config.json").read_text())
    assert all(
        target[name] % size == 0 for size in sizes for name in ("hidden_size", "intermediate_size")
    )


def test_a_quick_run_writes_nothing_and_a_second_goes_on(monkeypatch, tmp_path, capsys):
    windows = script.heldout_windows(6)[:, :65]
    monkeypatch.setattr(script, "heldout_windows", lambda: windows)
    monkeypatch.setattr(script, "CALIBRATION", 2)
    monkeypatch.setattr(script, "data_path", lambda name: tmp_path / "never")
    before = torch.get_num_threads()
    try:
        script.main(["--quick", "--work", str(tmp_path / "work")])
        said = capsys.readouterr().out
        assert [path.name for path in tmp_path.iterdir()] == ["work"]
        monkeypatch.setattr(script, "quantised", None)  # all rows are there
        script.main(["--quick", "--work", str(tmp_path / "work")])
    finally:
        torch.set_num_threads(before)
    assert capsys.readouterr().out == said
    assert said.count("±") == 4 and "gptq" in said
