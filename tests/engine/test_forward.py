"""The pass: of many sequences what each would get by itself, in one go or in parts."""

import numpy as np
import pytest

from firsttoken.engine import Engine
from firsttoken.engine.forward import PagedLlama
from firsttoken.models.llama import Llama
from firsttoken.paging import BlockPool, PagedCache
from firsttoken.sampling import SamplingParams
from models.test_lora import ARCH as SMALL
from models.test_lora import random_adapter, random_weights


@pytest.mark.parametrize("arch", [SMALL, SMALL.replace(window=3)])
def test_a_paged_pass_is_that_of_the_model(arch):
    """Prompts, guesses and single tokens in one pass, with windows and without."""
    model = Llama(arch, random_weights())
    rng = np.random.default_rng(0)
    pool = BlockPool(40, 3)
    cache = PagedCache(arch, pool)
    plain = [model.new_cache(1, 40) for _ in range(5)]
    paged = []
    for i in range(5):
        pool.allocate(i, [])
        paged.append(cache.sequence(i))
    for sizes in ([7, 7, 1, 12, 2], [1, 1, 1, 1, 4], [4, 1, 1, 4, 1]):
        news = [rng.integers(50, size=n).tolist() for n in sizes]
        for i, row in enumerate(news):
            for token in row:
                pool.append(i, token)
        ours = PagedLlama(model).forward_ragged(news, paged)
        theirs = model.forward_ragged(news, plain)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)
    assert [s.length for s in paged] == [s.length for s in plain]


@pytest.mark.parametrize("part", [1, 3, 64])
@pytest.mark.parametrize("adapted", [False, True])
def test_a_long_pass_in_parts_is_that_in_one_go(part, adapted, monkeypatch):
    """Parts end within texts and between them; each row keeps its place and its adapter."""
    seen, forward = [], PagedLlama.forward_ragged

    def noted(model, tokens, caches):
        seen.append(sum(map(len, tokens)))
        return forward(model, tokens, caches)

    monkeypatch.setattr(PagedLlama, "forward_ragged", noted)
    monkeypatch.setattr(PagedLlama, "part", part)
    adapters = {"loud": random_adapter(seed=1), "low": random_adapter(seed=2)} if adapted else {}
    names = [None, "loud", "low", None] if adapted else [None] * 4
    prompts = [[5, 6, 7, 8, 9, 1, 2], [3], [4] * 5, [6, 7]]

    def answers(asked):
        engine = Engine(Llama(SMALL, random_weights()), 40, 3, adapters=adapters)
        for prompt, name in asked:
            engine.submit(prompt, SamplingParams(0.0, max_tokens=1), logprobs=3, adapter=name)
        return [answer.logprobs[0] for _, answer in sorted(engine.run().items())]

    asked = list(zip(prompts, names, strict=True))
    together, n_tokens = answers(asked), sum(map(len, prompts))
    assert len(seen) == -(-n_tokens // part) and sum(seen) == n_tokens
    assert max(seen) == min(part, n_tokens)
    monkeypatch.setattr(PagedLlama, "part", n_tokens)
    for told, one in zip(together, asked, strict=True):
        (expected,) = answers([one])
        assert told.token == expected.token
        np.testing.assert_allclose(told.logprob, expected.logprob, atol=2e-5)
