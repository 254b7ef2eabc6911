"""parallel: collectives against a simulation, what devices hold, and layouts that are in use."""

import dataclasses
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture, from_hf_config
from firsttoken.architectures.layers import MLP, Attention, Experts, Layer, Recurrent
from firsttoken.architectures.released import RELEASED
from firsttoken.hardware import ACCELERATORS, LINKS, Link
from firsttoken.kv_cache import kv_cache_bytes, max_batch, state_bytes
from firsttoken.parallel import (
    DeviceMemory,
    DeviceParams,
    Layout,
    Workload,
    all_gather_bytes,
    all_gather_s,
    all_reduce_bytes,
    all_reduce_s,
    all_to_all_bytes,
    all_to_all_s,
    cache_transfer_s,
    device_memory,
    device_params,
    dispatch_bytes,
    fit_link,
    idle_share,
    in_protocol,
    kv_share,
    layouts,
    one_shot_all_reduce_s,
    pass_time,
    pipeline_bubble,
    pipeline_bytes,
    pipeline_step_s,
    pipeline_timeline,
    prefill_machines,
    rank_layouts,
    reduce_scatter_bytes,
    reduce_scatter_s,
    ring_all_reduce_s,
    ring_piece,
    ring_rounds,
    serve_layout,
    split_evenly,
    split_heads,
    stage_layers,
    tensor_parallel_prefill,
    tensor_parallel_step,
)
from firsttoken.roofline import model_cost
from firsttoken.throughput import MODELS, decode_step, prefill

H100, M1 = ACCELERATORS["H100-SXM"], ACCELERATORS["M1"]
LLAMA_70B = ARCHITECTURES["Llama-3.1-70B"]

# What people run; types whose layers share weights, choose heads, or have an MLP beside experts.
UNLIKE = [
    from_hf_config({"model_type": kind, **changes})
    for kind, changes in {
        "doge": {"is_moe": True}, "hrm_text": {}, "jetmoe": {}, "longcat_flash": {}, "zamba": {},
        "zamba2": {},
    }.items()
]  # fmt: skip
architectures = st.sampled_from([*RELEASED.values(), *UNLIKE])
linked = st.sampled_from([a for a in ACCELERATORS.values() if a.link_bandwidth is not None])
batches, contexts, devices = st.integers(1, 600), st.integers(1, 20_000), st.integers(1, 64)
models = st.sampled_from(MODELS)
latencies = st.sampled_from([0.0, 1e-6, 3e-5])


# --- the ring


def simulated_ring(arrays: list[list[int]]) -> tuple[list[list[int]], int, int]:
    """Reduce lists of n pieces round the ring; return what is held, rounds, pieces sent by one."""
    held, n, rounds = [list(array) for array in arrays], len(arrays), 0
    for phase in ("reduce", "gather"):
        for step in range(n - 1):
            shift = step if phase == "reduce" else step - 1
            sent = [((device - shift) % n, held[device]) for device in range(n)]
            sent = [(piece, values[piece]) for piece, values in sent]  # all send at once
            for device, (piece, value) in enumerate(sent):
                right = held[(device + 1) % n]
                right[piece] = value + right[piece] if phase == "reduce" else value
            rounds += 1
    return held, rounds, rounds  # one piece per device and round


@given(data=st.data(), n=st.integers(1, 9), latency_s=latencies)
def test_the_formula_counts_what_a_ring_does(data, n, latency_s):
    arrays = data.draw(
        st.lists(st.lists(st.integers(-99, 99), min_size=n, max_size=n), min_size=n, max_size=n)
    )
    held, rounds, n_sent = simulated_ring(arrays)
    total = [sum(pieces) for pieces in zip(*arrays, strict=True)]
    assert held == [total] * n  # it is an all-reduce
    n_bytes, bandwidth = 4096, 1e9
    expected = Fraction(n_sent * n_bytes, n) / Fraction(bandwidth) + rounds * Fraction(latency_s)
    got = ring_all_reduce_s(n_bytes, n, bandwidth, latency_s)
    assert got == pytest.approx(float(expected), rel=1e-12)


@given(n=st.integers(1, 9))
def test_the_rounds_of_the_figure(n):
    """Letters are the devices: a piece is done where its name has all of them, once each."""
    letters = "abcdefghi"[:n]
    rounds = list(ring_rounds([[letter] * n for letter in letters]))
    assert len(rounds) == 2 * (n - 1)
    for step in rounds:
        assert [sender for sender, _, _ in step.sends] == list(range(n))
        assert {receiver for _, receiver, _ in step.sends} == set(range(n))
        assert step.adds == (step.index < n - 1)
    if n > 1:
        scattered = rounds[n - 2].held
        assert all(sorted(scattered[i][i]) == list(letters) for i in range(n))
        assert all(len(set(pieces)) == 1 for pieces in zip(*rounds[-1].held, strict=True))
        assert all(sorted(piece) == list(letters) for piece in rounds[-1].held[0])


@given(
    n=st.integers(1, 40),
    total=st.integers(0, 10**6),
    bandwidth=st.floats(1e6, 1e12),
    latency_s=latencies,
)
def test_collectives_fit_together(n, total, bandwidth, latency_s):
    """An all-reduce is a reduce-scatter and an all-gather; bytes over links are the time."""
    link = bandwidth, latency_s
    scatter, gather = reduce_scatter_s(total, n, *link), all_gather_s(total, n, *link)
    assert scatter + gather == pytest.approx(ring_all_reduce_s(total, n, *link))
    assert reduce_scatter_bytes(total, n) + all_gather_bytes(total, n) == all_reduce_bytes(total, n)
    assert all_to_all_bytes(total * n, n) == n * (n - 1) * total
    for seconds, n_bytes, n_rounds in (
        (ring_all_reduce_s(total, n, *link), all_reduce_bytes(total, n), 2 * (n - 1)),
        (gather, all_gather_bytes(total, n), n - 1),
        (all_to_all_s(total, n, *link), all_gather_bytes(total, n), n - 1),
    ):
        assert seconds == pytest.approx(n_bytes / n / bandwidth + n_rounds * latency_s)


@given(data=st.data(), n=st.integers(1, 6), n_numbers=st.integers(0, 30))
def test_bytes_are_what_uneven_pieces_send(data, n, n_numbers):
    """Each round sends every piece once, so their sizes add up to the array."""
    sizes = [len(run) for run in split_evenly(n_numbers, n)]
    sent = sum(
        4 * sizes[ring_piece(device, index, n)]
        for device in range(n)
        for index in range(2 * (n - 1))
    )
    assert sent == all_reduce_bytes(4 * n_numbers, n)
    counts = data.draw(
        st.lists(st.lists(st.integers(0, 50), min_size=n, max_size=n), min_size=n, max_size=n)
    )
    kept = sum(counts[i][i] for i in range(n))
    assert dispatch_bytes(counts, 10) == 10 * (sum(map(sum, counts)) - kept)


@given(n=st.integers(2, 30), latency_s=st.floats(1e-7, 1e-3), bandwidth=st.floats(1e6, 1e12))
def test_a_link_is_found_from_two_of_its_times(n, latency_s, bandwidth):
    for n_passes, formula in ((2, ring_all_reduce_s), (1, all_gather_s)):
        sizes = (1e3, 1e10)
        small, large = ((size, formula(size, n, bandwidth, latency_s)) for size in sizes)
        found = fit_link(n, small, large, n_passes)
        assert found[1] == pytest.approx(bandwidth, rel=1e-6)
        assert formula(sizes[0], n, found[1], max(0, found[0])) == pytest.approx(small[1], rel=1e-3)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ring_all_reduce_s(1, 0, 1e9), "n must be"),
        (lambda: ring_all_reduce_s(-1, 2, 1e9), "n_bytes"),
        (lambda: ring_all_reduce_s(1, 2, 0), "link_bandwidth"),
        (lambda: ring_all_reduce_s(1, 2, 1e9, -1e-6), "latency_s"),
        (lambda: fit_link(2, (0, 1), (1, 2), 0), "n_passes"),
        (lambda: all_to_all_bytes(7, 2), "multiple of n 2"),
        (lambda: dispatch_bytes([[1, 2]], 4), "square"),
        (lambda: dispatch_bytes([[1, -2], [0, 0]], 4), "counts"),
        (lambda: list(ring_rounds([[1, 2], [3]])), "2 pieces each, got 1"),
        *[
            (lambda times=times: fit_link(2, *times), "must have more bytes and take longer")
            for times in (((1, 1), (1, 2)), ((0, 1), (1, 1)), ((-1, 1), (1, 2)), ((0, -1), (1, 1)))
        ],
    ],
)
def test_collectives_refuse(call, named):
    with pytest.raises(ValueError, match=named):
        call()


# --- pipelines

stage_times = st.lists(st.floats(0, 5), min_size=1, max_size=6)


@given(stage_s=stage_times, m=st.integers(1, 8), hop_s=st.floats(0, 2))
def test_the_time_of_a_pipeline_is_that_of_its_timeline(stage_s, m, hop_s):
    slots = pipeline_timeline(stage_s, m, hop_s)
    assert max(slot.end_s for slot in slots) == pytest.approx(pipeline_step_s(stage_s, m, hop_s))
    for stage in range(len(stage_s)):  # one microbatch at a time, in order
        mine = [slot for slot in slots if slot.stage == stage]
        assert [slot.microbatch for slot in mine] == list(range(m))
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(mine))


@given(p=st.integers(1, 12), m=st.integers(1, 40))
def test_the_bubble_of_equal_stages(p, m):
    assert idle_share(pipeline_timeline([1.0] * p, m)) == pytest.approx(pipeline_bubble(p, m))
    assert pipeline_bubble(p, m + 1) <= pipeline_bubble(p, m) <= pipeline_bubble(p + 1, m)


# --- what each device holds


@given(total=st.integers(0, 200), n=st.integers(1, 20))
def test_an_even_split_is_even_and_whole(total, n):
    runs = split_evenly(total, n)
    assert [i for run in runs for i in run] == list(range(total))
    assert len(runs) == n and max(map(len, runs)) - min(map(len, runs)) <= 1


@given(n_kv=st.integers(1, 8), group=st.integers(1, 6), data=st.data())
def test_heads_are_split_into_smaller_attention(n_kv, group, data):
    n_heads = n_kv * group
    n = data.draw(st.integers(1, n_heads))
    parts = split_heads(n_heads, n_kv, n)
    assert [head for q, _ in parts for head in q] == list(range(n_heads))  # each query once
    for q, kv in parts:
        assert len(q) and {head // group for head in q} == set(kv)  # what its queries read
        assert len(q) % len(kv) == 0  # grouped-query attention again
        assert [head // group for head in q] == sorted(list(kv) * (len(q) // len(kv)))
    copies = sum(len(kv) for _, kv in parts)
    assert copies == max(n, n_kv)  # no more copies than there must be


@given(arch=architectures, batch=batches, context=contexts)
def test_one_device_holds_everything(arch, batch, context):
    held = device_memory(arch, Layout(), batch, context, "bf16", "int8")
    assert held.weights == pytest.approx(2 * arch.n_params)
    kept = kv_cache_bytes(arch, context, batch, "int8") + state_bytes(arch, batch, "int8")
    assert held.cache == pytest.approx(kept)
    params = device_params(arch)
    assert params.linear + params.experts + params.rest - params.again == arch.n_params
    if not any(
        x.experts and x.experts.expert_bias for x in arch.kinds
    ):  # which is no matrix, but goes with its expert
        experts = arch.n_touched_params(1) - arch.n_touched_params(0)
        assert params.linear == arch.n_matmul_params - experts


# Everything divides by 4, two kinds of experts beside an MLP, and a block that is met again.
BLOCK = Layer(
    (Attention(8, 4, 4, norm_params=8, bias_params=3), Recurrent("any", 64, 8, other_params=5)),
    (MLP(12, bias_params=7), Experts(8, 2, 16, expert_bias=2), Experts(4, 1, 8, False, 20)),
    norm_params=16,
    other_matrices=40,
)
SHARING = Architecture.of_layers(
    "sharing", [BLOCK, BLOCK.replace(weights_of=0)], 8, 16, lookup_params=9, other_matrices=11
)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_parts_of_all_devices_are_the_model(n):
    """What is copied lies on each of n, all else on one: together they hold every number once."""
    held = device_memory(SHARING, Layout(tensor=n), 1, 1, "fp8")
    divided = held.weights - held.copied
    assert n * divided + held.copied == sum(SHARING.params_by_component.values())
    recurrence, own = 64 + 5, 40
    block = sum(BLOCK.params_by_component(8).values()) - recurrence - own
    assert device_params(SHARING).again == block


def test_keys_and_values_are_copied_when_they_run_out():
    """MQA has one KV head and MLA one latent: no number of devices makes the cache smaller."""
    multi_query = LLAMA_70B.replace(n_kv_heads=1)
    v3 = ARCHITECTURES["DeepSeek-V3"]
    assert [kv_share(multi_query, n) for n in (1, 2, 8)] == [1, 1, 1]
    assert [kv_share(v3, n) for n in (1, 2, 8)] == [1, 1, 1]
    assert [kv_share(LLAMA_70B, n) for n in (1, 2, 3, 8, 16)] == [1, 1 / 2, 3 / 8, 1 / 8, 1 / 8]
    groups = [device_memory(v3, Layout(expert=e), 64, 4096).cache for e in (1, 2, 8)]
    assert groups == [groups[0], groups[0] / 2, groups[0] / 8]


# Small enough to count by hand, and nothing divides: D, heads, KV heads, H, F, V.
ODD = Architecture("odd", 3, 8, 6, 2, 4, 10, 13)
EXPERTS = ODD.replace(
    n_experts=6, n_active_experts=2, n_shared_experts=2, expert_d_ff=5, n_dense_layers=1
)
LATENT = ODD.replace(n_kv_heads=6, latent_dim=5, rope_head_dim=2, v_head_dim=3, q_latent_dim=7)
NORMS = (2 * 3 + 1) * 8


def attention_by_hand(q, kv, layers=3, kv_layers=3):
    """Return the matrices of so many heads: queries and outputs, keys and values."""
    return layers * 2 * 8 * q * 4 + kv_layers * 2 * 8 * kv * 4


@pytest.mark.parametrize(
    ("arch", "tensor", "expert", "linear", "experts", "head", "table", "copied"),
    [
        # Two query heads and one KV head; 3 of 10 rows of the MLP, 4 of 13 of the vocabulary.
        (ODD, 4, 1, attention_by_hand(2, 1) + 3 * 3 * 8 * 3, 0, 8 * 4, 8 * 4, NORMS),
        (ODD.replace(tied_embeddings=True), 4, 1,
         attention_by_hand(2, 1) + 3 * 3 * 8 * 3, 0, 8 * 4, 0, NORMS),
        (ODD.replace(gated_mlp=False), 4, 1,
         attention_by_hand(2, 1) + 3 * 2 * 8 * 3, 0, 8 * 4, 8 * 4, NORMS),
        (ODD.replace(kv_source=(0, 0, 2)), 4, 1,
         attention_by_hand(2, 1, kv_layers=2) + 3 * 3 * 8 * 3, 0, 8 * 4, 8 * 4, NORMS),
        # One dense layer; of the two shared experts 3 of 10 rows, of each expert 2 of 5.
        (EXPERTS, 4, 1,
         attention_by_hand(2, 1) + 3 * 8 * 3 + 2 * 3 * 8 * 3 + 2 * 6 * 8,
         2 * 6 * 3 * 8 * 2, 8 * 4, 8 * 4, NORMS + 2 * 6 * 8),
        # In two groups of two: the shared experts whole in each, 2 of 6 experts on a device.
        (EXPERTS, 2, 2,
         attention_by_hand(3, 1) + 3 * 8 * 5 + 2 * 3 * 8 * 10 + 2 * 6 * 8,
         2 * 2 * 3 * 8 * 5, 8 * 7, 8 * 7, NORMS + 2 * 6 * 8 + 2 * 3 * 8 * 10),
        # Of each head: queries from their latent, keys and values from theirs, and the output.
        (LATENT, 4, 1,
         3 * 2 * (4 * 7 + 5 * (2 + 3) + 3 * 8) + 3 * 8 * (5 + 2 + 7) + 3 * 3 * 8 * 3, 0,
         8 * 4, 8 * 4, NORMS + 3 * (5 + 7) + 3 * 8 * (5 + 2 + 7)),
        (LATENT.replace(q_latent_dim=None), 4, 1,
         3 * 2 * (4 * 8 + 5 * (2 + 3) + 3 * 8) + 3 * 8 * (5 + 2) + 3 * 3 * 8 * 3, 0,
         8 * 4, 8 * 4, NORMS + 3 * 5 + 3 * 8 * (5 + 2)),
    ],
)  # fmt: skip
def test_the_fullest_device_by_hand(arch, tensor, expert, linear, experts, head, table, copied):
    held = device_params(arch, tensor, expert)
    small = held.rest - table  # norms alone
    assert held == DeviceParams(
        linear + head, pytest.approx(experts), table + small, head, table, copied
    )
    assert small == arch.params_by_component["norms"]


def test_what_a_device_holds_in_bytes_by_hand():
    """Two of three layers on the first stage; of the ends only the head, and 2 of 3 requests."""
    held = device_memory(ODD, Layout(tensor=4, pipeline=2), batch=3, context=5)
    layers = attention_by_hand(2, 1) + 3 * 3 * 8 * 3 + NORMS
    assert held.weights == pytest.approx(2 * (layers * 2 / 3 + 8 * 4))
    assert held.copied == pytest.approx(2 * NORMS * 2 / 3)
    # Keys and values of one KV head in two layers, for 3 · 5 tokens.
    assert held.cache == pytest.approx(2 * 2 * (2 * 4) * 15)
    assert held.total == held.weights + held.cache
    wide = device_memory(ODD, Layout(tensor=4, pipeline=2), 3, 5, "fp32", "fp8")
    assert wide.weights == pytest.approx(2 * held.weights)
    assert wide.cache == pytest.approx(held.cache / 2)
    whole = device_memory(ODD, Layout(tensor=4), 1, 1)
    assert whole.weights == pytest.approx(2 * (layers + 2 * 8 * 4))
    groups = device_memory(EXPERTS, Layout(tensor=2, expert=2), 3, 5)
    assert groups.cache == pytest.approx(2 * 3 * (2 * 4) * 10)
    assert DeviceMemory(1.0, 2.0, 4.0).total == 3


def test_a_layout_is_one_device_unless_it_says_more():
    assert Layout() == Layout(1, 1, 1, 1) and Layout().devices == 1
    assert Layout(2, 3, 5, 7).devices == 2 * 3 * 5 * 7
    assert device_params(EXPERTS) == device_params(EXPERTS, 1, 1)
    assert split_heads(6, 2, 6)[-1] == (range(5, 6), range(1, 2))  # as many as query heads
    assert stage_layers(ODD, 3) == [1, 1, 1] and stage_layers(ODD, 2) == [2, 1]
    assert cache_transfer_s(ODD, 5, 0.5) == 2 * 3 * 16 * 5 / 0.5
    assert cache_transfer_s(ODD, 5, 0.5, kv_dtype="fp8") == 3 * 16 * 5 / 0.5
    assert cache_transfer_s(ODD, 5, 0.5, 3.0, n_links=2) == 3 * 16 * 5 / 0.5 + 3.0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: pipeline_bubble(0, 1), "n_stages"),
        (lambda: pipeline_timeline([], 1), "stage_s"),
        (lambda: pipeline_timeline([1], 0), "^n_microbatches"),
        (lambda: pipeline_timeline([1], 1, math.nan), "hop_s"),
        (lambda: pipeline_step_s([1, -1], 1), "stage_s"),
        (lambda: pipeline_bytes(-1, 2), "n_bytes"),
        (lambda: Layout(tensor=0), "tensor"),
        (lambda: cache_transfer_s(LLAMA_70B, 1, 1, n_links=0), "n_links"),
        (lambda: prefill_machines(1, 0, 1), "tokens_per_s"),
        (lambda: split_heads(6, 4, 2), "multiple of n_kv_heads 4"),
        (lambda: split_heads(6, 2, 7), "at most n_heads 6"),
        (lambda: device_params(ARCHITECTURES["Mixtral-8x7B"], 2, 8), "an expert each, got 8"),
        (lambda: device_memory(LLAMA_70B, Layout(pipeline=81), 1, 1), "at most n_layers 80"),
        (lambda: device_memory(LLAMA_70B, Layout(), 0, 1), "batch"),
    ],
)
def test_pipelines_and_memory_refuse(call, named):
    with pytest.raises(ValueError, match=named):
        call()


# --- choosing a layout

NODE = {"inside": LINKS["NVLink-4"], "across": LINKS["InfiniBand-NDR"]}


def workload(name="Llama-3.1-70B", device="H100-SXM", **changes):
    usual = {"prompt": 2048, "output": 512, "dollars_per_hour": 3.0, **NODE}
    return Workload(ARCHITECTURES[name], ACCELERATORS[device], **(usual | changes))


@given(arch=architectures, batch=st.integers(1, 64), context=st.integers(1, 9000))
def test_a_pass_of_one_device_is_a_decode_step(arch, batch, context):
    for device in ("H100-SXM", "M1"):  # M1 has no link, and needs none
        work = Workload(arch, ACCELERATORS[device], 1, 1, 1.0)
        found = pass_time(work, Layout(), batch, 1, context)
        alone = decode_step(arch, ACCELERATORS[device], batch, context, model="layers").step_s
        assert found.stage_s == pytest.approx(alone) and found.link_s == 0
        assert found.passage_s == pytest.approx(alone)
        prompt = pass_time(work, Layout(), 1, context, context).stage_s
        alone = prefill(arch, ACCELERATORS[device], context, model="layers")
        assert prompt == pytest.approx(alone)


def by_hand(arch, layout, batch, n_new, n_attended, bandwidth, flops, **changes):
    """Return the time of a pass on devices that only wait for memory, or only for arithmetic."""
    device = dataclasses.replace(H100, bandwidth=bandwidth, peak_flops={"bf16": flops})
    links = {"inside": Link("in", 4.0, 0.5), "across": Link("out", 2.0, 8.0)}
    work = Workload(arch, device, 1, 1, 1.0, **(links | {"devices_per_node": 4} | changes))
    return pass_time(work, layout, batch, n_new, n_attended)


def test_a_pass_by_hand():
    """Three sequences, two new tokens each, in two stages of four devices: 2 + 1 layers.

    A byte a second, or a FLOP a second, and the other for nothing. A device has one of two KV
    heads, and two of six query heads.
    """
    layout, cost = Layout(tensor=4, pipeline=2), model_cost(ODD, 3, 2, 5, "bf16", "bf16")
    linear, head = attention_by_hand(2, 1) + 3 * 3 * 8 * 3, 8 * 4
    keys = (cost.bytes - 2 * ODD.n_params) / 2
    scores = (cost.flops - 2 * 6 * ODD.n_matmul_params) * 2 / 6
    activations = 3 * 2 * 8 * 2  # bytes
    ring = 2 * 3 * (activations / 4 / 4.0 + 0.5)  # of four devices
    hop = activations / 2.0 + 8.0  # to another node
    read = 2 * (linear + NORMS + 8 * 4) + keys
    found = by_hand(ODD, layout, 3, 2, 5, bandwidth=1.0, flops=1e30)
    assert found.bandwidth_s == pytest.approx(read * 2 / 3)
    assert (found.compute_s, found.link_s) == pytest.approx((0, 2 * 2 * ring), abs=1e-9)
    assert found.passage_s == pytest.approx(read + 2 * head + 3 * 2 * ring + hop)
    computed = 2 * 6 * linear + scores
    found = by_hand(ODD, layout, 3, 2, 5, bandwidth=1e30, flops=1.0)
    assert found.compute_s == pytest.approx(computed * 2 / 3)
    assert (found.bandwidth_s, found.link_s) == pytest.approx((0, 2 * 2 * ring), abs=1e-9)
    assert found.passage_s == pytest.approx(computed + 2 * 6 * head + 3 * 2 * ring + hop)
    # With one layer on each stage the last one is the slowest: it has the head.
    found = by_hand(ODD, Layout(tensor=4, pipeline=3), 3, 2, 5, bandwidth=1.0, flops=1e30)
    assert found.bandwidth_s == pytest.approx(read / 3 + 2 * head)
    assert found.stage_s == pytest.approx(found.bandwidth_s + 2 * ring)
    assert found.passage_s == pytest.approx(read + 2 * head + 3 * 2 * ring + 2 * hop)


def test_the_messages_of_expert_groups_by_hand():
    """Five sequences in two groups of two devices: three rows; two of three layers have experts.

    Each token goes to two experts and back, half of it from each device of its group.
    """
    found = by_hand(EXPERTS, Layout(tensor=2, expert=2), 5, 1, 4, bandwidth=1e30, flops=1e30)
    activations = 3 * 8 * 2
    ring = 2 * (activations / 2 / 4.0 + 0.5)
    exchange = 3 * (activations * 2 / 2 / 4 / 4.0 + 0.5)
    assert found.link_s == pytest.approx((2 * 3 - 2) * ring + 2 * 2 * exchange)
    # One device a group: only the exchanges are left, and on four a node they go across two.
    found = by_hand(EXPERTS, Layout(expert=6), 6, 1, 4, bandwidth=1e30, flops=1e30)
    activations = 1 * 8 * 2
    assert found.link_s == pytest.approx(2 * 2 * 5 * (activations * 2 / 6 / 2.0 + 8.0))


def test_the_experts_that_a_pass_reads_by_hand():
    """All of a group's tokens together choose experts; a device has a third of them."""
    layout, cost = Layout(tensor=2, expert=2), model_cost(EXPERTS, 3, 1, 4, "bf16", "bf16")
    found = by_hand(EXPERTS, layout, 5, 1, 4, bandwidth=1.0, flops=1e30)
    keys = (cost.bytes - 2 * EXPERTS.n_touched_params(3)) / 2  # of three rows, one of two KV heads
    visited = EXPERTS.n_touched_params(5) - EXPERTS.n_touched_params(0)
    held = device_params(EXPERTS, 2, 2)
    assert found.bandwidth_s == pytest.approx(2 * (held.linear + held.rest + visited / 3) + keys)
    found = by_hand(EXPERTS, layout, 5, 1, 4, bandwidth=1e30, flops=1.0)
    scores = (cost.flops - 2 * 3 * EXPERTS.n_matmul_params) / 2
    of_experts = 2 * 5 * (EXPERTS.n_touched_params(1) - EXPERTS.n_touched_params(0)) / 3
    assert found.compute_s == pytest.approx(2 * 3 * held.linear + scores + of_experts)


def test_a_group_s_link():
    near, far = LINKS["NVLink-4"], LINKS["InfiniBand-NDR"]
    work = workload()
    assert [work.link(n) for n in (1, 8, 9)] == [near, near, far]
    assert workload(devices_per_node=2).link(3) == far
    own = workload(inside=None).link(8)
    assert (own.bandwidth, own.latency_s) == (H100.link_bandwidth, 0)
    assert workload(device="M1").link(2) == near  # the device has none of its own


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("Llama-3.1-70B", Layout(2, 4, 3)),
        ("Llama-3.1-70B", Layout(tensor=4, pipeline=4)),
        ("DeepSeek-V3", Layout(tensor=2, expert=8)),
    ],
)
def test_a_wait_is_a_step_and_its_part_of_the_prompts(name, layout):
    """Attention reaches back to the middle of the output, 256 of 511, and memory is for all.

    A pass over one prompt a group brings as many prompts as there are groups of experts.
    """
    work = workload(name, "H200-SXM", output=511, max_token_s=0.06)
    found = serve_layout(work, layout)
    in_flight = min(found.batch, layout.pipeline)
    one = pass_time(work, layout, math.ceil(found.batch / in_flight), 1, 2048 + 256)
    prompts = pass_time(work, layout, layout.expert, 2048, 2048)
    step_s = max(one.passage_s, in_flight * one.stage_s)
    wait_s = step_s + found.batch * prompts.stage_s / layout.expert / 511
    assert found.batch > 8 and found.token_s == pytest.approx(wait_s)
    assert found.first_token_s == prompts.passage_s
    assert found.memory == device_memory(work.arch, layout, found.batch, 2048 + 511)
    assert found.tokens_per_s == pytest.approx(layout.replicas * found.batch / found.token_s)
    price = layout.devices * 3.0 / 3600 / found.tokens_per_s * 1e6
    assert found.dollars_per_million == pytest.approx(price)
    parts = {"compute": one.compute_s, "bandwidth": one.bandwidth_s, "link": one.link_s}
    assert parts[found.bound] == max(parts.values())


def test_a_device_that_computes_slowly_is_bound_by_that():
    quick = ACCELERATORS["H200-SXM"]
    slow = dataclasses.replace(quick, peak_flops={"bf16": quick.peak() / 1000})
    for accelerator, bound in ((quick, "bandwidth"), (slow, "compute")):
        work = dataclasses.replace(workload(output=511), accelerator=accelerator)
        assert serve_layout(work, Layout(tensor=4)).bound == bound


def test_formats_of_a_workload_reach_its_memory_and_its_time():
    """Products in bf16, with weights and keys of a byte: half the time where memory is awaited."""
    layout, usual = Layout(tensor=8), workload()
    slow = workload(dtype="fp8", kv_dtype="fp8", compute_dtype="bf16")
    held = serve_layout(slow, layout)
    assert held.memory == device_memory(LLAMA_70B, layout, held.batch, 2560, "fp8", "fp8")
    times = [pass_time(work, layout, 64, 1, 4096) for work in (usual, slow)]
    assert times[1].bandwidth_s == pytest.approx(times[0].bandwidth_s / 2, rel=0.01)
    assert times[1].compute_s == pytest.approx(times[0].compute_s, rel=0.01)
    narrow = pass_time(workload(dtype="fp8", kv_dtype="fp8"), layout, 64, 1, 4096)
    assert narrow.compute_s == pytest.approx(times[0].compute_s / 2, rel=0.01)


def test_a_ranking_goes_by_price_and_then_by_the_wait():
    found = rank_layouts(workload(max_token_s=0.05), 8)
    assert {serving.layout for serving in found} == set(layouts(LLAMA_70B, 8))
    prices = [serving.dollars_per_million for serving in found]
    assert prices == sorted(prices)
    failed = rank_layouts(workload(max_token_s=1e-3), 8)  # all of them, at one price
    assert {serving.dollars_per_million for serving in failed} == {math.inf}
    waits = [serving.token_s for serving in failed]
    assert waits == sorted(waits) and len(set(waits)) > 5
    few = rank_layouts(workload(), 8, max_tensor=2)
    assert max(serving.layout.tensor for serving in few) == 2
    assert [x.tensor for x in layouts(ODD, 12, max_tensor=100)][-1] == 6


@given(arch=architectures, n=st.integers(1, 48))
def test_layouts_are_all_ways_to_use_the_devices(arch, n):
    found = list(layouts(arch, n))
    assert len(set(found)) == len(found)
    assert all(layout.devices == n for layout in found)
    assert Layout(replicas=n) in found
    for layout in found:
        device_params(arch, layout.tensor, layout.expert)
        stage_layers(arch, layout.pipeline)
    divided = any(n % groups == 0 for groups in range(2, min(n, arch.n_experts) + 1))
    assert any(layout.expert > 1 for layout in found) == divided
    assert max(layout.tensor for layout in layouts(arch, n, max_tensor=2)) <= 2


@pytest.mark.parametrize("layout", [Layout(tensor=4), Layout(tensor=2, pipeline=3)])
@pytest.mark.parametrize("limit_s", [0.06, math.inf])
def test_the_batch_is_the_largest_that_is_allowed(layout, limit_s):
    work = workload(max_token_s=limit_s)
    found = serve_layout(work, layout)
    memory = device_memory(LLAMA_70B, layout, found.batch, 2560)
    assert found.memory == memory and memory.total <= 0.9 * 80e9
    assert found.token_s <= limit_s
    larger = device_memory(LLAMA_70B, layout, found.batch + 1, 2560)
    assert (larger.total > 0.9 * 80e9) == (found.limit == "memory")


def test_what_stands_in_the_way():
    assert serve_layout(workload(), Layout()).limit == "memory"  # 141 GB of weights on 80 GB
    strict = workload(max_first_token_s=0.01)
    assert serve_layout(strict, Layout(tensor=8)).limit == "first token"
    assert serve_layout(workload(max_token_s=1e-3), Layout(tensor=8)).limit == "token time"
    slow = workload(inside=LINKS["Ethernet-10G"])
    assert serve_layout(slow, Layout(tensor=8)).bound == "link"
    assert serve_layout(workload(), Layout(tensor=8)).bound == "bandwidth"
    with pytest.raises(ValueError, match="across must be a link for a group of 16"):
        serve_layout(workload(across=None), Layout(tensor=16))
    with pytest.raises(ValueError, match="inside must be a link for a group of 2"):
        serve_layout(workload(device="M1", inside=None), Layout(tensor=2))


# Configurations that engines document. DeepSeek: sgl-project/sglang docs/basic_usage/deepseek_v3.md
# @0f4513c, the table of recommended settings; Llama 405B: its docs/references/llama_405B.md
# @015bc7a. The last column is how many of the same devices are too few.
IN_USE = [
    ("DeepSeek-V3", "fp8", "H200-SXM", 8, 4),
    ("DeepSeek-V3", "fp8", "MI300X", 8, 2),
    ("DeepSeek-V3", "fp8", "H100-SXM", 16, 8),
    ("DeepSeek-V3", "int8", "L40S", 32, 8),
    ("Llama-3.1-405B", "bf16", "H100-SXM", 16, 8),
]


@pytest.mark.parametrize(("name", "dtype", "device", "enough", "too_few"), IN_USE)
def test_published_configurations_fit_and_smaller_ones_do_not(name, dtype, device, enough, too_few):
    """By memory alone; a tensor-parallel group over all devices, as the commands have it."""
    work = workload(name, device, dtype=dtype, compute_dtype="bf16")
    assert serve_layout(work, Layout(tensor=enough)).batch >= 8
    fails = rank_layouts(work, too_few)
    assert {found.batch for found in fails} == {0}
    assert {found.limit for found in fails} == {"memory"}


# --- layers that devices split


@given(arch=architectures, batch=batches, context=contexts, model=models, latency_s=latencies)
def test_one_device_is_a_decode_step(arch, batch, context, model, latency_s):
    for accelerator in (H100, M1):  # M1 has no link, and needs none
        one = tensor_parallel_step(
            arch, accelerator, 1, batch, context, "bf16", "int8", model, latency_s
        )
        assert one == decode_step(arch, accelerator, batch, context, "bf16", "int8", model)
        assert tensor_parallel_prefill(
            arch, accelerator, 1, context, batch, "bf16", "int8", model, latency_s
        ) == prefill(arch, accelerator, context, batch, "bf16", "int8", model)


@given(arch=architectures, accelerator=linked, n=devices, batch=batches, context=contexts)
def test_memory_is_cut_evenly(arch, accelerator, n, batch, context):
    step = tensor_parallel_step(arch, accelerator, n, batch, context)
    total = 2 * arch.n_params + kv_cache_bytes(arch, context, batch) + state_bytes(arch, batch)
    assert step.memory_bytes == pytest.approx(total / n)
    assert step.fits == (batch <= max_batch(arch, n * accelerator.memory_bytes, context))


@given(
    arch=architectures, accelerator=linked, n=devices, batch=batches, context=contexts, model=models
)
def test_a_step_is_the_nth_part_and_the_talk(arch, accelerator, n, batch, context, model):
    """Written out once more: 4 · L · (n - 1) messages of B · D / n numbers of two bytes."""
    alone = decode_step(arch, accelerator, batch, context, model=model).step_s
    together = tensor_parallel_step(
        arch, accelerator, n, batch, context, model=model, latency_s=2e-6
    )
    message = 2 * batch * arch.d_model / n / accelerator.link_bandwidth + 2e-6
    expected = alone / n + 4 * arch.n_layers * (n - 1) * message
    assert together.step_s == pytest.approx(expected, rel=1e-9)
    assert together.tokens_per_s == pytest.approx(batch / expected, rel=1e-9)
    assert together.step_s >= alone / n


@given(arch=architectures, n=st.integers(2, 64), n_tokens=contexts, batch=st.integers(1, 8))
def test_a_prompt_pays_for_each_of_its_tokens(arch, n, n_tokens, batch):
    talk = tensor_parallel_prefill(arch, H100, n, n_tokens, batch) - (
        prefill(arch, H100, n_tokens, batch) / n
    )
    once = ring_all_reduce_s(2 * batch * n_tokens * arch.d_model, n, H100.link_bandwidth)
    assert talk == pytest.approx(2 * arch.n_layers * once, rel=1e-6)


def test_a_format_without_a_rate_is_multiplied_in_another():
    step = tensor_parallel_step(
        LLAMA_70B, H100, 2, 8, 4096, "int4", "int8", "layers", compute_dtype="bf16"
    )
    assert step.step_s < tensor_parallel_step(LLAMA_70B, H100, 2, 8, 4096, model="layers").step_s
    with pytest.raises(ValueError, match="int4"):
        tensor_parallel_step(LLAMA_70B, H100, 2, 8, 4096, "int4", model="layers")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: workload(prompt=0), "prompt"),
        (lambda: workload(max_first_token_s=0), "max_first_token_s"),
        (lambda: workload(max_token_s=0), "max_token_s"),
        (lambda: workload(dollars_per_hour=0), "dollars_per_hour"),
        (lambda: workload(memory_share=0), "memory_share"),
        (lambda: workload(memory_share=1.5), "memory_share"),
        (lambda: tensor_parallel_step(LLAMA_70B, H100, 0, 1, 8), "n must be"),
        (lambda: tensor_parallel_step(LLAMA_70B, H100, 2, 1, 8, latency_s=-1.0), "latency_s"),
        (lambda: tensor_parallel_step(LLAMA_70B, M1, 2, 1, 8), "link_bandwidth .* got None"),
    ],
)
def test_workloads_and_steps_refuse(call, named):
    with pytest.raises(ValueError, match=named):
        call()


# --- sums in one shot, and protocols


@given(data=st.data(), n=st.integers(1, 9), latency_s=latencies)
def test_the_formula_counts_what_one_shot_does(data, n, latency_s):
    """Every device sends its whole array to each other one, and waits once for what comes."""
    arrays = data.draw(
        st.lists(st.lists(st.integers(-99, 99), min_size=3, max_size=3), min_size=n, max_size=n)
    )
    inbox = {receiver: [arrays[receiver]] for receiver in range(n)}
    sent = [0] * n
    for sender, receiver in itertools.permutations(range(n), 2):
        inbox[receiver].append(arrays[sender])
        sent[sender] += 4096
    total = [sum(pieces) for pieces in zip(*arrays, strict=True)]
    assert all([sum(p) for p in zip(*came, strict=True)] == total for came in inbox.values())
    expected = max(sent) / 1e9 + (latency_s if n > 1 else 0)
    got = one_shot_all_reduce_s(4096, n, 1e9, latency_s)
    assert got == pytest.approx(expected, rel=1e-9)


@given(n=st.integers(3, 64), latency_s=st.floats(1e-7, 1e-4), bandwidth=st.floats(1e8, 1e12))
def test_one_shot_is_for_short_arrays_and_a_ring_for_long_ones(n, latency_s, bandwidth):
    """They cross where the rounds that a ring waits more take as long as its bytes save."""
    crossing = (2 * n - 3) * latency_s * bandwidth / ((n - 1) * (1 - 2 / n))
    for factor, first in ((0.99, one_shot_all_reduce_s), (1.01, ring_all_reduce_s)):
        both = (one_shot_all_reduce_s, ring_all_reduce_s)
        assert min(both, key=lambda f: f(factor * crossing, n, bandwidth, latency_s)) is first
    waits = [one_shot_all_reduce_s(0, k, bandwidth, latency_s) for k in (2, n)]
    assert waits == [pytest.approx(latency_s)] * 2  # with more devices no longer


# Typed from NCCL 2.30.7, src/graph/tuning.cc: GB/s of LL (llMaxBws of one node, or half of what
# there is), and microseconds of a round in Simple (hwLatencies, ring).
IN_PROTOCOLS = {
    "NVLink-3": (87.7, 3.4),
    "NVLink-4": (141, 3.4),
    "NVLink-5": (282, 3.4),
    "PCIe-4": (16, 5.7),
    "PCIe-5": (32, 5.7),
    "InfiniBand-HDR": (12.5, 14),
    "InfiniBand-NDR": (25, 14),
    "Ethernet-100G": (6.25, 14),
    "Ethernet-10G": (0.625, 14),
}


def test_latency_and_bandwidth_are_of_one_protocol():
    assert set(IN_PROTOCOLS) == set(LINKS)
    for name, (gigabytes, us) in IN_PROTOCOLS.items():
        fast, full = (in_protocol(LINKS[name], protocol) for protocol in ("LL", "Simple"))
        assert (fast.bandwidth, fast.latency_s) == (
            pytest.approx(gigabytes * 1e9),
            LINKS[name].latency_s,
        )
        assert (full.bandwidth, full.latency_s) == (
            LINKS[name].bandwidth,
            pytest.approx(us * 1e-6),
        )
        for n_bytes in (1e3, 1e5, 1e7, 1e9):
            rings = [ring_all_reduce_s(n_bytes, 8, w.bandwidth, w.latency_s) for w in (fast, full)]
            shot = one_shot_all_reduce_s(n_bytes, 8, fast.bandwidth, fast.latency_s)
            assert all_reduce_s(n_bytes, 8, LINKS[name], "ring") == min(rings)
            assert all_reduce_s(n_bytes, 8, LINKS[name], "one shot") == shot
            assert all_reduce_s(n_bytes, 8, LINKS[name]) == min(*rings, shot)


def test_one_shot_and_protocols_refuse():
    wire = LINKS["NVLink-4"]
    with pytest.raises(ValueError, match="protocol must be one of"):
        in_protocol(wire, "ll")
    for other in (Link("wire", 1e9), dataclasses.replace(wire, bandwidth=1.0)):
        with pytest.raises(ValueError, match="link must be one of"):
            in_protocol(other, "LL")
    with pytest.raises(ValueError, match="way must be one of"):
        all_reduce_s(1, 2, wire, "tree")
    for asked, named in (
        ((1, 0, 1e9), "n must"),
        ((-1, 2, 1e9), "n_bytes"),
        ((1, 2, 0), "link_b"),
    ):
        with pytest.raises(ValueError, match=named):
            one_shot_all_reduce_s(*asked)
