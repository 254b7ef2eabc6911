"""Figures with sliders: one call that works in a live kernel and, without one, on the website.

In a kernel every move of a slider draws the figure anew. While the website is built
(`FIRSTTOKEN_SITE=1`) every combination is drawn once; the page then only switches pictures.
"""

import hashlib
import html
import inspect
import itertools
import math
import numbers
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
from IPython.display import HTML, display
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from firsttoken.page import plots
from firsttoken.page.exercises.missing import who_defines

_PLAY_MS = 1500  # long enough to read a frame's title
_MAX_CONTROLS = 3
_MAX_COMBINATIONS = 120  # each is a picture inside the page

Alt = str | Callable[..., str]
Label = str | tuple[str, str | Callable[[Any], str]]


def explore(
    draw: Callable[..., None],
    /,
    *,
    alt: Alt,
    labels: Mapping[str, Label] | None = None,
    initial: Mapping[str, Any] | None = None,
    play: str | None = None,
    **controls: Iterable,
) -> None:
    """Display a figure with one slider per list of numbers and one menu per list of words.

    `draw(ax, **values)` or `draw(fig, **values)` draws one frame onto an empty figure and does
    nothing else; the name of its first parameter says which of the two it wants. It sees one
    value of each control.

    alt:     what there is to see, for readers who cannot see it: text, or a function of the
             values that returns it. The labels and values are added.
    labels:  for a control its label, `"KV heads"`, or `("Context", "tokens")` with a unit, or
             `("Memory", function)` with a function from a value to its text.
    initial: the value of a control at the start; the first one unless given.
    play:    the slider that a button beside it moves on by itself, every 1.5 seconds.

    Raises: ValueError for more than 3 controls or 120 combinations, a control that is empty,
            unsorted, mixed or has a value twice, an unknown name, an unknown initial value, a
            `play` that names no slider, an empty alt, or a `draw` that does not take the controls.

    >>> def draw(ax, batch, dtype):
    ...     ax.bar(["cache"], [batch * {"bf16": 2, "int8": 1}[dtype]])
    >>> explore(draw, alt="The cache grows with the batch.", batch=[1, 2, 4],
    ...         dtype=["bf16", "int8"], labels={"batch": ("Batch", "sequences")},
    ...         initial={"batch": 4})  # doctest: +ELLIPSIS
    VBox(...
    """
    _check_alt(alt)
    choices = _read_controls(controls, labels or {}, initial or {})
    sliders = [control.name for control in choices if not isinstance(control.values[0], str)]
    if play is not None and play not in sliders:
        raise ValueError(f"play names {play!r}; the sliders are {sliders}")
    stage = _Stage(draw, alt, choices)
    inputs = [_input(control) for control in choices]
    on_site = os.environ.get("FIRSTTOKEN_SITE") == "1"
    picture = _prerendered(stage, choices, inputs) if on_site else _live(stage, inputs)
    rows = [_with_button(i) if c.name == play else i for c, i in zip(choices, inputs, strict=True)]
    box = widgets.VBox([*rows, picture])
    box.add_class("ft-explore")
    display(box, HTML(_face() + (_without_script(picture, choices) if on_site else "")))


@dataclass(frozen=True)
class _Control:
    name: str
    label: str
    values: tuple
    texts: tuple[str, ...]
    start: int  # index of the initial value


def _check_alt(alt: Alt) -> None:
    if not callable(alt) and (not isinstance(alt, str) or not alt.strip()):
        raise ValueError(f"alt must say what the figure shows, got {alt!r}")


def _read_controls(
    controls: Mapping[str, Iterable], labels: Mapping[str, Label], initial: Mapping[str, Any]
) -> tuple[_Control, ...]:
    lists = {name: _read_values(name, values) for name, values in controls.items()}
    for argument, given in (("labels", labels), ("initial", initial)):
        for name in given:
            if name not in lists:
                raise ValueError(f"{argument} names {name!r}; the controls are {list(lists)}")
    if not 1 <= len(lists) <= _MAX_CONTROLS:
        raise ValueError(f"controls must be 1 to {_MAX_CONTROLS}, got {len(lists)}: {list(lists)}")
    sizes = [len(values) for values in lists.values()]
    if math.prod(sizes) > _MAX_COMBINATIONS:
        product = " × ".join(map(str, sizes))
        raise ValueError(
            f"controls {list(lists)} give {product} = {math.prod(sizes)} combinations, "
            f"expected at most {_MAX_COMBINATIONS}; make two figures or coarser lists"
        )
    return tuple(
        _control(name, values, labels.get(name, name.replace("_", " ")), initial)
        for name, values in lists.items()
    )


def _read_values(name: str, values: Iterable) -> tuple:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of values, got {values!r}")
    # NumPy's scalars would show up as np.int64(8) in labels.
    listed = tuple(v.item() if hasattr(v, "item") else v for v in values)
    if len(listed) < 2:
        raise ValueError(f"{name} must have at least two values, got {list(listed)}")
    if all(isinstance(v, str) for v in listed):
        if len(set(listed)) < len(listed):
            raise ValueError(f"{name} must not have a value twice, got {list(listed)}")
        return listed
    if not all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in listed):
        raise ValueError(f"{name} must be all numbers or all strings, got {list(listed)}")
    if not all(a < b for a, b in itertools.pairwise(listed)):
        raise ValueError(f"{name} must rise from each value to the next, got {list(listed)}")
    return listed


def _control(name: str, values: tuple, label: Label, initial: Mapping[str, Any]) -> _Control:
    text, unit = (label, "") if isinstance(label, str) else label
    texts = tuple(unit(v) if callable(unit) else _plain(v, unit) for v in values)
    if len(set(texts)) < len(texts):
        raise ValueError(f"{name} shows different values as the same text: {list(texts)}")
    start = initial.get(name, values[0])
    if start not in values:
        raise ValueError(f"initial[{name!r}] is {start!r}; expected one of {list(values)}")
    return _Control(name, text, values, texts, values.index(start))


def _plain(value: Any, unit: str) -> str:
    if isinstance(value, numbers.Real):
        value = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    return f"{value} {unit}".strip()


def _input(control: _Control) -> widgets.Widget:
    kind = widgets.Dropdown if isinstance(control.values[0], str) else widgets.SelectionSlider
    return kind(
        options=list(zip(control.texts, control.values, strict=True)),
        index=control.start,
        description=control.label,
        style={"description_width": "initial"},
    )


def _with_button(slider: widgets.SelectionSlider) -> widgets.Widget:
    """Return the slider behind a button that moves it, with a kernel or without."""
    button = widgets.Play(
        value=slider.index, max=len(slider.options) - 1, interval=_PLAY_MS, show_repeat=False
    )
    widgets.jslink((button, "value"), (slider, "index"))
    return widgets.HBox([button, slider])


# JupyterLab moves sliders in a thread of their own, and Matplotlib's settings are global.
_ONE_DRAWING = threading.Lock()


class _Stage:
    """One figure on which every frame is drawn: to make a new one takes three times as long."""

    def __init__(self, draw: Callable[..., None], alt: Alt, controls: tuple[_Control, ...]):
        parameters = inspect.signature(draw).parameters
        canvas = next(iter(parameters), None)
        if canvas not in ("ax", "fig"):
            raise ValueError(f"draw must take `ax` or `fig` first, its parameters are {canvas!r}")
        try:
            inspect.signature(draw).bind(None, **{control.name: None for control in controls})
        except TypeError as error:
            names = [control.name for control in controls]
            raise ValueError(f"draw does not take the controls {names}: {error}") from None
        self._draw, self._alt, self._controls = draw, alt, controls
        self._wants_axes = canvas == "ax"
        # Ids differ between the figures of a page; the frames of one figure may share them.
        identity = repr([draw.__qualname__, alt if isinstance(alt, str) else "", controls])
        self._prefix = "x" + hashlib.sha256(identity.encode()).hexdigest()[:8]
        self._box: Bbox | None = None  # grows to hold every frame, so that no frame jumps
        with plt.rc_context(plots.STYLE):
            self._figure = Figure()

    def drawing(self, indices: tuple[int, ...]) -> str:
        """Draw one frame; only `draw` itself can fail here."""
        with _ONE_DRAWING, plt.rc_context(plots.STYLE):
            for ax in self._figure.axes:
                self._figure.delaxes(ax)  # else clear() would first build it anew
            self._figure.clear()
            canvas = self._figure.add_subplot() if self._wants_axes else self._figure
            self._draw(canvas, **self._values(indices))
            drawing = plots.svg_drawing(self._figure)
            # Measuring costs a third of a frame; the corners of the grid hold the extremes.
            ends = ((0, len(control.values) - 1) for control in self._controls)
            corner = all(i in end for i, end in zip(indices, ends, strict=True))
            if corner or self._box is None:
                box = plots.extent(self._figure)
                self._box = box if self._box is None else Bbox.union([self._box, box])
        return drawing

    def frame(self, drawing: str, indices: tuple[int, ...]) -> str:
        assert self._box is not None  # the first drawing sets it
        return plots.inline_svg(drawing, self._alt_text(indices), self._box, self._prefix)

    def _values(self, indices: tuple[int, ...]) -> dict[str, Any]:
        return {c.name: c.values[i] for c, i in zip(self._controls, indices, strict=True)}

    def _alt_text(self, indices: tuple[int, ...]) -> str:
        alt = self._alt(**self._values(indices)) if callable(self._alt) else self._alt
        _check_alt(alt)
        now = (f"{c.label}: {c.texts[i]}" for c, i in zip(self._controls, indices, strict=True))
        return f"{alt.strip()} ({', '.join(now)})"


def _live(stage: _Stage, inputs: list[widgets.Widget]) -> widgets.Widget:
    """Return a picture that is drawn anew whenever an input changes.

    It is drawn while the event is handled. Until that is done, the front end holds further moves
    back, and then it sends the latest value only: so the last frame shows the last value.
    """
    picture = widgets.HTML()

    def redraw(_change: Any = None) -> None:
        indices = tuple(source.index for source in inputs)
        try:
            picture.value = stage.frame(stage.drawing(indices), indices)
        except Exception as error:  # the reader's own code: show what it says, keep the sliders
            picture.value = _error_html(error)

    for source in inputs:
        source.observe(redraw, "index")
    redraw()
    return picture


def _error_html(error: Exception) -> str:
    """Return the error as the reader needs it: where in their code, and what it says.

    Of a name that a cell above defines it says which cell, and no more.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "site-packages" not in f.filename]
    lines = [f"line {f.lineno} in {f.name}:  {f.line or ''}".rstrip() for f in own[-3:]]
    text = who_defines(error) or "\n".join([*lines, f"{type(error).__name__}: {error}"])
    return f'<pre class="ft-error" role="alert">{html.escape(text)}</pre>'


def _prerendered(
    stage: _Stage, controls: tuple[_Control, ...], inputs: list[widgets.Widget]
) -> widgets.Widget:
    """Return stacks of all frames, one stack in the other, that switch without a kernel."""
    drawings = {}
    for indices in itertools.product(*(range(len(control.values)) for control in controls)):
        try:
            drawings[indices] = stage.drawing(indices)
        except Exception as error:
            error.add_note(f"in explore, while drawing {stage._values(indices)}")
            raise
    shared = {"layout": widgets.Layout(), "style": widgets.HTML().style}

    def nest(indices: tuple[int, ...]) -> widgets.Widget:
        depth = len(indices)
        if depth == len(controls):
            return widgets.HTML(stage.frame(drawings[indices], indices), **shared)
        children = [nest((*indices, i)) for i in range(len(controls[depth].values))]
        stack = widgets.Stack(
            children, selected_index=controls[depth].start, layout=shared["layout"]
        )
        widgets.jsdlink((inputs[depth], "index"), (stack, "selected_index"))
        return stack

    return nest(())


def _without_script(picture: widgets.Widget, controls: tuple[_Control, ...]) -> str:
    """Return the first of all frames for a page whose scripts do not run: it has no sliders."""
    for control in controls:
        picture = picture.children[control.start]
    return f"<noscript>{picture.value}</noscript>"


def _face() -> str:
    """Return the style and the script that make the sliders readable, named and big enough."""
    package = files("firsttoken.page")
    css, js = (package.joinpath(f"explore.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return f"<style>{css}</style><script>{js}</script>"
