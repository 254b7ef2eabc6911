"""Read the layers of a model from its Hugging Face `config.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config, open_config
from firsttoken.architectures.families import FAMILIES
from firsttoken.architectures.families.unknown import NO_DECODERS, UNREAD, by_its_names

# Where a multimodal model has its language model.
_INSIDE = (
    *("text_config", "llm_config", "language_config"),
    *("language_model_config", "thinker_config"),
)


def from_hf_config(config: str | Path | Mapping[str, Any]) -> Architecture:
    """Return the architecture that a Hugging Face `config.json` describes.

    `config` is the file, the folder that holds it, or its content as a dict. Keys that are missing
    take the defaults of transformers. Rotary settings are read from `rope_parameters` or from
    `rope_theta` and `rope_scaling`; where layers differ, those of the full-attention layers.
    Parts beside the text decoder (vision, multi-token prediction) are left out; that of a
    multimodal model is found in its `text_config`.

    A type that is not known here is read by the names that most configs use. Then `source` begins
    with "read by its names, not checked", and says what was assumed.

    Raises: ValueError for a missing or unreadable file, for a model that is no decoder, for one
            whose type is unknown and whose keys are not enough, and for values that cannot be.
    Source: transformers 5.23, models/*/configuration_*.py and modeling_*.py

    >>> small = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
    ...          "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000}
    >>> from_hf_config(small).n_params
    1824000
    """
    whole = open_config(config)
    given = _text_decoder(whole)
    if not isinstance(given.get("model_type"), str):
        raise ValueError(f"config: model_type must be a name, got {given.get('model_type')!r}")
    for part in (whole, given):
        kind = str(part.get("model_type"))
        if kind in NO_DECODERS or part.get("is_encoder_decoder"):
            raise ValueError(f"config: model_type {kind!r} is no decoder-only language model")
        if kind in UNREAD:
            raise ValueError(f"config: model_type {kind!r} is not read here: {UNREAD[kind]}")
    content = Config(given)
    arch = FAMILIES.get(content.type, by_its_names)(content)
    if given.get("per_layer_config") and "per_layer_config" not in content.asked:
        raise ValueError(f"config: per_layer_config is not read for model_type {content.type!r}")
    return arch


def _text_decoder(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes its language model."""
    kind = given.get("model_type")
    text_kind = f"{kind}_text" if f"{kind}_text" in FAMILIES else kind
    for key in _INSIDE:
        inside = given.get(key)
        if isinstance(inside, Mapping):
            outside = {"model_type": text_kind}
            if "tie_word_embeddings" in given:
                outside["tie_word_embeddings"] = given["tie_word_embeddings"]
            return _text_decoder({**outside, **inside})
    known = not isinstance(kind, str) or kind in FAMILIES
    return given if known else {**given, "model_type": text_kind}
