"""A look into a pass, against models whose weights were changed to do what it claims."""

import numpy as np
import pytest

from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.models.inspection import look_inside
from firsttoken.models.llama import Llama, load_model
from firsttoken.models.rope import rotate
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import softmax

PROGRAM = "import os\n\npath = os.path.join(folder, name)\nif os.path.exists("


@pytest.fixture(scope="module")
def shipped():
    return read_checkpoint(data_path("model/target"))


@pytest.fixture(scope="module")
def model():
    return load_model("target")


@pytest.fixture(scope="module")
def ids():
    tok = tokenizer()
    return [tok.eos_id, *tok.encode(PROGRAM)]


def built(shipped, weights=None, **arch):
    weights = shipped.weights if weights is None else weights
    return Llama(
        shipped.arch.replace(**arch), weights, shipped.rope_theta, norm_eps=shipped.norm_eps
    )


def expected_next(model, ids):
    return softmax(model([ids])[0, -1].astype(np.float64))


def test_nothing_silenced_is_the_model(model, ids):
    seen = look_inside(model, ids)
    np.testing.assert_allclose(seen.next, expected_next(model, ids), atol=1e-6)
    assert (seen.next == seen.layers[-1]).all()
    # Shares as the model computes them, probabilities in double precision.
    assert (seen.attention.dtype, seen.layers.dtype) == (np.float32, np.float64)


def test_a_silent_head_is_one_whose_output_has_no_weight(shipped, model, ids):
    """Its columns of the output matrix set to zero; a neighbour's would be another result."""
    for heads in ([(5, 3)], [(0, 0), (0, 5), (3, 4)], [(7, 2), (7, 2)]):
        weights = dict(shipped.weights)
        for layer, head in heads:
            name = f"model.layers.{layer}.self_attn.o_proj.weight"
            weights[name] = np.array(weights[name], dtype=np.float32)  # [D, N·H]
            columns = slice(head * shipped.arch.head_dim, (head + 1) * shipped.arch.head_dim)
            weights[name][:, columns] = 0
        expected = expected_next(built(shipped, weights), ids)
        np.testing.assert_allclose(look_inside(model, ids, heads).next, expected, atol=1e-6)
        layer, head = heads[0]
        neighbour = look_inside(model, ids, [(layer, (head + 1) % 6)]).next
        assert abs(neighbour - expected).max() > 1e-3


def test_a_layer_says_what_a_model_of_so_many_layers_says(shipped, model, ids):
    seen = look_inside(model, ids)
    for n_layers in (1, 4, 7):
        kept = {
            name: weight
            for name, weight in shipped.weights.items()
            if not name.startswith("model.layers.") or int(name.split(".")[2]) < n_layers
        }
        expected = expected_next(built(shipped, kept, n_layers=n_layers), ids)
        np.testing.assert_allclose(seen.layers[n_layers - 1], expected, atol=1e-6)


def test_attention_of_the_first_layer_by_hand(model, ids):
    """Queries and keys turned by their positions, compared, hidden, softmax: chapter 01's lines."""
    block, x = model.blocks[0], model.embedding[ids]
    h = x / np.sqrt((x**2).mean(-1, keepdims=True) + model.norm_eps) * block.attention_norm
    heads = (h @ block.qkv).reshape(len(ids), 10, 32).swapaxes(0, 1)
    angles = np.arange(len(ids))[:, None] * model.frequencies
    q, k = (rotate(part, np.cos(angles), np.sin(angles)) for part in (heads[:6], heads[6:8]))
    scores = q @ np.repeat(k, 3, axis=0).swapaxes(1, 2) / np.sqrt(32)
    scores[:, *np.triu_indices(len(ids), 1)] = -np.inf
    attention = look_inside(model, ids).attention
    np.testing.assert_allclose(attention[0], softmax(scores), atol=1e-5)
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)


def test_unknown_heads_and_tokens_are_refused(model):
    for tokens, heads, message in [
        *[([0], [head], "8 layers with 6 heads") for head in ((8, 0), (0, 6), (-1, 0), (0, -1))],
        ([], [], "at least 1 token"),
        ([1.9], [], "must be integers"),
        ([5, 1024], [], "1024"),
    ]:
        with pytest.raises(ValueError, match=message):
            look_inside(model, tokens, heads)
