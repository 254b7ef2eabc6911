"""What is written beside a measured figure: which processor, which code, how busy."""

import ast
import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LANGUAGES = (".py", ".js", ".wat")
# Lists of names: what they name is moved more often than it is changed.
NO_NUMBER = {"__all__", "MEASURED_CODE"}


def processor() -> str:
    """Return the processor's name where Linux tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return names[0].strip() if names else platform.processor() or platform.machine()


def instruction_sets() -> str:
    """Return what decides how fast products run, where Linux tells it: "AVX-512, AMX"; else ""."""
    info = Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*: (.+)", info.read_text() if info.exists() else "", re.MULTILINE)
    has = set(flags[1].split()) if flags else set()
    wide = "AVX-512" if "avx512f" in has else "AVX2" if "avx2" in has else ""
    return ", ".join(filter(None, [wide, "AMX" if "amx_tile" in has else ""]))


def commit() -> str:
    """Return the commit of this tree, marked where files differ from it; "" outside of git."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    here = Path(__file__).parent
    try:
        said = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git
        return ""
    return said.stdout.strip()


def code_digest(names: Iterable[str], root: Path = REPOSITORY) -> dict[str, str]:
    """Return {name: digest} of each function, class and constant that some modules define.

    A program stores it for the modules whose code decides its numbers, so that a test can tell when
    a stored run is older than that code. Comments, docstrings and imports do not count, nor does
    the file that a name stands in: what moves is as it was. A name that several files define has
    the digest of each. Every version of Python gives the same.

    names:  modules and packages of the library ("paging", "live/engine"), or paths relative to
            `root`. A file of a language whose comments have lines of their own, begun by // or ;;
            (JavaScript, WebAssembly text), counts whole, by its own name.

    Raises: ValueError for a name of nothing.
    """
    found: dict[str, set[str]] = {}
    for path in (path for name in names for path in _files(name, root)):
        for name, code in _definitions(path):
            found.setdefault(name, set()).add(hashlib.sha256(code.encode()).hexdigest()[:16])
    return {name: " ".join(sorted(digests)) for name, digests in sorted(found.items())}


def _files(name: str, root: Path) -> list[Path]:
    """Return the file of a module or a path, all of them for a package or a folder."""
    library = root / "lib" / "firsttoken"
    tried = (library / name, library / f"{name}.py", root / name)
    for path in tried:
        if path.exists():
            return [file for suffix in LANGUAGES for file in path.rglob(f"*{suffix}")] or [path]
    raise ValueError(f"names must be of modules, or of paths in {root}; got {name!r}")


def _definitions(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each name that a file defines, with its code."""
    source = path.read_text("utf-8")
    if path.suffix != ".py":
        lines = [line.strip() for line in source.splitlines()]
        yield path.name, "\n".join(ln for ln in lines if ln and not ln.startswith(("//", ";;")))
        return
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = ast.unparse(target)
        else:  # an import, or what starts a program
            continue
        if name not in NO_NUMBER:
            yield name, ascii(_tree(node))


def _tree(node: object) -> object:
    """Return a syntax tree as tuples and lists, without strings that stand alone."""
    if isinstance(node, list):
        return [_tree(each) for each in node if not _is_docstring(each)]
    if not isinstance(node, ast.AST):
        return node
    # Newer versions have more fields, empty unless the code uses what they are for.
    fields = ((name, _tree(value)) for name, value in ast.iter_fields(node))
    return type(node).__name__, *(pair for pair in fields if pair[1] not in (None, []))


def _is_docstring(node: object) -> bool:
    """Say whether a statement is only a string: a docstring, also one below an assignment."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def load_average() -> float | None:
    """Return how many programs wanted to run in the last minute; None where nobody counts."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def in_file_name(machine: str) -> str:
    """Return a machine's name as file names carry it.

    >>> in_file_name("AMD EPYC, 2 threads")
    'amd-epyc-2-threads'
    """
    return re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
