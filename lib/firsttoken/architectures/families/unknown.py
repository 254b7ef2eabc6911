"""A type that nobody here knows: read by the names that most configs use."""

import dataclasses

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import (
    attention,
    experts,
    latent_attention,
    layer,
    layer_windows,
    mlp,
    of_layers,
)
from firsttoken.architectures.layers import Attention, Experts, LatentAttention

# Types that transformers can run as language models, and that are encoders or need one.
NO_DECODERS = frozenset(
    {
        "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "blenderbot",
        "blenderbot-small", "camembert", "data2vec-text", "electra", "ernie", "git",
        "marian", "mbart", "megatron-bert", "modernbert", "moshi",
        "musicgen", "musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "reformer",
        "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "t5", "trocr",
        "umt5", "whisper", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    }
)  # fmt: skip
# Types that no closed form here describes, and why.
UNREAD = {
    "blt": "its layers have three widths, and most see patches of bytes",
    "cpmant": "it reads a prompt in both directions, behind 32 tokens of its own",
    "gemma4_assistant": "it guesses for another model, whose cache it reads",
    "gemma4_unified_assistant": "it guesses for another model, whose cache it reads",
    "xlnet": "it caches what enters a layer, no keys and values",
}
# What stands in a config whose layers keep a state: no usual name says how large that is.
_OF_STATES = ("mamba", "ssm", "linear_", "conv", "rwkv", "lru", "lightning", "state_size")
# Sizes that change what is kept or computed, and that no usual reading covers.
_OF_OTHERS = (
    *("per_layer", "kv_shared", "index_", "compress", "hyper", "mtp_shared"),
    *("attn_type_list", "sparse_attention", "dense_intermediate_size", "full_rank_gate"),
)


def by_its_names(c: Config) -> Architecture:
    """Return what the usual names say, `source` telling that nobody checked it.

    Raises: ValueError for a config without the sizes of a decoder, and for one with keys of parts
            that the usual names do not describe.
    """
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if c.get(name) is None:
            raise ValueError(
                f"config: {name} is missing, and model_type {c.type!r} is not known here: "
                "expected the config.json of a decoder-only language model"
            )
    made_for = " ".join(map(str, c.items_of("architectures") or ()))
    if "type_vocab_size" in c or "MaskedLM" in made_for:
        raise ValueError(f"config: model_type {c.type!r} is no decoder-only language model")
    for name, value in c.given.items():
        if value and (name.startswith(_OF_STATES) or any(part in name for part in _OF_OTHERS)):
            raise ValueError(
                f"config: model_type {c.type!r} is not known here, and {name} belongs to a part "
                "that the usual names do not describe"
            )
    biased = "attention_bias" if "attention_bias" in c else "qkv_bias"
    latent = c.maybe("kv_lora_rank") is not None
    assumed = ["two norms a layer", "gated MLPs", "no norms of queries and keys"]
    if "tie_word_embeddings" not in c:
        assumed.append("a matrix of its own for the output")
    dense = c.count("first_k_dense_replace", 0) if c.maybe("num_local_experts") else c.n_layers
    layers = []
    for i, window in enumerate(layer_windows(c)):
        mixer: Attention | LatentAttention
        if latent:
            mixer = dataclasses.replace(latent_attention(c, qkv_bias=biased), window=window)
        else:
            mixer = attention(c, qkv_bias=biased, window=window)
        inner = mlp(c) if i < dense else _experts(c)
        layers.append(layer(c, mixer, inner))
    if dense < c.n_layers:
        assumed.append(f"experts from layer {dense} on")
    told = f"read by its names, not checked: model_type {c.type!r}; assumed: {', '.join(assumed)}"
    return of_layers(c, layers, source=told)


def _experts(c: Config) -> Experts:
    width = c.maybe("moe_intermediate_size") or c.count("intermediate_size", at_least=1)
    shared = c.maybe("shared_expert_intermediate_size")
    if shared is None:
        shared = width * c.count("n_shared_experts", c.count("num_shared_experts", 0))
    return experts(c, width=width, shared_d_ff=shared)
