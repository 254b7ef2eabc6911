"""How the config of each type of model is read: one table, a row a type."""

from types import MappingProxyType

from firsttoken.architectures.families.common import Table
from firsttoken.architectures.families.dense import DENSE
from firsttoken.architectures.families.gemma import GEMMA
from firsttoken.architectures.families.hybrids import HYBRID
from firsttoken.architectures.families.inkling import INKLING
from firsttoken.architectures.families.latent import LATENT
from firsttoken.architectures.families.older import OLDER
from firsttoken.architectures.families.sparse import SPARSE

FAMILIES: Table = MappingProxyType(
    {**DENSE, **OLDER, **GEMMA, **INKLING, **SPARSE, **LATENT, **HYBRID}
)
