"""Drafts for the requests that decode: guessed before a pass, checked by it."""

import copy
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np

from firsttoken.engine.requests import EngineRequest
from firsttoken.generate import Draft, Observer, Proposal
from firsttoken.generate.drafting import DraftedText, draft_together
from firsttoken.generate.sequence import TokenSequence
from firsttoken.models.protocols import Cache, Model, check_tokens


class Drafts(Protocol):
    """Whatever guesses for several requests at once: `drafts_for` makes one of a draft."""

    def check(self, text: TokenSequence) -> None:
        """Raise a ValueError where it cannot guess for a text."""
        ...

    def begin(self, text: TokenSequence) -> Any:
        """Return what it keeps for a request while that runs."""
        ...

    def propose(
        self, asked: Sequence[tuple[Any, TokenSequence, int]]
    ) -> Sequence[Proposal | Exception]:
        """Return up to n guesses for each (kept, text, n), or what went wrong with it."""
        ...


def drafts_for(draft: Model | Draft, target: Model) -> Drafts:
    """Return what guesses for an engine's requests with a draft.

    Raises: ValueError for a model of another vocabulary, and for what is neither a model nor a
            `Draft`, or observes the target.
    """
    if hasattr(draft, "new_cache"):
        return ModelDrafts(cast(Model, draft), target)
    if not isinstance(draft, Draft) or isinstance(draft, Observer):
        raise ValueError(
            "draft must be a model or a Draft that needs no features of the target, got "
            f"{type(draft).__name__}"
        )
    return CopiedDrafts(draft, target)


def add_proposals(drafts: Drafts, requests: Sequence[EngineRequest], gamma: int) -> None:
    """Let requests guess up to gamma tokens each: `proposal` is set, or `error` where it failed."""
    # Who has drafted before is asked for none, too: what was rejected must be forgotten.
    asking = [r for r in requests if r.draft is not None or r.n_drafts(gamma) > 0]
    for request in asking:
        if request.draft is None:
            request.draft = drafts.begin(request.text)
    asked = [(request.draft, request.text, request.n_drafts(gamma)) for request in asking]
    for request, proposal in zip(asking, drafts.propose(asked), strict=True):
        if isinstance(proposal, Exception):
            request.error = proposal
        else:
            request.proposal = proposal


class ModelDrafts:
    """A smaller model that guesses for all together; it keeps a cache for each request."""

    def __init__(self, model: Model, target: Model):
        if model.arch.vocab_size != target.arch.vocab_size:
            raise ValueError(
                f"draft has {model.arch.vocab_size} tokens in its vocabulary, expected those of "
                f"the model, {target.arch.vocab_size}"
            )
        self._model = model

    def check(self, text: TokenSequence) -> None:
        """Raise a ValueError for a text that may outgrow the model's context."""
        context = self._model.arch.max_context
        if context is not None and context < text.max_length:
            raise ValueError(
                f"prompt_ids and max_tokens may need a context of {text.max_length}, but the draft "
                f"has {context}"
            )

    def begin(self, text: TokenSequence) -> Cache:
        """Return an empty cache."""
        return self._model.new_cache(1, text.max_length)

    def propose(
        self, asked: Sequence[tuple[Cache, TokenSequence, int]]
    ) -> Sequence[Proposal | Exception]:
        """Guess for all in one pass per token."""
        texts = [DraftedText(text, cache, n) for cache, text, n in asked]
        return draft_together(self._model.forward_ragged, texts)


class CopiedDrafts:
    """A `Draft` of which each request has a copy."""

    def __init__(self, draft: Draft, target: Model):
        self._draft, self._arch = draft, target.arch

    def check(self, text: TokenSequence) -> None:
        """Accept every text: what a draft cannot do shows when it guesses."""

    def begin(self, text: TokenSequence) -> Draft:
        """Return a copy of the draft."""
        return copy.deepcopy(self._draft)

    def propose(
        self, asked: Sequence[tuple[Draft, TokenSequence, int]]
    ) -> Sequence[Proposal | Exception]:
        """Ask each copy that is to guess anything."""
        return [self._propose_one(*one) if one[2] > 0 else Proposal([]) for one in asked]

    def _propose_one(self, draft: Draft, text: TokenSequence, n: int) -> Proposal | Exception:
        try:
            proposal = draft.propose(text, n)
            if len(proposal.tokens) > n or proposal.parents is not None:
                raise ValueError(f"draft must guess a chain of at most {n} tokens, got {proposal}")
            if proposal.tokens:  # a wrong one would stop the pass of all
                check_tokens(self._arch, np.asarray([proposal.tokens]))
        except Exception as error:
            return error
        return proposal
