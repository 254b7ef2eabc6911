"""provenance: the processor, the code and the load, also where nobody says."""

import os
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


@pytest.mark.parametrize(
    ("flags", "said"),
    [("fpu avx avx2", "AVX2"), ("avx2 avx512f amx_tile", "AVX-512, AMX"), ("fpu", "")],
)
def test_instruction_sets_are_those_that_products_use(monkeypatch, tmp_path, flags, said):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(provenance, "Path", {"/proc/cpuinfo": info}.__getitem__)
    assert provenance.instruction_sets() == ""
    info.write_text(f"model name\t: Some CPU\nflags\t\t: {flags}\n")
    assert provenance.instruction_sets() == said


def test_the_commit_is_this_trees(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # wherever a program is started
    said = provenance.commit()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    assert head.startswith(said.removesuffix("-dirty")) and bool(said) == bool(head)
    assert said == "" or re.fullmatch(r"[0-9a-f]{12}(-dirty)?", said)


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
        ('    """Return it."""\n', "", set()),
        ("  # per second", "", set()),
        ("0.5", "0.50", set()),  # the same number
        ('["one"]', '[\n        "one",\n    ]', set()),
        ("0.5", "0.25", {"RATE"}),
        ("n: int = 2", "n: int = 3", {"rate"}),
        ('b"two"', '"two"', {"rate"}),
        ("def rate", "async def rate", {"rate"}),
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


@pytest.mark.parametrize(("name", "comment"), [("step.js", "// as above"), ("step.wat", ";; so")])
def test_a_file_of_another_language_counts_whole_without_its_comments(tmp_path, name, comment):
    def digest(*lines):
        (tmp_path / name).write_text("\n".join(lines), "utf-8")
        return provenance.code_digest([name], tmp_path)

    plain = digest("one", "two")
    assert list(plain) == [name]
    assert digest("  one", "", comment, "two") == plain != digest("one", "three")


def test_a_module_is_found_by_its_name_and_a_package_with_all_its_files():
    sizes = provenance.code_digest(["kv_cache/sizes"])
    assert "kv_cache_bytes" in sizes and "KVCache" not in sizes
    assert sizes.items() < provenance.code_digest(["kv_cache"]).items()
    with pytest.raises(ValueError, match="got 'nothing'"):
        provenance.code_digest(["nothing"])


def test_each_name_has_the_digest_of_each_file_that_defines_it(tmp_path):
    (tmp_path / "one.py").write_text("n: int = 3\nm = 1")
    (tmp_path / "two.py").write_text("m = 2")
    (tmp_path / "three.py").write_text("m = 1")
    found, alone = (
        provenance.code_digest(names, tmp_path)
        for names in (["one.py", "two.py", "three.py"], ["one.py"])
    )
    assert set(found) == {"n", "m"} and found["n"] == alone["n"]
    other = provenance.code_digest(["two.py"], tmp_path)["m"]
    assert found["m"] == " ".join(sorted([alone["m"], other]))


def test_without_git_there_is_no_commit(monkeypatch):
    def missing(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert provenance.commit() == ""


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="nobody counts here")
def test_the_load_is_that_of_the_last_minute(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 2.5, 3.5))
    assert provenance.load_average() == 1.5
