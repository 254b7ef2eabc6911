"""Attention against torch's and transformers', and its laws."""

import inspect
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import DeepseekV2Config, DeepseekV3Config, DynamicCache
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3

from firsttoken.architectures import ARCHITECTURES, Architecture, from_hf_config
from firsttoken.attention import (
    LatentAttention,
    SoftmaxMean,
    attention,
    online_softmax,
    receptive_field,
    rms_norm,
)
from firsttoken.kv_cache import KVCache


def tensors(t, s, n_heads=4, n_kv_heads=2, batch=2, head_dim=8, dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = (batch, n_heads, t, head_dim), *[(batch, n_kv_heads, s, head_dim)] * 2
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def visible(t, s, causal, window, sinks, shift=0):
    """The mask from its definition, one pair at a time; `shift` moves every query."""
    mask = np.zeros((t, s), dtype=bool)
    for i in range(t):
        query = s - t + i + shift
        for key in range(s):
            near = window is None or key >= query - (window - 1) or key < sinks
            mask[i, key] = near and (not causal or key <= query)
    return mask


def oracle(q, k, v, mask, scale=None):
    """torch's attention with K and V copied out to every query head."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (torch.from_numpy(x) for x in (q, k, v))
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.from_numpy(mask), scale=scale
    )
    return out.numpy()


@given(
    s=st.integers(1, 12),
    share=st.floats(0, 1),
    mask=st.sampled_from([(False, None), (True, None)])
    | st.tuples(st.just(True), st.integers(1, 14)),
    sinks=st.integers(0, 4),
    n_kv_heads=st.sampled_from([1, 2, 3, 6]),
    scale=st.none() | st.floats(0.1, 2),
    of=st.sampled_from([(np.float32, 1e-5), (np.float64, 1e-12)]),
    value_dim=st.sampled_from([8, 5]),
)
def test_equals_torch(s, share, mask, sinks, n_kv_heads, scale, of, value_dim):
    """Any sizes, masks and ratios of heads; values may be of another size than keys."""
    t, (causal, window), (dtype, rounding) = 1 + round(share * (s - 1)), mask, of
    q, k, v = tensors(t, s, n_heads=6, n_kv_heads=n_kv_heads, dtype=dtype)
    v = v[..., :value_dim].copy()
    got = attention(q, k, v, causal=causal, window=window, sinks=sinks, scale=scale)
    expected = oracle(q, k, v, visible(t, s, causal, window, sinks), scale)
    np.testing.assert_allclose(got, expected, atol=rounding)
    assert got.dtype == dtype


def test_errors_name_what_is_wrong(subtests):
    right = (1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)
    for shapes, options, message in [
        (((1, 2, 3, 4), *right[1:]), {}, "T = 3 queries, k only S = 2"),
        (((1, 3, 1, 4), *right[1:]), {}, "N a multiple of K"),
        ((*right[:2], (1, 2, 3, 4)), {}, "do not fit together"),
        (((2, 1, 4), (2, 2, 4), (2, 2, 4)), {}, "do not fit together"),
        (right, {"window": 0}, "window must be an integer"),
        (right, {"sinks": -1}, "sinks must be an integer"),
        (right, {"window": 2, "causal": False}, "expected causal=True"),
    ]:
        with subtests.test(f"{shapes}, {options}"), pytest.raises(ValueError, match=message):
            attention(*map(np.zeros, shapes), **options)


# --- the softmax that reads its scores once

score = st.one_of(st.just(-math.inf), st.floats(-800, 800))


def test_half_precision_is_computed_with_in_single():
    """In float16 these scores overflow, and sums of more than 2,048 weights no longer grow."""
    rng = np.random.default_rng(0)
    k = rng.normal(scale=60, size=(1, 2, 5000, 64)).astype(np.float16)
    v = rng.normal(size=(1, 2, 5000, 64)).astype(np.float16)
    for n_new in (1, 3):
        q = rng.normal(scale=60, size=(1, 4, n_new, 64)).astype(np.float16)
        exact = attention(*(x.astype(np.float64) for x in (q, k, v)))
        got = attention(q, k, v)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, exact, atol=1e-2)
        level = attention(np.zeros_like(q), k, np.ones_like(v))
        np.testing.assert_allclose(level, 1.0, rtol=1e-5)
    scores, values = np.zeros(4096, np.float16), np.arange(4096)[:, None] % 2
    mean = online_softmax(scores, values.astype(np.float16))
    assert mean.dtype == np.float32
    assert mean.item() == pytest.approx(0.5, abs=1e-4)


@given(scores=st.lists(score, min_size=1, max_size=8).filter(lambda x: max(x) > -math.inf))
def test_online_softmax_equals_the_definition(scores):
    """-inf at the start, in the middle, at the end; scores whose exp would overflow."""
    scores = np.array(scores)
    values = np.random.default_rng(0).normal(size=(len(scores), 3))
    expected = torch.from_numpy(scores).softmax(-1).numpy() @ values
    np.testing.assert_allclose(online_softmax(scores, values), expected, atol=1e-12)
    # Any leading axes, each row by itself.
    both = online_softmax(np.stack([scores, scores[::-1]]), np.stack([values, values[::-1]]))
    np.testing.assert_allclose(both, np.stack([expected, expected]), atol=1e-12)


@settings(max_examples=30)
@given(cuts=st.sets(st.integers(1, 11)), hidden=st.sets(st.integers(0, 11), max_size=11))
def test_a_mean_is_the_same_in_whatever_parts_it_comes(cuts, hidden):
    """Parts of several arrays, and parts in which there is nothing to weigh."""
    rng = np.random.default_rng(0)
    scores, values = 100 * rng.normal(size=(2, 3, 12)), rng.normal(size=(2, 12, 5))
    scores[..., list(hidden)] = -np.inf
    mean = SoftmaxMean((2, 3, 5))
    edges = [0, *sorted(cuts), 12]
    for start, end in pairwise(edges):
        middle = (start + end) // 2
        mean.add(scores[..., start:end].copy(), [values[:, start:middle], values[:, middle:end]])
        seen = np.where(np.arange(12) < end, scores, -np.inf)
        np.testing.assert_array_equal(mean.peak, seen.max(axis=-1, keepdims=True))
    expected = torch.from_numpy(scores).softmax(-1).numpy() @ values
    np.testing.assert_allclose(mean.result(), expected, atol=1e-12)
    assert (mean.peak.dtype, mean.total.dtype, mean.mixed.dtype) == (np.float64,) * 3


def test_scores_without_a_softmax(subtests):
    for scores, shape, message in [
        ([0.0, 1.0], (3, 1), r"scores \(2,\) must be \(…, S\), values \(3, 1\)"),
        ([0.0, math.nan], (2, 1), "NaN or inf"),
        ([[0.0, 1.0], [-math.inf] * 2], (2, 2, 1), "all -inf"),
    ]:
        with subtests.test(str(scores)), pytest.raises(ValueError, match=message):
            online_softmax(np.array(scores), np.zeros(shape))


# --- latent attention

LATENT = Architecture(
    *("latent", 1, 16, 3, 3, 6, 32, 50), latent_dim=8, rope_head_dim=4, v_head_dim=5
)


def latent_attention(arch, seed=0, dtype=np.float64, **options):
    rng = np.random.default_rng(seed)
    shapes = LatentAttention.weight_shapes(arch)
    weights = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    frequencies = 10.0 ** -np.arange(arch.rope_head_dim // 2)
    return LatentAttention(arch, weights, frequencies.astype(dtype), **options)


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40, "mscale": 0.7}
YARN |= {"mscale_all_dim": 0.7, "original_max_position_embeddings": 8}
HUGGING_FACE = {"v2": modeling_deepseek_v2, "v3": modeling_deepseek_v3}


def hugging_face(version, q_latent_dim, rope):
    """Return DeepSeek's attention with random weights, its rotary tables, and ours."""
    module = HUGGING_FACE[version]
    config = {"v2": DeepseekV2Config, "v3": DeepseekV3Config}[version](
        **{"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4},
        **{"kv_lora_rank": 12, "q_lora_rank": q_latent_dim, "qk_nope_head_dim": 10},
        **{"qk_rope_head_dim": 6, "v_head_dim": 7},
        **{"num_hidden_layers": 1, "first_k_dense_replace": 1},
        rope_parameters=rope or {"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=320,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    prefix = version.upper()
    theirs = getattr(module, f"Deepseek{prefix}Attention")(config, 0).eval()
    rotary = getattr(module, f"Deepseek{prefix}RotaryEmbedding")(config)
    with torch.no_grad():
        for parameter in theirs.parameters():  # norms too: all ones would hide a missing one
            parameter.normal_(std=0.3)
    ours = LatentAttention(
        from_hf_config(config.to_dict()),
        {name: tensor.numpy() for name, tensor in theirs.state_dict().items()},
        rotary.inv_freq.numpy(),
        scale=theirs.scaling,
    )
    return theirs, rotary, ours


def run_theirs(theirs, rotary, x, start=0, cache=None):
    x = torch.from_numpy(x)
    t, s = x.shape[1], start + x.shape[1]
    mask = torch.from_numpy(np.where(visible(t, s, True, None, 0), 0, -np.inf).astype(np.float32))
    positions = torch.arange(start, s)[None]
    parameters = inspect.signature(theirs.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"  # as older versions have it
    with torch.no_grad():
        return theirs(
            hidden_states=x,
            position_embeddings=rotary(x, positions),
            attention_mask=mask[None, None],
            **{name: cache},
        )[0].numpy()


@pytest.mark.parametrize(("version", "q_latent_dim", "rope"), [("v2", None, None), ("v3", 9, YARN)])
def test_latent_attention_equals_transformers(version, q_latent_dim, rope):
    """In one pass, and through both caches in pieces: prefill, one token, several."""
    theirs, rotary, ours = hugging_face(version, q_latent_dim, rope)
    x = np.random.default_rng(1).normal(size=(2, 12, 32)).astype(np.float32)
    expected = run_theirs(theirs, rotary, x)
    assert np.abs(expected).mean() > 0.1
    their_cache, caches = DynamicCache(), [KVCache(ours.arch, 2, 12) for _ in range(2)]
    for absorbed in (False, True):
        np.testing.assert_allclose(ours(x, absorbed=absorbed), expected, atol=1e-5)
    for start, end in [(0, 7), (7, 8), (8, 12)]:
        piece = x[:, start:end]
        expected = run_theirs(theirs, rotary, piece, start, their_cache)
        for absorbed, cache in enumerate(caches):
            got = ours(piece, cache, absorbed=bool(absorbed))
            np.testing.assert_allclose(got, expected, atol=1e-5)


sizes = st.integers(1, 4)


@given(data=st.data(), pieces=st.lists(sizes, min_size=1, max_size=4), batch=st.integers(1, 2))
def test_absorbed_equals_plain(data, pieces, batch):
    """The same sum in another order, so 1e-10 is rounding only: prefill, decode, any window."""
    rotary, window = 2 * data.draw(sizes), data.draw(st.none() | sizes)
    arch = LATENT.replace(
        n_heads=(n := data.draw(sizes)),
        n_kv_heads=n,
        head_dim=rotary + data.draw(sizes),
        rope_head_dim=rotary,
        latent_dim=data.draw(sizes),
        v_head_dim=data.draw(sizes),
        q_latent_dim=data.draw(st.none() | sizes),
        window=window,
    )
    mla = latent_attention(arch)
    x = np.random.default_rng(1).normal(size=(batch, sum(pieces), arch.d_model))
    np.testing.assert_allclose(mla(x), mla(x, absorbed=True), rtol=1e-10, atol=1e-10)
    caches = [KVCache(arch, batch, sum(pieces)) for _ in range(2)]
    for piece in np.split(x, np.cumsum(pieces)[:-1], axis=1):
        plain, absorbed = (mla(piece, c, absorbed=a) for c, a in zip(caches, (0, 1), strict=True))
        np.testing.assert_allclose(plain, absorbed, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(caches[0].keys(0), caches[1].keys(0))


def test_each_layer_has_its_window_and_its_place_in_the_cache():
    """Two layers over one cache, the first with a window: each is what it is alone."""
    arch = LATENT.replace(n_layers=2, window=3, local_layers=[0])
    layers = [latent_attention(arch, seed, np.float32) for seed in (0, 1)]
    x = np.random.default_rng(1).normal(size=(2, 9, 16)).astype(np.float32)
    for absorbed in (False, True):
        cache, pieces = KVCache(arch, 2, 9), ([], [])
        for piece in (x[:, :5], x[:, 5:]):
            for i, layer in enumerate(layers):
                pieces[i].append(layer(piece, cache, i, absorbed))
        for i, window in enumerate((3, None)):
            alone = latent_attention(LATENT.replace(window=window), i, np.float32)(x)
            got = np.concatenate(pieces[i], axis=1)
            np.testing.assert_allclose(got, alone, rtol=1e-4, atol=1e-4)
            assert alone.dtype == got.dtype == np.float32


def test_what_latent_attention_takes_where_nothing_is_said():
    """Scores over the root of a query's size, 1e-6 in the norms, no cache and the plain form."""
    x = 1e-3 * np.random.default_rng(1).normal(size=(1, 5, 16))
    said = latent_attention(LATENT, scale=1 / math.sqrt(6), norm_eps=1e-6)(x, None, 0, False)
    np.testing.assert_array_equal(latent_attention(LATENT)(x), said)


def test_rms_norm_equals_torch():
    x, weight = np.random.default_rng(0).normal(size=(2, 3, 8)), np.arange(8.0)
    for eps in (0.0, 0.5):
        expected = torch.nn.functional.rms_norm(
            torch.from_numpy(x), (8,), torch.from_numpy(weight), eps
        )
        np.testing.assert_allclose(rms_norm(x, weight, eps), expected.numpy(), rtol=1e-12)


def test_latent_attention_that_cannot_be(subtests):
    shapes = LatentAttention.weight_shapes(LATENT)
    for changes, weights, frequencies, message in [
        ({"qkv_bias": True}, {}, 2, "without biases"),
        ({}, {}, 3, r"frequencies \(3,\) must be one per pair of the 4"),
        ({}, {"q_proj.weight": None}, 2, "weights hold"),
        ({}, {"o_proj.weight": np.zeros((16, 14))}, 2, r"o_proj.weight has shape \(16, 14\)"),
    ]:
        given = {name: np.zeros(shape) for name, shape in shapes.items()} | weights
        given = {name: w for name, w in given.items() if w is not None}
        with subtests.test(message), pytest.raises(ValueError, match=message):
            LatentAttention(LATENT.replace(**changes), given, np.ones(frequencies))
    with pytest.raises(ValueError, match="expected latent_dim"):
        LatentAttention(ARCHITECTURES["Llama-2-7B"], {}, np.ones(2))
    for shape, shown in [((1, 3, 15), r"\(1, 3, 15\)"), ((3, 16), r"\(3, 16\)")]:
        with pytest.raises(ValueError, match=rf"x {shown} must be \(B, T, D\) with D 16"):
            latent_attention(LATENT)(np.ones(shape))


# --- how far stacked windows reach


@st.composite
def stacks(draw):
    """Full, windowed and hybrid layers, some of which share keys and values."""
    n_layers = draw(st.integers(1, 4))
    fields = {"window": draw(st.none() | st.integers(1, 4))}
    if fields["window"] is not None and draw(st.booleans()):
        fields["local_layers"] = sorted(draw(st.sets(st.integers(0, n_layers - 1))))
    elif draw(st.booleans()):
        fields["kv_source"] = source = []
        for layer in range(n_layers):  # itself, or what any earlier layer reads
            source.append(draw(st.sampled_from([layer, *source])))
    return Architecture("stack", n_layers, 8, 2, 2, 4, 16, 32, **fields)


def outputs(arch, x, sinks):
    """Attention layers with a residual path and random weights: [n, D] to [n, D]."""
    rng = np.random.default_rng(0)
    stored = {}
    for layer, window in enumerate(arch.layer_windows):
        wq, wk, wv = 0.4 * rng.normal(size=(3, *x.shape[1:], x.shape[1]))
        if layer in arch.kv_layers:
            stored[layer] = x @ wk, x @ wv
        k, v = stored[layer if arch.kv_source is None else arch.kv_source[layer]]
        x = x + attention(*(y[None, None] for y in (x @ wq, k, v)), True, window, sinks)[0, 0]
    return x


FAR = Architecture("far", 3, 8, 2, 2, 4, 16, 32, window=2, kv_source=[0, 1, 0])


@given(arch=stacks(), n=st.integers(1, 9), sinks=st.integers(0, 3))
@example(arch=FAR, n=6, sinks=0)  # the last layer reads less far than what it adds to
def test_the_receptive_field_is_what_the_output_depends_on(arch, n, sinks):
    """Change one input: those outputs move that can see it, and no others."""
    x = np.random.default_rng(1).normal(size=(n, 8))
    depends = np.zeros((n, n), dtype=bool)
    for j in range(n):
        changed = x.copy()
        changed[j] += 1
        moved = np.abs(outputs(arch, changed, sinks) - outputs(arch, x, sinks)).max(axis=1)
        assert ((moved < 1e-13) | (moved > 1e-10)).all()
        depends[:, j] = moved > 1e-10
    np.testing.assert_array_equal(receptive_field(arch, n, sinks), depends)


def test_receptive_fields_of_nothing_and_those_that_cannot_be():
    assert receptive_field(LATENT, 0).shape == (0, 0)
    for n_tokens, sinks in [(-1, 0), (True, 0), (3, -1), (3, True)]:
        name = "n_tokens" if n_tokens != 3 else "sinks"
        with pytest.raises(ValueError, match=f"^{name} must be an integer of at least 0"):
            receptive_field(LATENT, n_tokens, sinks)
