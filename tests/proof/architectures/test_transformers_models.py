"""Every type of model, against transformers itself: by its defaults, and with each key changed."""

import json

import pytest

from architectures.test_families import LOOK, REFUSED
from architectures.transformers_models import NEEDED, built, changed, kept, n_params, text_type
from firsttoken.architectures import from_hf_config
from firsttoken.architectures.config import _defaults


@pytest.mark.parametrize("kind", LOOK["types"])
def test_a_stored_look_is_what_transformers_builds(kind):
    model, look = built(kind), LOOK["types"][kind]
    assert n_params(model) == look["n_params"]
    if "kept" in look:
        assert kept(model) == json.loads(json.dumps(look["kept"]))


def changes(kind):
    """Yield changes of one key each, in the text_config where that is another type's."""
    text = text_type(kind)
    for change in changed({**_defaults()[text], **NEEDED.get(text, {})}):
        inside = {"model_type": text, **NEEDED.get(text, {}), **change}
        yield change if text == kind else {"text_config": inside}


@pytest.mark.timeout(1800)  # some models have a thousand modules
@pytest.mark.parametrize("kind", sorted(set(LOOK["types"]) - set(REFUSED)))
def test_each_key_is_read_where_it_stands(kind):
    """A change that transformers does not build says nothing; one that we refuse is no number."""
    wrong, right = [], 0
    for change in changes(kind):
        try:
            expected = n_params(built(kind, **change))
        except Exception:  # whatever keeps transformers from building it
            continue
        try:
            found = from_hf_config({"model_type": kind, **NEEDED.get(kind, {}), **change}).n_params
        except ValueError:
            continue
        right += found == expected
        wrong += [(change, found, expected)] if found != expected else []
    assert wrong == []
    assert right > 0
