"""provenance: the processor, the code and the load, also where nobody says."""

import platform
import re
import subprocess
from pathlib import Path

from firsttoken import provenance

ROOT = Path(__file__).parents[1]


def test_the_processor_is_the_one_that_linux_names(monkeypatch, tmp_path):
    """The first of its cores; elsewhere what Python says, and at least the architecture."""
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(provenance, "Path", lambda _: info)
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert provenance.processor() == platform.machine() != ""
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert provenance.processor() == "arm"
    info.write_text("processor : 0\nmodel name\t: Some CPU \nprocessor: 1\nmodel name\t: Other\n")
    assert provenance.processor() == "Some CPU"
    info.write_text("Processor : ARMv8\n")
    assert provenance.processor() == "arm"


def test_the_commit_is_this_trees():
    said = provenance.commit()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    assert head.startswith(said.removesuffix("-dirty")) and bool(said) == bool(head)
    assert said == "" or re.fullmatch(r"[0-9a-f]{12}(-dirty)?", said)


def test_no_git_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() == ""


def test_the_load_is_a_number_or_unknown(monkeypatch):
    monkeypatch.setattr(provenance.os, "getloadavg", lambda: (1.5, 2.5, 3.5), raising=False)
    assert provenance.load_average() == 1.5
    monkeypatch.delattr(provenance.os, "getloadavg")
    assert provenance.load_average() is None
