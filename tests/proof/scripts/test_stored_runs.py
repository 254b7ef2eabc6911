"""data/measured/: no stored run is older than the code that it measures."""

import ast
import importlib.util
import json
import shutil
from pathlib import Path

import nbformat
import pytest

from firsttoken.provenance import code_digest

ROOT = Path(__file__).parents[3]
STORED = {path.stem: path for path in sorted((ROOT / "data" / "measured").glob("*.json"))}
# Where a stored run finds its code, wherever in there it has moved.
CODE = ["lib/firsttoken", *(f"classroom/{p.name}" for p in ROOT.glob("classroom/*.py")), "scripts"]
# What decides no number of a run: names, places, tables that only grow, what a run starts from.
BESIDE = {"architectures", "hardware", "live", "models.tokenizer", "paths", "provenance"}


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


def measured(path: Path) -> list[str]:
    """Return the modules whose digests a program stores, without running it."""
    (names,) = (
        ast.literal_eval(statement.value.args[0])
        for statement in ast.parse(path.read_text("utf-8")).body
        if isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == "MEASURED_CODE"
    )
    return names


def changed(report: dict, now: dict[str, str]) -> set[str]:
    """Return the names whose code is not as it was when the runs of a report were taken."""
    runs = [report] if "provenance" in report else report.get("runs", [report])
    stored = [run.get("provenance", run)["measured_code"] for run in runs]
    return {
        name
        for then in stored
        for name, digests in then.items()
        if not set(digests.split()) <= set(now.get(name, "").split())
    }


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    """The digests of all code there is."""
    return code_digest(CODE)


@pytest.mark.parametrize("stem", STORED)
def test_no_stored_run_is_older_than_the_code_it_measures(stem, now):
    since = changed(json.loads(STORED[stem].read_text("utf-8")), now)
    run = program(stem).relative_to(ROOT)
    assert not since, f"{stem} is older than {sorted(since)}: run {run} again"


def test_what_chapters_measure_on_smollm2_is_as_old_as_their_code():
    """Its code stands in the chapters: a cell that measures otherwise is to be run again."""
    path = ROOT / "scripts" / "measure_smollm2.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    code = {
        chapter.stem: script.measuring(nbformat.read(chapter, as_version=4))
        for chapter in script.NOTEBOOKS.glob("*.ipynb")
    }
    now = {stem: script.digest(source) for stem, source in code.items() if source}
    stored = json.loads(STORED["smollm2"].read_text("utf-8"))
    assert now == stored["code"]
    assert {name[:2] for name in stored["found"]} == {stem[:2] for stem in now}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_names_all_that_it_measures(path):
    """What it imports of the library at least; and it stores what it names."""
    source = path.read_text("utf-8")
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "firsttoken":
            _, _, module = node.module.partition(".")
            packages = ("", "models", "page")  # they hand out modules, not names
            parts = [alias.name for alias in node.names] if module in packages else [""]
            imported |= {f"{module}.{part}".strip(".") for part in parts}
    names = measured(path)
    named = {name.replace("/", ".") for name in names}
    for module in imported - BESIDE:
        of_it = (name for name in named if f"{name}.".startswith(f"{module}."))
        assert any(of_it) or any(f"{module}.".startswith(f"{name}.") for name in named), module
    assert source.count('"measured_code": MEASURED_CODE') >= 1
    assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize(
    ("stem", "file", "edit", "stale"),
    [
        (
            "threads",
            "models/llama.py",
            ("n_threads: int | None = 1", "n_threads: int = 2"),
            {"load_model"},
        ),
        ("page", "live/engine/llama.js", ("\n// ", "\n// Note: "), set()),
    ],
)
def test_a_run_is_older_than_changed_code_but_not_than_moved_code(
    tmp_path, stem, file, edit, stale
):
    names = measured(program(stem))
    report = {"measured_code": code_digest(names)}
    library = tmp_path / "lib" / "firsttoken"
    shutil.copytree(ROOT / "lib" / "firsttoken", library, ignore=shutil.ignore_patterns("*.pyc"))
    source = (library / file).read_text("utf-8")
    assert edit[0] in source
    (library / file).unlink()
    moved = library / "moved" / Path(file).name
    moved.parent.mkdir()
    moved.write_text(source.replace(*edit), "utf-8")
    assert changed(report, code_digest(["lib/firsttoken"], tmp_path)) == stale
