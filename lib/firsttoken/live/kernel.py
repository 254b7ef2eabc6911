"""A model in the kernel: it answers, by messages, what views otherwise ask the page's engine."""

import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from firsttoken.architectures import Architecture
from firsttoken.attention import attention
from firsttoken.checks import check_choice
from firsttoken.drafts import SuffixDraft
from firsttoken.generate.sequence import TokenSequence
from firsttoken.live.last_text import LastText
from firsttoken.models.inspection import Inside, look_inside
from firsttoken.models.llama import Llama
from firsttoken.models.protocols import Cache
from firsttoken.models.tokenizer import TextStream, Tokenizer
from firsttoken.sampling import SamplingParams, next_token_distribution, softmax
from firsttoken.speculative import verify

Array = np.ndarray
Turns = Generator[Any, None, Any]

DRAFTS = ("suffix_automaton",)
"""The drafts that need no weights beside the model's."""

_ROWS = 256  # tokens in one pass where each silent head has a text of its own
_MOST_RUNNING = 8  # answers under way; the oldest falls out, most likely of a page that is gone


def start_id(tokenizer: Tokenizer) -> int:
    """Return the token before a text: the tokenizer's own start, else the one between documents."""
    starts = tokenizer.start_ids
    return starts[0] if starts else tokenizer.special_tokens["<|endoftext|>"]


class KernelEngine:
    """Answer a page's questions about a model: those of engine/worker.js, under the same names.

    `hear` takes a message and returns the answer to it, None if there is none. {id, name, asked}
    asks a question, {id} asks for more of its answer, and {id, stop} ends it. An answer is {id,
    kind, value}: an "event" (None: nothing to tell yet), and at the end "done", or "failed" with
    the error's text. So each message costs one pass, other messages have their turn between two,
    and a page that is gone costs nothing.

    >>> from firsttoken.models.llama import load_model
    >>> from firsttoken.models.tokenizer import tokenizer
    >>> engine = KernelEngine(load_model("draft"), tokenizer())
    >>> engine.hear({"id": 1, "name": "tokenize", "asked": {"text": " def"}})
    {'id': 1, 'kind': 'done', 'value': {'ids': [335], 'pieces': [' def']}}
    """

    def __init__(self, model: Llama, tokenizer: Tokenizer):
        assert model.arch.max_context is not None
        self._model, self._tokenizer = model, tokenizer
        self._special = {i: name for name, i in tokenizer.special_tokens.items()}
        self._text = LastText(model, model.arch.max_context)
        # The last look, and the one at the same text with all heads.
        self._look = functools.lru_cache(2)(self._looked)
        self._running: dict[Any, Turns] = {}

    @property
    def arch(self) -> dict[str, int]:
        """What views ask about the model; `eos_id` is the token that a text begins after."""
        names = ("n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "max_context")
        sizes = {name: getattr(self._model.arch, name) for name in names}
        return sizes | {"eos_id": start_id(self._tokenizer)}

    def hear(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a message."""
        number = message["id"]
        if "name" in message:
            self._running[number] = self._begun(message["name"], message["asked"])
            if len(self._running) > _MOST_RUNNING:
                del self._running[next(iter(self._running))]
        if message.get("stop") or number not in self._running:
            self._running.pop(number, None)
            return None
        try:
            return {"id": number, "kind": "event", "value": next(self._running[number])}
        except StopIteration as end:
            kind, value = "done", end.value
        except ValueError as error:
            kind, value = "failed", str(error)
        del self._running[number]
        return {"id": number, "kind": kind, "value": value}

    def _begun(self, name: str, asked: Mapping[str, Any]) -> Turns:
        check_choice("name", name, _QUESTIONS)
        answer = _QUESTIONS[name](self, **asked)
        return (yield from answer) if isinstance(answer, Generator) else answer

    def tokenize(self, text: str) -> dict[str, Any]:
        """Return the tokens of a text. A browser may send half a character: it becomes U+FFFD."""
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids = self._tokenizer.encode(whole)
        return {"ids": ids, "pieces": [self._named(i)["piece"] for i in ids]}

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Return what each token completes; together that is the text."""
        stream = TextStream(self._tokenizer)
        parts = [stream.push(i) for i in ids]
        return [*parts[:-1], parts[-1] + stream.finish()] if parts else []

    def next(self, ids: Sequence[int], params: Mapping[str, Any], top: int = 10) -> Turns:
        """Return what may follow, before and after the settings."""
        logits = yield from self._text.read(ids)
        p, kept = softmax(logits), next_token_distribution(logits, SamplingParams(**params), ids)
        return {
            "top": self._likeliest(p, kept, top),
            "n_kept": int(np.count_nonzero(kept)),
            "entropy_bits": _entropy_bits(p),
            "kept_entropy_bits": _entropy_bits(kept),
        }

    def write(
        self,
        ids: Sequence[int],
        params: Mapping[str, Any],
        max_tokens: int = 16,
        use_cache: bool | None = None,
        top: int = 10,
    ) -> Turns:
        """Continue a text as `generate` does, token by token.

        Where `use_cache` is given, nothing read before is reused: the first step reads all.
        """
        model, stream = self._model, TextStream(self._tokenizer)
        request = TokenSequence(model, ids, SamplingParams(**params, max_tokens=max_tokens))
        text, start_s = self._text, time.perf_counter()
        if use_cache:
            text = LastText(model, request.max_length)
        while request.finish_reason is None:
            step_s = time.perf_counter()
            if use_cache is False:
                logits = model.logits(model.features([request.ids])[0, -1])
            else:
                logits = yield from text.read(request.ids)
            kept = request.distributions(logits[None])[0] if top else None
            token = request.choose(logits)
            request.append(token)
            now_s = time.perf_counter()
            yield {
                **self._named(token),
                "text": stream.push(token),
                "ids_length": len(request.ids),
                "step_ms": 1000 * (now_s - step_s),
                "at_ms": 1000 * (now_s - start_s),
                **_size(model.arch, None if use_cache is False else text.cache),
                "top": [] if kept is None else self._likeliest(softmax(logits), kept, top),
            }
        return _end(request, start_s)

    def speculate(
        self,
        ids: Sequence[int],
        params: Mapping[str, Any],
        draft: str = DRAFTS[0],
        gamma: int = 4,
        max_tokens: int = 16,
    ) -> Turns:
        """Continue a text as `speculative_generate` does with `SuffixDraft()`, round by round."""
        if draft not in DRAFTS:
            raise ValueError(f"draft must be {DRAFTS[0]} for this model, got {draft!r}")
        model, stream, suffixes = self._model, TextStream(self._tokenizer), SuffixDraft()
        request = TokenSequence(model, ids, SamplingParams(**params, max_tokens=max_tokens))
        cache, start_s = model.new_cache(1, request.max_length), time.perf_counter()
        while request.finish_reason is None:
            wanted = min(gamma, request.max_length - len(request.ids) - 1)
            round_s = time.perf_counter()
            drafted = suffixes.propose(request, wanted).tokens
            drafted_s = time.perf_counter()
            features = model.features([request.ids[cache.length :] + drafted], cache)
            logits = model.logits(features[0, -len(drafted) - 1 :])
            target = request.distributions(logits, drafted)
            tokens = verify(target, None, drafted, request.rng)
            checked_s = time.perf_counter()
            accepted, appended = len(tokens) - 1, []
            last = "replaced" if accepted < len(drafted) else "bonus"
            for i, token in enumerate(tokens):
                request.append(token)
                kind = "kept" if i < accepted else last
                appended.append(self._named(token) | {"text": stream.push(token), "kind": kind})
                if request.finish_reason is not None:
                    break
            cache.truncate(len(request.ids) - 1)  # the last token is read with the next guesses
            yield {
                "tokens": appended,
                "rejected": [self._named(i) for i in drafted[accepted:]],
                "wanted": wanted,
                "drafted": len(drafted),
                "accepted": accepted,
                "draft_ms": 1000 * (drafted_s - round_s),
                "check_ms": 1000 * (checked_s - drafted_s),
                "at_ms": 1000 * (checked_s - start_s),
            }
        return _end(request, start_s)

    def inside(
        self,
        ids: Sequence[int],
        layer: int,
        head: int,
        silenced: Sequence[Sequence[int]] = (),
        watched: int | None = None,
    ) -> dict[str, Any]:
        """Return a look into the pass: the attention of one head, what each layer would say."""
        seen = self._look(tuple(ids), tuple((at, number) for at, number in silenced))
        before = self._look(tuple(ids), ()).next
        shown = {*_largest(before, 5), *_largest(seen.next, 5)}
        shown |= set() if watched is None else {watched}
        return {
            "attention": seen.attention[layer, head].astype(float).round(6).ravel().tolist(),
            "layers": [self._named(p.argmax()) | {"p": float(p.max())} for p in seen.layers],
            "next": [
                self._named(i) | {"before": float(before[i]), "after": float(seen.next[i])}
                for i in sorted(shown, key=lambda i: -before[i])
            ],
        }

    def without_each(
        self, ids: Sequence[int], heads: Sequence[Sequence[int]], watch: Sequence[int]
    ) -> Turns:
        """Yield the probabilities of the tokens in `watch` with each of `heads` alone silent."""
        model = self._model
        n = max(1, _ROWS // len(ids))
        for some in (heads[i : i + n] for i in range(0, len(heads), n)):

            def attend(layer: int, q: Array, k: Array, v: Array, some: Any = some) -> Array:
                mixed = attention(q, k, v, window=model.windows[layer])
                for row, (at, head) in enumerate(some):
                    if at == layer:
                        mixed[row, head] = 0
                return mixed

            x = model.embedding[np.array([ids] * len(some))]
            features = model._transform(x, np.arange(len(ids), dtype=np.float32), attend)
            for (layer, head), logits in zip(some, model.logits(features[:, -1]), strict=True):
                p = softmax(logits.astype(np.float64))
                yield {"layer": layer, "head": head, "p": {str(i): float(p[i]) for i in watch}}

    def _looked(self, ids: Sequence[int], silenced: Sequence[tuple[int, int]]) -> Inside:
        return look_inside(self._model, ids, silenced)

    def _named(self, token: Any) -> dict[str, Any]:
        text = self._tokenizer.token_bytes(int(token)).decode("utf-8", errors="backslashreplace")
        return {"id": int(token), "piece": self._special.get(int(token), text)}

    def _likeliest(self, p: Array, kept: Array, n: int) -> list[dict[str, Any]]:
        top = _largest(p, n)
        return [self._named(i) | {"p": float(p[i]), "kept": float(kept[i])} for i in top]


def _size(arch: Architecture, cache: Cache | None) -> dict[str, int]:
    """Return what a cache holds: tokens, and bytes that are filled and allocated."""
    if cache is None:
        return {"n_cached": 0, "cache_bytes": 0, "cache_capacity_bytes": 0}
    parts = [read(i) for i in range(arch.n_layers) for read in (cache.keys, cache.values)]
    return {
        "n_cached": cache.length,
        "cache_bytes": sum(part.nbytes for part in parts),
        "cache_capacity_bytes": cache.nbytes,
    }


def _end(request: TokenSequence, start_s: float) -> dict[str, Any]:
    return {"finish_reason": request.finish_reason, "seconds": time.perf_counter() - start_s}


def _entropy_bits(p: Array) -> float:
    p = p[p > 0].astype(np.float64)
    return float(-(p * np.log2(p)).sum())


def _largest(p: Array, n: int) -> list[int]:
    return np.argsort(-p, kind="stable")[:n].tolist()


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "withoutEach": KernelEngine.without_each,
    **{
        name: getattr(KernelEngine, name)
        for name in ("tokenize", "decode", "next", "write", "speculate", "inside")
    },
}
