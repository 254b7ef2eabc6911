"""What is measured with: the shapes on a CPU, and those on a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """What is measured with: shapes near a small model's, and no shape of `LLAMA_100M`.

    What it shares with models are the numbers of rows: `rows` of products, `groups` of attention.
    The larger of the caches exceeds that of `LLAMA_100M` at 2,048 tokens.
    """

    working_set_bytes: int = 400_000_000  # beyond any cache; a set that fits looks twice as fast
    d_model: int = 896
    d_ff: int = 2432
    n_kv_heads: int = 3
    head_dim: int = 80
    vocab_size: int = 24_576
    gemm: int = 2048
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    groups: tuple[int, ...] = (1, 3, 4, 8)
    contexts: tuple[int, ...] = (192, 2240)
    rounds: int = 5
    depth: int = 10  # of the model that has nothing to read


# A GPU runs the small shapes in less time than a launch takes.
GPU_SIZES = Sizes(
    2_000_000_000,
    d_model=3584,
    d_ff=9728,
    n_kv_heads=6,
    vocab_size=98_304,
    gemm=8192,
    contexts=(192, 4416),
)


def sizes_for(device: str) -> Sizes:
    """Return the sizes that suit a device."""
    return Sizes() if device == "cpu" else GPU_SIZES
