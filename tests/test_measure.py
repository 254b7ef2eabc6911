"""measure: what is counted, how medians behave, and what is stored.

No test looks at how fast this machine is: clocks are invented, or a tiny run is only completed.
"""

import itertools
import math
import warnings
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken import measure, prediction
from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.measure import decode_times, this_machine
from firsttoken.prediction import DecodePoint, drift, ladder, uneven

TINY = measure._Sizes(
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
    return measure._measure(("fp32", "bf16"), "cpu", TINY, ticking())


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
    def interleaved(runs, rounds, *_):
        return {key: [{"sum": 0.5, "dot": 0.2}.get(key[-1], 1.0)] * rounds for key in runs}

    monkeypatch.setattr(measure, "_interleaved", interleaved)
    profile = measure._measure(("fp32",), "cpu", TINY)
    assert profile.read_bandwidth == pytest.approx(400_000 / 0.2)
    assert profile.accelerator.bandwidth == 2 * 400_000


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

    def interleaved(runs, rounds, *_):
        return {key: [spent.get(key[0], 1.0)] * rounds for key in runs}

    monkeypatch.setattr(measure, "_interleaved", interleaved)
    profile = measure._measure(("fp32", "bf16"), "cpu", TINY)
    keys = list(itertools.product(("fp32", "bf16"), (1, 3)))
    assert profile.overhead_s == pytest.approx(dict.fromkeys(keys, 0.3))
    assert profile.layer_overhead_s == pytest.approx(0.3)
    spent["calls"] = 2.0  # by an unlucky measurement
    assert measure._measure(("fp32",), "cpu", TINY).layer_overhead_s == 0


def test_every_round_visits_everything_once_after_a_warm_up():
    calls, waits = [], []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = measure._interleaved(runs, 4, lambda: waits.append(1), ticking(0.5), "test")
    assert calls == list("abc") * 5
    assert times == {name: [0.5] * 4 for name in "abc"}
    assert len(waits) == 2 * len(calls)  # before the start, and before the end is read


def test_a_slow_machine_gets_fewer_rounds_but_always_one():
    for limit, expected in ((0, 1), (16, 2), (1000, 5)):
        times = measure._interleaved({"a": int}, 5, int, ticking(4.0), "test", limit)
        assert len(times["a"]) == expected


@given(seconds=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), scale=st.floats(0.1, 10))
def test_one_hiccup_moves_neither_median_nor_spread_far(seconds, scale):
    median, spread = measure._median_and_spread(seconds)
    assert min(seconds) <= median <= max(seconds) and spread >= 0
    # Another unit of time changes nothing but the median's unit.
    other = measure._median_and_spread([scale * s for s in seconds])
    assert other == pytest.approx((scale * median, spread))
    assert measure._median_and_spread([1.0, 1.0, 1.0, 1.0, 500.0]) == (1.0, 0.0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_all_that_is_timed_lives_on_the_device(dtype):
    """On the meta device nothing is computed, but a tensor from elsewhere is an error."""
    tasks = measure._tasks(dtype, "meta", TINY) | measure._memory_tasks("meta", TINY)
    assert len({key[0] for key in tasks}) == 7
    for run, _ in tasks.values():
        run()


def test_carving_uses_every_element_once_at_most():
    store = measure._noise(100, "fp32", "cpu")
    pieces = measure._carve(store, [(3, 4), (5, 2)])
    assert [tuple(p.shape) for p in pieces] == [(3, 4), (5, 2)] * 4
    starts = [p.storage_offset() for p in pieces]
    assert starts == list(itertools.accumulate([12, 10] * 4, initial=0))[:-1]
    with pytest.raises(ValueError, match="100 elements is too small"):
        measure._carve(store, [(11, 10)])


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
    monkeypatch.setattr(measure, "_measure", instant)
    monkeypatch.setattr(prediction, "_MIN_CORE_SHARE", 0.0)  # the real share is in `ticked`
    return calls


def stored_files(tmp_path):
    return sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_the_second_call_reads_what_the_first_stored(machine, tmp_path):
    first = this_machine(device="cpu")
    assert this_machine(device="cpu") == first and len(machine) == 1
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
        patch.setattr(measure.os, "replace", full)
        with pytest.warns(RuntimeWarning, match="could not be kept: disk full"):
            assert this_machine(device="cpu", refresh=True).layer_overhead_s == 2.0
    assert path.read_text() == before
    assert this_machine(device="cpu").layer_overhead_s == 1.0


def test_a_busy_machine_is_told_so_every_time(machine, monkeypatch):
    monkeypatch.setattr(prediction, "_MAX_SPREAD", -1.0)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"too busy .*: a quarter .*refresh=True"):
            this_machine(device="cpu")
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
    monkeypatch.setattr(measure, "_sizes_for", lambda device: TINY)
    profile = measure._measure(("fp32",), "cpu", TINY, ticking(0.5))
    points = decode_times(ARCH, ("fp32",), (1, 3), (5, 9), 3, "cpu", clock=ticking(1.0))
    assert drift(profile, points) == pytest.approx(-0.5)
    assert uneven(p.spread for p in points) == ""  # which repeats do not tell


# --- one real run, tiny, whose times are not looked at


def test_a_whole_run(ticked, monkeypatch):
    monkeypatch.setattr(measure, "_sizes_for", lambda device: TINY)
    points = decode_times(ARCH, ("fp32", "bf16"), (1, 3), (1, 9), rounds=2, device="cpu")
    assert [(p.dtype, p.batch, p.context) for p in points] == list(
        itertools.product(("fp32", "bf16"), (1, 3), (1, 9))
    )
    assert all(p.step_s > 0 and p.spread >= 0 for p in points)
    profile = measure._measure(("fp32", "bf16"), "cpu", TINY)
    assert all(math.isfinite(r.mean_abs_error) for r in ladder(ARCH, profile, points))
    assert math.isfinite(drift(profile, points))
    assert profile.gemv_bandwidth.keys() == ticked.gemv_bandwidth.keys()
    assert profile.provenance["core_share"] > 0


def test_a_measured_step_leaves_its_cache_as_it_was(monkeypatch):
    """Each repeat attends to `context` tokens, the new one among them, and no more."""
    seen = []

    class Cache:
        length = 7

        def truncate(self, length):
            seen.append(length)

    measure._repeated(lambda tokens, cache: seen.append("step"), None, Cache(), 2)()
    assert seen == ["step", 7, "step", 7]
    monkeypatch.setattr(measure, "_sizes_for", lambda device: TINY)
    ticks = decode_times(ARCH, ("fp32",), (2,), (5,), 3, "cpu", clock=ticking(0.25))
    layer = 32 * (2 * 32 + 2 * 16 + 3 * 48) * 4
    assert ticks == [DecodePoint("fp32", 2, 5, 0.25, 0.0, 400_000 // layer * layer / 0.25)]


def test_a_timed_step_finds_its_whole_context_in_the_cache(monkeypatch):
    """All tokens but the new one; an empty context is timed only where one token is asked for."""
    found = {}
    monkeypatch.setattr(measure, "_sizes_for", lambda device: TINY)
    monkeypatch.setattr(
        measure,
        "_repeated",
        lambda model, tokens, cache, n: found.update({(len(tokens), cache.length): n}) or int,
    )
    decode_times(ARCH, ("fp32",), (1, 3), (1, 5, 9), 1, "cpu", clock=ticking())
    assert found == {(batch, length): 1 for batch in (1, 3) for length in (0, 4, 8)}


def test_steps_stop_at_their_limit_but_not_before_one_round(monkeypatch):
    monkeypatch.setattr(measure, "_sizes_for", lambda device: TINY)
    calls = []
    monkeypatch.setattr(measure, "_repeated", lambda *_: lambda: calls.append(1))
    (point,) = decode_times(ARCH, ("fp32",), (2,), (5,), 9, "cpu", clock=ticking(), limit_s=0)
    assert len(calls) == 2 and point.step_s == 1.0  # one untimed call, one round
