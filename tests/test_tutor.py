"""What TUTOR.md names is there: files, sections, commands, names, and the book's own words."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTOR = (ROOT / "TUTOR.md").read_text("utf-8")
CODE = re.findall(r"`([^`\n]+)`", TUTOR)
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", TUTOR, re.MULTILINE))
# Written by the build, so not in the folder.
BUILT = {"llms.txt", "notebooks/04_kv_cache.html", "notebooks/04_kv_cache.html.md"}


def words(path: Path) -> str:
    """Return what a notebook says, in its text and in the strings of its code."""
    said = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            said.append(source)
        elif "check" in source:
            constants = (
                n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)
            )
            said += [value for value in constants if isinstance(value, str)]
    return "\n".join(said)


def test_files_and_folders_are_there():
    named = {code for code in CODE if re.fullmatch(r"[\w/]+(/|(\.\w+)+)", code)}
    named = {name for name in named if not name.startswith("firsttoken.")}
    assert {"assignments/", "book/notation.md", "tests/proof/chapters/chapter_answers.py"} <= named
    assert [name for name in sorted(named - BUILT) if not (ROOT / name).exists()] == []


def test_commands_and_names_are_there():
    targets = {match[1] for code in CODE if (match := re.match(r"make ([a-z-]+)", code))}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert targets and all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in targets)
    names = [code.partition("(")[0] for code in CODE if code.startswith("firsttoken.")]
    assert len(names) >= 3
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    restored = [code.split()[2] for code in CODE if code.startswith("git restore")]
    assert all((ROOT / path).exists() for path in restored)


@pytest.mark.parametrize("stem", ROWS)
def test_stumbles_are_in_the_books_words(stem):
    quoted = re.findall(r"“([^”]+)”", ROWS[stem])
    assert len(quoted) == 3 and re.sub(r"“[^”]+”", "", ROWS[stem]).strip() == ""
    said = words(ROOT / "notebooks" / f"{stem}.ipynb")
    assert [quote for quote in quoted if quote not in said] == []
