"""Every string survives; the tokens' bytes agree with the library that made them."""

import json
import random

import gguf as llama_cpp
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

from firsttoken.models.tokenizer import TextStream, Tokenizer, tokenizer

END = "<|endoftext|>"
TEXTS = ["def f(x):\n\treturn x  # naïve\n", "import os\n", "class A:\n    pass\n"] * 3


def train(directory, texts=TEXTS, vocab_size=300, alphabet=None, special=(END,)):
    """Train a small byte-level BPE and save it as the shipped one is saved."""
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    full = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=full if alphabet is None else alphabet,
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    tok.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return directory / "tokenizer.json"


@pytest.fixture(scope="module", params=["trained here", "shipped"])
def tok(request, tmp_path_factory):
    if request.param == "shipped":
        return tokenizer()
    return tokenizer(train(tmp_path_factory.mktemp("tokenizer")))


# Surrogates are no characters: UTF-8 has no bytes for them.
text = st.text(st.characters(exclude_categories=["Cs"]))


@given(text=text)
@example("\t\r\n\x00\x7f\x85\u2028\ufeff\ufffd")
@example("👩‍👩‍👧‍👦 é e\u0301 ﬁ Ⅷ İstanbul ß\u200b")
@example(f"{END} {END[:5]}")
@example("  two  spaces  \u00a0\u3000")
def test_every_string_survives(tok, text):
    """And the library's own decoder gives it, too, where there is text."""
    ids = tok.encode(text)
    assert tok.decode(ids) == text
    assert tok.eos_id not in ids
    assert all(0 <= i < tok.vocab_size for i in ids)
    ids = [tok.eos_id, *ids, tok.eos_id]
    assert tok.decode(ids) == tok._tokenizer.decode(ids, skip_special_tokens=True)


@given(text=text, data=st.data())
def test_pieces_add_up_to_the_whole(tok, text, data):
    """Whatever the ids: complete characters, halves of them, special tokens in between."""
    ids = tok.encode(text) + data.draw(st.lists(st.integers(0, tok.vocab_size - 1)))
    stream = TextStream(tok)
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.finish() == tok.decode(ids)


def test_a_stream_holds_back_half_a_character(tok):
    # An emoji that no text above contains: four bytes, four tokens.
    ids = tok.encode("🦜")
    stream = TextStream(tok)
    assert [stream.push(i) for i in ids] == ["", "", "", "🦜"]
    assert tok.decode(ids[:3]) == "\ufffd"
    stream.push(ids[0])
    assert stream.finish() == "\ufffd"


def test_every_byte_is_a_token_and_none_is_twice(tok):
    table = [tok.token_bytes(i) for i in range(1, tok.vocab_size)]
    assert {bytes([b]) for b in range(256)} <= set(table)
    assert len(set(table)) == len(table)


def test_what_is_no_id_and_no_text_is_named(tok):
    for bad in (-1, tok.vocab_size, 10**6):
        for function in (tok.token_bytes, lambda i: tok.decode([i])):
            with pytest.raises(
                ValueError, match=f"token id {bad} is outside 0 … {tok.vocab_size - 1}"
            ):
                function(bad)
    with pytest.raises(ValueError, match="surrogate"):
        tok.encode("a\ud800")


def test_settings_of_other_tokenizers_do_not_cut_or_add(tmp_path):
    """A stored truncation, padding or template is for training, not for text as it is."""
    path = train(tmp_path, special=(END, "<pad>"))
    library = tokenizers.Tokenizer.from_file(str(path))
    library.enable_truncation(3)
    library.enable_padding(length=8, pad_id=1, pad_token="<pad>")
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A {END}", special_tokens=[(END, 0)]
    )
    library.add_tokens(["naïve tea"])
    library.save(str(path))
    tok = tokenizer(path)
    for text in ("import os, sys", "a naïve tea b"):
        ids = tok.encode(text)
        assert tok.decode(ids) == text and 0 not in ids and 1 not in ids


def test_without_a_config_there_is_no_end(tmp_path):
    path = train(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": END}}))
    assert tokenizer(path).eos_id == 0
    (tmp_path / "tokenizer_config.json").unlink()
    assert tokenizer(path).eos_id is None


def test_a_tokenizer_that_loses_bytes_says_so(tmp_path):
    """Trained without the full alphabet, one silently drops what is new to it."""
    tok = Tokenizer(train(tmp_path, alphabet=[]))
    assert not tok.lossless and tok.decode(tok.encode("a\x04a")) == "aa"


def test_files_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match=r"tokenizer.json: No such file"):
        tokenizer(path)
    for content in ("{", "[]", "{}"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer"):
            tokenizer(path)
    for words, shown in (({"[unk]": 0, "été ": 1}, "'été '"), ({"a": 0, "b": 2}, "None")):
        model = tokenizers.models.WordLevel(words, next(iter(words)))
        tokenizers.Tokenizer(model).save(str(path))
        with pytest.raises(ValueError, match=f"not byte-level: token 1 is {shown}"):
            tokenizer(path)


def test_a_document_begins_with_what_the_files_say(tmp_path):
    """The template's own beginning, else bos_token; the token that ends a text only in silence."""
    path = train(tmp_path, special=(END, "<s>"))
    for config, start in [
        ({"eos_token": END, "bos_token": "<s>"}, [1]),
        ({"eos_token": END, "bos_token": {"content": "<s>"}, "add_bos_token": True}, [1]),
        ({"eos_token": END, "bos_token": "<s>", "add_bos_token": False}, []),
        ({"eos_token": END, "bos_token": None}, []),
        ({"eos_token": END}, [0]),
        ({}, []),
    ]:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        tok = tokenizer(path)
        assert list(tok.start_ids) == start
        if start:
            assert tok.encode_document("a") == start + tok.encode("a")
        else:
            with pytest.raises(ValueError, match="start_ids"):
                tok.encode_document("a")
    library = tokenizers.Tokenizer.from_file(str(path))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"<s> $A {END}", special_tokens=[(END, 0), ("<s>", 1)]
    )
    library.save(str(path))
    assert tokenizer(path).encode_document("a") == [1, *tokenizer(path).encode("a")]


def test_a_tokenizer_says_whether_every_string_survives(tmp_path):
    for change, lossless in [
        ({}, True),
        ({"normalizer": tokenizers.normalizers.NFC()}, False),
        ({"pre_tokenizer": tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)}, False),
    ]:
        library = tokenizers.Tokenizer.from_file(str(train(tmp_path)))
        for name, value in change.items():
            setattr(library, name, value)
        library.save(str(tmp_path / "tokenizer.json"))
        tok = tokenizer(tmp_path / "tokenizer.json")
        assert tok.lossless == lossless == (tok.decode(tok.encode("e\u0301")) == "e\u0301")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Entries and merges of a small BPE of several scripts, as files list them."""
    texts = [
        *TEXTS,
        "Don't 12345 WE'LL été e\u0301te\u0301 日本語 日本\r\n\n  2026-11-28 ²½ 🙂🙂 ",
    ] * 3
    whole = json.loads(train(tmp_path_factory.mktemp("bpe"), texts, 400).read_text("utf-8"))
    return whole["model"]["vocab"], whole["model"]["merges"]


def write_gguf(path, trained, cut, marks=()):
    """Write a file of a vocabulary, with a piece that is never cut and perhaps more marks."""
    vocabulary, merges = trained
    writer = llama_cpp.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    names = [*vocabulary, "<think>", *marks]
    kinds = [llama_cpp.TokenType.NORMAL] * len(vocabulary) + [llama_cpp.TokenType.USER_DEFINED]
    kinds += [llama_cpp.TokenType.CONTROL] * len(marks)
    kinds[vocabulary[END]] = llama_cpp.TokenType.CONTROL
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(vocabulary[END])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def of_transformers(trained, cut):
    """The ids that transformers gives a text, for a vocabulary that is cut as this file says."""
    vocabulary, merges = trained
    pairs = [tuple(pair) for pair in merges]
    if cut != "llama-bpe":
        kind = Qwen2Tokenizer if cut == "qwen2" else GPT2Tokenizer
        theirs = kind(dict(vocabulary), pairs)
        return lambda text: theirs.encode(text, add_special_tokens=False)
    byte_of = {c: b for b, c in bytes_to_unicode().items()}
    plain = [name for name in vocabulary if name != END]
    converter = TikTokenConverter()
    converter.load_tiktoken_bpe = lambda _: {
        bytes(byte_of[c] for c in name): vocabulary[name] for name in plain
    }
    theirs = converter.converted()
    return lambda text: theirs.encode(text).ids


@pytest.mark.parametrize("cut", ["gpt-2", "qwen2", "llama-bpe"])
def test_ids_of_a_gguf_file_are_those_of_transformers(trained, tmp_path, cut):
    ours = tokenizer(write_gguf(tmp_path / "words.gguf", trained, cut))
    theirs, draw = of_transformers(trained, cut), random.Random(0)
    pieces = [
        "Don't",
        " WE'LL",
        "12345",
        "6",
        "\n\n",
        " \n",
        "  ",
        "\t",
        "été",
        "e\u0301",
        "日本語",
    ]
    pieces += ["²½", "🙂", "import", " os", "x_", "()", "\u0300", "\r\n", " ", "!?", "def"]
    planes = [range(1, 0x80), range(0x80, 0x3000), range(0x10000, 0x20000)]
    for i in range(1000):
        whole = [draw.choice(pieces) if i % 2 else chr(draw.choice(draw.choice(planes)))
                 for _ in range(20)]  # fmt: skip
        text = "".join(whole)
        ids = ours.encode(text)
        assert ids == theirs(text), repr(text)
        assert cut == "qwen2" or ours.decode(ids) == text
    assert ours.lossless == (cut != "qwen2")  # whose normaliser joins e and its accent
    assert ours.decode(ours.encode(f"a{END}<think>")) == f"a{END}<think>"
    assert len(ours.encode("<think>")) == 1 and len(ours.encode(END)) > 1


def test_files_are_cut_in_different_ways(trained, tmp_path):
    found = set()
    for cut in ("gpt-2", "smollm", "qwen2", "llama-bpe"):
        file = write_gguf(tmp_path / f"{cut}.gguf", trained, cut)
        found.add(tuple(tokenizer(file).encode("12345 e\u0301")))
    assert len(found) == 4
    with pytest.raises(ValueError, match=r"tokenizer.ggml.pre 'bloom' in .*one of 'gpt-2'"):
        tokenizer(write_gguf(tmp_path / "other.gguf", trained, "bloom"))
