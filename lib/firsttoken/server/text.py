"""The text of a stream, in pieces that may be sent before it is known how the text ends."""

from collections.abc import Sequence

from firsttoken.models.tokenizer import TextStream, Tokenizer


class HeldText:
    r"""Turn tokens into pieces of text, none of which will have to be taken back.

    `push` each token, and `finish` with the whole text: the pieces that they return together are
    that text. Held back are the bytes of an incomplete character, and an end of the text that a
    stop string may begin with. The stop string itself is never returned.

    >>> from firsttoken.models.tokenizer import tokenizer
    >>> tok = tokenizer()
    >>> held = HeldText(tok, ["\nend"])
    >>> [held.push(i) for i in (tok.encode("a")[0], tok.encode("\n")[0], tok.encode("b")[0])]
    ['a', '', '\nb']
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self._stream, self._stop = TextStream(tokenizer), tuple(stop)
        self._held = ""
        self._n_said = 0
        self._stopped = False

    def push(self, token: int) -> str:
        """Return the text that is certain with one more token; it may be empty."""
        if self._stopped:
            return ""
        self._held += self._stream.push(token)
        found = [at for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            self._stopped = True
            return self._say(min(found))
        return self._say(len(self._held) - self._n_uncertain())

    def finish(self, text: str) -> str:
        """Return what has not been returned yet of the whole text of the answer."""
        return text[self._n_said :]

    def _say(self, n: int) -> str:
        said, self._held = self._held[:n], self._held[n:]
        self._n_said += n
        return said

    def _n_uncertain(self) -> int:
        """Return the length of the longest end of the text that a stop string begins with."""
        longest = 0
        for stop in self._stop:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""Return the name of a token in a list of log-probabilities: no two have the same.

    That is its text. Bytes that are no text by themselves are written as OpenAI writes them; a
    special token, which has no bytes at all, has its tokenizer's name for it.

    >>> from firsttoken.models.tokenizer import tokenizer
    >>> tok = tokenizer()
    >>> token_name(tok, tok.encode("é")[0])[:8]
    'bytes:\\x'
    """
    raw = tokenizer.token_bytes(token)
    if not raw:
        return tokenizer.token_name(token)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
