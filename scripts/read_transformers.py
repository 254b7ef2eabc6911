"""Keep what transformers says of each type of model.

    PYTHONPATH=tests python scripts/read_transformers.py

writes lib/firsttoken/architectures/defaults.json, what a config.json may leave out, and
tests/architectures/transformers_models.json, the parameters and the caches of each type by its
defaults, and the parameters with each key changed. It takes five minutes. Run it when the pin of
transformers moves; test_families.py then says which family is read wrongly.
"""

import contextlib
import dataclasses
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from architectures.transformers_models import NEEDED, built, counted_changes, kept, n_params
from firsttoken.architectures.families import FAMILIES
from firsttoken.architectures.families.unknown import NO_DECODERS, UNREAD

ROOT = Path(__file__).parents[1]
DEFAULTS = ROOT / "lib/firsttoken/architectures/defaults.json"
LOOK = ROOT / "tests/architectures/transformers_models.json"
# What no size follows from.
IDLE = re.compile(
    r"_token_id$|_token_ids?$|dropout|pdrop|^initializer|init_std|_act$|activation|use_cache|_eps|epsilon|"
    r"_loss|_coef$|^output_|^return_|^scale_attn|^summary_|router_jitter|norm_topk|_token_index$|"
    r"kernel_options|^time_step|_jitter|logits_to|^classifier|^problem"
)
# What the text_config of a multimodal model is, where no model of its own has that type.
PARTS = ("emu3_text_model", "mllama_text_model")
BASE = {field.name for field in dataclasses.fields(PreTrainedConfig)} | {"is_encoder_decoder"}


def plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | list | dict | tuple | None.__class__)


def defaults_of(kind: str) -> dict[str, Any]:
    """Return the defaults of a type, as its class has them, not as a config computes them."""
    config = CONFIG_MAPPING[kind]
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name in BASE or IDLE.search(field.name):
            continue
        if field.default is not dataclasses.MISSING and plain(field.default):
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING and plain(field.default_factory()):
            found[field.name] = field.default_factory()
    if isinstance(tied := getattr(config, "tie_word_embeddings", None), bool):
        found.setdefault("tie_word_embeddings", tied)
    theta = getattr(config, "default_theta", None)
    theta = theta.get("global") if isinstance(theta, dict) else theta
    if isinstance(theta, int | float):
        found.setdefault("rope_theta", theta)
    aliases = {there: here for here, there in config.attribute_map.items() if plain(there)}
    return {name: value for name, value in found.items() if value is not None} | (
        {"aliases": aliases} if aliases else {}
    )


def keys_of(kind: str) -> set[str]:
    """Return all names that a type's config may be asked by."""
    config = CONFIG_MAPPING[kind]
    fields = {field.name for field in dataclasses.fields(config)}
    return fields | set(config.attribute_map) | set(config.attribute_map.values())


def look_at(kind: str) -> dict[str, Any]:
    """Return what a type's model has and keeps; "kept" is missing for caches of an own kind."""
    model = built(kind)
    found: dict[str, Any] = {"needed": NEEDED[kind]} if kind in NEEDED else {}
    text = CONFIG_MAPPING[kind]().get_text_config(decoder=True) if kind not in NEEDED else None
    if text is not None and kind not in FAMILIES and f"{kind}_text" not in FAMILIES:
        found["needed"] = {"text_config": json.loads(text.to_json_string())}
    found["n_params"] = n_params(model)
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError, KeyError):
        found["kept"] = kept(model)
    return found


def write(path: Path, **parts: Any) -> None:
    """Write one line for each type."""
    said = []
    for name, part in parts.items():
        lines = [f"  {json.dumps(kind)}: {json.dumps(found)}" for kind, found in part.items()]
        said.append(f' "{name}": {{\n' + ",\n".join(lines) + "\n }")
    text = f'{{\n "transformers": "{version("transformers")}",\n' + ",\n".join(said) + "\n}\n"
    path.write_text(text, encoding="utf-8")
    print(f"{path.name}: {', '.join(f'{len(part)} {name}' for name, part in parts.items())}")


def main() -> None:
    kinds = [kind for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) if kind not in NO_DECODERS]
    write(DEFAULTS, types={kind: defaults_of(kind) for kind in sorted([*kinds, *PARTS])})
    types, not_built = {}, {}
    for kind in kinds:
        try:
            types[kind] = look_at(kind)
        except Exception as error:  # whatever keeps transformers from building it
            not_built[kind] = f"{type(error).__name__}: {str(error).strip()[:100]}"
    known = sorted(kind for kind in FAMILIES if kind in CONFIG_MAPPING)
    keys = sorted(set.union(*map(keys_of, known)))
    defaults = json.loads(DEFAULTS.read_text("utf-8"))["types"]
    changes = {kind: counted_changes(kind, defaults) for kind in types if kind not in UNREAD}
    write(LOOK, types=types, not_built=not_built, keys={"of any type": keys}, changed=changes)


if __name__ == "__main__":
    main()
