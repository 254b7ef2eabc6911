"""provenance: the processor, the code and the load, also where nobody says."""

import hashlib
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
    monkeypatch.setattr(provenance, "Path", {"/proc/cpuinfo": info}.__getitem__)
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


def test_the_commit_does_not_depend_on_where_a_program_runs(monkeypatch, tmp_path):
    here = provenance.commit()
    monkeypatch.chdir(tmp_path)
    assert provenance.commit() == here


def test_outside_of_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nothing"))
    assert provenance.commit() == ""


def test_no_git_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() == ""


SOURCE = '''"""What it does."""
import math

RATE = 0.5  # per second
"""What it is."""


def rate(n: int = 2) -> float:
    """Return it."""
    return f"{RATE * n}", b"two", ["one"]


if __name__ == "__main__":
    print(rate())
'''


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("What it does", "What it did", set()),
        ("What it is", "What it was", set()),
        ('    """Return it."""\n', "", set()),
        ("  # per second", "", set()),
        ("\n\n\n", "\n\n\n# So:\n", set()),
        ("0.5", "0.50", set()),  # the same number
        ('["one"]', '[\n        "one",\n    ]', set()),
        ("import math", "from math import pi", set()),
        ("0.5", "0.25", {"RATE"}),
        ("RATE = 0.5", "RATE: float = 0.5", {"RATE"}),
        ("n: int = 2", "n: int = 3", {"rate"}),
        ("RATE * n", "RATE / n", {"rate"}),
        ('b"two"', '"two"', {"rate"}),
        ('["one"]', "[]", {"rate"}),
        ('["one"]', "None", {"rate"}),
        ("def rate", "async def rate", {"rate"}),
        ("    return", "    yield", {"rate"}),
        ("def rate", "def rates", {"rate", "rates"}),
    ],
)
def test_a_digest_is_that_of_the_code_alone(tmp_path, old, new, changed):
    digests = []
    for source in (SOURCE, SOURCE.replace(old, new)):
        (tmp_path / "rate.py").write_text(source, "utf-8")
        digests.append(provenance.code_digest(["rate.py"], tmp_path))
    then, now = digests
    assert old in SOURCE and set(then) == {"RATE", "rate"}
    assert {name for name in then | now if then.get(name) != now.get(name)} == changed


def test_what_moves_stays_and_a_name_in_two_files_has_both_digests(tmp_path):
    def digest(**files: str) -> dict[str, str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, source in files.items():
            path = folder / "lib" / "firsttoken" / "small" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, "utf-8")
        return provenance.code_digest(["small"], folder)

    one, two = "def f():\n    return 1\n", "def f():\n    return 2\n"
    more = "__all__ = ['g']\nclass g:\n    n = 1\n"
    together = digest(a=one + more)
    assert together == digest(b=one, c=more) == {**digest(a=one), **digest(a=more)}
    assert digest(a=one, b=two)["f"] == " ".join(sorted([digest(a=one)["f"], digest(b=two)["f"]]))
    assert digest(a=one, b=one) == digest(a=one)


def test_modules_packages_folders_and_paths_have_names():
    module = provenance.code_digest(["provenance"])
    assert {"code_digest", "REPOSITORY"} <= set(module)
    assert module == provenance.code_digest(["lib/firsttoken/provenance.py"], ROOT)
    assert "GGUF" in "".join(provenance.code_digest(["quantization"])).upper()
    assert {"llama.js", "kernel.wat"} <= set(provenance.code_digest(["live/engine"]))
    with pytest.raises(ValueError, match=r"names must be of modules.*got 'nothing'"):
        provenance.code_digest(["nothing"])


def test_a_digest_is_the_same_with_every_python(tmp_path):
    """Kept as found by the first version, so that a newer one says if its trees are others."""
    (tmp_path / "rate.py").write_text(SOURCE, "utf-8")
    assert provenance.code_digest(["rate.py"], tmp_path) == {
        "RATE": "b41a9d6fa3f904c9",
        "rate": "347a4927cc217425",
    }


def test_a_digest_of_another_language_leaves_out_lines_of_comment(tmp_path):
    def digest(name: str, source: str) -> str:
        (tmp_path / name).write_text(source, "utf-8")
        return provenance.code_digest([name], tmp_path)[name]

    script = digest("a.js", "// Twice.\nconst n = 2;\n")
    assert script == digest("a.js", "\n  // As often.\nconst n = 2;")
    assert script != digest("a.js", "// Twice.\nconst n = 3;\n")
    lines = digest("b.js", "f();\n\n// Then:\n  g();\n")
    assert lines == hashlib.sha256(b"f();\ng();").hexdigest()[:16]
    kernel = digest("a.wat", ";; Two.\n(i32.const 2)\n")
    assert kernel == digest("a.wat", "(i32.const 2)\n") != digest("a.wat", "(i32.const 3)\n")


def test_the_load_is_a_number_or_unknown(monkeypatch):
    monkeypatch.setattr(provenance.os, "getloadavg", lambda: (1.5, 2.5, 3.5), raising=False)
    assert provenance.load_average() == 1.5
    monkeypatch.delattr(provenance.os, "getloadavg")
    assert provenance.load_average() is None


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-r-xeon-r-cpu-2-20ghz"),
        ("(arm64)", "arm64"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("Max Ωmega", "max-mega"),
    ],
)
def test_a_file_name_has_small_letters_digits_and_single_dashes(machine, name):
    assert provenance.in_file_name(machine) == name
