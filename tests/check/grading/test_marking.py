"""What is taken of a submission, and what is kept of its outputs; nothing here is run."""

import json

import grade
import pytest
from execute import kept
from marking import is_test, mark, parts, prepared
from nbformat.v4 import new_code_cell
from sandbox import Refused
from submitted import Unreadable, parsed

import tiny_assignment
from tiny_assignment import graded, solved


def test_only_sources_of_the_students_own_cells_are_taken():
    """Points, outputs and metadata that a student writes into the file have no effect."""
    notebook = solved()
    for cell in notebook.cells:
        if is_test(cell):
            cell.metadata["nbgrader"]["points"] = 1000
            cell.metadata["parts"] = [{"name": "", "points": 1000, "earned": 1000, "said": ""}]
    notebook.cells.reverse()
    ours, *_ = prepared(tiny_assignment.source(), notebook)
    marked = [cell for cell in ours.cells if mark(cell)]
    source = [cell for cell in tiny_assignment.source().cells if mark(cell)]
    assert [mark(cell)["grade_id"] for cell in marked] == [mark(c)["grade_id"] for c in source]
    for cell, original in zip(marked, source, strict=True):
        assert mark(cell).get("points") == mark(original).get("points")
        assert "parts" not in cell.metadata
        if is_test(cell):
            assert cell.source == original.source


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("\n\n".join(tiny_assignment.DOUBLE_TESTS.splitlines()[:2]) + "  # read", []),
        ("expect('double(3)', double(3),\n       7, reveal=True)", ["double_tests was edited"]),
        ("(" * 999, ["double_tests was edited"]),
        (tiny_assignment.DOUBLE_TESTS + "\n#" * 10**5, ["double_tests was edited"]),
    ],
)
def test_a_formatter_may_change_a_locked_cell(test, said):
    _, reasons, notes = prepared(tiny_assignment.source(), solved(double_tests=test))
    assert (reasons, notes) == ([], [f"{start}: the original was used" for start in said])


def test_a_file_of_brackets_is_not_parsed():
    """Each takes a hundred times its size in memory."""
    with pytest.raises(Unreadable, match="more than 1000000 brackets"):
        parsed(b"[" * 1_000_001)


@pytest.mark.parametrize("bare", [{}, {"metadata": None}, {"metadata": {}, "source": ["x", "=1"]}])
def test_an_added_cell_may_lack_what_grading_does_not_read(bare):
    notebook = solved()
    notebook.cells.append({"cell_type": "code"} | bare)
    *ours, added = parsed(json.dumps(notebook).encode()).cells
    assert [cell.source for cell in ours] == [cell.source for cell in solved().cells]
    assert (added.source, mark(added)) == ("".join(bare.get("source", "")), {})


def test_work_that_the_sandbox_would_show_is_not_graded(monkeypatch, tmp_path):
    (tmp_path / "submitted").mkdir()
    monkeypatch.setattr(grade, "check", lambda: None)
    monkeypatch.setattr(grade, "readable", lambda: [str(tmp_path)])
    with pytest.raises(Refused, match=r"the sandbox shows .* to students' code"):
        grade.grade(tmp_path)


def test_parts_are_read_from_the_source():
    text = "x = 1\n### 3 points: one\nassert x\n### 4 points: zero or less\n### 2.5 points: many\n"
    cell = graded("tests", new_code_cell(text), 9.5)
    found = [(part["name"], part["points"]) for part in parts(cell)]
    assert found == [("", 0), ("one", 3), ("zero or less", 4), ("many", 2.5)]
    assert "".join(part["source"] for part in parts(cell)) == text
    cell.source = "assert True\n    ### 3 points: indented"
    assert [(part["name"], part["points"]) for part in parts(cell)] == [("", 9.5)]


@pytest.mark.parametrize(
    "content",
    [
        {"data": {"text/html": "<b>"}},
        {"data": {"image/png": "<script>"}},
        {"data": {"image/png": b"GIF89a"}},
    ],
)
def test_an_output_that_is_no_text_and_no_picture_is_dropped(content):
    assert kept("display_data", content) is None
