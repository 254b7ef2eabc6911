"""Who waits, and who of them is first."""

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from firsttoken.batching.records import Request


class WaitingQueue:
    """The requests that wait to run, by their place in the list of all.

    First is the lowest priority number, then the earliest arrival, then the order given. Waiting
    for `aging_s` makes up for one priority. With `fair`, clients take turns: next is the client for
    whom the fewest tokens have been computed, as `charge` was told.

    >>> queue = WaitingQueue([Request(0.0, 1, 1, priority=1), Request(2.0, 1, 1)])
    >>> for i in (0, 1):
    ...     queue.add(i)
    >>> queue.first()
    1
    """

    def __init__(
        self, requests: Sequence[Request], aging_s: float = math.inf, fair: bool = False
    ) -> None:
        strict = aging_s == math.inf
        # Waiting lifts all alike, so the order of two requests never changes: one priority is
        # worth as much as arriving aging_s earlier.
        self.order = [
            (r.priority if strict else r.priority * aging_s + r.arrival_s, r.arrival_s, i)
            for i, r in enumerate(requests)
        ]
        self.fair, self.n_waiting = fair, 0
        self._clients = [r.client if fair else "" for r in requests]  # not fair: all are one
        self._heaps: dict[str, list[tuple[float, float, int]]] = {}  # of those who have requests
        self._computed = dict.fromkeys(self._clients, 0)  # tokens, per client
        self._turn = next(iter(self._computed), "")  # the client whose request was first last

    def add(self, i: int) -> None:
        """Let a request wait: a new one, or one that was preempted."""
        client = self._clients[i]
        if client not in self._heaps:
            # A client that returns is put level with the one who got least: being away earns no
            # credit.
            least = min(self._computed[other] for other in self._heaps or [self._turn])
            self._computed[client] = max(self._computed[client], least)
            self._heaps[client] = []
        heappush(self._heaps[client], self.order[i])
        self.n_waiting += 1

    def first(self) -> int:
        """Return the request that is next."""
        heaps, computed = self._heaps, self._computed
        self._turn = min(heaps, key=lambda client: (computed[client], heaps[client][0]))
        return heaps[self._turn][0][-1]

    def pop(self, i: int) -> None:
        """Let the request that is first go."""
        client = self._clients[i]
        heappop(self._heaps[client])
        if not self._heaps[client]:
            del self._heaps[client]
        self.n_waiting -= 1

    def charge(self, i: int, n_tokens: int) -> None:
        """Note that tokens have been computed for a request."""
        self._computed[self._clients[i]] += n_tokens

    def oldest_arrival(self) -> float:
        """Return when the request arrived that has waited longest."""
        return min(arrival for heap in self._heaps.values() for _, arrival, _ in heap)
