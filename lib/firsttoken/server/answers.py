"""Answers as OpenAI's clients expect them: whole, or as the chunks of a stream."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from firsttoken.engine import Answer, TokenLogprobs
from firsttoken.server.text import HeldText, token_name
from firsttoken.server.translation import Job
from firsttoken.tokenizer import Tokenizer

# The engine's reasons in OpenAI's words; "abort" and "error" are vLLM's.
FINISH_REASONS = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "deadline": "abort",
    "abort": "abort",
    "error": "error",
}


# Made once: `json.dumps` makes one for each call, and there is a call for each token.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Answers:
    """Writes the answers to one job, as completions or as a chat.

    `whole` is the body of a response that comes at once; `token`, `end`, `usage` and the others
    give the chunks of a stream.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, chat: bool):
        self._job, self._tokenizer, self._chat = job, tokenizer, chat
        kind = "chat.completion" if chat else "text_completion"
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": job.model,
        }
        self._head = {"object": kind, **head}
        self._chunk_head = {"object": "chat.completion.chunk" if chat else kind, **head}
        # What all chunks begin with, up to the brace that ends it.
        self._chunk_start = _encode(self._chunk_head)[:-1]
        n_answers = sum(ask.n for ask in job.asks)
        stop = job.asks[0].params.stop
        self._texts = [HeldText(tokenizer, stop) for _ in range(n_answers)]
        self._n_tokens = [0] * n_answers
        self._offsets = [0] * n_answers
        self._n_prompt = sum(len(ask.prompt_ids) for ask in job.asks)

    def whole(self, generations: Sequence[Answer]) -> dict[str, Any]:
        """Return the body of a response, all answers in it."""
        choices = []
        for i, generation in enumerate(generations):
            text = generation.text or ""
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
            choices.append(
                {
                    "index": i,
                    **(said if self._chat else {"text": text}),
                    "logprobs": self._logprobs(i, generation.logprobs),
                    "finish_reason": FINISH_REASONS[generation.finish_reason],
                }
            )
            self._n_tokens[i] = len(generation.ids)
        return {**self._head, "choices": choices, "usage": self._usage()}

    def begin(self) -> list[bytes]:
        """Return what a stream begins with: who speaks, in a chat."""
        if not self._chat:
            return []
        roles = range(len(self._texts))
        return [self._chunk(i, {"role": "assistant", "content": ""}, None, None) for i in roles]

    def token(self, index: int, token: int, logprobs: TokenLogprobs | None = None) -> list[bytes]:
        """Return the chunks of one more token: none while its text is held back."""
        self._n_tokens[index] += 1
        text = self._texts[index].push(token)
        told = self._logprobs(index, () if logprobs is None else (logprobs,))
        if not text and logprobs is None:
            return []
        return [self._chunk(index, self._said(text), told, None)]

    def end(self, index: int, generation: Answer) -> list[bytes]:
        """Return the chunk that ends an answer, with the text that was held back."""
        text = self._texts[index].finish(generation.text or "")
        reason = FINISH_REASONS[generation.finish_reason]
        said: dict[str, Any] = self._said(text) if text or not self._chat else {}
        return [self._chunk(index, said, None, reason)]

    def close(self) -> list[bytes]:
        """Return what a stream ends with: the usage, if it is wanted, and the mark of the end."""
        chunks = [b"data: [DONE]\n\n"]
        if self._job.options.include_usage:
            usage = {**self._chunk_head, "choices": [], "usage": self._usage()}
            chunks.insert(0, event(usage))
        return chunks

    def _said(self, text: str) -> dict[str, Any]:
        return {"content": text} if self._chat else {"text": text}

    def _chunk(self, index: int, said: dict[str, Any], logprobs: Any, reason: str | None) -> bytes:
        delta = {"delta": said} if self._chat else said
        choice = {"index": index, **delta, "logprobs": logprobs, "finish_reason": reason}
        usage = ""
        if self._job.options.continuous_usage_stats:
            usage = f',"usage":{_encode(self._usage())}'
        elif self._job.options.include_usage:
            usage = ',"usage":null'
        chunk = f'data: {self._chunk_start},"choices":[{_encode(choice)}]{usage}}}\n\n'
        return chunk.encode()

    def _usage(self) -> dict[str, int]:
        n_new = sum(self._n_tokens)
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": n_new,
            "total_tokens": self._n_prompt + n_new,
        }

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Return the log-probabilities of some more tokens, in the format of either kind."""
        if self._job.logprobs is None:
            return None
        name: Callable[[int], str] = lambda token: token_name(self._tokenizer, token)  # noqa: E731
        if self._chat:
            return {"content": [self._chat_logprob(t) for t in tokens], "refusal": None}
        offsets = []
        for t in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(self._tokenizer.decode([t.token]))
        return {
            "tokens": [name(t.token) for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [
                {name(other): p for other, p in (*t.top, (t.token, t.logprob))} for t in tokens
            ],
            "text_offset": offsets,
        }

    def _chat_logprob(self, chosen: TokenLogprobs) -> dict[str, Any]:
        def one(token: int, logprob: float) -> dict[str, Any]:
            raw = self._tokenizer.token_bytes(token)
            named = token_name(self._tokenizer, token)
            return {"token": named, "logprob": logprob, "bytes": list(raw)}

        top = [one(token, logprob) for token, logprob in chosen.top]
        return {**one(chosen.token, chosen.logprob), "top_logprobs": top}


def event(body: dict[str, Any]) -> bytes:
    """Return a server-sent event that holds a JSON object."""
    return (
        b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )
