"""scripts/train_diffusion.py: what the denoiser reads and is held to; a stop loses nothing."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from firsttoken.models.evaluation import token_losses
from firsttoken.models.llama_torch import Llama

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_diffusion as script

TOY = replace(script.RECIPE, steps=6, short_steps=3, warmup_steps=1, tokens_per_step=512)
STREAM = np.random.default_rng(1).integers(1024, size=5000).astype(np.uint16)
TOKENS = np.random.default_rng(0).integers(1025, size=(2, 24))  # masks among them


def strong() -> script.Denoiser:
    """The model before its training, an embedding of its own for the mask."""
    model = script.Denoiser.untrained()
    model.model.embed_tokens.weight.data[-1] *= -20
    return model


def theirs(model: script.Denoiser, tokens: np.ndarray, seen: torch.Tensor) -> torch.Tensor:
    """The same weights in transformers' Llama, where each query sees the keys that `seen` names."""
    arch = model.arch
    config = LlamaConfig(
        vocab_size=arch.vocab_size,
        hidden_size=arch.d_model,
        intermediate_size=arch.d_ff,
        num_hidden_layers=arch.n_layers,
        num_attention_heads=arch.n_heads,
        num_key_value_heads=arch.n_kv_heads,
        head_dim=arch.head_dim,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=True,
    )
    other = LlamaForCausalLM(config).eval()
    other.load_state_dict(model.state_dict())
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    mask = mask.expand(len(tokens), 1, *seen.shape)
    with torch.no_grad():
        return other(torch.from_numpy(tokens), attention_mask=mask).logits[:, :-1, :1024]


def test_it_is_transformers_llama_that_sees_all():
    model, n = strong(), TOKENS.shape[1]
    expected = theirs(model, TOKENS, torch.ones(n, n, dtype=torch.bool))
    torch.testing.assert_close(model(TOKENS), expected, atol=2e-4, rtol=1e-4)
    causal = theirs(model, TOKENS, torch.ones(n, n).tril().bool())
    assert (model(TOKENS) - causal).abs().max() > 0.1


def test_with_a_cache_finished_blocks_see_nothing_of_later_ones():
    """And masks of a pass that only looks leave no trace in the cache."""
    model, cuts = strong(), (0, 10, 16, 24)
    cache = model.new_cache(2, 25)
    block = np.digitize(np.arange(24), cuts)
    seen = torch.from_numpy(block[None, :] <= block[:, None])
    expected = theirs(model, TOKENS, seen)
    for begin, end in pairwise(cuts):
        if begin:
            look = script.denoise(model, TOKENS[:, begin - 1 : begin], cache)
            masked = np.full((2, end - begin), script.MASK)
            assert look(masked).shape == (2, end - begin, 1024) and cache.length == begin
        ours = model(TOKENS[:, begin:end], cache)
        torch.testing.assert_close(ours, expected[:, begin : end - 1], atol=2e-4, rtol=1e-4)
    assert (expected - model(TOKENS)).abs().max() > 0.1


@given(rows=st.integers(1, 6), n=st.integers(1, 30), seed=st.integers(0, 99))
def test_weights_are_on_what_is_hidden_and_sum_to_the_length(rows, n, seed):
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(1024, size=(rows, n + 1)))
    left, weights = script.corrupted(tokens, np.random.default_rng(seed))
    assert torch.equal(left[:, 0], tokens[:, 0])
    assert torch.equal(weights > 0, left[:, 1:] == script.MASK)
    assert torch.equal(left[:, 1:][weights == 0], tokens[:, 1:][weights == 0])
    torch.testing.assert_close(weights.sum(dim=1), torch.full((rows,), float(n)))


def trained(work: Path, recipe=TOY) -> dict:
    work.mkdir(exist_ok=True)
    return script.train(recipe, STREAM, work, compiled=False, checkpoint_every_s=0)


def test_the_exact_loss_is_the_library_s():
    target = Llama.from_pretrained(ROOT / "data" / "model" / "target")
    rows = script.heldout(40, 3)
    expected = [token_losses(target, row) for row in rows]
    np.testing.assert_allclose(script.exact_losses(target, rows), expected, atol=1e-4)


def test_a_model_that_copies_what_it_sees_loses_only_on_what_is_hidden(tmp_path, monkeypatch):
    """Nothing of the answer is shown: a reader of the input itself would lose nothing else."""

    def denoise(_, first):
        def probabilities(tokens):
            p = np.full((*tokens.shape, 1025), 1e-9)
            np.put_along_axis(p, tokens[..., None], 1.0, axis=-1)
            return p

        return probabilities

    monkeypatch.setattr(script, "denoise", denoise)
    target = Llama.from_pretrained(ROOT / "data" / "model" / "target")
    result = script.likelihood(None, target, script.heldout(256, 16), 2, 0, tmp_path)
    for name in ("bound", "left_to_right"):
        assert result["nats_per_token"][name]["mean"] == pytest.approx(-math.log(1e-9))


def check_report(stored: dict) -> None:
    """All figures of a report that follow from others do."""
    likelihood, written = stored["likelihood"], stored["samples"]
    nats, bits = likelihood["nats_per_token"], likelihood["bits_per_byte"]
    tokens = likelihood["windows"] * likelihood["tokens_per_window"]
    per_byte = tokens / likelihood["bytes"] / math.log(2)
    assert bits["target"] == pytest.approx(nats["target"] * per_byte)
    assert bits["bound"]["mean"] == pytest.approx(nats["bound"]["mean"] * per_byte)
    assert [way["how"] for way in written["ways"]] == list(script.WAYS.values())
    for way in written["ways"]:
        for run in way["runs"]:
            assert run["passes"] == written["new_tokens"] / run["tokens_per_pass"]
            ours = written["target"]["bits_per_byte"]["mean"] + run["minus_target"]["mean"]
            assert run["bits_per_byte"]["mean"] == pytest.approx(ours)


def test_the_report_of_a_whole_run(tmp_path, monkeypatch):
    """A toy, on a text of its own."""
    monkeypatch.setattr(script, "training_stream", lambda *_: STREAM)
    monkeypatch.setattr(script, "N_NEW", 32)
    monkeypatch.setattr(script, "CONTEXT", 64)
    script.main(["--quick", f"--work={tmp_path}", f"--out={tmp_path}/out"])
    stored = json.loads((tmp_path / "diffusion.json").read_text())
    check_report(stored)
    assert stored["provenance"]["measured_code"] == script.MEASURED_CODE
    assert str(tmp_path) not in json.dumps(stored)  # nothing about whose machine it was
    assert not (tmp_path / "out").exists()  # a quick run is no result
    assert all(f"\n{name} " in script.table(stored) for name in script.WAYS)


def test_the_stored_report_is_whole():
    stored = json.loads((ROOT / "data" / "measured" / "diffusion.json").read_text())
    check_report(stored)
    assert stored["samples"]["prompts"] == script.Scale().prompts
    recipe = json.loads(json.dumps(asdict(script.RECIPE)))
    of_it = stored["training"]["recipe"]
    assert {key for key in recipe if recipe[key] != of_it[key]} <= {"steps", "short_steps"}
