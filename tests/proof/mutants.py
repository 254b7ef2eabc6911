"""How many small mistakes in a module its tests find: mutation testing with mutmut.

    make proof MODULE=paging
    .venv/bin/python tests/proof/mutants.py paging models.lora --sample 40 --seed 1

A mutant is the module with one change: a `<` made `<=`, an argument left out, a number one larger.
It is killed if one of the module's own tests, of whatever tier, or a doctest of it fails or comes
to no end. What survives is a hole in the tests, or a change that changes nothing: those stand with
the reason in equivalent.toml. What an error says is left alone. Each module has a row at the end:
killed, tried, and the share with its interval of 95 % (Wilson's). mutmut works in a copy of the
repository, _build/mutants/<module>.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tomllib
from functools import cached_property
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.stats import status_by_exit_code
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "lib" / "firsttoken"
PARTS = [*LIBRARY.glob("[a-z]*.py"), *(path.parent for path in LIBRARY.glob("*/__init__.py"))]
PACKAGES = {path.stem: path for path in sorted(PARTS)}
# "models.lora" is one file of a package; its tests are those of its name, or the package's.
MODULES = PACKAGES | {
    f"{name}.{path.stem}": path
    for name, package in PACKAGES.items()
    for path in sorted(package.glob("[a-z]*.py"))
}
# mutmut keeps each mutant beside the original, docstring and all: one doctest of it is enough.
PYTEST = ["-p", "no:xdist", "-p", "no:cacheprovider", "-k", "not __mutmut_"]
# mutmut knows a folder src alone. A copy of lib stays, for tests that read the sources as text.
CONFIG = r"""
[tool.mutmut]
source_paths = ["src"]
only_mutate = {sources}
do_not_mutate_patterns = ['raise ']
also_copy = {others}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = {pytest}
timeout_multiplier = 5
timeout_constant = 5
process_isolation = "forkserver"
"""


class Copy:
    """A copy of the repository in which mutmut changes one module."""

    def __init__(self, module: str):
        self.module, self.work = module, ROOT / "_build" / "mutants" / module
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
        names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
        shutil.rmtree(self.work, ignore_errors=True)
        for name in names:
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, self.work / name)
        shutil.copytree(self.work / "lib", self.work / "src")
        files = sorted(MODULES[module].rglob("*.py")) or [MODULES[module]]
        sources = [str(Path("src", file.relative_to(ROOT / "lib"))) for file in files]
        self.sources, self.tests = sources, own_tests(module) + sources
        others = sorted({name.partition("/")[0] for name in names} - {"tests", "pyproject.toml"})
        settings = {"sources": sources, "tests": self.tests, "others": others, "pytest": PYTEST}
        with (self.work / "pyproject.toml").open("a") as file:
            file.write(CONFIG.format(**settings))
        # With none chosen it makes them all, notes which test reaches which, and gives up.
        self.mutmut("run", "none", check=False)

    def mutmut(self, *arguments: str, check: bool = True) -> str:
        command = [sys.executable, "-m", "mutmut", *arguments]
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True)
        if check and done.returncode:
            sys.exit(f"mutmut failed in {self.work}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
        return done.stdout

    def outcomes(self) -> dict[str, str]:
        """Return {mutant: what became of it}."""
        found = {}
        for source in self.sources:
            data = SourceFileMutationData(path=Path(source))
            data.meta_path = self.work / data.meta_path
            data.load()
            found |= {key: status_by_exit_code[code] for key, code in data.exit_code_by_key.items()}
        return found

    def change(self, mutant: str) -> dict[str, str]:
        """Return what a mutant changes: in which function, what stood there, what stands there."""
        shown = [line for line in self.mutmut("show", mutant).splitlines() if line[:1] in "+-"]
        lines = [line for line in shown if line[:3] not in ("+++", "---")]
        old, new = (" ".join(ln[1:].strip() for ln in lines if ln[0] == mark) for mark in "-+")
        package = self.module.partition(".")[0]
        name = mutant.removeprefix(f"firsttoken.{package}").rpartition("__mutmut_")[0]
        name = name.replace(".xǁ", ".").replace("ǁ", ".").replace(".x_", ".").removeprefix(".")
        return {"function": name, "old": old, "new": new}

    @cached_property
    def sound(self) -> bool:
        """Say if the tests pass in a process of their own without any mutant."""
        return self.survives("")

    def survives(self, mutant: str) -> bool:
        """Say if the tests pass in a process of its own, where it is on when it is imported."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", *PYTEST, *self.tests]
        place = self.work / "mutants"
        env = os.environ | {"PYTHONPATH": str(place / "src"), "MUTANT_UNDER_TEST": mutant}
        given = {"cwd": place, "env": env, "capture_output": True}
        try:
            return subprocess.run(command, **given, timeout=3600).returncode == 0
        except subprocess.TimeoutExpired:  # it comes to no end
            return False


def own_tests(module: str) -> list[str]:
    """Return the test files that bear a module's name, or stand in a folder that does."""
    package, _, part = module.partition(".")

    def owner(file: Path) -> str:
        name = file.stem.removeprefix("test_") + "_"
        folders = file.relative_to(ROOT).parts[:-1]
        found = [m for m in PACKAGES if m in folders or name.startswith(f"{m}_")]
        return max(found, key=lambda m: (m in folders, len(m)), default="")

    files = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [
        file for file in files if file.parent.name not in ("alone", "browser", "hub", "scripts")
    ]
    files = [file for file in files if owner(file) == package]
    named = [file for file in files if f"{file.stem}_".startswith(f"test_{part}_")]
    return [str(file.relative_to(ROOT)) for file in named or files]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", choices=MODULES, metavar="module", help="all if none")
    parser.add_argument("--sample", type=int, help="try so many of each module's, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    known = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text("utf-8"))
    enough = True
    for module in options.modules or PACKAGES:
        n_killed, n = tried(Copy(module), options, known.get(module.partition(".")[0], []))
        low, high = binomtest(n_killed, n).proportion_ci(method="wilson")
        row = f"| {module} | {n_killed} of {n} | {n_killed / n:.0%}, {low:.0%} to {high:.0%} |"
        print(row, flush=True)
        enough &= n_killed >= 0.9 * n
    return int(not enough)


def tried(copy: Copy, options: argparse.Namespace, equivalent: list[dict]) -> tuple[int, int]:
    """Return how many mutants of those drawn are killed, and how many were drawn and differ."""
    mutants = sorted(copy.outcomes())
    if options.sample and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    copy.mutmut("run", *mutants)
    outcomes = copy.outcomes()
    n = n_killed = 0
    for mutant in mutants:
        killed = outcomes[mutant] in ("killed", "timeout")
        if not killed:
            change = copy.change(mutant)
            if any(change.items() <= each.items() for each in equivalent):
                continue
            if not (killed := not copy.survives(mutant)):
                print(f"{mutant}\n  - {change['old']}\n  + {change['new']}", flush=True)
            elif not copy.sound:
                sys.exit(f"the tests of {copy.module} fail without a mutant, too: {copy.work}")
        n, n_killed = n + 1, n_killed + killed
    return n_killed, n


if __name__ == "__main__":
    sys.exit(main())
