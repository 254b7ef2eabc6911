"""Pruning: a smaller model is the whole one with gates shut, and scores mean what they say."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.ao.pruning import WeightNormSparsifier
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from firsttoken.architectures import Architecture
from firsttoken.attention import rms_norm
from firsttoken.checkpoint import weight_shapes
from firsttoken.llama import Llama as NumpyLlama
from firsttoken.llama import load_model, silu
from firsttoken.llama_torch import Llama
from firsttoken.paths import data_path
from firsttoken.pruning import (
    AXES,
    METHODS,
    distillation_loss,
    gated,
    importance,
    input_norms,
    keep_best,
    prune,
    prune_2_4,
    unit_shape,
)
from firsttoken.tokenizer import tokenizer

ARCH = Architecture("tiny", 3, 16, 6, 2, 4, 8, 40, tied_embeddings=True, max_context=64)
EPS = 1e-5
TOKENS = np.random.default_rng(1).integers(40, size=(2, 12))
KINDS = ("layers", "heads", "kv_heads", "neurons", "channels")


def random_weights(arch: Architecture = ARCH, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights so large that every part of the model shows."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(1 if len(shape) == 1 else 0, 0.4, shape).astype(np.float32)
        for name, shape in weight_shapes(arch).items()
    }


WEIGHTS = random_weights()


def model_of(arch: Architecture, weights, eps: float = EPS) -> Llama:
    return Llama(arch, weights, norm_eps=eps)


def logits(arch, weights, eps: float = EPS) -> np.ndarray:
    return NumpyLlama(arch, weights, norm_eps=eps)(TOKENS)


WHOLE = model_of(ARCH, WEIGHTS)


def subsets(n: int, at_least: int = 1):
    return st.sets(st.integers(0, n - 1), min_size=at_least).map(sorted)


def rows_of(n: int):
    """As many indices for each layer."""

    def rows(size):
        row = st.sets(st.integers(0, n - 1), min_size=size, max_size=size).map(sorted)
        return st.lists(row, min_size=ARCH.n_layers, max_size=ARCH.n_layers)

    return st.integers(1, n).flatmap(rows)


@st.composite
def kept_heads(draw):
    """As many KV heads in each layer, and as many query heads of each."""
    n_kv, per_kv = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    layers = []
    for _ in range(ARCH.n_layers):
        kv = draw(st.sets(st.integers(0, 1), min_size=n_kv, max_size=n_kv))
        of_three = st.sets(st.integers(0, 2), min_size=per_kv, max_size=per_kv)
        layers.append(sorted(3 * i + j for i in kv for j in draw(of_three)))
    return layers


WAYS = {
    "layers": subsets(3),
    "heads": kept_heads(),
    "neurons": rows_of(8),
    "channels": subsets(16, at_least=2),
}
KEPT = st.fixed_dictionaries({}, optional=WAYS)


def gates_of(of: str, kept) -> torch.Tensor:
    """1 for what is kept, 0 for what is not."""
    gates = torch.zeros(unit_shape(ARCH, of))
    if gates.ndim == 1:
        gates[kept] = 1
    else:
        for layer, row in enumerate(kept):
            gates[layer, row] = 1
    return gates


# The smaller model


def test_to_keep_everything_changes_nothing():
    every = {
        "layers": range(3),
        "heads": [range(6)] * 3,
        "neurons": [range(8)] * 3,
        "channels": range(16),
    }
    for kept in ({}, every):
        arch, weights = prune(ARCH, WEIGHTS, **kept)
        assert arch == ARCH and list(weights) == list(WEIGHTS)
        assert all(np.array_equal(w, WEIGHTS[name]) for name, w in weights.items())


@given(kept=KEPT)
@settings(max_examples=60)
def test_what_is_cut_out_is_what_shut_gates_silence(kept):
    """All kinds at once. Without the norm's epsilon it is exact, channels included."""
    small = logits(*prune(ARCH, WEIGHTS, **kept), eps=0)
    model = model_of(ARCH, WEIGHTS, eps=0)
    with torch.no_grad():
        left = [gated(model, of, gates_of(of, indices)) for of, indices in kept.items()]
        for gate in left:
            gate.__enter__()
        expected = model(TOKENS).numpy()
        for gate in reversed(left):
            gate.__exit__(None, None, None)
    np.testing.assert_allclose(small, expected, atol=2e-4 * abs(expected).max())


@given(kept=KEPT)
def test_the_result_is_a_llama_of_the_size_that_its_architecture_says(kept):
    arch, weights = prune(ARCH, WEIGHTS, **kept)
    assert sum(w.size for w in weights.values()) == arch.n_params
    assert {name: w.shape for name, w in weights.items()} == weight_shapes(arch)
    assert {w.dtype for w in weights.values()} == {np.dtype(np.float32)}
    expected = model_of(arch, weights)(TOKENS).numpy()
    np.testing.assert_allclose(logits(arch, weights), expected, atol=1e-4 * abs(expected).max())


def closed_form(n_layers, d, n, k, h, f, v):
    return v * d + d + n_layers * (2 * d + 2 * d * n * h + 2 * d * k * h + 3 * d * f)


def test_parameters_by_hand():
    heads, neurons = [[0, 2, 3, 5]] * 3, [[1, 6, 7]] * 3
    kept = {"layers": [0, 2], "heads": heads, "neurons": neurons, "channels": range(10)}
    assert prune(ARCH, WEIGHTS, **kept)[0].n_params == closed_form(2, 10, 4, 2, 4, 3, 40)
    whole_groups = prune(ARCH, WEIGHTS, heads=[[0, 1, 2], [3, 4, 5], [0, 1, 2]])[0]
    assert whole_groups.n_params == closed_form(3, 16, 3, 1, 4, 8, 40)


@given(kept=st.fixed_dictionaries(WAYS), order=st.permutations(list(WAYS)))
def test_the_order_of_the_cuts_does_not_matter(kept, order):
    """After the layers, rows are those of the layers that stayed."""
    arch, weights = prune(ARCH, WEIGHTS, **kept)
    step_arch, step_weights, remaining = ARCH, WEIGHTS, range(3)
    for kind in order:
        indices = kept[kind]
        if kind in ("heads", "neurons"):
            indices = [indices[layer] for layer in remaining]
        step_arch, step_weights = prune(step_arch, step_weights, **{kind: indices})
        if kind == "layers":
            remaining = kept["layers"]
    assert step_arch == arch
    assert all(np.array_equal(w, weights[name]) for name, w in step_weights.items())


def zeroed(kind: str) -> tuple[dict[str, np.ndarray], dict]:
    """Weights in which some units say nothing, and what is left without them."""
    weights = {name: w.copy() for name, w in WEIGHTS.items()}
    for name, w in weights.items():
        module = name.split(".")[-2]
        writes = module in ("o_proj", "down_proj")
        if kind == "layers" and writes and ".1." in name:
            w[:] = 0
        elif kind == "heads" and module == "o_proj":
            w[:, 4:8] = w[:, 16:20] = 0
        elif kind == "neurons" and module == "down_proj":
            w[:, [1, 5]] = 0
        elif kind == "channels" and writes:
            w[[0, 9]] = 0
        elif kind == "channels" and module == "embed_tokens":
            w[:, [0, 9]] = 0
    left = {
        "layers": [0, 2],
        "heads": [[0, 2, 3, 5]] * 3,
        "neurons": [[0, 2, 3, 4, 6, 7]] * 3,
        "channels": [i for i in range(16) if i not in (0, 9)],
    }
    return weights, {kind: left[kind]}


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("eps", [0, EPS])
def test_to_remove_what_says_nothing_changes_no_logit(kind, eps):
    weights, left = zeroed(kind)
    expected = logits(ARCH, weights, eps)
    small = logits(*prune(ARCH, weights, **left), eps)
    np.testing.assert_allclose(small, expected, atol=1e-4 * abs(expected).max())
    whole = logits(*prune(ARCH, WEIGHTS, **left), eps)
    assert abs(whole - logits(ARCH, WEIGHTS, eps)).max() > 0.1  # elsewhere it does change them


def without_the_factor(arch, weights):
    """Channels cut out and the norms left as they were: each divides by another mean."""
    scale = math.sqrt(ARCH.d_model / arch.d_model)
    return {n: w / scale if n.endswith("norm.weight") else w for n, w in weights.items()}


def neighbours_columns(arch, weights):
    """The neurons' ways in are those that stay, their ways out the first ones."""
    return {n: WEIGHTS[n][:, : arch.d_ff] if "down_proj" in n else w for n, w in weights.items()}


def swapped_kv_heads(arch, weights):
    """Query heads read the other group's keys."""
    return {n: np.roll(w, 4, axis=0) if "k_proj" in n else w for n, w in weights.items()}


def layers_in_another_order(arch, weights):
    def swapped(name):
        return name.replace(".0.", ".x.").replace(".1.", ".0.").replace(".x.", ".1.")

    return {swapped(name): w for name, w in weights.items()}


@pytest.mark.parametrize(
    ("kept", "wrong"),
    [
        ({"channels": range(12)}, without_the_factor),
        ({"neurons": [[2, 3, 7]] * 3}, neighbours_columns),
        ({"heads": [[0, 2, 3, 4]] * 3}, swapped_kv_heads),
        ({"layers": [0, 2]}, layers_in_another_order),
    ],
)
def test_the_law_of_the_gates_tells_wrong_cuts(kept, wrong):
    ((of, indices),) = kept.items()
    arch, weights = prune(ARCH, WEIGHTS, **kept)
    with torch.no_grad(), gated(WHOLE, of, gates_of(of, list(indices))):
        expected = WHOLE(TOKENS).numpy()
    np.testing.assert_allclose(logits(arch, weights), expected, atol=1e-3)
    assert abs(logits(arch, wrong(arch, weights)) - expected).max() > 0.05


def test_transformers_loads_it_and_says_the_same():
    heads = [[0, 2, 3, 5], [1, 2, 4, 5], [0, 1, 3, 4]]
    neurons = keep_best(np.random.default_rng(0).random((3, 8)), 5)
    kept = {"layers": [0, 2], "heads": heads, "neurons": neurons, "channels": range(3, 15)}
    arch, weights = prune(ARCH, WEIGHTS, **kept)
    config = LlamaConfig(
        vocab_size=arch.vocab_size,
        hidden_size=arch.d_model,
        intermediate_size=arch.d_ff,
        num_hidden_layers=arch.n_layers,
        num_attention_heads=arch.n_heads,
        num_key_value_heads=arch.n_kv_heads,
        head_dim=arch.head_dim,
        rms_norm_eps=EPS,
        tie_word_embeddings=True,
    )
    theirs = LlamaForCausalLM(config).eval()
    tensors = {name: torch.from_numpy(w) for name, w in weights.items()}
    theirs.load_state_dict(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    with torch.no_grad():
        expected = theirs(torch.from_numpy(TOKENS)).logits.numpy()
    np.testing.assert_allclose(logits(arch, weights), expected, atol=1e-3)


def test_untied_and_windowed_models_are_cut_as_well():
    arch = ARCH.replace(tied_embeddings=False, window=4, local_layers=(2,))
    weights = random_weights(arch)
    small, cut = prune(arch, weights, layers=[0, 2], channels=range(10))
    assert small.local_layers == (1,) and small.layer_windows == (None, 4)
    assert np.array_equal(cut["lm_head.weight"], weights["lm_head.weight"][:, :10])
    tied = WEIGHTS | {"lm_head.weight": WEIGHTS["model.embed_tokens.weight"]}
    model_of(*prune(ARCH, tied, channels=range(10)))  # still equal to the embedding


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"layers": []}, r"layers must be rising integers within 0 … 2, got \[\]"),
        ({"layers": [0, 3]}, "layers must be rising"),
        ({"layers": [1, 0]}, "layers must be rising"),
        ({"channels": [0, 0, 1]}, "channels must be rising integers within 0 … 15"),
        ({"channels": [-1, 0]}, "channels must be rising"),
        ({"channels": [True, False]}, "channels must be rising"),
        ({"neurons": [[0, 1]] * 2}, "neurons must have a row for each of 3 layers, got 2"),
        ({"neurons": [[0], [1], [8]]}, r"neurons\[2\] must be rising integers within 0 … 7"),
        ({"neurons": [[0], [1], [1, 2]]}, r"as many in each layer, got \[1, 1, 2\]"),
        ({"neurons": [[0.5], [1], [2]]}, r"neurons\[0\] must be rising integers"),
        ({"heads": [[0, 1, 3]] * 3}, r"heads\[0\] \[0, 1, 3\] leaves \[2, 1\] query heads"),
        ({"heads": [[0, 3], [0, 1], [0, 3]]}, r"heads\[1\] .* 2 KV heads as in the first layer"),
    ],
)
def test_what_no_llama_can_be_is_said_so(kept, message):
    with pytest.raises(ValueError, match=message):
        prune(ARCH, WEIGHTS, **kept)


def test_weights_that_are_not_the_architecture_s_are_refused():
    with pytest.raises(ValueError, match="lack 1 tensors"):
        prune(ARCH, {n: w for n, w in WEIGHTS.items() if n != "model.norm.weight"})


# Which units are the best


@given(
    scores=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    groups=st.sampled_from([1, 2, 3, 6]),
    per_group=st.integers(1, 6),
)
def test_the_best_are_those_that_no_other_beats(scores, groups, per_group):
    """Few values, so that ties are frequent."""
    size = 6 // groups
    n = min(per_group, size) * groups
    kept = keep_best(scores, n, groups).tolist()
    assert len(set(kept)) == n and kept == sorted(kept)
    for run in range(groups):
        inside = [i for i in kept if i // size == run]
        assert len(inside) == n // groups
        out = set(range(run * size, (run + 1) * size)) - set(inside)
        assert all((scores[i], -i) > (scores[j], -j) for i in inside for j in out)


@pytest.mark.parametrize(
    ("n", "groups", "message"),
    [
        (0, 1, "n must be an integer of at least 1"),
        (7, 1, "n must be at most 6"),
        (3, 2, "groups must divide n 3 and the 6 units, got 2"),
        (4, 4, "groups must divide"),
        (4, 0, "groups must be an integer of at least 1"),
    ],
)
def test_keep_best_says_what_it_cannot(n, groups, message):
    with pytest.raises(ValueError, match=message):
        keep_best(range(6), n, groups)


# Gates and scores


@pytest.mark.parametrize("of", KINDS)
def test_open_gates_are_the_model_and_leave_no_trace(of):
    gates, before = torch.ones(unit_shape(ARCH, of)), WHOLE(TOKENS)
    with gated(WHOLE, of, gates):
        torch.testing.assert_close(WHOLE(TOKENS), before, atol=1e-4, rtol=1e-5)
        gates[...] = 0  # read at each pass
        assert (WHOLE(TOKENS) - before).abs().max() > 0.1
    assert torch.equal(WHOLE(TOKENS), before)
    with pytest.raises(KeyError), gated(WHOLE, of, gates):
        raise KeyError
    assert torch.equal(WHOLE(TOKENS), before)


def loss_without(of: str, unit: tuple[int, ...] | None) -> float:
    """Nats a token of a model of its own, in NumPy, whose weights hold no trace of the unit."""
    arch, weights = ARCH, {name: w.copy() for name, w in WEIGHTS.items()}
    if unit is not None:
        *layer, i = unit
        prefix = f"model.layers.{layer[0] if layer else i}."
        if of in ("heads", "kv_heads"):
            width = 4 if of == "heads" else 12
            weights[prefix + "self_attn.o_proj.weight"][:, i * width : (i + 1) * width] = 0
        elif of == "neurons":
            weights[prefix + "mlp.up_proj.weight"][i] = 0
        elif of == "layers":
            weights[prefix + "self_attn.o_proj.weight"][:] = 0
            weights[prefix + "mlp.down_proj.weight"][:] = 0
        else:  # nothing is ever written into the channel, and the norms count it as zero
            weights["model.embed_tokens.weight"][:, i] = 0
            for name in weights:
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weights[name][i] = 0
    said = logits(arch, weights)[:, :-1].astype(np.float64)
    said -= np.log(np.exp(said).sum(-1, keepdims=True))
    return -np.take_along_axis(said, TOKENS[:, 1:, None], -1).mean()


@pytest.mark.parametrize("of", KINDS)
def test_leaving_one_out_is_the_loss_of_a_model_without_it(of):
    truth, whole = importance(WHOLE, TOKENS, of, "leave_one_out"), loss_without(of, None)
    assert truth.shape == unit_shape(ARCH, of)
    expected = [loss_without(of, unit) - whole for unit in np.ndindex(*truth.shape)]
    np.testing.assert_allclose(truth.ravel(), expected, atol=1e-4)
    assert np.abs(truth).max() > 0.01


@pytest.mark.parametrize("of", KINDS)
def test_taylor_is_the_slope_at_the_open_gate(of):
    """By finite differences in float64, row by row, since a row's sign is taken away."""
    model, step = model_of(ARCH, WEIGHTS).double(), 1e-5
    gates, slopes = torch.ones(unit_shape(ARCH, of), dtype=torch.float64), []
    rows = torch.from_numpy(TOKENS)

    def losses():
        return cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none").mean(1)

    with torch.no_grad(), gated(model, of, gates):
        for unit in np.ndindex(*gates.shape):
            sides = []
            for gate in (1 + step, 1 - step):
                gates[unit] = gate
                sides.append(losses())
            gates[unit] = 1
            slopes.append(((sides[0] - sides[1]) / (2 * step)).abs().mean().item())
    ours = importance(model, TOKENS, of, "taylor").ravel()
    np.testing.assert_allclose(ours, slopes, atol=1e-7, rtol=1e-5)


def rescaled(factor: float) -> dict[str, np.ndarray]:
    """The same function: one neuron and one KV head speak louder, and are heard more faintly."""
    weights = {name: w.copy() for name, w in WEIGHTS.items()}
    layer = "model.layers.1."
    weights[layer + "mlp.up_proj.weight"][3] *= factor
    weights[layer + "mlp.down_proj.weight"][:, 3] /= factor
    weights[layer + "self_attn.v_proj.weight"][4:] *= factor
    weights[layer + "self_attn.o_proj.weight"][:, 12:] /= factor
    return weights


@pytest.mark.parametrize(("of", "unit"), [("neurons", (1, 3)), ("kv_heads", (1, 1))])
def test_what_a_unit_is_worth_does_not_depend_on_how_it_is_written(of, unit):
    """Loudness does, and so does what is listened to; their product and the truth do not."""
    same = model_of(ARCH, rescaled(8.0))
    np.testing.assert_allclose(logits(ARCH, rescaled(8.0)), logits(ARCH, WEIGHTS), atol=1e-3)
    for method, factor in (("activation", 8), ("gradient", 1 / 8), ("taylor", 1)):
        before, after = (importance(m, TOKENS, of, method)[unit] for m in (WHOLE, same))
        assert after == pytest.approx(factor * before, rel=1e-3)
    before, after = (importance(m, TOKENS, of, "leave_one_out")[unit] for m in (WHOLE, same))
    assert after == pytest.approx(before, abs=1e-5)


def test_of_a_unit_that_matters_little_taylor_says_how_little():
    """One row, so that no sign is lost; the error of first order is of second."""
    weights = {name: w.astype(np.float64) for name, w in WEIGHTS.items()}
    weights["model.layers.0.mlp.down_proj.weight"][:, 2] *= 1e-3
    weights["model.layers.2.self_attn.o_proj.weight"][:, 4:8] *= 1e-3
    model = model_of(ARCH, weights).double()
    for of, unit in (("neurons", (0, 2)), ("heads", (2, 1))):
        taylor, truth = (importance(model, TOKENS[:1], of, m)[unit] for m in ("taylor", METHODS[3]))
        assert taylor == pytest.approx(abs(truth), rel=0.02) and 0 < taylor < 1e-2


def test_activations_and_gradients_of_neurons_by_hand():
    """The first layer's, from NumPy; the gradient by a small step of what a neuron says."""
    rng = np.random.default_rng(5)
    tokens, prefix = rng.integers(40, size=(1, 2)), "model.layers.2."
    x = []
    model = model_of(ARCH, WEIGHTS).double()
    hook = model.model.layers[2].mlp.register_forward_pre_hook(lambda _, a: x.append(a[0]))
    model(tokens[:, :1])
    hook.remove()
    gate, up, down = (
        WEIGHTS[f"{prefix}mlp.{n}_proj.weight"].astype(float) for n in ("gate", "up", "down")
    )
    h = x[0][0, 0].numpy()
    said = silu(gate @ h) * (up @ h)
    ours = importance(model, tokens, "neurons", "activation")[2]
    np.testing.assert_allclose(ours, abs(said), rtol=1e-5)
    # One position, last layer: what follows the MLP is a norm, the unembedding, the loss.
    before = []
    hook = model.model.layers[2].register_forward_hook(lambda _, __, out: before.append(out))
    model(tokens[:, :1])
    hook.remove()

    def loss(change):
        stream = before[0][0, 0].numpy() + down @ change
        out = rms_norm(stream, WEIGHTS["model.norm.weight"].astype(float), EPS)
        scores = WEIGHTS["model.embed_tokens.weight"].astype(float) @ out
        return np.log(np.exp(scores).sum()) - scores[tokens[0, 1]]

    steps = 1e-5 * np.eye(8)
    slopes = [(loss(s) - loss(-s)) / 2e-5 for s in steps]
    ours = importance(model, tokens, "neurons", "gradient")[2]
    np.testing.assert_allclose(ours, np.abs(slopes), rtol=1e-4)


def test_a_layer_that_adds_nothing_has_no_importance_by_any_method():
    weights, _ = zeroed("layers")
    model = model_of(ARCH, weights)
    for method in set(METHODS) - {"gradient"}:
        scores = importance(model, TOKENS, "layers", method)
        assert scores[1] == pytest.approx(0, abs=1e-5)
        assert np.abs(scores[[0, 2]]).min() > 1e-3


def test_block_influence_is_the_turn_of_the_residual_stream():
    seen = []
    hooks = [
        layer.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
        for layer in WHOLE.model.layers
    ]
    WHOLE(TOKENS[:, :-1])
    for hook in hooks:
        hook.remove()
    expected = []
    for before, after in ((a.numpy().astype(float), b.numpy().astype(float)) for a, b in seen):
        norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
        expected.append(np.mean(1 - (before * after).sum(-1) / norms))
    ours = importance(WHOLE, TOKENS, "layers", "block_influence")
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TOKENS, "experts"), "of must be one of layers, heads, kv_heads, neurons, channels, got"),
        ((TOKENS, "heads", "hope"), "method must be one of activation, gradient, taylor"),
        ((TOKENS, "heads", "block_influence"), "block_influence is of layers, got of 'heads'"),
        ((TOKENS[:, :1], "heads"), "tokens must be at least 2 a row"),
        ((TOKENS + 40, "heads"), "tokens hold ids"),
        ((TOKENS[0], "heads"), "tokens must be integers"),
    ],
)
def test_importance_says_what_it_cannot(arguments, message):
    with pytest.raises(ValueError, match=message):
        importance(WHOLE, *arguments)


def test_gates_of_another_shape_are_refused():
    with (
        pytest.raises(ValueError, match=r"gates of heads must have shape \(3, 6\)"),
        gated(WHOLE, "heads", torch.ones(3, 2)),
    ):
        pass


def test_scores_leave_a_better_model_than_the_worst_choice():
    """The shipped target, half of its neurons: those with the high scores, or the others."""
    model, tok = load_model("target", "torch"), tokenizer()
    ids = tok.encode(data_path("heldout.txt").read_text("utf-8")[:2000])[: 6 * 64]
    calibration, text = np.array(ids).reshape(2, 3, 64)
    for method in ("activation", "gradient", "taylor"):
        scores, losses = importance(model, calibration, "neurons", method), []
        for sign in (1, -1):
            gates = torch.zeros(scores.shape)
            gates.scatter_(1, torch.from_numpy(keep_best(sign * scores, 256)), 1)
            with torch.no_grad(), gated(model, "neurons", gates):
                said = model(text[:, :-1]).mT
            losses.append(cross_entropy(said, torch.from_numpy(text[:, 1:])).item())
        assert losses[0] < losses[1] - 0.3


# Two of four


@given(
    st.lists(
        st.lists(st.integers(-3, 3), min_size=8, max_size=8), min_size=1, max_size=3
    )  # ties and zeros are frequent
)
def test_of_every_four_two_are_left_and_no_other_two_lose_less(rows):
    w = np.array(rows, dtype=np.float32)
    pruned = prune_2_4(w)
    for before, after in zip(w.reshape(-1, 4), pruned.reshape(-1, 4), strict=True):
        assert np.count_nonzero(after) <= 2
        assert np.all((after == 0) | (after == before))
        lost = np.square(before - after).sum()
        assert lost == min(
            np.square(before[list(gone)]).sum() for gone in combinations(range(4), 2)
        )
    assert np.array_equal(prune_2_4(pruned), pruned)


def test_pytorch_s_own_pruner_leaves_the_same():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 12, bias=False))
    w = net[0].weight.detach().numpy().copy()
    theirs = WeightNormSparsifier(sparsity_level=1.0, sparse_block_shape=(1, 4), zeros_per_block=2)
    theirs.prepare(net, [{"tensor_fqn": "0.weight"}])
    theirs.step()
    theirs.squash_mask()
    assert np.array_equal(prune_2_4(w), net[0].weight.detach().numpy())


def test_where_inputs_do_not_overlap_wanda_loses_least():
    """Of all patterns, by trying them; magnitude alone loses more."""
    rng = np.random.default_rng(0)
    w, norms = rng.normal(size=(20, 4)), np.array([0.1, 1.0, 3.0, 10.0])
    x = np.linalg.qr(rng.normal(size=(9, 4)))[0] * norms  # columns at right angles

    def lost(pruned):
        return np.square(x @ (w - pruned).T).sum(0)

    patterns = [np.isin(range(4), kept) for kept in combinations(range(4), 2)]
    best = np.min([lost(w * p) for p in patterns], axis=0)
    np.testing.assert_allclose(lost(prune_2_4(w, np.abs(w) * np.linalg.norm(x, axis=0))), best)
    assert lost(prune_2_4(w)).sum() > 1.5 * best.sum()


def test_the_pattern_lies_along_the_inputs():
    """The other axis would be no pattern that hardware skips."""
    w = np.array([[4.0, 3.0, 2.0, 1.0]] * 4)
    assert np.count_nonzero(prune_2_4(w), axis=1).tolist() == [2] * 4
    assert np.count_nonzero(prune_2_4(w), axis=0).tolist() == [4, 4, 0, 0]


@pytest.mark.parametrize(
    ("w", "scores", "message"),
    [
        (np.ones((2, 6)), None, r"last axis that 4 divides, got shape \(2, 6\)"),
        (np.float32(1), None, "last axis"),
        (np.ones((2, 4)), np.ones(4), r"scores must be numbers of w's shape \(2, 4\)"),
        (np.ones(4), np.array([1, 2, np.nan, 0]), "with 1 NaN"),
        (np.array([1, 2, np.nan, 0]), None, "with 1 NaN"),
    ],
)
def test_prune_2_4_says_what_it_cannot(w, scores, message):
    with pytest.raises(ValueError, match=message):
        prune_2_4(w, scores)


def test_input_norms_are_those_of_what_the_matrices_read():
    norms = input_norms(WHOLE, TOKENS)
    assert {name: (WEIGHTS[name].shape[1],) for name in norms} == {
        name: n.shape for name, n in norms.items()
    }
    assert len(norms) == 7 * ARCH.n_layers
    prefix = "model.layers.0."
    x = WEIGHTS["model.embed_tokens.weight"][TOKENS]
    h = rms_norm(x, WEIGHTS[prefix + "input_layernorm.weight"], EPS).reshape(-1, 16)
    np.testing.assert_allclose(
        norms[prefix + "self_attn.k_proj.weight"], np.linalg.norm(h, axis=0), rtol=1e-5
    )
    assert not any(module._forward_pre_hooks for module in WHOLE.modules())


# Distillation


LOGITS = st.lists(st.lists(st.floats(-4, 4), min_size=5, max_size=5), min_size=2, max_size=2).map(
    lambda rows: torch.tensor(rows, dtype=torch.float32)
)


@given(student=LOGITS, teacher=LOGITS, temperature=st.sampled_from([0.5, 1.0, 3.0]))
def test_the_loss_is_scipy_s_divergence(student, teacher, temperature):
    p, q = ((x.double() / temperature).softmax(-1).numpy() for x in (teacher, student))
    expected = temperature**2 * stats.entropy(p, q, axis=-1).mean()
    ours = distillation_loss(student, teacher, temperature).item()
    assert ours == pytest.approx(expected, abs=2e-5) and ours >= -1e-6


@given(student=LOGITS, teacher=LOGITS, temperature=st.sampled_from([0.5, 1.0, 3.0]))
def test_the_gradient_is_the_difference_of_the_distributions(student, teacher, temperature):
    student = student.requires_grad_()
    distillation_loss(student, teacher, temperature).backward()
    p, q = ((x.detach() / temperature).softmax(-1) for x in (teacher, student))
    torch.testing.assert_close(student.grad, temperature * (q - p) / 2, atol=1e-5, rtol=1e-4)


def test_at_high_temperature_logits_are_matched():
    """Hinton's equation 4: the gradient no longer shrinks, thanks to the factor temperature²."""
    rng = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 1, 5, generator=rng)
    student.requires_grad_()
    distillation_loss(student, teacher, 1e3).backward()
    centred = (student - student.mean()) - (teacher - teacher.mean())
    torch.testing.assert_close(student.grad, centred.detach() / 5, atol=1e-3, rtol=1e-2)


def test_a_teacher_who_is_certain_is_a_hard_label():
    student, label = torch.tensor([[0.3, -1.0, 2.0]]), 1
    certain = torch.tensor([[-200.0, 200.0, -200.0]])
    expected = cross_entropy(student, torch.tensor([label]))
    torch.testing.assert_close(distillation_loss(student, certain), expected)


def test_a_divergence_the_other_way_round_is_another():
    """It would forgive a student who leaves out what the teacher may say."""
    teacher = torch.tensor([[0.0, 0.0, -9.0]])
    student = torch.tensor([[9.0, 0.0, -9.0]])
    forward, backward = distillation_loss(student, teacher), distillation_loss(teacher, student)
    assert forward > 4 * backward
    assert distillation_loss(teacher + 3, teacher).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "temperature", "message"),
    [
        ((2, 4), 1.0, r"student \(2, 3\) and teacher \(2, 4\) differ"),
        ((2, 3), 0.0, "temperature must be a finite number above 0, got 0.0"),
        ((2, 3), math.nan, "temperature must be"),
    ],
)
def test_distillation_says_what_it_cannot(shape, temperature, message):
    with pytest.raises(ValueError, match=message):
        distillation_loss(torch.zeros(2, 3), torch.zeros(shape), temperature)


def test_the_table_knows_every_axis_of_every_tensor():
    for name, shape in weight_shapes(ARCH.replace(tied_embeddings=False)).items():
        assert len(AXES[name.split(".")[-2]]) == len(shape)
