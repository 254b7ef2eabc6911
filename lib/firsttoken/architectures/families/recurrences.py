"""Recurrences of hybrid models: what the weights, the state and the convolution of each are.

Of a convolution the last `kernel` inputs count, as transformers keeps them.
"""

from firsttoken.architectures.config import Config
from firsttoken.architectures.families.common import Flag, flag
from firsttoken.architectures.layers import Recurrent

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def mamba(
    c: Config,
    width: int,
    *,
    state: str = "mamba_d_state",
    kernel: str = "mamba_d_conv",
    rank: str = "mamba_dt_rank",
    conv_bias: str = "mamba_conv_bias",
    bias: str = "mamba_proj_bias",
    normed: bool = False,
) -> Recurrent:
    """Return Mamba: each channel has a state of its own. The arguments are keys of the config."""
    d_state, d_conv = c.count(state, at_least=1), c.count(kernel, at_least=1)
    low = _auto(c, rank, -(-c.width // 16))
    in_and_out = 3 * c.width * width
    biases = (width if c.flag(conv_bias) else 0) + (2 * width + c.width if c.flag(bias) else 0)
    return Recurrent(
        "Mamba",
        weights=in_and_out + width * (low + 2 * d_state) + low * width + width * d_conv,
        state_elements=width * d_state,
        conv_elements=width * d_conv,
        norm_params=low + 2 * d_state if normed else 0,
        other_params=width * d_state + 2 * width + biases,  # decays, skips, the steps' bias
    )


def mamba2(
    c: Config,
    width: int,
    *,
    heads: str = "mamba_n_heads",
    head_dim: str = "mamba_d_head",
    state: str = "mamba_d_state",
    groups: str = "mamba_n_groups",
    kernel: str = "mamba_d_conv",
    conv_bias: Flag = "mamba_conv_bias",
    in_bias: str = "mamba_proj_bias",
    out_bias: str = "mamba_proj_bias",
    normed: bool = True,
    state_dtype: str = "fp32",
) -> Recurrent:
    """Return Mamba-2: the channels of a head share a decay. The arguments are as in `mamba`."""
    n_heads, d_conv = c.count(heads, at_least=1), c.count(kernel, at_least=1)
    if n_heads * _auto(c, head_dim, width // n_heads) != width:
        raise ValueError(
            f"config: {heads} heads of {head_dim} must make the width {width}, "
            f"got {n_heads} of {c.get(head_dim)}"
        )
    d_state = c.count(state, at_least=1)
    channels = width + 2 * c.count(groups, at_least=1) * d_state  # x, B and C
    inner = width + channels + n_heads
    biases = (channels if flag(c, conv_bias) else 0) + (inner if c.flag(in_bias) else 0)
    biases += c.width if c.flag(out_bias) else 0
    return Recurrent(
        "Mamba-2",
        weights=c.width * inner + width * c.width + channels * d_conv,
        state_elements=width * d_state,
        conv_elements=channels * d_conv,
        norm_params=width if normed else 0,
        other_params=3 * n_heads + biases,
        state_dtype=state_dtype,
    )


def _delta(
    c: Config,
    heads: tuple[int, int],
    dims: tuple[int, int],
    kernel: int,
    gates: int,
    decays: int,
    kind: str = "gated delta rule",
) -> Recurrent:
    """Return the delta rule; `heads` and their `dims` are those of keys and of values.

    `gates` are the elements of the matrices of decays, of strengths and of the output's gate.
    """
    values = heads[1] * dims[1]
    channels = 2 * heads[0] * dims[0] + values  # queries, keys and values
    return Recurrent(
        kind,
        weights=c.width * (channels + values) + channels * kernel + gates,
        state_elements=heads[1] * dims[0] * dims[1],
        conv_elements=channels * kernel,
        norm_params=dims[1],
        other_params=decays,
    )


def gated_delta(c: Config, heads: tuple[int, int], dims: tuple[int, int]) -> Recurrent:
    """Return the delta rule with one decay and one strength a head."""
    gates = c.width * (heads[1] * dims[1] + 2 * heads[1])
    kernel = c.count("linear_conv_kernel_dim", at_least=1)
    return _delta(c, heads, dims, kernel, gates, 2 * heads[1])


def channel_delta(c: Config, n: int, dim: int, kernel: int, gate: int) -> Recurrent:
    """Return the delta rule with a decay a channel; `gate`: the matrices of one of two gates."""
    kind = "gated delta rule, a decay per channel"
    return _delta(c, (n, n), (dim, dim), kernel, c.width * n + 2 * gate, n * dim + n, kind)


def lightning(c: Config) -> Recurrent:
    """Return lightning attention: a state a head, and no convolution."""
    width = c.n_heads * c.head_dim
    return Recurrent(
        "lightning attention",
        weights=5 * c.width * width,
        state_elements=c.n_heads * c.head_dim**2,
        norm_params=width,
    )


def short_convolution(c: Config) -> Recurrent:
    """Return a convolution gated before and behind, which keeps its last inputs and no state."""
    kernel = c.count("conv_L_cache", at_least=1)
    return Recurrent(
        "short convolution",
        weights=c.width * (4 * c.width + kernel),
        state_elements=0,
        conv_elements=c.width * kernel,
        other_params=5 * c.width if c.flag("conv_bias") else 0,
    )


def rg_lru(c: Config) -> Recurrent:
    """Return the RG-LRU, whose gates have a block a head. Of its convolution it keeps one less."""
    width, kernel = c.count("lru_width", c.width, at_least=1), c.count("conv1d_width", at_least=1)
    block = width // c.n_heads
    return Recurrent(
        "RG-LRU",
        weights=3 * c.width * width + width * kernel + 2 * c.n_heads * block**2,
        state_elements=width,
        conv_elements=width * (kernel - 1),
        other_params=4 * width + c.width + 2 * c.n_heads * block,
    )


def _auto(c: Config, key: str, otherwise: int) -> int:
    return otherwise if c.get(key) == "auto" else c.count(key, otherwise, at_least=1)


def expanded(c: Config, key: str = "mamba_expand") -> int:
    """Return the width of Mamba's channels: so many times the model's as the key says."""
    return c.count(key, at_least=1) * c.width


def state_dtype(c: Config, key: str) -> str:
    """Return the dtype of a state as `Recurrent` names it."""
    name = str(c.get(key, "float32"))
    if name not in _DTYPES:
        raise c.wrong(key, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
