"""scripts/measure_quantization.py: what it rounds is what it says, and a stop loses nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch

from firsttoken.architectures import Architecture
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama_torch import Llama
from firsttoken.quantization import (
    gptq,
    llm_int8_matmul,
    microscale,
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


@pytest.mark.parametrize("threshold", [0.5, 6.0, 100.0])
def test_outliers_apart_is_llm_int8(threshold):
    x = RNG.normal(size=(2, 20, 32)).astype(np.float32)
    x[:, :, 5] *= 20
    w = RNG.normal(size=(32, 12)).astype(np.float32)
    how = script.Activations(8, weight_bits=8, threshold=threshold)
    got = script.Rounding(torch.from_numpy(w.T), how, None)(torch.from_numpy(x))
    for mine, window in zip(got, x, strict=True):
        np.testing.assert_allclose(mine, llm_int8_matmul(window, w, threshold), atol=1e-4)


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
