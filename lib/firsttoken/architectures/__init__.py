"""Models as their layers: exact parameter counts, what each token caches, and sourced presets."""

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.huggingface import from_hf_config
from firsttoken.architectures.presets import ARCHITECTURES
from firsttoken.architectures.stored import Weights, stored_weights

__all__ = ["ARCHITECTURES", "Architecture", "Weights", "from_hf_config", "stored_weights"]
