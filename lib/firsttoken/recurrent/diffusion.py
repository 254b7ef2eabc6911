"""Masked diffusion: text by unmasking, several tokens a pass, and the loss that trains for it.

Their model, `denoise`, reads tokens (B, T), some of them replaced by the id `mask`, and gives for
every position the probabilities (B, T, V) of what stands there. It never predicts the mask.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from firsttoken.checks import check_count
from firsttoken.sampling import draw

Array = np.ndarray


def hide(n_hidden: Array, n_tokens: int, rng: np.random.Generator) -> Array:
    """Return which tokens to hide: in row b some n_hidden[b] of them, every set equally likely.

    Shapes: n_hidden (B,), result (B, T) of booleans, where T is `n_tokens`
    Raises: ValueError for an n_hidden outside of 1..T.

    >>> hide(np.array([1, 3]), 4, np.random.default_rng(0)).sum(axis=1).tolist()
    [1, 3]
    """
    n_hidden = np.asarray(n_hidden)
    if np.any((n_hidden < 1) | (n_hidden > n_tokens)):
        raise ValueError(f"n_hidden must be within 1 and {n_tokens}, got {n_hidden}")
    places = np.tile(np.arange(n_tokens), (len(n_hidden), 1))
    return rng.permuted(places, axis=1) < n_hidden[:, None]


def loss_bound(probabilities: Array, tokens: Array, hidden: Array) -> Array:
    """Return the loss of the hidden tokens of each row, weighted so that its mean is a bound.

    Each of n hidden tokens counts T / n times. Averaged over n = 1…T and over the sets of n tokens,
    that is the mean of -log p over all orders of writing the text one token a pass: an upper bound
    of -log p of the text where the order is drawn, too.

    Holds:  for that mean. The value of one draw may lie on either side of -log p: it is no bound.
    Shapes: probabilities (B, T, V), given what is not hidden; tokens, hidden (B, T); result (B,)
    Units:  nats
    Raises: ValueError for a row that hides nothing.
    Source: Nie et al. 2025, arXiv:2502.09992, sec. 2.4: the bound of Sahoo et al. 2024,
            arXiv:2406.07524, sec. 3, where t ~ U(0, 1] hides each token, with less variance

    >>> halves = np.full((1, 3, 2), 0.5)
    >>> loss_bound(halves, np.zeros((1, 3), int), np.array([[True, False, False]])) / np.log(2)
    array([3.])
    """
    n_hidden = np.sum(hidden, axis=1)
    if np.any(n_hidden == 0):
        raise ValueError("hidden must name at least one token of each row")
    right = np.take_along_axis(probabilities, np.asarray(tokens)[..., None], axis=-1)[..., 0]
    with np.errstate(divide="ignore"):  # what was thought impossible costs infinity
        losses = -np.log(right, where=hidden, out=np.zeros(right.shape))
    return losses.sum(axis=1) * hidden.shape[1] / n_hidden


def pass_sizes(n_tokens: int, n_passes: int) -> list[int]:
    """Return how many tokens each pass writes: as equal as can be, all of them together.

    Raises: ValueError for fewer than one pass, or more passes than tokens.

    >>> pass_sizes(10, 4)
    [2, 3, 2, 3]
    """
    if check_count("n_passes", n_passes, at_least=1) > n_tokens:
        raise ValueError(f"n_passes {n_passes} is more than the {n_tokens} tokens to write")
    ends = [n_tokens * i // n_passes for i in range(n_passes + 1)]
    return [end - begin for begin, end in pairwise(ends)]


def unmask(
    denoise: Callable[[Array], Array],
    tokens: Array,
    mask: int,
    n_passes: int,
    rng: np.random.Generator,
    order: str = "random",
    block: int | None = None,
    greedy: bool = False,
) -> Iterator[Array]:
    """Write the masked tokens in `n_passes` passes; yield the tokens after each of them.

    A pass draws a token for every mask (`greedy`: takes the likeliest), each on its own, and keeps
    some: a "random" choice, or those of which the model is surest ("confidence"). The rest are
    masks again. Tokens kept in one pass know nothing of each other; one a pass, in random order,
    follows the model's own distribution. With a `block`, masks are written block by block from the
    left.

    Shapes: tokens (B, T), with as many masks in every row; each state (B, T)
    Units:  block in tokens
    Raises: ValueError for unequal numbers of masks, more passes than masks, an unknown order.
    Source: Sahoo et al. 2024, arXiv:2406.07524, sec. 3 (random); Nie et al. 2025,
            arXiv:2502.09992, sec. 2.4 (low-confidence remasking, blocks)

    >>> uniform = lambda tokens: np.full((*tokens.shape, 2), 0.5)
    >>> states = unmask(uniform, np.array([[1, 9, 9]]), 9, 2, np.random.default_rng(0))
    >>> [int((state == 9).sum()) for state in states]
    [1, 0]
    """
    if order not in ("random", "confidence"):
        raise ValueError(f'order must be "random" or "confidence", got {order!r}')
    tokens = np.array(tokens)
    masked = tokens == mask
    numbers = np.unique(masked.sum(axis=1)).tolist()
    if len(numbers) != 1:
        raise ValueError(f"every row of tokens must have as many masks, got {numbers}")
    sizes = pass_sizes(numbers[0], n_passes)
    length = numbers[0] if block is None else check_count("block", block, at_least=1)
    block_of = (masked.cumsum(axis=1) - 1) // length
    for size in sizes:
        row, place = np.nonzero(tokens == mask)
        probabilities = denoise(tokens)[row, place]
        found = probabilities.argmax(axis=-1) if greedy else draw(probabilities, rng)
        sure = probabilities[np.arange(len(found)), found]
        score = sure if order == "confidence" else rng.random(len(found))
        # Scores are at most 1, so that an earlier block always wins; of equals the leftmost does.
        rank = (block_of[row, place] - score).reshape(len(tokens), -1)
        first = rank.argsort(axis=1, kind="stable")[:, :size]
        kept = (first + rank.shape[1] * np.arange(len(tokens))[:, None]).ravel()
        tokens[row[kept], place[kept]] = found[kept]
        yield tokens.copy()
