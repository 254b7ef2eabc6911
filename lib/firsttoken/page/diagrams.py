"""Pictures of ideas that have a shape: a block of the model, attention by hand, a ragged pass.

One colour for each of three things, as in all figures: what belongs to the token under way
(`decode`), what was learned (`weights`), and what earlier tokens left behind (`cache`).
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path
from numpy.typing import ArrayLike

from firsttoken.architectures import Architecture
from firsttoken.checks import check_count
from firsttoken.models.checkpoint import weight_shapes
from firsttoken.page.plots import COLORS, STYLE

_WIDTH = 360  # points: the five inches of every figure
_SMALL, _USUAL = 9, 10  # points
_TOKEN, _LEARNED, _KEPT, _INK = (COLORS[c] for c in ("decode", "weights", "cache", "ink"))
_PALE = "30"  # appended to a colour: legible text on it in both themes

Point = tuple[float, float]


def model_block(arch: Architecture) -> Figure:
    """Draw the way of one token through a Llama, with the shapes that `arch` gives it.

    The vertical line is `x`, the hidden state. A layer leaves it alone and adds to it twice; only
    attention sees other tokens, and of them nothing but keys and values.

    Raises: ValueError for an architecture that is no Llama.
    Source: Touvron et al. 2023, arXiv:2302.13971, sec. 2.2; the steps of `llama.Llama`

    >>> from firsttoken.architectures import ARCHITECTURES
    >>> fig = model_block(ARCHITECTURES["Llama-2-7B"])
    >>> [text.get_text() for text in fig.axes[0].texts if "logits" in text.get_text()]
    ['32,000 logits']
    """
    weight_shapes(arch)  # raises for an architecture that is no Llama
    with plt.rc_context(STYLE):
        fig, ax = _page(height=500)
        _draw_entrance(ax, arch)
        _draw_layer_frame(ax, arch, top=106, bottom=410)
        _draw_attention(ax, arch, top=132)
        _draw_mlp(ax, arch, top=328)
        _draw_exit(ax, arch, top=424)
    return fig


def attention_by_hand(keys: ArrayLike, query: ArrayLike, values: ArrayLike) -> Figure:
    """Draw what a query makes of a few keys and values, step by step, a column for each token.

    The score of a token is the dot product of the query and its key. Its strength is 2 to the
    power of the score: 2, where models take e, so that whole scores give numbers to do in the head.
    Its share is the part it has of all strengths, and the mix is the sum of share times value.
    Numbers that are not whole are rounded to two digits.

    Shapes: keys and values (S, 2) with S from 2 to 5; query (2,)
    Raises: ValueError for other shapes, for numbers beyond a million, and for scores beyond 1,000.

    >>> fig = attention_by_hand(keys=[[1, 0], [1, 1]], query=[1, 2], values=[[0, 4], [5, 9]])
    >>> [text.get_text() for text in fig.axes[0].texts if "/" in text.get_text()]
    ['strength / sum', '1/5', '4/5']
    """
    k, q, v = (_numbers(n, x) for n, x in (("keys", keys), ("query", query), ("values", values)))
    if k.ndim != 2 or not 2 <= len(k) <= 5 or k.shape[1] != 2:
        raise ValueError(f"keys must be 2 to 5 rows of 2 numbers, got shape {k.shape}")
    if q.shape != (2,):
        raise ValueError(f"query must be 2 numbers, got shape {q.shape}")
    if v.shape != k.shape:
        raise ValueError(f"values must be of the shape of keys, {k.shape}, got {v.shape}")
    scores = k @ q
    if np.abs(scores).max() > _LARGEST_SCORE:
        raise ValueError(
            f"query and keys must give scores from -{_LARGEST_SCORE:,} to {_LARGEST_SCORE:,}, "
            f"got {_plain(scores[np.abs(scores).argmax()])}"
        )
    strengths = 2.0**scores
    shares = strengths / strengths.sum()
    with plt.rc_context(STYLE):
        fig, ax = _page(height=318)
        _draw_steps(ax)
        pitch = (_WIDTH - _LABELS) / (len(k) + 1)
        for i in range(len(k)):
            at = _LABELS + (i + 0.5) * pitch
            _note(ax, (at, 8), f"token {i + 1}", ha="center")
            _draw_pair(ax, at, 20, k[i], _KEPT)
            _number(ax, at, _ROWS["score"], _plain(scores[i]))
            _number(ax, at, _ROWS["strength"], _plain(strengths[i]))
            _draw_share(ax, at, float(shares[i]))
            _draw_pair(ax, at, _ROWS["value"] - 18, v[i], _KEPT)
            _draw_pair(ax, at, _ROWS["share × value"] - 18, shares[i] * v[i], _INK)
        at = _WIDTH - pitch / 2
        _note(ax, (at, 8), "query", ha="center", weight="bold")
        _draw_pair(ax, at, 20, q, _TOKEN)
        _note(ax, (at, _ROWS["strength"] - 13), "sum", ha="center")
        _number(ax, at, _ROWS["strength"], _plain(strengths.sum()))
        _note(ax, (at, _ROWS["share × value"] - 40), "sum:", ha="center")
        _note(ax, (at, _ROWS["share × value"] - 28), "the mix", ha="center", weight="bold")
        _draw_pair(ax, at, _ROWS["share × value"] - 18, shares @ v, _TOKEN)
    return fig


def ragged_pass(sequences: Sequence[tuple[int, int]]) -> Figure:
    """Draw how sequences of different lengths share a pass without padding.

    Each is a pair as in `batching.simulate`: its new tokens, and those in its cache before. At the
    left all new tokens stand under one another, and one product with the weights serves them all.
    At the right attention takes them apart: a square is one new token that looks at one key of its
    own sequence, made in this pass or read from the cache.

    Units:  tokens
    Raises: ValueError for less than 2 or more than 4 sequences, no new token, more than 12 new
            tokens in all, and a sequence of more than 12.

    >>> fig = ragged_pass([(4, 0), (1, 6)])
    >>> [text.get_text() for text in fig.axes[0].texts if text.get_text().startswith("B:")]
    ['B: 1 new, 6 in its cache']
    """
    if not 2 <= len(sequences) <= 4:
        raise ValueError(f"sequences must be 2 to 4 pairs, got {len(sequences)}")
    for new, before in sequences:
        check_count("new tokens", new, at_least=1)
        if new + check_count("tokens before", before) > _MOST:
            raise ValueError(f"sequences must have at most {_MOST} tokens, got {new} + {before}")
    n_rows = sum(new for new, _ in sequences)
    if n_rows > _MOST:
        raise ValueError(f"sequences must have at most {_MOST} new tokens in all, got {n_rows}")
    names = "ABCD"[: len(sequences)]
    height = 62 + n_rows * _CELL + (len(sequences) - 1) * _GAP + 42
    middle = (48 + height - 42) / 2
    with plt.rc_context(STYLE):
        fig, ax = _page(height)
        _note(ax, (8, 12), "norms, matrices, MLP:", weight="bold")
        _note(ax, (8, 26), f"{n_rows} rows, one product")
        _note(ax, (_GRIDS, 12), "attention:", weight="bold")
        _note(ax, (_GRIDS, 26), "each sees its own keys")
        row_top, grid_top = middle - n_rows * _CELL / 2, 62.0
        _box(ax, (102, 162), (row_top, row_top + n_rows * _CELL), "weights", _LEARNED, mono=False)
        for name, (new, before) in zip(names, sequences, strict=True):
            _draw_rows(ax, row_top, new, name)
            _arrow(ax, (166, row_top + new * _CELL / 2), (_GRIDS - 6, grid_top + new * _CELL / 2))
            cached = f", {before} in its cache" if before else ""
            _note(ax, (_GRIDS, grid_top - 8), f"{name}: {new} new{cached}")
            _draw_looks(ax, grid_top, new, before)
            row_top += new * _CELL
            grid_top += new * _CELL + _GAP
        _arrow(ax, (78, middle), (99, middle))
        _draw_key(ax, height - 16)
    return fig


_CELL, _GAP, _GRIDS = 13, 26, 200  # points: a token, between two grids, where grids begin
_MOST = 12  # tokens that fit


def _draw_rows(ax: Axes, top: float, n: int, name: str) -> None:
    """Draw a sequence's new tokens as rows, with its name at the left."""
    _note(ax, (8, top + n * _CELL / 2), name, ha="left", weight="bold")
    for i in range(n):
        row = Rectangle((24, top + i * _CELL), 52, _CELL, facecolor=_TOKEN + _PALE)
        row.set_edgecolor(_TOKEN)
        ax.add_patch(row)


def _draw_looks(ax: Axes, top: float, new: int, before: int) -> None:
    """Draw which keys each new token looks at: a row for each, a column for each key."""
    for i in range(new):
        for j in range(before + i + 1):  # its own key, and none after it
            colour = _KEPT if j < before else _TOKEN
            cell = Rectangle((_GRIDS + j * _CELL, top + i * _CELL), _CELL, _CELL)
            cell.set(facecolor=colour + "70", edgecolor=COLORS["paper"])
            ax.add_patch(cell)


def _draw_key(ax: Axes, y: float) -> None:
    for at, colour, what in ((8, _TOKEN, "made in this pass"), (200, _KEPT, "read from the cache")):
        ax.add_patch(Rectangle((at, y - 5), 10, 10, facecolor=colour + "70", edgecolor="none"))
        _note(ax, (at + 16, y), what)


_LARGEST_NUMBER = 1_000_000  # fits its cell
_LARGEST_SCORE = 1000  # 2.0 to the power of 1,024 is too large for a float
_LABELS = 84  # points: the width of the column that names the steps
_HOW = {
    "key": "",
    "score": "query · key",
    "strength": "2 to the score",
    "share": "strength / sum",
    "value": "",
    "share × value": "",
}
_ROWS = dict(zip(_HOW, (38, 78, 116, 164, 228, 292), strict=True))  # step: its middle on the page


def _numbers(name: str, given: ArrayLike) -> np.ndarray:
    """Return an argument as an array of floats, or say what is wrong with it."""
    try:
        numbers = np.array(given, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers in rows of one length, got {given!r}") from None
    if not (np.abs(numbers) <= _LARGEST_NUMBER).all():
        raise ValueError(f"{name} must be numbers of at most a million, got {given!r}")
    return numbers


def _draw_steps(ax: Axes) -> None:
    """Name the steps at the left, with how each follows from those above it."""
    for step, how in _HOW.items():
        y = _ROWS[step]
        _note(ax, (2, y - 6 if how else y), step, weight="bold")
        if how:
            _note(ax, (2, y + 7), how)


def _draw_pair(ax: Axes, at: float, top: float, pair: np.ndarray, colour: str) -> None:
    """Draw two numbers, one above the other."""
    for i, number in enumerate(pair):
        cell = Rectangle((at - 21, top + 18 * i), 42, 18, facecolor=colour + _PALE)
        cell.set_edgecolor(colour)
        ax.add_patch(cell)
        _number(ax, at, top + 18 * i + 9, _plain(number))


def _draw_share(ax: Axes, at: float, share: float) -> None:
    """Draw a share as the filled part of a column that stands for 1."""
    low, height = _ROWS["share"] + 8, 28
    for part, ground in ((1, "none"), (share, _TOKEN)):
        box = Rectangle((at - 21, low), 42, -height * part, facecolor=ground, edgecolor=_TOKEN)
        ax.add_patch(box)
    _number(ax, at, low + 10, _fraction(share))


def _number(ax: Axes, at: float, y: float, text: str) -> None:
    _note(ax, (at, y), text, ha="center")


def _plain(number: float) -> str:
    """Return a number as short as a narrow column needs it.

    >>> [_plain(x) for x in (3, -0.5, 2 / 3, 1e-9, 32768, 2.0**40)]
    ['3', '−0.5', '0.67', '0.00', '32,768', '1.1e12']
    """
    size = abs(number)
    if size >= 99_999.5:
        digits, power = f"{number:.1e}".split("e")
        text = f"{digits.removesuffix('.0')}e{int(power)}"
    elif 0 < size < 0.005:
        return "0.00"  # not quite nothing
    else:
        text = f"{number:,.{2 if size < 999.995 else 0}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


def _fraction(share: float) -> str:
    """Return a share as a simple fraction if it is one, else rounded."""
    simple = Fraction(share).limit_denominator(20)
    return str(simple) if abs(simple - share) < 1e-9 else _plain(share)


_X = 36  # where the hidden state runs down the page
_NORM, _MATRIX, _BACK = (60, 118), (154, 346), (88, 124)  # left and right edge of boxes


def _draw_entrance(ax: Axes, arch: Architecture) -> None:
    """Draw how an id becomes its row of the table."""
    _box(ax, (6, 66), (2, 22), "token id", mono=False)
    _note(ax, (74, 12), f"one of {arch.vocab_size:,}")
    _draw_table(ax, 40, chosen=2)
    _arrow(ax, (_X, 22), (_X, 57))
    _note(ax, (126, 49), "its row of the table,")
    _note(ax, (126, 63), f"{arch.vocab_size:,} × {arch.d_model:,}")
    ax.plot([_X, _X], [60, 430], color=_TOKEN, lw=3.5, zorder=1.5)
    _note(ax, (_X + 8, 90), f"x: {arch.d_model:,} numbers")
    for line, (colour, meaning) in enumerate(
        {_TOKEN: "this token", _KEPT: "earlier tokens", _LEARNED: "learned weights"}.items()
    ):
        _strip(ax, 256, 3 + 16 * line, 12, 1, colour)
        _note(ax, (268, 9 + 16 * line), meaning)


def _draw_layer_frame(ax: Axes, arch: Architecture, top: float, bottom: float) -> None:
    frame = FancyBboxPatch(
        (3, top), 354, bottom - top, boxstyle="round,pad=0,rounding_size=8", facecolor=_INK + "0d"
    )
    frame.set_edgecolor(_INK + "60")
    ax.add_patch(frame)
    layers = "1 layer" if arch.n_layers == 1 else f"{arch.n_layers} layers, one after another"
    _note(ax, (348, top + 13), layers, ha="right", weight="bold")


def _draw_attention(ax: Axes, arch: Architecture, top: float) -> None:
    """Draw the first half of a layer: read from other tokens, and add the result to x."""
    n, k, h = arch.n_heads, arch.n_kv_heads, arch.head_dim
    row = _draw_branch(ax, arch, top, "qkv")
    q_at, k_at, v_at = 182, 260, 320  # centres of what `qkv` makes
    cell = min(11, 66 / n, 46 / k)

    turn = (top + 40, top + 58)
    _box(ax, (154, 284), turn, "rotate")
    strips = top + 80
    heads = "1 head" if n == 1 else f"{n} heads"
    for at, start, n_cells, shape in (
        (q_at, turn[1], n, f"q {heads} × {h}"),
        (k_at, turn[1], k, f"k {k} × {h}"),
        (v_at, row, k, f"v {k} × {h}"),  # values are not rotated
    ):
        _arrow(ax, (at, start), (at, strips))
        _note(ax, (at - 5, strips - 11), shape, ha="right")
        _strip(ax, at, strips, cell, n_cells, _TOKEN)
    for at in (q_at, k_at):
        _arrow(ax, (at, row), (at, turn[0]))

    for line in range(1, 4):
        for at in (k_at, v_at):
            _strip(ax, at, strips + 15 * line, cell, k, _KEPT)
    low = strips + 60
    left, width = k_at - 28, v_at - k_at + 56
    around = FancyBboxPatch(
        (left, strips - 4), width, low - strips + 4, boxstyle="round,pad=0,rounding_size=4"
    )
    around.set(facecolor="none", edgecolor=_KEPT, linestyle="--", linewidth=1.2)
    ax.add_patch(around)
    _note(ax, ((k_at + v_at) / 2, low + 9), "and of earlier tokens", ha="center")
    middle = strips + 34
    _arrow(ax, (q_at, strips + 12), (q_at, middle - 11))
    _box(ax, (q_at - 34, q_at + 34), (middle - 11, middle + 11), "attention")
    _arrow(ax, (left, middle), (q_at + 34, middle), _KEPT)

    back = low + 26
    _arrow(ax, (q_at, middle + 11), (q_at, back - 6))
    _strip(ax, q_at, back - 6, cell, n, _TOKEN)
    _note(ax, (q_at + 39, back), f"heads side by side: {n * h:,}")
    _draw_return(ax, arch, back, q_at - n * cell / 2, "out")


def _draw_mlp(ax: Axes, arch: Architecture, top: float) -> None:
    """Draw the second half of a layer: what the token does by itself, added to x."""
    row = _draw_branch(ax, arch, top, "gate_up")
    back = top + 57
    for at, name in ((214, "gate"), (302, "up")):
        _arrow(ax, (at, row), (at, back - 11))
        _note(ax, (at - 5, (row + back - 11) / 2), f"{name} {arch.d_ff:,}", ha="right")
    _box(ax, _MATRIX, (back - 11, back + 11), "silu(gate) * up")
    _draw_return(ax, arch, back, _MATRIX[0], "down")


def _draw_branch(ax: Axes, arch: Architecture, top: float, matrix: str) -> float:
    """Draw the copy of x that a half layer works on, to its matrix; return where that ends."""
    y = top + 11
    ax.add_patch(Circle((_X, y), 3, facecolor=_TOKEN, edgecolor=_TOKEN, zorder=4))
    _arrow(ax, (_X, y), (_NORM[0], y))
    _box(ax, _NORM, (top, top + 22), "rms_norm")
    _arrow(ax, (_NORM[1], y), (_MATRIX[0], y))
    _note(ax, ((_NORM[1] + _MATRIX[0]) / 2 - 2, y - 8), f"{arch.d_model:,}", ha="center")
    _box(ax, _MATRIX, (top, top + 22), matrix, _LEARNED)
    return top + 22


def _draw_return(ax: Axes, arch: Architecture, y: float, start: float, matrix: str) -> None:
    """Draw the way back through a matrix, and the addition."""
    _arrow(ax, (start, y), (_BACK[1], y))
    _box(ax, _BACK, (y - 11, y + 11), matrix, _LEARNED)
    _arrow(ax, (_BACK[0], y), (_X + 8, y))
    _note(ax, ((_BACK[0] + _X + 8) / 2 + 3, y - 8), f"{arch.d_model:,}", ha="center")
    ax.add_patch(Circle((_X, y), 8, facecolor=COLORS["paper"], edgecolor=_TOKEN, lw=1.6, zorder=4))
    for bar in (([_X - 4, _X + 4], [y, y]), ([_X, _X], [y - 4, y + 4])):
        ax.plot(*bar, color=_INK, lw=1.6, zorder=5)


def _draw_exit(ax: Axes, arch: Architecture, top: float) -> None:
    """Draw how x becomes one logit for each token of the vocabulary."""
    _box(ax, (6, 66), (top, top + 20), "rms_norm")
    _arrow(ax, (_X, top + 20), (_X, top + 38))
    _draw_table(ax, top + 38)
    for line in range(_LINES):
        _arrow(ax, (118, top + 42 + 8 * line), (136, top + 42 + 8 * line))
    which = "the table" if arch.tied_embeddings else "a second table"
    _note(ax, (144, top + 48), f"compared with every row of {which}")
    _note(ax, (144, top + 64), f"{arch.vocab_size:,} logits", weight="bold")


_LINES = 4  # rows that stand for a table


def _draw_table(ax: Axes, top: float, chosen: int | None = None) -> None:
    for line in range(_LINES):
        row = Rectangle((6, top + 8 * line), 112, 8, facecolor=_LEARNED + _PALE, edgecolor=_LEARNED)
        if line == chosen:
            row.set(facecolor=_TOKEN + "70", edgecolor=_TOKEN, zorder=1.2)
        ax.add_patch(row)


def _page(height: float) -> tuple[Figure, Axes]:
    """Return a figure to draw on in points, from the upper left corner."""
    fig = Figure(figsize=(_WIDTH / 72, height / 72))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, _WIDTH), ylim=(height, 0))
    ax.axis("off")
    return fig, ax


def _note(ax: Axes, at: Point, words: str, size: float = _SMALL, **looks: Any) -> None:
    ax.text(*at, words, fontsize=size, va="center_baseline", parse_math=False, **looks)


def _box(
    ax: Axes, sides: Point, height: Point, name: str, colour: str = _INK, mono: bool = True
) -> None:
    """Draw a step with its name: a matrix in the colour of weights, else in ink."""
    (left, right), (top, bottom) = sides, height
    ground = COLORS["paper"] if colour == _INK else colour + _PALE
    shape = FancyBboxPatch(
        (left, top), right - left, bottom - top, boxstyle="round,pad=0,rounding_size=3", zorder=3
    )
    shape.set(facecolor=ground, edgecolor=colour, linewidth=1.0)
    ax.add_patch(shape)
    family = {"family": "monospace"} if mono else {}
    size = _SMALL if mono else _USUAL
    _note(ax, ((left + right) / 2, (top + bottom) / 2), name, size, ha="center", zorder=6, **family)


def _arrow(ax: Axes, start: Point, end: Point, colour: str = _INK) -> None:
    arrow = FancyArrowPatch(
        path=Path([start, end]), arrowstyle="-|>", mutation_scale=7, color=colour, lw=1.0, zorder=2
    )
    ax.add_patch(arrow)


def _strip(ax: Axes, centre: float, top: float, cell: float, n: int, colour: str) -> None:
    """Draw heads side by side, a cell each."""
    for i in range(n):
        left = centre + (i - n / 2) * cell
        line = min(0.8, cell / 8)
        box = Rectangle((left, top), cell, 12, facecolor=colour + "70", edgecolor=colour, lw=line)
        ax.add_patch(box)
