"""Model shapes: exact parameter counts, what each token caches, and sourced presets.

Beside them, what models with recurrent layers keep (`HYBRIDS`).
"""

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.huggingface import from_hf_config
from firsttoken.architectures.hybrids import HYBRIDS, Hybrid
from firsttoken.architectures.presets import ARCHITECTURES

__all__ = ["ARCHITECTURES", "HYBRIDS", "Architecture", "Hybrid", "from_hf_config"]
