import itertools
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from firsttoken.page import plots

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


def test_ink_follows_the_page_and_colours_stay(fig):
    drawing = plots.svg_drawing(fig)
    assert plots.COLORS["cache"] in drawing
    assert plots.COLORS["ink"] not in drawing and "currentColor" in drawing
    assert "#ffffff" not in drawing  # nothing opaque behind the figure
    assert "<style" not in drawing  # it would apply to the whole page


def test_every_reference_has_its_id_and_nothing_else_has_one(fig):
    for svg in (html_of(fig, prefix="p"), plots.ornament(fig, "p")):
        ids = re.findall(r'\bid="([^"]+)"', svg)
        assert len(ids) == len(set(ids)) and plots._ID not in svg
        named = {a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)}
        assert set(ids) == named and named
        assert all(name.startswith("p") for name in ids)


def test_a_figure_scrolls_where_a_phone_is_narrower_than_it_is():
    """420 points, with three on either side; the box has the figure's name and takes the focus."""
    for width in (414, 415):
        root = ET.fromstring(plots.inline_svg("", " a <box> ", Bbox([[0, 0], [width, 50]])))
        assert root.get("aria-label") == "a <box>"
        assert root.tag == ("div" if width > 414 else "svg")
    assert (root.get("role"), root.get("tabindex")) == ("group", "0")
    assert root.get("style") == "overflow-x:auto"
    assert root[0].get("aria-label") == "a <box>" and root[0].get("role") == "img"


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
