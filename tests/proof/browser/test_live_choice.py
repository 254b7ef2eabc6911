"""Live views: tokens, chances and choices in the page are the library's."""

import functools
import re
import unicodedata
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Error
from tokenizers.pre_tokenizers import ByteLevel

from browser.playground import Stage
from firsttoken.evaluation import bits_per_byte, token_losses
from firsttoken.generate import generate, speculative_generate
from firsttoken.inspection import look_inside
from firsttoken.live import assets
from firsttoken.llama import load_model
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams, draw, next_token_distribution, softmax
from firsttoken.tokenizer import TextStream, tokenizer
from test_speculative import DRAFT, TARGET, joint, joint_with_round

ENGINE = files("firsttoken").joinpath("live/engine")
target = functools.cache(functools.partial(load_model, "target"))
draft = functools.cache(functools.partial(load_model, "draft"))


def modules(stage: Stage, module: str = "", right: str = "", wrong: str = ""):
    """Open a page that has the modules which choose, perhaps with a flaw in one of them."""
    folder = stage.folder / "modules" / str(abs(hash((module, wrong))))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("checks.js", "random.js", "sampling.js", "speculative.js"):
        source = ENGINE.joinpath(name).read_text("utf-8")
        if name == module:
            assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times"
            source = source.replace(right, wrong)
        (folder / name).write_text(source, "utf-8")
    page = stage.open()
    page.evaluate(
        """async (folder) => {
            for (const name of ["random", "sampling", "speculative"]) {
                window[name] = await import(`${folder}/${name}.js`);
            }
        }""",
        f"/modules/{folder.name}",
    )
    return page


# Tokens

TOKENIZE = "(texts) => Promise.all(texts.map(async (t) => (await engine.tokenize(t)).ids))"


def strings(n):
    """Return n strings of characters of all kinds: those that cut words, and any others."""
    rng = np.random.default_rng(17)
    special = [
        *"'stremdvl'  \n\t\r\x00\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2003\u2028\u200b",
        *"\u202f\u205f\u2060\u3000\ufeff\ufffd\ufffe0159٣৪Ⅷ²½aZéßſKıİǅ中の한ע",
        *"ع🙂👩‍👩‍👧🇩🇪\u0301\u0308\u20dd\u0378\ue000\U000e0001\U0010ffff\U00020000_-.!?(\"'",
        *["\r\n", "'s", "'ſ", "'T", "'ll", "<|endoftext|>", "def ", "    ", "self.", " 12", "x²"],
    ]
    planes = [(0x20, 0x250), (0x250, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000)]
    planes += [(0x20000, 0x40000), (0xE0000, 0xF0000), (0x100000, 0x110000)]

    def character():
        if rng.random() < 0.6:
            return special[rng.integers(len(special))]
        return chr(rng.integers(*planes[rng.integers(len(planes))]))

    return ["".join(character() for _ in range(rng.integers(1, 40))) for _ in range(n)]


def test_texts_have_the_tokens_of_the_library(stage):
    page, tok = stage.engine(), tokenizer()
    texts = [data_path("heldout.txt").read_text("utf-8"), "", "<|endoftext|>", *strings(1000)]
    got = page.evaluate(TOKENIZE, texts)
    for text, ids in zip(texts, got, strict=True):
        assert ids == tok.encode(text), repr(text)
    decoded = page.evaluate("(all) => Promise.all(all.map((ids) => engine.decode(ids)))", got)
    assert ["".join(parts) for parts in decoded] == texts


def test_unpaired_surrogates_become_replacement_characters(stage):
    page = stage.engine()
    script = r"engine.tokenize('a\ud800b\udc00\ud83d\ude42\ud83d').then((found) => found.ids)"
    assert page.evaluate(script) == tokenizer().encode("a\ufffdb\ufffd🙂\ufffd")


def ranges(name):
    """Return the code points of a table in letters.js."""
    source = ENGINE.joinpath("letters.js").read_text("utf-8")
    steps = [int(step, 36) for step in re.search(rf'{name} =\s+"(.*)"', source)[1].split()]
    ends = np.cumsum(steps)
    return {c for a, b in zip(ends[::2], ends[1::2], strict=True) for c in range(a, b + 1)}


def test_letters_and_numbers_are_those_of_the_library():
    """All code points: a letter stays with an "a" before it, a number with a "1"."""
    cut = ByteLevel(add_prefix_space=False)
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for name, before in (("LETTERS", "a"), ("NUMBERS", "1")):
        pieces = cut.pre_tokenize_str("".join(before + character for character in every))
        apart = {start for _, (start, _) in pieces}
        assert ranges(name) == {ord(c) for i, c in enumerate(every) if 2 * i + 1 not in apart}
    # The table is needed: another Unicode has other letters.
    assert ranges("LETTERS") != {ord(c) for c in every if unicodedata.category(c)[0] == "L"}


def test_pieces_show_bytes_and_texts_become_certain_with_their_last_byte(stage):
    """At a temperature of 50 tokens are nearly random: many bytes that form no character."""
    page, tok = stage.engine(), tokenizer()
    told = page.evaluate(
        """async (asked) => {
            const told = [];
            const { text, ids } = await engine.write(asked, (token) => told.push(token)).done;
            return { told, text, ids };
        }""",
        {"ids": [0], "params": {"temperature": 50, "seed": 5}, "max_tokens": 400},
    )
    stream = TextStream(tok)
    assert [token["text"] for token in told["told"]] == [stream.push(i) for i in told["ids"]]
    assert told["text"] == tok.decode(told["ids"])
    assert any(not token["text"] for token in told["told"])
    for token in told["told"]:
        content = tok.token_bytes(token["id"])
        try:
            assert token["piece"] == (content.decode() or "<|endoftext|>")
        except UnicodeDecodeError:
            shown = [chr(b) if b < 0x80 else f"\\x{b:02x}" for b in content]
            assert token["piece"] == "".join(shown)
    assert any("\\x" in token["piece"] for token in told["told"])


# Random numbers


def test_random_numbers_are_numpys(stage):
    seeds = [0, 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**63, 2**64 - 1, 2**128 + 5, 2**200 + 7]
    rng = np.random.default_rng(2)
    seeds += [int(rng.integers(2**63)) >> int(rng.integers(63)) for _ in range(990)]
    page = modules(stage)
    got = page.evaluate(
        """(seeds) => seeds.map((seed) => {
            const { random } = window.random.createRandom(BigInt(seed));
            return Array.from({ length: 40 }, random);
        })""",
        [str(seed) for seed in seeds],
    )
    assert got == [np.random.default_rng(seed).random(40).tolist() for seed in seeds]
    fresh = "window.random.createRandom(null).random()"
    assert page.evaluate(fresh) != page.evaluate(fresh)


# Settings

# Few different values, so that ties are frequent.
logit = st.sampled_from([0.0, 1.0, -1.0, 2.5]) | st.floats(-30, 30, width=32)
row = st.lists(logit, min_size=1, max_size=12).map(np.float32)
fraction = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.625, 0.75, 0.9, 1.0]) | st.floats(0, 1)
chosen = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 0.5, 1, 2, 1e-45, 1e-320, 1e300]) | st.floats(0, 3),
        "top_k": st.integers(0, 14),
        "top_p": fraction,
        "min_p": fraction,
        "repetition_penalty": st.sampled_from([1, 0.5, 2]) | st.floats(0.1, 3),
    },
)
seed = st.integers(0, 2**32)
anything = row.flatmap(
    lambda logits: st.tuples(
        st.just(logits), chosen, st.lists(st.integers(0, len(logits) - 1), max_size=5), seed
    )
)
# Tenths: their sums meet top_p, and their ratios min_p, but for rounding.
tenths = st.sampled_from([[1, 2, 3, 4], [2] * 5, [1] * 10, [5, 3, 1, 1], [7, 1, 2], [6, 2, 2]])
bound = st.tuples(
    tenths.flatmap(st.permutations).map(lambda parts: np.log(np.float32(parts))),
    st.sampled_from([{name: n / 10} for name in ("top_p", "min_p") for n in range(1, 10)]),
    st.just([]),
    seed,
)
case = anything | bound
CHOOSE = """(cases) => cases.map(([logits, given, ids, seed]) => {
    const params = sampling.samplingParams(given);
    const chances = sampling.nextTokenDistribution(Float32Array.from(logits), params, ids);
    return [Array.from(chances), sampling.draw(chances, random.createRandom(seed))];
})"""


def compare(page, cases):
    """Compare what is kept, with which probability, and what is drawn."""
    asked = [(logits.tolist(), *rest) for logits, *rest in cases]
    for (logits, params, ids, seed), (chances, token) in zip(
        cases, page.evaluate(CHOOSE, asked), strict=True
    ):
        expected = next_token_distribution(logits, SamplingParams(**params), ids)
        kept = np.array(chances) > 0
        assert (kept == (expected > 0)).all(), f"{logits!r} {params} {ids}"
        np.testing.assert_allclose(chances, expected, rtol=2e-6, atol=1e-30)
        assert token == draw(expected, np.random.default_rng(seed))


def check_settings(page):
    @settings(max_examples=25, phases=[Phase.generate])  # a batch is not worth making smaller
    @given(st.lists(case, min_size=50, max_size=100))
    def check(cases):
        compare(page, cases)

    check()


def test_settings_keep_what_the_library_keeps(stage):
    check_settings(modules(stage))


def test_settings_on_the_models_own_logits(stage):
    rng = np.random.default_rng(4)
    ids = tokenizer().encode(data_path("heldout.txt").read_text("utf-8")[:1500])[:200]
    rows = np.asarray(target()([ids]))[0]
    cases = [
        (row, {"temperature": t, "top_k": k, "top_p": p, "min_p": m, "repetition_penalty": r},
         [int(i) for i in ids[:at]], int(rng.integers(2**40)))
        for at, row in list(enumerate(rows))[::25]
        for t, k, p, m, r in [
            (0, 0, 1, 0, 1), (1, 0, 1, 0, 1), (0.7, 0, 0.9, 0, 1), (1.3, 40, 1, 0, 1.2),
            (0.9, 0, 1, 0.05, 1), (1, 50, 0.95, 0.01, 1.1), (2, 0, 0.5, 0, 0.8),
        ]
    ]  # fmt: skip
    compare(modules(stage), cases)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("mass < p - ROUNDING_SLACK", "mass < p"),
        ("Math.log(minP) - ROUNDING_SLACK", "Math.log(minP)"),
        ("numbers[ids[middle]] < numbers[id]", "numbers[ids[middle]] <= numbers[id]"),
        ("(1 - p) / (2 * logits.length)", "2 * (1 - p) / logits.length"),
        ("logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty", "logits[id] / penalty"),
        ("of new Set(ids)", "of new Set(ids.slice(1))"),
        ("if (params.min_p > 0) left = keepMinP(left, params.min_p);", ""),
        ("mass > threshold", "mass >= threshold"),
        ("=> (x - top) / temperature", "=> x / temperature"),
    ],
)
def test_flaws_in_the_settings_show(stage, right, wrong):
    page = modules(stage, "sampling.js", right, wrong)
    if "threshold" in right:  # a random number of exactly 0, once in 2^53 draws
        first = "sampling.draw([0, 1], { random: () => 0 })"
        assert page.evaluate(first) == 0 and modules(stage).evaluate(first) == 1
        return
    with pytest.raises((AssertionError, Error)):  # Error: the flaw has left nothing to draw from
        check_settings(page)


# The rule

VERIFY = """(cases) => cases.map(([target, draft, tokens, numbers]) => {
    const left = [...numbers, ...Array(9).fill(0.5)];
    return speculative.verify(target, draft, tokens, { random: () => left.shift() });
})"""


def joint_of_a_round(page):
    """Return the distribution of three tokens that come out of the page's rule, gamma 2."""
    asked = []

    def ask(target, draft, tokens, numbers):
        numbers = numbers.random(len(tokens) + 1).tolist()
        asked.append([target.tolist(), draft.tolist(), list(tokens), numbers])
        return [0]

    joint_with_round(ask, TARGET, DRAFT, 2)
    answers = iter(page.evaluate(VERIFY, asked))
    return joint_with_round(lambda *_: next(answers), TARGET, DRAFT, 2)


def test_the_rule_keeps_the_targets_distribution(stage):
    """Exactly, by every number that could be drawn: the check of firsttoken.speculative.verify."""
    expected = joint(TARGET, 3)
    np.testing.assert_allclose(joint_of_a_round(modules(stage)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("/ draft[i][token];", "/ target[i][token];"),
        ("draw(residual(target[i], draft[i]), rng)", "draw(target[i], rng)"),
        ("draw(residual(target[i], draft[i]), rng)", "draw(target[i + 1], rng)"),
        ("Math.min(target[i][token], draft[i][token])", "draft[i][token]"),
        ("draw(target[tokens.length], rng)", "draw(target[0], rng)"),
    ],
)
def test_flaws_in_the_rule_show(stage, right, wrong):
    page = modules(stage, "speculative.js", right, wrong)
    assert np.abs(joint_of_a_round(page) - joint(TARGET, 3)).max() > 0.01


def test_a_token_of_probability_zero_is_never_accepted(stage):
    page = modules(stage)
    asked = [[[1, 0], [1, 0]], [[0.5, 0.5]], [1], [0]]
    assert page.evaluate(VERIFY, [asked]) == [[0]]


# Texts

JOB = """async ([job, asked]) => {
    const told = [];
    const result = await engine[job](asked, (event) => told.push(event)).done;
    return [told, result];
}"""
MAIN = "if __name__ == '__main__':\n    main()\n"
LONG = data_path("heldout.txt").read_text("utf-8")[:3000]
WRITTEN = [
    ("def main():\n    ", {"temperature": 0}, 40),
    ("def main():\n    ", {"temperature": 0, "repetition_penalty": 1.3}, 60),
    ("import os", {"seed": 1}, 100),
    ("import os", {"seed": 2, "temperature": 0.7, "top_p": 0.9}, 60),
    ("class A:", {"seed": 2**32, "temperature": 1.5, "top_k": 20, "min_p": 0.02}, 60),
    ("été 🙂 ", {"seed": 2**53 - 1, "repetition_penalty": 1.1, "top_k": 5}, 30),
    (MAIN, {"seed": 0, "temperature": 0.9}, 120),  # ends with the first token
    (MAIN, {"seed": 5, "temperature": 0.9}, 120),  # and with the 49th
    (LONG, {"seed": 3, "temperature": 0.8}, 50),  # the context is full before
]


def prompt_ids(text):
    return tokenizer().encode(text)[:500]


def test_texts_are_those_of_the_library(stage):
    page = stage.engine()
    reasons = set()
    for text, params, max_tokens in WRITTEN:
        ids = prompt_ids(text)
        expected = generate(target(), ids, SamplingParams(**params, max_tokens=max_tokens))
        for use_cache in (True, False) if max_tokens <= 50 else (True,):
            asked = {"ids": ids, "params": params, "max_tokens": max_tokens}
            told, result = page.evaluate(JOB, ["write", {**asked, "use_cache": use_cache}])
            assert result["ids"] == expected.ids == [token["id"] for token in told], (text, params)
            assert result["finish_reason"] == expected.finish_reason
            n_read = np.arange(len(ids), len(ids) + len(told))
            assert [token["ids_length"] for token in told] == (n_read + 1).tolist()
            assert [token["n_cached"] for token in told] == (n_read * use_cache).tolist()
            at = [token["at_ms"] for token in told]
            assert at == sorted(at) and at[-1] <= 1000 * result["seconds"]
        reasons.add(result["finish_reason"])
    assert reasons == {"length", "eos", "context"}


def test_filled_bytes_of_the_cache(stage):
    ids = prompt_ids("def main():")
    told, _ = stage.engine().evaluate(JOB, ["write", {"ids": ids, "params": {}, "max_tokens": 9}])
    cache = target().new_cache(1, len(ids) + 9)
    target()([ids], cache)
    assert told[0]["cache_bytes"] == 4 * cache.length * 2 * 8 * 2 * 32
    assert told[0]["cache_capacity_bytes"] == cache.nbytes


@pytest.mark.parametrize("gamma", [0, 1, 4, 8])
def test_speculative_texts_and_rounds_are_those_of_the_library(stage, gamma):
    page = stage.engine(draft=True)
    for text, params, max_tokens in WRITTEN:
        ids = prompt_ids(text)
        wanted = SamplingParams(**params, max_tokens=max_tokens)
        expected = speculative_generate(target(), draft(), ids, wanted, gamma)
        asked = {"ids": ids, "params": params, "max_tokens": max_tokens, "gamma": gamma}
        told, result = page.evaluate(JOB, ["speculate", asked])
        assert result["ids"] == expected.ids, (text, params)
        assert result["finish_reason"] == expected.finish_reason
        assert result["rounds"] == [round_._asdict() for round_ in expected.rounds]
        assert [token["id"] for r in told for token in r["tokens"]] == expected.ids
        for r in told:
            assert len(r["rejected"]) == r["drafted"] - r["accepted"]
            kinds = [token["kind"] for token in r["tokens"]]
            last = "bonus" if r["accepted"] == r["drafted"] else "replaced"
            # The text may have ended before the round did.
            assert kinds == (["kept"] * r["accepted"] + [last])[: len(kinds)]


def test_next_tokens_are_those_of_the_library(stage):
    """Texts that share a beginning, so that what was read before is used again."""
    page, tok = stage.engine(), tokenizer()
    text = prompt_ids(LONG)
    params = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2}
    for ids in (text[:60], text[:61], text[:30], [*text[:30], 5, 6], [], text[:1], text, text):
        logits = np.asarray(target()([ids or [tok.eos_id]]))[0, -1]
        p = softmax(logits.astype(np.float64))
        kept = next_token_distribution(logits, SamplingParams(**params), ids or [tok.eos_id])
        found = page.evaluate("(asked) => engine.next(asked)", {"ids": ids, "params": params})
        assert [t["id"] for t in found["top"]] == np.argsort(-p, kind="stable")[:10].tolist()
        top = [t["id"] for t in found["top"]]
        np.testing.assert_allclose([t["p"] for t in found["top"]], p[top], rtol=1e-4)
        np.testing.assert_allclose([t["kept"] for t in found["top"]], kept[top], rtol=1e-4)
        assert found["n_kept"] == (kept > 0).sum()
        kept = kept[kept > 0].astype(np.float64)
        assert found["entropy_bits"] == pytest.approx(-(p @ np.log2(p)), rel=1e-4)
        assert found["kept_entropy_bits"] == pytest.approx(-(kept @ np.log2(kept)), rel=1e-4)


def test_a_look_inside_is_the_librarys(stage):
    ids, silenced = prompt_ids("def greet(name):\n    return name"), [[2, 1], [5, 3]]
    whole, cut = look_inside(target(), ids), look_inside(target(), ids, silenced)
    found = stage.engine().evaluate(
        """async (asked) => {
            const found = await engine.inside(asked);
            return { ...found, attention: Array.from(found.attention) };
        }""",
        {"ids": ids, "silenced": silenced},
    )
    np.testing.assert_allclose(found["attention"], cut.attention.ravel(), atol=1e-5)
    for layer, p in zip(found["layers"], cut.layers, strict=True):
        assert layer["id"] == p.argmax() and layer["p"] == pytest.approx(p.max(), rel=1e-3)
    shown = [token["id"] for token in found["next"]]
    likeliest = {*np.argsort(-whole.next)[:5].tolist(), *np.argsort(-cut.next)[:5].tolist()}
    assert set(shown) == likeliest
    np.testing.assert_allclose([t["before"] for t in found["next"]], whole.next[shown], rtol=1e-3)
    np.testing.assert_allclose([t["after"] for t in found["next"]], cut.next[shown], rtol=1e-3)
    assert whole.next[shown].tolist() == sorted(whole.next[shown], reverse=True)


@pytest.mark.parametrize(
    "text",
    ["x", "naïve\t🙂 " * 9, LONG[:1500], LONG * 2],
    ids=["one token", "many bytes", "two windows", "many windows"],
)
def test_losses_are_those_of_the_library(stage, text):
    found = stage.engine().evaluate(
        """async (text) => {
            const told = [];
            const found = await engine.losses({ text }, (...progress) => told.push(progress));
            return { ...found, bits: Array.from(found.bits), told };
        }""",
        text,
    )
    tok = tokenizer()
    ids = tok.encode(text)
    losses = token_losses(target(), [tok.eos_id, *ids]) / np.log(2)
    np.testing.assert_allclose(found["bits"], losses, atol=1e-4)
    assert found["ids"] == ids and found["n_bytes"] == len(text.encode())
    assert found["bits_per_byte"] == pytest.approx(bits_per_byte(target(), tok, text), rel=1e-5)
    assert found["told"][-1] == [len(ids), len(ids)]


# Several at once

TOGETHER = """async (asked) => {
    const order = [];
    const follow = (name, job) => job(asked, () => order.push(name));
    const jobs = [
        follow("first", engine.write), follow("second", engine.write),
        follow("third", engine.speculate),
    ];
    const losses = engine.losses({ text: asked.text });
    const next = engine.next({ ids: asked.ids, params: {} }).then(() => order.push("next"));
    const results = await Promise.all(jobs.map((job) => job.done));
    return { order, ids: results.map((result) => result.ids), bits: (await losses).bits_per_byte };
}"""


def test_jobs_share_the_engine_and_nothing_else(stage):
    page = stage.engine(draft=True)
    ids, text = prompt_ids("def main():\n    "), LONG[:400]
    params = {"seed": 7, "temperature": 0.8}
    asked = {"ids": ids, "params": params, "max_tokens": 120, "text": text}
    found = page.evaluate(TOGETHER, asked)
    wanted = SamplingParams(**params, max_tokens=120)
    plain = generate(target(), ids, wanted).ids
    assert found["ids"] == [plain, plain, speculative_generate(target(), draft(), ids, wanted).ids]
    assert found["bits"] == pytest.approx(bits_per_byte(target(), tokenizer(), text), rel=1e-5)
    # They take turns, and a question does not wait for the end of a job.
    order = found["order"]
    lead = np.cumsum([{"first": 1, "second": -1}.get(name, 0) for name in order])
    assert np.abs(lead).max() <= 2
    assert order.index("next") < 20


def test_stop_ends_a_job_at_the_next_token(stage):
    page = stage.engine(draft=True)
    for name in ("write", "speculate"):
        told, result = page.evaluate(
            """async ([name, asked]) => {
                const told = [];
                const job = engine[name](asked, (event) => {
                    told.push(event);
                    if (told.length === 3) job.stop();
                });
                return [told, await job.done];
            }""",
            [name, {"ids": [0], "params": {"seed": 3}, "max_tokens": 400}],
        )
        assert result["finish_reason"] == "stopped" and 3 <= len(told) < 100
        tokens = told if name == "write" else [token for r in told for token in r["tokens"]]
        assert result["ids"] == [token["id"] for token in tokens]
    script = """(text) => {
        const job = engine.losses({ text }, () => job.stop());
        return job.catch((error) => error.message);
    }"""
    assert page.evaluate(script, LONG * 9) == "stopped"


# Errors

WRONG = {
    "write": [
        ({"ids": []}, "ids must hold at least one id, got none"),
        ({"ids": [1, 1024]}, "token ids must lie in 0 … 1023, got 1024"),
        ({"ids": [0.5]}, "token ids must lie in 0 … 1023, got 0.5"),
        ({"ids": [1] * 513}, "ids hold 513 tokens, expected at most the context of 512"),
        ({"ids": [1] * 512}, "ids hold 512 tokens, expected fewer than the context of 512"),
        ({"ids": [1], "max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0"),
        ({"ids": [1], "params": {"heat": 1}}, "params must be among temperature, top_k, .*, got h"),
    ],
    "speculate": [
        ({"ids": [1], "gamma": -1}, "gamma must be an integer of at least 0, got -1"),
        ({"ids": [1] * 512}, "expected fewer than the context of 512"),
    ],
    "losses": [({"text": ""}, "text must hold at least one token, got none")],
    "next": [({"ids": [1] * 513}, "expected at most the context of 512")],
    "inside": [
        ({"ids": []}, "ids must hold at least one id"),
        ({"ids": [1], "silenced": [[8, 0]]}, "layer must lie in 0 … 7, got 8"),
        ({"ids": [1], "silenced": [[7, 6]]}, "head must lie in 0 … 5, got 6"),
    ],
    "logits": [({"model": "teacher", "ids": [1]}, "model must be target or draft")],
    "need": [("teacher", "model must be target or draft, got teacher")],
}
ASK = """async ([name, asked]) => {
    try {
        const answer = engine[name](asked);
        return ["none", await (answer.done ?? answer)];
    } catch (error) {
        return error.message;
    }
}"""


def test_errors_name_what_came_and_what_was_expected(stage):
    page = stage.engine(draft=True)
    for name, cases in WRONG.items():
        for asked, message in cases:
            got = page.evaluate(ASK, [name, asked])
            assert re.search(message, got), (name, asked, got)
    without = stage.engine()
    assert "draft is not loaded" in without.evaluate(ASK, ["speculate", {"ids": [1]}])
    assert "draft is not loaded" in without.evaluate(ASK, ["arch", "draft"])


@pytest.mark.parametrize(
    "params",
    [
        *[{"temperature": -1}, {"temperature": float("inf")}, {"top_p": 1.5}, {"top_p": -0.25}],
        *[{"min_p": 2}, {"repetition_penalty": 0}, {"repetition_penalty": -2}],
        *[{"top_k": -1}, {"top_k": 1.5}, {"seed": -1}, {"seed": 0.5}],
    ],
)
def test_wrong_settings_are_named_as_in_the_library(stage, params):
    with pytest.raises(ValueError) as error:
        SamplingParams(**params)
    script = (
        "(params) => { try { sampling.samplingParams(params) } catch (e) { return e.message } }"
    )
    got = modules(stage).evaluate(script, params)
    assert got.replace("Infinity", "inf") == str(error.value)


# Loading

OPEN = """async ({ page }) => {
    const live = await import(new URL(`live.js?${page}`, window.assets));
    const root = document.createElement("div");
    root.dataset.assets = window.assets;
    const told = [];
    try {
        const engine = await live.openEngine(live.siteHost(root), (...p) => told.push(p));
        return { told, ids: (await engine.tokenize("def")).ids };
    } catch (error) {
        return { error: error.message };
    }
}"""


def test_widgets_share_one_worker_and_files_are_fetched_once(stage):
    page = stage.engine()
    fetched = []
    page.on("request", lambda request: fetched.append(request.url))
    one, other = (page.evaluate(OPEN, {"page": n}) for n in (1, 2))
    assert one["ids"] == other["ids"] == tokenizer().encode("def")
    assert len(page.workers) == 1
    assert [url for url in fetched if "live.js" not in url] == []


def test_progress_counts_bytes_and_a_failed_load_can_be_tried_again(stage):
    page = stage.empty_page()
    page.route("**/target/model.safetensors.gz", lambda route: route.abort())
    failed = page.evaluate(OPEN, {"page": 1})
    assert "could not be fetched" in failed["error"]
    page.unroute("**/target/model.safetensors.gz")
    stage.troubles.clear()  # the browser's own line about the request that was cut off
    opened = page.evaluate(OPEN, {"page": 1})
    loaded = [n for n, _ in opened["told"]]
    names = ("tokenizer.json", "target/config.json", "target/model.safetensors")
    total = sum(assets.manifest()[name]["packed_bytes"] for name in names)
    assert loaded == sorted(loaded) and loaded[-1] == total
    assert {n for _, n in opened["told"]} == {total}
    assert opened["ids"] == tokenizer().encode("def")


def test_a_page_that_allows_no_worker_says_so(stage):
    page = stage.empty_page()
    page.evaluate(
        """() => {
            const meta = document.createElement("meta");
            meta.httpEquiv = "Content-Security-Policy";
            meta.content = "worker-src 'none'";
            document.head.append(meta);
        }"""
    )
    for _ in range(2):
        assert "cannot run the model" in page.evaluate(OPEN, {"page": 1})["error"]
    stage.troubles.clear()  # the browser's own line about the worker
