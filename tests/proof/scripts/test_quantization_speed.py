"""benchmarks/quantization_speed.py: what is timed, what is made of the times, what is stored."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.roofline import model_cost

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "quantization_speed", ROOT / "benchmarks" / "quantization_speed.py"
)
speed = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(speed)

TINY = Architecture("tiny", 2, 64, 2, 1, 32, 128, 96, tied_embeddings=True)
WEIGHTS = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 64 * 96
OUTPUTS = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64) + 96
PEAK = 1e9
SIZES = {"fp32": 400e6, "bf16": 200e6, "int8": 100e6, "int4": 60e6}  # of a made-up model


@pytest.fixture(scope="module")
def exact():
    return speed.random_llama(TINY)


def distance(logits, reference):
    return float((logits.float() - reference).norm() / reference.norm())


def test_every_step_computes_the_same_function(exact):
    """As far as its numbers reach; and a step may be repeated. Without its products it is none."""
    reference = speed.step(exact, 3)()
    assert reference.shape == (3, 1, 96)
    distances = {}
    for name in speed.FORMATS:
        run = speed.step(speed.in_format(exact, name), 3)
        logits = run()
        torch.testing.assert_close(run(), logits, atol=0, rtol=0)
        distances[name] = distance(logits, reference)
    # Half a step of 2^-8, of 1/127 and of 1/7 of the largest, over a few layers.
    assert distances["fp32"] == 0 < distances["bf16"] < 0.03
    assert distances["int8"] < 0.05 < distances["int4"] < 0.3
    assert distance(speed.step(speed.without_products(exact, "fp32"), 3)(), reference) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp32", 4 * WEIGHTS),
        ("bf16", 2 * WEIGHTS),
        ("int8", WEIGHTS + 2 * OUTPUTS),
        ("int4", WEIGHTS / 2 + 4 * WEIGHTS / 32),  # a scale and an offset in bf16 per 32 weights
    ],
)
def test_the_bytes_of_a_format_are_codes_and_scales(exact, name, expected):
    """The head, shared with the embedding, counts once; the embedding's own table does not."""
    assert speed.matrix_bytes(speed.in_format(exact, name)) == expected
    layer = speed.matrix((64, 96), name, speed.activations(name))
    assert speed.matrix_bytes(layer) == pytest.approx(expected * 64 * 96 / WEIGHTS, rel=0.01)


def test_activations_go_where_the_kernels_are_fast(exact):
    """Beside codes they are bf16, in the cache, too; the steps without products, alike."""
    for name, dtype in (("fp32", "fp32"), ("bf16", "bf16"), ("int8", "bf16"), ("int4", "bf16")):
        assert speed.activations(name) == dtype
        for model in (speed.in_format(exact, name), speed.without_products(exact, dtype)):
            assert model.new_cache(1, 1).keys(0).dtype == speed.DTYPES[dtype]
            assert speed.step(model, 1)().dtype == speed.DTYPES[dtype]
    assert exact.model.norm.weight.dtype == torch.float32  # the copies left it alone


def machine(step, memory_rate=10.0, rest=0.0, cache_rate=20.0):
    """Times of a made-up machine that reads 10 bytes a second; `step(bytes, flops)` in seconds."""
    n_bytes, seconds = {("read", "sum"): 100, ("read", "dot"): 100}, {}
    seconds["read", "sum"], seconds["read", "dot"] = [20.0] * 3, [10.0] * 3
    in_cache = speed.REPEATS * 2 * speed.LAYER[0] * speed.LAYER[1]
    for batch in speed.BATCHES:
        for dtype in speed.DTYPES:
            seconds["rest", dtype, batch] = [rest] * 3
        for name, n in SIZES.items():
            dtype = speed.activations(name)
            cache = kv_cache_bytes(TINY, speed.CONTEXT, batch, dtype)
            flops = model_cost(TINY, batch, t=1, s=speed.CONTEXT).flops
            n_bytes["step", name, batch], n_bytes["memory", name, dtype, batch] = n, 7
            seconds["step", name, batch] = [step(n, cache, flops)] * 3
            seconds["memory", name, dtype, batch] = [7 / memory_rate] * 3
    for name in SIZES:
        for dtype, rows in ((speed.activations(name), 1), ("fp32", 1)):
            n_bytes["cache", name, dtype, rows] = 8
            seconds["cache", name, dtype, rows] = [8 / cache_rate] * 3
        seconds["cache", name, speed.activations(name), speed.MANY_ROWS] = [
            in_cache * speed.MANY_ROWS / PEAK
        ] * 3
    return seconds, n_bytes


def errors(report, rung):
    return [step["relative_error"][rung] for step in report["steps"]]


def test_on_a_machine_that_only_reads_the_bandwidth_predicts_all():
    report = speed.analysis(TINY, *machine(lambda n, cache, flops: (n + cache) / 10))
    assert report["read_bytes_per_s"] == 10  # the faster of the two ways to read
    assert errors(report, "bandwidth") == [0] * len(report["steps"])
    for step in report["steps"]:
        cache = kv_cache_bytes(
            TINY, speed.CONTEXT, step["batch"], speed.activations(step["format"])
        )
        assert step["read_bytes"] - cache == SIZES[step["format"]]
        fp32 = kv_cache_bytes(TINY, speed.CONTEXT, step["batch"], "fp32")
        gain = (400e6 + fp32) / step["read_bytes"]
        assert step["gain"]["fp32"] == pytest.approx(gain, abs=1e-3)
    assert report["pays_up_to_batch"] == {n: {"fp32": 32, "bf16": 32} for n in ("int8", "int4")}


def test_on_a_machine_that_only_computes_no_format_pays():
    """There bytes over bandwidth say too little, and the roofline all."""
    report = speed.analysis(TINY, *machine(lambda n, cache, flops: 1e6 * flops / PEAK))
    assert all(gain == 1 for step in report["steps"] for gain in step["gain"].values())
    assert report["pays_up_to_batch"] == {n: {"fp32": 0, "bf16": 0} for n in ("int8", "int4")}
    roofs = machine(lambda n, cache, flops: max((n + cache) / 1e12, flops / PEAK))
    roofs[0]["read", "dot"] = [1e-10] * 3  # 1 TB/s
    report = speed.analysis(TINY, *roofs)
    assert errors(report, "roofline") == [0] * len(report["steps"])
    assert min(errors(report, "bandwidth")) < -0.5


def test_parts_are_products_at_their_own_rate_and_the_rest():
    report = speed.analysis(TINY, *machine(lambda n, cache, flops: n / 4 + 3e7, 4.0, 3e7))
    assert errors(report, "parts") == [0] * len(report["steps"])
    assert max(map(abs, errors(report, "bandwidth"))) > 0.3


@pytest.mark.parametrize(
    ("cache_rate", "limit", "share"), [(8.0, "kernel", 0.5), (11.0, "memory", 0.4)]
)
def test_a_kernel_slower_than_memory_is_its_own_limit(cache_rate, limit, share):
    """Products out of cache reach 4 bytes a second: that much of the lower roof."""
    report = speed.analysis(TINY, *machine(lambda n, cache, flops: 1.0, 4.0, 0.0, cache_rate))
    for kernel in report["kernels"]:
        assert kernel["limit"] == limit
        assert kernel["share_of_limit"] == pytest.approx(share)
        assert kernel["flops_per_s"] == pytest.approx(PEAK)
        rates = kernel["one_row_bytes_per_s"]
        assert rates["cache"] == pytest.approx(cache_rate) and rates["memory"] == pytest.approx(4)
        slow = "cache, fp32 activations"
        assert (slow in rates) == bool(speed.FORMATS[kernel["format"]])


@pytest.mark.parametrize(
    ("gains", "last"),
    [([2, 1.5, 1.1], 4), ([2, 1.0, 1.1], 1), ([0.9, 2, 2], 0), ([2, 1.1, 0.9], 2)],
)
def test_a_format_pays_until_it_first_does_not(gains, last):
    """A later gain does not count, and a draw is none."""
    steps = [
        {"format": name, "batch": batch, "gain": {"fp32": gain if name == "int4" else 5}}
        for name in ("int8", "int4")
        for batch, gain in zip((1, 2, 4), gains, strict=True)
    ]
    assert speed.pays_up_to(steps, "int4", "fp32") == last


def test_a_disturbed_run_says_so():
    even, wide = {("a",): [1.0, 1.01, 1.02]}, {("a",): [1.0, 1.5, 2.0]}
    assert speed.busy(even, 0.99) == ""
    assert "differ by" in speed.busy(wide, 0.99)
    assert "only 50% of the cores" in speed.busy(even, 0.5)
    assert " and " in speed.busy(wide, 0.5)


def test_calls_take_turns_and_the_first_does_not_count():
    called = []
    names = [("a",), ("read", "sum"), ("b",)]
    seconds, share = speed.in_turn({n: lambda n=n: called.append(n) for n in names}, rounds=2)
    assert called == 3 * names
    assert {n: len(times) for n, times in seconds.items()} == dict.fromkeys(names, 2)
    assert share > 0


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The program on a model and rates that take no time, with a folder of its own."""
    sizes = {"LLAMA_100M": TINY, "LAYER": (64, 128), "HEAD": (64, 256), "N_LAYERS": 2}
    for name, value in (sizes | {"READ_NUMBERS": 10_000, "BATCHES": (1, 4)}).items():
        monkeypatch.setattr(speed, name, value)
    monkeypatch.setattr(speed, "data_path", lambda name: tmp_path / Path(name).name)
    before, change = torch.get_num_threads(), torch.set_num_threads
    yield tmp_path
    change(before)


def test_a_quick_run_writes_nothing_unless_told_where(tiny, capsys):
    speed.main(["--quick"])
    assert list(tiny.iterdir()) == []
    speed.main(["--quick", "--out", str(tiny / "mine.json")])
    assert [path.name for path in tiny.iterdir()] == ["mine.json"]  # nothing half written
    report = json.loads((tiny / "mine.json").read_text("utf-8"))
    assert {(s["format"], s["batch"]) for s in report["steps"]} == {
        (name, batch) for name in speed.FORMATS for batch in (1, 4)
    }
    assert report["measured_code"] == speed.MEASURED_CODE and report["threads"] == 1
    assert {"machine", "commit", "versions", "busy", "load_average_before"} <= report.keys()
    for step in report["steps"]:
        assert 0 < step["quartile_1_ms"] <= step["median_ms"] <= step["quartile_3_ms"]
    capsys.readouterr()
    speed.main(["--table", "--out", str(tiny / "mine.json")])
    assert capsys.readouterr().out.strip() == speed.table(report)


def test_a_whole_run_is_stored_and_other_threads_want_a_file_of_their_own(tiny, monkeypatch):
    monkeypatch.setattr(speed, "ROUNDS", 1)
    with pytest.raises(SystemExit):
        speed.main(["--threads", "2"])
    assert list(tiny.iterdir()) == []
    speed.main([])
    (path,) = tiny.iterdir()
    assert path.name == "quantization_speed.json"
    taken = []  # two threads that wait for each other take seconds where other tests run
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    speed.main(["--threads", "2", "--out", str(tiny / "two.json")])
    assert taken == [2] and (tiny / "two.json").exists()


def test_the_sizes_of_rates_are_not_the_model_s():
    """Or a step would predict itself; but as many weights, a quarter of them in the tall one."""
    arch = speed.LLAMA_100M
    assert speed.LAYER[0] not in (arch.d_model, arch.d_ff)
    assert speed.LAYER[1] != arch.d_ff and speed.HEAD[1] != arch.vocab_size
    head, layer = (n_in * n_out for n_in, n_out in (speed.HEAD, speed.LAYER))
    total = head + speed.N_LAYERS * layer
    assert total == pytest.approx(arch.n_matmul_params, rel=0.02)
    assert head / total == pytest.approx(arch.vocab_size * arch.d_model / total, abs=0.05)
