"""Mutation testing: which tests count, what is stored, and a run that finds what it should."""

import json
import shutil
import subprocess
import sys
import tomllib

import pytest

import mutants

STORED = {path.stem: path for path in sorted(mutants.STORED.glob("*.json"))}


@pytest.mark.parametrize("module", mutants.modules())
def test_every_module_has_tests_of_its_own(module):
    assert mutants.own_tests(module) and mutants.sources(module)


def test_a_longer_name_or_a_program_is_not_the_module_s():
    def names(module):
        return [path.name for path in mutants.own_tests(module)]

    assert names("engine") == ["test_engine.py", "test_engine_batch.py", "test_engine_requests.py"]
    assert names("engine_cost") == ["test_engine_cost.py"]
    assert names("measure") == ["test_measure.py"]
    assert "test_gguf.py" in names("quantization")


@pytest.mark.parametrize("module", STORED)
def test_nine_of_ten_mutants_were_killed(module):
    report = json.loads(STORED[module].read_text("utf-8"))
    n = report["mutants"] - report["equivalent"]
    assert report["killed"] + len(report["survived"]) == n
    assert report["killed"] >= mutants.WANTED * n
    assert set(report["outcomes"]) <= {"killed", "timeout", "survived", "no tests", "segfault"}


def test_what_cannot_be_killed_has_a_reason_and_is_known():
    listed = tomllib.loads(mutants.EQUIVALENT.read_text("utf-8"))
    assert set(listed) <= set(mutants.modules())
    for each in [each for listing in listed.values() for each in listing]:
        assert set(each) == {"function", "old", "new", "reason"} and len(each["reason"]) > 10


def test_counts():
    """An equivalent one is neither killed nor a hole; one that nothing tests is a hole."""
    one = {"function": "paging.f", "old": "a", "new": "b"}
    two = {"function": "paging.f", "old": "a", "new": "c"}
    found = {"m1": "killed", "m2": "timeout", "m3": "survived", "m4": "no tests"}
    report = mutants.judge(found, {"m3": one, "m4": two}, {})
    assert report["survived"] == [one, two] and report["score"] == 0.5
    known = {tuple(one.values()): "nothing reads it"}
    report = mutants.judge(found, {"m3": one, "m4": two}, known)
    assert report["survived"] == [two] and report["equivalent"] == 1
    assert report["score"] == pytest.approx(2 / 3, abs=1e-4)


def test_a_hole_is_found(tmp_path, monkeypatch):
    """A library of two functions, of which the tests look at one."""
    for name in ("lib/firsttoken", "tests/mutants"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib/firsttoken/__init__.py").touch()
    (tmp_path / "lib/firsttoken/small.py").write_text(
        "def seen(a):\n    return a + 1\n\n\ndef unseen(a):\n    return a * 2\n"
    )
    (tmp_path / "tests/test_small.py").write_text(
        "from firsttoken.small import seen, unseen\n\n\n"
        "def test_it():\n    assert seen(1) == 2 and unseen(2) > 0\n"
    )
    (tmp_path / "tests/mutants/equivalent.toml").touch()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = ["-q"]\n')
    shutil.copyfile(mutants.__file__, tmp_path / "tests/mutants.py")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    program = [sys.executable, "tests/mutants.py", "small"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert "small.unseen\n  - return a * 2\n  + return a / 2" in done.stdout, done.stderr
    assert "seen\n  - return a + 1" not in done.stdout
    assert done.returncode == 1 and done.stdout.endswith("killed, 50.0%\n")
