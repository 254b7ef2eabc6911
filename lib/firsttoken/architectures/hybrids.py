"""Released models in which recurrent layers take the place of attention, or stand beside it.

An attention layer adds the same to the cache for every token. A recurrent layer keeps a state that
does not grow: a matrix or a vector per head, and the last few inputs of a short convolution.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firsttoken.checks import check_count
from firsttoken.units import bytes_per_element


@dataclass(frozen=True)
class Hybrid:
    """What a model with recurrent layers keeps of the tokens it has read.

    `attention_layers` are the layers, counted from 0, that store `kv_elements` numbers per token.
    `n_recurrent_layers` have a state of `state_elements` numbers, stored as `state_dtype`, and
    `conv_elements` inputs of their convolution, stored as the activations are. A layer can be both
    (Falcon-H1) and neither (an MLP that counts as a layer, in Nemotron-H).

    Raises: ValueError for layers that are out of order or do not exist, and sizes below 0.

    >>> toy = Hybrid("toy", 4, attention_layers=(3,), kv_elements=8,
    ...              n_recurrent_layers=3, state_elements=100, conv_elements=10)
    >>> toy.cache_bytes(n_tokens=1000), toy.state_bytes()
    (16000, 1260)
    >>> toy.crossover_tokens()  # from here on, attention in all 4 layers would keep more
    26.25
    """

    name: str
    n_layers: int
    attention_layers: tuple[int, ...]
    kv_elements: int
    n_recurrent_layers: int
    state_elements: int
    conv_elements: int = 0
    state_dtype: str = "fp32"
    mixer: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        check_count("n_layers", self.n_layers, at_least=1)
        for name in ("kv_elements", "n_recurrent_layers", "state_elements", "conv_elements"):
            check_count(name, getattr(self, name))
        layers = self.attention_layers
        if list(layers) != sorted(set(layers)) or not set(layers) <= set(range(self.n_layers)):
            raise ValueError(
                f"attention_layers must rise and be below n_layers {self.n_layers}, got {layers}"
            )
        if self.n_recurrent_layers > self.n_layers:
            raise ValueError(
                f"n_recurrent_layers must be at most n_layers {self.n_layers}, "
                f"got {self.n_recurrent_layers}"
            )
        bytes_per_element(self.state_dtype)

    def cache_bytes(self, n_tokens: int, batch: int = 1, dtype: str = "bf16") -> int | float:
        """Return the bytes of keys and values, or latents, of the attention layers: it grows.

        Holds:  for bare numbers, as `kv_cache.kv_cache_bytes`: scales and partly empty blocks make
                it too few.
        """
        check_count("n_tokens", n_tokens)
        check_count("batch", batch)
        elements = n_tokens * len(self.attention_layers) * self.kv_elements
        return batch * elements * bytes_per_element(dtype)

    def state_bytes(
        self, batch: int = 1, dtype: str = "bf16", state_dtype: str | None = None
    ) -> int | float:
        """Return the bytes of the states of the recurrent layers: the same for every length.

        `dtype` is that of the convolutions' inputs; `state_dtype` None means the model's own.

        Holds:  for one state per sequence. An engine that keeps states to come back to, of a shared
                prefix or before a guess, keeps this for each: too few.
        """
        check_count("batch", batch)
        state = self.state_elements * bytes_per_element(state_dtype or self.state_dtype)
        conv = self.conv_elements * bytes_per_element(dtype)
        return batch * self.n_recurrent_layers * (state + conv)

    def crossover_tokens(self, dtype: str = "bf16") -> float:
        """Return the context at which a twin keeps as much, whose recurrent layers are attention.

        The twin's attention layers are like those that the model has. Infinite where no recurrent
        layer stands in for attention: a layer that has both keeps both.

        Holds:  at any batch, for a state in the model's own dtype. A cache of half the bits about
                doubles it.
        Raises: ValueError for a model without attention, which has no twin.
        """
        if not self.attention_layers:
            raise ValueError(f"{self.name} has no attention layer to make a twin of")
        n_replaced = min(self.n_recurrent_layers, self.n_layers - len(self.attention_layers))
        per_token = n_replaced * self.kv_elements * bytes_per_element(dtype)
        return self.state_bytes(dtype=dtype) / per_token if per_token else math.inf


def _keys_and_values(n_kv_heads: int, head_dim: int) -> int:
    return 2 * n_kv_heads * head_dim


# (state_elements, conv_elements) of one layer. Of a convolution the last `kernel` inputs count, as
# transformers keeps them; the next output needs one less.


def _lightning(n_heads: int, head_dim: int) -> tuple[int, int]:
    return n_heads * head_dim**2, 0


def _delta(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int
) -> tuple[int, int]:
    channels = 2 * key_heads * key_dim + value_heads * value_dim  # q, k and v
    return value_heads * key_dim * value_dim, channels * kernel


def _mamba(width: int, state: int, kernel: int) -> tuple[int, int]:
    return width * state, width * kernel


def _mamba2(n_heads: int, head_dim: int, state: int, groups: int, kernel: int) -> tuple[int, int]:
    width = n_heads * head_dim
    return width * state, (width + 2 * groups * state) * kernel  # x, B and C


_HF = "Hugging Face config.json of "
# Nemotron-H counts each mixer and each MLP as a layer: M is Mamba-2, * attention, - an MLP.
_NEMOTRON_H = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"

# fmt: off
_PRESETS = (
    #      name, layers, those with attention, numbers per token, recurrent layers, their sizes
    Hybrid("MiniMax-Text-01", 80, tuple(range(7, 80, 8)), _keys_and_values(8, 128),
           70, *_lightning(64, 128), mixer="lightning attention",
           source=f"{_HF}MiniMaxAI/MiniMax-Text-01 (MiniMax-M1 has the same); arXiv:2501.08313"),
    Hybrid("Jamba-1.5-Mini", 32, tuple(range(4, 32, 8)), _keys_and_values(8, 128),
           28, *_mamba(8192, 16, 4), mixer="Mamba",
           source=f"{_HF}ai21labs/AI21-Jamba-1.5-Mini; arXiv:2408.12570"),
    Hybrid("Jamba-1.5-Large", 72, tuple(range(4, 72, 8)), _keys_and_values(8, 128),
           63, *_mamba(16384, 16, 4), mixer="Mamba",
           source=f"{_HF}ai21labs/AI21-Jamba-1.5-Large; arXiv:2408.12570"),
    Hybrid("Qwen3-Next-80B-A3B", 48, tuple(range(3, 48, 4)), _keys_and_values(2, 256),
           36, *_delta(16, 32, 128, 128, 4), mixer="gated delta rule",
           source=f"{_HF}Qwen/Qwen3-Next-80B-A3B-Instruct; transformers 5.23 defaults"),
    # Its attention is latent: 512 numbers, and 64 for the position, which are cached unrotated.
    Hybrid("Kimi-Linear-48B-A3B", 27, (3, 7, 11, 15, 19, 23, 26), 512 + 64,
           20, *_delta(32, 32, 128, 128, 4), mixer="gated delta rule, a decay per channel",
           source=f"{_HF}a copy of moonshotai/Kimi-Linear-48B-A3B-Instruct; arXiv:2510.26692"),
    Hybrid("Falcon-H1-34B", 72, tuple(range(72)), _keys_and_values(4, 128),
           72, *_mamba2(32, 128, 256, 2, 4), mixer="Mamba-2 beside attention, in each layer",
           source=f"{_HF}tiiuae/Falcon-H1-34B-Instruct; transformers 5.3, falcon_h1.md (table)"),
    Hybrid("Nemotron-H-8B", 52, tuple(i for i, kind in enumerate(_NEMOTRON_H) if kind == "*"),
           _keys_and_values(8, 128), _NEMOTRON_H.count("M"), *_mamba2(128, 64, 128, 8, 4),
           mixer="Mamba-2",
           source=f"{_HF}nvidia/Nemotron-H-8B-Base-8K; arXiv:2504.03624"),
    Hybrid("Mamba-Codestral-7B", 64, (), 0,
           64, *_mamba2(128, 64, 128, 8, 4), mixer="Mamba-2",
           source=f"{_HF}mistralai/Mamba-Codestral-7B-v0.1; transformers 5.23 defaults"),
)
# fmt: on

HYBRIDS: Mapping[str, Hybrid] = MappingProxyType({h.name: h for h in _PRESETS})
"""Released models with recurrent layers by name, each with the source of its shape."""
