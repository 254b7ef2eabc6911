"""`make new-chapter` writes a chapter that passes all rules, in a copy of the book."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("new_chapter", ROOT / "templates" / "new_chapter.py")
new_chapter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(new_chapter)

TOPIC = "beam_search"
FOLDERS = ("assignments", "book", "classroom", "lib", "notebooks", "tests")
FILES = (
    ".importlinter",
    "CITATION.cff",
    "Makefile",
    "README.md",
    "TUTOR.md",
    "conftest.py",
    "pyproject.toml",
)
# What the book asks of one chapter, and of the lists that it is entered in. What compares it with
# all of the library, and what attacks its graders, takes longer and runs with the others.
CHECKS = (
    "tests/check/grading/test_assignments.py",
    "tests/proof/chapters/test_chapter_runs.py",
    "tests/proof/classroom/test_assignment_inputs.py",
    "tests/proof/test_engines.py",
    "tests/test_chapters.py",
    "tests/test_frame.py",
    "tests/page/test_start.py",
    "tests/test_teaching.py",
    "tests/test_tutor.py",
    f"tests/test_{TOPIC}.py",
)
WHOLE_LISTS = (
    *("test_start", "test_teaching", "test_tutor"),
    *("test_no_file_of", "light_layers", "every_module_has"),
)


def copy(folder: Path) -> Path:
    """Copy what a chapter is made of and entered in; data is only looked at."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    (folder / "data").symlink_to(ROOT / "data")
    return folder


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    """Return a copy of the book with one chapter more."""
    book = copy(tmp_path_factory.mktemp("book"))
    new_chapter.new_chapter(TOPIC, book)
    return book


def tool(book: Path, *command: str) -> subprocess.CompletedProcess:
    """Run a tool in the copy, on the library that lies there."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    environment["PYTHONPATH"] = str(book / "lib")
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=book,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_passes_the_rules_of_the_book(book):
    chosen = " or ".join((TOPIC, *WHOLE_LISTS))
    done = tool(book, "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *CHECKS)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 60, done.stdout


def test_it_passes_the_linters(book):
    """What was written and entered; the linters see it nowhere else."""
    written = {path for path in book.rglob(f"*{TOPIC}*") if path.suffix in (".py", ".ipynb")}
    written |= {book / "book" / "cards.py", book / "lib" / "firsttoken" / "page" / "start.py"}
    assert len(written) == 7
    for command in (("ruff", "check"), ("ruff", "format", "--check")):
        done = tool(book, *command, *map(str, written))
        assert done.returncode == 0, done.stdout
    done = tool(book, "importlinter.cli", "lint-imports")
    assert done.returncode == 0, done.stdout


def test_no_word_of_the_template_is_left(book):
    made = [path for path in book.rglob(f"*{TOPIC}*") if path.is_file() and path.suffix != ".pyc"]
    assert len(made) == 5
    for path in made:
        assert re.findall(r"\b(TOPIC|TITLE|NUMBER|TODO)\b", path.read_text("utf-8")) == []
    entered = sum(TOPIC in (book / name).read_text("utf-8") for name in ("README.md", "TUTOR.md"))
    assert entered == 2


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("Beam", "small letters"),
        ("../beam", "small letters"),
        ("paging", "is there already"),
        ("units", "lib/firsttoken/units.py is there already"),
        ("book", "tests/test_book.py is there already"),
    ],
)
def test_a_name_that_will_not_do_is_refused_in_one_line(book, topic, words):
    before = sorted(book.rglob("*"))
    with pytest.raises(new_chapter.Refused, match=words) as refused:
        new_chapter.new_chapter(topic, book)
    assert "\n" not in str(refused.value)
    assert sorted(book.rglob("*")) == before
