"""data/measured/: no stored run is older than the code that it measures."""

import ast
import json
import shutil
from pathlib import Path

import pytest

from firsttoken.provenance import code_digest

ROOT = Path(__file__).parents[1]
STORED = {path.stem: path for path in sorted((ROOT / "data" / "measured").glob("*.json"))}
# What decides no number of a run: names, places, tables that only grow, what a run starts from.
BESIDE = {"architectures", "hardware", "live", "paths", "provenance", "tokenizer"}


def program(stem: str) -> Path:
    """Return the program that writes a stored file: its name is the file's, or begins it."""
    for name in (stem, stem.partition("_")[0]):
        tried = (f"benchmarks/{name}.py", f"scripts/measure_{name}.py", f"scripts/train_{name}.py")
        found = [ROOT / path for path in tried if (ROOT / path).exists()]
        if found:
            break
    (only,) = found
    return only


PROGRAMS = sorted({program(stem) for stem in STORED})


def measured_files(path: Path) -> list[str]:
    """Return the files whose digests a program stores, without running it."""
    (names,) = (
        ast.literal_eval(statement.value.args[0])
        for statement in ast.parse(path.read_text("utf-8")).body
        if isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == "MEASURED_CODE"
    )
    return names


def files_of(module: str) -> set[str]:
    """Return the files of a module of the library, all of them if it is a package."""
    path = Path("lib", "firsttoken", *module.split("."))
    folder = ROOT / path
    parts = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    return {part.relative_to(ROOT).as_posix() for part in parts}


def changed(report: dict, now: dict[str, str]) -> set[str]:
    """Return the files that are not as they were when the runs of a report were taken."""
    runs = [report] if "provenance" in report else report.get("runs", [report])
    stored = [run.get("provenance", run)["measured_code"] for run in runs]
    return {
        name for then in stored for name in then.keys() | now if then.get(name) != now.get(name)
    }


@pytest.mark.parametrize("stem", STORED)
def test_no_stored_run_is_older_than_the_code_it_measures(stem):
    files = measured_files(program(stem))
    since = changed(json.loads(STORED[stem].read_text("utf-8")), code_digest(files))
    run = program(stem).relative_to(ROOT)
    assert not since, f"{stem} is older than {sorted(since)}: run {run} again"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_names_all_that_it_measures(path):
    """What it imports of the library at least; and it stores what it names."""
    source = path.read_text("utf-8")
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "firsttoken":
            _, _, module = node.module.partition(".")
            imported |= {module} if module else {alias.name for alias in node.names}
    files = measured_files(path)
    assert set().union(*map(files_of, imported - BESIDE)) <= set(files)
    assert source.count('"measured_code": MEASURED_CODE') >= 1
    assert len(set(files)) == len(files) > 0


@pytest.mark.parametrize(
    ("stem", "file", "prose", "constant"),
    [
        (
            "threads",
            "lib/firsttoken/llama.py",
            ("# ", "# Note: "),
            ("n_threads: int | None = 1", "n_threads: int | None = 2"),
        ),
        (
            "page",
            "lib/firsttoken/live/engine/llama.js",
            ("\n// ", "\n// Note: "),
            ("CHUNK = 32", "CHUNK = 48"),
        ),
    ],
)
def test_a_changed_constant_is_caught_and_a_changed_comment_is_not(
    tmp_path, stem, file, prose, constant
):
    files = measured_files(program(stem))
    report = {"measured_code": code_digest(files)}
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    source = (tmp_path / file).read_text("utf-8")
    for (old, new), found in ((prose, set()), (constant, {file})):
        assert old in source
        (tmp_path / file).write_text(source.replace(old, new), "utf-8")
        assert changed(report, code_digest(files, tmp_path)) == found


def test_every_run_of_a_file_counts_and_a_file_without_digests_is_none():
    now = {"a.py": "1", "b.py": "2"}
    fresh, older = ({"provenance": {"measured_code": code}} for code in (now, {"a.py": "0"}))
    assert changed({"runs": [fresh, fresh]}, now) == set()
    assert changed({"runs": [fresh, older]}, now) == {"a.py", "b.py"}
    assert changed({"measured_code": now | {"c.py": "3"}}, now) == {"c.py"}  # no longer named
    with pytest.raises(KeyError, match="measured_code"):
        changed({"provenance": {"commit": "0" * 12}}, now)
