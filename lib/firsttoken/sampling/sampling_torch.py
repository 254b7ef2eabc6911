"""The batched sampler for logits that live in PyTorch: on the CPU's cores, or on a GPU.

Same signatures, kept tokens and distribution as `sampling.shortlist`, which is the reference.
PyTorch makes the passes over the vocabulary; the few hundred tokens of a row that are left go to
the reference, so that no filter is written twice.
"""

import numpy as np
import torch
from torch import Tensor

from firsttoken.sampling.logits import apply_temperature
from firsttoken.sampling.shortlist import Shortlist, choose, row_parameters, shorten


def shortlist(
    logits: Tensor,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor = 0,
    top_p: float | Tensor = 1.0,
    min_p: float | Tensor = 0.0,
) -> Shortlist:
    """Find the tokens that temperature, min-p, top-k and top-p keep: `shortlist.shortlist`.

    Shapes: logits (B, V); each parameter a number, or (B,) for one per row; the result is NumPy
    Raises: ValueError as the filters do.

    >>> short = shortlist(torch.arange(2000.0)[None], top_k=torch.tensor([2]))
    >>> short.ids[short.probabilities > 0].tolist()
    [1998, 1999]
    """
    divisor, *filters = _row_parameters(logits, temperature, top_k, top_p, min_p)
    return shorten(Rows(logits, divisor), *filters)


def sample(
    logits: Tensor,
    rng: torch.Generator,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor = 0,
    top_p: float | Tensor = 1.0,
    min_p: float | Tensor = 0.0,
) -> Tensor:
    """Draw one id per row, as temperature, min-p, top-k, top-p and softmax have it.

    A batch takes B uniform numbers from `rng`, whatever its parameters.

    Shapes: logits (B, V); each parameter a number, or (B,) for one per row; result (B,)
    Raises: ValueError as the filters do.

    >>> logits = torch.tensor([[0.1, 0.9], [0.9, 0.1]])
    >>> sample(logits, torch.Generator().manual_seed(0), temperature=0.0).tolist()
    [1, 0]
    """
    divisor, *filters = _row_parameters(logits, temperature, top_k, top_p, min_p)
    uniform = torch.rand(len(logits), generator=rng, dtype=torch.float64, device=rng.device)
    ids = choose(Rows(logits, divisor), uniform.cpu().numpy(), *filters)
    return torch.from_numpy(ids).to(logits.device)


class Rows:
    """What `sample` reads of all V logits: `shortlist.Rows` in PyTorch.

    Formats narrower than float32 are widened first.
    """

    def __init__(self, logits: Tensor, temperature: np.ndarray):
        narrow = logits.dtype not in (torch.float32, torch.float64)
        self.logits, self.temperature = logits.float() if narrow else logits, temperature

    def maxima(self) -> np.ndarray:
        """Return the largest logit of each group of 64 tokens: (B, n)."""
        n_vocab = self.logits.shape[1]
        whole = n_vocab - n_vocab % 64
        maxima = [self.logits[:, :whole].unflatten(1, (-1, 64)).amax(dim=2)]
        if whole < n_vocab:
            maxima.append(self.logits[:, whole:].amax(dim=1, keepdim=True))
        return torch.cat(maxima, dim=1).cpu().numpy()

    def members(self, row: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and logits of some groups, each (m, 64); -inf for ids of V and more."""
        n_vocab = self.logits.shape[1]
        ids = group[:, None] * 64 + np.arange(64)
        at = torch.from_numpy(row[:, None]), torch.from_numpy(np.minimum(ids, n_vocab - 1))
        logits = self.logits[tuple(x.to(self.logits.device) for x in at)].cpu().numpy()
        return ids, np.where(ids < n_vocab, logits, -np.inf)

    def whole(self, rows: np.ndarray) -> np.ndarray:
        """Return all logits of some rows, divided by the temperature: (r, V)."""
        device = self.logits.device
        logits = self.logits if rows.all() else self.logits[torch.from_numpy(rows).to(device)]
        return apply_temperature(logits.cpu().numpy(), self.temperature[rows, 0])


def _row_parameters(logits: Tensor, *parameters: float | Tensor) -> tuple[np.ndarray, ...]:
    temperature, top_k, top_p, min_p = (
        x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for x in parameters
    )
    return row_parameters(tuple(logits.shape), temperature, top_k, top_p, min_p)
