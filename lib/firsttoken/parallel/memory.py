"""What each device holds: which parts of a model are divided, and which are copied.

Heads, the MLP, experts and the vocabulary are divided. Every device has the norms, the router,
learned positions and biases (a few of them could be cut, and are counted as if not), the narrow
parts of latent attention, and the keys and values that its queries read: with more devices than KV
heads, and with latent attention, some of them exist more than once.
"""

import itertools
from dataclasses import dataclass

from firsttoken.architectures import Architecture
from firsttoken.architectures.layers import (
    MLP,
    Attention,
    CompressedAttention,
    Experts,
    Layer,
    Mixer,
    Recurrent,
)
from firsttoken.checks import check_count
from firsttoken.kv_cache.sizes import kv_cache_bytes, state_bytes
from firsttoken.units import bytes_per_element


@dataclass(frozen=True)
class Layout:
    """How many ways a model is copied and cut: the product is the number of devices.

    `replicas` are whole copies, which share requests and nothing else. `pipeline` stages have some
    of the layers each. Within a stage, `expert` groups of `tensor` devices have the attention: a
    group reads its own requests, and its devices split the heads. The experts of a layer are
    divided among all tensor · expert devices of the stage; with `expert` 1 each expert is cut
    `tensor` ways instead.

    Raises: ValueError for what is no positive integer.

    >>> Layout(replicas=2, tensor=4).devices
    8
    """

    replicas: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_count(name, value, at_least=1)

    @property
    def devices(self) -> int:
        """The devices of all replicas."""
        return self.replicas * self.tensor * self.pipeline * self.expert


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of the fullest device; `copied`: the weights that the rest of its group has, too.

    Units: bytes
    """

    weights: float
    cache: float
    copied: float

    @property
    def total(self) -> float:
        """Weights and cache."""
        return self.weights + self.cache


def split_evenly(total: int, n: int) -> list[range]:
    """Cut 0 … total - 1 into n runs that differ by one at most, the longer ones first.

    Raises: ValueError for what is no count, and n below 1.

    >>> [len(run) for run in split_evenly(512, 3)]
    [171, 171, 170]
    """
    check_count("n", n, at_least=1)
    size, extra = divmod(check_count("total", total), n)
    ends = [i * size + min(i, extra) for i in range(n + 1)]
    return [range(start, end) for start, end in itertools.pairwise(ends)]


def split_heads(n_heads: int, n_kv_heads: int, n: int) -> list[tuple[range, range]]:
    """Return the query heads and the KV heads of each of n devices.

    With at least as many KV heads as devices, a device has whole groups: some KV heads, and all
    query heads that read them. With fewer, the devices share out the groups, and those of one
    group its query heads; each has a copy of the KV head. So the heads of a device always form
    grouped-query attention, only smaller.

    Raises: ValueError for query heads that are no multiple of the KV heads, and for more devices
            than query heads.

    >>> [(list(q), list(kv)) for q, kv in split_heads(6, 2, 4)]
    [([0, 1], [0]), ([2], [0]), ([3, 4], [1]), ([5], [1])]
    """
    check_count("n_kv_heads", n_kv_heads, at_least=1)
    if check_count("n_heads", n_heads, at_least=1) % n_kv_heads:
        raise ValueError(f"n_heads {n_heads} must be a multiple of n_kv_heads {n_kv_heads}")
    if check_count("n", n, at_least=1) > n_heads:
        raise ValueError(f"n must be at most n_heads {n_heads}, one head a device; got {n}")
    group = n_heads // n_kv_heads
    if n <= n_kv_heads:
        runs = split_evenly(n_kv_heads, n)
        return [(range(run.start * group, run.stop * group), run) for run in runs]
    held = []
    for kv_head, devices in enumerate(split_evenly(n, n_kv_heads)):
        first = kv_head * group
        for run in split_evenly(group, len(devices)):
            queries = range(first + run.start, first + run.stop)
            held.append((queries, range(kv_head, kv_head + 1)))
    return held


@dataclass(frozen=True)
class DeviceParams:
    """Parameters of the device of a stage that has most, as if the stage had all layers.

    `linear`: matrices that every token meets; `experts`; `rest`: what is looked up, added or
    scaled. `head`, in `linear`, is the output's matrix and `table`, in `rest`, the input's, where
    it is another one. `copied`: what every device of the group has. `again`: what later layers
    share with earlier ones; a pass meets it once more, and it is held once.
    """

    linear: float
    experts: float
    rest: float
    head: int
    table: int
    copied: int
    again: float = 0.0


def device_params(arch: Architecture, tensor: int = 1, expert: int = 1) -> DeviceParams:
    """Return the parameters of the fullest device, layers of all stages together.

    Where parts do not divide, the largest part of each kind is counted, though no device may have
    the largest of all.

    Raises: ValueError as `split_heads`, for expert groups without experts, and for more devices
            than experts to divide among them.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> alone = device_params(ARCHITECTURES["Llama-3.1-8B"])
    >>> alone.linear + alone.rest == ARCHITECTURES["Llama-3.1-8B"].n_params
    True
    """
    check_count("tensor", tensor, at_least=1)
    check_count("expert", expert, at_least=1)
    if expert > 1 and tensor * expert > arch.n_experts:
        raise ValueError(
            f"expert groups {expert} of {tensor} devices must have an expert each, "
            f"got {arch.n_experts} experts"
        )
    met, held = [0.0] * 4, [0.0] * 4  # divided, copied, of experts, and what is no matrix
    for layer, count in arch.kinds.items():
        for total, one in ((met, layer), (held, layer.own)):
            for i, part in enumerate(_of_layer(one, arch.d_model, tensor, expert)):
                total[i] += count * part
    outside = arch.norm_params + arch.bias_params + arch.position_params + arch.lookup_params
    head = (arch.embedding_dim or arch.d_model) * -(-arch.vocab_size // tensor)
    table = 0 if arch.tied_embeddings else head
    return DeviceParams(
        linear=met[0] + met[1] + arch.other_matrices + head,
        experts=met[2],
        rest=met[3] + outside + table,
        head=head,
        table=table,
        copied=round(held[1] + held[3] + outside + arch.other_matrices),
        again=sum(met) - sum(held),
    )


def _of_layer(layer: Layer, d_model: int, tensor: int, expert: int) -> tuple[float, ...]:
    """Return what the fullest device has of a layer: divided matrices, copied ones, experts, rest.

    The rest is all that is no matrix: norms and biases, which every device has.
    """
    parts = [_of_mixer(mixer, d_model, tensor) for mixer in layer.mixers]
    parts += [_of_mlp(mlp, d_model, tensor, expert) for mlp in layer.mlps]
    parts.append((-(-layer.other_matrices // tensor), 0, layer.other_matrices))
    divided, copied, whole = (sum(of_part) for of_part in zip(*parts, strict=True))
    experts: float = 0
    for mlp in layer.mlps:
        if isinstance(mlp, Experts):
            every = mlp.n_experts * (mlp.expert_matrices(d_model) + mlp.expert_bias)
            experts += every * _expert_share(mlp, tensor, expert)
            whole += every
    heads = layer.attention
    if isinstance(heads, Attention) and heads.n_head_groups:  # a token chooses among them, too
        held = max(len(kv) for _, kv in split_heads(heads.n_heads, heads.n_kv_heads, tensor))
        experts += heads.n_head_groups * heads.group_matrices(d_model) * held / heads.n_kv_heads
    return divided, copied, experts, sum(layer.params_by_component(d_model).values()) - whole


def device_memory(
    arch: Architecture,
    layout: Layout,
    batch: int,
    context: int,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
) -> DeviceMemory:
    """Return what the fullest device of a replica holds; `batch`: requests of the whole replica.

    Layers are taken to be alike. The first stage has the input's table and the last the output's
    matrix; the larger is counted. Weights that layers share are held once; of several stages,
    each holds those of its share of the layers, but no more than there are.

    Holds:  where layers are alike, but for activations, which are not counted. Where the first are
            dense and the others have experts, a stage without dense ones holds more: too little, by
            4 % for DeepSeek-V3 in 8 stages.
    Units:  bytes
    Raises: ValueError as `device_params`, for a batch or context that is no positive integer, for
            more stages than layers, and an unknown dtype.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> v3 = ARCHITECTURES["DeepSeek-V3"]
    >>> for layout in (Layout(tensor=8), Layout(expert=8)):  # the latent is no head's: 8 copies
    ...     held = device_memory(v3, layout, batch=64, context=8192, dtype="fp8")
    ...     print(f"{held.weights / 1e9:.1f} GB and {held.cache / 1e9:.1f} GB")
    84.8 GB and 36.8 GB
    98.9 GB and 4.6 GB
    """
    check_count("batch", batch, at_least=1)
    check_count("context", context, at_least=1)
    held = device_params(arch, layout.tensor, layout.expert)
    share = stage_layers(arch, layout.pipeline)[0] / arch.n_layers
    ends = held.head + held.table
    inside = held.linear + held.experts + held.rest - ends
    weights = min(inside * share, inside - held.again)
    weights += ends if layout.pipeline == 1 else held.head
    sequences = -(-batch // layout.expert)
    cache = kv_cache_bytes(arch, context, sequences, kv_dtype) * kv_share(arch, layout.tensor)
    cache += state_bytes(arch, sequences, kv_dtype) / layout.tensor
    size = bytes_per_element(dtype)
    return DeviceMemory(weights * size, cache * share, held.copied * share * size)


def stage_layers(arch: Architecture, n_stages: int) -> list[int]:
    """Return how many layers each stage has; the first has most.

    Raises: ValueError for more stages than layers.
    """
    if check_count("n_stages", n_stages, at_least=1) > arch.n_layers:
        raise ValueError(f"n_stages must be at most n_layers {arch.n_layers}, got {n_stages}")
    return [len(run) for run in split_evenly(arch.n_layers, n_stages)]


def kv_share(arch: Architecture, tensor: int) -> float:
    """Return the share of a sequence's cache that the fullest of the devices holds.

    Raises: ValueError as `split_heads`.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> [kv_share(ARCHITECTURES["Llama-3.1-70B"], n) for n in (2, 8, 16)]  # 8 KV heads
    [0.5, 0.125, 0.125]
    """
    held = stored = 0.0
    for layer, count in arch.kinds.items():
        mixer = layer.attention
        if mixer is not None and layer.kv_elements:
            share = 1.0  # a latent belongs to all heads, and so does a compressed entry
            if isinstance(mixer, Attention) and not isinstance(mixer, CompressedAttention):
                heads = split_heads(mixer.n_heads, mixer.n_kv_heads, tensor)
                share = max(len(kv) for _, kv in heads) / mixer.n_kv_heads
            held += count * layer.kv_elements * share
            stored += count * layer.kv_elements
    return held / stored if stored else 1.0


def query_share(arch: Architecture, tensor: int) -> float:
    """Return the share of attention's arithmetic that the fullest of the devices has.

    Raises: ValueError as `split_heads`.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> query_share(ARCHITECTURES["Llama-3.1-70B"], 3)  # 64 heads in 8 groups: 24 of them
    0.375
    """
    held = heads = 0
    for layer, count in arch.kinds.items():
        mixer = layer.attention
        if mixer is not None:
            n_kv_heads = mixer.n_kv_heads if isinstance(mixer, Attention) else mixer.n_heads
            parts = split_heads(mixer.n_heads, n_kv_heads, tensor)
            held += count * max(len(q) for q, _ in parts)
            heads += count * mixer.n_heads
    return held / heads if heads else 1 / tensor


def cache_transfer_s(
    arch: Architecture,
    n_tokens: int,
    link_bandwidth: float,
    latency_s: float = 0.0,
    n_links: int = 1,
    kv_dtype: str = "bf16",
) -> float:
    """Return the time to move a prompt's cache from where it was made to where tokens are made.

    Disaggregated serving has machines for prompts and others for decoding; each request's cache
    crosses the network once. `n_links` of them carry a part each.

    Holds:  where the whole cache is sent at the end, at the links' full rate; shared links make it
            too short. Sent layer by layer beside the prefill, most of it is hidden, and the reader
            waits less.
    Units:  bytes/s of one link, seconds
    Raises: ValueError for what is no count, a bandwidth that is not positive, a negative latency.
    Source: Zhong et al. 2024, DistServe, arXiv:2401.09670, sec. 3.3

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> llama = ARCHITECTURES["Llama-3.1-70B"]
    >>> round(1e3 * cache_transfer_s(llama, 8192, link_bandwidth=50e9), 1)  # ms
    53.7
    """
    check_count("n_links", n_links, at_least=1)
    if not link_bandwidth > 0:
        raise ValueError(f"link_bandwidth must be positive, got {link_bandwidth!r}")
    if not latency_s >= 0:
        raise ValueError(f"latency_s must not be negative, got {latency_s!r}")
    moved = kv_cache_bytes(arch, check_count("n_tokens", n_tokens), dtype=kv_dtype)
    return moved / (n_links * link_bandwidth) + latency_s


def _of_mixer(mixer: Mixer, d_model: int, tensor: int) -> tuple[int, int, int]:
    """Return the elements of a mixer's matrices: the fullest device's part, copied ones, all."""
    whole = mixer.matrices(d_model)
    if isinstance(mixer, Recurrent):
        return -(-whole // tensor), 0, whole
    extra = -(-mixer.extra_matrices // tensor)
    if isinstance(mixer, CompressedAttention):
        split_heads(mixer.n_heads, mixer.n_heads, tensor)  # raises for more devices than heads
        width = mixer.n_heads * mixer.head_dim
        narrow = d_model * (mixer.q_latent_dim + mixer.n_kv_heads * mixer.head_dim)
        narrow += d_model * mixer.out_groups * mixer.out_latent_dim
        divided = -(-width * (mixer.q_latent_dim + mixer.out_latent_dim) // tensor)
        return divided + extra, narrow, whole
    if isinstance(mixer, Attention):
        of_key = mixer.head_dim if mixer.kv_matrices > 0 else 0
        of_value = mixer.value_dim if mixer.kv_matrices > 1 else 0
        heads = split_heads(mixer.n_heads, mixer.n_kv_heads, tensor)
        of_query = 0 if mixer.n_head_groups else mixer.head_dim + mixer.value_dim
        most = max(len(q) * of_query + len(kv) * (of_key + of_value) for q, kv in heads)
        return d_model * most + extra, 0, whole
    heads = split_heads(mixer.n_heads, mixer.n_heads, tensor)
    compressed = mixer.q_latent_dim
    per_head = mixer.head_dim * (d_model if compressed is None else compressed)
    per_head += mixer.latent_dim * (mixer.head_dim - mixer.rope_head_dim + mixer.v_head_dim)
    per_head += mixer.v_head_dim * d_model
    narrow = d_model * (mixer.latent_dim + mixer.rope_head_dim + (compressed or 0))
    return max(len(q) for q, _ in heads) * per_head + extra, narrow, whole


def _of_mlp(mlp: MLP | Experts, d_model: int, tensor: int, expert: int) -> tuple[int, int, int]:
    """Return the same of what every token meets in an MLP; experts are counted by themselves."""
    matrices = 3 if mlp.gated else 2
    if isinstance(mlp, MLP):
        divided = matrices * d_model * -(-mlp.d_ff // tensor) + -(-mlp.extra_matrices // tensor)
        return divided, 0, mlp.matrices(d_model)
    router = mlp.router(d_model)
    whole = router + mlp.shared(d_model)
    if expert > 1:
        return 0, whole, whole
    divided = matrices * d_model * -(-mlp.shared_d_ff // tensor)
    return divided, router + mlp.shared_matrices, whole


def _expert_share(experts: Experts, tensor: int, expert: int) -> float:
    """Return the share of the experts' parameters that the fullest device has."""
    if expert == 1:
        return -(-experts.d_ff // tensor) / experts.d_ff
    return -(-experts.n_experts // (tensor * expert)) / experts.n_experts
