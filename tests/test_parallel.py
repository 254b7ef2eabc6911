"""parallel: the ring against a simulation of it, and laws of a layer that devices split."""

import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes, max_batch
from firsttoken.parallel import (
    ring_all_reduce_s,
    tensor_parallel_prefill,
    tensor_parallel_step,
)
from firsttoken.throughput import MODELS, decode_step, prefill

H100, M1 = ACCELERATORS["H100-SXM"], ACCELERATORS["M1"]
LLAMA_70B = ARCHITECTURES["Llama-3.1-70B"]

architectures = st.sampled_from(list(ARCHITECTURES.values()))
linked = st.sampled_from([a for a in ACCELERATORS.values() if a.link_bandwidth is not None])
batches, contexts, devices = st.integers(1, 600), st.integers(1, 20_000), st.integers(1, 64)
models = st.sampled_from(MODELS)
latencies = st.sampled_from([0.0, 1e-6, 3e-5])


# --- the ring


def simulated_ring(arrays: list[list[int]]) -> tuple[list[list[int]], int, int]:
    """Reduce lists of n pieces, piece by piece round the ring.

    Returns what every device holds at the end, the rounds, and the pieces that one device sent.
    """
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


@pytest.mark.parametrize(
    "wrong",
    [
        lambda b, n, w, s: (n - 1) / n * b / w + (n - 1) * s,  # the first half only
        lambda b, n, w, s: 2 * b / w + 2 * (n - 1) * s,  # the limit for many devices
        lambda b, n, w, s: 2 * (n - 1) * (b / w + s),  # whole arrays go round
        lambda b, n, w, s: 2 * (n - 1) / n * b / w + 2 * s,  # one latency per half
    ],
)
def test_plausible_formulas_that_the_simulation_rejects(wrong):
    n, n_bytes, bandwidth, latency_s = 4, 4096, 1e9, 1e-6
    _, rounds, n_sent = simulated_ring([[1] * n] * n)
    expected = n_sent * n_bytes / n / bandwidth + rounds * latency_s
    assert ring_all_reduce_s(n_bytes, n, bandwidth, latency_s) == pytest.approx(expected)
    assert wrong(n_bytes, n, bandwidth, latency_s) != pytest.approx(expected, rel=1e-3)


def test_many_devices_send_twice_the_array():
    assert ring_all_reduce_s(8e9, 10**6, 1e9) == pytest.approx(16, rel=1e-5)
    assert ring_all_reduce_s(8e9, 2, 1e9) == 8
    assert ring_all_reduce_s(8e9, 1, 1e9, latency_s=1) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1, 0, 1e9), "n must be"),
        ((1, 2.0, 1e9), "n must be"),
        ((-1, 2, 1e9), "n_bytes"),
        ((math.nan, 2, 1e9), "n_bytes"),
        ((1, 2, None), "link_bandwidth"),
        ((1, 2, 0), "link_bandwidth"),
        ((1, 2, 1e9, -1e-6), "latency_s"),
    ],
)
def test_a_ring_refuses(arguments, named):
    with pytest.raises(ValueError, match=named):
        ring_all_reduce_s(*arguments)


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
    total = 2 * arch.n_params + kv_cache_bytes(arch, context, batch)
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


@given(arch=architectures, n=devices, batch=batches, context=contexts, model=models)
def test_what_makes_a_step_longer(arch, n, batch, context, model):
    def seconds(n=n, batch=batch, context=context, accelerator=H100, latency_s=1e-6):
        step = tensor_parallel_step(
            arch, accelerator, n, batch, context, model=model, latency_s=latency_s
        )
        return step.step_s

    slow = dataclasses.replace(H100, link_bandwidth=H100.link_bandwidth / 10)
    assert seconds() < seconds(batch=batch + 1)
    assert seconds() <= seconds(context=context + 1) * (1 + 1e-12)
    assert seconds() <= seconds(accelerator=slow)
    assert seconds() <= seconds(latency_s=2e-6)


def test_more_devices_help_until_they_talk_more_than_they_compute():
    """With perfect links ever more devices are ever faster; with real ones there is a best n."""
    ideal = dataclasses.replace(H100, link_bandwidth=math.inf)
    sizes = [2**i for i in range(12)]
    free = [tensor_parallel_step(LLAMA_70B, ideal, n, 1, 4096).step_s for n in sizes]
    paid = [tensor_parallel_step(LLAMA_70B, H100, n, 1, 4096, latency_s=2e-6).step_s for n in sizes]
    assert free == pytest.approx([free[0] / n for n in sizes])
    assert 0 < paid.index(min(paid)) < len(sizes) - 1
    assert paid[-1] > paid[0]


def test_a_format_without_a_rate_is_multiplied_in_another():
    step = tensor_parallel_step(
        LLAMA_70B, H100, 2, 8, 4096, "int4", "int8", "layers", compute_dtype="bf16"
    )
    assert step.step_s < tensor_parallel_step(LLAMA_70B, H100, 2, 8, 4096, model="layers").step_s
    with pytest.raises(ValueError, match="int4"):
        tensor_parallel_step(LLAMA_70B, H100, 2, 8, 4096, "int4", model="layers")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n": 0}, "n must be"),
        ({"n": True}, "n must be"),
        ({"n": 1.0}, "n must be"),
        ({"batch": 0}, "batch"),
        ({"context": 0}, "context"),
        ({"model": "hope"}, "model"),
        ({"latency_s": -1.0}, "latency_s"),
        ({"accelerator": M1}, "link_bandwidth must be positive, got None"),
    ],
)
def test_a_step_refuses(changes, named):
    arguments = {"arch": LLAMA_70B, "accelerator": H100, "n": 2, "batch": 1, "context": 8}
    with pytest.raises(ValueError, match=named):
        tensor_parallel_step(**(arguments | changes))
