"""Settings that every test shares.

The variables are set before NumPy or PyTorch is imported, and the notebooks' kernels inherit them:
one thread gives the same rounding on every machine, no test may ask a model hub for a file, and a
claim of a chapter that does not hold is an error.
"""

import functools
import itertools
import os
import random
import sys
import tempfile
import uuid
from pathlib import Path

import nbval.plugin
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from jupyter_client.manager import KernelManager
from xdist.scheduler import LoadFileScheduling

from judged import cells_and_exercises

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["FIRSTTOKEN_CLAIMS"] = "raise"

# A kernel is told TCP ports that were free a moment ago; with tests side by side, two kernels are
# told the same one now and then, and the second dies. Sockets in a folder of our own meet nobody.
SOCKETS = tempfile.TemporaryDirectory(prefix="ft-sockets-")
start_anywhere = KernelManager.__init__


def start_on_sockets(manager: KernelManager, *arguments, **named) -> None:
    own = Path(SOCKETS.name) / f"{uuid.uuid4().hex}.json"
    start_anywhere(manager, *arguments, **{"transport": "ipc", "connection_file": str(own)} | named)


KernelManager.__init__ = start_on_sockets

nbval.plugin.IPyNbFile.collect = cells_and_exercises

# A failure must come back on the next run, so the everyday profile draws the same inputs each time.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("everyday", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile("everyday")
# It also draws constants that it finds in whatever modules are loaded: what a test is given would
# depend on which tests ran before it in its process.
providers._get_local_constants = lambda: providers._local_constants


# These tests share nothing with those of another chapter or page, and take minutes all together.
BY_PARAMETER = ("/test_chapter_runs.py", "/test_pages.py", "/test_phone.py", "/test_sliders.py")


class ByFileAndPage(LoadFileScheduling):
    """A file's tests share what was slow to make and run in one process; a page is a file, too."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return file + "".join(nodeid.partition("[")[1:]) if file.endswith(BY_PARAMETER) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log) -> ByFileAndPage:
    """Spread the tests so when they run side by side."""
    return ByFileAndPage(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle files, and tests in them, when `make steady` asks; steps of a story stay in order."""
    if not (seed := os.environ.get("FIRSTTOKEN_SHUFFLE")):
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    draw = random.Random(seed)
    for path, tests in files.items():
        if path.suffix == ".py" and path.stem != "test_hub":
            draw.shuffle(tests)
    shuffled = list(files.values())
    draw.shuffle(shuffled)
    items[:] = itertools.chain(*shuffled)


def pytest_collection_finish() -> None:
    """Let nbgrader find its database's version once: a program says it, which takes seconds."""
    if api := sys.modules.get("nbgrader.api"):
        api.get_alembic_version = functools.cache(api.get_alembic_version)


@pytest.fixture(scope="session")
def sandboxed() -> None:
    """Skip a test that needs the sandbox where there is none; with FIRSTTOKEN_CI set, fail."""
    from sandbox import Refused, check

    try:
        check()
    except Refused as refused:
        if os.environ.get("FIRSTTOKEN_CI"):
            raise
        pytest.skip(str(refused))
