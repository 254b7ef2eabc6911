"""throughput: published tables, limits, and laws that hold for every shape and machine."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.roofline import Cost, model_cost
from firsttoken.throughput import (
    MODELS,
    Step,
    _parts,
    bandwidth_bound,
    best_batch,
    cost_per_million_tokens,
    decode_step,
    pareto,
    prefill,
    replicas,
)

H100, A100 = ACCELERATORS["H100-SXM"], ACCELERATORS["A100-80GB"]
LLAMA_7B, LLAMA_13B = ARCHITECTURES["Llama-2-7B"], ARCHITECTURES["Llama-2-13B"]

architectures = st.sampled_from(list(ARCHITECTURES.values()))
accelerators = st.sampled_from(list(ACCELERATORS.values()))
batches, contexts = st.integers(1, 600), st.integers(1, 20_000)
models = st.sampled_from(MODELS)


# --- tables that others computed


def test_llama_2_13b_on_an_h100():
    """CS336 (spring 2025), lecture 10; its parameter count leaves out the norms: hence 1e-4."""
    for kv_heads, batch, *table, fits in [
        (40, 1, 26_869_760_000, 0.0080208, 124.675, True),
        (40, 64, 79_717_990_400, 0.0237964, 2689.48, True),
        (40, 256, 240_779_264_000, 0.0718744, 3561.77, False),
        (8, 64, 33_412_874_240, 0.0099740, 6416.69, True),
        (8, 256, 65_625_128_960, 0.0195896, 13068.16, True),
    ]:
        step = decode_step(LLAMA_13B.replace(n_kv_heads=kv_heads), H100, batch, 1024)
        got = [step.memory_bytes, step.step_s, step.tokens_per_s]
        assert got == pytest.approx(table, rel=1e-4)
        assert step.fits is fits


# --- laws


@given(arch=architectures, accelerator=accelerators, batch=batches, context=contexts)
def test_each_model_is_at_least_what_it_refines(arch, accelerator, batch, context):
    cost = model_cost(arch, batch, 1, context)
    roofline = decode_step(arch, accelerator, batch, context, model="roofline")
    layers = decode_step(arch, accelerator, batch, context, model="layers")
    parts = (cost.flops / accelerator.peak(), cost.bytes / accelerator.bandwidth)
    assert roofline.step_s == pytest.approx(max(parts), rel=1e-9)
    assert roofline.step_s * (1 - 1e-9) <= layers.step_s <= sum(parts) * (1 + 1e-9)
    bound = bandwidth_bound(arch, accelerator, batch, context)
    assert roofline.tokens_per_s <= bound * (1 + 1e-9)


@given(arch=architectures, batch=st.integers(1, 64), t=st.integers(1, 9), more=contexts)
def test_parts_add_up_to_the_pass(arch, batch, t, more):
    """And of a model of 46 numbers, in which one more would show, exactly."""
    parts = _parts(arch, batch, t, t + more, "bf16", "int8")
    total, expected = sum(parts, Cost(0, 0)), model_cost(arch, batch, t, t + more, "bf16", "int8")
    assert (total.flops, total.bytes) == pytest.approx((expected.flops, expected.bytes), rel=1e-9)
    assert all(part.flops >= 0 and part.bytes >= 0 for part in parts)
    tiny = Architecture("tiny", 1, 2, 1, 1, 2, 2, 3)
    parts = _parts(tiny, batch, t, t + more, "bf16", "bf16")
    assert sum(parts, Cost(0, 0)) == model_cost(tiny, batch, t, t + more)


def test_what_runs_one_after_another():
    """Two FLOPs per token and matrix element; Mixtral visits two experts of three matrices."""
    mixtral = ARCHITECTURES["Mixtral-8x7B"]
    for batch, t in ((1, 1), (4, 1), (3, 5)):
        linear, experts, _, rest = _parts(LLAMA_7B, batch, t, 100, "bf16", "bf16")
        n = LLAMA_7B.n_matmul_params
        assert (linear, experts) == (Cost(2 * batch * t * n, 2 * n), Cost(0, 0))
        assert rest == Cost(0, 2 * (LLAMA_7B.n_params - n))
        linear, experts, _, rest = _parts(mixtral, batch, t, 100, "bf16", "bf16")
        expert = 32 * 3 * 4096 * 14336  # in all layers
        n = mixtral.n_matmul_params - 2 * expert
        assert (linear.flops, linear.bytes) == pytest.approx((2 * batch * t * n, 2 * n))
        visited = 8 * (1 - (1 - 2 / 8) ** (batch * t))
        assert experts.flops == pytest.approx(2 * batch * t * 2 * expert)
        assert experts.bytes == pytest.approx(2 * visited * expert)
        assert (rest.flops, rest.bytes) == (0, 2 * (mixtral.n_params - 8 * expert - n))


@given(arch=architectures, batch=batches, context=contexts, model=models)
def test_larger_batches_and_contexts(arch, batch, context, model):
    """More sequences: slower steps, no fewer tokens per second. More context: slower steps."""
    step = decode_step(arch, H100, batch, context, model=model)
    wider = decode_step(arch, H100, batch + 1, context, model=model)
    longer = decode_step(arch, H100, batch, context + 1, model=model)
    assert step.tokens_per_s * step.step_s == pytest.approx(batch)
    assert step.step_s < wider.step_s
    assert step.tokens_per_s <= wider.tokens_per_s * (1 + 1e-9)
    assert step.step_s <= longer.step_s * (1 + 1e-12)
    assert step.memory_bytes < wider.memory_bytes
    assert step.memory_bytes <= longer.memory_bytes


@given(batch=batches, context=contexts, model=models)
def test_memory_does_not_depend_on_the_model_of_time(batch, context, model):
    step = decode_step(LLAMA_13B, H100, batch, context, "bf16", "int8", model)
    expected = 2 * LLAMA_13B.n_params + kv_cache_bytes(LLAMA_13B, context, batch, "int8")
    assert step.memory_bytes == expected
    assert step.fits == (expected <= 80e9)
    several = pareto(LLAMA_13B, H100, (64, batch, 1), context, "bf16", "int8", model)
    assert len(several) == 3 and several[1] == step


@given(context=st.integers(100, 5000), limit=st.floats(0.004, 0.05), model=models)
def test_the_best_batch_is_allowed_and_the_next_is_not(context, limit, model):
    batch = best_batch(LLAMA_13B, H100, context, limit, model=model)

    def allowed(size):
        step = decode_step(LLAMA_13B, H100, size, context, model=model)
        return step.fits and step.step_s <= limit

    assert not allowed(batch + 1)
    assert batch == 0 or allowed(batch)


def test_four_bit_weights_computed_in_bf16():
    """Z15: the ridge moves to a quarter; before it a step is four times shorter."""
    quarter = decode_step(LLAMA_7B, H100, 1, 1, "int4", "bf16", "roofline", compute_dtype="bf16")
    whole = decode_step(LLAMA_7B, H100, 1, 1, model="roofline")
    assert whole.step_s / quarter.step_s == pytest.approx(4, rel=1e-3)
    with pytest.raises(ValueError, match="int4"):
        decode_step(LLAMA_7B, H100, 1, 1, "int4", model="roofline")
    assert decode_step(LLAMA_7B, H100, 1, 1, "int4").step_s < whole.step_s
    packed = {"dtype": "int4", "model": "roofline", "compute_dtype": "bf16"}
    steps = [decode_step(LLAMA_7B, H100, batch, 1, **packed) for batch in (1, 8)]
    assert pareto(LLAMA_7B, H100, (1, 8), 1, **packed) == steps
    assert best_batch(LLAMA_7B, H100, 1, steps[1].step_s, **packed) == 8
    assert prefill(LLAMA_7B, H100, 1, **packed) == steps[0].step_s
    assert prefill(LLAMA_7B, H100, 4096, **packed) == prefill(LLAMA_7B, H100, 4096)


# --- money and copies


@given(rate=st.floats(1, 1e6), price=st.floats(0, 1000), utilization=st.floats(0.05, 1))
def test_a_million_tokens_cost_what_their_hours_cost(rate, price, utilization):
    dollars = cost_per_million_tokens(rate, price, utilization)
    hours = 1e6 / (rate * utilization) / 3600
    assert dollars == pytest.approx(price * hours)


@given(demand=st.floats(0, 1e6), rate=st.floats(1, 1e5), utilization=st.floats(0.1, 1))
def test_replicas_suffice_and_one_less_does_not(demand, rate, utilization):
    n = replicas(demand, Step(1.0, rate, 0, True), utilization)
    served = utilization * rate
    assert n * served >= demand * (1 - 1e-9) - 1e-9
    assert n == 0 or (n - 1) * served < demand * (1 + 1e-9)


# --- errors


def test_what_a_call_leaves_open():
    """A decode step, a Pareto front and a best batch go by memory, a prefill by the roofline."""
    for of_models in (
        lambda **m: decode_step(LLAMA_7B, H100, 2048, 1, **m).step_s,
        lambda **m: [step.step_s for step in pareto(LLAMA_7B, H100, [2048], 1, **m)],
    ):
        assert of_models() == of_models(model="memory") != of_models(model="roofline")
    limit = decode_step(LLAMA_7B, H100, 2048, 1, model="memory").step_s
    batches = [best_batch(LLAMA_7B, H100, 1, limit, **m) for m in ({}, {"model": "memory"})]
    assert batches == [2048, 2048] != best_batch(LLAMA_7B, H100, 1, limit, model="roofline")
    given = LLAMA_7B, H100, 200, 8
    assert prefill(*given) == prefill(*given, model="roofline") < prefill(*given, model="layers")
    assert bandwidth_bound(LLAMA_7B, H100) == bandwidth_bound(LLAMA_7B, H100, batch=1, context=1)


def test_a_limit_is_met_exactly():
    """Memory that the step just fills, and a machine so slow that only no limit allows it."""
    needed = decode_step(LLAMA_7B, H100, 8, 1024).memory_bytes
    full = dataclasses.replace(H100, memory_bytes=needed)
    assert decode_step(LLAMA_7B, full, 8, 1024).fits and best_batch(LLAMA_7B, full, 1024) == 8
    slow = dataclasses.replace(full, bandwidth=1e9)
    assert decode_step(LLAMA_7B, slow, 8, 1024).step_s > 10
    assert best_batch(LLAMA_7B, slow, 1024) == 8


def test_errors_name_the_argument(subtests):
    step, share = Step(1, 1, 1, True), r"utilization must lie in \(0, 1\], got "
    for call, message in [
        (lambda: decode_step(LLAMA_7B, H100, 0, 1), "batch must be an integer of at least 1, got"),
        (lambda: decode_step(LLAMA_7B, H100, 1, 0), "context must be an integer of at least 1"),
        (lambda: prefill(LLAMA_7B, H100, 1, batch=0), "batch must be an integer of at least 1"),
        (lambda: decode_step(LLAMA_7B, H100, 1, 1, model="exact"), "model 'exact' is unknown"),
        (lambda: decode_step(LLAMA_7B, H100, 1, 1, "fp7"), "dtype 'fp7' is unknown"),
        (lambda: decode_step(LLAMA_7B, A100, 1, 1, "fp8", model="layers"), "no peak rate"),
        (lambda: prefill(LLAMA_7B, H100, 0), "n_tokens must be an integer of at least 1, got 0"),
        (lambda: bandwidth_bound(LLAMA_7B, H100, batch=0), "batch must be an integer of at least"),
        (lambda: bandwidth_bound(LLAMA_7B, H100, context=0), "^context must be an integer of at"),
        (lambda: best_batch(LLAMA_7B, H100, 1, 0), "max_step_s must be positive, got 0"),
        (lambda: replicas(-1, step), "demand_tokens_per_s must not be negative"),
        (lambda: replicas(1, step, 0), share + "0"),
        (lambda: cost_per_million_tokens(1, 1, 0), share + "0"),
        (lambda: cost_per_million_tokens(0, 1), "tokens_per_s must be positive, got 0"),
        (lambda: cost_per_million_tokens(1, -1), "dollars_per_hour must not be negative"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            call()
