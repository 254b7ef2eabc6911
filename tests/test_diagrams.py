import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
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


def test_figures_are_tidy():
    for arch in SHAPES:
        assert collisions(model_block(arch)) == [], (arch.name, arch.n_kv_heads)
    for example in (SMALL, WIDE, [x[:2] for x in SMALL]):
        assert collisions(attention_by_hand(*example)) == []
    for sequences in (
        *(RAGGED, [(1, 0), (1, 11)], [(9, 3), (1, 1), (1, 0), (1, 0)]),
        [(3, 9)] * 4,
    ):
        assert collisions(ragged_pass(sequences)) == [], sequences


def test_collisions_are_found():
    """One text is laid on another, on a border, an arrow or the edge of the page."""

    def moved(text, to):
        fig = model_block(ODD)
        found = {t.get_text(): t for t in fig.axes[0].texts}
        found[text].set_position(found[to].get_position() if isinstance(to, str) else to)
        return fig

    for text, place in (
        *(("k 2 × 5", "v 2 × 5"), ("token id", "one of 1,234"), ("x: 40 numbers", "rms_norm")),
        *(("its row of the table,", at) for at in ((20, 106), (240, 138), (100, 303), (300, 90))),
    ):
        assert collisions(moved(text, place)), (text, place)


# Where things stand, in points from the upper left corner.


def parts(fig, kind):
    """Return (left, top, right, bottom) of all patches of a kind."""
    to_data, found = fig.axes[0].transData.inverted(), []
    for patch in fig.axes[0].patches:
        if type(patch) is kind:
            x, y = (
                sorted(ends) for ends in patch.get_extents().transformed(to_data).get_points().T
            )
            found.append((x[0], y[0], x[1], y[1]))
    return found


def places(fig):
    """Return {text: where it stands}, the last of equal ones."""
    return {text.get_text(): text.get_position() for text in fig.axes[0].texts}


def ways(fig):
    """Return (start, end) of all arrows."""
    arrows = [p for p in fig.axes[0].patches if isinstance(p, FancyArrowPatch)]
    return [tuple(map(tuple, p._path_original.vertices)) for p in arrows]


def from_border(point, box):
    """Return how far a point is from the border of a box, within or without."""
    (x, y), (left, top, right, bottom) = point, box
    if left <= x <= right and top <= y <= bottom:
        return min(x - left, right - x, y - top, bottom - y)
    return max(left - x, x - right, top - y, y - bottom)


def cells(fig):
    """Return the heads: boxes twelve points high."""
    return [box for box in parts(fig, Rectangle) if box[3] - box[1] == pytest.approx(12)]


def test_every_arrow_of_the_block_leads_from_one_part_to_another():
    """Upright or level; only the last four point at words: the logits."""
    for arch in SHAPES:
        fig = model_block(arch)
        boxes = [box for kind in (Rectangle, FancyBboxPatch, Circle) for box in parts(fig, kind)]
        lines = (line.get_xydata() for line in fig.axes[0].lines)
        (line,) = (xy for xy in lines if np.ptp(xy[:, 1]) > 100)
        boxes.append((*line.min(axis=0), *line.max(axis=0)))  # x itself
        to_words = 0
        for start, end in ways(fig):
            assert (start[0] == end[0]) != (start[1] == end[1])
            assert min(from_border(start, box) for box in boxes) == pytest.approx(0, abs=0.01)
            if min(from_border(end, box) for box in boxes) > 1.01:
                to_words += 1
                left, _ = places(fig)[f"{arch.vocab_size:,} logits"]
                assert 5 < left - end[0] < 10
        assert to_words == 4


def test_a_name_is_in_the_middle_of_its_box_and_boxes_lie_apart():
    once = ["token id", "qkv", "rotate", "attention", "out", "gate_up", "silu(gate) * up", "down"]
    for arch in SHAPES:
        fig = model_block(arch)
        boxes = [box for box in parts(fig, FancyBboxPatch) if box[3] - box[1] < 30]
        named = Counter()
        for text in fig.axes[0].texts:
            x, y = text.get_position()
            for left, top, right, bottom in boxes:
                if left < x < right and top < y < bottom:
                    assert (x, y) == pytest.approx(((left + right) / 2, (top + bottom) / 2))
                    named[text.get_text()] += 1
        assert named == Counter([*once, *3 * ["rms_norm"]])
        for (a, b, c, d), (left, top, right, bottom) in itertools.combinations(boxes, 2):
            assert min(c, right) <= max(a, left) or min(d, bottom) <= max(b, top)


def test_heads_stand_side_by_side_in_the_middle_of_what_leads_to_them():
    """Without a gap; and those of earlier tokens below this token's, at one distance.

    Each is a cell: queries and what they read; keys and values of this token and three others; a
    key of 3.
    """
    for arch in SHAPES[:6]:
        fig = model_block(arch)
        heads = cells(fig)
        assert len(heads) == 2 * arch.n_heads + 4 * 2 * arch.n_kv_heads + 3
        rows = []
        for start, end in ways(fig):
            at_end = sorted(box for box in heads if box[1] == pytest.approx(end[1]))
            if start[0] != end[0] or not at_end:
                continue
            row = [box for box in at_end if abs(box[0] + box[2] - 2 * end[0]) / 2 <= 35]
            assert row[0][0] + row[-1][2] == pytest.approx(2 * end[0])
            assert all(a[2] == pytest.approx(b[0]) for a, b in itertools.pairwise(row))
            rows.append(row)
        _, keys, values, _ = rows
        n, k = arch.n_heads, arch.n_kv_heads
        assert [len(row) for row in rows] == [n, k, k, n]
        for left, top, right, _ in (*keys, *values):
            below = [b[1] - top for b in heads if (b[0], b[2]) == pytest.approx((left, right))]
            assert below == pytest.approx([0, 15, 30, 45])
        for a, b in itertools.combinations(heads, 2):
            apart = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert min(apart) < 0.01


def test_a_colour_says_whose_it_is():
    fig = model_block(ODD)
    of = {name: plots.COLORS[name].lower() for name in ("decode", "weights", "cache", "paper")}
    boxes = [p for p in fig.axes[0].patches if type(p) is FancyBboxPatch]
    grounds = {}
    for patch, (left, top, right, bottom) in zip(boxes, parts(fig, FancyBboxPatch), strict=True):
        for text, (x, y) in places(fig).items():
            if left < x < right and top < y < bottom < top + 30:
                grounds[text] = to_hex(patch.get_facecolor())
    learned = {"qkv", "out", "gate_up", "down"}
    assert {text for text, ground in grounds.items() if ground == of["weights"]} == learned
    assert {ground for text, ground in grounds.items() if text not in learned} == {of["paper"]}
    squares = [p for p in fig.axes[0].patches if type(p) is Rectangle]
    heads = Counter(to_hex(p.get_facecolor()) for p in squares if abs(p.get_height()) == 12)
    # This token's queries, what they read, its keys and values; three others' keys and values.
    assert heads == {of["decode"]: 6 + 6 + 2 + 2 + 1, of["cache"]: 3 * 4 + 1, of["weights"]: 1}
    rows = Counter(to_hex(p.get_facecolor()) for p in squares if abs(p.get_height()) == 8)
    assert rows == {of["weights"]: 7, of["decode"]: 1}  # two tables, and the row of the token


def test_tables_and_the_frame_of_a_layer():
    """Rows of a table without a gap; all of a layer within its frame, and nothing else."""
    fig = model_block(ODD)
    rows = [box for box in parts(fig, Rectangle) if box[3] - box[1] == pytest.approx(8)]
    for table in (rows[:4], rows[4:]):
        assert len({box[::2] for box in table}) == 1
        assert all(a[3] == pytest.approx(b[1]) for a, b in itertools.pairwise(table))
    _, top, _, bottom = max(parts(fig, FancyBboxPatch), key=lambda box: box[3] - box[1])
    outside = {text for text, (_, y) in places(fig).items() if not top < y < bottom}
    assert outside == {
        *("token id", "one of 1,234", "its row of the table,", "1,234 × 40", "x: 40 numbers"),
        *("rms_norm", "compared with every row of the table", "1,234 logits"),
        *("this token", "earlier tokens", "learned weights"),
    }


def test_numbers_by_hand_stand_in_their_cells_and_columns_at_one_distance():
    for example in (SMALL, WIDE):
        fig = attention_by_hand(*example)
        n = len(example[0])
        middles = [places(fig)[f"token {i + 1}"][0] for i in range(n)] + [places(fig)["query"][0]]
        steps = np.diff(middles)
        assert steps == pytest.approx(np.full(n, steps[0]))
        assert middles[-1] + steps[0] / 2 == pytest.approx(360)  # the page ends with the last
        boxes = parts(fig, Rectangle)
        found = sorted({round((box[0] + box[2]) / 2, 6) for box in boxes})
        assert found == pytest.approx(middles)
        pairs = [box for box in boxes if box[3] - box[1] == pytest.approx(18)]
        assert len(pairs) == 2 * (3 * n + 2)
        numbers = [text.get_position() for text in fig.axes[0].texts]
        for left, top, right, bottom in pairs:
            assert ((left + right) / 2, (top + bottom) / 2) in [pytest.approx(at) for at in numbers]
        for above, below in zip(pairs[::2], pairs[1::2], strict=True):
            assert above[3] == pytest.approx(below[1]) and above[::2] == below[::2]


def test_a_step_by_hand_is_named_at_its_height():
    """Beside the one number, between the two; how it comes about stands below its name."""
    fig = attention_by_hand(*SMALL)
    at = places(fig)
    texts = [text.get_position() for text in fig.axes[0].texts]
    heights = sorted(y for x, y in texts if x == at["token 1"][0])[1:]
    key, value, mixed = np.mean(heights[:2]), np.mean(heights[5:7]), np.mean(heights[7:])
    assert (at["key"][1], at["value"][1], at["share × value"][1]) == (key, value, mixed)
    hows = {"score": "query · key", "strength": "2 to the score", "share": "strength / sum"}
    for (name, how), height in zip(hows.items(), heights[2:5], strict=True):
        assert abs((at[name][1] + at[how][1]) / 2 - height) <= 20
        assert 10 <= at[how][1] - at[name][1] <= 16 and at[name][0] == at[how][0] == at["key"][0]
    assert at["value"][0] == at["key"][0]
    # The query's column: what is summed stands on the row of what it sums.
    _, strength, share = heights[2:5]
    assert at["sum"][1] < strength < share and value < at["sum:"][1] < at["the mix"][1] < mixed


def test_a_ragged_pass_leads_each_sequence_s_rows_to_its_own_keys():
    for sequences in (RAGGED, [(1, 0), (1, 11)], [(3, 9)] * 4):
        fig = ragged_pass(sequences)
        at, boxes = places(fig), parts(fig, Rectangle)
        rows = [box for box in boxes if box[2] - box[0] == pytest.approx(52)]
        looks = [box for box in boxes if box[2] - box[0] == pytest.approx(13)]
        ((left, top, right, bottom),) = parts(fig, FancyBboxPatch)  # the weights
        middle = (top + bottom) / 2
        assert all(a[3] == pytest.approx(b[1]) for a, b in itertools.pairwise(rows))
        assert (rows[0][1], rows[-1][3]) == pytest.approx((top, bottom))
        assert at["weights"] == pytest.approx(((left + right) / 2, middle))
        *arrows, (start, end) = ways(fig)
        assert start[1] == end[1] == pytest.approx(middle)
        assert rows[0][2] < start[0] < end[0] < left
        grids = []
        for (new, before), name, (start, end) in zip(sequences, "ABCD", arrows, strict=False):
            mine, rows = rows[:new], rows[new:]
            n_looks = new * before + new * (new + 1) // 2
            grid, looks = looks[:n_looks], looks[n_looks:]
            height = (mine[0][1] + mine[-1][3]) / 2
            assert at[name][1] == pytest.approx(height) == pytest.approx(start[1])
            assert at[name][0] < mine[0][0]
            assert end[1] == pytest.approx((grid[0][1] + grid[-1][3]) / 2)
            assert 0 < start[0] - right < 8 and 0 < grid[0][0] - end[0] < 8
            # A line for each new token, a square for each key.
            squares = [(200 + 13 * j, 13 * i) for i in range(new) for j in range(before + i + 1)]
            found = [(box[0], box[1] - grid[0][1]) for box in grid]
            np.testing.assert_allclose(found, squares, atol=1e-6)
            title = next(t for t in words(fig) if t.startswith(f"{name}:"))
            assert 4 < grid[0][1] - at[title][1] < 13
            grids.append((grid[0][1], grid[-1][3]))
        assert not looks
        gaps = [b[0] - a[1] for a, b in itertools.pairwise(grids)]
        assert gaps == pytest.approx([gaps[0]] * len(gaps)) and gaps[0] > 20
        assert (grids[0][0] + grids[-1][1]) / 2 == pytest.approx(middle, abs=8)
        # The key at the foot of the page: two squares, each at the height of what it means.
        keys = [box for box in boxes if box[3] - box[1] == pytest.approx(10)]
        for box, text in zip(keys, ("made in this pass", "read from the cache"), strict=True):
            x, y = at[text]
            assert y == pytest.approx((box[1] + box[3]) / 2) and 4 < x - box[2] < 8
            assert grids[-1][1] < box[1] < box[3] < 72 * fig.get_figheight()


def test_figures_fit_a_phone_and_are_legible():
    for fig in (model_block(ODD), attention_by_hand(*WIDE), ragged_pass(RAGGED)):
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
    for name in ("GPT-2", "Mixtral-8x7B", "DeepSeek-V2"):
        with pytest.raises(ValueError, match=f"arch '{name}' has .* a Llama of its sizes"):
            model_block(ARCHITECTURES[name])
    shape, numbers = "keys must be 2 to 5 rows of 2 numbers, got shape", "must be numbers"
    for changed, message in (
        ({"keys": [[1, 2]]}, rf"{shape} \(1, 2\)"),
        ({"keys": np.ones((6, 2))}, rf"{shape} \(6, 2\)"),
        ({"keys": np.ones((3, 3))}, rf"{shape} \(3, 3\)"),
        ({"keys": []}, rf"{shape} \(0,\)"),
        ({"query": [1, 2, 3]}, r"query must be 2 numbers, got shape \(3,\)"),
        ({"query": 1}, r"query must be 2 numbers, got shape \(\)"),
        (
            {"values": [[1, 2], [3, 4]]},
            r"values must be of the shape of keys, \(3, 2\), got \(2, 2",
        ),
        ({"values": [[1, 2], [3], [4, 5]]}, rf"values {numbers} in rows .* got \[\[1, 2\], \[3"),
        ({"query": ["a", "b"]}, rf"query {numbers} .* got \['a', 'b'\]"),
        ({"query": [np.nan, 0]}, f"query {numbers} of at most a million, got .*nan"),
        ({"values": [[1, 2], [2e6, 3], [4, 5]]}, f"values {numbers} of at most a million"),
        ({"query": [0, -2000]}, "scores from -1,000 to 1,000, got −2,000"),
    ):
        arguments = dict(zip(("keys", "query", "values"), SMALL, strict=True))
        with pytest.raises(ValueError, match=message):
            attention_by_hand(**arguments | changed)
    for sequences, why in (
        ([(1, 0)], "2 to 4 pairs, got 1"),
        ([(1, 0)] * 5, "2 to 4 pairs, got 5"),
        ([(0, 3), (1, 0)], "new tokens"),
        ([(1, -1), (1, 0)], "tokens before"),
        ([(1, 12), (1, 0)], r"at most 12 tokens, got 1 \+ 12"),
        ([(7, 0), (6, 0)], "at most 12 new tokens in all, got 13"),
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
