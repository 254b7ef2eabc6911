"""The files of a model's weights: how many bytes they take, by what their config says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.units import bytes_per_element

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
}
# What belongs to which part of the matrices, by names of modules that stay as they are.
_MODULES = {
    "attention": re.compile(r"attn|attention"),
    "experts": re.compile(r"(?<!shared_)experts|mlp(\.?\*|$)"),
    "mlp": re.compile(r"mlp|feed_forward|ffn|shared_expert"),
    "recurrence": re.compile(r"mamba|linear_attn|mixer|ssm|conv"),
}


@dataclass(frozen=True)
class Weights:
    """What files of weights take: `n_bytes`, and `says`, how that was found."""

    n_bytes: float
    says: str


def stored_weights(config: Mapping[str, Any], arch: Architecture) -> Weights:
    """Return what the files of a model take, by its `dtype` and its `quantization_config`.

    Quantised are the matrices of attention, MLPs and recurrences, but for those whose modules are
    listed as not converted; embedding, output, router, norms and biases stay in `dtype`. Scales and
    zero points are counted with their groups.

    Holds:  to a few percent: a config lists modules one by one, and here a component stays as a
            whole. Formats that mix widths are counted by their first group.
    Raises: ValueError for a quant_method that is not known here, and one without its bits.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> found = stored_weights(
    ...     {"dtype": "bfloat16", "quantization_config": {"quant_method": "awq", "bits": 4}},
    ...     ARCHITECTURES["Llama-3.1-8B"],
    ... )
    >>> print(f"{found.n_bytes / 1e9:.2f} GB, {found.says}")
    5.73 GB, awq: 4.156 bits in attention, mlp; the rest in bf16
    """
    text = config.get("text_config")
    inside = text if isinstance(text, Mapping) else {}
    named = str(config.get("dtype") or config.get("torch_dtype")
                or inside.get("dtype") or inside.get("torch_dtype") or "bfloat16")  # fmt: skip
    dtype = _DTYPES.get(named.removeprefix("torch."))
    if dtype is None:
        raise ValueError(f"config: dtype must be one of {', '.join(_DTYPES)}, got {named!r}")
    whole = bytes_per_element(dtype)
    quantization = config.get("quantization_config") or inside.get("quantization_config")
    if not quantization:
        return Weights(arch.n_params * whole, f"all in {dtype}")
    if not isinstance(quantization, Mapping):
        raise ValueError(f"config: quantization_config must be an object, got {quantization!r}")
    method = str(quantization.get("quant_method"))
    bits = _bits(method, quantization)
    kept = _not_converted(quantization)
    matrices = _matrices(arch)
    parts = [
        name
        for name, modules in _MODULES.items()
        if matrices[name] and not any(modules.search(one) for one in kept)
    ]
    quantized = sum(matrices[name] for name in parts)
    n_bytes = quantized * bits / 8 + (arch.n_params - quantized) * whole
    said = f"{method}: {bits:.4g} bits in {', '.join(parts)}; the rest in {dtype}"
    return Weights(n_bytes, said)


def _matrices(arch: Architecture) -> dict[str, int]:
    """Return the elements of the matrices that formats quantise, by part."""
    component = arch.params_by_component
    experts = sum(
        count * layer.experts.n_experts * layer.experts.expert_matrices(arch.d_model)
        for layer, count in arch.kinds.items()
        if layer.experts is not None and layer.weights_of is None
    )
    return {
        "attention": component["attention"],
        "experts": experts,
        "mlp": component["mlp"] - experts,
        "recurrence": component.get("recurrence", 0),
    }


def _bits(method: str, given: Mapping[str, Any]) -> float:
    """Return the bits of a quantised weight, scales and zero points included."""
    if method in ("fp8", "fbgemm_fp8"):
        block = given.get("weight_block_size")
        return 8 + 32 / (block[0] * block[1]) if isinstance(block, list) and len(block) == 2 else 8
    if method == "mxfp4":
        return 4 + 8 / 32
    if method == "bitsandbytes":
        if given.get("load_in_8bit"):
            return 8
        # Of 64 weights one scale: 32 bits, or 8 and a 32 for 256 of them.
        return 4 + (8 + 32 / 256 if given.get("bnb_4bit_use_double_quant") else 32) / 64
    if method in ("awq", "gptq", "auto-round", "autoround"):
        bits = _number("bits", given.get("bits", given.get("w_bit")))
        group = given.get("group_size", 128)
        return bits + ((16 + bits) / group if group and group > 0 else 0)
    if method == "compressed-tensors":
        groups = given.get("config_groups")
        first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
        weights = first.get("weights") or {} if isinstance(first, Mapping) else {}
        bits = _number("config_groups: weights: num_bits", weights.get("num_bits"))
        group = weights.get("group_size")
        return bits + (16 / group if group and group > 0 else 0)
    raise ValueError(
        f"config: quant_method must be one of fp8, fbgemm_fp8, mxfp4, bitsandbytes, awq, gptq, "
        f"auto-round, compressed-tensors; got {method!r}"
    )


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 32:
        raise ValueError(f"config: quantization_config: {name} must be bits, got {value!r}")
    return float(value)


def _not_converted(given: Mapping[str, Any]) -> list[str]:
    """Return the modules that stay as they are; single layers of a kind do not keep the kind."""
    listed = given.get("modules_to_not_convert") or given.get("ignore") or []
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    return [name for name in names if not re.search(r"\.\d+\.|gate$|router", name)]
