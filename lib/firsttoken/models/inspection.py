"""A look into one pass: what each head reads, what each layer would say, silent heads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.attention import attention, rms_norm
from firsttoken.models.llama import Llama
from firsttoken.models.protocols import check_tokens
from firsttoken.models.threads import blas_threads
from firsttoken.sampling import softmax

Array = np.ndarray


@dataclass(frozen=True)
class Inside:
    """What was seen in a pass over T tokens.

    `attention`: how much each query (row) of each head takes from each key.
    `layers`: after each layer, what the model would expect next if that layer were its last one,
    whose result goes through the final norm and the unembedding (the *logit lens*).
    `next`: what it does expect next, which is the last row of `layers`.

    Shapes: attention (L, N, T, T); layers (L, V); next (V,)
    Units:  shares and probabilities; each row sums to 1.
    """

    attention: Array
    layers: Array
    next: Array


def look_inside(
    model: Llama, ids: Sequence[int], silenced: Iterable[tuple[int, int]] = ()
) -> Inside:
    """Run a pass over `ids` and keep what happens inside; heads in `silenced` add nothing.

    A head (layer, head), both counted from 0, is silenced by setting what it attends to zero. It
    still reads: its row of attention is shown, but no later layer hears of it.

    Raises: ValueError for no ids, ids out of range or not whole, and a head that the model does
            not have.
    Source: the logit lens: nostalgebraist 2020, "interpreting GPT: the logit lens"

    >>> from firsttoken.models.llama import load_model
    >>> seen = look_inside(load_model("draft"), [0, 5, 9], silenced=[(0, 2)])
    >>> seen.attention.shape, seen.layers.shape
    ((1, 6, 3, 3), (1, 1024))
    """
    arch, tokens = model.arch, np.asarray(ids)[None]
    heads = {(layer, head) for layer, head in silenced}
    for layer, head in heads:
        if not (0 <= layer < arch.n_layers and 0 <= head < arch.n_heads):
            raise ValueError(
                f"silenced must name heads of {arch.n_layers} layers with {arch.n_heads} heads "
                f"each, counted from 0; got {(layer, head)}"
            )
    if tokens.size == 0:
        raise ValueError("ids must hold at least 1 token, got 0")
    check_tokens(arch, tokens)
    n = tokens.shape[1]
    looks, said = [], []

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        window = model.windows[layer]
        # With the unit vectors as values, what is mixed is the weights themselves.
        ones = np.broadcast_to(np.eye(n, dtype=np.float32), (1, arch.n_kv_heads, n, n))
        looks.append(attention(q, k, ones, window=window)[0])
        mixed = attention(q, k, v, window=window)  # [1, N, T, H]
        mixed[:, [head for at, head in heads if at == layer]] = 0
        return mixed

    with blas_threads(model.n_threads):
        angles = np.arange(n, dtype=np.float32)[:, None] * model.frequencies
        rotation = np.cos(angles), np.sin(angles)
        x = model.embedding[tokens]  # [1, T, D]
        for layer, block in enumerate(model.blocks):
            x = x + model._self_attention(
                rms_norm(x, block.attention_norm, model.norm_eps), layer, rotation, attend
            )
            x = x + model._mlp(rms_norm(x, block.mlp_norm, model.norm_eps), layer)
            last = rms_norm(x[0, -1:], model.final_norm, model.norm_eps)
            said.append(softmax((last @ model.unembedding).astype(np.float64))[0])
    return Inside(np.stack(looks), np.stack(said), said[-1])
