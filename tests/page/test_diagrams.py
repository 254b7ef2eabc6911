"""diagrams: what the pictures say, that nothing touches, and that they stay as they are.

    PYTHONPATH=tests python tests/page/test_diagrams.py

writes diagrams.json anew, when a picture has been changed and looked at.
"""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.transforms import Bbox

from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.attention import attention
from firsttoken.page import plots
from firsttoken.page.diagrams import attention_by_hand, model_block, ragged_pass

ODD = Architecture("odd", 3, 40, 6, 2, 5, 70, 1234, tied_embeddings=True)  # no two sizes are equal
LARGE = ("Llama-2-7B", "Llama-3.1-405B", "Llama-3.2-1B", "Mistral-7B", "Phi-3-mini-4k")
ONES = ODD.replace(n_layers=1, n_heads=1, n_kv_heads=1, head_dim=40)
SHAPES = [ODD, ODD.replace(n_kv_heads=6), ODD.replace(n_kv_heads=1), ONES]
SHAPES += [ARCHITECTURES[name] for name in LARGE]
SMALL = [[1, 0], [0, 1], [1, 1]], [1, 1], [[8, 0], [0, 4], [2, 2]]
WIDE = np.full((5, 2), -12345.67), [0.07, -0.06], np.full((5, 2), -999_999.9)
RAGGED = [(4, 0), (3, 3), (1, 7)]
STORED = Path(__file__).with_name("diagrams.json")


def words(fig):
    return [text.get_text() for text in fig.axes[0].texts]


def boxes(fig, artists):
    """Return where artists are seen, in points from the lower left corner."""
    fig.canvas.draw()
    to_points = 72 / fig.dpi
    return [Bbox(artist.get_window_extent().get_points() * to_points) for artist in artists]


def collisions(fig):
    """Return texts that touch another, an arrow, the border of a box or of the page."""
    ax = fig.axes[0]
    texts = list(zip(words(fig), boxes(fig, ax.texts), strict=True))
    found = [(a, b) for (a, x), (b, y) in itertools.combinations(texts, 2) if x.overlaps(y)]
    page = Bbox.from_bounds(0, 0, *(72 * fig.get_size_inches()))
    for patch, box in [*zip(ax.patches, boxes(fig, ax.patches), strict=True), (None, page)]:
        for text, place in texts:
            inside = box.containsx(place.x0) and box.containsx(place.x1)
            inside &= box.containsy(place.y0) and box.containsy(place.y1)
            enclosed = inside and not isinstance(patch, FancyArrowPatch | Circle)
            if not enclosed and (patch is None or box.overlaps(place)):
                found.append((text, patch))
    return found


def test_figures_are_tidy():
    for arch in SHAPES:
        assert collisions(model_block(arch)) == [], (arch.name, arch.n_kv_heads)
    for example in (SMALL, WIDE, [x[:2] for x in SMALL]):
        assert collisions(attention_by_hand(*example)) == []
    for sequences in (RAGGED, [(9, 3), (1, 1), (1, 0), (1, 0)], [(3, 9)] * 4):
        assert collisions(ragged_pass(sequences)) == [], sequences


def test_figures_fit_a_phone_and_are_legible():
    for fig in (model_block(ODD), attention_by_hand(*WIDE), ragged_pass(RAGGED)):
        assert min(text.get_fontsize() for text in fig.axes[0].texts) >= 8.5
        picture = plots.inline_svg(plots.svg_drawing(fig), "What to see.", plots.extent(fig))
        assert "overflow-x" not in picture  # wider ones scroll
        colours = {plots.COLORS[name] for name in ("decode", "cache")}
        assert all(colour in picture for colour in colours) and plots.COLORS["ink"] not in picture


def drawn():
    """Return what is on each picture, in order: its words and looks, and where it is in points."""
    pictures = {}
    for fig in (model_block(ODD), attention_by_hand(*SMALL), ragged_pass(RAGGED)):
        (ax,) = fig.axes
        what = [[t.get_text(), t.get_ha(), t.get_weight(), *t.get_family()] for t in ax.texts]
        where = [[*t.get_position(), t.get_fontsize(), t.get_zorder()] for t in ax.texts]
        for shape in [*ax.patches, *ax.lines]:
            path = shape.get_path()
            if isinstance(shape, Rectangle | Circle):
                path = path.transformed(shape.get_patch_transform())
            colours = (
                [shape.get_color()] * 2
                if shape in ax.lines
                else [shape.get_facecolor(), shape.get_edgecolor()]
            )
            what.append(
                [
                    type(shape).__name__,
                    *(to_hex(c, keep_alpha=True) for c in colours),
                    shape.get_linestyle(),
                ]
            )
            where.append([*path.get_extents().extents, shape.get_linewidth(), shape.get_zorder()])
        pictures[words(fig)[0]] = {
            "what": what,
            "where": [round(float(n), 1) for place in where for n in place],
        }
    return pictures


def test_pictures_are_as_they_were_looked_at():
    stored = json.loads(STORED.read_text("utf-8"))
    for name, picture in drawn().items():
        assert picture["what"] == stored[name]["what"]
        np.testing.assert_allclose(picture["where"], stored[name]["where"], atol=0.15)


def test_a_size_changes_its_texts_and_no_others():
    before = Counter(words(model_block(ODD)))
    for changed, to in (
        ({"n_layers": 1}, ["1 layer"]),
        ({"d_model": 41}, ["1,234 × 41", *4 * ["41"], "x: 41 numbers"]),
        ({"n_heads": 8}, ["q 8 heads × 5", "heads side by side: 40"]),
        ({"n_heads": 2}, ["q 2 heads × 5", "heads side by side: 10"]),
        ({"n_kv_heads": 6}, ["k 6 × 5", "v 6 × 5"]),
        ({"head_dim": 7}, ["q 6 heads × 7", "k 2 × 7", "v 2 × 7", "heads side by side: 42"]),
        ({"d_ff": 71}, ["gate 71", "up 71"]),
        ({"vocab_size": 99}, ["one of 99", "99 × 40", "99 logits"]),
        ({"tied_embeddings": False}, ["compared with every row of a second table"]),
    ):
        after = Counter(words(model_block(ODD.replace(**changed))))
        assert after - before == Counter(to)
        assert (before - after).total() == len(to)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"arch 'GPT-2' has .* a Llama of its sizes"):
        model_block(ARCHITECTURES["GPT-2"])
    for changed, message in (
        ({"keys": [[1, 2]]}, r"keys must be 2 to 5 rows of 2 numbers, got shape \(1, 2\)"),
        ({"query": [1, 2, 3]}, r"query must be 2 numbers, got shape \(3,\)"),
        ({"values": [[1, 2], [3, 4]]}, r"values must be of the shape of keys, \(3, 2\), got"),
        ({"query": [np.nan, 0]}, "query must be numbers of at most a million, got .*nan"),
        ({"query": [0, -2000]}, "scores from -1,000 to 1,000, got −2,000"),
    ):
        arguments = dict(zip(("keys", "query", "values"), SMALL, strict=True))
        with pytest.raises(ValueError, match=message):
            attention_by_hand(**arguments | changed)
    for sequences, why in (
        ([(1, 0)], "2 to 4 pairs, got 1"),
        ([(0, 3), (1, 0)], "new tokens"),
        ([(1, 12), (1, 0)], r"at most 12 tokens, got 1 \+ 12"),
    ):
        with pytest.raises(ValueError, match=why):
            ragged_pass(sequences)


def columns(fig):
    """Return the numbers that stand below each other, from left to right and top to bottom."""
    names = ("token 1", "token 2", "token 3", "token 4", "token 5", "query")
    texts = [(*text.get_position(), text.get_text()) for text in fig.axes[0].texts]
    heads = [(x, text) for x, _, text in texts if text in names]
    others = [
        (y, x, text) for x, y, text in texts if text not in (*names, "sum", "sum:", "the mix")
    ]
    return {name: [text for _, x, text in sorted(others) if x == at] for at, name in heads}


def read(text):
    """Return the number that a reader sees."""
    top, _, bottom = text.replace("−", "-").replace(",", "").partition("/")
    return float(top) / float(bottom or 1)


numbers = st.integers(-40, 40).map(lambda n: n / 8)
examples = st.integers(2, 5).flatmap(
    lambda n: st.tuples(*(arrays(float, shape, elements=numbers) for shape in ((n, 2), 2, (n, 2))))
)


@given(example=examples)
def test_drawn_numbers_are_those_of_attention(example):
    """2 to the score is e to the score times log 2: the library's attention with that scale."""
    keys, query, values = example
    drawn = columns(attention_by_hand(*example))
    *tokens, last = ([read(text) for text in column] for column in drawn.values())
    mix = attention(query[None, None, None], keys[None, None], values[None, None], scale=np.log(2))
    near = {"rtol": 0.05, "atol": 0.0051}  # large numbers keep two digits, others two decimals
    np.testing.assert_allclose(last[-2:], mix.ravel(), **near)
    scores = keys @ query
    strengths = np.exp2(scores)
    shares = strengths / strengths.sum()
    for i, column in enumerate(tokens):
        expected = [*keys[i], scores[i], strengths[i], shares[i], *values[i]]
        np.testing.assert_allclose(column, [*expected, *(shares[i] * values[i])], **near)
    np.testing.assert_allclose(last[:3], [*query, strengths.sum()], **near)


def squares(fig):
    """Return how many squares are orange, and how many green."""
    looks = [p for p in fig.axes[0].patches if isinstance(p, Rectangle) and p.get_width() == 13]
    colours = Counter(to_hex(p.get_facecolor()) for p in looks)
    return tuple(colours[plots.COLORS[name].lower()] for name in ("decode", "cache"))


pair = st.integers(0, 9).flatmap(lambda n: st.tuples(st.integers(1, 3), st.just(n)))


@given(sequences=st.lists(pair, min_size=2, max_size=4))
def test_a_square_is_a_look_of_the_library_s_own_mask(sequences):
    """The naive version: who may look at whom, in a table of all new tokens and their keys."""
    made, read = 0, 0
    for new, before in sequences:
        seen = np.tri(new, before + new, k=before, dtype=bool)
        read += seen[:, :before].sum()
        made += seen[:, before:].sum()
    fig = ragged_pass(sequences)
    assert squares(fig) == (made, read)
    rows = [p for p in fig.axes[0].patches if isinstance(p, Rectangle) and p.get_width() == 52]
    assert len(rows) == sum(new for new, _ in sequences)
    assert f"{len(rows)} rows, one product" in words(fig)


if __name__ == "__main__":
    STORED.write_text(json.dumps(drawn(), ensure_ascii=False) + "\n", "utf-8")
