"""The shipped models are what their card says, and what transformers makes of the same files."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from firsttoken.evaluation import bits_per_byte, mean_acceptance
from firsttoken.llama import load_model
from firsttoken.paths import data_path
from firsttoken.tokenizer import tokenizer

TEXT = data_path("heldout.txt").read_text(encoding="utf-8")
REPORT = json.loads(data_path("model/training.json").read_text())


@pytest.mark.parametrize("name", ["target", "draft"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_logits_equal_transformers(name, backend):
    ids = tokenizer().encode(TEXT)[:512]
    theirs = AutoModelForCausalLM.from_pretrained(data_path(f"model/{name}"), dtype=torch.float32)
    expected = theirs(torch.tensor([ids])).logits.detach().numpy()
    np.testing.assert_allclose(np.asarray(load_model(name, backend)([ids])), expected, atol=5e-5)


def test_the_tokenizer_is_the_one_transformers_loads():
    theirs = AutoTokenizer.from_pretrained(data_path("model"))
    sample = TEXT[:5000] + "\tnaïve 🙂\x00"
    assert theirs.encode(sample) == tokenizer().encode(sample)
    assert theirs.decode(theirs.encode(sample)) == sample
    assert theirs.eos_token_id == tokenizer().eos_id == load_model("target").eos_ids[0]


def test_the_figures_of_the_card_come_out_again():
    target, draft = (load_model(name, "torch") for name in ("target", "draft"))
    said = REPORT["heldout"]
    bits = bits_per_byte(target, tokenizer(), TEXT)
    assert bits == pytest.approx(said["bits_per_byte_target"], abs=1e-3) and bits < 1.40
    acceptance = mean_acceptance(target, draft, tokenizer(), TEXT)
    assert acceptance == pytest.approx(said["acceptance"], abs=1e-3)


def test_the_pair_is_small():
    files = [f for f in data_path("model").rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= 10e6
