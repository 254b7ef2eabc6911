"""Checking the drafts of a whole batch at once, where the distributions live in PyTorch.

Request by request it does what `firsttoken.speculative.verify` does, which is the reference.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def verify_batch(
    target: Tensor, draft: Tensor | None, tokens: Tensor, rng: torch.Generator
) -> Tensor:
    """Return what one pass of the target makes of each request's drafted tokens.

    As `speculative.verify` for each row, without a loop over rows or positions. Drafts may be of
    different lengths: -1 fills the rest of a row, and marks in the result where it has ended.
    Distributions behind the end of a draft are not looked at.

    At most one token of a row is drawn: the replacement of the first rejected token, or the bonus
    if there is none. So one distribution per row is left to draw from, in one
    exponential race per row.

    A row is greedy where its target's distributions hold a single token: it comes out whatever the
    numbers. A draft without probabilities is of that kind, too: None for all rows, or for some of
    them distributions with the drafted token alone.

    Shapes: target (B, γ+1, V); draft (B, γ, V); tokens (B, γ), integers; result (B, γ+1)
    Raises: ValueError for shapes that do not fit, -1 before a token, other ids outside the
            vocabulary, a token that `draft` never draws there, chances of drafted tokens that are
            none, and a row of either that decides what is drawn and is no distribution.
    Source: vLLM (vllm/v1/sample/rejection_sampler.py)

    >>> target = F.one_hot(torch.tensor([[1, 2, 7, 6], [4, 8, 0, 0]]), 10).double()
    >>> tokens = torch.tensor([[1, 2, 3], [4, -1, -1]])
    >>> verify_batch(target, None, tokens, torch.Generator()).tolist()
    [[1, 2, 7, -1], [4, 8, -1, -1]]
    """
    n_rows, n_positions, n_vocab = _checked_shape(target, draft, tokens)
    gamma = n_positions - 1
    drafted = tokens >= 0
    n_drafted = drafted.sum(dim=1)
    if bool((drafted != (torch.arange(gamma, device=tokens.device) < n_drafted[:, None])).any()):
        raise ValueError("tokens must hold -1 only behind the last token of a row")
    if bool(((tokens >= n_vocab) | (tokens < -1)).any()):
        got = f"{int(tokens.min())} … {int(tokens.max())}"
        raise ValueError(f"tokens must be ids in 0 … {n_vocab - 1}, or -1 as filling, got {got}")
    at = tokens.long().clamp(min=0)[..., None]  # (B, γ, 1)
    p = target[:, :gamma].gather(2, at)[..., 0].double()
    q = torch.ones_like(p) if draft is None else draft.gather(2, at)[..., 0].double()
    if bool((drafted & (q == 0)).any()):
        raise ValueError("tokens hold one that draft has with probability 0")
    for name, chances in (("target", p), ("draft", q)):
        if bool((drafted & ~((chances >= 0) & (chances <= 1 + 1e-3))).any()):
            raise ValueError(f"{name} must hold distributions: a chance is not in 0 … 1")

    # With u from [0, 1) in float64, u < 0 is never true: what the target excludes is rejected.
    u = torch.rand(p.shape, generator=rng, dtype=torch.float64, device=rng.device).to(p.device)
    accepted = drafted & (u < p / q)
    n_kept = accepted.cumprod(dim=1).sum(dim=1)  # up to the first rejection
    rejected = n_kept < n_drafted

    rows = torch.arange(n_rows, device=target.device)
    weights = target[rows, n_kept].double()  # (B, V): of the one token that is drawn
    _check_distributions("target", weights)
    if gamma:
        first = n_kept.clamp(max=gamma - 1)  # of the rejected token; unused where there is none
        supplied = F.one_hot(at[rows, first, 0], n_vocab) if draft is None else draft[rows, first]
        _check_distributions("draft", supplied[rejected])
        excess = (weights - supplied.double()).clamp(min=0)
        # Where nothing is missing but for rounding, any of the target's tokens will do.
        weights = torch.where((rejected & (excess.sum(dim=1) > 0))[:, None], excess, weights)
    drawn = _exponential_race(weights, rng)

    position = torch.arange(n_positions, device=tokens.device)
    padded = F.pad(tokens, (0, 1), value=-1)
    kept = torch.where(position < n_kept[:, None], padded, -1)
    return torch.where(position == n_kept[:, None], drawn[:, None], kept)


def _exponential_race(weights: Tensor, rng: torch.Generator) -> Tensor:
    """Draw one id per row of (B, V): `sampling.exponential_race` in PyTorch."""
    noise = torch.empty(weights.shape, dtype=torch.float64, device=rng.device)
    times = noise.exponential_(generator=rng).to(weights.device)
    scaled = weights / weights.amax(dim=1, keepdim=True)
    return torch.where(scaled > 0, times / scaled, torch.inf).argmin(dim=1)


def _check_distributions(name: str, rows: Tensor) -> None:
    if not bool(((rows >= 0).all(dim=1) & ((rows.sum(dim=1) - 1).abs() <= 1e-3)).all()):
        raise ValueError(f"{name} must hold a distribution per row: numbers from 0 that sum to 1")


def _checked_shape(target: Tensor, draft: Tensor | None, tokens: Tensor) -> tuple[int, int, int]:
    fits = target.ndim == 3 and tokens.shape == (target.shape[0], target.shape[1] - 1)
    if draft is not None:
        fits = fits and draft.shape == (*tokens.shape, target.shape[2])
    if not fits:
        raise ValueError(
            f"target {tuple(target.shape)}, draft {None if draft is None else tuple(draft.shape)} "
            f"and tokens {tuple(tokens.shape)} must be (B, γ+1, V), (B, γ, V) and (B, γ)"
        )
    n_rows, n_positions, n_vocab = target.shape
    return n_rows, n_positions, n_vocab
