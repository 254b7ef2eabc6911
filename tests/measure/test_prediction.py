"""prediction: what each rung predicts, the ladder, drift, and how profiles are kept.

Machines are invented here, so that every rate is known.
"""

import itertools
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.hardware import Accelerator
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.measure import prediction
from firsttoken.measure.prediction import (
    RUNGS,
    DecodePoint,
    MachineProfile,
    Run,
    drift,
    ladder,
    predict_step,
    stored_runs,
)
from firsttoken.throughput import decode_step

ARCH = Architecture("toy", 2, 32, 4, 2, 8, 48, 64, tied_embeddings=True)


def exact_profile(
    arch, batches, dtypes=("fp32",), kv=2e9, gemv=1e9, head=5e8, overhead=1e-4, peak=1e12
):
    """A machine whose every rate is known: attention takes a fixed cost and the time to read."""
    keys = [(dtype, rows) for dtype in dtypes for rows in batches]
    return MachineProfile(
        Accelerator("known", dict.fromkeys(dtypes, peak), 4e9, 1e12),
        gemv_bandwidth=dict.fromkeys(keys, gemv),
        kv_bandwidth=kv,
        layer_overhead_s=overhead,
        spread={"gemv": 0.01},
        provenance={"device": "cpu"},
        read_bandwidth=3e9,
        head_bandwidth=dict.fromkeys(keys, head),
        kv_read_s={
            (*key, group, n): 1e-5 + n / kv
            for key in keys
            for group in (1, 2, 3, 4)
            for n in (1000, 50_000)
        },
        overhead_s=dict.fromkeys(keys, overhead),
    )


KNOWN = exact_profile(ARCH, [1, 3], ("fp32", "bf16"))


# --- the profile, and when not to trust it


def test_busy_machines_are_seen():
    for spreads, share, reason in [
        ([0.02] * 9 + [0.9], 0.99, ""),  # one odd quantity is no busy machine
        ([0.02, 0.3, 0.9], 0.99, "a quarter of the repeated measurements differ by"),
        ([0.02, 0.03, 0.04], 0.5, "only 50% of the cores"),
        ([0.2, 0.3, 0.4], 0.5, "or more and other programs left only 50%"),
        ([0.02], None, ""),  # a GPU: nobody knows its share
        ([], 0.99, ""),  # nothing was repeated
        ([0.2] * 4, 0.85, ""),  # the limits themselves
        ([0.21] * 4, 0.85, "a quarter of the repeated measurements differ by 21%"),
        ([0.2] * 4, 0.84, "only 84% of the cores"),
    ]:
        shares = KNOWN.provenance | {"core_share": share}
        profile = replace(KNOWN, spread=dict(enumerate(spreads)), provenance=shares)
        assert reason in profile.busy and bool(profile.busy) == bool(reason)
    assert not replace(KNOWN, provenance={}).host_overlaps  # no known device: a CPU


def test_a_profile_survives_json_and_half_of_one_is_refused():
    read = MachineProfile.from_dict(json.loads(json.dumps(KNOWN.as_dict())))
    assert read == KNOWN
    assert predict_step(ARCH, KNOWN, 3, 7) == predict_step(ARCH, read, 3, 7)
    data = KNOWN.as_dict()
    halves = [data | {"gemv_bandwidth": 3}]
    for damage in ("gemv_bandwidth", "accelerator", "provenance", "spread", "read_bandwidth"):
        halves.append({k: v for k, v in data.items() if k != damage})
    for half in halves:
        with pytest.raises(ValueError, match="no stored machine profile"):
            MachineProfile.from_dict(half)


# --- predictions


shapes = st.builds(
    lambda layers, kv, group, d, f, v, tied: Architecture(
        "any", layers, 16 * d, kv * group, kv, 16, 16 * f, 64 * v, tied
    ),
    *(st.integers(1, most) for most in (6, 4, 4, 8, 8, 8)),
    st.booleans(),
)


# Bound by memory, and by arithmetic.
peaks = st.sampled_from([1e12, 1e9])


@given(arch=shapes, batch=st.sampled_from([1, 4]), context=st.integers(1, 4000), peak=peaks)
def test_the_first_two_rungs_are_the_formulas_of_throughput(arch, batch, context, peak):
    profile = exact_profile(arch, [1, 4], peak=peak)
    for rung, model in (("bandwidth", "memory"), ("roofline", "roofline")):
        expected = decode_step(arch, profile.accelerator, batch, context, "fp32", "fp32", model)
        assert predict_step(arch, profile, batch, context, rung=rung) == expected.step_s


@given(arch=shapes, batch=st.sampled_from([1, 4]), context=st.integers(500, 4000), peak=peaks)
def test_the_upper_rungs_on_a_machine_that_is_known(arch, batch, context, peak):
    """Weights by their own rates, caches by the line, layers by their count: added up by hand."""
    profile = exact_profile(arch, [1, 4], peak=peak)
    head = 4 * arch.vocab_size * arch.d_model
    looked_up = 0 if arch.tied_embeddings else head
    layers = 4 * arch.n_params - looked_up - head
    cache = kv_cache_bytes(arch, context, batch, "fp32")
    fixed = arch.n_layers * (1e-4 + 1e-5)
    expected = layers / 1e9 + head / 5e8 + cache / 2e9 + fixed
    assert predict_step(arch, profile, batch, context) == pytest.approx(expected)
    compute = 2 * batch * arch.n_matmul_params / peak
    expected = max((layers + head) / 4e9, compute) + cache / 2e9 + arch.n_layers * 1e-4
    got = predict_step(arch, profile, batch, context, rung="overhead")
    assert got == pytest.approx(expected)


def test_a_tiny_cache_costs_what_the_smallest_measured_one_does():
    """A line through two points may cross zero; the fixed cost of a call does not."""
    profile = exact_profile(ARCH, [1])
    reads = {("fp32", 1, 2, 1000): 1e-6, ("fp32", 1, 2, 50_000): 1e-3}
    steep = replace(profile, kv_read_s=reads)
    assert prediction._attention_s(steep, "fp32", 1, 2, 10) == 1e-6
    between = replace(steep, kv_read_s=reads | {("fp32", 1, 2, 9000): 5.0})  # not on the line
    assert prediction._attention_s(between, "fp32", 1, 2, 50_000) == pytest.approx(1e-3)
    assert prediction._attention_s(steep, "fp32", 1, 2, 99_000) == pytest.approx(2e-3, rel=1e-3)


def test_attention_goes_by_the_group():
    """Twice the time for groups of four: heard by an architecture of groups of four only."""
    profile = exact_profile(ARCH, [1])
    slow = replace(
        profile, kv_read_s={k: s * (1 + (k[2] == 4)) for k, s in profile.kv_read_s.items()}
    )
    by_four = ARCH.replace(n_heads=8)  # on two KV heads
    assert predict_step(ARCH, slow, 1, 900) == predict_step(ARCH, profile, 1, 900)
    cache = kv_cache_bytes(by_four, 900, 1, "fp32")
    extra = predict_step(by_four, slow, 1, 900) - predict_step(by_four, profile, 1, 900)
    assert extra == pytest.approx(by_four.n_layers * 1e-5 + cache / 2e9)
    with pytest.raises(ValueError, match=r"not measured for fp32 × 1 in groups of 5"):
        predict_step(ARCH.replace(n_heads=10), profile, 1, 900)


def test_a_gpu_hides_the_host_or_waits_for_it():
    cpu = exact_profile(ARCH, [1])
    gpu, host = replace(cpu, provenance={"device": "cuda"}), ARCH.n_layers * 1e-4
    wide = ARCH.replace(d_ff=480_000)
    for rung in ("overhead", "rows"):
        work = predict_step(ARCH, cpu, 1, 100, rung=rung) - host
        assert predict_step(ARCH, gpu, 1, 100, rung=rung) == pytest.approx(max(host, work))
        work = predict_step(wide, cpu, 1, 100, rung=rung) - host
        assert predict_step(wide, gpu, 1, 100, rung=rung) == pytest.approx(work)


def test_what_cannot_be_predicted_is_refused(subtests):
    profile, toy = exact_profile(ARCH, [1]), (ARCH, 1, 10, "fp32")
    mixtral = ARCHITECTURES["Mixtral-8x7B"]
    for arguments, message in [
        ((*toy, "anchor"), "rung 'anchor' is unknown"),
        ((ARCH, 0, 10, "fp32", "rows"), "batch must be an integer of at least 1, got 0"),
        ((ARCH, 1, 0, "fp32", "overhead"), "context must be an integer of at least 1, got 0"),
        ((mixtral, 1, 10, "fp32", "rows"), "expected a dense Llama"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            predict_step(arguments[0], profile, *arguments[1:])
    for table in ("gemv_bandwidth", "head_bandwidth", "overhead_s"):
        with pytest.raises(ValueError, match=f"^{table} was measured for nothing; got fp32 × 1$"):
            predict_step(ARCH, replace(profile, **{table: {}}), 1, 10)


# --- the ladder


def points_of(profile, factor, dtypes=("fp32", "bf16")):
    """Steps that the machine takes `factor[dtype]` times as long for as predicted."""
    return [
        DecodePoint(d, b, c, factor[d] * predict_step(ARCH, profile, b, c, d), 0.0, 1e9)
        for d in dtypes
        for b in (1, 4)
        for c in (10, 100, 1000)
    ]


def test_an_anchor_removes_what_all_points_of_a_dtype_share():
    profile = exact_profile(ARCH, [1, 4], ("fp32", "bf16"))
    points = points_of(profile, {"fp32": 1.25, "bf16": 2.0})
    rungs = ladder(ARCH, profile, points)
    assert [rung.name for rung in rungs] == [*RUNGS, "anchor"]
    for rung in rungs[:-1]:
        steps = [
            predict_step(ARCH, profile, p.batch, p.context, p.dtype, rung.name) for p in points
        ]
        assert rung.predicted_s == tuple(steps)
    rows, anchor = rungs[-2:]
    assert rows.errors == pytest.approx([1 / 1.25 - 1] * 6 + [1 / 2 - 1] * 6)
    assert rows.mean_abs_error == pytest.approx((0.2 + 0.5) / 2)
    assert anchor.mean_abs_error == pytest.approx(0, abs=1e-12)


def test_anchors_do_not_count_as_predictions():
    """One wrong point among six: as the anchor it is left out, elsewhere it counts a fifth."""
    profile = exact_profile(ARCH, [1, 4])
    good = points_of(profile, {"fp32": 1.0}, ("fp32",))

    def rungs(index):
        wrong = replace(good[index], step_s=2 * good[index].step_s)
        return ladder(ARCH, profile, [*good[:index], wrong, *good[index + 1 :]])

    middle = len(good) // 2
    rows, anchor = rungs(middle)[-2:]
    assert rows.mean_abs_error == pytest.approx(0, abs=1e-12)
    assert anchor.errors[middle] == pytest.approx(0)
    assert anchor.mean_abs_error == pytest.approx(1.0)  # all others are predicted twice too long
    rows, anchor = rungs(0)[-2:]
    assert rows.mean_abs_error == pytest.approx(0.5 / 5) == anchor.mean_abs_error


# --- drift


@given(speed=st.floats(0.2, 5), hiccup=st.floats(0.01, 100))
def test_drift_is_what_all_controls_share(speed, hiccup):
    """A machine at `speed` of its calibration, whatever one control of six did."""
    dtypes, batches = ("fp32", "bf16"), (1, 4, 16)
    profile = exact_profile(ARCH, batches, dtypes)  # at 1e9 bytes/s
    points = [
        DecodePoint(d, b, c, 1.0, 0.0, 1e9 * speed)
        for d, b in itertools.product(dtypes, batches)
        for c in (10, 100)
    ]
    assert drift(profile, points) == pytest.approx(speed - 1)
    odd = [
        replace(p, control_bandwidth=1e9 * hiccup) if (p.dtype, p.batch) == ("bf16", 4) else p
        for p in points
    ]
    assert drift(profile, odd) == pytest.approx(speed - 1)


def test_drift_compares_each_product_with_its_own_calibration():
    """Batches differ tenfold in rate, which is no drift."""
    profile = exact_profile(ARCH, [1, 4])
    uneven = replace(profile, gemv_bandwidth={("fp32", 1): 1e9, ("fp32", 4): 1e8})
    points = [DecodePoint("fp32", 1, 10, 1.0, 0.0, 9e8), DecodePoint("fp32", 4, 10, 1.0, 0.0, 9e7)]
    assert drift(uneven, points) == pytest.approx(-0.1)
    # Three contexts of one batch are one control, not three: a mean of two, not of four.
    many = [replace(points[0], context=c, control_bandwidth=1e9) for c in (1, 2, 3)]
    assert drift(uneven, [*many, points[1]]) == pytest.approx(-0.05)


# --- stored runs


def test_stored_runs_come_back_whole(tmp_path):
    points = [DecodePoint("fp32", b, 10, 0.1 * b, 0.01, 1e9) for b in (1, 3)]
    other = ARCH.replace(name="other", n_layers=5)
    stored = {
        "provenance": {"seed": 0},
        "profile": KNOWN.as_dict(),
        "points": [asdict(p) for p in points],
    }
    held_out = {"arch": other.arguments, "points": [asdict(points[0])]}
    path = tmp_path / "runs.json"
    runs = [stored, stored | {"held_out": held_out}]
    path.write_text(json.dumps({"arch": ARCH.arguments, "runs": runs}))
    first, second = stored_runs(path)
    assert first == Run(ARCH, KNOWN, tuple(points), {"seed": 0})
    assert second.held_out == Run(other, KNOWN, tuple(points[:1]), {"seed": 0})
    assert replace(second, held_out=None) == first


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "runs.json"
    for content in ("", "{}", "[]", '{"arch": {}, "runs": [{}]}', '{"runs": 3}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"runs\.json holds no measured runs"):
            stored_runs(path)
