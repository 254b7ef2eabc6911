"""What is written beside a measured figure: which processor, which code, how busy."""

import os
import platform
import re
import subprocess
from pathlib import Path


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


def load_average() -> float | None:
    """Return how many programs wanted to run in the last minute; None where nobody counts."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def in_file_name(machine: str) -> str:
    """Return a machine's name as file names carry it.

    >>> in_file_name("AMD EPYC, 2 threads")
    'amd-epyc-2-threads'
    """
    return re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
