"""parallel_torch: every way to divide the work equals one device, and sends what it should.

The processes are real, and started once for all tests. What ends one of them, or measures, is in
tests/proof/alone/test_parallel_processes.py.
"""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parallel_jobs
from firsttoken.generate import generate
from firsttoken.models.checkpoint import read_checkpoint
from firsttoken.models.llama_torch import Llama
from firsttoken.parallel import (
    all_gather_bytes,
    all_reduce_bytes,
    all_to_all_bytes,
    device_params,
    kv_share,
    reduce_scatter_bytes,
    ring_all_reduce_s,
    split_evenly,
)
from firsttoken.parallel.parallel_torch import (
    Workers,
    compare_sequence_parallel,
    compare_tensor_parallel,
    random_mixture,
    rank_of,
    run_experts,
    run_pipeline,
    serve_replicas,
    split_checkpoint,
    tensor_decode_s,
    time_collective,
)
from firsttoken.parallel.parallel_torch.comparison import compare
from firsttoken.parallel.parallel_torch.tensor import model_directory
from firsttoken.sampling import SamplingParams

TARGET = model_directory("target")
TOKENS = [list(range(5 + i, 25 + i)) for i in range(4)]
# Of float32, relative to the largest number: eight layers of sums in another order.
ROUNDING = 5e-6
once = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def workers():
    with parallel_jobs.importable(), Workers(4) as started:
        yield started
        # No test may have ended one of them.
        assert started.call(rank_of) == [0, 1, 2, 3]


def agrees(comparison, n):
    assert comparison.n == n
    assert comparison.max_difference <= ROUNDING * comparison.largest
    assert comparison.sent == comparison.expected
    return True


# --- processes


def test_each_process_takes_one_thread(workers):
    assert workers.call(parallel_jobs.threads, n=3) == [1] * 3


def test_items_go_to_whoever_is_free(workers, tmp_path):
    """The process with the first item waits until all others are done, and gets no other."""
    done = workers.map(parallel_jobs.first_is_last, [(tmp_path, i, 12) for i in range(12)])
    assert [result for _, result in done] == list(range(12))
    served = [rank for rank, _ in done]
    assert set(served) == {0, 1, 2, 3} and served.count(served[0]) == 1
    assert workers.map(parallel_jobs.first_is_last, []) == []


def test_what_the_processes_cannot_do_is_refused(workers):
    def here(comm):
        return comm.rank

    here.__module__ = "__main__"
    for call in (lambda: workers.call(here), lambda: workers.map(here, [1])):
        with pytest.raises(ValueError, match="function here was defined here"):
            call()
    for n in (0, 5):
        with pytest.raises(ValueError, match="n must be"):
            workers.call(rank_of, n=n)


# --- collectives


def test_collectives_equal_their_definitions(workers):
    sizes = [0, 1, 2, 5, 64]  # fewer numbers than processes, and pieces of several sizes
    for n in (1, 2, 3, 4):
        by_rank = workers.call(parallel_jobs.collectives, 0, sizes, n=n)
        for case, size in enumerate(sizes):
            inputs, ours, exchanged, theirs, sent = zip(*(r[case] for r in by_rank), strict=True)
            total = torch.stack(inputs).sum(0)
            n_bytes = 4 * 3 * size
            for rank in range(n):
                reduced, gathered, piece = ours[rank]
                torch.testing.assert_close(reduced, total)
                assert torch.equal(reduced, ours[0][0])  # the same bits everywhere
                assert torch.equal(gathered, torch.stack(inputs))
                run = split_evenly(total.numel(), n)[rank]
                torch.testing.assert_close(piece, total.flatten()[run.start : run.stop])
                for source, part in enumerate(exchanged[rank]):
                    assert part.shape == (rank + source, 2)
                    assert (part == 10 * source + rank).all()
                if n == workers.n:
                    torch.testing.assert_close(reduced, theirs[rank])
            counted = {name: sum(s.get(name, 0) for s in sent) for name in set().union(*sent)}
            assert counted.get("all_reduce", 0) == all_reduce_bytes(n_bytes, n)
            assert counted.get("reduce_scatter", 0) == reduce_scatter_bytes(n_bytes, n)
            assert counted.get("all_gather", 0) == all_gather_bytes(n * n_bytes, n)
            pairs = sum(i + j for i in range(n) for j in range(n) if i != j)
            assert counted.get("all_to_all", 0) == 8 * pairs


# --- tensor parallelism


@pytest.mark.parametrize("n", [1, 2, 4])
def test_split_layers_equal_one_device(workers, n):
    """6 query heads and 2 KV heads: 3 and 4 divide neither, and are more than the KV heads."""
    assert agrees(compare_tensor_parallel(workers, TOKENS, n), n)
    assert agrees(compare_tensor_parallel(workers, [[7]], n, "draft"), n)


def test_a_bias_behind_the_sum_is_added_once(workers):
    draw = torch.Generator().manual_seed(0)
    shapes = (5, 8), (8, 7), (7,), (7, 8), (8,)
    x, *weights = (torch.randn(shape, generator=draw) for shape in shapes)
    up, up_bias, down, down_bias = weights
    expected = torch.relu(x @ up + up_bias) @ down + down_bias
    for wrong in ("", "no all-reduce", "bias added by each"):
        for part in workers.call(parallel_jobs.biased_mlp, x, weights, wrong, n=3):
            assert torch.allclose(part, expected, atol=1e-5) == (wrong == "")


def test_what_the_closed_form_says_that_a_process_holds(workers):
    """Of 3 processes, the one with most heads has one column of 171 less than the largest part."""
    arch = read_checkpoint(TARGET).arch
    for n in (1, 2, 3, 4):
        held, cached = zip(*workers.call(parallel_jobs.part_bytes, TARGET, 12, n=n), strict=True)
        params = device_params(arch, n)
        whole_table = arch.vocab_size * arch.d_model
        layers = params.linear - params.head + params.rest
        column = 4 * arch.n_layers * 3 * arch.d_model
        assert max(held) == 4 * (layers + whole_table) - (column if n == 3 else 0)
        assert max(cached) == 4 * 12 * arch.kv_elements_per_token * kv_share(arch, n)


def test_parts_are_the_weights():
    """Every number of a cut matrix is on one process, but for KV heads that several need."""
    checkpoint = read_checkpoint(TARGET)
    for n in (2, 3, 4, 6):
        parts = [split_checkpoint(checkpoint, rank, n)[1] for rank in range(n)]
        for name, whole in checkpoint.weights.items():
            kind = name.split(".")[-2]
            mine = [part[name] for part in parts]
            if kind in ("q_proj", "gate_proj", "up_proj"):
                assert np.array_equal(np.concatenate(mine, axis=0), whole)
            elif kind in ("o_proj", "down_proj"):
                assert np.array_equal(np.concatenate(mine, axis=1), whole)
            elif kind in ("k_proj", "v_proj"):
                rows = {row.tobytes() for part in mine for row in part}
                assert rows == {row.tobytes() for row in whole}
            else:
                assert all(np.array_equal(part, whole) for part in mine)
    with pytest.raises(ValueError, match="at most n_heads 6"):
        split_checkpoint(checkpoint, 0, 7)


def test_decoding_with_caches_in_parts(workers):
    prompt = list(range(5, 30))
    alone = generate(
        Llama.from_pretrained(TARGET), prompt, SamplingParams(temperature=0, max_tokens=9),
        ignore_eos=True,
    )  # fmt: skip
    for tokens, seconds in workers.call(tensor_decode_s, TARGET, prompt, 8, n=4):
        assert tokens == alone.ids and len(seconds) == 8


# --- pipeline


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 4), (3, 2)])
def test_stages_equal_one_device(workers, stages, microbatches):
    run = run_pipeline(workers, TOKENS, stages, microbatches)
    assert agrees(run.comparison, stages)
    assert len(run.slots) == stages * microbatches
    assert min(slot.start_s for slot in run.slots) == 0
    for slot in run.slots:  # after the stage before it, and after the microbatch before it
        for other in run.slots:
            if (other.stage, other.microbatch) in (
                (slot.stage - 1, slot.microbatch),
                (slot.stage, slot.microbatch - 1),
            ):
                assert other.end_s <= slot.start_s
    assert 0 <= run.bubble < 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_stages": 9}, "at most 8 layers"),
        ({"n_microbatches": 3}, "must divide the batch of 4"),
        ({"device_s": -1.0}, "device_s"),
    ],
)
def test_a_pipeline_refuses(workers, changes, named):
    with pytest.raises(ValueError, match=named):
        run_pipeline(workers, TOKENS, **({"n_stages": 2, "n_microbatches": 2} | changes))


# --- experts


@once
@given(
    n=st.integers(1, 4),
    n_tokens=st.integers(1, 30),
    n_experts=st.integers(4, 9),
    n_active=st.integers(1, 3),
    favour=st.sampled_from([0.0, 1.0, 50.0]),
)
def test_travelling_tokens_equal_one_device(workers, n, n_tokens, n_experts, n_active, favour):
    """Also with processes without a token, and, at 50, experts without one."""
    mixture = random_mixture(3, n_experts, n_active, favour=favour)
    x = torch.randn(n_tokens, 32, generator=torch.Generator().manual_seed(n_tokens))
    run = run_experts(workers, mixture, x, n)
    assert agrees(run.comparison, n)
    assert sum(map(sum, run.counts)) == n_tokens * n_active
    if n_experts % n == 0 and n > 1:
        assert run.comparison.sent["counts"] == all_to_all_bytes(8 * n_experts, n)
    assert 1 <= run.imbalance <= n


def test_favourites_make_loads_uneven(workers):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    even, skewed = (run_experts(workers, random_mixture(0, favour=f), x, 4) for f in (0.0, 2.0))
    assert skewed.imbalance > 2 > 1.5 > even.imbalance
    with pytest.raises(ValueError, match="at most 3 experts"):
        run_experts(workers, random_mixture(0, n_experts=3), x, 4)


def test_one_device_s_mixture_is_the_definition():
    mixture, x = random_mixture(5), torch.randn(6, 32, generator=torch.Generator().manual_seed(2))
    for token, result in zip(x, mixture(x), strict=True):
        scores = mixture.router @ token + mixture.router_bias
        best = sorted(range(8), key=lambda e: -scores[e])[:2]
        shares = torch.softmax(scores[best], dim=0)
        parts = [mixture.expert(e, token[None])[0] for e in best]
        torch.testing.assert_close(result, shares[0] * parts[0] + shares[1] * parts[1])


# --- a cache cut along the text


def decode_inputs(batch, heads, n_kv, length, seed=0):
    draw = np.random.default_rng(seed)
    shapes = (batch, heads, 1, 16), (batch, n_kv, length, 16), (batch, n_kv, length, 8)
    return [draw.standard_normal(shape, dtype=np.float32) * 3 for shape in shapes]


@once
@given(n=st.integers(1, 4), length=st.integers(1, 40), heads=st.sampled_from([(6, 2), (4, 1)]))
def test_runs_of_keys_equal_one_device(workers, n, length, heads):
    """Also with fewer keys than processes."""
    assert agrees(compare_sequence_parallel(workers, *decode_inputs(2, *heads, length), n), n)


# --- replicas


def test_replicas_say_what_one_device_says(workers):
    requests = [(list(range(5 + i, 15 + i)), 3 + 2 * (i % 3)) for i in range(6)]
    run = serve_replicas(workers, requests)
    model = Llama.from_pretrained(TARGET)
    for (prompt, n), tokens in zip(requests, run.tokens, strict=True):
        params = SamplingParams(temperature=0, max_tokens=n)
        assert tokens == tuple(generate(model, prompt, params, ignore_eos=True).ids)
    assert set(run.served_by) == {0, 1, 2, 3}
    one = serve_replicas(workers, requests[:2], n=1)
    assert one.tokens == run.tokens[:2] and one.served_by == (0, 0)


# --- times


@pytest.mark.parametrize("name", ["all_reduce", "all_to_all"])
def test_times_and_their_predictions(workers, name):
    """No time is tested, only what is done with times: here with a link that is given."""
    link = (1e-4, 1e9)
    found = time_collective(workers, 2, [64, 8192], name, rounds=2, link=link)
    assert (found.n, found.n_bytes, found.fitted_on) == (2, (64, 8192), None)
    assert all(seconds > 0 for seconds in found.seconds)
    share = 1.0 if name == "all_reduce" else 0.5
    expected = [share * ring_all_reduce_s(size, 2, 1e9, 1e-4) for size in found.n_bytes]
    assert found.predictions == pytest.approx(expected)
    ratios = [p / s - 1 for p, s in zip(found.predictions, found.seconds, strict=True)]
    assert found.errors == pytest.approx(ratios)


def test_a_fit_goes_through_its_two_sizes(workers, monkeypatch):
    times = {64: 3e-4, 8192: 5e-4, 2**20: 2e-3}
    monkeypatch.setattr(workers, "call", lambda *_, **__: [[[s] for s in times.values()]] * 2)
    found = time_collective(workers, 2, list(times))
    assert found.fitted_on == (0, 2)
    between = 3e-4 + (2e-3 - 3e-4) * (8192 - 64) / (2**20 - 64)
    assert found.predictions == pytest.approx([3e-4, between, 2e-3])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1, [64]), "n must be"),
        ((2, [9]), "multiples of 4 · n = 8"),
        ((2, [64], "broadcast"), "name 'broadcast'"),
        ((2, [64], "all_reduce", 0), "rounds"),
    ],
)
def test_times_refuse(workers, arguments, named):
    with pytest.raises(ValueError, match=named):
        time_collective(workers, *arguments)


def test_what_cannot_be_split_or_compared_is_refused(workers):
    _, k, v = decode_inputs(1, 4, 2, 8)
    for message, call in (
        ("n must be at most", lambda: compare_tensor_parallel(workers, TOKENS, 7)),
        ("one query a sequence", lambda: compare_sequence_parallel(workers, k, k, v, 2)),
        (r"got \(2,\) must have", lambda: compare(np.zeros(2), np.zeros(3), [{}], {})),
    ):
        with pytest.raises(ValueError, match=message):
            call()
