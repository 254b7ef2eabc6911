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


@pytest.mark.parametrize("name", [*CONCEPTS, "muted"])
def test_colors_stand_out_on_both_pages(name):
    assert contrast(plots.COLORS[name], "#ffffff") >= 3
    assert contrast(plots.COLORS[name], DARKEST_PAGE) >= 3


@pytest.mark.parametrize("vision", VISION)
def test_colors_stay_apart_with_any_colour_vision(vision):
    """A just noticeable difference is about 2; tritanopia is rare and gets a little less."""
    least = 8.5 if vision == "tritan" else 10
    for a, b in itertools.combinations(CONCEPTS, 2):
        wanted = 1.5 * least if (a, b) in PAIRS else least
        got = difference(plots.COLORS[a], plots.COLORS[b], VISION[vision])
        assert got >= wanted, (a, b, got)


def test_the_measure_of_colours_finds_a_bad_pair():
    assert difference("#2ca02c", "#d62728", VISION["deutan"]) < 10  # the usual red and green
    assert contrast("#ffff00", "#ffffff") < 1.2


def test_style_is_accepted_whole():
    with plt.rc_context(), plt.style.context(plots.STYLE):
        assert plt.rcParams["axes.grid"] is True


def test_svg_is_well_formed_named_and_scalable(fig):
    root = ET.fromstring(html_of(fig, alt='Says "a < b" & more.'))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'Says "a < b" & more.'
    assert root.get("width") is None and root.get("viewBox")
    assert "max-width" in root.get("style")


@pytest.mark.parametrize("alt", ["", "  \n", None, 3])
def test_alt_is_required(fig, alt):
    with pytest.raises(ValueError, match="alt must say"):
        html_of(fig, alt=alt)


def test_an_artist_without_points_leaves_the_svg_well_formed():
    fig = Figure()
    fig.add_subplot().scatter([], [], alpha=0.5)
    ET.fromstring(plots.inline_svg(plots.svg_drawing(fig), "nothing", plots.extent(fig)))


def test_text_stays_text_and_keeps_every_digit(fig):
    text = "".join(ET.fromstring(html_of(fig)).itertext())
    for wanted in ("1.12345", "context (tokens)", "A title", "a<b & c"):
        assert wanted in text


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
    svg = html_of(fig, prefix="p")
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    named = {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)}
    assert set(ids) == named and named
    assert all(name.startswith("p") for name in ids)


def test_two_figures_share_no_id(fig):
    first = set(re.findall(r'\bid="([^"]+)"', html_of(fig)))
    fig.axes[0].plot([1, 2], [0.2, 0.1])
    second = set(re.findall(r'\bid="([^"]+)"', html_of(fig)))
    assert first and second and not first & second


def test_output_is_deterministic(fig):
    assert html_of(fig) == html_of(fig)


def test_nothing_drawn_lies_outside_the_view_box():
    """A wide tick label widens the box instead of being cut."""
    with plt.rc_context(plots.STYLE):
        fig = Figure()
        ax = fig.add_subplot()
        narrow = plots.extent(fig)
        ax.set_yticks([0.5], ["a very long label of this tick"])
    assert plots.extent(fig).x0 < narrow.x0 - 50


@pytest.mark.parametrize("place", [(0.5, 1.02), (0.5, 1.3), (-0.4, 0.5), (1.5, 0.5), (0.5, -0.4)])
def test_a_legend_outside_of_the_figure_is_whole(place):
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
    fig = Figure()
    ax = fig.add_subplot()
    ax.set(xscale="log", yscale="log", xlim=(1, 1e6), ylim=(1e-6, 1))
    drawing = plots.svg_drawing(fig)
    for label in (">100<", ">10⁵<", ">10⁻⁵<", ">0.1<"):
        assert label in drawing
    ax.set(xticks=[1e3, 1e4], yticks=[1e-4, 1e-3])  # where powers begin
    drawing = plots.svg_drawing(fig)
    for label in (">1,000<", ">10⁴<", ">10⁻⁴<", ">0.001<"):
        assert label in drawing
    assert "<tspan" not in drawing


def test_log_axes_keep_the_authors_labels():
    fig = Figure()
    ax = fig.add_subplot()
    ax.set_xscale("log", base=2)
    ax.set_xticks([1, 2, 4], ["one", "two", "four"])
    assert ">two<" in plots.svg_drawing(fig)


def test_a_wide_figure_scrolls_inside_its_own_box():
    fig = Figure(figsize=(10, 3))
    fig.add_subplot()
    assert html_of(fig).startswith('<div style="overflow-x:auto" tabindex="0"')


def test_the_view_box_leaves_room_around_the_ink():
    box = Bbox([[10, 20], [110, 70]])
    assert 'viewBox="7 17 106 56"' in plots.inline_svg("", "a box", box)


def test_show_displays_once_and_closes(monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "display", shown.append)
    before = plt.get_fignums()
    fig, _ = plt.subplots()
    plots.show(fig, alt="An empty pair of axes.")
    assert plt.get_fignums() == before
    assert len(shown) == 1 and 'aria-label="An empty pair of axes."' in shown[0].data
