"""The look of every figure: one style sheet, one colour per concept, SVG that follows the theme.

>>> import matplotlib.pyplot as plt
>>> plt.style.use(STYLE)  # once, in the first cell of a chapter
>>> fig, ax = plt.subplots()
>>> lines = ax.plot([1, 2, 4], [1, 2, 4], color=COLORS["cache"])
>>> show(fig, alt="The cache grows in proportion to the batch.")  # doctest: +ELLIPSIS
<IPython.core.display.HTML object>
"""

import hashlib
import html
import io
import math
import re
from types import MappingProxyType
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import HTML, display
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.scale import LogTransform
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext
from matplotlib.transforms import Bbox

#: One colour per concept through the whole book. Each keeps a contrast of 3:1 on the white and on
#: the dark page, and stays apart from the others for readers with a colour-vision deficiency.
#: `ink` and `paper` stand for the text and the page; `show` turns them into the theme's own.
COLORS = MappingProxyType(
    {
        "prefill": "#3c69f0",
        "decode": "#d27800",
        "weights": "#1e96e1",
        "cache": "#0f785a",
        "target": "#d20f00",
        "draft": "#785aa5",
        "muted": "#7a7a7a",
        "ink": "#1b1f24",
        "paper": "#fffffe",
    }
)

_CONCEPTS = ("prefill", "decode", "cache", "draft", "weights", "target")

#: The style sheet, for `plt.style.use(STYLE)`. Five inches wide: legible on a phone, where the
#: figure fills the screen, and on a desk, where it grows to one and a half times its size.
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLORS["ink"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": COLORS["ink"],
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": plt.cycler(color=[COLORS[name] for name in _CONCEPTS]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": COLORS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titley": 1.0,  # fixed: to avoid the ticks, every frame would be laid out twice
    "figure.facecolor": "none",
    "figure.figsize": (5.0, 3.1),
    "figure.subplot.bottom": 0.17,
    "figure.subplot.left": 0.15,
    "figure.subplot.right": 0.97,
    "figure.subplot.top": 0.91,
    "font.size": 10.5,
    "grid.alpha": 0.18,
    "grid.color": COLORS["ink"],
    "grid.linewidth": 0.7,
    "hatch.color": COLORS["ink"],
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 2.2,
    "lines.markersize": 5.5,
    "patch.edgecolor": COLORS["paper"],
    "patch.linewidth": 0.8,
    "text.color": COLORS["ink"],
    "xtick.color": COLORS["ink"],
    "xtick.labelsize": 10,
    "ytick.color": COLORS["ink"],
    "ytick.labelsize": 10,
}

_DETERMINISTIC: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "first-token"}
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}

# The site's variable, then JupyterLab's, then whatever surrounds the figure.
_THEME = {
    COLORS["ink"]: "currentColor",
    "#000000": "currentColor",
    COLORS["paper"]: "var(--pst-color-background,var(--jp-layout-color0,Canvas))",
}
_INK = "var(--pst-color-text-base,var(--jp-content-font-color1,currentColor))"
_FONT = "var(--pst-font-family-base,var(--jp-content-font-family,system-ui)),sans-serif"

_MARGIN = 1.5  # inches around the figure; matplotlib cuts off lines beyond what it saves
_WIDEST_ON_A_PHONE = 420  # points; a wider figure scrolls in its own box, so its text stays legible
_PAD = 3  # points around the ink


def show(fig: Figure, alt: str) -> None:
    """Display a finished figure as SVG that follows the light or dark theme.

    The text stays text, the background is transparent, and ink takes the colour of the page.
    `alt` says what there is to see; a screen reader reads it in place of the picture.

    Raises: ValueError when `alt` is empty.
    """
    picture = inline_svg(svg_drawing(fig), alt, extent(fig))
    plt.close(fig)  # or the inline backend would show it a second time
    display(HTML(picture))


def svg_drawing(fig: Figure) -> str:
    """Return what is on the figure as small SVG, without the outer element."""
    for ax in fig.axes:
        _plain_log_ticks(ax.xaxis)
        _plain_log_ticks(ax.yaxis)
    buffer = io.StringIO()
    width, height = fig.get_size_inches()
    area = Bbox([[-_MARGIN, -_MARGIN], [width + _MARGIN, height + _MARGIN]])
    with plt.rc_context(_DETERMINISTIC):
        fig.savefig(buffer, format="svg", bbox_inches=area, transparent=True, metadata=_NO_METADATA)
    return _minify(buffer.getvalue())


def extent(fig: Figure) -> Bbox:
    """Return the box that holds everything drawn, in the coordinates of `svg_drawing`.

    Units: points; y runs downwards, as in SVG.
    """
    box = fig.get_tightbbox()  # in inches, y upwards
    top = fig.get_figheight()
    box = Bbox([[box.x0, top - box.y1], [box.x1, top - box.y0]])
    return Bbox(72 * (box.get_points() + _MARGIN))


def inline_svg(drawing: str, alt: str, box: Bbox, prefix: str | None = None) -> str:
    """Return HTML for a drawing from `svg_drawing`: named, scalable, in the colours of the page.

    `prefix` keeps the ids of several drawings on one page apart; by default it is a hash.

    Raises: ValueError when `alt` is empty.
    """
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"alt must say what the figure shows, got {alt!r}")
    if prefix is None:
        prefix = "f" + hashlib.sha256((drawing + alt).encode()).hexdigest()[:8]
    x, y = round(box.x0 - _PAD), round(box.y0 - _PAD)
    width, height = round(box.width + 2 * _PAD), round(box.height + 2 * _PAD)
    label = html.escape(alt.strip(), quote=True)
    svg = (
        f'<svg class="ft-figure" role="img" aria-label="{label}" '
        f'viewBox="{x} {y} {width} {height}" fill="currentColor" '
        f'style="display:block;width:100%;max-width:{round(1.5 * width)}px;height:auto;'
        f"margin:0 auto;min-width:{round(0.85 * width)}px;overflow:visible;"
        f'stroke-linejoin:round;color:{_INK};font-family:{_FONT}">'
        f"{drawing.replace(_ID, prefix)}</svg>"
    )
    if width <= _WIDEST_ON_A_PHONE:
        return svg
    return (
        f'<div style="overflow-x:auto" tabindex="0" role="group" aria-label="{label}">{svg}</div>'
    )


def ornament(fig: Figure, prefix: str) -> str:
    """Return a figure as SVG that only adorns: the page sizes it, and screen readers pass it over.

    It takes the colours of the page, as what `show` displays does. All that lies within the figure
    is seen, and nothing beyond. `prefix` keeps the ids of several drawings on one page apart.
    """
    left, (width, height) = 72 * _MARGIN, 72 * fig.get_size_inches()
    drawing = svg_drawing(fig).replace(_ID, prefix)
    return (
        f'<svg aria-hidden="true" viewBox="{left:g} {left:g} {width:g} {height:g}" '
        f'fill="currentColor">{drawing}</svg>'
    )


_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _plain_log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain text, without the small ticks in between.

    matplotlib's own labels are formulas, set glyph by glyph: they would take three quarters of
    the time of a frame, keep their own font, and be read out letter by letter.
    """
    formatter = axis.get_major_formatter()
    if axis.get_scale() != "log" or not isinstance(formatter, LogFormatterMathtext):
        return
    transform = axis.get_transform()
    assert isinstance(transform, LogTransform)
    base = transform.base

    def label(value: float, _position: int) -> str:
        if 1e-3 <= value < 1e4:
            return f"{value:,g}"
        exponent = round(math.log(value, base)) if value > 0 else 0
        return f"{base:g}{str(exponent).translate(_SUPERSCRIPT)}"

    axis.set_major_formatter(FuncFormatter(label))
    axis.minorticks_off()


_ID = "@ft@"  # stands for the prefix of ids until the drawing is placed
_TAG_OR_SPACE = re.compile(r"<[^>]*>\s*")
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_REFERENCE = re.compile(r'(?<=url\(#)\w+|(?<=href="#)\w+')
_COLOR = re.compile("|".join(_THEME))
_NOTHING = re.compile(r' transform="rotate\(-0 [^"]*"|(?<=[zM\d]) (?=")| style=""')
_FAMILY = re.compile(r"font-family: ([^;\"]*);?\s*")


def _minify(svg: str) -> str:
    """Return what matplotlib drew, as short as it gets: 120 frames have to fit one page.

    Tags only are touched, never text: a tick label of 0.125 must not become 0.1.
    """
    body = svg[svg.index("<svg") :]
    body = body[body.index(">") + 1 : body.rindex("</svg>")]
    # matplotlib's own <style> would apply to the whole page.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", body, flags=re.DOTALL)
    referenced = dict.fromkeys(_REFERENCE.findall(body))
    names = {name: f"{_ID}{i}" for i, name in enumerate(referenced)}
    groups: list[bool] = []  # for each open <g>: is it kept?

    def keep_referenced(match: re.Match) -> str:
        return f' id="{names[match[1]]}"' if match[1] in names else ""

    def shorten(match: re.Match) -> str:
        tag = match.group().rstrip()
        if tag == "</g>":
            return tag if groups.pop() else ""
        tag = re.sub(r' id="([^"]*)"', keep_referenced, tag)
        tag = _REFERENCE.sub(lambda m: names[m.group()], tag)
        tag = _FAMILY.sub(lambda m: "font-family:monospace;" if "Mono" in m[1] else "", tag)
        tag = _COLOR.sub(lambda m: _THEME[m.group()], tag)
        tag = _NUMBER.sub(lambda m: f"{float(m.group()):.2f}".rstrip("0").rstrip("."), tag)
        tag = tag.replace("xlink:href", "href").replace("; ", ";").replace(": ", ":")
        tag = re.sub(r"\s*([MLQCz])\s*", r"\1", tag) if " d=" in tag else tag
        tag = _NOTHING.sub("", tag)
        tag = re.sub(r"\s+", " ", tag).replace('" />', '"/>')
        if tag.startswith("<g") and tag.endswith("/>"):
            return ""  # an artist without points leaves an empty group
        if tag.startswith("<g"):
            groups.append(tag != "<g>")
            return tag if groups[-1] else ""
        return tag

    return _TAG_OR_SPACE.sub(shorten, body).strip()
