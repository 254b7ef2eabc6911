"""Released models that people run, read from the config.json of their makers.

released.json holds a model a line: its config, the file that it was read in, and the numbers that
its makers publish, against which `tests/architectures/test_released.py` holds what is read.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.huggingface import from_hf_config
from firsttoken.architectures.presets import ARCHITECTURES


def _read(name: str, config: Mapping[str, Any], source: str) -> Architecture:
    arch = from_hf_config(config)
    return arch.replace(name=name, source=arch.source or f"config.json: {source}")


_STORED = json.loads(
    files("firsttoken.architectures").joinpath("released.json").read_text(encoding="utf-8")
)

RELEASED: Mapping[str, Architecture] = MappingProxyType(
    {
        **ARCHITECTURES,
        **{
            name: _read(name, one["config"], one["source"])
            for name, one in _STORED.items()
            if name not in ARCHITECTURES
        },
    }
)
"""The presets, and beside them what people ask calculators for; by name, each with its source."""
