"""The order of things: that of the simulator, and of priorities."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from engine.chain import CHAIN, GREEDY, idle
from firsttoken.batching import Request, simulate
from firsttoken.engine import Engine, record_steps
from firsttoken.paging import BlockPool
from firsttoken.sampling import SamplingParams

requests = st.builds(
    Request,
    arrival_s=st.sampled_from([0.0, 0.5, 2.0, 2.5, 3.0, 20.0]),
    n_prompt=st.integers(1, 12),
    n_output=st.integers(1, 12),
)


@given(
    st.lists(requests, min_size=1, max_size=8),
    st.integers(1, 5),
    st.sampled_from([None, 1, 2, 5, 9]),
    st.integers(12, 40),
    st.sampled_from([1, 2, 3, 5]),
)
def test_every_step_is_that_of_the_simulator(trace, max_batch, token_budget, n_slots, block_size):
    """Who computes what in which step, and who is preempted: also in a pool that is too small."""
    n_blocks = -(-n_slots // block_size)
    assume(all(r.n_prompt + r.n_output - 1 <= n_blocks * block_size for r in trace))
    expected, shapes = [], []

    def cost(prefills, decodes):
        shapes.append((list(prefills), list(decodes)))
        return 1.0

    policy = "continuous" if token_budget is None else "chunked"
    traces = simulate(
        *(trace, policy, cost),
        max_batch=max_batch,
        token_budget=token_budget,
        pool=BlockPool(n_blocks, block_size),
        on_step=expected.append,
    )
    got, coming = [], sorted(range(len(trace)), key=lambda i: trace[i].arrival_s)
    engine = Engine(CHAIN, n_blocks, block_size, max_batch, token_budget)
    steps, outputs, place = record_steps(engine), {}, {}
    note = engine.on_step

    def both(record):
        note(record)
        got.append(record)

    engine.on_step = both
    for record in expected:
        while coming and trace[coming[0]].arrival_s <= record.start_s:
            i = coming.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=trace[i].n_output)
            place[engine.submit([1] * trace[i].n_prompt, params, ignore_eos=True)] = i
        outputs |= engine.step()
    assert not engine.unfinished and not coming
    for ours, theirs in zip(got, expected, strict=True):
        assert tuple((place[i], *sizes) for i, *sizes in ours.prefills) == theirs.prefills
        assert tuple(place[i] for i in ours.decodes) == theirs.decodes
        assert tuple(place[i] for i in ours.preempted) == theirs.preempted
    assert [(prefills, decodes) for prefills, decodes, _ in steps] == shapes
    assert {place[i]: len(g.ids) for i, g in outputs.items()} == {
        i: trace.n_output for i, trace in enumerate(traces)
    }


def test_a_lower_priority_goes_first_and_last_in_line_is_preempted():
    order = []
    engine = Engine(CHAIN, 20, 2, max_batch=1)
    for priority in (0, 5, -1, 5, -1):
        i = engine.stats.submitted
        options = {"ignore_eos": True, "priority": priority}
        engine.submit([1], GREEDY, lambda _, i=i: order.append(i), **options)
    engine.run()
    assert list(dict.fromkeys(order)) == [2, 4, 0, 1, 3] and idle(engine)

    engine, records = Engine(CHAIN, 5, 2), []
    engine.on_step = records.append
    for priority in (1, 0):
        engine.submit([1, 2], replace(GREEDY, max_tokens=7), ignore_eos=True, priority=priority)
    assert len(engine.run()) == 2 and idle(engine)
    assert {i for record in records for i in record.preempted} == {0}


def test_a_request_says_where_it_is():
    engine = Engine(CHAIN, 20, 4, max_batch=1)
    ids = [engine.submit([1], SamplingParams(temperature=0.0, max_tokens=2)) for _ in range(4)]
    requests = [engine._requests[i] for i in ids]
    where = []

    def note() -> None:
        where.append([request.status.value for request in requests])

    note()
    engine.step()
    note()
    engine.abort(ids[0])
    engine.abort(ids[3])
    note()
    engine.run()
    note()
    assert where == [
        ["waiting"] * 4,
        ["running", "waiting", "waiting", "waiting"],
        ["ended", "waiting", "waiting", "ended"],
        ["ended"] * 4,
    ]
