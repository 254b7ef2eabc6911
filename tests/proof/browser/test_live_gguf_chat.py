"""Live views: with SmolLM2's own file a page has the tokens and the chats of the library."""

import pytest

from browser.modules import engine_modules
from browser.texts import ENCODE, chats, texts
from firsttoken.live.chat import _parts
from firsttoken.live.kernel import start_id
from firsttoken.models.chat import chat_template
from firsttoken.models.gguf import read_gguf
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path, smollm2_path

MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<jupyter_code>"]


@pytest.fixture
def page(stage):
    """A page with `words`, the file's tokenizer, and `chat`, its template."""
    page = engine_modules(stage, "tokenizer", "chat_template")
    page.evaluate(
        """(metadata) => {
            window.words = tokenizerOfGguf(metadata);
            window.chat = createChatTemplate(words.chat_template, words);
        }""",
        read_gguf(smollm2_path()).metadata,
    )
    return page


def test_texts_have_the_tokens_of_the_library(page):
    tok = tokenizer("smollm2")
    about = page.evaluate("[words.start_id, words.end_ids, [...words.special], words.names]")
    marks = [[i, name] for name, i in tok.special_tokens.items()]
    assert about == [start_id(tok), [tok.eos_id], marks, tok.special_names]
    given = [data_path("heldout.txt").read_text("utf-8"), *texts(*MARKS)]
    got = page.evaluate("(texts) => texts.map(words.encode)", given)
    for text, ids in zip(given, got, strict=True):
        assert ids == tok.encode(text), repr(text)
    assert page.evaluate("(all) => all.map(words.decode)", got) == [tok.decode(ids) for ids in got]
    every = list(range(tok.vocab_size))
    pieces = [tok.token_bytes(i).decode("utf-8", "backslashreplace") for i in every]
    pieces[: len(marks)] = tok.special_tokens
    assert page.evaluate("(ids) => ids.map((id) => words.named(id).piece)", every) == pieces


def test_long_words_take_no_time(page):
    """A line without spaces is one word: merging it pair by pair would take minutes."""
    tok = tokenizer("smollm2")
    for text in ("=" * 300_000, "ACGT" * 50_000, "日本語" * 20_000):
        assert page.evaluate("(text) => words.encode(text)", text) == tok.encode(text)


def test_chats_have_the_tokens_of_the_library(page):
    template, words = chat_template("smollm2"), tokenizer("smollm2")
    given = chats(MARKS)
    for (messages, prompt), found in zip(given, page.evaluate(ENCODE, given), strict=True):
        ids = template.encode(messages, prompt)
        assert found == [ids, [list(part) for part in _parts(ids, words)]], messages
