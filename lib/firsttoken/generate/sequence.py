"""One request on its way: its text, its random numbers, its clock, and what ends it."""

import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from firsttoken.models.protocols import Model
from firsttoken.models.tokenizer import TextStream, Tokenizer
from firsttoken.sampling import SamplingParams, draw, next_token_distribution
from firsttoken.sampling.constrained import Constraint, keep_allowed
from firsttoken.sampling.params import penalize
from firsttoken.speculative import Round
from firsttoken.speculative.trees import branches

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


@dataclass(frozen=True)
class TextOptions:
    """How a text may go on and end, besides `SamplingParams`: see `generate`."""

    ignore_eos: bool = False
    constraint: Constraint | None = None
    close_in_time: bool = False


class TokenSequence:
    """One request on its way: its text, how its tokens are chosen, and what ends it.

    The arguments are those of `generate`. Whoever runs the model asks `choose` for the next token,
    or `distributions` for what to draw it from, and hands it to `append`, until there is a
    `finish_reason`. All randomness is its own, `rng`, so that requests which share a model do not
    disturb each other. `ids` are prompt and answer so far, `max_length` the most they may become;
    the clock starts when the object is made.

    Where tokens are `drafted`, they are not yet part of the text, and what is asked is how the
    text would go on behind them.
    """

    def __init__(
        self,
        model: Model,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        on_token: Callable[[int], object] | None = None,
        tokenizer: Tokenizer | None = None,
        options: TextOptions = TextOptions(),
    ):
        self._start_s = time.perf_counter()
        self.ids = [operator.index(i) for i in prompt_ids]
        self.max_length = _max_length(model, len(self.ids), params)
        self._n_prompt = len(self.ids)
        if params.stop and tokenizer is None:
            raise ValueError(f"stop {params.stop} needs a tokenizer, to see the text; got None")
        constraint = options.constraint
        if constraint is not None:
            constraint, room = constraint.copy(), self.max_length - self._n_prompt
            if options.ignore_eos:
                raise ValueError("ignore_eos must be False with a constraint: valid texts end")
            if options.close_in_time and constraint.min_tokens() > room:
                raise ValueError(
                    f"max_tokens and context leave {room} tokens, but to close_in_time "
                    f"may take {constraint.min_tokens()}"
                )
        self.params, self._on_token = params, on_token
        self._constraint, self._close_in_time = constraint, options.close_in_time
        self._eos_ids = () if options.ignore_eos else model.eos_ids
        self.rng = np.random.default_rng(params.seed)
        self._text = None if tokenizer is None else _Text(tokenizer, params.stop)
        self._times: list[float] = []
        self._prefill_s: float | None = None
        self.finish_reason: str | None = None

    def choose(self, logits: Array, drafted: Sequence[int] = ()) -> int:
        """Return a token to follow the text and `drafted`; logits [V] are what the model says."""
        if self.params.temperature == 0:  # no need for a distribution
            return int(self.scores(logits[None], drafted)[0].argmax())
        return int(draw(self.distributions(logits[None], drafted)[0], self.rng))

    def distributions(
        self,
        logits: Array,
        drafted: Sequence[int] = (),
        parents: Sequence[int] | None = None,
    ) -> Array:
        """Return the distribution of the next token after each of the last beginnings of `drafted`.

        Row i of the logits [T, V], and of the result, follows the text and drafted without its
        last T - 1 - i tokens. Where the drafted tokens are a tree (`parents`), the rows follow its
        last branches: `speculative.trees.branches`.
        """
        masked, *before = self._in_context(logits, drafted, parents)
        return next_token_distribution(masked, self.params, *before)

    def scores(
        self,
        logits: Array,
        drafted: Sequence[int] = (),
        parents: Sequence[int] | None = None,
    ) -> Array:
        """Return the logits [T, V] behind mask and penalties: the largest is the greedy choice.

        Rows are those of `distributions`.
        """
        masked, *before = self._in_context(logits, drafted, parents)
        return penalize(masked, self.params, *before)

    def append(self, token: int) -> None:
        """Add a token to the text, and see whether that ends it."""
        self.ids.append(token)
        if self._constraint is not None:
            self._constraint.advance(token)
        self._times.append(self._elapsed_s())
        if self._on_token is not None:
            self._on_token(token)
        stopped = self._text is not None and self._text.append(token)
        if self.ended_by([]):
            self.finish_reason = "eos"
        elif stopped:
            self.finish_reason = "stop"
        elif len(self._times) == self.params.max_tokens:
            self.finish_reason = "length"
        elif len(self.ids) == self.max_length:
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

    def note_prefill(self) -> None:
        """Note that the prompt has been read; only the first time counts."""
        if self._prefill_s is None:
            self._prefill_s = self._elapsed_s()

    def result(self, rounds: Sequence[Round] = ()) -> Generation:
        """Return what has become of a request that has finished."""
        assert self.finish_reason is not None and self._prefill_s is not None
        said = None if self._text is None else self._text.finish()
        return Generation(
            self.ids[self._n_prompt :],
            self._times,
            self._prefill_s,
            self.finish_reason,
            said,
            tuple(rounds),
        )

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _in_context(
        self, logits: Array, drafted: Sequence[int], parents: Sequence[int] | None
    ) -> tuple[Array, list, list]:
        """Return the masked logits, and the prompt and the output that stand before each row."""
        n_rows = len(logits)
        beginnings: list[Sequence[int]] = [drafted]
        if parents is not None:
            beginnings = [*branches(drafted, parents)[-n_rows:]]
        elif n_rows > 1:
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
        return logits, [prompt] * n_rows, [[*output, *begun] for begun in beginnings]

    def _mask(self, drafted: Sequence[int]) -> Array:
        """Return which tokens may follow the text and `drafted`."""
        left = self.max_length - len(self.ids) - len(drafted)
        return self._constrained(drafted).mask(left if self._close_in_time else math.inf)

    def _constrained(self, drafted: Sequence[int]) -> Constraint:
        """Return the constraint as it stands after some drafted tokens."""
        assert self._constraint is not None
        constraint = self._constraint.copy() if drafted else self._constraint
        for token in drafted:
            constraint.advance(token)
        return constraint


class _Text:
    """The text so far, watched for stop strings."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]):
        self._stream, self._stop = TextStream(tokenizer), stop
        self._text = ""
        self._end: int | None = None

    def append(self, token: int) -> bool:
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


def _max_length(model: Model, n_prompt: int, params: SamplingParams) -> int:
    """Return how many tokens the text may have, prompt included."""
    if n_prompt == 0:
        raise ValueError("prompt_ids must hold at least one id, got none")
    wanted, context = n_prompt + params.max_tokens, model.arch.max_context
    if context is not None and n_prompt >= context:
        raise ValueError(
            f"prompt_ids hold {n_prompt} tokens, expected fewer than the context of {context}"
        )
    return wanted if context is None else min(wanted, context)
