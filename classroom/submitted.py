"""What a student handed in: COURSE/submitted/STUDENT/TOPIC, read as what it may be: anything."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import nbformat
from marking import mark, same
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from pictures import pictures

MAX_FILE = 20 * 2**20  # bytes of a submitted notebook
MAX_CELLS = 1000
MAX_LISTS = 1_000_000  # lists and objects in the file: each takes some 90 bytes of memory
MAKE = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}


class Unreadable(Exception):
    """There is no notebook that could be run; the message says why."""


def shown(name: str) -> str:
    """Return a file's name as a text that every file and terminal can hold."""
    return name if name.isprintable() else ascii(name)[1:-1]


def content(path: Path, limit: int = MAX_FILE) -> bytes:
    """Return what a submitted file holds, if it is a plain file and no way to another one."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(f"{shown(path.name)} cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        # Before it becomes a file of Python's: a folder cannot.
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(f"{shown(path.name)} is no plain file")
        if status.st_size > limit:
            raise Unreadable(f"{shown(path.name)} has {status.st_size} bytes, more than {limit}")
        with open(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)


def chosen(folder: Path, topic: str) -> Path:
    """Return which file of a folder STUDENT/TOPIC is read: TOPIC.ipynb, or its only notebook."""
    path = folder / f"{topic}.ipynb"
    for part in (folder.parent, folder, path):
        if part.is_symlink():
            raise Unreadable(f"{shown(part.name)} is a symbolic link")
    if not path.exists():
        # A browser that downloads it once more names it `topic (1).ipynb`.
        others = sorted(folder.glob("[!.]*.ipynb"))  # macOS puts a `._` file beside each
        if len(others) != 1:
            found = [other.name for other in others] or "no notebook at all"
            raise Unreadable(f"there is no {topic}.ipynb, but {found}")
        path = others[0]
    return path


def beside(folder: Path, topic: str) -> list[str]:
    """Return the names of notebooks that are not read, because TOPIC.ipynb is there."""
    if not (folder / f"{topic}.ipynb").exists():
        return []
    return sorted(path.name for path in folder.glob("[!.]*.ipynb") if path.stem != topic)


def moment(folder: Path) -> tuple[str, str]:
    """Return when the work was handed in, as nbgrader wrote it down, and what is wrong with that.

    Both are empty where there is no timestamp.txt.
    """
    path = folder / "timestamp.txt"
    if not os.path.lexists(path):
        return "", ""
    try:
        text = content(path, 100).decode(errors="replace").strip()
        said = f"timestamp.txt says {shown(text)!r}"
        if re.fullmatch(r"[0-9-]{10} [0-9:]{8}([.][0-9]{1,6})? UTC", text):
            when = datetime.fromisoformat(text.removesuffix(" UTC"))
            return when.replace(tzinfo=UTC).isoformat(), ""
    except Unreadable as unreadable:
        said = str(unreadable)
    except ValueError:
        pass  # the 99th of a month
    return "", f"{said}; expected YYYY-MM-DD HH:MM:SS UTC: counted as in time"


@dataclass(frozen=True)
class HandIn:
    """What a student handed in for a topic: a notebook's bytes, or why there is none to read."""

    data: bytes = b""
    name: str = ""  # of the file
    beside: list[str] = field(default_factory=list)  # notebooks that are not read
    problem: str = ""
    submitted: str = ""  # ISO 8601; empty where nobody knows when
    untimed: str = ""  # why timestamp.txt does not say when

    @property
    def fingerprint(self) -> str:
        """What changes when the work does; not with its date."""
        # The report names these files, so its words must not outlive them.
        words = repr((self.name, self.beside, self.problem))
        return hashlib.sha256(self.data + words.encode(errors="replace")).hexdigest()


def handed_in(folder: Path, topic: str) -> HandIn:
    """Read what lies in a folder STUDENT/TOPIC."""
    submitted, untimed = moment(folder)
    try:
        path = chosen(folder, topic)
        data = content(path)
    except Unreadable as unreadable:
        return HandIn(problem=str(unreadable), submitted=submitted, untimed=untimed)
    others = beside(folder, topic)
    return HandIn(data, path.name, others, submitted=submitted, untimed=untimed)


def taken(cell: dict) -> nbformat.NotebookNode:
    """Return a cell made anew of what grading reads: its text, its mark, the pictures it shows."""
    source, metadata = cell.get("source", ""), cell.get("metadata")
    marked = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = marked.get("grade_id") if isinstance(marked, dict) else None
    found = {"nbgrader": {"grade_id": grade_id}} if isinstance(grade_id, str) else {}
    text = "".join(source) if isinstance(source, list) else source
    made = MAKE[cell["cell_type"]](text, metadata=nbformat.from_dict(found))
    if cell["cell_type"] == "markdown" and (attached := pictures(cell)):
        made["attachments"] = nbformat.from_dict(attached)
    return made


def parsed(data: bytes) -> nbformat.NotebookNode:
    """Return the cells in a submitted file.

    All else in it is left alone: to validate what a student can make long takes minutes.
    """
    if not data.strip():
        raise Unreadable("the file is empty")
    if data.count(b"[") + data.count(b"{") > MAX_LISTS:
        raise Unreadable(f"the file has more than {MAX_LISTS} brackets: its outputs must go")
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Unreadable("the file is no notebook: it is not JSON") from None
    cells = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(cells, list):
        said = "it has no list of cells, as notebooks of format 4 have"
        raise Unreadable(f"the file is no valid notebook: {said}")
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"the notebook has {len(cells)} cells, more than {MAX_CELLS}")
    try:
        notebook = nbformat.from_dict({"cells": [taken(cell) for cell in cells]})
    except Exception as error:  # whatever stands there in place of a cell
        raise Unreadable(f"the file is no valid notebook: {type(error).__name__}") from None
    if not any(mark(cell) for cell in notebook.cells):
        raise Unreadable("no cell has its mark: was it exported or pasted into a new notebook?")
    return notebook


def brought_up_to_date(
    submitted: nbformat.NotebookNode,
    present: nbformat.NotebookNode,
    earlier: Iterable[nbformat.NotebookNode],
) -> None:
    """Put the `present` release's text where cells stand as an `earlier` release handed them out.

    So work on an assignment that was corrected later is no edit of it, and a stub stays a stub.
    """
    ours = {mark(cell)["grade_id"]: cell for cell in present.cells if mark(cell)}
    unmarked = {cell.source for cell in present.cells if not mark(cell)}
    for release in earlier:
        given = {mark(cell)["grade_id"]: cell for cell in release.cells if mark(cell)}
        texts = {cell.source for cell in release.cells if not mark(cell)} - unmarked
        kept = []
        for cell in submitted.cells:
            grade_id = mark(cell).get("grade_id")
            if grade_id in given and same(cell, given[grade_id]):
                if grade_id not in ours:
                    continue  # the correction took it out
                cell.source, cell.cell_type = ours[grade_id].source, ours[grade_id].cell_type
            elif grade_id is None and cell.cell_type == "markdown" and cell.source in texts:
                continue
            kept.append(cell)
        new = set(ours) - set(given) - {mark(cell).get("grade_id") for cell in kept}
        submitted.cells = [*kept, *(cell for name, cell in ours.items() if name in new)]
