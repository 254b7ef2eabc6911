"""What is written beside a measured figure: which processor, which code, how busy."""

import ast
import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def processor() -> str:
    """Return the processor's name where Linux tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return names[0].strip() if names else platform.processor() or platform.machine()


def commit() -> str:
    """Return the commit of this tree, marked where files differ from it; "" outside of git."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    here = Path(__file__).parent
    try:
        said = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git
        return ""
    return said.stdout.strip()


def code_digest(files: Iterable[str], root: Path = REPOSITORY) -> dict[str, str]:
    """Return the SHA-256 of the code in each file, whatever its comments and docstrings say.

    A program stores it for the files whose code decides its numbers, so that a test can tell when
    a stored run is older than that code. Every version of Python gives the same.

    files:  paths relative to `root`: Python, or a language whose comments have lines of their own,
            begun by // or ;; (JavaScript, WebAssembly text)
    """
    return {name: _digest(root / name) for name in files}


def _digest(path: Path) -> str:
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        code = ascii(_tree(ast.parse(source)))
    else:
        lines = [line.strip() for line in source.splitlines()]
        code = "\n".join(line for line in lines if line and not line.startswith(("//", ";;")))
    return hashlib.sha256(code.encode()).hexdigest()


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
