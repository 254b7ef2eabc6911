"""The models and the card that questions speak of, in words with the library's own figures."""

from firsttoken.architectures import ARCHITECTURES
from firsttoken.hardware import ACCELERATORS

LLAMA_8B = ARCHITECTURES["Llama-3.1-8B"]
LLAMA_13B = ARCHITECTURES["Llama-2-13B"]
LLAMA_70B = ARCHITECTURES["Llama-3.1-70B"]
DEEPSEEK_V3 = ARCHITECTURES["DeepSeek-V3"]
H100 = ACCELERATORS["H100-SXM"]


def _shape(name: str) -> str:
    arch = ARCHITECTURES[name]
    heads = f"{arch.n_kv_heads} KV heads"
    if arch.n_heads != arch.n_kv_heads:
        heads = f"{arch.n_heads} query heads, {heads}"
    return (
        f"{name} has {arch.n_params / 1e9:.2f} billion parameters, {arch.n_layers} layers, "
        f"{heads} and heads of {arch.head_dim} numbers."
    )


SHAPE_8B = _shape("Llama-3.1-8B")
SHAPE_13B = _shape("Llama-2-13B")
SHAPE_70B = _shape("Llama-3.1-70B")
CARD = (
    f"An H100 (SXM) has {H100.memory_bytes / 1e9:.0f} GB of memory, reads "
    f"{H100.bandwidth / 1e12:.2f} TB/s and computes {H100.peak() / 1e12:.0f} TFLOP/s in dense bf16."
)
