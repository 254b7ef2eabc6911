"""quantization_torch: the kernels' products are those of the dequantised weights."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama
from firsttoken.quantization import quantize
from firsttoken.quantization.quantization_torch import QuantizedLinear, with_quantized_weights

BF16 = 2.0**-8  # twice the rounding of a bfloat16


def matrix(d: int, f: int, seed: int) -> np.ndarray:
    """Weights with columns of very different size, one of zeros, and an outlier."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(d, f)) * 10.0 ** rng.integers(-3, 2, size=f)
    w[:, rng.integers(f)] = 0
    w[rng.integers(d), rng.integers(f)] *= 50
    return w.astype(np.float32)


@settings(max_examples=40)
@given(
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([32, 64, 128]),
    n_groups=st.integers(1, 4),
    f=st.integers(1, 5).map(lambda n: 16 * n),
    leading=st.sampled_from([(), (1,), (3,), (2, 5), (0,)]),
    seed=st.integers(0, 99),
)
def test_the_product_is_that_of_the_dequantised_weights(bits, group, n_groups, f, leading, seed):
    d = group * n_groups
    q = quantize(matrix(d, f, seed), bits, axis=1, group_size=group if bits == 4 else None)
    layer, x = QuantizedLinear(q), torch.randn(*leading, d, generator=torch.manual_seed(seed))
    w = torch.from_numpy(np.ascontiguousarray(q.dequantize()))
    size = x.abs() @ w.abs()  # what the terms of a sum add up to: rounding goes with it
    assert torch.all((layer(x) - x @ w).abs() <= 1e-6 * size)
    short = layer.to(torch.bfloat16)
    assert short.codes.dtype in (torch.int8, torch.uint8)
    assert torch.all((short(x.bfloat16()).float() - x @ w).abs() <= 3 * BF16 * size + 1e-30)


# In a model


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 32)])
def test_a_model_with_codes_is_the_model_of_the_dequantised_weights(bits, group):
    model = load_model(backend="torch")
    before = {name: w.clone() for name, w in model.state_dict().items()}
    tokens = torch.from_numpy(np.random.default_rng(0).integers(1024, size=(2, 5)))

    def rounded(w):
        return quantize(w, bits, axis=1, group_size=group)

    short = with_quantized_weights(model, rounded)
    cache = short.new_cache(2)
    got = torch.cat([short(tokens[:, :3], cache), short(tokens[:, 3:], cache)], dim=1)

    weights = {}
    for name, w in before.items():
        is_table = name == "model.embed_tokens.weight" or w.ndim == 1
        weights[name] = w.numpy() if is_table else rounded(w.numpy().T).dequantize().T
    untied = model.arch.replace(tied_embeddings=False)
    expected = Llama(untied, weights, model.rope_theta, norm_eps=model.norm_eps)(tokens)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)
    assert (got - model(tokens)).abs().max() > 0.05
    # What it was made from stays as it was, and only the embedding and the norms are shared out.
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    kept = dict(short.named_parameters())
    assert {p.ndim for name, p in kept.items() if name != "model.embed_tokens.weight"} == {1}


def test_codes_that_no_kernel_reads_are_refused(subtests):
    ones = np.ones((64, 16))
    for q, said in [
        (quantize(ones, 8), "axes ()"),
        (quantize(ones, 8, axis=0), "axes (0,)"),
        (quantize(np.ones((2, 64, 16)), 8, axis=1), "shape (2, 64, 16)"),
        (quantize(ones, 4, 1, 32, symmetric=False), "zero point True"),
        (quantize(ones, 8, 1, 32), "one scale per column, got 2"),
        (quantize(ones, 4, 1, 16), "groups of 16"),
        (quantize(ones[:, :8], 4, 1, 32), "8 columns"),
        (quantize(ones, 3, 1, 32), "4 or 8 bits, got 3"),
    ]:
        with subtests.test(said), pytest.raises(ValueError, match=re.escape(said)):
            QuantizedLinear(q)


def test_a_model_without_a_tied_embedding_works_too():
    arch = Architecture("tiny", 1, 64, 4, 2, 16, 96, 48, tied_embeddings=False, max_context=32)
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=s).astype(np.float32) / 8 for n, s in weight_shapes(arch).items()}
    model = Llama(arch, weights)
    short = with_quantized_weights(model, lambda w: quantize(w, 8, axis=1))
    torch.testing.assert_close(short([[1, 2, 3]]), model([[1, 2, 3]]), atol=0.1, rtol=0.1)
