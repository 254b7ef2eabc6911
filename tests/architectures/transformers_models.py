"""Models of transformers, built without memory: how many parameters they have, what they keep."""

import contextlib
import itertools
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers

N_TOKENS = 9
TOWERS = re.compile(r"vision|audio|embed_tokens_extend")
_QWEN4 = {
    "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "ple_layer_ids": [1, 3],
    "eos_token_id": 1,
}
# What transformers needs to build a type, where its own defaults are not enough.
NEEDED: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 16,
        "num_hidden_layers": 32,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 5e5, "kv_n_heads": 8}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    # It makes rows for experts that its pass never reads.
    "longcat_flash": {"zero_expert_num": 0},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
}


def text_type(kind: str) -> str:
    """Return the type of its language model: another one's where the config has a text_config."""
    config = transformers.AutoConfig.for_model(kind, **NEEDED.get(kind, {}))
    text = config.get_text_config(decoder=True)
    return kind if text is config else str(text.model_type)


def built(kind: str, **changes: Any) -> torch.nn.Module:
    """Return a causal language model of a type on PyTorch's meta device, in bf16."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(kind, **{**NEEDED.get(kind, {}), **changes})
        text = config.get_text_config(decoder=True)
        if type(text) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            text = config
        return transformers.AutoModelForCausalLM.from_config(text, dtype=torch.bfloat16).eval()


def n_params(model: torch.nn.Module) -> int:
    """Return the parameters of its language model: towers for images and sounds are left out."""
    return sum(
        parameter.numel() for name, parameter in model.named_parameters() if not TOWERS.search(name)
    )


def kept(model: torch.nn.Module) -> list[list[int]]:
    """Return the numbers that layers' caches hold after nine tokens, as [how many layers, cached,
    of a state, of a convolution], run by run; layers that hold nothing are left out.

    Raises: AttributeError for a model with a cache of its own kind.
    """
    tokens = torch.zeros(1, N_TOKENS, dtype=torch.long, device="meta")
    with torch.no_grad():
        out = model(input_ids=tokens, use_cache=True)
    cache = out.past_key_values if "past_key_values" in out else out.cache_params
    found = []
    for layer in cache.layers:
        keys = [
            getattr(layer, name, None) for name in ("keys", "values", "indexer_keys", "idx_keys")
        ]
        states = getattr(layer, "recurrent_states", {}).values()
        inputs = getattr(layer, "conv_states", {}).values()
        sizes = tuple(
            sum(x.numel() for x in group if x is not None) for group in (keys, states, inputs)
        )
        found += [sizes] if any(sizes) else []
    return [[len(list(run)), *sizes] for sizes, run in itertools.groupby(found)]


def changed(defaults: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield for each number and each switch of a config a change of it alone."""
    for name, value in defaults.items():
        if isinstance(value, bool):
            yield {name: not value}
        elif isinstance(value, int):
            yield {name: 2 * value}
            if value > 2:
                yield {name: value // 2}


def counted_changes(kind: str, defaults: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return {"n_params": {change: parameters}} of a type whose config differs in one key.

    A change is "name value", as JSON. It stands in the text_config where that is another type's,
    beside the rest of "within". What transformers does not build is left out.
    """
    text = text_type(kind)
    within = {"model_type": text, **NEEDED.get(text, {})}
    found: dict[str, int] = {}
    for change in changed({**defaults[text], **NEEDED.get(text, {})}):
        ((name, value),) = change.items()
        with contextlib.suppress(Exception):  # whatever keeps transformers from building it
            whole = change if text == kind else {"text_config": within | change}
            found[f"{name} {json.dumps(value)}"] = n_params(built(kind, **whole))
    return {"n_params": found} | ({} if text == kind else {"within": within})
