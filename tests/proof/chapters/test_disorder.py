"""A kernel that was restarted: after the first cell a section works, or says what it lacks.

Who does what the sentence says gets on.
"""

import html
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from firsttoken.page.exercises.missing import Cell, definitions, read_cells
from test_chapters import APPENDICES, NOTEBOOKS, read, sections

CELL_S = 600
SAID = re.compile(
    r"`(\w+)` is not defined yet\. A cell under “(.+)” defines it:\s+(.+)\s+Run that.*"
)
KEEP = "_tools = dict(globals())"
# As a restart and the first cell would leave it; what the library has loaded it keeps.
RESTART = (
    "(lambda names, tools: (names.clear(), names.update(tools, _tools=tools)))(globals(), _tools)"
)


class Kernel:
    """A kernel that is asked as JupyterLab asks it: it hears which cell it runs."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client

    def complaints(self, source: str, cell_id: str = "") -> list[str]:
        """Return what a cell that runs complains of: its error, and those of its figures."""
        message = self.client.session.msg(
            "execute_request",
            {"code": source, "silent": False, "store_history": True, "user_expressions": {}},
            metadata={"cellId": cell_id},
        )
        self.client.shell_channel.send(message)
        found = []
        while True:
            said = self.client.get_iopub_msg(timeout=CELL_S)
            if said["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            content = said["content"]
            if said["msg_type"] == "error":
                found.append("\n".join(content["traceback"]))
            elif said["msg_type"] in ("comm_open", "comm_msg"):
                state = content["data"].get("state", {})
                figure = re.search(
                    r'<pre class="ft-error".*?>(.*)</pre>', str(state.get("value")), re.S
                )
                found += [html.unescape(figure[1])] if figure else []
            elif said["msg_type"] == "status" and content["execution_state"] == "idle":
                return found


@contextmanager
def kernel_of(path: Path, **env: str) -> Iterator[Kernel]:
    """A kernel beside a notebook, which has run the first cell of it."""
    first = read_cells(path.read_text("utf-8"))[0]
    manager, client = start_new_kernel(cwd=str(path.parent), env=os.environ | env)
    try:
        kernel = Kernel(client)
        assert kernel.complaints(first.source, first.id) == []
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def named(cells: list[Cell], complaint: str) -> Cell:
    """Return the cell that a sentence names; anything but a sentence fails."""
    said = SAID.fullmatch(complaint)
    assert said, complaint
    name, heading, line = said.groups()
    return next(
        cell
        for cell in reversed(cells)
        if cell.heading == heading and definitions(cell.source).get(name) == line.strip()
    )


def run_with_what_it_lacks(kernel: Kernel, cells: list[Cell], cell: Cell) -> list[str]:
    """Run a cell, and each time that it lacks something the cell which that names; return which."""
    needed = []
    while complaints := kernel.complaints(cell.source, cell.id):
        above = cells[: cells.index(cell)]
        other = named(above, complaints[0])
        assert other.id not in needed, f"{cell.id} still lacks what {other.id} defines"
        needed += [*run_with_what_it_lacks(kernel, above, other), other.id]
    return needed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", NOTEBOOKS + APPENDICES, ids=lambda path: path.stem)
def test_a_section_works_after_the_first_cell_or_says_what_it_lacks(path):
    """Up to the first thing that it lacks, and what that needs; thoroughly, to its end."""
    thorough = "FIRSTTOKEN_THOROUGH" in os.environ
    chapter, cells = read(path), read_cells(path.read_text("utf-8"))
    with kernel_of(path, JPY_SESSION_NAME=str(path)) as kernel:
        assert kernel.complaints(KEEP) == []
        for title in sections(chapter):
            ids = {cell.id for cell in chapter.section(title)}
            assert kernel.complaints(RESTART) == []
            for cell in cells[1:]:
                lacked = run_with_what_it_lacks(kernel, cells, cell) if cell.id in ids else []
                if lacked and not thorough:
                    break


def test_another_error_keeps_its_traceback():
    """So does every error where nobody says which notebook runs: in the tests, for the site."""
    path = NOTEBOOKS[4]
    with kernel_of(path, JPY_SESSION_NAME=str(path)) as kernel:
        for source in ("modell", "1 / 0", "np.zeros(3)[0](1)"):
            (complaint,) = kernel.complaints(source)
            assert "Traceback" in complaint
    with kernel_of(path) as kernel:
        (complaint,) = kernel.complaints("model")
        assert "Traceback" in complaint and "NameError" in complaint
