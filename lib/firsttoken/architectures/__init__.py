"""Model shapes: exact parameter counts, what each token caches, and sourced presets."""

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.huggingface import from_hf_config
from firsttoken.architectures.presets import ARCHITECTURES

__all__ = ["ARCHITECTURES", "Architecture", "from_hf_config"]
