"""From a prompt to an answer: chapter 01, and 12 with guesses.

`loop` is the loop, `drafting` the loop with guesses, `sequence` the text on its way, and `search`
tries more than one answer.
"""

from firsttoken.generate.drafting import (
    Draft,
    Observer,
    Proposal,
    prompt_lookup,
    speculative_generate,
)
from firsttoken.generate.loop import generate
from firsttoken.generate.sequence import Generation

__all__ = [
    "Draft",
    "Generation",
    "Observer",
    "Proposal",
    "generate",
    "prompt_lookup",
    "speculative_generate",
]
