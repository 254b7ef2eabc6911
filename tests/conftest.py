"""Settings that every test shares.

The variables are set before NumPy or PyTorch is imported, and the notebooks' kernels inherit them:
one thread gives the same rounding on every machine, no test may ask a model hub for a file, and a
claim of a chapter that does not hold is an error.
"""

import os
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import settings
from jupyter_client.manager import KernelManager
from xdist.scheduler import LoadFileScheduling

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

# A failure must come back on the next run, so the everyday profile draws the same inputs each time.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("everyday", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile("everyday")


CHAPTER_RUN = "::test_chapter_runs["


class ByFileAndChapter(LoadFileScheduling):
    """A file's tests share what was slow to make and run in one process; a chapter shares nothing.

    Without this all notebooks would wait for each other in one process.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if CHAPTER_RUN in nodeid else super()._split_scope(nodeid)

    def schedule(self) -> None:
        """Begin with what takes minutes: at the end, one process would wait for the other."""
        super().schedule()
        for scope in [scope for scope in self.workqueue if CHAPTER_RUN in scope]:
            self.workqueue.move_to_end(scope, last=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log) -> ByFileAndChapter:
    """Spread the tests so when they run side by side."""
    return ByFileAndChapter(config, log)


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
