"""Linear layers whose weights stay integer codes, for `llama_torch.Llama`: fewer bytes a step.

Codes and scales are those of `firsttoken.quantization`, which is the reference; PyTorch's kernels
multiply with them and never hold the whole matrix as floats.
"""

import copy
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from firsttoken.quantization.integers import Quantized

Array = np.ndarray
Model = TypeVar("Model", bound=nn.Module)  # here: `llama_torch.Llama`

_GROUPS, _OUT_MULTIPLE = (32, 64, 128, 256), 16  # what the kernel for int4 takes


class QuantizedLinear(nn.Module):
    """A linear layer without bias that reads int8 or int4 codes: x @ w, as w is dequantised.

    Only the weights are short. The product is made in the dtype of x, and so are its sums: fewer
    bytes come from memory, and not one multiplication less is made. A model turned to bfloat16
    takes the scales along. On a CPU that is the dtype with fast kernels; float32 is exact, and
    may be many times slower.

    `weight` holds w [D, F] as `quantize(w, bits, axis=1, …)` or `gptq` return it: 8 bits with a
    scale per output, or 4 bits with one per group of 32, 64, 128 or 256 inputs.

    Shapes: x (…, D) -> (…, F)
    Raises: ValueError for other codes, and for 4 bits unless F is a multiple of 16.
    Source: PyTorch 2.13, aten::_weight_int8pack_mm and aten::_weight_int4pack_mm_for_cpu

    >>> from firsttoken.quantization import quantize
    >>> layer = QuantizedLinear(quantize(np.array([[2.54, -1.0], [0.0, 0.5]]), 8, axis=1))
    >>> layer.codes.tolist(), [round(y, 3) for y in layer(torch.tensor([1.0, 2.0])).tolist()]
    ([[127, 0], [-127, 64]], [2.54, 0.008])
    """

    codes: Tensor
    scale: Tensor

    def __init__(self, weight: Quantized):
        super().__init__()
        self.in_features, self.out_features = _checked(weight)
        self.bits = weight.bits
        self.group_size = self.in_features // weight.scale.shape[1]
        codes = torch.from_numpy(weight.codes.T.astype(np.int32))  # [F, D]
        scale = torch.from_numpy(weight.scale)  # [F, groups]
        if self.bits == 8:
            codes, scale = codes.to(torch.int8), scale[:, 0].clone()
        else:
            codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes + 8, 1)
            # The kernel computes (code - 8) · scale + offset, and reads both of a group together.
            scale = torch.stack([scale, torch.zeros_like(scale)], dim=-1).transpose(0, 1)
        self.register_buffer("codes", codes.contiguous())
        self.register_buffer("scale", scale.contiguous())

    @property
    def nbytes(self) -> int:
        """Bytes that are read for a product: codes and scales."""
        return self.codes.nbytes + self.scale.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ w."""
        rows = x.reshape(-1, self.in_features)
        if self.bits == 8:
            product = torch._weight_int8pack_mm(rows, self.codes, self.scale)
        else:
            product = torch.ops.aten._weight_int4pack_mm_for_cpu(
                rows, self.codes, self.group_size, self.scale
            )
        return product.view(*x.shape[:-1], self.out_features)


def with_quantized_weights(model: Model, quantizer: Callable[[Array], Quantized]) -> Model:
    """Return a copy of a model whose matrices are codes; the embedding stays a table of floats.

    `quantizer` makes codes of a matrix w [D, F]. A model whose embedding is also its last matrix
    gets codes for the latter: of the table, a step reads one row per token.

    Raises: ValueError as `QuantizedLinear`.

    >>> from firsttoken.models.llama import load_model
    >>> from firsttoken.quantization import quantize
    >>> model = load_model(backend="torch")
    >>> int4 = with_quantized_weights(model, lambda w: quantize(w, 4, axis=1, group_size=32))
    >>> sum(layer.nbytes for layer in int4.modules() if isinstance(layer, QuantizedLinear))
    2506752
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    # The matrices are replaced, so that the copy needs none of its own.
    shared = {id(layer): nn.Identity() for layer in layers.values()}
    result = copy.deepcopy(model, shared)
    for name, layer in layers.items():
        weight = layer.weight.detach().float().numpy(force=True)
        result.set_submodule(name, QuantizedLinear(quantizer(weight.T)))
    return result


def _checked(weight: Quantized) -> tuple[int, int]:
    """Return (D, F) of codes that a kernel can read."""
    groups = weight.scale.shape[1]
    if len(weight.shape) != 2 or weight.channel_axes != (1,) or weight.zero_point is not None:
        raise ValueError(
            "weight must be symmetric codes of a matrix [D, F] with scales per column, got shape "
            f"{weight.shape}, channel axes {weight.channel_axes}, "
            f"zero point {weight.zero_point is not None}"
        )
    n_in, n_out = weight.shape
    if weight.bits == 8 and groups != 1:
        raise ValueError(f"weight with 8 bits must have one scale per column, got {groups}")
    if weight.bits == 4 and (n_in // groups not in _GROUPS or n_out % _OUT_MULTIPLE):
        raise ValueError(
            f"weight with 4 bits must have groups of 32, 64, 128 or 256 and a multiple of "
            f"{_OUT_MULTIPLE} columns, got groups of {n_in // groups} and {n_out} columns"
        )
    if weight.bits not in (4, 8):
        raise ValueError(f"weight must have 4 or 8 bits, got {weight.bits}")
    return n_in, n_out
