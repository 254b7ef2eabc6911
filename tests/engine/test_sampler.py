"""Log-probabilities: those of a pass over the text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chain import CHAIN, VOCAB, Near, prompts, wishes
from firsttoken.engine import Engine
from firsttoken.engine.sampler import token_logprobs


@given(prompts, wishes, st.integers(0, VOCAB), st.sampled_from([None, Near()]))
def test_logprobs_are_those_of_a_pass_over_the_text(prompt, params, n, draft):
    engine, in_time = Engine(CHAIN, 20, 3, draft=draft), []
    i = engine.submit(
        *(prompt, params, lambda token: in_time.append(engine.logprobs(i)[-1])),
        ignore_eos=True,
        logprobs=n,
    )
    answer = engine.run()[i]
    assert tuple(in_time) == answer.logprobs
    with pytest.raises(KeyError, match="has ended"):
        engine.logprobs(i)
    logits = CHAIN([[*prompt, *answer.ids]], CHAIN.new_cache(1, 40))[0].astype(np.float64)
    p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    assert [told.token for told in answer.logprobs] == answer.ids
    for row, told in zip(p[len(prompt) - 1 :], answer.logprobs, strict=False):
        assert told.logprob == pytest.approx(row[told.token], abs=1e-5)
        assert [logprob for _, logprob in told.top] == pytest.approx(
            np.sort(row)[::-1][:n].tolist(), abs=1e-5
        )


def test_of_equals_the_lower_ids_are_told():
    said = token_logprobs(np.repeat([0.0, 1.0], 50), token=3, n=4)
    assert [token for token, _ in said.top] == [50, 51, 52, 53]
