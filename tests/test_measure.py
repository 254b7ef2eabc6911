"""measure: what is counted, how medians behave, and what is stored.

No test looks at how fast this machine is: clocks are invented, or a tiny run is only completed.
"""

import itertools
import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firsttoken import measure, prediction
from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.measure import decode_times, this_machine
from firsttoken.prediction import LLAMA_100M, DecodePoint, drift, ladder, uneven

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


def test_both_ways_read_the_whole_store():
    """Ones, then twos: what a sum and a dot product of the halves must come to."""
    tasks = measure._memory_tasks("cpu", TINY)
    run, n_bytes = tasks["read", "dot"]
    assert n_bytes == 400_000 == tasks["read", "sum"][1]
    source = tasks["read", "sum"][0].__self__
    source[:50_000], source[50_000:] = 1.0, 2.0
    assert tasks["read", "sum"][0]() == 150_000 and run() == 100_000


def test_attention_is_timed_per_cache(ticked):
    """One second reads all copies; the table holds the time of one."""
    for dtype, width in (("fp32", 4), ("bf16", 2)):
        for rows, group, context in itertools.product((1, 3), (1, 2), (4, 32)):
            each = 2 * rows * 2 * context * 8 * width  # keys and values, K = 2 heads of 8
            assert each == kv_cache_bytes(ARCH.replace(n_layers=1), context, rows, dtype)
            assert ticked.kv_read_s[dtype, rows, group, each] == 1 / (100_000 // each)
    assert len(ticked.kv_read_s) == 16


def test_the_rate_of_caches_is_that_of_the_largest(monkeypatch):
    """Small caches at a hundredth of the speed, which nobody hears of."""

    def interleaved(runs, rounds, *_):
        largest = max((key[4] for key in runs if key[0] == "attention"), default=0)
        small = {key for key in runs if key[0] == "attention" and key[4] < largest}
        return {key: [100.0 if key in small else 1.0] * rounds for key in runs}

    monkeypatch.setattr(measure, "_interleaved", interleaved)
    each = 2 * 3 * 2 * 32 * 8 * 4  # keys and values of 3 sequences, 2 heads of 8, 32 tokens
    assert measure._measure(("fp32",), "cpu", TINY).kv_bandwidth == 100_000 // each * each


def test_a_cache_beyond_a_quarter_of_the_store_is_read_all_the_same():
    sizes = replace(TINY, contexts=(4, 1200))  # 3 rows: 460,800 bytes in fp32, beyond the store
    with pytest.raises(ValueError, match="too small"):
        measure._tasks("fp32", "cpu", sizes)
    sizes = replace(TINY, contexts=(4, 700))  # 268,800 bytes: more than a quarter, less than all
    run, n_bytes = measure._tasks("fp32", "cpu", sizes)["attention", "fp32", 3, 2, 268_800]
    assert n_bytes == 268_800 and [tuple(y.shape) for y in run()] == [(3, 2, 2, 8)]


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


def test_calls_are_the_products_and_the_attention_of_every_layer(monkeypatch):
    """Counted by torch itself: what a step of the model calls, but for its output."""
    model = measure._random_llama(ARCH, "fp32", "cpu", 0)
    cache = model.new_cache(3, 16)
    measure._fill(cache, ARCH, 3, 15, 0)

    def count(run):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            run()
        calls = {event.key: event.count for event in seen.key_averages()}
        return [calls[f"aten::{name}"] for name in ("linear", "scaled_dot_product_attention")]

    tokens = torch.zeros(3, 1, dtype=torch.long)
    whole = count(measure._repeated(model, tokens, cache, 1))
    assert count(measure._calls(model, 3, "fp32")) == [whole[0] - 1, whole[1]]


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
    assert {key[0] for key in tasks} == {
        "gemv",
        "head",
        "gemm",
        "attention",
        "empty",
        "copy",
        "read",
    }
    for run, _ in tasks.values():
        run()


def test_controls_are_the_calibrations_own_products():
    """The same matrices and the same rows, so that the rates may be compared."""
    store = measure._working_set("fp32", "meta", TINY)
    controls = measure._layer_products(store, "fp32", "meta", TINY, (1, 3))
    tasks = measure._tasks("fp32", "meta", TINY)
    of_layers = {key: amount for key, (_, amount) in tasks.items() if key[0] == "gemv"}
    assert {key: amount for key, (_, amount) in controls.items()} == of_layers


def test_carving_uses_every_element_once_at_most():
    store = measure._noise(100, "fp32", "cpu")
    pieces = measure._carve(store, [(3, 4), (5, 2)])
    assert [tuple(p.shape) for p in pieces] == [(3, 4), (5, 2)] * 4
    starts = [p.storage_offset() for p in pieces]
    assert starts == list(itertools.accumulate([12, 10] * 4, initial=0))[:-1]
    with pytest.raises(ValueError, match="100 elements is too small"):
        measure._carve(store, [(11, 10)])


@given(n=st.integers(1, 5000))
def test_noise_is_long_enough_and_has_no_zeros_to_skip(n):
    noise = measure._noise(n, "bf16", "cpu")
    assert noise.shape == (n,) and noise.isfinite().all() and noise.nbytes == 2 * n
    assert n < 100 or (noise == 0).float().mean() < 0.01


def test_the_measuring_shapes_are_not_the_models():
    for sizes in (measure._Sizes(), measure._GPU_SIZES):
        assert sizes.working_set_bytes >= 400_000_000
        assert sizes.d_model != LLAMA_100M.d_model and sizes.d_ff != LLAMA_100M.d_ff
        assert sizes.n_kv_heads != LLAMA_100M.n_kv_heads
        assert sizes.vocab_size != LLAMA_100M.vocab_size
        assert sizes.head_dim != LLAMA_100M.head_dim and sizes.depth != LLAMA_100M.n_layers
        assert {1, 4, 16} <= set(sizes.rows) and 3 in sizes.groups
        assert not {128, 512, 2048} & set(sizes.contexts)
        # The largest of each kind fits into the working set, at four bytes and at two.
        n_elements = sizes.working_set_bytes // 4
        cache = 2 * max(sizes.rows) * sizes.n_kv_heads * max(sizes.contexts) * sizes.head_dim
        assert max(sizes.vocab_size * sizes.d_model, 2 * sizes.gemm**2) <= n_elements
        assert cache <= n_elements
        # No cache of the measured steps is larger than the largest of the calibration.
        needed = kv_cache_bytes(LLAMA_100M.replace(n_layers=1), 2048, dtype="fp32") // 4
        assert needed <= 2 * sizes.n_kv_heads * sizes.head_dim * max(sizes.contexts)
    assert LLAMA_100M.n_params == pytest.approx(100e6, rel=0.01)


# --- the profile


def test_provenance_says_where_the_figures_come_from(ticked):
    assert {
        "machine", "device", "threads", "system", "torch", "sizes", "date", "core_share",
        "load_average",
    } <= set(ticked.provenance)  # fmt: skip
    assert ticked.provenance["device"] == "cpu" and not ticked.host_overlaps
    assert ticked.accelerator.name == ticked.provenance["machine"]
    assert set(ticked.spread.values()) == {0.0}
    assert len(ticked.spread) == 3 + 2 * (1 + 2 * (2 + 4 + 2))
    assert replace(ticked, provenance={"device": "cuda"}).host_overlaps


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


def test_other_dtypes_and_other_machines_are_measured_for_themselves(machine, monkeypatch):
    this_machine(device="cpu")
    this_machine(("fp32",), device="cpu")
    assert [dtypes for dtypes, _ in machine] == [("fp32", "bf16"), ("fp32",)]
    monkeypatch.setattr(measure, "processor", lambda: "another processor")
    this_machine(device="cpu")
    assert len(machine) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"identity": {}}', "\xff\x00"])
def test_a_damaged_file_is_replaced(machine, tmp_path, content):
    this_machine(device="cpu")
    (path,) = stored_files(tmp_path)
    path.write_text(content, encoding="latin-1")
    assert this_machine(device="cpu").layer_overhead_s == 2.0
    assert this_machine(device="cpu").layer_overhead_s == 2.0 and len(machine) == 2


def test_a_foreign_file_under_the_same_name_is_replaced(machine, tmp_path):
    this_machine(device="cpu")
    (path,) = stored_files(tmp_path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"identity": data["identity"] | {"threads": 99}}))
    this_machine(device="cpu")
    assert len(machine) == 2
    damaged = json.loads(path.read_text())
    del damaged["profile"]["overhead_s"]
    path.write_text(json.dumps(damaged))
    this_machine(device="cpu")
    assert len(machine) == 3


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
