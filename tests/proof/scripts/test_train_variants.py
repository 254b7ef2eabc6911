"""scripts/train_variants.py: the variants are what they say, and a stopped run loses nothing."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.models.llama_torch import Llama

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_variants

BY_NAME = {arch.name: arch for arch in train_variants.VARIANTS}
MHA = train_variants.MHA
# The same attention in models that train in a moment, also where bfloat16 is emulated.
TOYS = {name: arch.replace(d_model=32, d_ff=32) for name, arch in BY_NAME.items()}
TOKENS = torch.from_numpy(np.random.default_rng(0).integers(1024, size=(2, 150)))
STREAM = np.random.default_rng(1).integers(1024, size=5000).astype(np.uint16)


def strong(arch: Architecture) -> torch.nn.Module:
    """An untrained model whose weights are so large that every part of it shows."""
    model = train_variants.Model(arch, seed=0)
    for weight in model.parameters():
        weight.data *= 6 if weight.ndim == 2 else 1
    return model.requires_grad_(False)


def weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: weight.numpy() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("arch", train_variants.VARIANTS, ids=lambda arch: arch.name)
def test_parameters_are_matched(arch):
    n_params = sum(p.numel() for p in train_variants.Model(arch, 0).parameters())
    assert n_params == arch.n_params == pytest.approx(MHA.n_params, rel=0.002)


@pytest.mark.parametrize("arch", train_variants.VARIANTS, ids=lambda arch: arch.name)
def test_the_cache_is_what_the_projections_of_keys_and_values_give(arch):
    """An outside count: the outputs of those projections, cut to the layer's window."""
    model, elements = strong(arch), []
    for block, window in zip(model.model["layers"], arch.layer_windows, strict=True):
        for name, module in block.self_attn.named_children():
            if name in ("k_proj", "v_proj", "kv_a_proj_with_mqa"):
                module.register_forward_hook(
                    lambda _, __, y, w=window: elements.append(y[0, -(w or 512) :].numel())
                )
    model(torch.zeros(1, 512, dtype=torch.long))
    assert 2 * sum(elements) == kv_cache_bytes(arch, 512, dtype="bf16")


@pytest.mark.parametrize("name", ["MHA", "GQA", "MQA", "window", "hybrid"])
def test_logits_are_those_of_the_library(name):
    model = strong(BY_NAME[name])
    expected = Llama(BY_NAME[name], weights(model))(TOKENS)
    torch.testing.assert_close(model(TOKENS), expected, atol=2e-4, rtol=1e-4)


def test_mla_is_transformers_deepseek():
    arch = BY_NAME["MLA"]
    config = DeepseekV3Config(
        vocab_size=arch.vocab_size,
        hidden_size=arch.d_model,
        intermediate_size=arch.d_ff,
        num_hidden_layers=arch.n_layers,
        num_attention_heads=arch.n_heads,
        num_key_value_heads=arch.n_heads,
        q_lora_rank=None,
        kv_lora_rank=arch.latent_dim,
        qk_rope_head_dim=arch.rope_head_dim,
        qk_nope_head_dim=arch.head_dim - arch.rope_head_dim,
        v_head_dim=arch.v_head_dim,
        first_k_dense_replace=arch.n_layers,  # no experts
        rope_interleave=False,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model, theirs = strong(arch), DeepseekV3ForCausalLM(config).eval()
    state = model.state_dict()
    theirs.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    expected = theirs(TOKENS).logits.detach()
    torch.testing.assert_close(model(TOKENS), expected, atol=2e-4, rtol=1e-4)


def quick(patch, folder):
    """The script's main, two steps a toy, in this process and on a text of its own."""
    trained = []
    train = train_variants.train

    def counted(arch, recipe, stream):
        trained.append((arch.name, recipe.seed))
        return train(arch, recipe, stream)

    def main(*arguments):
        trained.clear()
        train_variants.main(
            ["--quick", "--seeds=2", f"--out={folder}", f"--work={folder}", *arguments]
        )
        return list(trained)

    patch.setattr(train_variants, "VARIANTS", tuple(TOYS.values()))
    patch.setattr(train_variants, "train", counted)
    patch.setattr(train_variants, "training_stream", lambda *_: STREAM)
    patch.setattr(
        train_variants, "ProcessPoolExecutor", lambda jobs, *_, **__: ThreadPoolExecutor(jobs)
    )
    return main


def check_report(stored: dict, trained: dict[str, Architecture]) -> None:
    """All figures of a report follow from its runs and from the architectures."""
    assert [v["name"] for v in stored["variants"]] == list(trained)
    baseline = stored["variants"][0]["runs"]
    for v in stored["variants"]:
        arch = trained[v["name"]]
        assert Architecture(**v["arch"]) == arch and v["n_params"] == arch.n_params
        assert v["cache_bytes"] == kv_cache_bytes(arch, stored["text"]["context"])
        assert [r["seed"] for r in v["runs"]] == stored["provenance"]["seeds"]
        losses, others = ([r["nats_per_token"] for r in runs] for runs in (v["runs"], baseline))
        assert v["minus_mha"]["nats_per_token"] == pytest.approx(
            train_variants.paired(losses, others)
        )


def test_the_report_of_a_whole_run(monkeypatch, tmp_path):
    assert quick(monkeypatch, tmp_path)() == [(name, seed) for seed in (0, 1) for name in TOYS]
    runs = {
        name: [json.loads((tmp_path / f"{name}-{seed}.json").read_text()) for seed in (0, 1)]
        for name in TOYS
    }
    windows = train_variants.heldout_windows(4)
    stored = json.loads(json.dumps(train_variants.report(runs, windows)))
    check_report(stored, TOYS)
    assert stored["provenance"]["measured_code"] == train_variants.MEASURED_CODE
    assert str(tmp_path) not in json.dumps(stored)  # nothing about whose machine it was
    assert all(f"\n{name} " in train_variants.table(stored) for name in TOYS)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "measured").glob("variants_*.json")), ids=lambda p: p.name
)
def test_the_stored_report_is_whole(path):
    check_report(json.loads(path.read_text()), BY_NAME)
