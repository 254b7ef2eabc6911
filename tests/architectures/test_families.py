"""families: every type that transformers builds, against what a stored look at it found.

`scripts/read_transformers.py` takes that look; test_read_transformers.py of the proof holds it
against the models themselves.
"""

import itertools
import json
from contextlib import suppress
from pathlib import Path

import pytest

from firsttoken.architectures import Architecture, from_hf_config
from firsttoken.architectures.config import ALIASES, Config, _defaults
from firsttoken.architectures.families import FAMILIES
from firsttoken.architectures.families.unknown import UNREAD

LOOK = json.loads(Path(__file__).with_name("transformers_models.json").read_text("utf-8"))
N_TOKENS = 9


def kept(arch: Architecture) -> list[list[int]]:
    """Return what layers hold after nine tokens: see tests/architectures/transformers_models.py."""
    found = []
    for layer in arch.layers:
        window = layer.attention.window if layer.attention else None
        n_tokens = N_TOKENS if window is None else min(N_TOKENS, window)
        state = layer.recurrent
        sizes = (
            layer.kv_elements * n_tokens,
            state.state_elements if state else 0,
            state.conv_elements if state else 0,
        )
        found += [sizes] if any(sizes) else []
    return [[len(list(run)), *sizes] for sizes, run in itertools.groupby(found)]


REFUSED = sorted(set(UNREAD) & set(LOOK["types"]))
# Caches that hold something twice, or that transformers keeps otherwise than engines do.
OTHER_CACHES = {
    "deepseek_v4": "keys are the values, and are counted once",
    "minimax": "its states lie in a list beside the layers",
}


@pytest.mark.parametrize("kind", sorted(set(LOOK["types"]) - set(REFUSED)))
def test_a_type_is_read_as_transformers_builds_it(kind):
    look = LOOK["types"][kind]
    arch = from_hf_config({"model_type": kind, **look.get("needed", {})})
    assert arch.n_params == look["n_params"]
    assert not arch.source
    if all(layer.weights_of is None for layer in arch.layers):
        assert arch.n_params >= arch.n_active_params
    if "kept" in look and kind not in OTHER_CACHES:
        assert kept(arch) == look["kept"]


@pytest.mark.parametrize("kind", sorted(set(LOOK["types"]) - set(REFUSED)))
def test_each_key_is_read_where_it_stands(kind):
    """One changed after another; a change that we refuse gives no number that could be wrong."""
    look, wrong, n_right = LOOK["changed"][kind], {}, 0
    needed = LOOK["types"][kind].get("needed", {})
    for change, n_params in look["n_params"].items():
        name, _, value = change.partition(" ")
        whole = {name: json.loads(value)}
        if "within" in look:
            whole = {"text_config": look["within"] | whole}
        with suppress(ValueError):
            found = from_hf_config({"model_type": kind, **needed, **whole}).n_params
            n_right += found == n_params
            wrong |= {change: (found, n_params)} if found != n_params else {}
    assert wrong == {} and n_right > 0


# What published configs have, and no class of transformers.
PUBLISHED = """
    _name_or_path model_type per_layer_config rope_theta
    attn_res_block_size attn_type_list block_ff_dim compress_rate_csa compress_rate_hca
    compress_ratios compressed_sparse_attention dense_mlp_idx full_attention_interval
    global_head_dim global_rope_theta heavily_compressed_attention hybrid_override_pattern
    index_skip_topk_offset index_topk_freq index_topk_pattern kda_layers kv_n_heads
    linear_attn_config mamba_headdim mla_use_output_gate moe_layer_freq moe_top_k
    num_global_key_value_heads routed_expert_hidden_size router_bias sparse_attention_config
    sparse_attention_freq sparse_block_size sparse_index_dim sparse_num_index_heads
    sparse_topk_blocks swa_kv_lora_rank swa_q_lora_rank swa_qk_nope_head_dim swa_qk_rope_head_dim
    swa_v_head_dim tie_embedding use_dsa use_full_rank_gate
"""


def test_every_key_that_a_family_asks_for_is_one_that_configs_have(monkeypatch):
    """One that is spelt otherwise would never be there, and the reader would go by its default."""
    asked, look_up = set(), Config.__getitem__
    monkeypatch.setattr(Config, "__getitem__", lambda c, k: asked.add((c.type, k)) or look_up(c, k))
    for kind in sorted(set(FAMILIES) - set(UNREAD)):
        with suppress(ValueError):  # some types' classes leave out what is needed
            from_hf_config({"model_type": kind, **LOOK["types"].get(kind, {}).get("needed", {})})
    known = {*LOOK["keys"]["of any type"], *ALIASES.values(), *PUBLISHED.split()}
    assert len(asked) > 2000 and {(kind, key) for kind, key in asked if key not in known} == set()


def test_what_no_key_can_be_is_refused_and_never_falls_through(monkeypatch):
    """Each key that a family asks for as nothing, less, a text, a list: a number or ValueError."""
    look_up, n_refused = Config.__getitem__, 0
    for kind in sorted(set(FAMILIES) - set(UNREAD)):
        whole = {"model_type": kind, **LOOK["types"].get(kind, {}).get("needed", {})}
        asked = set()
        with monkeypatch.context() as watched, suppress(ValueError):
            watched.setattr(Config, "__getitem__", lambda c, k: asked.add(k) or look_up(c, k))  # noqa: B023
            from_hf_config(whole)
        for key, value in itertools.product(sorted(asked), (0, -1, "8", [])):
            try:
                arch = from_hf_config({**whole, key: value})
                assert arch.n_params >= arch.n_active_params >= 0 or any(
                    layer.weights_of is not None for layer in arch.layers
                )
            except ValueError:
                n_refused += 1
    assert n_refused > 5000


@pytest.mark.parametrize("kind", UNREAD)
def test_what_cannot_be_read_is_refused_with_its_reason(kind):
    for inside in ({}, {"text_config": {"model_type": "llama"}}):
        with pytest.raises(ValueError, match=f"config: .*{kind}.*{UNREAD[kind]}"):
            from_hf_config({"model_type": kind, **inside})


def test_no_type_is_left_out():
    """Each that transformers builds is in the table; what stands there beside is a part of one."""
    assert len(set(LOOK["types"]) - set(REFUSED)) >= 120
    of_parts = {"emu3_text_model", "mllama_text_model"}
    beside = set(FAMILIES) - set(LOOK["types"]) - set(LOOK["not_built"])
    assert beside <= of_parts
    assert set(FAMILIES) <= set(_defaults())
