"""Live views: texts have the tokens that the library reads out of the same GGUF file."""

import re

import pytest
from playwright.sync_api import Error

from browser.modules import engine_modules
from browser.texts import texts
from firsttoken.live.kernel import start_id
from firsttoken.models.gguf import read_gguf
from firsttoken.models.tokenizer import tokenizer
from models.test_tokenizer import END, trained, write_gguf  # noqa: F401

CUTS = ["gpt-2", "smollm", "refact", "qwen2", "llama-bpe"]
# One of them has a piece within it that is never cut.
MARKS = ["<|im_end|>", "<|<think>|>"]


@pytest.fixture(scope="module")
def words(trained):  # noqa: F811
    """A vocabulary that lacks a byte, but for two of it, and has pairs that matter.

    A pair that comes about by the last of them is learned before it; and what ends a contraction,
    the second byte of a long s, would join with what follows.
    """
    vocabulary, merges = trained
    names = ["ĄĄ" if name == "Ą" else name for name in vocabulary] + ["¿D", "zqz", "zq"]
    pairs = [("¿", "D"), ("zq", "z"), ("z", "q")]
    return {name: i for i, name in enumerate(names)}, [*pairs, *merges]


@pytest.mark.parametrize("cut", CUTS)
def test_texts_have_the_tokens_of_the_library(stage, words, tmp_path, cut):
    file = write_gguf(tmp_path / "words.gguf", words, cut, MARKS)
    tok, page = tokenizer(file), engine_modules(stage, "tokenizer")
    about = page.evaluate(
        """(metadata) => {
            window.words = tokenizerOfGguf(metadata);
            const { special, start_id, end_ids, names } = words;
            return { special: [...special], start_id, end_ids, names };
        }""",
        read_gguf(file).metadata,
    )
    assert {name: i for i, name in about.pop("special")} == tok.special_tokens
    names = {"bos_token": None} | tok.special_names
    assert about == {"start_id": start_id(tok), "end_ids": [tok.eos_id], "names": names}
    given = texts(*MARKS, "zqzq", "'ſD")
    got = page.evaluate("(texts) => texts.map(words.encode)", given)
    for text, ids in zip(given, got, strict=True):
        assert ids == tok.encode(text), repr(text)
    assert page.evaluate("(all) => all.map(words.decode)", got) == [tok.decode(ids) for ids in got]
    script = r"words.encode('a\ud800b\udc00\ud83d\ude42\ud83d')"
    assert page.evaluate(script) == tok.encode("a\ufffdb\ufffd🙂\ufffd")
    every = list(range(tok.vocab_size))
    marks = {i: name for name, i in tok.special_tokens.items()}
    pieces = [marks.get(i, tok.token_bytes(i).decode("utf-8", "backslashreplace")) for i in every]
    assert page.evaluate("(ids) => ids.map((id) => words.named(id).piece)", every) == pieces


def changed(metadata, **changes):
    names = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return {name: value for name, value in (metadata | names).items() if value is not None}


def test_a_file_says_where_texts_begin_and_end(stage, words, tmp_path):
    page = engine_modules(stage, "tokenizer")
    metadata = read_gguf(write_gguf(tmp_path / "words.gguf", words, "gpt-2", MARKS)).metadata
    script = """(metadata) => {
        const { start_id, end_ids, names, chat_template } = tokenizerOfGguf(metadata);
        return [start_id, end_ids, names, chat_template];
    }"""
    names = metadata["tokenizer.ggml.tokens"]
    end, turn, other = map(names.index, (END, *MARKS))
    for given, expected in [
        ({"eot_token_id": turn}, [end, [end, turn]]),
        ({"eot_token_id": end, "bos_token_id": other}, [end, [end]]),
        ({"add_bos_token": True, "bos_token_id": other}, [other, [end]]),
        ({"add_bos_token": True}, [end, [end]]),
        ({"eos_token_id": None}, [end, []]),
        ({"tokens": ["ended", *names[1:]], "eos_token_id": None, "bos_token_id": turn}, [turn, []]),
    ]:
        about = changed(metadata, **given)
        roles = {
            role: about["tokenizer.ggml.tokens"][about[key]] if key in about else None
            for role in ("bos_token", "eos_token")
            for key in [f"tokenizer.ggml.{role}_id"]
        }
        assert page.evaluate(script, about) == [*expected, roles, None]
    about = metadata | {"tokenizer.chat_template": "{{ messages }}"}
    assert page.evaluate(script, about)[-1] == "{{ messages }}"


WRONG = [
    ({"model": "llama"}, "tokenizer.ggml.model is llama, expected gpt2, which is BPE"),
    ({"pre": "bloom"}, "tokenizer.ggml.pre is bloom, expected one of gpt-2, smollm, refact"),
    ({"pre": None}, "tokenizer.ggml.pre is undefined, expected one of"),
    ({"tokens": 5}, "tokenizer.ggml.tokens is 5, expected a list"),
    ({"token_type": [1]}, "tokenizer.ggml.token_type is a list of 1, expected a list of"),
    ({"merges": None}, "tokenizer.ggml.merges is undefined, expected a list"),
    ({"merges": ["a b c"]}, "merge 0 is a b c, expected two tokens that make a third"),
    ({"merges": ["a ~"]}, "merge 0 is a ~, expected two tokens that make a third"),
    ({"eot_token_id": 10**6}, "tokenizer.ggml.eot_token_id is 1000000, expected 0 …"),
    ({"tokens": ["été "], "token_type": [1]}, "token 0 is été , expected byte characters"),
    ({"tokens": ["a", "a"], "token_type": [1, 3]}, "token 0 is a, expected byte characters"),
    ({"tokens": ["a"], "token_type": [1], "eos_token_id": None}, "names no token that a text"),
]


def test_errors_name_what_is_wrong(stage, words, tmp_path):
    file = write_gguf(tmp_path / "words.gguf", words, "gpt-2")
    page, metadata = engine_modules(stage, "tokenizer"), read_gguf(file).metadata
    for changes, message in WRONG:
        with pytest.raises(Error, match=re.escape(message)):
            page.evaluate(
                "(metadata) => { tokenizerOfGguf(metadata); }", changed(metadata, **changes)
            )
    n = len(metadata["tokenizer.ggml.tokens"])
    for bad in (-1, n, 0.5):
        with pytest.raises(Error, match=f"token id {bad} is outside 0 … {n - 1}"):
            page.evaluate("([about, id]) => tokenizerOfGguf(about).decode([id])", [metadata, bad])
