"""Whole answers of the real model, word for word as transformers writes them."""

import gguf as llama_cpp
import pytest
import torch

from firsttoken.generate import generate
from firsttoken.models.chat import chat_template
from firsttoken.models.llama import load_model
from firsttoken.paths import smollm2_path
from firsttoken.sampling import SamplingParams
from models.test_smollm2 import installed, of_transformers

QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three fruits.",
    "Explain in two sentences what a cache is.",
    "Write a Python function that adds two numbers.",
]


@pytest.fixture(scope="module")
def models():
    return load_model("smollm2"), of_transformers(llama_cpp.GGUFReader(smollm2_path()))


@installed
@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_answers_are_those_of_transformers(models, question):
    """64 tokens. One pass over the whole says what transformers would have chosen at each."""
    ours, theirs = models
    prompt = chat_template("smollm2").encode([{"role": "user", "content": question}])
    greedy = SamplingParams(temperature=0, max_tokens=64)
    ids = generate(ours, prompt, greedy, ignore_eos=True).ids
    with torch.no_grad():
        logits = theirs(torch.tensor([prompt + ids])).logits[0]
    assert ids == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert len(ids) == 64
