"""The shipped models are what their card says, and what transformers makes of the same files."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from firsttoken.models import evaluation
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path

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


def test_the_figures_of_the_card_come_out_again(monkeypatch):
    """Both from one reading of the text: the loss is summed while the acceptance is measured."""
    predictions, bits = evaluation._predictions, []

    def summed(*arguments):
        for tokens, (target, draft) in predictions(*arguments):
            bits.append(-np.log2(target[np.arange(len(tokens)), tokens]).sum())
            yield tokens, (target, draft)

    monkeypatch.setattr(evaluation, "_predictions", summed)
    target, draft = (load_model(name, "torch") for name in ("target", "draft"))
    acceptance = evaluation.mean_acceptance(target, draft, tokenizer(), TEXT)
    said = REPORT["heldout"]
    assert acceptance == pytest.approx(said["acceptance"], abs=1e-3)
    per_byte = sum(bits) / len(TEXT.encode())
    assert per_byte == pytest.approx(said["bits_per_byte_target"], abs=1e-3) and per_byte < 1.40
