"""Models without rounding, requests for them, and what becomes of each request alone."""

import numpy as np
from hypothesis import strategies as st

from firsttoken.architectures import Architecture
from firsttoken.generate import Proposal
from firsttoken.kv_cache import KVCache
from firsttoken.sampling import SamplingParams

VOCAB = 5


class Chain:
    """A model without rounding: a token's key stands for the whole text up to it.

    Each key is made from the one before it, as the cache holds that, and the logits from all keys:
    one wrong number in the cache, and the next token is likely to be another.
    """

    arch = Architecture("chain", 1, 1, 1, 1, 1, 1, VOCAB, max_context=40)
    eos_ids = (0,)
    modulus, tau = 101, 25  # of the logits
    tone = 0  # an adapter's: with another one every key of a text is another

    def new_cache(self, batch, capacity):
        return KVCache(self.arch, batch, capacity)

    def __call__(self, tokens, cache):
        rows = []
        for token in tokens[0]:
            before = cache.keys(0)[0, 0, -1, 0] if cache.length else 0
            number = (37 * before + token + 1 + 999 * self.tone) % 65_521
            key = np.full((1, 1, 1, 1), number, np.float32)
            cache.append(0, key, key)
            total = int(cache.keys(0).astype(int).sum() + 3 * cache.values(0).astype(int).sum())
            rows.append(total * np.arange(7, 7 + self.arch.vocab_size) % self.modulus)
        return np.array([rows], dtype=np.float32) / self.tau

    def forward_ragged(self, tokens, caches, models=None):
        assert tokens  # a step without work would go on for ever
        rows = zip(models or [self] * len(tokens), tokens, caches, strict=True)
        return [model([new], cache)[0] for model, new, cache in rows]


class Tuned(Chain):
    """The chain with an adapter merged; it stands for the adapter, too."""

    def __init__(self, tone):
        self.tone = tone


class AdaptedChain:
    """What `lora.AdaptedModel` is for a Llama."""

    def __init__(self, model, adapters):
        self.model, self.models = model, {None: CHAIN} | adapters

    def forward_ragged(self, tokens, caches, adapters):
        return self.model.forward_ragged(tokens, caches, [self.models[name] for name in adapters])


CHAIN = Chain()
GREEDY = SamplingParams(0.0, max_tokens=4)
TUNED = {"a": Tuned(1), "b": Tuned(2), "c": Tuned(3)}
ALONE = {None: CHAIN} | TUNED
names = st.sampled_from([None, *TUNED])
ends = st.lists(st.integers(1, 2), min_size=1, max_size=4)
prompts = st.tuples(st.integers(0, 8), ends).map(lambda p: [1, 1, 2, 1, 2, 2, 2, 1][: p[0]] + p[1])
wishes = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    top_k=st.sampled_from([0, 3]),
    max_tokens=st.integers(1, 12),
    seed=st.integers(0, 3),
)


class Near(Chain):
    """A draft that often says what the chain says."""

    def __call__(self, tokens, cache):
        logits = super().__call__(tokens, cache)
        logits[..., 1] += 0.4
        return logits


class AsRecorded:
    """Guesses as a model does, in each round as many tokens as some rounds tell."""

    def __init__(self, model, rounds):
        self.model, self.rounds, self.cache = model, list(rounds), None

    def propose(self, request, n):
        assert self.rounds, "more rounds are asked for than there were"
        n = self.rounds.pop(0).drafted
        if self.cache is None:
            self.cache = self.model.new_cache(1, request.max_length)
        self.cache.truncate(min(self.cache.length, len(request.ids) - 1))
        drafted, rows = [], []
        for _ in range(n):
            unread = [*request.ids, *drafted][self.cache.length :]
            logits = self.model([unread], self.cache)[0, -1]
            if request.params.temperature == 0:
                drafted.append(request.choose(logits, drafted))
            else:
                rows.append(request.distributions(logits[None], drafted)[0])
                drafted.append(int(request.rng.choice(VOCAB, p=rows[-1])))
        return Proposal(drafted, np.stack(rows) if rows else None)


def idle(engine):
    return not engine.unfinished and engine.pool.n_free == engine.pool.n_blocks
