"""Answers as OpenAI's clients expect them: whole, or as the chunks of a stream."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from firsttoken.engine import TokenLogprobs
from firsttoken.models.tokenizer import TextStream, Tokenizer
from firsttoken.server.messages import Finished
from firsttoken.server.text import HeldText, token_name
from firsttoken.server.translation import Job

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


# Made once: `json.dumps` would make an encoder for each call, so for each token.
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# A line of a stream ends in CR or LF alone. Clients that split as `str.splitlines` does, as httpx,
# would cut an event in two at each of these; as escapes they are the same JSON.
_LINE_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})


def _encode(body: Any) -> str:
    text = _json(body)
    return text if text.isascii() else text.translate(_LINE_ENDS)


class Answers:
    """Writes the answers to one job, as completions or as a chat.

    `whole` returns the body of a response that is sent at once; `token`, `end` and `close` return
    the chunks of a stream.
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
        # What all chunks begin with: the head without its closing brace.
        self._chunk_start = _encode(self._chunk_head)[:-1]
        n_answers = sum(ask.n for ask in job.asks)
        stop = job.asks[0].params.stop
        self._texts = [HeldText(tokenizer, stop) for _ in range(n_answers)]
        self._n_tokens = [0] * n_answers
        self._begun = [False] * n_answers
        # The text of the tokens whose log-probabilities were sent, and its length in characters.
        self._logprob_texts = [TextStream(tokenizer) for _ in range(n_answers)]
        self._logprob_offsets = [0] * n_answers
        self._n_prompt = sum(len(ask.prompt_ids) for ask in job.asks)
        self._n_cached: list[int | None] = [None] * n_answers

    def whole(self, finished: Sequence[Finished]) -> dict[str, Any]:
        """Return the body of a response, all answers in it, in their order."""
        choices = []
        for i, done in enumerate(finished):
            generation = done.answer
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
            self._n_tokens[i], self._n_cached[i] = len(generation.ids), done.cached_tokens
        return {**self._head, "choices": choices, "usage": self._usage()}

    def token(self, index: int, token: int, logprobs: TokenLogprobs | None = None) -> list[bytes]:
        """Return the chunks of one more token; none while its text is held back.

        The first token always has a chunk, if need be without text: clients measure the time to the
        first token by it. In a chat this chunk also has the role.
        """
        self._n_tokens[index] += 1
        text = self._texts[index].push(token)
        sent = self._logprobs(index, () if logprobs is None else (logprobs,))
        if not text and logprobs is None and self._begun[index]:
            return []
        return [self._chunk(index, self._said(index, text), sent, None)]

    def end(self, done: Finished) -> list[bytes]:
        """Return the chunk that ends an answer, with the text that was held back."""
        index, generation = done.index, done.answer
        self._n_cached[index] = done.cached_tokens
        text = self._texts[index].finish(generation.text or "")
        reason = FINISH_REASONS[generation.finish_reason]
        nothing = self._chat and self._begun[index] and not text
        return [self._chunk(index, {} if nothing else self._said(index, text), None, reason)]

    def close(self) -> list[bytes]:
        """Return the last chunks of a stream: the usage, if it was asked for, and the end mark."""
        chunks = [b"data: [DONE]\n\n"]
        if self._job.options.include_usage:
            usage = {**self._chunk_head, "choices": [], "usage": self._usage()}
            chunks.insert(0, event(usage))
        return chunks

    def _said(self, index: int, text: str) -> dict[str, Any]:
        begun, self._begun[index] = self._begun[index], True
        if not self._chat:
            return {"text": text}
        return {"content": text} if begun else {"role": "assistant", "content": text}

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

    def _usage(self) -> dict[str, Any]:
        n_new, n_cached, first = sum(self._n_tokens), 0, 0
        for ask in self._job.asks:
            # The other answers to a prompt share it with the first one: that is no cache hit.
            found = [n for n in self._n_cached[first : first + ask.n] if n is not None]
            n_cached += min(found, default=0)
            first += ask.n
        return {
            "prompt_tokens": self._n_prompt,
            "completion_tokens": n_new,
            "total_tokens": self._n_prompt + n_new,
            "prompt_tokens_details": {"cached_tokens": n_cached},
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
            # The complete characters before it: a token may begin in the middle of one.
            offsets.append(self._logprob_offsets[index])
            self._logprob_offsets[index] += len(self._logprob_texts[index].push(t.token))
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
    return f"data: {_encode(body)}\n\n".encode()
