"""A text that finds where its own ending stood before."""

from collections.abc import Sequence

from firsttoken.checks import check_count


class SuffixAutomaton:
    """A text that knows where its longest ending stood before: a draft without a model.

    The smallest automaton that reads every part of the text. A state stands for all parts that end
    at the same places; its link leads to the longest ending of theirs that also ends elsewhere. So
    the link of the state of the whole text is the longest ending that stands earlier, and what
    followed it there, the first time, is the guess. `extend` takes constant time on average,
    however long the text is, where `generate.prompt_lookup` searches all of it for every guess.

    `n_matched` is how long that ending is.

    Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; as a
            draft: Hu et al. 2024, SAM-Decoding, arXiv:2411.10666

    >>> text = SuffixAutomaton([1, 2, 3, 9, 1, 2])
    >>> text.n_matched, text.propose(3)
    (2, [3, 9, 1])
    """

    def __init__(self, tokens: Sequence[int] = ()):
        self._text: list[int] = []
        self._next: list[dict[int, int]] = [{}]  # of each state, by token; state 0: nothing read
        self._link, self._length, self._first_end = [-1], [0], [0]
        self._whole = 0
        for token in tokens:
            self.extend(token)

    @property
    def n_matched(self) -> int:
        return self._length[self._link[self._whole]] if self._text else 0

    def extend(self, token: int) -> None:
        """Add a token to the text."""
        self._text.append(token)
        state, new = self._whole, self._add({}, len(self._text), len(self._text), 0)
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            self._link[new] = self._exactly(state, token)
        self._whole = new

    def propose(self, n: int) -> list[int]:
        """Return up to n tokens: what followed the first time.

        Raises: ValueError for an n that is no count.
        """
        check_count("n", n)
        if self.n_matched == 0:
            return []
        end = self._first_end[self._link[self._whole]]
        return self._text[end : end + n]

    def _add(self, follow: dict[int, int], length: int, first_end: int, link: int) -> int:
        self._next.append(follow)
        self._length.append(length)
        self._first_end.append(first_end)
        self._link.append(link)
        return len(self._next) - 1

    def _exactly(self, state: int, token: int) -> int:
        """Return the state of what `state` stands for and then `token`, and of nothing longer."""
        follow, length = self._next[state][token], self._length[state] + 1
        if self._length[follow] == length:
            return follow
        # The longer parts do not end here: the shorter ones get a state of their own.
        own = self._add(
            dict(self._next[follow]), length, self._first_end[follow], self._link[follow]
        )
        self._link[follow] = own
        while state >= 0 and self._next[state].get(token) == follow:
            self._next[state][token] = own
            state = self._link[state]
        return own
