"""What a request may ask for: out of range, it is named."""

import pytest

from engine.chain import CHAIN, GREEDY, VOCAB
from firsttoken.engine import Engine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": "loud"}, "adapter 'loud' is unknown, .* the engine has no adapters"),
        ({"priority": 0.5}, "priority must be a whole number"),
        ({"deadline_s": 0}, "deadline_s must be above 0"),
        ({"logprobs": -1}, "logprobs must be"),
        ({"logprobs": VOCAB + 1}, "logprobs must be at most"),
    ],
)
def test_wrong_wishes_are_named(options, message):
    engine = Engine(CHAIN, 20)
    with pytest.raises(ValueError, match=message):
        engine.submit([1], GREEDY, **options)
    with pytest.raises(TypeError, match="'loudness'"):
        engine.submit([1], GREEDY, loudness=1)
    assert engine.stats.submitted == 0
