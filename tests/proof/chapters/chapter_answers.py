"""Answers that readers gave to the exercises: wrong ones that must fail, unusual ones that pass."""

import re
from typing import NamedTuple

# Above each answer: its chapter, its exercise, and how what the check says must begin.
TEXT = """
#: 00_start 1 failed That is one pass forward
gpt3_flops = 1.05e23

#: 01_generate 2 failed Two slips. A token sees itself, too. The MLP has three matrices
def pass_flops(arch, t):
    query, key = arch.n_heads * arch.head_dim, arch.n_kv_heads * arch.head_dim
    layer = 2 * arch.d_model * (query + key) + 2 * arch.d_model * arch.d_ff
    matrices = arch.n_layers * layer + arch.d_model * arch.vocab_size
    return 2 * matrices * t + 4 * query * arch.n_layers * (t * (t - 1) // 2)

#: 01_generate 3 failed Your test is right; the repair is not: the length is right
def loss_test(implementation):
    table = np.array([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.7, 0.1, 0.2]])
    by_hand = -np.log([0.8, 0.6, 0.7, 0.1]).mean()
    given = lambda rows: np.log(table)[np.array(rows)]
    assert np.isclose(implementation(given, [0, 1, 2, 0, 2]), by_hand)

def repaired_loss(model, tokens):
    p = softmax(model([tokens])[0].astype(float))
    return -np.log(p[np.arange(len(tokens) - 1), tokens[:-1]]).mean()

#: 01_generate 5 failed You take marks out once
def encode_chat(messages):
    encoded = []
    for role, text in messages:
        for mark in MARKS:
            text = text.replace(mark, "")
        encoded += [MARKS[f"<{role}>"], *tok.encode(text)]
    return encoded

#: 01_generate 5 failed What a message says is text, and stays as it is
def encode_chat(messages):
    whole = "".join(f"<{role}>" + text.replace("<", "< ") for role, text in messages)
    parts = re.split("(<system>|<user>)", whole)
    return [i for part in parts for i in ([MARKS[part]] if part in MARKS else tok.encode(part))]

#: 01_generate 5 passed
def encode_chat(messages):
    guarded = [(role, text.replace("<", "<\ufdd0")) for role, text in messages]
    whole = "".join(f"<{role}>{text}" for role, text in guarded)
    encoded = []
    for part in re.split("(<system>|<user>)", whole):
        text = part.replace("\ufdd0", "")
        encoded += [MARKS[part]] if part in MARKS else tok.encode(text)
    return encoded

#: 02_metrics 3 failed That mends the index -1 only.
def percentile_test(implementation):
    assert implementation([30, 10, 20], 50) == 20
    assert implementation([30, 10, 20], 99) == 30
    assert implementation([40, 10, 20, 30], 25) == 10

def repaired_rank(values, p):
    return sorted(values)[max(int(len(values) * p / 100) - 1, 0)]

#: 03_roofline 1 passed
mlp_us = '0.174 ms'

#: 04_kv_cache 1 failed And the KV heads?
cache_gb = 5.3687

#: 04_kv_cache 3 failed
def cache_test(implementation):
    for n in (3, 40):
        expected = model([ids[:n]])[0, -1]
        assert np.allclose(implementation(model, ids[:n]), expected, atol=1e-4)

def repaired_logits(model, tokens):
    model([tokens[:-2]], model.new_cache(capacity=len(tokens)))
    return model([tokens], model.new_cache(capacity=len(tokens)))[0, -1]

#: 05_throughput 3 failed Your test is right; the repair is not: it reads one cache per step.
def rate_test(implementation):
    return implementation(6.0, 2, 10.0, 2.0) == 3 * (10 + 2 + 2)

def repaired_rate(tokens_per_s, batch, weight_bytes, cache_bytes):
    return tokens_per_s / batch * (weight_bytes + cache_bytes)

#: 06_attention 3 failed
def window_test(implementation):
    def seen(query, window, sinks):
        return [k for k in range(12) if implementation(query, k, window, sinks)]

    assert seen(9, 3, 0) == [7, 8, 9]
    assert seen(9, 3, 2) == [0, 1, 7, 8, 9]
    assert seen(1, 3, 0) == seen(1, 3, 4) == [0, 1]

def may_see(query, key, window, sinks):
    return key <= query and (query - key < 3 or key < sinks)

#: 07_flash 1 failed Right for small log-sums
def merge_two(a, log_a, b, log_b):
    with np.errstate(all="ignore"):
        w = np.exp([log_a, log_b])
        return (w[0] * a + w[1] * b) / w.sum(), np.log(w.sum())

#: 08_recurrent 2 failed Only what is old shrinks
def retention_step(M, q, k, v, decay):
    new = decay * (M + np.outer(v, k))
    return new, new @ q

#: 09_quantization 3 failed
def scale_test(implementation):
    for peak in (1.0, 1.4, 1.8, 2.0):
        assert 3 < peak / implementation(np.array([peak, -0.1])) <= 6

#: 10_pruning 3 passed
import torch
from torch.nn.functional import kl_div

def by_torch(student, teacher):
    logs = (torch.tensor(x).log_softmax(-1) for x in (student, teacher))
    return kl_div(*logs, log_target=True, reduction="batchmean").item()

def loss_test(implementation):
    rng = np.random.default_rng(0)
    for shape in ((1, 5), (3, 5)):
        s, t = rng.normal(size=(2, *shape))
        assert np.isclose(implementation(s, t), by_torch(s, t))

def repaired_loss(student, teacher):
    return by_torch(student, teacher)

#: 11_sampling 3 failed These are 0 and 1
def nucleus_test(implementation):
    for probabilities, p, expected in (
        ([0.75, 0.25], 0.5, [True, False]),
        ([0.125, 0.5, 0.25, 0.125], 0.75, [False, True, True, False]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [True, True, False, False]),
        ([0.25, 0.75], 0.5, [False, True]),
    ):
        assert list(implementation(np.array(probabilities), p)) == expected

def repaired_nucleus(probabilities, p):
    by_rank = np.argsort(-probabilities, kind="stable")
    mass = np.cumsum(probabilities[by_rank])
    keep = np.zeros(len(probabilities), dtype=int)
    keep[by_rank[mass - probabilities[by_rank] < p]] = 1
    return keep

#: 11_sampling 4 failed
def is_time(text):
    return accepts(Regex("(1?[0-9]|2[0-3]):(00|30|59)"), text)

#: 12_speculative 3 failed Rescaled, a kept number is uniform again
def round_test(implementation):
    got = with_round(implementation, TOY_TARGET, TOY_DRAFT, 2)
    assert np.allclose(got, plainly(TOY_TARGET, -1, 3))

def repaired_round(target, draft, tokens, rng):
    u = rng.random()
    for i, token in enumerate(tokens):
        accept, residual = acceptance_rule(target[i], draft[i])
        if not u < accept[token]:
            return [*tokens[:i], int(sampling.draw(residual, rng))]
        u = u / accept[token]
    return [*tokens, int(sampling.draw(target[-1], rng))]

#: 13_drafts 3 failed
def second_try_test(implementation):
    wanted, drawn = implementation(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6]), 2)
    assert np.isclose(wanted.sum(), 1) and np.isclose(drawn.sum(), 1)

#: 14_batching 3 passed
def line_test(implementation):
    assert implementation([8, 2, 2], 0, 4, 6) == []
    assert implementation([2, 2, 8], 0, 4, 6) == [0, 1]
    assert implementation([4], 3, 8, 6) == []
    assert implementation([1, 1, 1], 2, 4, 99) == [0, 1]
    assert implementation([4, 4], 0, 4, 6) == [0]

def repaired_line(waiting, n_decoding, max_batch, budget):
    sums = np.cumsum([n_decoding, *waiting])[1:]
    return list(range(min(int((sums <= budget).sum()), max(0, max_batch - n_decoding))))

#: 15_paging 3 passed
def keys_test(implementation):
    def common(first, second, size=2):
        one, two = implementation(first, size), implementation(second, size)
        assert (len(one), len(two)) == (len(first) // size, len(second) // size)
        return [i for i, key in enumerate(two) if key in one]

    a, b, c, d, e, f = -1, -2, 3, 4, 5, 6
    assert common([a, b, c, d], [e, e, c, d]) == []
    assert common([a, b, c, d, e, f], [f, f, c, d, e, f]) == []
    assert common([a, b, c, d], [b, a, d, c]) == []
    assert common([a, b, c, d], [a, b, c, d, e]) == [0, 1]

def repaired_keys(tokens, size):
    return [','.join(map(str, tokens[:end])) for end in range(size, len(tokens) + 1, size)]

#: 16_parallel 3 passed
def mlp_test(implementation):
    rng = np.random.default_rng(3)
    sizes = [(3,), (3, 5), (5,), (5, 3), (3,)]
    given = [rng.normal(size=size) for size in sizes]
    x, up, up_bias, down, down_bias = given
    right = np.maximum(x @ up + up_bias, 0) @ down + down_bias
    assert np.allclose(implementation(*given, 2), right)

def repaired_mlp(x, up, up_bias, down, down_bias, n):
    parts = []
    for i in range(n):
        own = slice(i, None, n)
        h = np.maximum(x @ up[:, own] + up_bias[own], 0)
        parts.append(h @ down[own] + (down_bias if i == 0 else 0))
    return np.sum(parts, axis=0)

#: 17_engine 2 failed
def lives_test(implementation):
    pool = BlockPool(n_blocks=8, block_size=4)
    for i, n in enumerate((3, 2, 6, 1)):
        pool.allocate(i, [0] * n)
    lives = {0: (4, 2), 1: (1, None), 2: (3, None), 3: (5, None)}
    return implementation(pool, lives) == {0: 2, 1: 1, 2: 3, 3: 5} and pool.n_free == 8

def repaired_run(pool, lives):
    got = {i: min(n_new, leaves_after or n_new) for i, (n_new, leaves_after) in lives.items()}
    for i, (n_new, leaves_after) in lives.items():
        if leaves_after is None:
            pool.free(i)
    return got
"""


class Answer(NamedTuple):
    """`source` is run in place of the stub."""

    chapter: str
    exercise: str
    expected: str
    source: str


ANSWERS = [
    Answer(*found) for found in re.findall(r"^#: (\S+) (\d+) (.*)\n([^#]+)", TEXT, re.MULTILINE)
]
