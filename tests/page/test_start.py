"""The map of the book: it has no circle, says nothing twice, and agrees with what stands."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_chapters
from firsttoken.page.start import CHAPTERS, PARTS, path_to

ROOT = Path(__file__).parents[2]
NOTEBOOKS = test_chapters.NOTEBOOKS
CHECK = re.compile(r"exercise-(\d+)-check$")
stems = st.sampled_from(list(CHAPTERS))


def test_chapters_are_numbered_in_order():
    assert [c.number for c in CHAPTERS.values()] == [f"{i:02}" for i in range(len(CHAPTERS))]
    assert all(stem == chapter.stem for stem, chapter in CHAPTERS.items())
    parts = [list(PARTS).index(c.part) for c in CHAPTERS.values()]
    assert parts == sorted(parts)
    assert set(parts) == set(range(len(PARTS)))


@given(stem=stems)
def test_a_chapter_builds_on_earlier_ones_only(stem):
    """So the map has no circle."""
    requires = CHAPTERS[stem].requires
    assert all(name in CHAPTERS and name < stem for name in requires)
    assert list(requires) == sorted(set(requires))


@given(stem=stems)
def test_a_path_is_closed_ordered_and_no_longer_than_needed(stem):
    path = [chapter.stem for chapter in path_to(stem)]
    assert path[-1] == stem
    for i, name in enumerate(path):
        assert set(CHAPTERS[name].requires) <= set(path[:i])
    needed = {r for name in path for r in CHAPTERS[name].requires} | {stem}
    assert set(path) == needed


def in_readme(chapter) -> str:
    link = f"[{chapter.title}](notebooks/{chapter.stem}.ipynb)"
    return f"| {chapter.number} | {link} | {chapter.question} |"


def for_teachers(chapter) -> str:
    said = (ROOT / "notebooks" / f"{chapter.stem}.ipynb").read_text("utf-8").lower()
    read, more = map(int, re.search(r"(\d+) minutes to read, (\d+) more for", said).groups())
    needs = ", ".join(stem[:2] for stem in chapter.requires)
    row = f"| {chapter.label} | {needs} | {read} minutes | {read + more} minutes |"
    return row.replace("|  |", "| |")


@pytest.mark.parametrize(
    ("place", "line", "entry"),
    [
        ("README.md", r"^\| .*\]\(notebooks/.*$", in_readme),
        ("book/_toc.yml", r"file: notebooks/\d\w+", lambda c: f"file: notebooks/{c.stem}"),
        ("book/teaching.md", r"^\| \d\d .* minutes \|$", for_teachers),
        ("TUTOR.md", r"^\| `\w+` \|", lambda c: f"| `{c.stem}` |"),
        ("book/cards.py", r'^    "\d\d_\w+":', lambda c: f'    "{c.stem}":'),
    ],
)
def test_each_list_of_chapters_is_that_of_the_map(place, line, entry):
    listed = re.findall(line, (ROOT / place).read_text("utf-8"), re.MULTILINE)
    assert listed == [entry(chapter) for chapter in CHAPTERS.values()]


def test_every_notebook_is_on_the_map_and_in_the_contents():
    assert [path.stem for path in NOTEBOOKS] == list(CHAPTERS)
    contents = re.findall(
        r"file: notebooks/([A-Z]\w+)", (ROOT / "book/_toc.yml").read_text("utf-8")
    )
    assert contents == [path.stem for path in test_chapters.APPENDICES]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_titles_and_totals_are_the_notebooks(path):
    chapter = test_chapters.read(path)
    on_map = CHAPTERS[path.stem]
    assert chapter.notebook.cells[0].source.strip() == f"# {on_map.number} · {on_map.title}"
    # A quiz is known by its question: asked twice it counts once.
    asked = {ast.unparse(call.args[0]) for call in test_chapters.calls(chapter.code, "quiz")}
    assert len(asked) == on_map.n_quizzes
    assert len(test_chapters.exercise_cells(chapter)) == on_map.n_exercises


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_solved_exercise_is_recorded_under_its_number(path):
    """What is recorded is the name of a check up to the comma, and no other check has a name."""
    chapter = test_chapters.read(path)
    names = {}
    for cell in chapter.code:
        numbers = [found[1] for tag in test_chapters.tags(cell) if (found := CHECK.match(tag))]
        for call in test_chapters.calls([cell], "check", "check_test"):
            (name,) = [k.value.value for k in call.keywords if k.arg == "name"] or [""]
            names.setdefault(*(numbers or [""]), set()).add(name.partition(",")[0])
    assert names.pop("", {""}) == {""}
    assert names == {n: {f"Exercise {n}"} for n in test_chapters.exercise_cells(chapter)}
