"""The token loop: predict, choose, append, until something says stop."""

import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from firsttoken.constrained import Constraint, keep_allowed
from firsttoken.kv_cache import KVCache
from firsttoken.rope import rotate
from firsttoken.sampling import SamplingParams, draw, next_token_distribution, penalize, softmax
from firsttoken.speculative import Round, verify, verify_greedy
from firsttoken.tokenizer import TextStream, Tokenizer

Array = np.ndarray


@dataclass(frozen=True)
class Generation:
    """What one request brought forth.

    `ids` are the new tokens, the one that ended the text included; `token_times_s[i]` is when
    ids[i] was chosen, counted from the start of `generate`, and `prefill_s` when the pass over the
    prompt was done, a part of token_times_s[0].

    `finish_reason` is "eos" (the model ended the text), "stop" (a stop string appeared),
    "length" (max_tokens reached) or "context" (the model's context is full).
    `text` is what `ids` say, up to a stop string; None without a tokenizer.

    `rounds` are the passes of a speculative target, one after another: how many drafted tokens
    each checked and accepted, also those behind the end of the text.
    """

    ids: list[int]
    token_times_s: list[float]
    prefill_s: float
    finish_reason: str
    text: str | None = None
    rounds: tuple[Round, ...] = ()

    @property
    def drafted(self) -> int:
        """Tokens that were drafted, in all rounds."""
        return sum(r.drafted for r in self.rounds)

    @property
    def accepted(self) -> int:
        """Drafted tokens that the target accepted, in all rounds."""
        return sum(r.accepted for r in self.rounds)


def generate(
    model,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    use_cache: bool = True,
    on_token: Callable[[int], object] | None = None,
    tokenizer: Tokenizer | None = None,
    ignore_eos: bool = False,
    constraint: Constraint | None = None,
    close_in_time: bool = False,
) -> Generation:
    """Continue a prompt by one token at a time, with the model of either backend.

    With the cache, the prompt is one pass (prefill) and each further token a pass over that
    token alone (decode). Without, every step recomputes the whole text: the same tokens, slower.

    `on_token` is called with each new id as soon as it is chosen. Stop strings in `params` need
    the `tokenizer`. `ignore_eos` goes on after the end of the text, to measure a fixed length.

    A `constraint` masks the logits before anything else looks at them; it is left as it was, and
    its `eos_ids` count, not the model's. What comes before the one that ends the text ("eos") is
    valid. A text that was cut ("length", "context", "stop") is only the beginning of a valid
    one, unless `close_in_time`: then the mask leaves only tokens after which the text can still
    be completed within max_tokens and the context.

    Shapes: prompt_ids: a list of at least one id
    Units:  times in seconds
    Raises: ValueError for an empty prompt, one that fills the context, ids out of range, stop
            strings without a tokenizer, a constraint under ignore_eos or that allows no token,
            and too few tokens to close_in_time.
    """
    options = on_token, tokenizer, ignore_eos, constraint, close_in_time
    request = Continuation(model, prompt_ids, params, *options)
    reader = _Reader(model, request.limit if use_cache else None)
    while request.finish_reason is None:
        logits = reader(request.ids)
        request.prefilled()
        token, _ = request.choose(logits)
        request.push(token)
    return request.result()


def speculative_generate(
    target,
    draft,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    gamma: int = 4,
    on_token: Callable[[int], object] | None = None,
    tokenizer: Tokenizer | None = None,
    ignore_eos: bool = False,
    constraint: Constraint | None = None,
    close_in_time: bool = False,
    min_confidence: float = 0.0,
) -> Generation:
    """Continue a prompt as `generate` does, up to gamma + 1 tokens per pass of the target.

    In each round the draft guesses up to `gamma` tokens, one pass of the target gives the law at
    all their positions and the next, and `speculative.verify` decides which of them stay. The
    text follows the law of `generate` with the target alone: at temperature 0 it is the same
    text, else another with the same probabilities. Penalties, temperature, filters and the
    constraint are applied to draft and target alike, at every position with what stands before it.

    `draft` is a model with the target's vocabulary, or a function of all ids so far and of how
    many tokens are wanted, that returns at most so many guesses; they have no probabilities.

    A draft model stops before `gamma` tokens once it gave the one it chose a probability below
    `min_confidence` (at temperature 0 that of temperature 1). That token is still checked: to drop
    it, and judge the others by the draft's whole law, would favour those that are not dropped.

    A rejected token, and what was drafted after it, is forgotten: both caches are cut back to the
    text. What the draft's lacks, such as the last drafted token where all were accepted, is read
    with the next round's first token. Tokens of one round come at nearly the same time, and
    `prefill_s` contains the first round's drafting.

    Shapes: prompt_ids: a list of at least one id
    Units:  gamma in tokens; times in seconds
    Raises: ValueError as `generate`, for a negative gamma, a min_confidence outside 0 … 1 or with
            guesses, and a draft with another vocabulary or a context too short for the text.
    Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023,
            arXiv:2302.01318, algorithm 2
    """
    if operator.index(gamma) < 0:
        raise ValueError(f"gamma must be at least 0, got {gamma}")
    if not 0 <= min_confidence <= 1:
        raise ValueError(f"min_confidence must lie in 0 … 1, got {min_confidence}")
    options = on_token, tokenizer, ignore_eos, constraint, close_in_time
    request = Continuation(target, prompt_ids, params, *options)
    reader = _Reader(target, request.limit)
    is_model = hasattr(draft, "new_cache")
    if is_model:
        propose = _ModelDraft(draft, target, request, min_confidence)
    elif min_confidence:
        raise ValueError(f"min_confidence is {min_confidence}, but guesses have no probabilities")
    else:
        propose = _GuessDraft(draft, request)
    rounds = []
    while request.finish_reason is None:
        # One token per round is the target's own, so that the last needs no draft.
        drafted, laws = propose(min(gamma, request.limit - len(request.ids) - 1))
        logits = reader(request.ids + drafted, len(drafted) + 1)
        request.prefilled()
        tokens = request.check(logits, drafted, laws)
        rounds.append(Round(len(drafted), len(tokens) - 1))
        for token in tokens:
            request.push(token)
            if request.finish_reason is not None:
                break
        reader.forget_from(len(request.ids) - 1)  # the last token is read with the next draft
    return replace(request.result(), rounds=tuple(rounds))


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
    if operator.index(max_ngram) < 1 or operator.index(gamma) < 0:
        raise ValueError(f"max_ngram {max_ngram} must be at least 1, gamma {gamma} at least 0")
    ids, longest, place = list(ids), 0, len(ids)
    for end in range(len(ids) - 2, -1, -1):  # where an earlier match may have its last token
        size = 0
        while size < max_ngram and size <= end and ids[end - size] == ids[-1 - size]:
            size += 1
        if size > longest:
            longest, place = size, end + 1
    return ids[place : place + gamma]


def evict(model, cache: KVCache, n: int, sinks: int = 0) -> None:
    """Drop the n oldest tokens behind the first `sinks`, so that a full cache has room again.

    The later tokens move up: their keys are turned back by n positions, as if the text had never
    held the dropped ones. What the later tokens have read from them stays in their values: only
    in the first layer is the result that of a pass over the kept tokens alone. NumPy models only.

    Units:  n and sinks in tokens
    Raises: ValueError, and nothing is dropped, where the cache does not hold sinks + n tokens,
            or stores them in another format than fp32.
    Source: Xiao et al. 2023, arXiv:2309.17453, sec. 3.2 (positions within the cache)
    """
    if cache.dtype != "fp32":
        raise ValueError(f"cache stores {cache.dtype}: every call would round again; expected fp32")
    if n < 1 or sinks < 0 or sinks + n > cache.length:
        raise ValueError(
            f"n {n} (at least 1) and sinks {sinks} (at least 0) do not fit: the cache holds "
            f"{cache.length} tokens"
        )
    angles = -n * model.frequencies  # rotations add up: this one takes n positions away
    turn = np.cos(angles), np.sin(angles)
    kept = []
    for layer in range(model.arch.n_layers):
        keys, values = (x[:, :, sinks + n :] for x in (cache.keys(layer), cache.values(layer)))
        kept.append((rotate(keys, *turn), values.copy()))
    cache.truncate(sinks)
    for layer, (keys, values) in enumerate(kept):
        cache.append(layer, keys, values)


class Continuation:
    """One request on its way: its text, how its tokens are chosen, and what ends it.

    The arguments are those of `generate`. Whoever runs the model hands the logits to `choose` or
    `check` and the tokens to `push`, until there is a `finish_reason`. All randomness is its own,
    so that requests which share a model do not disturb each other. `ids` are prompt and answer so
    far, `limit` the most they may become; the clock starts when the object is made.
    """

    def __init__(
        self,
        model,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        on_token: Callable[[int], object] | None,
        tokenizer: Tokenizer | None,
        ignore_eos: bool,
        constraint: Constraint | None,
        close_in_time: bool,
    ):
        self._start_s = time.perf_counter()
        self.ids = [operator.index(i) for i in prompt_ids]
        self._n_prompt, self.limit = len(self.ids), _limit(model, len(self.ids), params)
        if params.stop and tokenizer is None:
            raise ValueError(f"stop {params.stop} needs a tokenizer, to see the text; got None")
        if constraint is not None:
            constraint, room = constraint.copy(), self.limit - self._n_prompt
            if ignore_eos:
                raise ValueError("ignore_eos must be False with a constraint: valid texts end")
            if close_in_time and constraint.min_tokens() > room:
                raise ValueError(
                    f"max_tokens and context leave {room} tokens, but to close_in_time "
                    f"may take {constraint.min_tokens()}"
                )
        self._params, self._on_token = params, on_token
        self._constraint, self._close_in_time = constraint, close_in_time
        self._eos_ids = () if ignore_eos else model.eos_ids
        self._rng = np.random.default_rng(params.seed)
        self._text = None if tokenizer is None else _Text(tokenizer, params.stop)
        self._times: list[float] = []
        self._prefill_s: float | None = None
        self.finish_reason: str | None = None

    def choose(self, logits: Array, drafted: Sequence[int] = ()) -> tuple[int, Array | None]:
        """Return a token to follow the text and `drafted`, and the law it comes from: [1, V].

        At temperature 0 there is no law to make.
        """
        if self._params.temperature == 0:
            return int(self._scores(logits, drafted)[0].argmax()), None
        law = self._laws(logits, drafted)
        return int(draw(law[0], self._rng)), law

    def check(self, logits: Array, drafted: list[int], laws: list[Array] | None) -> list[int]:
        """Return what the target's logits [γ+1, V] make of tokens drafted from `laws`, [1, V]."""
        if self._params.temperature == 0:
            return verify_greedy(self._scores(logits, drafted).argmax(axis=-1).tolist(), drafted)
        draft = np.concatenate(laws) if laws else None
        return verify(self._laws(logits, drafted), draft, drafted, self._rng)

    def push(self, token: int) -> None:
        """Add a token to the text, and see whether that ends it."""
        self.ids.append(token)
        if self._constraint is not None:
            self._constraint.advance(token)
        self._times.append(self._elapsed_s())
        if self._on_token is not None:
            self._on_token(token)
        stopped = self._text is not None and self._text.push(token)
        if self.ended_by([]):
            self.finish_reason = "eos"
        elif stopped:
            self.finish_reason = "stop"
        elif len(self._times) == self._params.max_tokens:
            self.finish_reason = "length"
        elif len(self.ids) == self.limit:
            self.finish_reason = "context"

    def ended_by(self, drafted: Sequence[int]) -> bool:
        """Say whether the text, with some drafted tokens, has come to its end."""
        if self._constraint is not None:
            return self._constrained(drafted).finished
        return (drafted or self.ids)[-1] in self._eos_ids

    def possible(self, guesses: Sequence[int]) -> list[int]:
        """Return the guesses up to the end of the text, or to one that the constraint forbids."""
        drafted: list[int] = []
        for token in guesses:
            if self._constraint is not None and not self._mask(drafted)[token]:
                break
            drafted.append(token)
            if self.ended_by(drafted):
                break
        return drafted

    def prefilled(self) -> None:
        """Note the time, once."""
        if self._prefill_s is None:
            self._prefill_s = self._elapsed_s()

    def result(self) -> Generation:
        """Return what has become of the request."""
        said = None if self._text is None else self._text.finish()
        new_ids = self.ids[self._n_prompt :]
        return Generation(new_ids, self._times, self._prefill_s, self.finish_reason, said)

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _scores(self, logits: Array, drafted: Sequence[int]) -> Array:
        """Mask and penalise logits [T, V]: those after the last T beginnings of `drafted`."""
        return penalize(*self._in_context(logits, drafted))

    def _laws(self, logits: Array, drafted: Sequence[int]) -> Array:
        """Return the law of the next token after each of the last T beginnings of `drafted`."""
        return next_token_distribution(*self._in_context(logits, drafted))

    def _in_context(self, logits: Array, drafted: Sequence[int]) -> tuple:
        """Return the masked logits, params, and prompt and output before each row."""
        n_rows = len(logits)
        beginnings = [drafted[:n] for n in range(len(drafted) - n_rows + 1, len(drafted) + 1)]
        if self._constraint is not None:
            rows = zip(logits, beginnings, strict=True)
            # Behind the end of the text nothing is allowed, and nothing will be read.
            logits = np.stack(
                [
                    row if self.ended_by(begun) else keep_allowed(row, self._mask(begun))
                    for row, begun in rows
                ]
            )
        prompt, output = self.ids[: self._n_prompt], self.ids[self._n_prompt :]
        return logits, self._params, [prompt] * n_rows, [[*output, *b] for b in beginnings]

    def _mask(self, drafted: Sequence[int]) -> Array:
        """Return which tokens may follow the text and `drafted`."""
        left = self.limit - len(self.ids) - len(drafted)
        return self._constrained(drafted).mask(left if self._close_in_time else math.inf)

    def _constrained(self, drafted: Sequence[int]) -> Constraint:
        """Return the constraint as it stands after some drafted tokens."""
        constraint = self._constraint.copy() if drafted else self._constraint
        for token in drafted:
            constraint.advance(token)
        return constraint


class _Reader:
    """A model and what it has read; without a capacity it has no cache, and reads all again."""

    def __init__(self, model, capacity: int | None):
        self._model = model
        self._cache = None if capacity is None else model.new_cache(1, capacity)

    def __call__(self, ids: Sequence[int], n: int = 1) -> Array:
        """Read what is new among the ids, and return the logits that follow the last n: [n, V]."""
        seen = 0 if self._cache is None else self._cache.length
        return np.asarray(self._model([ids[seen:]], self._cache))[0, -n:]

    def forget_from(self, length: int) -> None:
        """Cut the cache back to `length` tokens, if it holds more."""
        self._cache.truncate(min(length, self._cache.length))


class _ModelDraft:
    """Guess with a smaller model, token by token."""

    def __init__(self, draft, target, request: Continuation, min_confidence: float):
        if draft.arch.vocab_size != target.arch.vocab_size:
            raise ValueError(
                f"draft has {draft.arch.vocab_size} tokens in its vocabulary, expected those of "
                f"the target, {target.arch.vocab_size}"
            )
        context = draft.arch.max_context
        if context is not None and context < request.limit:
            raise ValueError(f"draft has a context of {context}, expected {request.limit} or more")
        self._request, self._reader = request, _Reader(draft, request.limit)
        self._min_confidence = min_confidence

    def __call__(self, n: int) -> tuple[list[int], list[Array] | None]:
        """Return up to n tokens, and the law each was drawn from (at temperature 0 None)."""
        request, reader = self._request, self._reader
        reader.forget_from(len(request.ids) - 1)  # of the last draft, what was rejected
        drafted: list[int] = []
        laws: list[Array | None] = []
        while len(drafted) < n and not (drafted and request.ended_by(drafted)):
            logits = reader(request.ids + drafted)
            token, law = request.choose(logits, drafted)
            drafted.append(token)
            laws.append(law)
            if self._min_confidence:
                confidence = (softmax(logits) if law is None else law)[0, token]
                if confidence < self._min_confidence:
                    break
        return drafted, laws


class _GuessDraft:
    """Take guesses from a function; they have no law."""

    def __init__(self, guess: Callable[[list[int], int], Sequence[int]], request: Continuation):
        self._guess, self._request = guess, request

    def __call__(self, n: int) -> tuple[list[int], None]:
        """Return up to n tokens."""
        return self._request.possible(self._guess(list(self._request.ids), n)[:n]), None


class _Text:
    """The text so far, watched for stop strings."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]):
        self._stream, self._stop = TextStream(tokenizer), stop
        self._text, self._end = "", None

    def push(self, token: int) -> bool:
        """Add a token; say whether a stop string has appeared."""
        # It may span tokens: look back as far as the longest one could reach.
        start = len(self._text) - max((len(s) for s in self._stop), default=1) + 1
        self._text += self._stream.push(token)
        found = [at for s in self._stop if (at := self._text.find(s, max(start, 0))) >= 0]
        self._end = min(found, default=None)
        return self._end is not None

    def finish(self) -> str:
        """Return the text before the first stop string, or all of it."""
        return (self._text + self._stream.finish())[: self._end]


def _limit(model, n_prompt: int, params: SamplingParams) -> int:
    """Return how many tokens the text may have, prompt included."""
    if n_prompt == 0:
        raise ValueError("prompt_ids must hold at least one id, got none")
    wanted, context = n_prompt + params.max_tokens, model.arch.max_context
    if context is not None and n_prompt >= context:
        raise ValueError(
            f"prompt_ids hold {n_prompt} tokens, expected fewer than the context of {context}"
        )
    return wanted if context is None else min(wanted, context)
