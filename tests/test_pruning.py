"""Pruning: a smaller model is the whole one with gates shut, and scores mean what they say."""

import math
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.nn.functional import cross_entropy

from firsttoken.architectures import Architecture
from firsttoken.attention import rms_norm
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama import Llama as NumpyLlama
from firsttoken.models.llama import silu
from firsttoken.models.llama_torch import Llama
from firsttoken.pruning import (
    distillation_loss,
    gated,
    importance,
    input_norms,
    keep_best,
    prune,
    prune_2_4,
    unit_shape,
)

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


def without_the_factor(arch, weights):
    """Channels cut out and the norms left as they were: each divides by another mean."""
    scale = math.sqrt(ARCH.d_model / arch.d_model)
    return {n: w / scale if n.endswith("norm.weight") else w for n, w in weights.items()}


def neighbours_columns(arch, weights):
    """The neurons' ways in are those that stay, their ways out the first ones."""
    return {n: WEIGHTS[n][:, : arch.d_ff] if "down_proj" in n else w for n, w in weights.items()}


def test_the_law_of_the_gates_tells_wrong_cuts():
    for of, indices, wrong in [
        ("channels", range(12), without_the_factor),
        ("neurons", [[2, 3, 7]] * 3, neighbours_columns),
    ]:
        arch, weights = prune(ARCH, WEIGHTS, **{of: indices})
        with torch.no_grad(), gated(WHOLE, of, gates_of(of, list(indices))):
            expected = WHOLE(TOKENS).numpy()
        np.testing.assert_allclose(logits(arch, weights), expected, atol=1e-3)
        assert abs(logits(arch, wrong(arch, weights)) - expected).max() > 0.05, of


def test_untied_and_windowed_models_are_cut_as_well():
    arch = ARCH.replace(tied_embeddings=False, window=4, local_layers=(2,))
    weights = random_weights(arch)
    small, cut = prune(arch, weights, layers=[0, 2], channels=range(10))
    assert small.local_layers == (1,) and small.layer_windows == (None, 4)
    assert np.array_equal(cut["lm_head.weight"], weights["lm_head.weight"][:, :10])
    tied = WEIGHTS | {"lm_head.weight": WEIGHTS["model.embed_tokens.weight"]}
    model_of(*prune(ARCH, tied, channels=range(10)))  # still equal to the embedding


def test_what_no_llama_can_be_is_said_so(subtests):
    for kept, message in [
        ({"layers": []}, r"layers must be rising integers within 0 … 2, got \[\]"),
        ({"channels": [0, 0, 1]}, "channels must be rising integers within 0 … 15"),
        ({"neurons": [[0, 1]] * 2}, "neurons must have a row for each of 3 layers, got 2"),
        ({"neurons": [[0], [1], [8]]}, r"neurons\[2\] must be rising integers within 0 … 7"),
        ({"neurons": [[0], [1], [1, 2]]}, r"as many in each layer, got \[1, 1, 2\]"),
        ({"heads": [[0, 1, 2]]}, "heads must have a row for each of 3 layers, got 1"),
        ({"heads": [[0, 1, 3]] * 3}, r"heads\[0\] \[0, 1, 3\] leaves \[2, 1\] query heads"),
        ({"heads": [[0, 3], [0, 1], [0, 3]]}, r"heads\[1\] .* 2 KV heads as in the first layer"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            prune(ARCH, WEIGHTS, **kept)
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


# Gates and scores


def test_open_gates_are_the_model_and_leave_no_trace():
    before = WHOLE(TOKENS)
    for of in KINDS:
        gates = torch.ones(unit_shape(ARCH, of))
        with gated(WHOLE, of, gates):
            torch.testing.assert_close(WHOLE(TOKENS), before, atol=1e-4, rtol=1e-5)
            gates[...] = 0  # read at each pass
            assert (WHOLE(TOKENS) - before).abs().max() > 0.1, of
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


def test_leaving_one_out_is_the_loss_of_a_model_without_it():
    for of in KINDS:
        truth, whole = importance(WHOLE, TOKENS, of, "leave_one_out"), loss_without(of, None)
        assert truth.shape == unit_shape(ARCH, of)
        expected = [loss_without(of, unit) - whole for unit in np.ndindex(*truth.shape)]
        np.testing.assert_allclose(truth.ravel(), expected, atol=1e-4, err_msg=of)
        assert np.abs(truth).max() > 0.01


def test_taylor_is_the_slope_at_the_open_gate():
    """By finite differences in float64, row by row, since a row's sign is taken away."""
    model, step = model_of(ARCH, WEIGHTS).double(), 1e-5
    rows = torch.from_numpy(TOKENS)

    def losses():
        return cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none").mean(1)

    for of in KINDS:
        gates, slopes = torch.ones(unit_shape(ARCH, of), dtype=torch.float64), []
        with torch.no_grad(), gated(model, of, gates):
            for unit in np.ndindex(*gates.shape):
                sides = []
                for gate in (1 + step, 1 - step):
                    gates[unit] = gate
                    sides.append(losses())
                gates[unit] = 1
                slopes.append(((sides[0] - sides[1]) / (2 * step)).abs().mean().item())
        ours = importance(model, TOKENS, of, "taylor").ravel()
        np.testing.assert_allclose(ours, slopes, atol=1e-7, rtol=1e-5, err_msg=of)


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


def test_importance_and_gates_say_what_they_cannot(subtests):
    for arguments, message in [
        ((TOKENS, "experts"), "of must be one of layers, heads, kv_heads, neurons, channels, got"),
        ((TOKENS, "heads", "hope"), "method must be one of activation, gradient, taylor"),
        ((TOKENS, "heads", "block_influence"), "block_influence is of layers, got of 'heads'"),
        ((TOKENS[:, :1], "heads"), "tokens must be at least 2 a row"),
        ((TOKENS + 40, "heads"), "tokens hold ids"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            importance(WHOLE, *arguments)
    shut = gated(WHOLE, "heads", torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"gates of heads must have shape \(3, 6\)"), shut:
        pass


# Two of four


@given(st.lists(st.lists(st.integers(-3, 3), min_size=8, max_size=8), min_size=1, max_size=3))
def test_of_every_four_two_are_left_and_no_other_two_lose_less(rows):
    """Four neighbours along the inputs; ties and zeros are frequent."""
    w = np.array(rows, dtype=np.float32)
    pruned = prune_2_4(w)
    for before, after in zip(w.reshape(-1, 4), pruned.reshape(-1, 4), strict=True):
        assert np.count_nonzero(after) <= 2
        assert np.all((after == 0) | (after == before))
        pairs = [list(gone) for gone in combinations(range(4), 2)]
        lost = np.square(before - after).sum()
        assert lost == min(np.square(before[gone]).sum() for gone in pairs)
    assert np.array_equal(prune_2_4(pruned), pruned)


def test_what_cannot_be_is_said_so(subtests):
    nan = np.array([1, 2, np.nan, 0])
    for call, message in [
        (lambda: keep_best(range(6), 0), "n must be an integer of at least 1"),
        (lambda: keep_best(range(6), 7), "n must be at most 6"),
        (lambda: keep_best(range(6), 3, 2), "groups must divide n 3 and the 6 units, got 2"),
        (lambda: keep_best(range(6), 4, 0), "groups must be an integer of at least 1"),
        (lambda: prune_2_4(np.ones((2, 6))), r"last axis that 4 divides, got shape \(2, 6\)"),
        (lambda: prune_2_4(np.ones((2, 4)), np.ones(4)), r"scores .* of w's shape \(2, 4\)"),
        (lambda: prune_2_4(np.ones(4), nan), "with 1 NaN"),
        (lambda: distill(torch.zeros(2, 4), 1.0), r"student \(2, 3\) and teacher \(2, 4\) differ"),
        (lambda: distill(torch.zeros(2, 3), 0.0), "temperature must be .* above 0, got 0.0"),
        (lambda: distill(torch.zeros(2, 3), math.inf), "temperature must be a finite .* got inf"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()


distill = partial(distillation_loss, torch.zeros(2, 3))


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
def test_the_loss_is_scipy_s_divergence_and_its_gradient_the_difference(
    student, teacher, temperature
):
    loss = distillation_loss(student.requires_grad_(), teacher, temperature)
    p, q = ((x.detach().double() / temperature).softmax(-1) for x in (teacher, student))
    expected = temperature**2 * stats.entropy(p.numpy(), q.numpy(), axis=-1).mean()
    assert loss.item() == pytest.approx(expected, abs=2e-5) and loss.item() >= -1e-6
    loss.backward()
    slope = (temperature * (q - p) / 2).float()
    torch.testing.assert_close(student.grad, slope, atol=1e-5, rtol=1e-4)
