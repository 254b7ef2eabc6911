"""provenance: the processor, the code and the load, also where nobody says."""

import platform
import re
import subprocess
from pathlib import Path

import pytest

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


SOURCE = '''"""What it does."""

RATE = 0.5  # per second
"""What it is."""


def rate(n: int = 2) -> float:
    """Return it."""
    return f"{RATE * n}", b"two", ["one"]
'''


@pytest.mark.parametrize(
    ("old", "new", "is_code"),
    [
        ("What it does", "What it did", False),
        ("What it is", "What it was", False),
        ('    """Return it."""\n', "", False),
        ("  # per second", "", False),
        ("\n\n\n", "\n\n\n# So:\n", False),
        ("0.5", "0.50", False),  # the same number
        ('["one"]', '[\n        "one",\n    ]', False),
        ("0.5", "0.25", True),
        ("n: int = 2", "n: int = 3", True),
        ("RATE * n", "RATE / n", True),
        ('b"two"', '"two"', True),
        ('["one"]', "[]", True),
        ('["one"]', "None", True),
        ("def rate", "def rates", True),
        ("    return", "    yield", True),
    ],
)
def test_a_digest_is_that_of_the_code_alone(tmp_path, old, new, is_code):
    digests = []
    for source in (SOURCE, SOURCE.replace(old, new)):
        (tmp_path / "rate.py").write_text(source, "utf-8")
        digests.append(provenance.code_digest(["rate.py"], tmp_path)["rate.py"])
    assert old in SOURCE and (digests[0] != digests[1]) == is_code


def test_a_digest_is_the_same_with_every_python(tmp_path):
    """Kept as found by the first version, so that a newer one says if its trees are others."""
    (tmp_path / "rate.py").write_text(SOURCE, "utf-8")
    assert provenance.code_digest(["rate.py"], tmp_path) == {
        "rate.py": "667ba59f22d2a71346e61c4bd2dc1d321741a8330243e1429bd9d3c46004676d"
    }


def test_a_digest_of_another_language_leaves_out_lines_of_comment(tmp_path):
    def digest(name: str, source: str) -> str:
        (tmp_path / name).write_text(source, "utf-8")
        return provenance.code_digest([name], tmp_path)[name]

    script = digest("a.js", "// Twice.\nconst n = 2;\n")
    assert script == digest("a.js", "\n  // As often.\nconst n = 2;")
    assert script != digest("a.js", "// Twice.\nconst n = 3;\n")
    kernel = digest("a.wat", ";; Two.\n(i32.const 2)\n")
    assert kernel == digest("a.wat", "(i32.const 2)\n") != digest("a.wat", "(i32.const 3)\n")


def test_the_load_is_a_number_or_unknown(monkeypatch):
    monkeypatch.setattr(provenance.os, "getloadavg", lambda: (1.5, 2.5, 3.5), raising=False)
    assert provenance.load_average() == 1.5
    monkeypatch.delattr(provenance.os, "getloadavg")
    assert provenance.load_average() is None
