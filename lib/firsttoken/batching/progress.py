"""Which tokens requests have, and when they came."""

from collections.abc import Sequence

from firsttoken.batching.records import Request


class Progress:
    """The tokens of each request, by its place in the list of all.

    A request that decodes gets a token at the end of every step, so that single steps need no
    bookkeeping: `start` notes its first step and, if nothing intervenes, its last, and `stop` adds
    the times of all from first to last. A guess that is kept (`keep`) is one token more, and brings
    the last step one step nearer.

    >>> progress = Progress([Request(0.0, 5, 2)])
    >>> progress.start(0)
    >>> progress.end_step(1.0), progress.end_step(2.0)  # who has all tokens then
    ([], [0])
    >>> progress.stop(0)
    >>> progress.token_times
    [[1.0, 2.0]]
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.token_times: list[list[float]] = [[] for _ in requests]  # up to the last `stop`
        self._n_output = [request.n_output for request in requests]
        self._step_ends: list[float] = []
        self._first_step, self._last_step = ([0] * len(requests) for _ in range(2))
        self._leaving: dict[int, list[int]] = {}  # last step to requests
        self._kept_times: list[list[float]] = [[] for _ in requests]

    def start(self, i: int) -> None:
        """Let a request decode, from the step on that ends next."""
        step = len(self._step_ends)
        last = step + self._n_output[i] - len(self.token_times[i]) - 1
        self._first_step[i], self._last_step[i] = step, last
        self._leaving.setdefault(last, []).append(i)

    def stop(self, i: int) -> None:
        """Write down the tokens that a request got since it started."""
        times = self._step_ends[self._first_step[i] :] + self._kept_times[i]
        self.token_times[i] += sorted(times)
        self._kept_times[i] = []

    def preempt(self, i: int) -> None:
        """Stop a request before it has all its tokens."""
        self._leaving[self._last_step[i]].remove(i)
        self.stop(i)

    def n_missing(self, decoding: Sequence[int]) -> list[int]:
        """Return how many tokens each of these lacks beside that of the step that ends next."""
        step = len(self._step_ends)
        return [self._last_step[i] - step for i in decoding]

    def keep(self, i: int, n_kept: int, end_s: float) -> None:
        """Give a request tokens that were guessed, at the end of the step that ends next."""
        self._kept_times[i] += [end_s] * n_kept
        self._leaving[self._last_step[i]].remove(i)
        self._last_step[i] -= n_kept
        self._leaving.setdefault(self._last_step[i], []).append(i)

    def end_step(self, end_s: float) -> list[int]:
        """Give a token to all who decode; return who has all tokens now, to be stopped."""
        step = len(self._step_ends)
        self._step_ends.append(end_s)
        return self._leaving.pop(step, [])
