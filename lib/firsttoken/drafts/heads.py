"""Drafts that see what the target thinks: heads, with and without a state, and EAGLE.

Each is a `generate.Draft`: `speculative_generate(target, EagleDraft(target), …)`. A draft serves
one request at a time, and starts anew with the next. `scripts/train_drafts.py` trains the networks
that ship; here they run, in NumPy.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from safetensors.numpy import load_file

from firsttoken.drafts.growing import Look, by_level, by_state, grow_tree
from firsttoken.generate import Proposal
from firsttoken.generate.sequence import TokenSequence
from firsttoken.models.checkpoint import read_checkpoint, read_safetensors
from firsttoken.models.llama import Llama, silu
from firsttoken.models.threads import blas_threads
from firsttoken.paths import data_path

Array = np.ndarray


class FeatureDraft(ABC):
    """A draft that guesses by the target's features; a kind of it says what it makes of them.

    `tree` holds the parents of a tree of guesses, by depth, as `drafts.best_tree` returns them;
    None: a chain of as many guesses as are wanted. Siblings are the likeliest tokens at temperature
    0, else they are drawn without replacement. Behind a guess to which the draft gave less than
    `min_confidence` (at temperature 0: as at temperature 1) it makes no more; that guess is still
    checked, or those that stay would be favoured.

    Source: fewer guesses where the draft is unsure: Li et al. 2024, EAGLE-2, arXiv:2406.16858
    """

    n_levels: int | None = None
    """How many places it can look ahead; None: as many as are wanted."""

    def __init__(
        self, target: Llama, tree: Sequence[int] | None = None, min_confidence: float = 0.0
    ):
        if not 0 <= min_confidence <= 1:
            raise ValueError(f"min_confidence must lie in 0 … 1, got {min_confidence}")
        self._target, self._tree = target, None if tree is None else list(tree)
        self._min_confidence = min_confidence
        self._request: TokenSequence | None = None
        self._unread: list[Array] = []

    def observe(self, features: Array) -> None:
        """Keep the target's features until they are read with the next guesses."""
        self._unread.append(features)

    def propose(self, request: TokenSequence, n: int) -> Proposal:
        """Return a tree of up to n guesses; none before the prompt has been read."""
        if request is not self._request:
            self._unread = []  # of a text before this one
        if not self._unread:
            self._begin(request)
            return Proposal([])
        features, self._unread = np.concatenate(self._unread), []
        tree = self._tree
        if tree is None:
            tree = list(range(-1, n - 1))[: self.n_levels]
        return grow_tree(request, tree[:n], self.look(request, features), self._min_confidence)

    def look(self, request: TokenSequence, features: Array) -> Look:
        """Return what says this draft's logits behind guesses: see `grow_tree`.

        `features` (n, D) are those of the request's tokens, but the last, that it has not seen.
        """
        if request is not self._request:
            self._begin(request)
        return self._look(request, features)

    def _begin(self, request: TokenSequence) -> None:
        self._request = request

    @abstractmethod
    def _look(self, request: TokenSequence, features: Array) -> Look: ...


class MedusaDraft(FeatureDraft):
    """Guess with heads on the target's last feature, one for each place ahead.

    When the target has read a token, the feature f that it ends with gives the next token, by the
    target's own logits. Head i moves the feature, f + silu(W_i f), and the same unembedding
    guesses the token i places further. So the guesses cost a few small products; but none of them
    knows what was guessed, or drawn, before it.

    `heads` None: those that ship.

    Shapes: heads (n, D, D)
    Raises: ValueError for heads of another width.
    Source: Cai et al. 2024, arXiv:2401.10774, sec. 2.1; there each head has an unembedding, too
    """

    def __init__(
        self, target: Llama, heads: Array | None = None, tree: Sequence[int] | None = None
    ):
        super().__init__(target, tree)
        if heads is None:
            stored = read_safetensors(data_path("model/medusa_heads/model.safetensors"))
            heads = np.stack([stored[f"heads.{i}.weight"] for i in range(len(stored))])
        width = target.arch.d_model
        if heads.ndim != 3 or heads.shape[1:] != (width, width):
            raise ValueError(f"heads {heads.shape} must be (n, D, D) with the target's D {width}")
        self._heads, self.n_levels = heads.astype(np.float32), len(heads)

    def logits(self, feature: Array) -> Array:
        """Return what each head makes of a feature [D]: logits [n, V]."""
        return self._target.logits(feature + silu(self._heads @ feature))

    def _look(self, request: TokenSequence, features: Array) -> Look:
        return by_level(self.logits(features[-1]))


class MultiTokenDraft(FeatureDraft):
    """Guess with a layer of the target's kind for each place ahead, which reads all features.

    Shapes: heads: models of one layer with the target's embedding
    Source: Gloeckle et al. 2024, arXiv:2404.19737, sec. 2
    """

    def __init__(self, target: Llama, heads: Sequence[Llama], tree: Sequence[int] | None = None):
        super().__init__(target, tree)
        self._heads, self.n_levels = list(heads), len(heads)

    def _begin(self, request: TokenSequence) -> None:
        super()._begin(request)
        self._caches = [head.new_cache(1, request.max_length) for head in self._heads]

    def _look(self, request: TokenSequence, features: Array) -> Look:
        pairs = zip(self._heads, self._caches, strict=True)
        said = [head.transform(features[None], cache)[0, -1] for head, cache in pairs]
        return by_level(self._target.logits(np.array(said)))


def multi_token_heads(target: Llama, folder: str | Path) -> list[Llama]:
    """Read the heads that scripts/train_drafts.py stores in a folder, for `MultiTokenDraft`.

    Raises: ValueError as `read_safetensors`, and for weights that do not fit the target.
    """
    stored = read_safetensors(Path(folder) / "model.safetensors")
    heads = []
    for i in range(1 + max(int(name.split(".")[1]) for name in stored)):
        prefix = f"heads.{i}."
        own = {n.removeprefix(prefix): w for n, w in stored.items() if n.startswith(prefix)}
        own["model.embed_tokens.weight"] = np.asarray(target.embedding)
        head = Llama(target.arch.replace(n_layers=1), own, norm_eps=target.norm_eps)
        head.n_threads = target.n_threads
        heads.append(head)
    return heads


class RecurrentDraft(FeatureDraft):
    """Guess with a state that starts as the target's feature and reads every guess.

    It knows what was drawn and guessed, as EAGLE does, but not what stood further back, and costs
    two small products. `drafts_torch.RecurrentHead` has the formula.

    `weights` (read (n, 2D), write (D, n)) None: what ships.

    Raises: ValueError for weights that do not fit the target's D.
    Source: Zhang et al. 2024, Recurrent Drafter, arXiv:2403.09919, sec. 3; Ankner et al. 2024,
            Hydra, arXiv:2402.05109, sec. 3
    """

    def __init__(
        self,
        target: Llama,
        weights: tuple[Array, Array] | None = None,
        tree: Sequence[int] | None = None,
        min_confidence: float = 0.0,
    ):
        super().__init__(target, tree, min_confidence)
        if weights is None:
            stored = read_safetensors(data_path("model/recurrent_head/model.safetensors"))
            weights = stored["read.weight"], stored["write.weight"]
        read, write = weights
        width = target.arch.d_model
        if read.ndim != 2 or read.shape[1] != 2 * width or write.shape != (width, len(read)):
            raise ValueError(
                f"weights {read.shape} and {write.shape} must be (n, 2D) and (D, n) with the "
                f"target's D {width}"
            )
        self._reads, self._writes = (np.ascontiguousarray(w.T.astype(np.float32)) for w in weights)

    def _look(self, request: TokenSequence, features: Array) -> Look:
        said = self._read(features[-1:], request.ids[-1:])
        return by_state(self._target, said, self._read)

    def _read(self, states: Array, follow: Sequence[int], _parents: object = None) -> Array:
        """Return the states (n, D) that follow some states (n, D) and the tokens after each."""
        both = np.concatenate([states, self._target.embedding[follow]], axis=1)  # [n, 2D]
        return states + silu(both @ self._reads) @ self._writes


class EagleDraft(FeatureDraft):
    """Guess the target's next features, one after another, with one layer of the target's kind.

    What it reads at position t is the target's feature of token t and the embedding of token t + 1,
    which that feature left open; what it says is the feature of token t + 1, and the target's
    unembedding makes a guess of it. Behind the text its own features stand in for the target's.

    `folder` holds the layer and its last norm under Hugging Face's names, and `fc.weight`, which
    brings feature and embedding together; None: what ships.

    Raises: ValueError as `Llama`, and for an `fc.weight` that does not fit.
    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, sec. 3; trained on its own outputs: Li et al.
            2025, EAGLE-3, arXiv:2503.01840, sec. 3
    """

    def __init__(
        self,
        target: Llama,
        folder: str | Path | None = None,
        tree: Sequence[int] | None = None,
        min_confidence: float = 0.0,
    ):
        super().__init__(target, tree, min_confidence)
        stored = read_checkpoint(data_path("model/eagle_draft") if folder is None else folder)
        weights = dict(stored.weights)
        mix, width = weights.pop("fc.weight"), target.arch.d_model
        if mix.shape != (width, 2 * width):
            raise ValueError(f"fc.weight {mix.shape} must be (D, 2D) with the target's D {width}")
        weights["model.embed_tokens.weight"] = target.embedding
        self.layer = Llama(stored.arch, weights, stored.rope_theta, norm_eps=stored.norm_eps)
        self.layer.n_threads = target.n_threads
        self._mix = np.ascontiguousarray(mix.T)  # [2D, D]

    def _begin(self, request: TokenSequence) -> None:
        super()._begin(request)
        self._cache, self._n_read = self.layer.new_cache(1, request.max_length), 0

    def _look(self, request: TokenSequence, features: Array) -> Look:
        follow = request.ids[self._n_read + 1 :]
        self._cache.truncate(self._n_read)  # what it read behind the last text is forgotten
        said = self._read(features, follow, None)[-1:]  # behind the text
        self._n_read += len(features)
        return by_state(self._target, said, self._read)

    def _read(self, features: Array, follow: Sequence[int], parents: list[int] | None) -> Array:
        """Return the features (n, D) that follow some features (n, D) and the tokens after each."""
        pairs = np.concatenate([features, self._target.embedding[follow]], axis=1)  # [n, 2D]
        if parents == list(range(-1, len(follow) - 1)):
            parents = None  # a chain: no mask is needed
        return self.layer.transform((pairs @ self._mix)[None], self._cache, parents)[0]


class LikelyDraft(EagleDraft):
    """EAGLE that guesses only some tokens, the likeliest: for a target of a large vocabulary.

    An unembedding is read for every guess, and SmolLM2's is a fifth of its weights. Here a guess
    reads the rows of the tokens that may be guessed. The check knows all tokens, so that the text
    is the target's own.

    `file` holds what `scripts/train_smollm2_draft.py` writes: matrices as 8-bit integers, with a
    scale a row; vectors; and which tokens may be guessed, `vocabulary`.

    Raises: ValueError as `Llama`, and for a file that is missing.
    Source: Zhao et al. 2025, FR-Spec, arXiv:2502.14856, sec. 3
    """

    def __init__(
        self,
        target: Llama,
        file: str | Path,
        tree: Sequence[int] | None = None,
        min_confidence: float = 0.0,
    ):
        FeatureDraft.__init__(self, target, tree, min_confidence)
        if not Path(file).exists():
            raise ValueError(f"file must be one of a draft's weights, got {str(file)!r}")
        stored = load_file(file)
        self.vocabulary = stored.pop("vocabulary")
        scales = {n: stored.pop(n) for n in list(stored) if n.endswith(".scale")}
        weights = {n: w * scales.get(f"{n}.scale", np.float32(1)) for n, w in stored.items()}
        self._mix = np.ascontiguousarray(weights.pop("fc.weight").T)  # [2D, D]
        rows = np.asarray(target.unembedding)[:, self.vocabulary].T  # [n, D]
        weights["model.embed_tokens.weight"] = rows  # tied: what the layer unembeds with
        n_known = len(self.vocabulary)
        arch = target.arch.replace(n_layers=1, vocab_size=n_known, tied_embeddings=True)
        self.layer = Llama(arch, weights, norm_eps=target.norm_eps)
        self.layer.frequencies, self.layer.n_threads = target.frequencies, target.n_threads
        self._target = cast(Llama, _SomeLogits(target, self.layer, self.vocabulary))

    def _read(self, features: Array, follow: Sequence[int], parents: list[int] | None) -> Array:
        """Return what EAGLE reads; `fc`, too, on as many threads as the target may take."""
        with blas_threads(self.layer.n_threads):
            return super()._read(features, follow, parents)


class _SomeLogits:
    """A target that says the logits of some tokens, and -inf for all others."""

    def __init__(self, target: Llama, layer: Llama, known: Array):
        self.embedding, self._layer, self._known = target.embedding, layer, known

    def logits(self, features: Array) -> Array:
        """Return logits (n, V) for features (n, D)."""
        logits = np.full((len(features), len(self.embedding)), -np.inf, np.float32)
        logits[:, self._known] = self._layer.logits(features)
        return logits
