"""How the config of each type of model is read: one table, a row a type."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.config import Config
from firsttoken.architectures.families.dense import DENSE
from firsttoken.architectures.families.gemma import GEMMA
from firsttoken.architectures.families.hybrids import HYBRID
from firsttoken.architectures.families.latent import LATENT
from firsttoken.architectures.families.older import OLDER
from firsttoken.architectures.families.sparse import SPARSE
from firsttoken.architectures.families.windowed import WINDOWED

FAMILIES: Mapping[str, Callable[[Config], Architecture]] = MappingProxyType(
    {**DENSE, **OLDER, **GEMMA, **WINDOWED, **SPARSE, **LATENT, **HYBRID}
)
