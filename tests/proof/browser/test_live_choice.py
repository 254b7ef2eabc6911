"""Live views: tokens, chances and choices in the page are the library's."""

import base64
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel, Digits

from browser.playground import Stage
from firsttoken.generate import generate, speculative_generate
from firsttoken.models.evaluation import bits_per_byte
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams, draw, next_token_distribution, softmax
from speculative.test_speculative import DRAFT, TARGET, joint, joint_with_round

ENGINE = files("firsttoken").joinpath("live/engine")


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
# What cuts words, and characters of all kinds.
PARTS = [
    *"'sT  \n\t\r\x00\x1c\x85\xa0\u1680\u180e\u2003\u2028\u200b\u3000\ufeff\ufffd",
    *"59٣Ⅷ²½aéßſǅ中の한ע🙂-(\u0301\u0378\ue000\U000e0001\U0010ffff",
    *[
        "👩‍👧",
        "🇩🇪",
        "'s",
        "'ſ",
        "'T",
        "'ll",
        "def",
        "self.",
        "<|endoftext|>",
        "\r\n",
        "    ",
        " 12",
    ],
]


def test_texts_have_the_tokens_of_the_library(stage):
    page, tok, rng = stage.engine(), tokenizer(), np.random.default_rng(17)
    mixed = ["".join(PARTS[i] for i in rng.integers(len(PARTS), size=20)) for _ in range(999)]
    texts = [data_path("heldout.txt").read_text("utf-8"), "", "<|endoftext|>", *mixed]
    got = page.evaluate(TOKENIZE, texts)
    for text, ids in zip(texts, got, strict=True):
        assert ids == tok.encode(text), repr(text)
    decoded = page.evaluate("(all) => Promise.all(all.map((ids) => engine.decode(ids)))", got)
    assert ["".join(parts) for parts in decoded] == texts
    script = r"engine.tokenize('a\ud800b\udc00\ud83d\ude42\ud83d').then((found) => found.ids)"
    assert page.evaluate(script) == tok.encode("a\ufffdb\ufffd🙂\ufffd")


def test_letters_and_numbers_are_those_of_the_library():
    """All code points: a letter stays with an "a" before it, a number with a "1".

    Where digits stand alone, an "a" stays with all that is none.
    """
    cut = ByteLevel(add_prefix_space=False)
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]

    def with_neighbour(cut, before):
        pieces = cut.pre_tokenize_str("".join(before + character for character in every))
        apart = {start for _, (start, _) in pieces}
        return {ord(c) for i, c in enumerate(every) if 2 * i + 1 not in apart}

    numbers = with_neighbour(cut, "1")
    alone = {*map(ord, every)} - with_neighbour(Digits(individual_digits=True), "a")
    expected = {
        "LETTERS": with_neighbour(cut, "a"),
        "NUMBERS": numbers,
        "NEWER_NUMBERS": alone - numbers,
    }
    assert numbers < alone
    source = ENGINE.joinpath("letters.js").read_text("utf-8")
    for name, code_points in expected.items():
        steps = [int(s, 36) for s in re.search(rf'const {name} =\s+"(.*)"', source)[1].split()]
        ends = np.cumsum(steps)
        ranges = zip(ends[::2], ends[1::2], strict=True)
        assert {c for a, b in ranges for c in range(a, b + 1)} == code_points


# Random numbers


def test_random_numbers_are_numpys(stage):
    seeds = [0, 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**63, 2**64 - 1, 2**128 + 5, 2**200 + 7]
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
CHOOSE = """(cases) => cases.map(([logits, given, ids, seed]) => {
    const params = sampling.samplingParams(given);
    const chances = sampling.nextTokenDistribution(Float32Array.from(logits), params, ids);
    return [Array.from(chances), sampling.draw(chances, random.createRandom(seed))];
})"""


def check_settings(page):
    """Compare what is kept, with which probability, and what is drawn."""

    @settings(max_examples=25, phases=[Phase.generate])  # a batch is not worth making smaller
    @given(st.lists(anything | bound, min_size=50, max_size=100))
    def check(cases):
        asked = [(logits.tolist(), *rest) for logits, *rest in cases]
        for (logits, params, ids, seed), (chances, token) in zip(
            cases, page.evaluate(CHOOSE, asked), strict=True
        ):
            expected = next_token_distribution(logits, SamplingParams(**params), ids)
            kept = np.array(chances) > 0
            assert (kept == (expected > 0)).all(), f"{logits!r} {params} {ids}"
            np.testing.assert_allclose(chances, expected, rtol=2e-6, atol=1e-30)
            assert token == draw(expected, np.random.default_rng(seed))

    check()


def test_settings_keep_what_the_library_keeps(stage):
    check_settings(modules(stage))


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
        ("draw(residual(target[i], draft[i]), rng)", "draw(target[i], rng)"),
        ("Math.min(target[i][token], draft[i][token])", "draft[i][token]"),
    ],
)
def test_flaws_in_the_rule_show(stage, right, wrong):
    page = modules(stage, "speculative.js", right, wrong)
    assert np.abs(joint_of_a_round(page) - joint(TARGET, 3)).max() > 0.01


# Texts

# Logits come as their bytes: as numbers in JSON, those of 512 tokens take a second.
LOGITS = """async (asked) => {
    const { buffer, byteOffset, byteLength } = await window.engine.logits(asked);
    const all = new Uint8Array(buffer, byteOffset, byteLength);
    let text = "";
    for (let i = 0; i < all.length; i += 30000)
        text += String.fromCharCode(...all.subarray(i, i + 30000));
    return btoa(text);
}"""


@pytest.mark.parametrize("use_cache", [False, True], ids=["whole", "token by token"])
@pytest.mark.parametrize("name", ["target", "draft"])
def test_the_engine_s_logits_are_the_library_s(stage, name, use_cache):
    page, ids = stage.engine(draft=True), tokenizer().encode(LONG)[:512]
    found = page.evaluate(LOGITS, {"model": name, "ids": ids, "use_cache": use_cache})
    got = np.frombuffer(base64.b64decode(found), np.float32)
    np.testing.assert_allclose(got, load_model(name)([ids])[0].ravel(), atol=1e-4)


JOB = """async ([job, asked]) => {
    const told = [];
    const result = await engine[job](asked, (event) => told.push(event)).done;
    return [told, result];
}"""
MAIN = "if __name__ == '__main__':\n    main()\n"
LONG = data_path("heldout.txt").read_text("utf-8")[:3000]
WRITTEN = [
    ("def main():\n    ", {"temperature": 0, "repetition_penalty": 1.3}, 40),
    ("class A:", {"seed": 2**32, "temperature": 1.5, "top_k": 20, "min_p": 0.02}, 60),
    ("été 🙂 ", {"seed": 2**53 - 1, "repetition_penalty": 1.1, "top_p": 0.9}, 30),
    (MAIN, {"seed": 5, "temperature": 0.9}, 120),  # ends with the 49th token
    (LONG, {"seed": 3, "temperature": 0.8}, 50),  # the context is full before
]


def prompt_ids(text):
    return tokenizer().encode(text)[:500]


def test_texts_are_those_of_the_library(stage):
    page, reasons = stage.engine(), set()
    for text, params, max_tokens in WRITTEN:
        ids = prompt_ids(text)
        wanted = SamplingParams(**params, max_tokens=max_tokens)
        expected = generate(load_model("target"), ids, wanted)
        for use_cache in (True, False) if max_tokens <= 50 else (True,):
            asked = {"ids": ids, "params": params, "max_tokens": max_tokens}
            told, result = page.evaluate(JOB, ["write", {**asked, "use_cache": use_cache}])
            assert result["ids"] == expected.ids == [token["id"] for token in told], (text, params)
            assert result["finish_reason"] == expected.finish_reason
        reasons.add(result["finish_reason"])
    assert reasons == {"length", "eos", "context"}


def test_next_tokens_are_those_of_the_library(stage):
    """Texts that share a beginning, so that what was read before is used again."""
    page, tok, text = stage.engine(), tokenizer(), prompt_ids(LONG)
    params = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2}
    for ids in (text[:60], text[:61], text[:30], [*text[:30], 5, 6], [], text, text):
        logits = np.asarray(load_model("target")([ids or [tok.eos_id]]))[0, -1]
        p = softmax(logits.astype(np.float64))
        kept = next_token_distribution(logits, SamplingParams(**params), ids or [tok.eos_id])
        found = page.evaluate("(asked) => engine.next(asked)", {"ids": ids, "params": params})
        top = [t["id"] for t in found["top"]]
        assert top == np.argsort(-p, kind="stable")[:10].tolist()
        np.testing.assert_allclose([t["p"] for t in found["top"]], p[top], rtol=1e-4)
        np.testing.assert_allclose([t["kept"] for t in found["top"]], kept[top], rtol=1e-4)


TOGETHER = """async (asked) => {
    const jobs = [engine.write, engine.write, engine.speculate].map((job) => job(asked, () => {}));
    const losses = engine.losses({ text: asked.text });
    const results = await Promise.all(jobs.map((job) => job.done));
    return { ids: results.map((result) => result.ids), bits: (await losses).bits_per_byte };
}"""


def test_jobs_share_the_engine_and_nothing_else(stage):
    page, target = stage.engine(draft=True), load_model("target")
    ids, text, params = prompt_ids("def main():\n    "), LONG[:400], {"seed": 7, "temperature": 0.8}
    asked = {"ids": ids, "params": params, "max_tokens": 120, "text": text}
    found = page.evaluate(TOGETHER, asked)
    wanted = SamplingParams(**params, max_tokens=120)
    plain = generate(target, ids, wanted).ids
    drafted = speculative_generate(target, load_model("draft"), ids, wanted).ids
    assert found["ids"] == [plain, plain, drafted]
    assert found["bits"] == pytest.approx(bits_per_byte(target, tokenizer(), text), rel=1e-5)
