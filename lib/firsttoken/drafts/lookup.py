"""Drafts without a network: a look-up in the text itself, and several drafts in turn."""

import numpy as np

from firsttoken.drafts.suffix_automaton import SuffixAutomaton
from firsttoken.generate import Draft, Observer, Proposal
from firsttoken.generate.sequence import TokenSequence

Array = np.ndarray


class SuffixDraft:
    """Guess that the text goes on as it did where its longest ending stood before: no model at all.

    Guesses are made where that ending has at least `min_match` tokens.

    Source: Hu et al. 2024, SAM-Decoding, arXiv:2411.10666
    """

    def __init__(self, min_match: int = 2):
        self._min_match = min_match
        self._request: TokenSequence | None = None

    def propose(self, request: TokenSequence, n: int) -> Proposal:
        """Return up to n guesses."""
        if request is not self._request:
            self._request, self._text, self._n_read = request, SuffixAutomaton(), 0
        for token in request.ids[self._n_read :]:
            self._text.extend(token)
        self._n_read = len(request.ids)
        found = self._text.propose(n) if self._text.n_matched >= self._min_match else []
        return Proposal(request.possible(found))


class FirstDraft:
    """Ask several drafts in turn: the first that has a guess makes all guesses of a round.

    A look-up that speaks only where it is sure, and behind it a network that always does.

    Raises: ValueError for no draft, and for what is none.
    Source: TensorRT-LLM, tensorrt_llm/llmapi/llm_args.py, `sa_config` of `Eagle3DecodingConfig`
    """

    def __init__(self, *drafts: Draft):
        if not drafts or not all(hasattr(draft, "propose") for draft in drafts):
            raise ValueError(f"drafts must be one or more, each with propose(); got {drafts!r}")
        self._drafts = drafts
        self._request: TokenSequence | None = None

    def propose(self, request: TokenSequence, n: int) -> Proposal:
        """Return up to n guesses of one draft."""
        if request is not self._request:  # all begin anew, also those who are not asked yet
            self._request = request
            for draft in self._drafts:
                draft.propose(request, 0)
        for draft in self._drafts:
            proposal = draft.propose(request, n)
            if proposal.tokens:
                break
        return proposal

    def observe(self, features: Array) -> None:
        """Show the target's features to those who want to see them."""
        for draft in self._drafts:
            if isinstance(draft, Observer):
                draft.observe(features)
