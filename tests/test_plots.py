import gzip
import io
import itertools
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from firsttoken import plots

CONCEPTS = ["prefill", "decode", "weights", "cache", "target", "draft"]
PAIRS = [("prefill", "decode"), ("weights", "cache"), ("target", "draft")]
DARKEST_PAGE = "#14181e"
# Machado et al. 2009, severity 1, on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear_rgb(color):
    value = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    """WCAG 2: from 1 to 21."""
    low, high = sorted(linear_rgb(c) @ [0.2126, 0.7152, 0.0722] + 0.05 for c in (a, b))
    return high / low


def difference(a, b, matrix):
    """Return 100 times the distance in Oklab, as seen with this kind of colour vision."""
    to_lms = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    labs = []
    for color in (a, b):
        seen = np.clip(np.array(matrix) @ linear_rgb(color), 0, 1)
        labs.append(np.array(to_lab) @ np.cbrt(np.array(to_lms) @ seen))
    return 100 * np.linalg.norm(labs[0] - labs[1])


@pytest.fixture
def fig():
    with plt.rc_context(plots.STYLE):
        fig = Figure()
        ax = fig.add_subplot()
        ax.plot([1, 2, 3], [0.125, 0.25, 0.5], "o-", color=plots.COLORS["cache"], label="a<b & c")
        ax.set_xticks([1.12345, 2.5], ["1.12345", "2.5"])
        ax.set(xlabel="context (tokens)", ylabel="bytes (GB)", title="A title")
        ax.legend()
    return fig


def html_of(fig, alt="What to see.", **kwargs):
    return plots.inline_svg(plots.svg_drawing(fig), alt, plots.extent(fig), **kwargs)


def test_colors_stand_out_on_both_pages():
    for name in (*CONCEPTS, "muted"):
        for page in ("#ffffff", DARKEST_PAGE):
            assert contrast(plots.COLORS[name], page) >= 3, name
    assert contrast("#ffff00", "#ffffff") < 1.2


def test_colors_stay_apart_with_any_colour_vision():
    """A just noticeable difference is about 2; tritanopia is rare and gets a little less."""
    for vision, matrix in VISION.items():
        least = 8.5 if vision == "tritan" else 10
        for a, b in itertools.combinations(CONCEPTS, 2):
            wanted = 1.5 * least if (a, b) in PAIRS else least
            got = difference(plots.COLORS[a], plots.COLORS[b], matrix)
            assert got >= wanted, (vision, a, b, got)
    assert difference("#2ca02c", "#d62728", VISION["deutan"]) < 10  # the usual red and green


def test_svg_is_well_formed_named_and_scalable(fig):
    """Text stays text and keeps every digit; the same figure gives the same words."""
    html = html_of(fig, alt='Says "a < b" & more.')
    root = ET.fromstring(html)
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'Says "a < b" & more.'
    assert root.get("width") is None and root.get("viewBox")
    text = "".join(root.itertext())
    for wanted in ("1.12345", "context (tokens)", "A title", "a<b & c"):
        assert wanted in text
    assert html_of(fig, alt='Says "a < b" & more.') == html


def test_alt_is_required(fig):
    for alt in ("", "  \n", None, 3):
        with pytest.raises(ValueError, match="alt must say"):
            html_of(fig, alt=alt)


def test_an_artist_without_points_leaves_the_svg_well_formed():
    fig = Figure()
    fig.add_subplot().scatter([], [], alpha=0.5)
    ET.fromstring(plots.inline_svg(plots.svg_drawing(fig), "nothing", plots.extent(fig)))


def test_ink_follows_the_page_and_colours_stay(fig):
    drawing = plots.svg_drawing(fig)
    assert plots.COLORS["cache"] in drawing
    assert plots.COLORS["ink"] not in drawing and "currentColor" in drawing
    assert "#ffffff" not in drawing  # nothing opaque behind the figure
    assert "<style" not in drawing  # it would apply to the whole page


def test_figures_without_the_style_are_legible_too():
    fig = Figure()
    ax = fig.add_subplot()
    ax.set_xlabel("x")
    assert not re.search(r"#(ffffff|000000)", plots.svg_drawing(fig))


def test_every_reference_has_its_id_and_nothing_else_has_one(fig):
    for svg in (html_of(fig, prefix="p"), plots.ornament(fig, "p")):
        ids = re.findall(r'\bid="([^"]+)"', svg)
        assert len(ids) == len(set(ids)) and plots._ID not in svg
        named = {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)}
        assert set(ids) == named and named
        assert all(name.startswith("p") for name in ids)


def test_nothing_drawn_lies_outside_the_view_box():
    """A wide tick label widens the box instead of being cut."""
    with plt.rc_context(plots.STYLE):
        fig = Figure()
        ax = fig.add_subplot()
        narrow = plots.extent(fig)
        ax.set_yticks([0.5], ["a very long label of this tick"])
    assert plots.extent(fig).x0 < narrow.x0 - 50


def test_a_legend_outside_of_the_figure_is_whole():
    """matplotlib cuts lines off at the edge of what it saves, and leaves markers out."""

    def drawn(anchor):
        with plt.rc_context(plots.STYLE):
            fig = Figure(figsize=(4, 2))
            ax = fig.add_subplot()
            ax.plot([0, 1], [0, 1], "o-", color=plots.COLORS["cache"], label="line")
            ax.legend(loc="center", bbox_to_anchor=anchor)
            svg, box = plots.svg_drawing(fig), plots.extent(fig)
        # Of the line and of its place in the legend: a path each, and the markers.
        x = [float(v) for v in re.findall(r'<use [^>]*x="(-?[\d.]+)"', svg)]
        return svg.count(f"stroke:{plots.COLORS['cache']}"), len(x), max(x) <= box.x1

    for place in ((0.5, 1.02), (0.5, 1.3), (-0.4, 0.5), (1.5, 0.5), (0.5, -0.4)):
        assert drawn(place) == drawn((0.5, 0.5))


def test_minified_paths_keep_their_points(fig):
    """Rounding is to a hundredth of a point."""
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "x"}):
        line = fig.axes[0].lines[0]
        points = line.get_transform().transform(line.get_xydata()) * 72 / fig.dpi
    points += 72 * plots._MARGIN
    height = 72 * (fig.get_figheight() + 2 * plots._MARGIN)
    path = re.search(rf'd="([^"]+)"[^>]*stroke:{plots.COLORS["cache"]}', plots.svg_drawing(fig))[1]
    got = np.array([float(v) for v in re.findall(r"-?[\d.]+", path)]).reshape(-1, 2)
    np.testing.assert_allclose(got, np.c_[points[:, 0], height - points[:, 1]], atol=0.0051)


def test_minified_svg_is_much_smaller(fig):
    raw = io.StringIO()
    fig.savefig(raw, format="svg")
    size = len(gzip.compress(plots.svg_drawing(fig).encode()))
    assert size < 0.6 * len(gzip.compress(raw.getvalue().encode()))


def test_log_axes_have_plain_labels():
    """In any base, where powers begin and elsewhere; those of the author stay."""

    def drawn(base, ticks, labels=None):
        fig = Figure()
        ax = fig.add_subplot()
        ax.set_xscale("log", base=base)
        ax.set_xticks(ticks, labels)
        return plots.svg_drawing(fig)

    for base, places in (
        (10, {1e3: "1,000", 1e4: "10⁴", 1e-4: "10⁻⁴", 1e-3: "0.001", 1e5: "10⁵", 100: "100"}),
        (2, {2**-12: "2⁻¹²", 2**-9: "0.00195312", 1: "1", 2**13: "8,192", 2**14: "2¹⁴"}),
    ):
        drawing = drawn(base, list(places))
        assert [label for label in places.values() if f">{label}<" not in drawing] == []
        assert "<tspan" not in drawing
    assert ">two<" in drawn(2, [1, 2, 4], ["one", "two", "four"])


def test_log_axes_have_no_small_ticks_and_others_are_left_alone():
    fig = Figure()
    ax = fig.add_subplot()
    ax.set(xscale="log", xlim=(1, 1e3), ylim=(0, 1))
    ax.minorticks_on()
    kept = ax.yaxis.get_major_formatter()
    plots.svg_drawing(fig)
    assert len(ax.xaxis.get_minorticklocs()) == 0 and len(ax.yaxis.get_minorticklocs()) > 0
    assert ax.yaxis.get_major_formatter() is kept
    # matplotlib may ask for a place that no such axis has, as where a tick was set at 0.
    for value in (0.0, -1.0):
        assert isinstance(ax.xaxis.get_major_formatter()(value, 0), str)


def test_a_figure_scrolls_where_a_phone_is_narrower_than_it_is():
    """420 points, with three on either side; the box has the figure's name and takes the focus."""
    for width in (414, 415):
        root = ET.fromstring(plots.inline_svg("", " a <box> ", Bbox([[0, 0], [width, 50]])))
        assert root.get("aria-label") == "a <box>"
        assert root.tag == ("div" if width > 414 else "svg")
    assert (root.get("role"), root.get("tabindex")) == ("group", "0")
    assert root.get("style") == "overflow-x:auto"
    assert root[0].get("aria-label") == "a <box>" and root[0].get("role") == "img"


def test_a_picture_keeps_its_shape_and_does_not_shrink_below_what_is_legible():
    root = ET.fromstring(plots.inline_svg("", "a box", Bbox([[10, 20], [204, 114]])))
    assert root.get("viewBox") == "7 17 200 100"  # room around the ink
    style = dict(rule.split(":", 1) for rule in root.get("style").split(";"))
    assert (style["width"], style["height"]) == ("100%", "auto")
    assert (style["min-width"], style["max-width"]) == ("170px", "300px")  # of 200 points
    assert style["overflow"] == "visible" and style["display"] == "block"
    # Its colour and its font are the site's, JupyterLab's, or those around it.
    for name, last in (("color", "currentColor"), ("font-family", "sans-serif")):
        assert "var(--pst-" in style[name] and "var(--jp-" in style[name] and last in style[name]


def test_ids_come_from_the_drawing_and_what_it_shows():
    """So two figures share none, and the page comes out the same."""
    box, drawing = Bbox([[0, 0], [9, 9]]), f'<path id="{plots._ID}0"/><use href="#{plots._ID}0"/>'
    pictures = [
        plots.inline_svg(drawn, alt, box)
        for drawn, alt in ((drawing, "one"), (drawing, "two"), (drawing + "<g></g>", "one"))
    ]
    ids = [re.search(r' id="(f[0-9a-f]{8}0)"', picture)[1] for picture in pictures]
    assert len(set(ids)) == 3
    assert all(picture.count(name) == 2 for picture, name in zip(pictures, ids, strict=True))


@pytest.fixture
def square():
    """A figure of 4 by 3 inches with one square: an inch from the left, half one from the top."""
    fig = Figure(figsize=(4, 3))
    fig.add_artist(plt.Rectangle((1 / 4, 1 / 2), 1 / 4, 1 / 3, color="#123456", linewidth=0))
    return fig


def corners(drawing):
    """Return left, top, right and bottom of the one path in the square's colour."""
    path = re.search(r'd="([^"]+)"[^>]*#123456', drawing)[1]
    x, y = np.array([float(v) for v in re.findall(r"-?[\d.]+", path)]).reshape(-1, 2).T
    return [x.min(), y.min(), x.max(), y.max()]


def test_an_ornament_shows_the_figure_s_own_area_and_says_nothing(square):
    box = plots.extent(square)
    assert corners(plots.svg_drawing(square)) == pytest.approx([*box.p0, *box.p1])
    root = ET.fromstring(plots.ornament(square, "p"))
    assert root.get("aria-hidden") == "true" and root.get("role") is None
    assert root.get("fill") == "currentColor"
    x, y, width, height = (float(v) for v in root.get("viewBox").split())
    assert (width, height) == (4 * 72, 3 * 72)
    left, top, right, bottom = corners(plots.ornament(square, "p"))
    assert [left - x, top - y, right - x, bottom - y] == pytest.approx([72, 36, 144, 108])


def test_monospaced_text_stays_so_and_all_other_has_the_page_s_font():
    fig = Figure()
    fig.text(0.5, 0.2, "code", family="monospace")
    fig.text(0.5, 0.8, "words", family="DejaVu Sans")
    drawing = plots.svg_drawing(fig)
    styles = {
        word: style for style, word in re.findall(r'<text style="([^"]*)"[^>]*>(\w+)<', drawing)
    }
    assert "font-family:monospace;" in styles["code"]
    assert "font-family" not in styles["words"]
    assert {style.partition(";")[0] for style in styles.values()} == {"font-size:10px"}


def test_turned_text_is_turned_and_a_scaled_marker_scaled(fig):
    """What is left out of the SVG has no effect: the label of y still runs upwards."""
    drawing = plots.svg_drawing(fig)
    label = re.search(r"<text[^>]*>bytes \(GB\)<", drawing)[0]
    assert "rotate(-90" in label
    assert "rotate(-0 " not in drawing
    assert "<g>" not in drawing and ' style=""' not in drawing and "<!--" not in drawing
    assert "xlink" not in drawing and "\n" not in drawing


def test_show_displays_once_and_closes(monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "display", shown.append)
    before = plt.get_fignums()
    fig, later = plt.figure(), plt.figure()
    fig.add_subplot()
    plots.show(fig, alt="An empty pair of axes.")
    assert plt.get_fignums() == [*before, later.number]  # it, and not the latest
    plt.close(later)
    assert len(shown) == 1 and 'aria-label="An empty pair of axes."' in shown[0].data
