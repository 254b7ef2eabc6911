import importlib
import itertools
import re
from concurrent.futures import ThreadPoolExecutor

import ipywidgets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# The reader imports the function of this name; the module's parts are needed here.
module = importlib.import_module("firsttoken.page.explore")

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


def test_a_button_moves_its_slider_in_the_page(run, monkeypatch):
    linked = []
    monkeypatch.setattr(module.widgets, "jslink", lambda *ends: linked.append(ends))
    lists, start = {"slope": [1, 2, 5], "word": ["a", "b"]}, {"slope": 2}
    (row, _), _ = run(draw, alt=ALT, play="slope", initial=start, **lists)
    button, slider = row.children
    assert linked == [((button, "value"), (slider, "index"))]
    assert all(widget.has_trait(name) for widget, name in linked[0])
    assert (button.min, button.value, button.max, button.interval) == (0, 1, 2, 1500)


def test_a_label_stands_in_place_of_the_name_wherever_it_shows(run):
    labels = {"slope": "How steep"}
    (slope, word), picture = run(draw, alt=ALT, labels=labels, slope=[1, 2], word=["a", "b"])
    assert (slope.description, word.description) == ("How steep", "word")
    assert alt_of(picture) == f"{ALT} (How steep: 1, word: a)"


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


def test_the_site_is_not_built_with_a_broken_figure(run):
    def broken(ax, slope):
        return 1 / (slope - 2)

    with pytest.raises(ZeroDivisionError) as caught:
        run(broken, alt=ALT, site=True, slope=[1, 2])
    assert "{'slope': 2}" in caught.value.__notes__[0]


def nothing(ax, **_values):
    """Draw nothing, whatever the controls."""


def test_bad_calls_are_named(run):
    for call, message in (
        ({}, "1 to 3, got 0"),
        ({"a": range(11), "b": range(11)}, "11 × 11 = 121 .* at most 120"),
        ({"a": [1]}, "a must have at least two values"),
        ({"a": [1, 3, 2]}, r"a must rise .* \[1, 3, 2\]"),
        ({"a": [1, "x"]}, "a must be all numbers or all strings"),
        ({"a": "abc"}, "a must be a list of values, got 'abc'"),
        ({"a": [1, 2], "labels": {"b": "B"}}, "labels names 'b'"),
        ({"a": [1, 2], "initial": {"a": 3}}, r"initial\['a'\] is 3"),
        ({"a": [1, 2], "play": "b"}, r"play names 'b'; the sliders are \['a'"),
        ({"a": [1, 2], "alt": " "}, "alt must say"),
    ):
        with pytest.raises(ValueError, match=message):
            run(nothing, **{"alt": ALT} | call)


def test_draw_must_take_a_canvas_and_the_controls(run):
    with pytest.raises(ValueError, match="`ax` or `fig` first"):
        run(lambda axes, a: None, alt=ALT, a=[1, 2])
    with pytest.raises(ValueError, match="does not take the controls"):
        run(lambda ax, b: None, alt=ALT, a=[1, 2])


def test_frames_drawn_by_two_threads_do_not_mix():
    """JupyterLab moves sliders in a thread of their own, while a cell may draw."""
    control = module._Control("slope", "Slope", tuple(range(1, 9)), tuple("12345678"), 0)
    stage = module._Stage(lambda ax, slope: draw(ax, slope), ALT, (control,))
    alone = [stage.drawing((i,)) for i in range(8)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda i: stage.drawing((i % 8,)), range(32)))
    assert together == alone * 4
