import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.transforms import Bbox

from firsttoken import plots
from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.attention import attention
from firsttoken.diagrams import attention_by_hand, model_block, ragged_pass

ODD = Architecture("odd", 3, 40, 6, 2, 5, 70, 1234, tied_embeddings=True)  # no two sizes are equal
LARGE = ("Llama-2-7B", "Llama-3.1-405B", "Llama-3.2-1B", "Mistral-7B", "Phi-3-mini-4k")
ONES = ODD.replace(n_layers=1, n_heads=1, n_kv_heads=1, head_dim=40)
SHAPES = [ODD, ODD.replace(n_kv_heads=6), ODD.replace(n_kv_heads=1), ONES]
SHAPES += [ARCHITECTURES[name] for name in LARGE]
SMALL = [[1, 0], [0, 1], [1, 1]], [1, 1], [[8, 0], [0, 4], [2, 2]]
WIDE = np.full((5, 2), -12345.67), [0.07, -0.06], np.full((5, 2), -999_999.9)
RAGGED = [(4, 0), (3, 3), (1, 7)]


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


@pytest.mark.parametrize("arch", SHAPES, ids=lambda arch: f"{arch.name} K={arch.n_kv_heads}")
def test_the_block_is_tidy(arch):
    assert collisions(model_block(arch)) == []


@pytest.mark.parametrize("example", [SMALL, WIDE, [x[:2] for x in SMALL]], ids=len)
def test_attention_by_hand_is_tidy(example):
    assert collisions(attention_by_hand(*example)) == []


@pytest.mark.parametrize(
    "sequences",
    [RAGGED, [(1, 0), (1, 11)], [(9, 3), (1, 1), (1, 0), (1, 0)], [(3, 9)] * 4],
    ids=str,
)
def test_the_ragged_pass_is_tidy(sequences):
    assert collisions(ragged_pass(sequences)) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [("k 2 × 5", "v 2 × 5"), ("token id", "one of 1,234"), ("x: 40 numbers", "rms_norm")],
)
def test_collisions_are_found(text, place):
    """One text is laid on another."""
    fig = model_block(ODD)
    found = {t.get_text(): t for t in fig.axes[0].texts}
    found[text].set_position(found[place].get_position())
    assert collisions(fig)


@pytest.mark.parametrize("at", [(20, 106), (240, 138), (100, 303), (300, 90)])
def test_collisions_with_a_border_and_an_arrow_and_the_page_are_found(at):
    fig = model_block(ODD)
    note = next(text for text in fig.axes[0].texts if text.get_text() == "its row of the table,")
    note.set_position(at)
    assert collisions(fig)


@pytest.mark.parametrize(
    ("draw", "arguments"),
    [(model_block, [ODD]), (attention_by_hand, WIDE), (ragged_pass, [RAGGED])],
)
def test_figures_fit_a_phone_and_are_legible(draw, arguments):
    fig = draw(*arguments)
    assert min(text.get_fontsize() for text in fig.axes[0].texts) >= 8.5
    picture = plots.inline_svg(plots.svg_drawing(fig), "What to see.", plots.extent(fig))
    assert "overflow-x" not in picture  # wider ones scroll
    colours = {plots.COLORS[name] for name in ("decode", "cache")}
    assert all(colour in picture for colour in colours) and plots.COLORS["ink"] not in picture


def test_every_shape_is_that_of_the_architecture():
    assert Counter(words(model_block(ODD))) == Counter(
        ["this token", "earlier tokens", "learned weights", "token id", "one of 1,234"]
        + ["its row of the table,", "1,234 × 40", "x: 40 numbers", "3 layers, one after another"]
        + 4 * ["40"]  # into and out of both halves of a layer
        + 3 * ["rms_norm"]
        + ["qkv", "rotate", "q 6 heads × 5", "k 2 × 5", "v 2 × 5", "and of earlier tokens"]
        + ["attention", "heads side by side: 30", "out"]
        + ["gate_up", "gate 70", "up 70", "silu(gate) * up", "down"]
        + ["compared with every row of the table", "1,234 logits"]
    )


@pytest.mark.parametrize(
    ("changed", "to"),
    [
        ({"n_layers": 1}, ["1 layer"]),
        ({"d_model": 41}, ["1,234 × 41", *4 * ["41"], "x: 41 numbers"]),
        ({"n_heads": 8}, ["q 8 heads × 5", "heads side by side: 40"]),
        ({"n_heads": 2}, ["q 2 heads × 5", "heads side by side: 10"]),
        ({"n_kv_heads": 6}, ["k 6 × 5", "v 6 × 5"]),
        ({"head_dim": 7}, ["q 6 heads × 7", "k 2 × 7", "v 2 × 7", "heads side by side: 42"]),
        ({"d_ff": 71}, ["gate 71", "up 71"]),
        ({"vocab_size": 99}, ["one of 99", "99 × 40", "99 logits"]),
        ({"tied_embeddings": False}, ["compared with every row of a second table"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_size_changes_its_texts_and_no_others(changed, to):
    before, after = (
        Counter(words(model_block(ODD))),
        Counter(words(model_block(ODD.replace(**changed)))),
    )
    assert after - before == Counter(to)
    assert (before - after).total() == len(to)


@pytest.mark.parametrize("arch", [ODD, ODD.replace(n_kv_heads=6), ONES])
def test_each_head_is_a_cell(arch):
    """Queries and what they read; keys and values of this token and three others; a key of 3."""
    cells = [p for p in model_block(arch).axes[0].patches if isinstance(p, Rectangle)]
    n_cells = sum(abs(cell.get_height()) == 12 for cell in cells)
    assert n_cells == 2 * arch.n_heads + 4 * 2 * arch.n_kv_heads + 3


@pytest.mark.parametrize("name", ["GPT-2", "Mixtral-8x7B", "DeepSeek-V2"])
def test_what_is_no_llama_is_refused(name):
    with pytest.raises(ValueError, match=f"arch '{name}' has .* a Llama of its sizes"):
        model_block(ARCHITECTURES[name])


def columns(fig):
    """Return the numbers that stand below each other, from left to right and top to bottom."""
    names = ("token 1", "token 2", "token 3", "token 4", "token 5", "query")
    texts = [(*text.get_position(), text.get_text()) for text in fig.axes[0].texts]
    heads = [(x, text) for x, _, text in texts if text in names]
    others = [
        (y, x, text) for x, y, text in texts if text not in (*names, "sum", "sum:", "the mix")
    ]
    return {name: [text for _, x, text in sorted(others) if x == at] for at, name in heads}


def test_three_tokens_by_hand():
    assert columns(attention_by_hand(*SMALL)) == {
        #           key       score strength share value     share × value
        "token 1": ["1", "0", "1", "2", "1/4", "8", "0", "2", "0"],
        "token 2": ["0", "1", "1", "2", "1/4", "0", "4", "0", "1"],
        "token 3": ["1", "1", "2", "4", "1/2", "2", "2", "1", "1"],
        "query": ["1", "1", "8", "3", "2"],
    }


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


def test_the_filled_part_of_a_column_is_the_share():
    patches = attention_by_hand(*SMALL).axes[0].patches
    heights = [abs(p.get_height()) for p in patches if p.get_height() < 0]
    assert np.divide(heights[1::2], heights[::2]).tolist() == [0.25, 0.25, 0.5]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"keys": [[1, 2]]}, r"keys must be 2 to 5 rows of 2 numbers, got shape \(1, 2\)"),
        ({"keys": np.ones((6, 2))}, r"keys must be 2 to 5 rows .* got shape \(6, 2\)"),
        ({"keys": np.ones((3, 3))}, r"keys must be 2 to 5 rows .* got shape \(3, 3\)"),
        ({"keys": []}, r"keys must be 2 to 5 rows .* got shape \(0,\)"),
        ({"query": [1, 2, 3]}, r"query must be 2 numbers, got shape \(3,\)"),
        ({"query": 1}, r"query must be 2 numbers, got shape \(\)"),
        (
            {"values": [[1, 2], [3, 4]]},
            r"values must be of the shape of keys, \(3, 2\), got \(2, 2",
        ),
        (
            {"values": [[1, 2], [3], [4, 5]]},
            r"values must be numbers in rows .* got \[\[1, 2\], \[3",
        ),
        ({"query": ["a", "b"]}, r"query must be numbers .* got \['a', 'b'\]"),
        ({"query": [np.nan, 0]}, "query must be numbers of at most a million, got .*nan"),
        ({"values": [[1, 2], [2e6, 3], [4, 5]]}, "values must be numbers of at most a million"),
        ({"query": [0, -2000]}, "scores from -1,000 to 1,000, got −2,000"),
    ],
)
def test_wrong_arguments_are_named(changed, message):
    arguments = dict(zip(("keys", "query", "values"), SMALL, strict=True))
    with pytest.raises(ValueError, match=message):
        attention_by_hand(**arguments | changed)


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


@pytest.mark.parametrize(
    ("sequences", "why"),
    [
        ([(1, 0)], "2 to 4 pairs, got 1"),
        ([(1, 0)] * 5, "2 to 4 pairs, got 5"),
        ([(0, 3), (1, 0)], "new tokens"),
        ([(1, -1), (1, 0)], "tokens before"),
        ([(1, 12), (1, 0)], "at most 12 tokens, got 1 \\+ 12"),
        ([(7, 0), (6, 0)], "at most 12 new tokens in all, got 13"),
    ],
)
def test_what_does_not_fit_a_ragged_pass_is_refused(sequences, why):
    with pytest.raises(ValueError, match=why):
        ragged_pass(sequences)
