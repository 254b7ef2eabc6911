"""The profile of a machine: what is counted, and what is stored.

No test looks at how fast this machine is: clocks are invented, or a tiny run is only completed.
"""

import itertools
import math
import warnings
from dataclasses import replace

import pytest

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.measure import decode_times, prediction, profile, steps, store, this_machine
from firsttoken.measure.prediction import drift, ladder, uneven
from firsttoken.measure.profile import measure_profile
from firsttoken.measure.sizes import Sizes

TINY = Sizes(
    working_set_bytes=400_000,
    d_model=32,
    d_ff=48,
    n_kv_heads=2,
    head_dim=8,
    vocab_size=64,
    gemm=16,
    rows=(1, 3),
    groups=(1, 2),
    contexts=(4, 32),
    rounds=3,
    depth=2,
)
ARCH = Architecture("toy", 2, 32, 4, 2, 8, 48, 64, tied_embeddings=True)


def ticking(step=1.0):
    """A clock that has moved on by `step` whenever someone looks."""
    readings = itertools.count()
    return lambda: step * next(readings)


@pytest.fixture(scope="module")
def ticked():
    """A profile by a clock on which everything takes exactly one second."""
    return measure_profile(("fp32", "bf16"), "cpu", TINY, ticking())


# --- what is measured


def test_rates_are_the_bytes_that_a_kernel_must_move_over_its_time(ticked):
    """With one second for everything, each rate is the count behind it."""
    for dtype, width in (("fp32", 4), ("bf16", 2)):
        layer = 32 * (2 * 32 + 2 * 16 + 3 * 48) * width  # q, o; k, v; gate, up, down
        head = 64 * 32 * width
        for rows in (1, 3):
            assert ticked.gemv_bandwidth[dtype, rows] == 400_000 // layer * layer
            assert ticked.head_bandwidth[dtype, rows] == 400_000 // head * head
        assert ticked.accelerator.peak(dtype) == 2 * 16**3
    assert ticked.accelerator.bandwidth == 2 * 400_000  # read once, written once
    assert ticked.read_bandwidth == 400_000


def test_the_read_bandwidth_is_that_of_the_faster_way(monkeypatch):
    def timed(runs, rounds, *_):
        return {key: [{"sum": 0.5, "dot": 0.2}.get(key[-1], 1.0)] * rounds for key in runs}

    monkeypatch.setattr(profile, "interleaved", timed)
    measured = measure_profile(("fp32",), "cpu", TINY)
    assert measured.read_bandwidth == pytest.approx(400_000 / 0.2)
    assert measured.accelerator.bandwidth == 2 * 400_000


def test_attention_is_timed_per_cache(ticked):
    """One second reads all copies; the table holds the time of one."""
    for dtype, width in (("fp32", 4), ("bf16", 2)):
        for rows, group, context in itertools.product((1, 3), (1, 2), (4, 32)):
            each = 2 * rows * 2 * context * 8 * width  # keys and values, K = 2 heads of 8
            assert each == kv_cache_bytes(ARCH.replace(n_layers=1), context, rows, dtype)
            assert ticked.kv_read_s[dtype, rows, group, each] == 1 / (100_000 // each)
    assert len(ticked.kv_read_s) == 16


def test_a_layer_costs_its_share_of_a_model_with_nothing_to_read(monkeypatch):
    """Five steps of two layers in 5 s, of which calls take 0.4 s a step: 0.3 s a layer."""
    spent = {"empty": 5.0, "calls": 0.4}

    def timed(runs, rounds, *_):
        return {key: [spent.get(key[0], 1.0)] * rounds for key in runs}

    monkeypatch.setattr(profile, "interleaved", timed)
    measured = measure_profile(("fp32", "bf16"), "cpu", TINY)
    keys = list(itertools.product(("fp32", "bf16"), (1, 3)))
    assert measured.overhead_s == pytest.approx(dict.fromkeys(keys, 0.3))
    assert measured.layer_overhead_s == pytest.approx(0.3)
    spent["calls"] = 2.0  # by an unlucky measurement
    assert measure_profile(("fp32",), "cpu", TINY).layer_overhead_s == 0


# --- the stored result


@pytest.fixture
def machine(monkeypatch, tmp_path, ticked):
    """`this_machine` with its own cache folder and an instant measurement; yields the calls."""
    calls = []

    def instant(dtypes, device, sizes):
        calls.append((dtypes, device))
        return replace(ticked, layer_overhead_s=float(len(calls)))

    for variable in ("HOME", "XDG_CACHE_HOME"):  # macOS, Linux
        monkeypatch.setenv(variable, str(tmp_path / "deep" / "cache"))
    monkeypatch.setattr(profile, "measure_profile", instant)
    monkeypatch.setattr(prediction, "_MIN_CORE_SHARE", 0.0)  # the real share is in `ticked`
    return calls


def stored_files(tmp_path):
    return sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_the_second_call_reads_what_the_first_stored(machine, tmp_path):
    first = this_machine(device="cpu")
    assert this_machine(device="cpu") == first
    assert machine == [(("fp32", "bf16"), "cpu")]
    assert this_machine(device="cpu", refresh=True) != first and len(machine) == 2
    assert this_machine(device="cpu").layer_overhead_s == 2.0 and len(machine) == 2
    (path,) = stored_files(tmp_path)  # no file of an unfinished write is left
    assert path.parent.name == "firsttoken" and path.match("machine-*.json")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"identity": {}}', "\xff\x00"])
def test_a_damaged_file_is_replaced(machine, tmp_path, content):
    this_machine(device="cpu")
    (path,) = stored_files(tmp_path)
    path.write_text(content, encoding="latin-1")
    assert this_machine(device="cpu").layer_overhead_s == 2.0
    assert this_machine(device="cpu").layer_overhead_s == 2.0 and len(machine) == 2


def test_a_failed_write_leaves_the_old_profile(machine, tmp_path, monkeypatch):
    this_machine(device="cpu")
    (path,) = stored_files(tmp_path)
    before = path.read_text()

    def full(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(store.os, "replace", full)
        with pytest.warns(RuntimeWarning, match="could not be kept: disk full"):
            assert this_machine(device="cpu", refresh=True).layer_overhead_s == 2.0
    assert stored_files(tmp_path) == [path] and path.read_text() == before
    assert this_machine(device="cpu").layer_overhead_s == 1.0


def test_a_busy_machine_is_told_so_every_time(machine, monkeypatch):
    monkeypatch.setattr(prediction, "_MAX_SPREAD", -1.0)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"too busy .*: a quarter .*refresh=True") as told:
            this_machine(device="cpu")
        assert told[0].filename == __file__  # the caller's line is shown
    assert len(machine) == 1
    monkeypatch.setattr(prediction, "_MAX_SPREAD", 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        this_machine(device="cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtypes": ("fp32", "int4")}, r"some of fp32, bf16, fp16, got \('fp32', 'int4'\)"),
        ({"dtypes": ()}, r"some of fp32, bf16, fp16, got \(\)"),
        ({"device": "tpu"}, "device 'tpu' is not here; expected one of cpu"),
    ],
)
def test_what_cannot_be_measured_is_refused(machine, arguments, message):
    with pytest.raises(ValueError, match=message):
        this_machine(**arguments)
    assert machine == []


def test_a_machine_that_slows_down_after_its_calibration_is_found(monkeypatch):
    """The clock of the steps runs at twice the speed: all takes twice as long, evenly."""
    monkeypatch.setattr(steps, "sizes_for", lambda device: TINY)
    measured = measure_profile(("fp32",), "cpu", TINY, ticking(0.5))
    points = decode_times(ARCH, ("fp32",), (1, 3), (5, 9), 3, "cpu", clock=ticking(1.0))
    assert drift(measured, points) == pytest.approx(-0.5)
    assert uneven(p.spread for p in points) == ""  # which repeats do not tell


# --- one real run, tiny, whose times are not looked at


def test_a_whole_run(ticked, monkeypatch):
    monkeypatch.setattr(steps, "sizes_for", lambda device: TINY)
    points = decode_times(ARCH, ("fp32", "bf16"), (1, 3), (1, 9), rounds=2, device="cpu")
    assert [(p.dtype, p.batch, p.context) for p in points] == list(
        itertools.product(("fp32", "bf16"), (1, 3), (1, 9))
    )
    assert all(p.step_s > 0 and p.spread >= 0 for p in points)
    measured = measure_profile(("fp32", "bf16"), "cpu", TINY)
    assert all(math.isfinite(r.mean_abs_error) for r in ladder(ARCH, measured, points))
    assert math.isfinite(drift(measured, points))
    assert measured.gemv_bandwidth.keys() == ticked.gemv_bandwidth.keys()
    assert measured.provenance["core_share"] > 0
