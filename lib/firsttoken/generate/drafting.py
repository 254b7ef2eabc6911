"""The loop with guesses: draft, check in one pass, keep what the target would have said."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from firsttoken.checks import check_count
from firsttoken.generate.sequence import Generation, TextOptions, TokenSequence
from firsttoken.models.protocols import Cache, FeatureModel, Model
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.sampling import SamplingParams, draw, softmax
from firsttoken.speculative import Round, verify, verify_greedy
from firsttoken.speculative.trees import verify_tree, verify_tree_greedy

Array: TypeAlias = np.ndarray
Guess: TypeAlias = Callable[[list[int], int], Sequence[int]]


class Proposal(NamedTuple):
    """What a draft guesses: tokens, the distributions that they were drawn from, and their order.

    Guesses that were drawn from no known distribution have None instead, and so may all at
    temperature 0. With `parents` the tokens are a tree: token i is a guess for what follows token
    parents[i], or, where that is -1, the text; without, each follows the one before. Distributions
    are those that `speculative.verify` and `drafts.verify_tree` expect.

    Shapes: tokens: γ ids, perhaps none; distributions (γ, V); parents: γ integers, parents[i] < i
    """

    tokens: list[int]
    distributions: Array | None = None
    parents: list[int] | None = None


@runtime_checkable
class Draft(Protocol):
    """Whatever guesses how a text goes on, for `speculative_generate`."""

    def propose(self, request: TokenSequence, n: int) -> Proposal:
        """Return at most n guesses.

        Nothing may be proposed behind the end of the text, nor what is forbidden to it:
        `TokenSequence.possible` cuts there.
        """
        ...


@runtime_checkable
class Observer(Protocol):
    """A draft that wants to know what the target thinks, not only what it says."""

    def observe(self, features: Array) -> None:
        """See the target's features of the tokens that it has read since, and that stayed.

        It comes after every pass of the target. `Llama.features` says what features are; those of
        the text's last token are still to come: it is read with the next guesses.

        Shapes: features (n, D), in the order of the text
        """
        ...


def speculative_generate(
    target: Model,
    draft: Model | Guess | Draft,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    gamma: int = 4,
    on_token: Callable[[int], object] | None = None,
    tokenizer: Tokenizer | None = None,
    min_confidence: float = 0.0,
    **options: Any,
) -> Generation:
    """Continue a prompt as `generate` does, up to gamma + 1 tokens per pass of the target.

    `options` are those of `generate`: `ignore_eos`, `constraint`, `close_in_time`.

    In each round the draft guesses up to `gamma` tokens, one pass of the target gives the
    distributions at all their positions and the next, and `speculative.verify` decides which of
    them stay. The text has the distribution of `generate` with the target alone: at temperature 0
    it is the same text, else another with the same probabilities. Penalties, temperature, filters
    and the constraint are applied to draft and target alike, at every position with what stands
    before it.

    `draft` is a model with the target's vocabulary, or a function of all ids so far and of how
    many tokens are wanted, that returns at most so many guesses; they have no probabilities. Any
    other way to guess is a `Draft`. It may guess a tree, several tokens for one place: the same
    pass checks all branches, and one of them may stay.

    A draft model stops before `gamma` tokens once it gave the one it chose a probability below
    `min_confidence` (at temperature 0 that of temperature 1). That token is still checked: to drop
    it, and judge the others by the draft's whole distribution, would favour those that are not
    dropped.

    A rejected token, and what was drafted after it, is forgotten: both caches are cut back to the
    text. What the draft's lacks, such as the last drafted token where all were accepted, is read
    with the next round's first token. Tokens of one round come at nearly the same time, and
    `prefill_s` contains the first round's drafting.

    Shapes: prompt_ids: a list of at least one id
    Units:  gamma in tokens; times in seconds
    Raises: ValueError as `generate`, for a negative gamma, a min_confidence outside 0 … 1 or for
            a draft that is no model, another vocabulary than the target's, and a context too short
            for the text.
    Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023,
            arXiv:2302.01318, algorithm 2
    """
    check_count("gamma", gamma)
    given = TextOptions(**options)
    request = TokenSequence(target, prompt_ids, params, on_token, tokenizer, given)
    proposer = _proposer(draft, target, request, min_confidence)
    observer = proposer if isinstance(proposer, Observer) else None
    cache = target.new_cache(1, request.max_length)
    rounds = []
    while request.finish_reason is None:
        # One token per round is the target's own, so that the last needs no draft.
        n_wanted = min(gamma, request.max_length - len(request.ids) - 1)
        proposal = proposer.propose(request, n_wanted)
        n_text, unread = len(request.ids), request.ids[cache.length :]
        read = unread + proposal.tokens
        if observer is None and proposal.parents is None:
            logits = np.asarray(target([read], cache))[0]
        else:
            model = _with_features(target)
            features = model.features([read], cache, proposal.parents)
            logits = np.asarray(model.logits(features))[0]
        n_guesses = len(proposal.tokens)
        logits = logits[-n_guesses - 1 :]  # [γ+1, V]
        request.note_prefill()
        tokens = check_proposal(request, logits, proposal)
        rounds.append(Round(n_guesses, len(tokens) - 1))
        kept = _kept(proposal, tokens)
        keep_path(cache, target.arch.n_layers, n_text, [n_text + i for i in kept])
        if observer is not None:
            stayed = [*range(len(unread)), *(len(unread) + i for i in kept)]
            observer.observe(np.asarray(features)[0, stayed])
        for token in tokens:
            request.append(token)
            if request.finish_reason is not None:
                break
    return request.result(rounds)


def keep_path(cache: Cache, n_layers: int, length: int, kept: Sequence[int]) -> None:
    """Forget all but the first `length` tokens of a cache and, behind them, those at `kept`.

    So one branch of a tree stays when its other guesses go.

    Shapes: kept: positions from `length` on, rising
    Raises: ValueError for positions that do not rise or are not there.
    """
    if any(a >= b for a, b in itertools.pairwise([length - 1, *kept, cache.length])):
        raise ValueError(f"kept {list(kept)} must rise in {length} … {cache.length - 1}")
    n_in_place = sum(place == length + i for i, place in enumerate(kept))
    moved = list(kept[n_in_place:])
    stored = [
        (cache.keys(layer)[:, :, moved], cache.values(layer)[:, :, moved])
        for layer in range(n_layers if moved else 0)
    ]
    cache.truncate(length + n_in_place)
    for layer, (k, v) in enumerate(stored):
        cache.append(layer, k, v)


def prompt_lookup(ids: Sequence[int], max_ngram: int, gamma: int) -> list[int]:
    """Guess that the text goes on as it did before: a draft without a model.

    Where the last `max_ngram` tokens stand earlier in the text, the tokens behind that place are
    the guess; the last such place counts, and if there is none, shorter endings are tried. It ends
    where the text ends: of a loop of n tokens at most n are guessed. As a draft:
    `lambda ids, gamma: prompt_lookup(ids, 3, gamma)`.

    Shapes: result: at most gamma ids, none where not even the last token stands earlier
    Raises: ValueError for a max_ngram below 1 or a negative gamma.
    Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding (there the first place)

    >>> prompt_lookup([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], max_ngram=2, gamma=3)
    [4, 9, 1]
    """
    check_count("max_ngram", max_ngram, at_least=1)
    check_count("gamma", gamma)
    ids, longest, place = list(ids), 0, len(ids)
    for end in range(len(ids) - 2, -1, -1):  # where an earlier match may have its last token
        size = 0
        while size < max_ngram and size <= end and ids[end - size] == ids[-1 - size]:
            size += 1
        if size > longest:
            longest, place = size, end + 1
    return ids[place : place + gamma]


def check_proposal(request: TokenSequence, logits: Array, proposal: Proposal) -> list[int]:
    """Return what the target makes of a proposal: the guesses that stay, and a token of its own.

    Shapes: logits (γ+1, V), behind the text and behind each of γ guesses
    """
    guesses, drawn_from, parents = proposal
    if request.params.temperature == 0:
        choices = request.scores(logits, guesses, parents).argmax(axis=-1).tolist()
        if parents is None:
            return verify_greedy(choices, guesses)
        return verify_tree_greedy(choices, parents, guesses)
    target = request.distributions(logits, guesses, parents)
    if parents is None:
        return verify(target, drawn_from, guesses, request.rng)
    return verify_tree(target, drawn_from, parents, guesses, request.rng)


@dataclass
class DraftedText:
    """A text behind which a draft model guesses up to n tokens, with a cache of its own."""

    request: TokenSequence
    cache: Cache
    n: int
    tokens: list[int] = field(default_factory=list)
    distributions: list[Array] = field(default_factory=list)  # at temperature 0: none
    error: Exception | None = None

    @property
    def unread(self) -> list[int]:
        """What the cache lacks of the text and the guesses so far."""
        return [*self.request.ids, *self.tokens][self.cache.length :]

    def add(self, logits: Array, min_confidence: float) -> bool:
        """Guess one token more; say whether another may follow it."""
        try:
            chances = self._guess(logits)
            if len(self.tokens) == self.n or self.request.ended_by(self.tokens):
                return False
        except Exception as error:  # no token may follow
            self.error = error
            return False
        if not min_confidence:
            return True
        chances = softmax(logits) if chances is None else chances
        return not chances[self.tokens[-1]] < min_confidence

    def proposal(self) -> Proposal:
        """Return the guesses so far."""
        rows = self.distributions
        return Proposal(self.tokens, np.stack(rows) if rows else None)

    def _guess(self, logits: Array) -> Array | None:
        """Add a token; return the distribution that it was drawn from, None at temperature 0."""
        if self.request.params.temperature == 0:
            self.tokens.append(self.request.choose(logits, self.tokens))
            return None
        chances = self.request.distributions(logits[None], self.tokens)[0]
        self.distributions.append(chances)
        self.tokens.append(int(draw(chances, self.request.rng)))
        return chances


def draft_together(
    forward: Callable[[list[list[int]], list[Cache]], Iterable[Array]],
    texts: Sequence[DraftedText],
    min_confidence: float = 0.0,
) -> list[Proposal | Exception]:
    """Guess for several texts: each pass of a draft model brings one token more for each.

    `forward` is the pass, as `Model.forward_ragged`; what it raises is raised. A cache first
    forgets what was rejected of the last guesses. A text is done when it has its n guesses, when it
    has come to its end, and behind a token that the draft gave a probability below `min_confidence`
    (at temperature 0: that of temperature 1). Where no token may follow a text, the error stands in
    place of its proposal.
    """
    for text in texts:
        text.cache.truncate(min(text.cache.length, len(text.request.ids) - 1))
    going = [text for text in texts if text.n > 0]
    while going:
        logits = forward([text.unread for text in going], [text.cache for text in going])
        going = [
            text
            for text, after in zip(going, logits, strict=True)
            if text.add(np.asarray(after)[-1], min_confidence)
        ]
    return [text.error or text.proposal() for text in texts]


def _kept(proposal: Proposal, tokens: list[int]) -> list[int]:
    """Return which guesses stay: all tokens but the last, which is the target's own."""
    if proposal.parents is None:
        return list(range(len(tokens) - 1))
    children = {
        (parent, token): i
        for i, (parent, token) in enumerate(zip(proposal.parents, proposal.tokens, strict=True))
    }
    kept: list[int] = []
    for token in tokens[:-1]:
        kept.append(children[kept[-1] if kept else -1, token])
    return kept


def _with_features(target: Model) -> FeatureModel:
    if not hasattr(target, "features"):
        raise ValueError(
            "target must have features and logits, as Llama has, for a draft that observes them or "
            f"guesses a tree; got {type(target).__name__}"
        )
    return cast(FeatureModel, target)


def _proposer(
    draft: Model | Guess | Draft, target: Model, request: TokenSequence, min_confidence: float
) -> Draft:
    """Return what proposes tokens to the loop, whatever kind of draft it was given."""
    if not 0 <= min_confidence <= 1:
        raise ValueError(f"min_confidence must lie in 0 … 1, got {min_confidence}")
    if hasattr(draft, "new_cache"):
        return _ModelDraft(cast(Model, draft), target, request, min_confidence)
    if min_confidence:
        raise ValueError(f"min_confidence is {min_confidence}, expected 0 unless draft is a model")
    return draft if isinstance(draft, Draft) else _GuessDraft(draft)


class _ModelDraft:
    """Guess with a smaller model, token by token."""

    def __init__(self, model: Model, target: Model, request: TokenSequence, min_confidence: float):
        if model.arch.vocab_size != target.arch.vocab_size:
            raise ValueError(
                f"draft has {model.arch.vocab_size} tokens in its vocabulary, expected those of "
                f"the target, {target.arch.vocab_size}"
            )
        context, wanted = model.arch.max_context, request.max_length
        if context is not None and context < wanted:
            raise ValueError(f"draft has a context of {context}, expected {wanted} or more")
        self._model, self._cache = model, model.new_cache(1, wanted)
        self._min_confidence = min_confidence

    def propose(self, request: TokenSequence, n: int) -> Proposal:
        """Return up to n tokens, and the distributions they were drawn from; greedy ones: None."""
        text = DraftedText(request, self._cache, n)
        (proposal,) = draft_together(self._forward, [text], self._min_confidence)
        if isinstance(proposal, Exception):
            raise proposal
        return proposal

    def _forward(self, tokens: list[list[int]], caches: list[Cache]) -> Array:
        return self._model(tokens, caches[0])


class _GuessDraft:
    """Take guesses from a function; they come from no distribution that is known."""

    def __init__(self, guess: Guess):
        self._guess = guess

    def propose(self, request: TokenSequence, n: int) -> Proposal:
        """Return up to n tokens."""
        return Proposal(request.possible(self._guess(list(request.ids), n)[:n]))
