"""Attention against torch's and transformers', its laws, and the mistakes that must show."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from transformers import DeepseekV2Config, DeepseekV3Config, DynamicCache
from transformers.masking_utils import sliding_window_causal_mask_function
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama

import firsttoken.attention
from firsttoken.architectures import ARCHITECTURES, Architecture, from_hf_config
from firsttoken.attention import LatentAttention, attention, online_softmax, receptive_field
from firsttoken.kv_cache import KVCache, RollingCache


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


MASKS = [(False, None, 0), (True, None, 0), (True, 1, 0), (True, 3, 0), (True, 3, 2), (True, 99, 1)]


@pytest.mark.parametrize(("causal", "window", "sinks"), MASKS)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 7), (7, 7), (3, 9)])
def test_equals_torch(t, s, n_kv_heads, causal, window, sinks):
    q, k, v = tensors(t, s, n_kv_heads=n_kv_heads)
    mask = visible(t, s, causal, window, sinks)
    got = attention(q, k, v, causal=causal, window=window, sinks=sinks)
    np.testing.assert_allclose(got, oracle(q, k, v, mask), atol=1e-5)
    assert got.dtype == np.float32


@given(
    s=st.integers(1, 12),
    share=st.floats(0, 1),
    window=st.none() | st.integers(1, 14),
    sinks=st.integers(0, 4),
    n_kv_heads=st.sampled_from([1, 2, 3, 6]),
    scale=st.none() | st.floats(0.1, 2),
)
def test_equals_torch_for_any_sizes(s, share, window, sinks, n_kv_heads, scale):
    t = 1 + round(share * (s - 1))
    q, k, v = tensors(t, s, n_heads=6, n_kv_heads=n_kv_heads, dtype=np.float64)
    mask = visible(t, s, True, window, sinks)
    got = attention(q, k, v, window=window, sinks=sinks, scale=scale)
    np.testing.assert_allclose(got, oracle(q, k, v, mask, scale), atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("window", [1, 4, 9])
def test_equals_transformers_for_every_ratio(n_kv_heads, window):
    """Its own attention, its own way to share heads, its own mask of a window."""
    t, s = 3, 9
    q, k, v = tensors(t, s, n_heads=6, n_kv_heads=n_kv_heads)
    allowed = sliding_window_causal_mask_function(window)
    positions = torch.arange(s)
    mask = allowed(0, 0, positions[s - t :, None], positions)
    mask = torch.zeros(t, s).masked_fill(~mask, -math.inf)
    module = SimpleNamespace(num_key_value_groups=6 // n_kv_heads, training=False)
    out, _ = modeling_llama.eager_attention_forward(
        module, *(torch.from_numpy(x) for x in (q, k, v)), mask, scaling=8**-0.5
    )
    expected = out.transpose(1, 2).numpy()
    np.testing.assert_allclose(attention(q, k, v, window=window), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (3, 0), (3, 2), (1, 3), (99, 1)])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_equals_flex_attention(n_kv_heads, window, sinks):
    """The rule of the mask as a function of two positions, applied to each score."""
    t, s = 4, 9
    q, k, v = tensors(t, s, n_kv_heads=n_kv_heads)

    def rule(score, b, h, i, key):
        query = i + s - t
        near = (query - key < window) | (key < sinks)
        return torch.where(near & (key <= query), score, -math.inf)

    out = flex_attention(*(torch.from_numpy(x) for x in (q, k, v)), rule, enable_gqa=True)
    np.testing.assert_allclose(attention(q, k, v, window=window, sinks=sinks), out, atol=1e-5)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_values_may_be_of_another_size(n_kv_heads):
    q, k, _ = tensors(3, 9, n_kv_heads=n_kv_heads)
    _, _, v = tensors(3, 9, n_kv_heads=n_kv_heads, head_dim=5)
    got = attention(q, k, v)
    assert got.shape == (2, 4, 3, 5)
    np.testing.assert_allclose(got, oracle(q, k, v, visible(3, 9, True, None, 0)), atol=1e-5)


@given(s=st.integers(1, 10), data=st.data())
def test_queries_in_chunks_equal_all_at_once(s, data):
    """What the cache rests on: a query needs the keys up to itself, no other query."""
    window = data.draw(st.none() | st.integers(1, 5))
    cut = data.draw(st.integers(0, s))
    q, k, v = tensors(s, s, dtype=np.float64)
    whole = attention(q, k, v, window=window, sinks=1)
    first = attention(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], window=window, sinks=1)
    rest = attention(q[:, :, cut:], k, v, window=window, sinks=1)
    np.testing.assert_allclose(np.concatenate([first, rest], axis=2), whole, atol=1e-12)


def test_output_is_a_mean_of_the_visible_values():
    """Equal keys: every visible value weighs the same, however large the score."""
    q, k, _ = tensors(2, 4, n_heads=1, n_kv_heads=1, batch=1, head_dim=1)
    v = np.array([1.0, 10.0, 100.0, 1000.0], dtype=np.float32).reshape(1, 1, 4, 1)
    flat = np.full_like(k, 1e3)
    assert attention(q * 1e3, flat, v).ravel().tolist() == [37.0, 277.75]
    assert attention(q * 1e3, flat, v, window=2).ravel().tolist() == [55.0, 550.0]
    assert attention(q * 1e3, flat, v, window=1, sinks=1).ravel().tolist() == [50.5, 500.5]
    assert attention(q * 1e3, flat, v, causal=False).ravel().tolist() == [277.75, 277.75]


def test_inputs_are_left_alone_and_no_queries_give_no_output():
    q, k, v = tensors(3, 5)
    before = [x.copy() for x in (q, k, v)]
    attention(q, k, v)
    assert all((x == y).all() for x, y in zip(before, (q, k, v), strict=True))
    assert attention(q[:, :, :0], k, v).shape == (2, 4, 0, 8)
    assert attention(q[:, :, :0], k[:, :, :0], v[:, :, :0]).shape == (2, 4, 0, 8)


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("window", [None, 3])
def test_a_mask_off_by_one_would_show(window, shift):
    q, k, v = tensors(3, 9)
    wrong = visible(3, 9, True, window, 0, shift=shift)
    got = attention(q, k, v, window=window)
    assert np.abs(got - oracle(q, k, v, wrong)).max() > 1e-2


def test_a_window_off_by_one_would_show():
    q, k, v = tensors(3, 9)
    for wrong in (2, 4):
        mask = visible(3, 9, True, wrong, 0)
        assert np.abs(attention(q, k, v, window=3) - oracle(q, k, v, mask)).max() > 1e-2


@pytest.mark.parametrize("wrong", [1, 3])
def test_sinks_off_by_one_would_show(wrong):
    q, k, v = tensors(3, 9)
    mask = visible(3, 9, True, 3, wrong)
    got = attention(q, k, v, window=3, sinks=2)
    assert np.abs(got - oracle(q, k, v, mask)).max() > 1e-2


def test_interleaved_kv_heads_would_show():
    """Query head n reads KV head n // G, not n % K."""
    q, k, v = tensors(3, 9)
    wrong = [x[:, [0, 1, 0, 1]] for x in (k, v)]
    assert np.abs(attention(q, k, v) - attention(q, *wrong)).max() > 1e-2


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 2, 3, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {}, "T = 3 queries, k only S = 2"),
        (((1, 3, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {}, "N a multiple of K"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 3, 4)), {}, "do not fit together"),
        (((1, 2, 1, 4), (1, 2, 2, 5), (1, 2, 2, 5)), {}, "do not fit together"),
        (((1, 2, 1, 4), (2, 2, 2, 4), (2, 2, 2, 4)), {}, "do not fit together"),
        (((2, 1, 4), (2, 2, 4), (2, 2, 4)), {}, "do not fit together"),
        (((1, 2, 1, 4), (1, 0, 2, 4), (1, 0, 2, 4)), {}, "do not fit together"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {"window": 0}, "window must be an integer"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {"window": True}, "window must be an integer"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {"sinks": -1}, "sinks must be an integer"),
        (((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {"sinks": True}, "sinks must be an integer"),
        (
            ((1, 2, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)),
            {"window": 2, "causal": False},
            "expected causal=True",
        ),
    ],
)
def test_errors_name_what_is_wrong(shapes, options, message):
    with pytest.raises(ValueError, match=message):
        attention(*[np.zeros(shape) for shape in shapes], **options)


# --- the softmax that reads its scores once

score = st.one_of(st.just(-math.inf), st.floats(-800, 800))


@pytest.mark.parametrize("n_new", [1, 3])
def test_half_precision_is_computed_with_in_single(n_new):
    """In float16 these scores overflow, and sums of more than 2,048 weights no longer grow."""
    rng = np.random.default_rng(0)
    q = rng.normal(scale=60, size=(1, 4, n_new, 64)).astype(np.float16)
    k = rng.normal(scale=60, size=(1, 2, 5000, 64)).astype(np.float16)
    v = rng.normal(size=(1, 2, 5000, 64)).astype(np.float16)
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)))
    got = attention(q, k, v)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, atol=1e-2)
    level = attention(np.zeros_like(q), k, np.ones_like(v))
    np.testing.assert_allclose(level, 1.0, rtol=1e-5)


def test_online_softmax_of_half_precision_does_not_drift():
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


def test_sums_that_are_not_shrunk_would_show():
    scores, values = np.array([0.0, 2.0, 1.0]), np.array([[1.0], [2.0], [4.0]])
    peaks = np.maximum.accumulate(scores)
    weights = np.exp(scores - peaks)  # each relative to the largest so far, and left so
    wrong = weights @ values / weights.sum()
    assert np.abs(online_softmax(scores, values) - wrong).max() > 0.1


@pytest.mark.parametrize(
    ("scores", "shape", "message"),
    [
        ([0.0, 1.0], (3, 1), r"scores \(2,\) must be \(…, S\), values \(3, 1\)"),
        (0.0, (1,), "must be"),
        ([0.0, math.nan], (2, 1), "NaN or inf"),
        ([0.0, math.inf], (2, 1), "NaN or inf"),
        ([[0.0, 1.0], [-math.inf] * 2], (2, 2, 1), "all -inf"),
    ],
)
def test_scores_without_a_softmax(scores, shape, message):
    with pytest.raises(ValueError, match=message):
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
        **{
            "qk_rope_head_dim": 6,
            "v_head_dim": 7,
            "num_hidden_layers": 1,
            "first_k_dense_replace": 1,
        },
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
    with torch.no_grad():
        return theirs(
            hidden_states=x,
            position_embeddings=rotary(x, positions),
            attention_mask=mask[None, None],
            past_key_values=cache,
        )[0].numpy()


CASES = [("v2", None, None), ("v2", 9, YARN), ("v3", None, YARN), ("v3", 9, None)]


@pytest.mark.parametrize(("version", "q_latent_dim", "rope"), CASES)
@pytest.mark.parametrize("absorbed", [False, True])
def test_latent_attention_equals_transformers(version, q_latent_dim, rope, absorbed):
    """In one pass, and through both caches in pieces: prefill, one token, several."""
    theirs, rotary, ours = hugging_face(version, q_latent_dim, rope)
    x = np.random.default_rng(1).normal(size=(2, 12, 32)).astype(np.float32)
    expected = run_theirs(theirs, rotary, x)
    assert np.abs(expected).mean() > 0.1
    np.testing.assert_allclose(ours(x, absorbed=absorbed), expected, atol=1e-5)
    their_cache, cache = DynamicCache(), KVCache(ours.arch, 2, 12)
    for start, end in [(0, 7), (7, 8), (8, 12)]:
        piece = x[:, start:end]
        expected = run_theirs(theirs, rotary, piece, start, their_cache)
        np.testing.assert_allclose(ours(piece, cache, absorbed=absorbed), expected, atol=1e-5)


def test_yarn_changes_the_scale_that_must_be_given():
    theirs, rotary, ours = hugging_face("v3", None, YARN)
    assert ours.scale == pytest.approx((0.1 * 0.7 * math.log(40) + 1) ** 2 / math.sqrt(16))
    x = np.random.default_rng(1).normal(size=(2, 12, 32)).astype(np.float32)
    ours.scale = 1 / math.sqrt(16)
    assert np.abs(ours(x) - run_theirs(theirs, rotary, x)).max() > 1e-2


def _halves(x, angles):
    """RoPE with the pairs of a Llama: (x_i, x_{i+H/2})."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_rotate_pairs", _halves),
        ("_rotate_pairs", lambda x, angles: x),
        ("rms_norm", lambda x, weight, eps: x),
        ("rms_norm", lambda x, weight, eps: x * weight),
    ],
)
def test_mistakes_in_latent_attention_would_show(name, wrong, monkeypatch):
    theirs, rotary, ours = hugging_face("v3", 9, None)
    x = np.random.default_rng(1).normal(size=(2, 12, 32)).astype(np.float32)
    expected = run_theirs(theirs, rotary, x)
    assert np.abs(ours(x) - expected).max() < 1e-5
    monkeypatch.setattr(f"firsttoken.attention.{name}", wrong)
    assert np.abs(ours(x) - expected).max() > 1e-2


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


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_latents_in_pieces_equal_one_pass(window, absorbed):
    """Up to float32, in which the cache stores; a window may roll."""
    arch = LATENT.replace(window=window)
    mla = latent_attention(arch)
    x = np.random.default_rng(1).normal(size=(2, 11, 16))
    whole = mla(x)
    for cache in (KVCache(arch, 2, 11), RollingCache(arch, 2, 11, chunk=4)):
        pieces = [mla(x[:, i:j], cache, absorbed=absorbed) for i, j in [(0, 4), (4, 8), (8, 9)]]
        pieces += [mla(x[:, i : i + 1], cache, absorbed=absorbed) for i in (9, 10)]
        np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, atol=1e-4)


def test_a_rotated_key_cannot_be_absorbed():
    """Why position has a key of its own: RoPE between W_UK and the query differs per token."""
    rng = np.random.default_rng(0)
    up, q, c = rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=3)

    def turned(position):
        angles = np.array([[position, position / 10]])
        return firsttoken.attention._rotate_pairs(np.broadcast_to(up.T[:, None], (3, 1, 4)), angles)

    absorbed = [
        turned(position)[:, 0] @ q for position in (0, 1)
    ]  # W_UKᵀ Rᵀ q, another for each position of the key
    assert np.abs(absorbed[0] - absorbed[1]).max() > 0.1
    assert absorbed[0] @ c == pytest.approx(q @ (up @ c))


def test_latent_weights_are_counted_by_the_architecture():
    for name in ("DeepSeek-V2", "DeepSeek-V2-Lite", "DeepSeek-V3"):
        arch = ARCHITECTURES[name]
        shapes = LatentAttention.weight_shapes(arch).values()
        matrices = sum(math.prod(shape) for shape in shapes if len(shape) == 2)
        assert matrices * arch.n_layers == arch.params_by_component["attention"]


def test_the_cache_of_a_latent_layer_is_what_the_preset_says():
    """576 elements per token and layer, in two bytes: 128 heads would take 56.9 times more."""
    for name in ("DeepSeek-V2", "DeepSeek-V2-Lite", "DeepSeek-V3"):
        arch = ARCHITECTURES[name]
        cache = KVCache(arch, batch=2, capacity=5, dtype="fp16")
        assert cache.nbytes == 2 * 2 * 5 * arch.kv_elements_per_token
        assert arch.kv_elements_per_token == arch.n_layers * (512 + 64)
    heads = Architecture("its heads", 1, 5120, 128, 128, 128, 12288, 102400)
    one_layer = ARCHITECTURES["DeepSeek-V2"].replace(n_layers=1)
    ratio = KVCache(heads, 1, 5).nbytes / KVCache(one_layer, 1, 5).nbytes
    assert round(ratio, 1) == 56.9


@pytest.mark.parametrize(
    ("changes", "weights", "frequencies", "message"),
    [
        ({"qkv_bias": True}, {}, 2, "without biases"),
        ({}, {}, 3, r"frequencies \(3,\) must be one per pair of the 4"),
        ({}, {"q_proj.weight": None}, 2, "weights hold"),
        ({}, {"other": np.zeros(3)}, 2, "weights hold"),
        ({}, {"o_proj.weight": np.zeros((16, 14))}, 2, r"o_proj.weight has shape \(16, 14\)"),
    ],
)
def test_latent_attention_that_cannot_be(changes, weights, frequencies, message):
    given = {name: np.zeros(s) for name, s in LatentAttention.weight_shapes(LATENT).items()}
    given = {name: w for name, w in (given | weights).items() if w is not None}
    with pytest.raises(ValueError, match=message):
        LatentAttention(LATENT.replace(**changes), given, np.ones(frequencies))


def test_latent_attention_names_other_wrong_arguments():
    with pytest.raises(ValueError, match="expected latent_dim"):
        LatentAttention(ARCHITECTURES["Llama-2-7B"], {}, np.ones(2))
    with pytest.raises(ValueError, match=r"x \(3, 16\) must be \(B, T, D\) with D 16"):
        latent_attention(LATENT)(np.ones((3, 16)))


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


@given(n_layers=st.integers(1, 5), window=st.integers(1, 5), n=st.integers(1, 20))
def test_windows_reach_one_token_less_than_they_see(n_layers, window, n):
    """L·(w - 1) tokens back, and itself; L·w, as often said, is too many."""
    arch = Architecture("windows", n_layers, 8, 2, 2, 4, 16, 32, window=window)
    reach = receptive_field(arch, n).sum(axis=1)
    position = np.arange(n)
    np.testing.assert_array_equal(reach, np.minimum(position, n_layers * (window - 1)) + 1)


def test_one_full_layer_reaches_everything_and_shared_layers_gain_nothing():
    windows = Architecture("windows", 4, 8, 2, 2, 4, 16, 32, window=3)
    assert receptive_field(windows, 20)[-1].sum() == 9
    assert receptive_field(windows.replace(local_layers=[0, 1, 3]), 20)[-1].all()
    # In pairs that share, the second layer reads what the first one read: half the reach.
    assert receptive_field(windows.replace(kv_source=[0, 0, 2, 2]), 20)[-1].sum() == 5
    sunk = receptive_field(windows, 20, sinks=2)[-1]
    assert sunk.sum() == 11 and sunk[:2].all()


@pytest.mark.parametrize(("n_tokens", "sinks"), [(-1, 0), (True, 0), (3, -1), (3, True)])
def test_receptive_fields_that_cannot_be(n_tokens, sinks):
    with pytest.raises(ValueError, match="must be an integer of at least 0"):
        receptive_field(LATENT, n_tokens, sinks)
