"""Decode steps: what a timed step reads, and when the measurement ends."""

from firsttoken.measure import decode_times, steps
from firsttoken.measure.prediction import DecodePoint
from firsttoken.measure.tensors import repeated
from measure.test_profile import ARCH, TINY, ticking


def test_a_measured_step_leaves_its_cache_as_it_was(monkeypatch):
    """Each repeat attends to `context` tokens, the new one among them, and no more."""
    seen = []

    class Cache:
        length = 7

        def truncate(self, length):
            seen.append(length)

    repeated(lambda tokens, cache: seen.append("step"), None, Cache(), 2)()
    assert seen == ["step", 7, "step", 7]
    monkeypatch.setattr(steps, "sizes_for", lambda device: TINY)
    ticks = decode_times(ARCH, ("fp32",), (2,), (5,), 3, "cpu", clock=ticking(0.25))
    layer = 32 * (2 * 32 + 2 * 16 + 3 * 48) * 4
    assert ticks == [DecodePoint("fp32", 2, 5, 0.25, 0.0, 400_000 // layer * layer / 0.25)]


def test_a_timed_step_finds_its_whole_context_in_the_cache(monkeypatch):
    """All tokens but the new one; an empty context is timed only where one token is asked for."""
    found = {}
    monkeypatch.setattr(steps, "sizes_for", lambda device: TINY)
    monkeypatch.setattr(
        steps,
        "repeated",
        lambda model, tokens, cache, n: found.update({(len(tokens), cache.length): n}) or int,
    )
    decode_times(ARCH, ("fp32",), (1, 3), (1, 5, 9), 1, "cpu", clock=ticking())
    assert found == {(batch, length): 1 for batch in (1, 3) for length in (0, 4, 8)}


def test_steps_stop_at_their_limit_but_not_before_one_round(monkeypatch):
    monkeypatch.setattr(steps, "sizes_for", lambda device: TINY)
    calls = []
    monkeypatch.setattr(steps, "repeated", lambda *_: lambda: calls.append(1))
    (point,) = decode_times(ARCH, ("fp32",), (2,), (5,), 9, "cpu", clock=ticking(), limit_s=0)
    assert len(calls) == 2 and point.step_s == 1.0  # one untimed call, one round
