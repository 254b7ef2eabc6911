"""One attack of each kind earns nothing and harms nobody; all others are in proof/classroom.

What fills the memory or the output, or calls without end, is handed in by the class of
test_grading.py.
"""

import os
import re

import pytest

from check.grading.attempts import (
    ends_within_its_limits,
    flooded,
    patched,
    probed,
    side_by_side,
    tricked,
)
from proof.classroom.attacks import PROBES

pytestmark = pytest.mark.usefixtures("sandboxed")


def test_a_trick_of_each_family_earns_nothing():
    """A value, an error, words of the protocol, the judge's objects, the process."""
    tricks = ["always_equal", "an_error_that_cannot_be_said", "record_with_effects"]
    tricks += ["format_of_a_text", "frames"]
    found = tricked(tricks)
    assert not any(found.points.values()), found
    assert found.said.keys() == set(tricks)
    assert not re.search("not run|not asked|Traceback", " ".join(found.said.values())), found


def test_a_patched_notebook_earns_nothing():
    found = patched("expect")
    assert not any(found.points.values()), found
    assert found.said.keys() == {"double_tests", "scale_tests"}


def test_processes_and_time_end_within_their_limits():
    floods = ["forks", "sleeping"]
    for name, found in side_by_side({name: (flooded, name) for name in floods}).items():
        ends_within_its_limits(name, found)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_the_sandbox_refuses():
    for run in probed():
        found = dict(re.findall(r"PROBE (.+?) \| (.*)", run.output))
        assert found.keys() == PROBES.keys(), run
        opened = {name: said for name, said in found.items() if not said.startswith("refused")}
        assert opened == {}
