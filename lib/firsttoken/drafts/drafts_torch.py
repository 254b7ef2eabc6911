"""Networks that guess from the target's features, as PyTorch modules: to be trained.

`firsttoken.drafts.heads` runs what comes of it. Each module returns, for each position t of a text,
features that the target's unembedding makes guesses of. The target itself stays as it is.

Shapes: features (B, T, D): the target's at each token, what its last norm says; `follow` (B, T):
        the token after each. The feature at t is what the target guesses token t + 1 by.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firsttoken.models.llama_torch import Attend, Llama


class MedusaHeads(nn.Module):
    """n heads on one feature: f + silu(W_i f), for the token i places further. W starts at 0.

    Shapes: features (B, T, D) -> (n, B, T, D)
    Source: Cai et al. 2024, arXiv:2401.10774, sec. 2.1; there each head has an unembedding, too
    """

    def __init__(self, n_heads: int, width: int):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(n_heads))
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack([features + F.silu(head(features)) for head in self.heads])


class RecurrentHead(nn.Module):
    """A head with a state: it starts as the target's feature and reads each token that follows.

    s_0 is the feature of token t, and s_i = s_{i-1} + W_write silu(W_read [s_{i-1}, e_i]), where
    e_i is the embedding of token t + i. s_i guesses token t + i + 1. W_write starts at 0.

    Shapes: features (B, T, D), follow (B, T) -> (n_steps, B, T, D); near the end of the text, where
            there are no i tokens left, what step i says means nothing
    Source: Zhang et al. 2024, Recurrent Drafter, arXiv:2403.09919, sec. 3; Ankner et al. 2024,
            Hydra, arXiv:2402.05109, sec. 3
    """

    embedding: Tensor

    def __init__(self, target: Llama, n_inner: int = 384):
        super().__init__()
        width = target.arch.d_model
        self.read = nn.Linear(2 * width, n_inner, bias=False)
        self.write = nn.Linear(n_inner, width, bias=False)
        nn.init.zeros_(self.write.weight)
        self.register_buffer("embedding", target.model.embed_tokens.weight, persistent=False)

    def forward(self, features: Tensor, follow: Tensor, n_steps: int = 1) -> Tensor:
        state, said = features, []
        for i in range(n_steps):
            embedded = F.embedding(follow.roll(-i, dims=1), self.embedding)
            both = torch.cat([state, embedded], dim=-1)
            state = state + self.write(F.silu(self.read(both)))
            said.append(state)
        return torch.stack(said)


class Eagle(nn.Module):
    """One layer of the target's kind that says the target's next feature.

    At position t it reads the feature of token t and the embedding of token t + 1, and says the
    feature of token t + 1. It starts from the target's last layer and norm.

    With `n_steps` it then reads its own words, as it will when it guesses: in step j the features
    of the last j positions of each context are those that it said itself, j - 1 … 0 steps ago.

    Shapes: features (B, T, D), follow (B, T) -> (n_steps, B, T, D)
    Source: Li et al. 2024, arXiv:2401.15077, sec. 3; steps: Li et al. 2025, EAGLE-3,
            arXiv:2503.01840, sec. 3.2 (training-time test)
    """

    def __init__(self, target: Llama):
        super().__init__()
        width = target.arch.d_model
        self.layer = last_layer(target)
        self.fc = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([torch.eye(width), torch.zeros(width, width)], dim=1))

    def forward(self, features: Tensor, follow: Tensor, n_steps: int = 1) -> Tensor:
        embedded = self.layer.model.embed_tokens(follow)
        stored: list[tuple[Tensor, Tensor]] = []  # keys and values of each step
        said: list[Tensor] = []
        for _ in range(n_steps):

            def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                stored.append((k, v))
                return attend_own(q, stored)

            x = self.fc(torch.cat([features, embedded], dim=-1))
            said.append(through_layer(self.layer, x, attend))
            # The feature of token t + 1, said at t, is what position t + 1 reads next.
            features = torch.cat([features[:, :1], said[-1][:, :-1]], dim=1)
        return torch.stack(said)


class MultiTokenHeads(nn.Module):
    """n heads, each a layer of the target's kind on its features; head i looks i places further.

    Shapes: features (B, T, D) -> (n, B, T, D)
    Source: Gloeckle et al. 2024, arXiv:2404.19737, sec. 2 (there trained with the trunk)
    """

    def __init__(self, n_heads: int, target: Llama):
        super().__init__()
        self.heads = nn.ModuleList(last_layer(target) for _ in range(n_heads))

    def forward(self, features: Tensor) -> Tensor:
        def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return torch.stack([through_layer(head, features, attend) for head in self.heads])


def last_layer(target: Llama) -> Llama:
    """Return a model of the target's last layer, to be trained; its embedding stays as it is."""
    arch, last = target.arch.replace(n_layers=1), target.arch.n_layers - 1
    weights = {
        name.replace(f".{last}.", ".0."): weight.numpy()
        for name, weight in target.state_dict().items()
        if ".layers." not in name or f".layers.{last}." in name
    }
    weights.pop("lm_head.weight")  # tied to the embedding
    layer = Llama(arch, weights, target.rope_theta, norm_eps=target.norm_eps).requires_grad_(True)
    layer.model.embed_tokens.requires_grad_(False)
    return layer


def through_layer(layer: nn.Module, x: Tensor, attend: Attend) -> Tensor:
    """Return what a model of one layer, and its last norm, make of vectors (B, T, D)."""
    assert isinstance(layer, Llama)
    positions = torch.arange(x.shape[1], dtype=torch.float32)
    angles = torch.outer(positions, layer._frequencies)
    (block,) = layer.model.layers
    return layer.model.norm(block(x, angles.cos(), angles.sin(), attend, 0))


def attend_own(q: Tensor, stored: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of step j = len(stored) - 1: to the first step's keys, and to its own path's.

    Position t has said the last j features of its context itself. So it sees the first step's keys
    up to t - j, and of step i = 1 … j the one at t - j + i: its own way here.

    Shapes: q (B, N, T, H); keys and values (B, K, T, H) of each step; result (B, N, T, H)
    """
    n_own, n_queries = len(stored) - 1, q.shape[2]
    groups = q.shape[1] // stored[0][0].shape[1]
    if n_own == 0:
        (k, v) = stored[0]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    first_k, first_v = (x.repeat_interleave(groups, dim=1) for x in stored[0])
    own = [
        tuple(
            x.repeat_interleave(groups, dim=1).roll(n_own - i, dims=2)  # what t - n_own + i had
            for x in stored[i]
        )
        for i in range(1, n_own + 1)
    ]
    place = torch.arange(n_queries)
    hidden = place[None] > place[:, None] - n_own
    scale = q.shape[-1] ** -0.5
    scores = (q @ first_k.mT * scale).masked_fill(hidden, -torch.inf)  # (B, N, T, T)
    own_scores = torch.stack([(q * k).sum(-1) * scale for k, _ in own], dim=-1)  # (B, N, T, j)
    weights = torch.cat([scores, own_scores], dim=-1).softmax(-1)
    mixed = weights[..., :n_queries] @ first_v
    for i, (_, v) in enumerate(own):
        mixed = mixed + weights[..., n_queries + i, None] * v
    return mixed
