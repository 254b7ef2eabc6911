"""The batched sampler: the filters of `sampling` without a pass over the vocabulary for each.

A few hundred tokens of each row are enough to decide: its shortlist.
"""

from typing import NamedTuple, Protocol

import numpy as np

from firsttoken.sampling.draws import invert
from firsttoken.sampling.logits import (
    apply_temperature,
    as_floats,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    per_row,
    rounding_slack,
    softmax,
)

Array = np.ndarray


class Shortlist(NamedTuple):
    """The tokens of each row that its filters keep, with their probabilities.

    `settled` is False for a row that has no short list: nothing filters it, or its filters
    keep too much of the vocabulary. Its probabilities are all 0.

    Shapes: ids, probabilities: (B, M), by rising id, with probability 0 where a token is
            dropped or a row holds fewer than M; settled: (B,)
    """

    ids: Array
    probabilities: Array
    settled: Array


def shortlist(
    logits: Array,
    temperature: float | Array = 1.0,
    top_k: int | Array = 0,
    top_p: float | Array = 1.0,
    min_p: float | Array = 0.0,
) -> Shortlist:
    """Find the tokens that temperature, min-p, top-k and top-p keep without sorting them all.

    Split the vocabulary into groups. The k-th largest of the groups' maxima is a floor: k
    tokens are at least that large, so whatever lies below is none of the k largest. A few
    hundred tokens are left, and the filters decide among those.

    Shapes: logits (B, V); each parameter a number, or (B,) for one per row
    Raises: ValueError as the filters do.

    >>> logits = np.log(np.arange(1.0, 2001.0))[None]
    >>> ids, probabilities, settled = shortlist(logits, top_k=2)
    >>> ids[probabilities > 0].tolist(), settled.tolist()
    ([1998, 1999], [True])
    """
    logits = np.asarray(logits)
    divisor, *filters = row_parameters(logits.shape, temperature, top_k, top_p, min_p)
    return shorten(Rows(logits, divisor), *filters)


def sample(
    logits: Array,
    rng: np.random.Generator,
    temperature: float | Array = 1.0,
    top_k: int | Array = 0,
    top_p: float | Array = 1.0,
    min_p: float | Array = 0.0,
) -> Array:
    """Draw one id per row, as temperature, min-p, top-k, top-p, softmax and `draw` would, faster.

    The same numbers of `rng` give the same ids, but for rounding. Rows with a `shortlist` are
    drawn from it; only the others cost passes over the whole vocabulary, or a sort.

    Shapes: logits (B, V); each parameter a number, or (B,) for one per row; result (B,)
    Raises: ValueError as the filters do.

    >>> sample(np.log([[0.1, 0.9], [0.9, 0.1]]), np.random.default_rng(0), temperature=0).tolist()
    [1, 0]
    """
    logits = np.asarray(logits)
    divisor, *filters = row_parameters(logits.shape, temperature, top_k, top_p, min_p)
    return choose(Rows(logits, divisor), rng.random(len(logits)), *filters)


class AllLogits(Protocol):
    """What `sample` reads of all V logits (B, V); everything else sees a few hundred a row."""

    temperature: Array

    def maxima(self) -> Array:
        """Return the largest logit of each group: (B, n)."""

    def members(self, row: Array, group: Array) -> tuple[Array, Array]:
        """Return ids and logits of some groups, each (m, size); -inf for ids of V and more."""

    def whole(self, rows: Array) -> Array:
        """Return all logits of some rows, divided by the temperature: (r, V)."""


class Rows:
    """`AllLogits` in NumPy; `sampling_torch` has the same in PyTorch."""

    def __init__(self, logits: Array, temperature: Array):
        self.logits, self.temperature = as_floats(logits), temperature
        # A group is every n-th token, as NumPy is fastest along whole rows; about 64 tokens.
        self.n_groups = max(1, logits.shape[1] // 64)

    def maxima(self) -> Array:
        """Return the largest logit of each group: (B, n)."""
        n_rows, n_vocab = self.logits.shape
        n = self.n_groups
        rest = n_vocab % n
        whole = self.logits[:, : n_vocab - rest].reshape(n_rows, n_vocab // n, n)
        maxima = whole.max(axis=1)
        np.maximum(maxima[:, :rest], self.logits[:, n_vocab - rest :], out=maxima[:, :rest])
        return maxima

    def members(self, row: Array, group: Array) -> tuple[Array, Array]:
        """Return ids and logits of some groups, each (m, size); -inf for ids of V and more."""
        n_vocab = self.logits.shape[1]
        ids = group[:, None] + np.arange(0, n_vocab, self.n_groups)
        logits = self.logits[row[:, None], np.minimum(ids, n_vocab - 1)]
        return ids, np.where(ids < n_vocab, logits, -np.inf)

    def whole(self, rows: Array) -> Array:
        """Return all logits of some rows, divided by the temperature: (r, V)."""
        logits = self.logits if rows.all() else self.logits[rows]
        return apply_temperature(logits, self.temperature[rows, 0])


def row_parameters(
    shape: tuple[int, ...],
    temperature: float | Array,
    top_k: int | Array,
    top_p: float | Array,
    min_p: float | Array,
) -> tuple[Array, ...]:
    """Check the parameters of logits (B, V) and return each as (B, 1); greedy is the best 1 of all.

    Raises: ValueError for logits that are not (B, V), and as the filters do.
    """
    if len(shape) != 2 or shape[1] == 0:
        raise ValueError(f"logits must be (B, V), V at least 1, got shape {shape}")
    rows = shape[:1]
    given = (
        per_row("temperature", temperature, rows, 0, np.inf),
        per_row("top_k", top_k, rows, 0, np.inf, whole=True),
        per_row("top_p", top_p, rows, 0, 1),
        per_row("min_p", min_p, rows, 0, 1),
    )
    greedy = given[0] == 0
    return tuple(
        np.broadcast_to(np.where(greedy, value, parameter), (*rows, 1))
        for value, parameter in zip((1, 1, 1, 0), given, strict=True)
    )


def shorten(rows: AllLogits, top_k: Array, top_p: Array, min_p: Array) -> Shortlist:
    """Return the shortlist of `rows`, with each parameter as (B, 1)."""
    groups = rows.maxima()
    # Dividing by the temperature keeps the order: these are the maxima of what it leaves.
    maxima = apply_temperature(groups, rows.temperature[:, 0])
    top = maxima.max(axis=-1, keepdims=True)
    unlimited = ((top_k == 0) & (min_p == 0))[:, 0]
    by_mass = unlimited & (top_p[:, 0] < 1)  # top-p alone counts the mass of the whole row
    n, total = np.array(top_k), np.zeros(top.shape)
    if by_mass.any():
        total[by_mass] = _weight(rows.whole(by_mass), top[by_mass])
        n[by_mass] = _n_for(top_p[by_mass] * total[by_mass], maxima[by_mass])
    floor = np.maximum(_kth_largest(maxima, n), _min_p_bound(top, min_p))
    floor[unlimited & ~by_mass] = np.inf  # no filter, no list

    above = maxima >= floor
    n_above = above.sum(axis=-1)
    settled = (n_above > 0) & (n_above <= maxima.shape[-1] // 2)  # longer lists save little
    row, group = np.nonzero(above & settled[:, None])
    ids, logits = rows.members(row, group)
    # The row's largest beside them: what temperature does to them may depend on it.
    logits = np.append(logits, groups.max(axis=-1, keepdims=True)[row], axis=-1)
    logits = apply_temperature(logits, rows.temperature[row, 0])[:, :-1]

    listed = logits >= floor[row]
    row = np.broadcast_to(row[:, None], ids.shape)[listed]
    ids, logits = _table(row, ids[listed], logits[listed], len(floor))

    alone = settled & by_mass
    if alone.any():
        # p of the row's mass is more of the list's own mass, of which p is counted below.
        slack, ratio = rounding_slack(logits), total[alone] / _weight(logits[alone], top[alone])
        share = (top_p[alone] - slack) * ratio + slack
        top_p = np.array(top_p, dtype=np.float64)
        top_p[alone] = np.clip(share, 0, 1)
        settled[alone] = share[:, 0] < 1  # else the list does not reach p
    probabilities = np.zeros_like(logits)
    if settled.any():
        kept = _filtered(logits[settled], *(x[settled, 0] for x in (top_k, top_p, min_p)))
        probabilities[settled] = softmax(kept)
    return Shortlist(ids, probabilities, settled)


def _table(row: Array, ids: Array, logits: Array, n_rows: int) -> tuple[Array, Array]:
    """Return a list of (row, id, logit) as tables (B, M): ids rise, -inf fills short rows."""
    order = np.lexsort((ids, row))
    n_listed = np.bincount(row, minlength=n_rows)
    place = np.arange(len(row)) - np.repeat(n_listed.cumsum() - n_listed, n_listed)
    shape, at = (n_rows, n_listed.max(initial=1)), (row[order], place)
    id_table, logit_table = np.zeros(shape, np.int64), np.full(shape, -np.inf, logits.dtype)
    id_table[at], logit_table[at] = ids[order], logits[order]
    return id_table, logit_table


def _n_for(wanted: Array, maxima: Array) -> Array:
    """Return how many of the largest maxima it takes to hold a mass (B, 1), at most a quarter.

    A guess where a group hides a second large logit: whether the list holds the mass shows later.
    """
    falling = np.sort(maxima, axis=-1)[:, ::-1].astype(np.float64)
    mass = np.exp(falling - falling[:, :1]).cumsum(axis=-1)
    return np.minimum(1 + (mass < wanted).sum(axis=-1, keepdims=True), maxima.shape[-1] // 4)


def _kth_largest(maxima: Array, k: Array) -> Array:
    """Return the k-th largest of each row, -inf where k is 0 or too large: (B, 1)."""
    n_groups = maxima.shape[-1]
    known = (k > 0) & (k <= n_groups)
    place = np.where(known, n_groups - k, 0)
    rising = np.partition(maxima, np.unique(place), axis=-1)
    return np.where(known, np.take_along_axis(rising, place, axis=-1), -np.inf)


def _min_p_bound(top: Array, min_p: Array) -> Array:
    """Return a number just below what min-p keeps; all that is not -inf where it keeps all."""
    with np.errstate(divide="ignore"):
        bound = (top + np.log(min_p) - rounding_slack(top)).astype(top.dtype)  # as in keep_min_p
    return np.maximum(np.nextafter(bound, top.dtype.type(-np.inf)), np.finfo(top.dtype).min)


def choose(rows: AllLogits, uniform: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    """Return the ids that uniform numbers (B,) stand for, with each parameter as (B, 1)."""
    table, probabilities, settled = shorten(rows, top_k, top_p, min_p)
    chosen = np.zeros(len(uniform), dtype=np.int64)
    place = invert(probabilities[settled], uniform[settled])
    chosen[settled] = table[settled, place]  # a place in the list is no id yet
    free = ((top_k == 0) & (top_p == 1) & (min_p == 0))[:, 0]
    for rest in (free, ~settled & ~free):  # what nothing filters needs no sort
        if rest.any():
            kept = _filtered(rows.whole(rest), *(x[rest, 0] for x in (top_k, top_p, min_p)))
            chosen[rest] = _invert_in_groups(softmax(kept), uniform[rest])
    return chosen


def _weight(logits: Array, top: Array) -> Array:
    """Return the sum of exp(logits - top) of each row: (…, 1)."""
    distance = np.subtract(logits, top, dtype=np.float64)
    return np.exp(distance, out=distance).sum(axis=-1, keepdims=True)


def _filtered(
    logits: Array, top_k: int | Array, top_p: float | Array, min_p: float | Array
) -> Array:
    """Apply the filters in vLLM's order; each sees what the one before left."""
    return keep_top_p(keep_top_k(keep_min_p(logits, min_p), top_k), top_p)


def _invert_in_groups(weights: Array, uniform: Array) -> Array:
    """As `invert` for (B, V), without summing it all: first the group of 64, then the place."""
    size, n_vocab = 64, weights.shape[1]
    sums = np.add.reduceat(weights, np.arange(0, n_vocab, size), axis=1)
    group = invert(sums, uniform)[:, None]
    # How far inside its group a number falls is again uniform in [0, 1).
    mass = sums.cumsum(axis=1, dtype=np.float64)
    left = np.take_along_axis(mass, group, axis=1) - uniform[:, None] * mass[:, -1:]
    inside = np.clip(1 - left / np.take_along_axis(sums, group, axis=1), 0, np.nextafter(1, 0))
    ids = group * size + np.arange(size)
    members = np.take_along_axis(weights, np.minimum(ids, n_vocab - 1), axis=1)
    place = invert(np.where(ids < n_vocab, members, 0), inside[:, 0])
    return group[:, 0] * size + place
