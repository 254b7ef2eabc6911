import gzip
import importlib
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# `from firsttoken.explore import explore` is the reader's way; the module's parts are needed here.
module = importlib.import_module("firsttoken.explore")

ALT = "A line that rises with x."


def draw(ax, slope, word="a"):
    ax.plot([0, 1], [0, slope])
    ax.set(xlabel="x (1)", ylabel="y (1)", title=word, ylim=(0, 10))


@pytest.fixture
def run(monkeypatch):
    """Call explore and return (inputs, picture): what it displayed."""

    def run(*args, site=False, **kwargs):
        shown = []
        monkeypatch.setattr(module, "display", lambda *objects: shown.extend(objects))
        monkeypatch.setenv("FIRSTTOKEN_SITE", "1" if site else "")
        module.explore(*args, **kwargs)
        box, face = shown
        assert "<script>" in face.data and "<style>" in face.data
        *inputs, picture = box.children
        return inputs, picture

    return run


def alt_of(picture):
    return re.search('aria-label="([^"]*)"', picture.value)[1]


def without_box(html):
    return re.sub(r'viewBox="[^"]*"|(min|max)-width:\d+px', "", html)


def frames(picture, indices=()):
    """Yield (indices, html) of every picture in nested stacks."""
    if isinstance(picture, ipywidgets.HTML):
        yield indices, picture.value
    else:
        for i, child in enumerate(picture.children):
            yield from frames(child, (*indices, i))


def test_live_slider_redraws_and_names_its_values(run):
    (slope, word), picture = run(draw, alt=ALT, slope=[1, 2, 5], word=["a", "b"])
    assert isinstance(slope, ipywidgets.SelectionSlider)
    assert isinstance(word, ipywidgets.Dropdown)
    assert alt_of(picture) == f"{ALT} (slope: 1, word: a)"
    before = picture.value
    slope.index = 2
    assert alt_of(picture) == f"{ALT} (slope: 5, word: a)" and picture.value != before
    word.index = 1
    assert alt_of(picture) == f"{ALT} (slope: 5, word: b)" and ">b</text>" in picture.value


@settings(max_examples=6)  # each draws up to seven frames
@given(moves=st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=5))
def test_no_frame_is_stale(moves):
    """Whatever the moves, the picture is the one that a fresh figure gives for the last values."""
    lists = {"slope": [1, 2, 5], "word": ["a", "b", "c"]}
    controls = module._read_controls(lists, {}, {})
    inputs = [module._input(control) for control in controls]
    picture = module._live(module._Stage(draw, ALT, controls), inputs)
    for which, index in moves:
        inputs[which].index = index
    last = tuple(source.index for source in inputs)
    fresh = module._Stage(draw, ALT, controls)
    expected = fresh.frame(fresh.drawing(last), last)
    assert without_box(picture.value) == without_box(expected)


def test_a_stage_that_does_not_clear_would_be_caught(monkeypatch):
    controls = module._read_controls({"slope": [1, 2]}, {}, {})
    stage = module._Stage(draw, ALT, controls)
    first = stage.drawing((0,))
    monkeypatch.setattr(stage._figure, "clear", lambda: None)
    monkeypatch.setattr(stage._figure, "delaxes", lambda ax: None)
    stage.drawing((1,))
    assert stage.drawing((0,)) != first


def test_without_a_script_the_site_shows_the_first_frame(monkeypatch):
    """A reader's notebook gets no second copy of it; the page finds a figure by its class."""
    shown = []
    monkeypatch.setattr(module, "display", lambda box, face: shown.append((box, face.data)))
    for site in ("0", "1"):
        monkeypatch.setenv("FIRSTTOKEN_SITE", site)
        module.explore(draw, alt=ALT, slope=[1, 2, 5], word=["a", "b"], initial={"word": "b"})
    (_, live), (box, face) = shown
    assert box._dom_classes == ("ft-explore",) and ".ft-explore" in live
    assert "<noscript>" not in live
    first = dict(frames(box.children[-1]))[(0, 1)]
    assert face.endswith(f"<noscript>{first}</noscript>")


def test_the_last_frame_is_not_cropped(run):
    """Its text reaches further than that of all others, and the box of the figure holds it."""

    def draw_far(ax, shift):
        ax.text(1 + shift, 0.5, "here")

    with module.plt.rc_context(module.plots.STYLE):
        fig = module.Figure()
        draw_far(fig.add_subplot(), 3)
        needed = module.plots.extent(fig)
    for site in (False, True):
        (slider,), picture = run(draw_far, alt=ALT, shift=[0, 1, 2, 3], site=site)
        slider.index = 3
        last = dict(frames(picture))[(3,) if site else ()]
        x, _, width, _ = map(float, re.search('viewBox="([^"]*)"', last)[1].split())
        assert x + width >= needed.x1


def test_site_has_every_frame_once_and_each_is_the_live_one(run):
    calls = []

    def counted(ax, **values):
        calls.append(tuple(values.values()))
        draw(ax, **values)

    lists = {"slope": [1, 2, 5], "word": ["a", "b"]}
    inputs, live = run(counted, alt=ALT, **lists)
    calls.clear()
    _, stacked = run(counted, alt=ALT, site=True, **lists)
    assert sorted(calls) == sorted(itertools.product(*lists.values()))
    found = dict(frames(stacked))
    assert set(found) == set(itertools.product(range(3), range(2)))
    for indices, html in found.items():
        for source, index in zip(inputs, indices, strict=True):
            source.index = index
        assert without_box(html) == without_box(live.value)
    assert len({re.search('viewBox="[^"]*"', html)[0] for html in found.values()}) == 1


def test_site_links_every_slider_to_its_stacks(run):
    """Without a kernel only these links exist: follow them by hand."""
    links = []
    real = ipywidgets.jsdlink
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.widgets, "jsdlink", lambda *ends: links.append(ends) or real(*ends))
        inputs, picture = run(draw, alt=ALT, site=True, slope=[1, 2, 5], word=["a", "b"])
    for indices in itertools.product(range(3), range(2)):
        for (source, trait), (stack, target) in links:
            assert (trait, target) == ("index", "selected_index")
            stack.selected_index = indices[inputs.index(source)]
        shown = picture
        while isinstance(shown, ipywidgets.Stack):
            shown = shown.children[shown.selected_index]
        assert shown.value == dict(frames(picture))[indices]


def test_initial_values(run):
    start = {"slope": 5, "word": "b"}
    for site in (False, True):
        inputs, picture = run(
            draw, alt=ALT, site=site, slope=[1, 2, 5], word=["a", "b"], initial=start
        )
        assert [source.value for source in inputs] == [5, "b"]
        while isinstance(picture, ipywidgets.Stack):
            picture = picture.children[picture.selected_index]
        assert alt_of(picture) == f"{ALT} (slope: 5, word: b)"


def test_a_button_moves_the_slider_that_play_names(run, monkeypatch):
    links = []
    monkeypatch.setattr(module.widgets, "jslink", lambda *ends: links.append(ends))
    lists = {"slope": [1, 2, 5], "word": ["a", "b"]}
    for site in (False, True):
        options = {"site": site, "play": "slope", "initial": {"slope": 2}}
        (row, word), _ = run(draw, alt=ALT, **options, **lists)
        button, slider = row.children
        assert links.pop() == ((button, "value"), (slider, "index")) and not links
        assert (button.min, button.value, button.max, button.step) == (0, 1, 2, 1)
        assert not button.playing and not button.repeat and isinstance(word, ipywidgets.Dropdown)
        assert button.interval == 1500  # ms, as the docstring says


def test_labels_units_and_formats(run):
    (tokens, size), _ = run(
        lambda ax, n_tokens, size: None,
        alt=ALT,
        n_tokens=np.array([1024, 131072]),
        size=[0.5, 1.0],
        labels={"n_tokens": ("Context", "tokens"), "size": ("Size", lambda v: f"{v:.1f} B")},
    )
    assert tokens.description == "Context" and size.description == "Size"
    assert [text for text, _ in tokens.options] == ["1,024 tokens", "131,072 tokens"]
    assert [text for text, _ in size.options] == ["0.5 B", "1.0 B"]
    assert type(tokens.value) is int


def test_a_value_without_a_text_of_its_own():
    for value, unit, text in (
        *((1024, "tokens", "1,024 tokens"), (0.5, "", "0.5"), (12345.678, "s", "12,345.7 s")),
        *((2.0, "", "2"), (1e7, "", "1e+07"), ("bf16", "", "bf16"), ("bf16", "KV", "bf16 KV")),
    ):
        other = 1e9 if not isinstance(value, str) else "other"
        control = module._control("a", (value, other), ("A", unit), {})
        assert control.texts[0] == text and (control.label, control.start) == ("A", 0)


def test_without_a_label_a_control_has_its_name(run):
    (n_kv_heads,), picture = run(nothing, alt=" An empty frame. ", n_kv_heads=[1, 8])
    assert n_kv_heads.description == "n kv heads"
    assert n_kv_heads.style.description_width == "initial"  # or a long one would be cut off
    assert alt_of(picture) == "An empty frame. (n kv heads: 1)"


def test_three_controls_and_120_pictures_are_allowed():
    lists = {"a": range(8), "b": range(5), "c": range(3)}
    controls = module._read_controls(lists, {}, {"b": 4})
    assert [control.values for control in controls] == [tuple(v) for v in lists.values()]
    assert [control.start for control in controls] == [0, 4, 0]


def test_figures_of_a_page_share_no_ids_and_frames_of_a_figure_do():
    controls = module._read_controls({"slope": [1, 2]}, {}, {})
    others = module._read_controls({"slope": [1, 3]}, {}, {})
    stages = [
        module._Stage(draw, ALT, controls),
        module._Stage(draw, "Other words.", controls),
        module._Stage(draw, ALT, others),
        module._Stage(nothing, ALT, controls),
        module._Stage(draw, lambda slope: ALT, controls),
    ]
    prefixes = []
    for stage in stages:
        frames = [stage.frame(stage.drawing((i,)), (i,)) for i in (0, 1)]
        ids = {name for frame in frames for name in re.findall(r' id="(x[0-9a-f]{8})', frame)}
        prefixes += ids or {stage._prefix}
    assert len(set(prefixes)) == len(stages)
    # A function has another place in memory each time; the page must come out the same.
    assert module._Stage(draw, lambda slope: "b", controls)._prefix == prefixes[-1]


def test_a_frame_is_drawn_in_the_book_s_style_and_leaves_none_behind():
    seen = []

    def look(ax, slope):
        seen.append((plt.rcParams["axes.grid"], tuple(ax.figure.get_size_inches())))

    before = dict(plt.rcParams)
    controls = module._read_controls({"slope": [1, 2]}, {}, {})
    module._Stage(look, ALT, controls).drawing((0,))
    assert seen == [(True, module.plots.STYLE["figure.figsize"])]
    assert dict(plt.rcParams) == before


def test_a_draw_that_takes_a_figure(run):
    def two(fig, slope):
        for ax in fig.subplots(1, 2):
            ax.plot([0, slope])

    (slope,), picture = run(two, alt=ALT, slope=[1, 2])
    slope.index = 1
    assert len(re.findall("clipPath id", picture.value)) == 2


def test_alt_may_be_a_function_of_the_values(run):
    """Where it says nothing, that is an error there."""

    def said(slope):
        return f"Slope is {slope}." if slope < 5 else " "

    (slope,), picture = run(draw, alt=said, slope=[1, 2, 5])
    for index in (1, 2):
        assert "<svg" in picture.value
        slope.index = index
        assert index == 2 or alt_of(picture).startswith("Slope is 2.")
    assert "ValueError: alt must say" in picture.value


def test_an_error_takes_the_figures_place_until_the_next_good_frame(run):
    def fragile(ax, slope):
        if slope == 2:
            raise KeyError("<kv_heads>")
        draw(ax, slope)

    (slope,), picture = run(fragile, alt=ALT, slope=[1, 2, 5])
    good = picture.value
    slope.index = 1
    assert 'role="alert"' in picture.value and "<svg" not in picture.value
    assert "KeyError: &#x27;&lt;kv_heads&gt;&#x27;" in picture.value
    assert "raise KeyError" in picture.value and "in fragile" in picture.value
    assert len(picture.value.splitlines()) <= 4
    slope.index = 0
    assert without_box(picture.value) == without_box(good)


def test_an_error_shows_the_readers_last_three_calls(run):
    def nest(depth):
        return nest(depth - 1) if depth else 1 / depth

    _, picture = run(lambda ax, slope: nest(4), alt=ALT, slope=[1, 2])
    shown = re.sub("<[^>]*>", "", picture.value).splitlines()
    assert len(shown) == 4
    assert all(re.match(r"line \d+ in nest:  return nest", line) for line in shown[:3])
    assert shown[3] == "ZeroDivisionError: division by zero"

    def wrong(ax, slope):
        ax.plot([0, 1], [0, slope, 2])  # found deep in matplotlib

    _, picture = run(wrong, alt=ALT, slope=[1, 2])
    assert "ax.plot([0, 1], [0, slope, 2])" in picture.value and "in wrong" in picture.value
    assert "site-packages" not in picture.value and "ValueError: " in picture.value


def test_the_site_is_not_built_with_a_broken_figure(run):
    def broken(ax, slope):
        return 1 / (slope - 2)

    with pytest.raises(ZeroDivisionError) as caught:
        run(broken, alt=ALT, site=True, slope=[1, 2])
    assert "{'slope': 2}" in caught.value.__notes__[0]


def nothing(ax, **_values):
    """Draw nothing, whatever the controls."""


BAD_CALLS = [
    ({}, "1 to 3, got 0"),
    ({c: [1, 2] for c in "abcd"}, r"1 to 3, got 4: \['a', 'b', 'c', 'd'\]"),
    ({"a": range(11), "b": range(11)}, "11 × 11 = 121 .* at most 120"),
    *[({"a": few}, "a must have at least two values") for few in ([], [1])],
    ({"a": [1, 3, 2]}, r"a must rise .* \[1, 3, 2\]"),
    *[({"a": values}, "a must rise") for values in ([2, 1], [1, 1, 2], [1.0, float("nan")])],
    ({"a": ["x", "y", "x"]}, "a must not have a value twice"),
    *[({"a": both}, "a must be all numbers or all strings") for both in ([1, "x"], [False, True])],
    ({"a": "abc"}, "a must be a list of values, got 'abc'"),
    ({"a": 3}, "a must be a list of values, got 3"),
    ({"a": b"ab"}, "a must be a list of values, got b'ab'"),
    ({"a": {1: 2, 3: 4}}, "a must be a list of values"),
    ({"a": [1.0, 2.0], "labels": {"a": ("A", lambda v: "x")}}, "a shows different values as the"),
    ({"a": [1, 2], "labels": {"b": "B"}}, "labels names 'b'"),
    ({"a": [1, 2], "initial": {"b": 1}}, "initial names 'b'"),
    ({"a": [1, 2], "initial": {"a": 3}}, r"initial\['a'\] is 3"),
    ({"a": [1, 2], "play": "b"}, r"play names 'b'; the sliders are \['a'"),
    ({"a": ["x", "y"], "play": "a"}, r"play names 'a'; the sliders are \[\]"),
    *[({"a": [1, 2], "alt": alt}, "alt must say") for alt in ("  ", None)],
]


def test_bad_calls_are_named(run):
    for call, message in BAD_CALLS:
        for site in (False, True):
            with pytest.raises(ValueError, match=message):
                run(nothing, site=site, **{"alt": ALT} | call)


def test_draw_must_take_a_canvas_and_the_controls(run):
    with pytest.raises(ValueError, match="`ax` or `fig` first"):
        run(lambda axes, a: None, alt=ALT, a=[1, 2])
    with pytest.raises(ValueError, match="does not take the controls"):
        run(lambda ax, b: None, alt=ALT, a=[1, 2])


@given(values=st.lists(st.floats(-1e6, 1e6) | st.integers(-100, 100), min_size=2, max_size=6))
def test_only_rising_lists_are_accepted(values):
    rising = all(a < b for a, b in itertools.pairwise(values))
    try:
        assert module._read_values("a", values) == tuple(values) and rising
    except ValueError:
        assert not rising


def test_a_slider_figure_fits_its_budget(run):
    """Two lines, markers and a legend: 24 frames take less than a fifth of 150 KB after gzip."""

    def full(ax, a, b, c):
        x = np.linspace(0, 1, 60)
        ax.plot(x, a * x**b, label="first")
        ax.plot(x[::6], c * x[::6], "o--", label="second")
        ax.set(xlabel="x (1)", ylabel="y (1)", title=f"{a} {b} {c}")
        ax.legend()

    ipywidgets.Widget.close_all()
    run(full, alt=ALT, site=True, a=[1, 2], b=[1, 2, 3], c=[1, 2, 3, 4])
    state = json.dumps(ipywidgets.Widget.get_manager_state(drop_defaults=False))
    assert len(gzip.compress(state.encode())) <= 150_000 / 5


def test_frames_drawn_by_two_threads_do_not_mix():
    """JupyterLab moves sliders in a thread of their own, while a cell may draw."""
    control = module._Control("slope", "Slope", tuple(range(1, 9)), tuple("12345678"), 0)
    stage = module._Stage(lambda ax, slope: draw(ax, slope), ALT, (control,))
    alone = [stage.drawing((i,)) for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda i: stage.drawing((i % 8,)), range(32)))
    assert together == alone * 4
