"""released models: their config.json as read here, against the numbers that their makers publish.

released.json holds a model a line: its config (keys that say nothing of its size left out),
the file that it was read in, and the published numbers with their digits. Where those count more or
less than a decoder's parameters, "counts" says what, in embedding tables or in numbers, and why.
"""

import json
from math import floor, log10
from pathlib import Path

import pytest

from firsttoken.architectures import Architecture, from_hf_config, released
from firsttoken.architectures.released import RELEASED

STORED = Path(released.__file__).with_suffix(".json")
MODELS = json.loads(STORED.read_text("utf-8"))
NUMBERS = [(name, what) for name, one in MODELS.items() for what in one["published"]["digits"]]


def ours(arch: Architecture, what: str) -> int:
    """Return a number of the architecture; the cache in bf16."""
    return 2 * arch.kv_elements_per_token if what == "kv_bytes_per_token" else getattr(arch, what)


@pytest.mark.parametrize(("name", "what"), NUMBERS)
def test_a_config_gives_what_its_makers_publish(name, what):
    """To the last digit that they give, whether they rounded or cut off."""
    model = MODELS[name]
    arch = from_hf_config(model["config"])
    counted = model.get("counts", {}).get(what, {})
    found = ours(arch, what) + counted.get("other", 0)
    found += counted.get("tables", 0) * arch.vocab_size * arch.d_model
    published = model["published"][what]
    last_digit = 10 ** (floor(log10(published)) + 1 - model["published"]["digits"][what])
    assert -last_digit / 2 <= found - published < last_digit


@pytest.mark.parametrize("name", MODELS)
def test_a_type_is_read_by_its_names_only_where_the_list_says_so(name):
    arch = from_hf_config(MODELS[name]["config"])
    assert arch.source.startswith("read by its names, not checked") == ("by_names" in MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_where_its_numbers_come_from(name):
    model = MODELS[name]
    assert model["source"] and model["published"]["source"] and model["published"]["digits"]
    assert all(one["why"] for one in model.get("counts", {}).values())


def test_most_models_that_people_run_are_there():
    assert len(MODELS) >= 60


def test_the_presets_are_among_them():
    assert set(RELEASED) >= set(MODELS)
    assert all(arch.name == name and arch.source for name, arch in RELEASED.items())
