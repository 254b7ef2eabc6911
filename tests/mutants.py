"""How many small mistakes in a module its tests find: mutation testing with mutmut.

    make mutants MODULE=paging            # tries all mutants; writes tests/mutants/paging.json
    make mutants MODULE=paging TENTH=3    # those whose number ends in 3; writes nothing
    make mutants MODULE=all TENTH=3       # of all modules: fails if more than a tenth survives
    make mutants                          # shows what is stored

A mutant is the module with one change: a `<` made `<=`, an argument left out, a number one larger.
It is killed if one of the module's own tests fails or comes to no end: tests/test_<module>*.py or
tests/<module>/, and its doctests. What survives is a hole in the tests, or a change that changes
nothing; those stand with the reason in tests/mutants/equivalent.toml. What an error says is left
alone.

mutmut works in a copy of the repository, _build/mutants/<module>. A run that was stopped goes on
there, unless the code or a test has changed since.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.stats import status_by_exit_code

from firsttoken.provenance import commit, processor

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "lib" / "firsttoken"
WANTED = 0.9
KILLED = ("killed", "timeout")
STORED = ROOT / "tests" / "mutants"
EQUIVALENT = STORED / "equivalent.toml"
# mutmut knows a folder src alone. A copy of lib stays, for tests that read the sources as text.
CONFIG = r"""
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
do_not_mutate_patterns = ['raise \w+Error']
also_copy = {others}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:xdist", "-p", "no:cacheprovider"]
process_isolation = "forkserver"
"""


def modules() -> list[str]:
    """Return the names of the library's modules and packages."""
    paths = [p for p in LIBRARY.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    return sorted(path.stem for path in paths if path.stem != "__init__")


def sources(module: str) -> list[Path]:
    """Return the files of a module or package."""
    folder = LIBRARY / module
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [LIBRARY / f"{module}.py"]


def own_tests(module: str) -> list[Path]:
    """Return the test files that bear a module's name, and not that of another or a program."""
    programs = [
        path.stem for folder in ("benchmarks", "scripts") for path in (ROOT / folder).glob("*.py")
    ]
    others = [name for name in (*modules(), *programs) if name.startswith(f"{module}_")]
    found = [
        path
        for path in (ROOT / "tests").glob(f"test_{module}*.py")
        if path.stem.removeprefix(f"test_{module}")[:1] in ("", "_")
        and not path.stem.removeprefix("test_").startswith(tuple(others))
    ]
    return sorted(found) + sorted((ROOT / "tests" / module).rglob("test_*.py"))


def prepare(module: str) -> Path:
    """Make the copy in which mutmut works, or find the one of a run that was stopped."""
    work = ROOT / "_build" / "mutants" / module
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    names = [name for name in listed.rstrip("\0").split("\0") if (ROOT / name).is_file()]
    code = [path for path in names if path.endswith(".py")]
    digest = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in code)).hexdigest()
    mark = work / "digest"
    if mark.exists() and mark.read_text() == digest:
        return work
    shutil.rmtree(work, ignore_errors=True)
    for name in names:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, work / name)
    shutil.copytree(work / "lib", work / "src")
    files = [str(Path("src", p.relative_to(ROOT / "lib"))) for p in sources(module)]
    tests = [str(path.relative_to(ROOT)) for path in own_tests(module)]
    others = sorted({name.partition("/")[0] for name in names} - {"tests", "pyproject.toml"})
    config = CONFIG.format(files=files, others=others, tests=tests + files)
    with (work / "pyproject.toml").open("a") as file:
        file.write(config)
    mark.write_text(digest)
    return work


def mutmut(work: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Run mutmut in the copy."""
    program = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(program, cwd=work, check=True, text=True, **options)


def outcomes(work: Path, module: str) -> dict[str, str]:
    """Return {mutant: what became of it}."""
    found = {}
    for path in sources(module):
        data = SourceFileMutationData(path=Path("src", path.relative_to(ROOT / "lib")))
        data.meta_path = work / data.meta_path
        data.load()
        found |= {key: status_by_exit_code[code] for key, code in data.exit_code_by_key.items()}
    return found


def change(work: Path, mutant: str) -> dict[str, str]:
    """Return what a mutant changes: in which function, what stood there, and what stands there."""
    shown = mutmut(work, "show", mutant, capture_output=True).stdout.splitlines()
    lines = [line for line in shown if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    old, new = (" ".join(ln[1:].strip() for ln in lines if ln[0] == mark) for mark in "-+")
    _, _, name = mutant.partition(".")
    function = name.rpartition("__mutmut_")[0].replace("xǁ", "").replace("ǁ", ".")
    return {"function": function.replace(".x_", "."), "old": old, "new": new}


def reasons(module: str) -> dict[tuple[str, ...], str]:
    """Return why some changes of a module change nothing: {(function, old, new): reason}."""
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8")).get(module, [])
    return {(each["function"], each["old"], each["new"]): each["reason"] for each in listed}


def judge(
    found: dict[str, str], changes: dict[str, dict], known: dict[tuple[str, ...], str]
) -> dict:
    """Return the counts of mutants, and what survived that is not known to change nothing."""
    survived = [changes[name] for name, status in found.items() if status not in KILLED]
    holes = [each for each in survived if tuple(each.values()) not in known]
    n = len(found) - len(survived) + len(holes)
    return {
        "mutants": len(found),
        "killed": len(found) - len(survived),
        "equivalent": len(survived) - len(holes),
        "score": round((n - len(holes)) / n, 4) if n else 1.0,
        "survived": holes,
    }


def measure(module: str, tenth: int | None) -> dict:
    """Try a module's mutants, or those whose number ends in `tenth`; return what became of them."""
    work = prepare(module)
    chosen = [] if tenth is None else [f"*__mutmut_*{tenth}"]
    with (work / "mutmut.log").open("w") as log:
        mutmut(work, "run", *chosen, stdout=log, stderr=log)
    found = {
        name: status
        for name, status in outcomes(work, module).items()
        if tenth is None or name.endswith(str(tenth))
    }
    left = [name for name, status in found.items() if status not in KILLED]
    return {"outcomes": dict(Counter(found.values()))} | judge(
        found, {name: change(work, name) for name in left}, reasons(module)
    )


def table() -> str:
    """Return what is stored, a line for each module."""
    lines = [f"{'module':18} {'mutants':>7} {'killed':>6} {'equivalent':>10} {'score':>6}  date"]
    for module in modules():
        path = STORED / f"{module}.json"
        if path.exists():
            r = json.loads(path.read_text("utf-8"))
            lines.append(
                f"{module:18} {r['mutants']:7} {r['killed']:6} {r['equivalent']:10} "
                f"{r['score']:6.1%}  {r['date']}"
            )
        else:
            lines.append(f"{module:18} not measured")
    return "\n".join(lines)


def store(module: str, report: dict) -> None:
    """Write what became of all mutants of a module, and where and when."""
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": processor(),
        "versions": {name: version(name) for name in ("mutmut", "pytest", "hypothesis")},
    }
    text = json.dumps(report | about, indent=1, ensure_ascii=False) + "\n"
    (STORED / f"{module}.json").write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="?", choices=[*modules(), "all"])
    parser.add_argument("--tenth", type=int, choices=range(10))
    options = parser.parse_args()
    if options.module is None:
        print(table())
        return 0
    total = Counter()
    for module in modules() if options.module == "all" else [options.module]:
        report = measure(module, options.tenth)
        for hole in report["survived"]:
            print(f"{hole['function']}\n  - {hole['old']}\n  + {hole['new']}")
        n = report["mutants"] - report["equivalent"]
        print(f"{module}: {report['killed']} of {n} killed, {report['score']:.1%}", flush=True)
        total.update(n=n, killed=report["killed"])
        if options.tenth is None:
            store(module, report)
    return int(total["killed"] < WANTED * total["n"])


if __name__ == "__main__":
    sys.exit(main())
