"""The stored look at every type of model, by its defaults and with each key changed, once more."""

import json

import pytest

from architectures.test_families import LOOK, REFUSED
from architectures.transformers_models import built, counted_changes, kept, n_params
from firsttoken.architectures.config import _defaults


@pytest.mark.parametrize("kind", LOOK["types"])
def test_a_stored_look_is_what_transformers_builds(kind):
    model, look = built(kind), LOOK["types"][kind]
    assert n_params(model) == look["n_params"]
    if "kept" in look:
        assert kept(model) == json.loads(json.dumps(look["kept"]))


@pytest.mark.timeout(1800)  # some models have a thousand modules
@pytest.mark.parametrize("kind", sorted(set(LOOK["types"]) - set(REFUSED)))
def test_stored_changes_are_what_transformers_builds(kind):
    assert counted_changes(kind, _defaults()) == LOOK["changed"][kind]
