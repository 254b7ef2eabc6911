"""Each test runs in one tier: `make test`, `make check` or `make proof`, told by its folder."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def test_no_test_is_left_out():
    """pytest alone collects all but two folders, and make runs all that is in these."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    options = settings["ini_options"]
    assert {"tests", "lib", "notebooks"} == set(options["testpaths"])
    assert {"check", "proof"} <= set(options["norecursedirs"])
    assert "markers" not in options and "-m" not in " ".join(options["addopts"]).split()
    holds_tests = {path.parent for path in (ROOT / "tests" / "check").rglob("test_*.py")}
    run = re.findall(r"pytest\b.* (tests/check/\w+)$", MAKEFILE, re.MULTILINE)
    assert {path.relative_to(ROOT).as_posix() for path in holds_tests} == set(run)
    assert {"tests/proof", "tests/proof/alone"} <= set(re.findall(r"tests/proof[/\w]*", MAKEFILE))


def test_every_part_of_the_check_is_a_target():
    parts = re.findall(r"^ *part ([a-z-]+)", (ROOT / ".ci" / "check").read_text("utf-8"), re.M)
    targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
    assert {"lint", "test", "book", "test-browser", "test-grading"} <= set(parts) <= set(targets)
