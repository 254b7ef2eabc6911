"""Missing names: the cell that a sentence names is there; where none is, nothing is said."""

import builtins
import dis
import json
import pickle
from types import CodeType, SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager

import test_chapters
from firsttoken.page.exercises import check, missing
from firsttoken.page.exercises.missing import (
    definitions,
    explain_missing_names,
    read_cells,
    sentence,
    who_defines,
)
from firsttoken.page.explore import _error_html

NOTEBOOKS = test_chapters.NOTEBOOKS + test_chapters.APPENDICES


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\nx = 2", "x = 1"),
        ("a, *x = 1, 2", "a, *x = 1, 2"),
        ("@cache\ndef x(a):\n    return a", "def x(a):"),
        ("class x: pass", "class x: pass"),
        ("from math import (\n    pi,\n    tau as x,\n)", "from math import ("),
        ("if True:\n    for a, x in b:\n        pass", "for a, x in b:"),
        ("with a as x: pass", "with a as x: pass"),
        ("print(x := 3)", "print(x := 3)"),
        ("%matplotlib inline\nfiles = !ls\nx = 1", "x = 1"),
        ("[x for x in a]", None),
        ("def f(x):\n    x = 2", None),
        ("a.x = a[x] = 1", None),
        ("x == 1", None),
        ("x = (", None),
    ],
)
def test_a_definition_is_what_gives_a_name_its_value(source, line):
    assert definitions(source).get("x") == line


def stored(*cells: tuple[str, str]) -> str:
    """Return a notebook's text; a cell begins with "#" where it is one of text."""
    kinds = ["markdown" if source.startswith("#") else "code" for _, source in cells]
    return json.dumps(
        {
            "cells": [
                {"id": name, "cell_type": kind, "source": source.splitlines(keepends=True)}
                for (name, source), kind in zip(cells, kinds, strict=True)
            ]
        }
    )


CHAPTER = stored(
    ("t1", "# A chapter\n\nText."),
    ("first", "n = 1"),
    ("t2", "## Build\n\n### A loop\n\n```\n# no heading\n```"),
    ("again", "n = 2"),
    ("uses", "print(n)"),
    ("t3", "# The end"),
    ("last", "n = late = 3"),
)


@pytest.mark.parametrize(
    ("name", "running", "told"),
    [
        ("n", "again", "“A chapter” defines it:\n    n = 1\n"),
        ("n", "uses", "“A loop” defines it:\n    n = 2\n"),
        ("n", "not stored yet", "“The end” defines it:\n    n = late = 3\n"),
        ("n", "first", ""),
        ("late", "uses", ""),
        ("misspelt", "last", ""),
    ],
)
def test_the_nearest_cell_above_is_named(name, running, told):
    said = sentence(read_cells(CHAPTER), name, running)
    assert told in said and bool(told) == bool(said)


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> SimpleNamespace:
    """A kernel that runs the cell "uses" of a stored chapter."""
    path = tmp_path / "chapter.ipynb"
    path.write_text(CHAPTER, encoding="utf-8")
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    message = {"metadata": {"cellId": "uses"}}
    shell = SimpleNamespace(
        user_ns={"map_of": lambda function: function(1)},
        kernel=SimpleNamespace(get_parent=lambda: message),
        notebook=path,
        showtraceback=lambda raised, running_compiled_code: shown.append(raised),
        shown=(shown := []),
    )
    shell.set_custom_exc = lambda kinds, show: setattr(shell, "asked", (kinds, show))
    monkeypatch.setattr(missing, "get_ipython", lambda: shell)
    return shell


def error_of(source: str, names: dict) -> BaseException:
    with pytest.raises(Exception) as caught:
        exec(source, names)
    return caught.value


def test_what_a_notebook_lacks_is_explained_wherever_it_shows(kernel):
    """In a cell, in a worker's process, in an answer that is checked, in a slider's figure."""
    for source in ("print(n)", "def f():\n    return n\nf()", "min([1], key=lambda _: n)"):
        assert "n = 2" in who_defines(error_of(source, kernel.user_ns))
    elsewhere = pickle.loads(pickle.dumps(error_of("n", kernel.user_ns)))  # as a worker's comes
    assert "n = 2" in who_defines(elsewhere)
    exec("answer = lambda x: n", kernel.user_ns)
    assert "defines it: n = 2 Run" in repr(check(kernel.user_ns["answer"], abs, inputs=[(1,)]))
    shown = _error_html(error_of("n", kernel.user_ns))
    assert "n = 2" in shown and "NameError" not in shown


def test_a_cell_that_lacks_a_name_shows_the_sentence_alone(kernel):
    """An error of another name is handed on as it is, and other errors are not touched at all."""
    explain_missing_names()
    kinds, show = kernel.asked
    for name in ("n", "nn"):
        error = error_of(name, kernel.user_ns)
        show(kernel, NameError, error, error.__traceback__)
    (kind, told, _), handed_on = kernel.shown
    assert (kinds, kind) == ((NameError,), type(told))
    assert told._render_traceback_() == [str(told)] and "n = 2" in str(told)
    assert handed_on == (NameError, error, error.__traceback__)


def test_only_the_kernel_of_a_notebook_is_asked(kernel, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME")
    explain_missing_names()
    monkeypatch.setattr(missing, "get_ipython", lambda: None)
    monkeypatch.setenv("JPY_SESSION_NAME", "chapter.ipynb")
    explain_missing_names()
    assert not hasattr(kernel, "asked")


def test_what_it_cannot_explain_stays_as_it_was(kernel, monkeypatch):
    lacks = error_of("n", kernel.user_ns)
    for source in ("nn", "1 / 0", "def f():\n    n += 1\nf()"):
        assert who_defines(error_of(source, kernel.user_ns)) == ""
    assert who_defines(error_of("n", {})) == "", "a library's own mistake"
    assert who_defines(NameError("n")) == "", "nobody raised it"
    assert who_defines(lacks) != ""
    for text in ("no notebook", "{}", CHAPTER.replace('"id"', '"older"')):
        kernel.notebook.write_text(text, encoding="utf-8")
        assert who_defines(lacks) == ""
    kernel.notebook.unlink()
    assert who_defines(lacks) == ""
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert who_defines(lacks) == ""


def loads(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names that a cell reads at once, and those that its functions will read."""
    steps = list(dis.get_instructions(code))
    inner = [loads(const) for const in code.co_consts if isinstance(const, CodeType)]
    at_once = {step.argval for step in steps if step.opname == "LOAD_NAME"}
    later = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
    return at_once, later.union(*(a | b for a, b in inner))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_section_lacks_nothing_that_no_cell_above_defines(path):
    """After a restart: the chapter's tools, then any section. What it lacks it can say."""
    chapter, cells = test_chapters.read(path), read_cells(path.read_text("utf-8"))
    defined = {cell.id: set(definitions(cell.source)) for cell in cells}
    tools, *below = cells
    known = defined[tools.id].union(dir(builtins), {"display", "get_ipython"})
    lacks, untold = set(), []
    for title in test_chapters.sections(chapter):
        ids = {cell.id for cell in chapter.section(title)}
        section = [cell for cell in below if cell.id in ids]
        have, ever = set(known), known.union(*(defined[cell.id] for cell in section))
        for cell in section:
            above = set().union(*(defined[c.id] for c in cells[: cells.index(cell)]))
            have |= defined[cell.id]
            python = TransformerManager().transform_cell(cell.source)
            at_once, later = loads(compile(python, cell.id, "exec"))
            needs = (at_once - have) | (later - ever)
            lacks |= needs
            untold += [(cell.id, name) for name in needs - above]
    assert untold == []
    assert not lacks or "from firsttoken.page.exercises import" in tools.source
