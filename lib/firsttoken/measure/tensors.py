"""What is timed is made of this: weights and tokens without a meaning, cut from a working set."""

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.measure.sizes import Sizes
from firsttoken.models.protocols import Cache, Model
from firsttoken.units import bytes_per_element

if TYPE_CHECKING:
    import torch

    from firsttoken.models.llama_torch import Llama

DTYPES = MappingProxyType({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"})


def working_set(dtype: str, device: str, sizes: Sizes) -> "torch.Tensor":
    """Return as many numbers as the sizes ask for: matrices and caches are cut from them."""
    return noise(int(sizes.working_set_bytes // bytes_per_element(dtype)), dtype, device)


def noise(n: int, dtype: str, device: str) -> "torch.Tensor":
    """Return n numbers around zero: a block of noise again and again, which is quick to make."""
    import torch

    block = torch.randn(min(n, 1 << 20), generator=torch.Generator().manual_seed(0))
    block = block.to(device, getattr(torch, DTYPES[dtype]))
    out = torch.empty(n, dtype=block.dtype, device=device)
    whole = n - n % block.numel()
    out[:whole].view(-1, block.numel())[:] = block
    out[whole:] = block[: n - whole]
    return out


def carve(store: "torch.Tensor", shapes: list[tuple[int, ...]]) -> list["torch.Tensor"]:
    """Cut a flat tensor into tensors of these shapes, over and over until it is used up."""
    size = sum(map(math.prod, shapes))
    if size > store.numel():
        raise ValueError(f"a working set of {store.numel()} elements is too small for {shapes}")
    pieces, start = [], 0
    for _ in range(store.numel() // size):
        for shape in shapes:
            end = start + math.prod(shape)
            pieces.append(store[start:end].view(shape))
            start = end
    return pieces


def random_llama(arch: Architecture, dtype: str, device: str, seed: int) -> "Llama":
    """Return a Llama in PyTorch with weights of the usual size and no meaning."""
    import torch

    from firsttoken.models.checkpoint import weight_shapes
    from firsttoken.models.llama_torch import Llama

    rng = np.random.default_rng(seed)
    weights = {
        name: 0.02 * rng.standard_normal(shape, np.float32)
        if len(shape) > 1
        else np.ones(shape, np.float32)
        for name, shape in weight_shapes(arch).items()
    }
    return Llama(arch, weights).to(device, getattr(torch, DTYPES[dtype]))


def fill(cache: Cache, arch: Architecture, batch: int, length: int, seed: int) -> None:
    """Put noise where a prompt's keys and values would be: what is read costs the same."""
    import torch

    if length == 0:
        return
    vectors = torch.randn(
        1, arch.n_kv_heads, length, arch.head_dim, generator=torch.Generator().manual_seed(seed)
    ).expand(batch, -1, -1, -1)
    for layer in range(arch.n_layers):
        cache.append(layer, vectors, vectors)


def repeated(
    model: Model, tokens: "torch.Tensor", cache: Cache, n_steps: int
) -> Callable[[], None]:
    """Return a function that decodes the same token `n_steps` times."""
    length = cache.length

    def run() -> None:
        for _ in range(n_steps):
            model(tokens, cache)
            cache.truncate(length)

    return run
