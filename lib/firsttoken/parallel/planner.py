"""Choosing a layout: what a model costs on so many devices, and what stands in the way of more."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.hardware import Accelerator, Link
from firsttoken.parallel.collectives import all_to_all_s, ring_all_reduce_s
from firsttoken.parallel.memory import (
    DeviceMemory,
    Layout,
    device_memory,
    device_params,
    kv_share,
    query_share,
    stage_layers,
)
from firsttoken.roofline import Cost
from firsttoken.throughput import _parts, cost_per_million_tokens
from firsttoken.units import bytes_per_element


@dataclass(frozen=True)
class Workload:
    """What is served, on what, and how soon a reader wants it.

    Every request has `prompt` tokens and makes `output` more. `inside` links the
    `devices_per_node` devices of a node (None: the accelerator's own link, without latency),
    `across` the nodes. `memory_share` of the memory is for weights and cache. A reader waits at
    most `max_first_token_s` for the first token of a prompt that meets no queue, and on average
    `max_token_s` for each token after it.

    Units:  tokens, seconds, dollars for one device and hour
    Raises: ValueError for counts, shares, limits and prices that are out of range.
    """

    arch: Architecture
    accelerator: Accelerator
    prompt: int
    output: int
    dollars_per_hour: float
    max_first_token_s: float = math.inf
    max_token_s: float = math.inf
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    compute_dtype: str | None = None
    inside: Link | None = None
    across: Link | None = None
    devices_per_node: int = 8
    memory_share: float = 0.9

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "devices_per_node"):
            check_count(name, getattr(self, name), at_least=1)
        for name in ("max_first_token_s", "max_token_s", "dollars_per_hour"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        if not 0 < self.memory_share <= 1:
            raise ValueError(f"memory_share must lie in (0, 1], got {self.memory_share!r}")

    def link(self, n: int) -> Link:
        """Return the slowest link that a group of n neighbouring devices needs.

        Raises: ValueError where there is none.
        """
        own = self.accelerator.link_bandwidth
        if n > self.devices_per_node:
            link = self.across
        elif self.inside is not None or own is None:
            link = self.inside
        else:
            link = Link(self.accelerator.name, own, 0.0)
        if link is None:
            where = "across" if n > self.devices_per_node else "inside"
            raise ValueError(f"{where} must be a link for a group of {n} devices, got None")
        return link


@dataclass(frozen=True)
class StepTime:
    """Where the time of a pass goes, on the slowest stage, and what all stages take together.

    Units: seconds
    """

    compute_s: float
    bandwidth_s: float
    link_s: float
    passage_s: float

    @property
    def stage_s(self) -> float:
        """What the slowest stage takes."""
        return self.compute_s + self.bandwidth_s + self.link_s


@dataclass(frozen=True)
class Serving:
    """A layout at the largest batch that it allows, or what rules it out.

    `batch` requests are in flight on each replica. `token_s` is a reader's mean wait for a token,
    prompts of other requests in between included; `tokens_per_s` those of all replicas. `bound` is
    where most of a decode step goes: "compute", "bandwidth" or "link". `limit` is what a larger
    batch would break: "memory" or "token time". A layout that serves nothing has batch 0, an
    infinite price, and its obstacle as limit, which may also be "first token".

    Units:  seconds, tokens per second, dollars per million output tokens
    """

    layout: Layout
    batch: int
    memory: DeviceMemory
    first_token_s: float
    token_s: float
    tokens_per_s: float
    dollars_per_million: float
    bound: str
    limit: str


def layouts(arch: Architecture, n_devices: int, max_tensor: int | None = None) -> Iterator[Layout]:
    """Yield every layout of a number of devices: all ways to write it as a product.

    Tensor parallelism goes up to the number of heads, pipelines to that of layers, and expert
    groups to one expert a device; a dense model has one group.

    Raises: ValueError for what is no positive integer.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> [(x.replicas, x.tensor, x.pipeline) for x in layouts(ARCHITECTURES["Llama-3-8B"], 2)]
    [(2, 1, 1), (1, 1, 2), (1, 2, 1)]
    """
    check_count("n_devices", n_devices, at_least=1)
    heads = [layer.attention.n_heads for layer in arch.kinds if layer.attention is not None]
    most = min([*heads, n_devices if max_tensor is None else max_tensor])
    for tensor in _divisors(n_devices, most):
        left = n_devices // tensor
        for pipeline in _divisors(left, arch.n_layers):
            groups = max(1, arch.n_experts // tensor)
            for expert in _divisors(left // pipeline, groups if arch.n_experts else 1):
                yield Layout(left // pipeline // expert, tensor, pipeline, expert)


def pass_time(work: Workload, layout: Layout, batch: int, n_new: int, n_attended: int) -> StepTime:
    """Return the time of one pass of a microbatch: `batch` sequences, `n_new` tokens each.

    Linear layers, experts and attention run one after another, each at its own roofline, as in
    `throughput.decode_step` with the model "layers", and nothing overlaps with messages. A layer
    adds up activations after the attention and after the MLP. With expert groups, the second sum
    is replaced by two all-to-alls, which bring each token to its experts and back. The load of
    experts and devices is taken to be even.

    Sums go round a ring over the links as they are given, and all-to-alls in rounds. As they stand,
    `hardware.LINKS` have the latency of one protocol and the bandwidth of another, which is better
    than either. Small sums are added up sooner in one shot: where a verdict hangs on them, add
    `collectives.all_reduce_s` to `compute_s` and `bandwidth_s` instead.

    Raises: ValueError for what is no positive integer, and as `device_params` and `Workload.link`.
    """
    arch, tensor, n_layers = work.arch, layout.tensor, work.arch.n_layers
    compute = work.compute_dtype or work.dtype
    held, alone = device_params(arch, tensor, layout.expert), device_params(arch)
    rows = -(-batch // layout.expert)  # sequences of one group
    linear, _, attention, rest = _parts(arch, rows, n_new, n_attended, work.dtype, work.kv_dtype)
    _, experts, _, _ = _parts(arch, batch, n_new, n_attended, work.dtype, work.kv_dtype)
    head = _scaled(linear, held.head / alone.linear)
    layers = [
        _scaled(linear, (held.linear - held.head) / alone.linear),
        _scaled(experts, held.experts / alone.experts if arch.n_experts else 0.0),
        Cost(
            attention.flops * query_share(arch, tensor),
            attention.bytes * kv_share(arch, tensor),
        ),
        _scaled(rest, held.rest / alone.rest),
    ]
    talk_s = _talk_s(work, layout, rows, n_new)

    def split(parts: list[Cost], share: float) -> tuple[float, float]:
        """Return the seconds of parts that wait for the arithmetic, and for memory."""
        limits = [(p.flops / work.accelerator.peak(compute), p) for p in parts]
        waits = [(c, p.bytes / work.accelerator.bandwidth) for c, p in limits]
        return (
            share * sum(c for c, b in waits if c > b),
            share * sum(b for c, b in waits if c <= b),
        )

    stages = []
    for stage, count in enumerate(stage_layers(arch, layout.pipeline)):
        compute_s, bandwidth_s = split(layers, count / n_layers)
        if stage == layout.pipeline - 1:
            ends = split([head], 1.0)
            compute_s, bandwidth_s = compute_s + ends[0], bandwidth_s + ends[1]
        stages.append((compute_s, bandwidth_s, talk_s * count / n_layers))
    hop_s = 0.0
    if layout.pipeline > 1:
        link = work.link(tensor * layout.expert * layout.pipeline)
        hop_s = _activations(work, rows * n_new) / link.bandwidth + link.latency_s
    passage_s = sum(map(sum, stages)) + (layout.pipeline - 1) * hop_s
    return StepTime(*max(stages, key=sum), passage_s)


def serve_layout(work: Workload, layout: Layout) -> Serving:
    """Return what a layout serves at the largest batch that memory and the limits allow.

    Decoding keeps a microbatch in flight for each stage of a pipeline, so that no stage waits
    while the batch has as many requests as there are stages. In the time in which a request makes
    its `output` tokens, each of the batch needs one prefill; so a token's mean wait is a step and
    the `output`th part of these prefills. Attention reaches back to the middle of the output on
    average; memory is kept for the whole. Launches, queues and uneven experts are left out: it is
    a bound that ranks layouts, no promise.

    Raises: ValueError as `pass_time`.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> llama, h100 = ARCHITECTURES["Llama-3.1-70B"], ACCELERATORS["H100-SXM"]
    >>> work = Workload(llama, h100, prompt=2048, output=512, dollars_per_hour=3.0)
    >>> serve_layout(work, Layout()).limit, serve_layout(work, Layout(tensor=4)).batch
    ('memory', 175)
    """
    prompts = pass_time(work, layout, layout.expert, work.prompt, work.prompt)
    first_token_s = prompts.passage_s
    prefill_s = prompts.stage_s / layout.expert  # of the slowest stage, for one prompt

    def memory(batch: int) -> DeviceMemory:
        context = work.prompt + work.output
        return device_memory(work.arch, layout, batch, context, work.dtype, work.kv_dtype)

    def step(batch: int) -> StepTime:
        in_flight = min(batch, layout.pipeline)
        attended = work.prompt + -(-work.output // 2)
        return pass_time(work, layout, -(-batch // in_flight), 1, attended)

    def token_s(batch: int) -> float:
        one = step(batch)
        step_s = max(one.passage_s, min(batch, layout.pipeline) * one.stage_s)
        return step_s + batch * prefill_s / work.output

    def obstacle(batch: int) -> str:
        if memory(batch).total > work.memory_share * work.accelerator.memory_bytes:
            return "memory"
        if first_token_s > work.max_first_token_s:
            return "first token"
        return "token time" if token_s(batch) > work.max_token_s else ""

    refused = 1
    while not obstacle(refused):
        refused *= 2
    batch = refused // 2
    while refused - batch > 1:
        middle = (batch + refused) // 2
        batch, refused = (batch, middle) if obstacle(middle) else (middle, refused)
    limit, shown = obstacle(refused), max(batch, 1)
    one, wait_s = step(shown), token_s(shown)
    waits = {"compute": one.compute_s, "bandwidth": one.bandwidth_s, "link": one.link_s}
    rate, dollars = layout.replicas * batch / wait_s, math.inf
    if batch:
        dollars = cost_per_million_tokens(rate, layout.devices * work.dollars_per_hour)
    return Serving(
        layout, batch, memory(shown), first_token_s, wait_s, rate, dollars,
        max(waits, key=lambda name: waits[name]), limit,
    )  # fmt: skip


def rank_layouts(work: Workload, n_devices: int, max_tensor: int | None = None) -> list[Serving]:
    """Return every layout of a number of devices, the cheapest first, those that fail last.

    Equal prices are in the order of the wait for a token.

    Raises: ValueError as `serve_layout`; without `across`, for more devices than a node has where a
            replica would span nodes.

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> from firsttoken.hardware import ACCELERATORS
    >>> llama, h100 = ARCHITECTURES["Llama-3.1-70B"], ACCELERATORS["H100-SXM"]
    >>> work = Workload(llama, h100, 2048, 512, dollars_per_hour=3.0, max_token_s=0.05)
    >>> best, *_, worst = rank_layouts(work, n_devices=8)
    >>> best.layout.tensor, best.limit, worst.limit
    (4, 'token time', 'memory')
    """
    served = [serve_layout(work, layout) for layout in layouts(work.arch, n_devices, max_tensor)]
    return sorted(served, key=lambda s: (s.dollars_per_million, s.token_s))


def prefill_machines(prefill_s: float, tokens_per_s: float, output: int) -> float:
    """Return how many machines for prompts feed one machine that decodes, in disaggregation.

    A machine that makes `tokens_per_s` ends, and takes, a request every output / tokens_per_s.

    Holds:  for means. Requests that come by chance need more: at exactly this number the machines
            are always busy, and their queue grows without bound (`metrics.wait_md1` at ρ = 1).
    Raises: ValueError for times and rates that are not positive, and an output below 1.

    >>> prefill_machines(prefill_s=0.25, tokens_per_s=2048, output=512)
    1.0
    """
    check_count("output", output, at_least=1)
    for name, value in (("prefill_s", prefill_s), ("tokens_per_s", tokens_per_s)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")
    return prefill_s * tokens_per_s / output


def _talk_s(work: Workload, layout: Layout, rows: int, n_new: int) -> float:
    """Return the time of all layers' messages within a stage, for `rows` sequences of a group."""
    arch, tensor, together = work.arch, layout.tensor, layout.tensor * layout.expert
    n_exchanging = arch.n_moe_layers if layout.expert > 1 else 0
    seconds = 0.0
    if tensor > 1:
        link = work.link(tensor)
        n_bytes = _activations(work, rows * n_new)
        once = ring_all_reduce_s(n_bytes, tensor, link.bandwidth, link.latency_s)
        seconds += (2 * arch.n_layers - n_exchanging) * once
    if n_exchanging:
        link = work.link(together)
        n_bytes = _activations(work, rows * n_new) * arch.n_active_experts / tensor
        once = all_to_all_s(n_bytes, together, link.bandwidth, link.latency_s)
        seconds += 2 * n_exchanging * once
    return seconds


def _activations(work: Workload, n_tokens: int) -> float:
    return n_tokens * work.arch.d_model * bytes_per_element("bf16")


def _scaled(cost: Cost, share: float) -> Cost:
    return Cost(cost.flops * share, cost.bytes * share)


def _divisors(n: int, at_most: int) -> list[int]:
    return [i for i in range(1, min(n, at_most) + 1) if n % i == 0]
