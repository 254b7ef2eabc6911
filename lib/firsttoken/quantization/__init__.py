"""Fewer bits per number: integer codes with a scale, short floats, and what to do about outliers.

Each file is one idea: `integers` (codes and scales), `formats` (which numbers a float has),
`microscaling` (short floats in blocks), `gguf` (the blocks of llama.cpp), `methods` (LLM.int8, AWQ,
GPTQ, rotations) and `codecs` (how a cache stores vectors).
"""

from firsttoken.quantization.codecs import codec
from firsttoken.quantization.formats import FORMATS, Format, float_format
from firsttoken.quantization.gguf import GGUF_LAYOUTS, GgufLayout, pack_gguf, unpack_gguf
from firsttoken.quantization.integers import Quantized, quantize
from firsttoken.quantization.methods import awq_scale, gptq, hadamard, llm_int8_matmul
from firsttoken.quantization.microscaling import Microscaled, microscale

__all__ = [
    "FORMATS",
    "GGUF_LAYOUTS",
    "Format",
    "GgufLayout",
    "Microscaled",
    "Quantized",
    "awq_scale",
    "codec",
    "float_format",
    "gptq",
    "hadamard",
    "llm_int8_matmul",
    "microscale",
    "pack_gguf",
    "quantize",
    "unpack_gguf",
]
