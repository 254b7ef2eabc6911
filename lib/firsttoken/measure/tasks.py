"""What is timed: products, reads of a cache, copies, and a model that has nothing to read."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from firsttoken.architectures import Architecture
from firsttoken.measure.sizes import Sizes
from firsttoken.measure.tensors import carve, fill, noise, random_llama, repeated, working_set

if TYPE_CHECKING:
    import torch

    from firsttoken.models.llama_torch import Llama

STEPS = 5  # of the model with nothing to read, timed together: one alone is near the clock's noise


def tasks_of(dtype: str, device: str, sizes: Sizes) -> dict[tuple, tuple[Callable, float]]:
    """Return what is timed for one dtype: (kind, dtype, …) to a function and its bytes or FLOPs."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    store = working_set(dtype, device, sizes)
    tasks: dict[tuple, tuple[Callable, float]] = {}
    tasks |= layer_products(store, dtype, device, sizes, sizes.rows)
    vocabularies = carve(store, [(sizes.vocab_size, sizes.d_model)])
    for rows in sizes.rows:
        tasks["head", dtype, rows] = _products(vocabularies, rows, dtype, device)

    n = sizes.gemm
    a, b = carve(store[: 2 * n * n], [(n, n)])
    tasks["gemm", dtype] = lambda: a @ b, 2 * n**3

    k, h = sizes.n_kv_heads, sizes.head_dim
    for rows, context in itertools.product(sizes.rows, sizes.contexts):
        shape = (2, rows, k, context, h)
        # A quarter of the store is past most caches, and keeps the sum of times short.
        caches = carve(store[: max(store.numel() // 4, math.prod(shape))], [shape])
        n_bytes = sum(cache.nbytes for cache in caches)
        for g in sizes.groups:
            q = noise(rows * k * g * h, dtype, device).view(rows, k, g, h)

            def attend(q=q, caches=caches):
                return [scaled_dot_product_attention(q, keys, values) for keys, values in caches]

            tasks["attention", dtype, rows, g, caches[0].nbytes] = attend, n_bytes

    empty = Architecture("nothing to read", sizes.depth, 64, 4, 2, 16, 128, 128, True)
    model = random_llama(empty, dtype, device, 0)
    for rows in sizes.rows:
        cache = model.new_cache(rows, 16)
        fill(cache, empty, rows, 15, 0)
        tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        tasks["empty", dtype, rows] = repeated(model, tokens, cache, STEPS), 0
        if device == "cpu":
            tasks["calls", dtype, rows] = _calls(model, rows, dtype), 0
    return tasks


def layer_products(
    store: "torch.Tensor", dtype: str, device: str, sizes: Sizes, row_counts: Iterable[int]
) -> dict[tuple, tuple[Callable, float]]:
    """Return the products of layers that use up the store, for each number of rows."""
    d, f, kv = sizes.d_model, sizes.d_ff, sizes.n_kv_heads * sizes.head_dim
    matrices = carve(store, [(d, d), (kv, d), (kv, d), (d, d), (f, d), (f, d), (d, f)])
    return {("gemv", dtype, rows): _products(matrices, rows, dtype, device) for rows in row_counts}


def _products(
    matrices: list["torch.Tensor"], rows: int, dtype: str, device: str
) -> tuple[Callable, float]:
    """Return a function that multiplies rows with every matrix, and the bytes of the matrices."""
    from torch.nn.functional import linear

    inputs = {w.shape[1]: noise(rows * w.shape[1], dtype, device) for w in matrices}
    inputs = {n: x.view(rows, n) for n, x in inputs.items()}

    def run() -> None:
        for w in matrices:
            linear(inputs[w.shape[1]], w)

    return run, sum(w.nbytes for w in matrices)


def _calls(model: "Llama", rows: int, dtype: str) -> Callable[[], None]:
    """Return a function that makes a step's products and attention in all layers, no more."""
    from torch.nn.functional import linear, scaled_dot_product_attention

    arch = model.arch
    inputs = {n: noise(rows * n, dtype, "cpu").view(rows, 1, n) for n in (arch.d_model, arch.d_ff)}
    weights = [w for w in model.model.layers.parameters() if w.ndim == 2]
    shape = (rows, arch.n_kv_heads, 16, arch.head_dim)
    keys = noise(math.prod(shape), dtype, "cpu").view(shape)
    queries = keys[:, :, : arch.n_heads // arch.n_kv_heads]

    def run() -> None:
        for weight in weights:
            linear(inputs[weight.shape[1]], weight)
        for _ in range(arch.n_layers):
            scaled_dot_product_attention(queries, keys, keys)

    return run


def memory_tasks(device: str, sizes: Sizes) -> dict[tuple, tuple[Callable, float]]:
    """Return a copy, whose bytes count twice (read and written), and two ways to only read."""
    source = noise(sizes.working_set_bytes // 8 * 2, "fp32", device)
    target = source.clone()
    halves = source.view(2, -1)
    return {
        ("copy",): (lambda: target.copy_(source), 2 * source.nbytes),
        ("read", "sum"): (source.sum, source.nbytes),
        ("read", "dot"): (lambda: halves[0].dot(halves[1]), source.nbytes),
    }
