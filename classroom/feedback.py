"""Feedback: what a student may see of a graded notebook, and nbgrader's page of it.

`closed` makes the notebook that Formgrader and the feedback page show: no hidden test, what
students wrote as text, and nothing that takes a page's maker long. `write_feedback` makes the pages
of what has changed, each in a process of its own with limits of time, memory and size: a notebook
that breaks them costs only its own page.
"""

import contextlib
import copy
import dataclasses
import errno
import gc
import hashlib
import html
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import nbconvert
import nbformat
import nbgrader
from course import of_disk, write_whole
from marking import is_test, mark, release
from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.converters import GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearHiddenTests
from pictures import IMAGE, MAX_BYTES, MAX_PICTURES, MAX_PIXELS, pasted, picture
from traitlets.config import Config

# ── What a student may see ────────────────────────────────────────────────────────────────────────

# Characters on one page: of the text and the code that a student wrote, and of what the code said.
MAX_SHOWN = {"markdown": 20_000, "code": 50_000, "output": 200_000}
MAX_SHOWN_PICTURES = 8 * 2**20  # bytes on one page
MAX_LINE = 500  # characters of code: to colour a longer line can take a minute
MAX_SAID = 1_000  # characters of what a test says
CUT = "… (cut: too long for a page)"
LEFT_OUT = (
    f"(A picture is left out. A page shows at most {MAX_PICTURES} for an answer, PNG or JPEG, "
    f"up to {MAX_BYTES // 2**20} MB and {MAX_PIXELS // 10**6} megapixels.)"
)
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x9b")
# What steers a terminal or the direction of text, halves of characters, and what is none at all.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufeff\ufffe\uffff\U000e0000-\U000e007f]"
)
FILE_NAME = re.compile(r"image|alt text|\S+\.(?:png|jpe?g)", re.I)  # what editors put there
# The name of a language behind a fence; back-ticks that close on their line are no fence.
LANGUAGE = re.compile(
    r"(?:(?<=~~~)(?=[ \t]*[^\s~])|(?<=```)(?=[ \t]*[^\s`][^\n`]*$))[ \t]*+(?!python\b)", re.M
)


def clean(text: str) -> str:
    """Return a text without colours of a terminal, control characters and turns of direction."""
    return UNSEEN.sub("", ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def as_text(text: str) -> str:
    """Return markdown without tags, links and languages of code.

    `javascript:` in a link would run for the teacher; some languages take a minute to colour.
    """
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", clean(text))
    return LANGUAGE.sub("\n", re.sub(r"\](?=[(:])", "] ", text))


def with_pictures(text: str, attachments: dict) -> tuple[str, dict]:
    """Return markdown as text, with the pictures that `attachments` holds, and their bytes.

    They come from `pictures`; any other picture is named as left out.
    """
    said, found, place = [], {}, 0
    for match in IMAGE.finditer(text):
        name = pasted(match["data"]) if match["data"] is not None else match["name"]
        kinds = attachments.get(name) or attachments.get(unquote(name)) or {}
        said.append(as_text(text[place : match.start()]))
        place = match.end()
        if not kinds:
            said.append(LEFT_OUT)
            continue
        ((kind, data),) = kinds.items()
        name = f"{pasted(data)}.{kind.removeprefix('image/')}"
        found[name] = kinds
        alt = " ".join(re.findall(r"[\w.,'+-]+", clean(match["alt"])))[:200]
        if not alt or FILE_NAME.fullmatch(alt):
            alt = "Picture in the answer"
        said.append(f"![{alt}](attachment:{name})")
    said.append(as_text(text[place:]))
    return "".join(said), found


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, and that it is one."""
    return text if len(text) <= most else f"{text[:most]}\n{CUT}"


def as_code(source: str) -> str:
    """Return code that is coloured fast: no long lines, no other language by a cell magic."""
    lines = [
        line if len(line) <= MAX_LINE else line[:MAX_LINE] + CUT for line in source.split("\n")
    ]
    magic = ["# a cell in another language:"] if source.lstrip().startswith("%%") else []
    return "\n".join(magic + lines)


def verdict(part: dict) -> str:
    """Return what a student reads about a part of a test cell."""
    name = f"{part['name']}: " if part["name"] else ""
    if part["earned"] is None:
        got = f"not graded, of {part['points']:g} points. Your teacher will look at it."
    else:
        got = f"{part['earned']:g} of {part['points']:g} points"
    said = f"\n    {clean(part['said'])[:MAX_SAID]}" if part["said"] else ""
    return f"{name}{got}{said}\n"


def shown(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """Return an output as plain text or a picture."""
    if output.output_type == "stream":
        return new_output("stream", name=output.name, text=clean(output.text))
    if output.output_type == "error":
        said = f"{output.ename}: {output.evalue}"
        text = "\n".join(output.traceback) or said
        return new_output("stream", name="stderr", text=clean(text))
    data = picture(output.data.get("image/png") or output.data.get("image/jpeg"))
    if data:
        return new_output("display_data", data=data)
    return new_output("stream", name="stdout", text=clean(output.data.get("text/plain", "")))


def closed(notebook: nbformat.NotebookNode, source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a judged notebook that students may see: no hidden test, no trace of one.

    Of a test cell only its parts stay, as `executed` left them in its metadata:
    {"parts": [{"name", "points", "earned": points or None if not graded, "said": what failed}]}.
    No process of the student's ever held a hidden test, so what their own cells printed is safe.
    Text that students wrote is shown as text: a page that opens it runs nothing.
    """
    notebook, _ = ClearHiddenTests().preprocess(copy.deepcopy(notebook), {})
    room = MAX_SHOWN | {"picture": MAX_SHOWN_PICTURES}

    def fitting(text: str, kind: str) -> str:
        left = room[kind]
        room[kind] = max(0, left - len(text))
        return cut(text, left)

    ours = {cell.source for cell in release(source).cells}
    for cell in notebook.cells:
        if not mark(cell).get("locked") and cell.source not in ours:
            if cell.cell_type == "markdown":
                text, found = with_pictures(cell.source, cell.pop("attachments", {}))
                cell.source = fitting(text, "markdown")
                for name, kinds in found.items():
                    room["picture"] -= sum(map(len, kinds.values())) * 3 // 4
                    if room["picture"] >= 0 and f"(attachment:{name})" in cell.source:
                        cell.setdefault("attachments", nbformat.NotebookNode())[name] = kinds
                    else:
                        cell.source = re.sub(
                            rf"!\[[^]]*\]\(attachment:{name}\)", LEFT_OUT, cell.source
                        )
            else:
                cell.source = fitting(as_code(clean(cell.source)), "code")
        if is_test(cell):
            parts = cell.metadata.pop("parts", None)
            said = "Not graded. Your teacher will look at it.\n"
            if parts is not None:
                said = "".join(map(verdict, parts))
            cell.outputs = [new_output("stream", text=said)]
            continue
        outputs = []
        for output in map(shown, cell.get("outputs", [])):
            if output.output_type == "stream" and room["output"]:
                output.text = fitting(output.text, "output")
                outputs.append(output)
            elif output.output_type == "display_data":
                room["picture"] -= sum(map(len, output.data.values())) * 3 // 4
                if room["picture"] >= 0:
                    outputs.append(output)
        if cell.cell_type == "code":
            cell.outputs = outputs
    return notebook


# ── nbgrader's page of it ─────────────────────────────────────────────────────────────────────────


# What nbgrader's page lacks: it is made for wide light screens.
STYLE = """<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { background: white; }
h4, .panel-heading, .inner_cell, li { overflow-wrap: anywhere; }
.prompt { display: none !important; } /* always "In [ ]:" */
.container { max-width: 70em; }
/* The heading holds the score, which floats, and may take two lines. */
div.nbgrader_cell .panel-heading { height: auto; overflow: hidden; }
div.nbgrader_cell .panel-heading .pull-right { line-height: 25px; }
div.nbgrader_cell .panel-heading a { color: inherit; text-decoration: underline; }
.panel-body { clear: both; }
.input, .inner_cell, div.nbgrader_cell { min-width: 0; width: 100%; }
.output_area pre { white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal; }
.anchor-link { display: none; }
.input_area, .highlight, .rendered_html pre { max-width: 100%; overflow-x: auto; }
.rendered_html table { display: block; max-width: 100%; overflow-x: auto; }
img { max-width: 100%; height: auto; }
@media (max-width: 600px) {
  .container, .panel-body, div.cell { padding-left: 4px !important; padding-right: 4px !important; }
}
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: light; filter: invert(0.9) hue-rotate(180deg); }
  img { filter: hue-rotate(180deg) invert(1); } /* as it was */
}
</style>
"""


@dataclasses.dataclass(frozen=True)
class PageLimits:
    """What making one page may take."""

    seconds: int = 20
    memory_bytes: int = 512 * 2**20  # beyond what the program itself needs
    page_bytes: int = 20 * 2**20


NO_ROOM = "the disk takes no more"


class Page(NamedTuple):
    """A page to make: of which notebook, where, and what the gradebook says about its cells."""

    notebook: str
    path: str
    # "student", "score", "max_score" and "late_penalty"; "cells" holds "score", "points", "comment"
    said: dict
    fingerprint: str


def marks(url: str) -> dict[tuple[str, str], dict]:
    """Return what a gradebook says for (student, topic), in three questions for a whole course."""
    found: dict[tuple[str, str], dict] = {}
    owner = (SubmittedAssignment.student_id, Assignment.name)
    with Gradebook(url) as gradebook:

        def ask(kind: Any, *what: Any) -> Iterator:
            query = gradebook.db.query(*owner, *what).select_from(kind)
            if kind is not SubmittedNotebook:
                query = query.join(BaseCell, kind.cell_id == BaseCell.id)
                query = query.join(SubmittedNotebook, kind.notebook_id == SubmittedNotebook.id)
            query = query.join(
                SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id
            )
            yield from query.join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)

        for student, topic, score, total, penalty in ask(
            SubmittedNotebook,
            SubmittedNotebook.score,
            SubmittedNotebook.max_score,
            SubmittedAssignment.late_submission_penalty,
        ):
            penalty = penalty or 0
            found[student, topic] = {
                "score": score - penalty,
                "max_score": total,
                "late_penalty": penalty,
                "cells": {},
            }
        for student, topic, name, score, total in ask(
            Grade, BaseCell.name, Grade.score, Grade.max_score
        ):
            cell = found[student, topic]["cells"].setdefault(name, {})
            cell |= {"score": score, "points": total}
        for student, topic, name, comment in ask(Comment, BaseCell.name, Comment.comment):
            found[student, topic]["cells"].setdefault(name, {})["comment"] = comment
    return found


def exporter() -> HTMLExporter:
    """Return what makes a page of a notebook, set up as nbgrader sets it up."""
    config = Config()
    config.HTMLExporter.sanitize_html = True
    settings = GenerateFeedback(coursedir=CourseDirectory(config=config), config=config)
    maker = HTMLExporter(parent=settings, config=settings.config)
    maker.register_preprocessor(CSSHTMLHeaderPreprocessor)
    return maker


def named(page: str, student: str) -> str:
    """Return nbgrader's page with our style, whose it is, and its tests by their names."""
    top, rest, below = page.partition('<div class="panel-body">')
    top = top.replace("</head>", f"{STYLE}</head>", 1)
    top = top.replace("<h4>", f'<p class="student">{html.escape(student)}</p>\n<h4>', 1)
    top = re.sub(r'(<a href="#([^"]+)">)Test cell</a>', r"\1\2</a>", top)
    return top + rest + below


def made(maker: HTMLExporter, notebook: nbformat.NotebookNode, topic: str, said: dict) -> str:
    """Return the page of a notebook with the points and comments of the gradebook."""
    for cell in notebook.cells:
        if mark(cell):
            nothing = {"score": 0, "points": 0, "comment": None}
            mark(cell).update(nothing | said["cells"].get(mark(cell)["grade_id"], {}))
    resources = {"nbgrader": {"notebook": topic, "assignment": topic} | said}
    return named(maker.from_notebook_node(notebook, resources)[0], said["student"])


def short(topic: str, said: dict, why: str) -> str:
    """Return a page with nothing but the points, for a notebook of which none could be made."""
    lines = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{cell['score'] or 0:g}</td>"
        f"<td>{cell['points'] or 0:g}</td><td>{html.escape(cell.get('comment') or '')}</td></tr>\n"
        for name, cell in said["cells"].items()
        if "points" in cell
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(topic)}</title></head><body>\n<h1>{html.escape(topic)}</h1>\n"
        f"<p>{html.escape(said['student'])}</p>\n"
        f"<p>Score: {said['score'] or 0:g} / {said['max_score'] or 0:g}</p>\n"
        f"<p>The page with your notebook could not be made: {html.escape(why)}. The points are not "
        "touched by this. Your teacher has your notebook.</p>\n"
        '<table><thead><tr><th scope="col">cell</th><th scope="col">points</th>'
        '<th scope="col">of</th><th scope="col">comment</th></tr></thead>\n'
        f"<tbody>{lines}</tbody></table></body></html>\n"
    )


def finished(path: Path, text: str, fingerprint: str) -> None:
    """Put a page in its place, whole or not at all, with what it was made of in its last line."""
    page = f"{text}\n<!-- {fingerprint} -->\n".encode(errors="replace")
    write_whole(path, page, 0o644)  # nbgrader hands it out with its mode: a student has to read it


def leave_short(page: Page, why: str, fingerprint: str) -> tuple[str, str]:
    """Put the short page in the place of one that could not be made; return whose it is."""
    path = Path(page.path)
    finished(path, short(path.stem, page.said, why), fingerprint)
    return path.parts[-3], path.parts[-2]


def held(path: Path) -> str:
    """Return what a page was made of; empty where there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 100))
        return file.read().decode(errors="replace").rpartition("<!-- ")[2].partition(" -->")[0]
    return ""


def pages(course: Path, url: str, rows: Iterable, limits: PageLimits) -> Iterator[Page]:
    """Yield the pages that are not there, or no longer say what notebook and gradebook say."""
    programs = f"{nbgrader.__version__} {nbconvert.__version__} {limits}".encode()
    programs += Path(__file__).read_bytes()
    said = marks(url)
    for row in rows:
        folder = course / "autograded" / row.student / row.topic
        notebook = folder / f"{row.topic}.ipynb"
        if (row.student, row.topic) not in said or not notebook.is_file():
            continue
        student = f"{row.name} ({row.student})" if row.name else row.student
        ours = said[row.student, row.topic] | {"student": clean(student)}
        digest = hashlib.sha256(programs + json.dumps(ours, sort_keys=True).encode())
        digest.update(notebook.read_bytes())
        path = course / "feedback" / row.student / row.topic / f"{row.topic}.html"
        # nbgrader releases a page under a name made from the secret that was handed in.
        for name in ("timestamp.txt", "submission_secret.txt"):
            if (folder / name).is_file():
                write_whole(path.with_name(name), (folder / name).read_bytes())
        if held(path) != digest.hexdigest():
            yield Page(str(notebook), str(path), ours, digest.hexdigest())


def write_feedback(
    course: Path, url: str, rows: Iterable, limits: PageLimits | None = None
) -> dict[tuple[str, str], str]:
    """Make the feedback page of each row whose notebook or points have changed, on all cores.

    A row says `student`, `name` (may be empty) and `topic`. Returns {(student, topic): why} of the
    pages that could not be made within the limits; in their place is a short one with the points.
    """
    limits = limits or PageLimits()
    todo = list(pages(course, url, rows, limits))
    failed: dict[tuple[str, str], str] = {}
    no_room = ""
    if not todo:
        return failed
    # Forks of a fresh process: this one may have threads, whose locks a fork would keep for ever.
    command = [sys.executable, __file__, json.dumps(dataclasses.asdict(limits))]
    waiting = dict(enumerate(todo))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:
        with contextlib.suppress(BrokenPipeError):  # it may have ended already
            maker.stdin.write("".join(json.dumps(page) + "\n" for page in todo).encode())
        with contextlib.suppress(BrokenPipeError):
            maker.stdin.close()
        for line in maker.stdout:
            number, why = json.loads(line)
            page = waiting.pop(number)
            if why == NO_ROOM:  # a short page might find room, and would stand there for good
                no_room = page.path
            elif why:
                failed[leave_short(page, why, page.fingerprint)] = why
    if no_room:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), no_room)
    for page in waiting.values():  # no fault of theirs: the next run tries them again
        why = "the program that makes pages has stopped"
        failed[leave_short(page, why, "")] = why
    return failed


# ── The process that makes the pages ──────────────────────────────────────────────────────────────


def warm(maker: HTMLExporter) -> None:
    """Make a page of every kind of cell: what is slow the first time, each fork then has."""
    cells = [
        new_markdown_cell("a"),
        new_code_cell("1", outputs=[new_output("stream", text="1")]),
    ]
    said = {"student": "a", "score": 0, "max_score": 0, "late_penalty": 0, "cells": {}}
    made(maker, new_notebook(cells=cells), "warm", said)
    gc.collect()
    gc.freeze()  # or every fork would copy the memory as soon as it counts references


def within(limits: PageLimits) -> None:
    """Limit this process."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, size + limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_FSIZE, limits.page_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def write_page(maker: HTMLExporter, page: Page, limits: PageLimits) -> None:
    """Make one page in this process, and end it with what became of it as its status."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(quiet, stream)
    within(limits)
    path, status = Path(page.path), 1
    try:
        notebook = nbformat.read(page.notebook, as_version=4)
        text = made(maker, notebook, path.stem, page.said)
        finished(path, text, page.fingerprint)
        status = 0
    except MemoryError:
        status = 2
    except OSError as error:
        status = 3 if error.errno == errno.EFBIG else 4 if of_disk(error) else 1
    finally:
        os._exit(status)


def outcome(status: int, limits: PageLimits) -> str:
    """Return why there is no page; empty if there is one."""
    code = os.waitstatus_to_exitcode(status)
    late = f"it takes longer than {limits.seconds} s"
    return {
        0: "",
        2: f"it takes more than {limits.memory_bytes // 2**20} MiB of memory",
        3: f"it is larger than {limits.page_bytes // 2**20} MiB",
        4: NO_ROOM,
        -signal.SIGKILL: late,
        -signal.SIGXCPU: late,
    }.get(code, "its notebook cannot be shown")


def serve(limits: PageLimits, cores: int) -> None:
    """Make the pages that the standard input names, each in a fork, and say how each ended."""
    todo = [Page(*json.loads(line)) for line in sys.stdin]
    maker = exporter()
    warm(maker)
    running: dict[int, tuple[int, int, float]] = {}  # descriptor: number, process, deadline
    waiting = selectors.DefaultSelector()
    started = 0
    while started < len(todo) or running:
        while started < len(todo) and len(running) < cores:
            if not (child := os.fork()):
                write_page(maker, todo[started], limits)
            handle = os.pidfd_open(child)
            waiting.register(handle, selectors.EVENT_READ)
            running[handle] = started, child, time.monotonic() + 2 * limits.seconds
            started += 1
        first = min(deadline for *_, deadline in running.values())
        ended = {key.fd for key, _ in waiting.select(max(0, first - time.monotonic()))}
        for handle, (number, child, deadline) in list(running.items()):
            if handle not in ended and time.monotonic() < deadline:
                continue
            if handle not in ended:
                os.kill(child, signal.SIGKILL)
            print(json.dumps([number, outcome(os.waitpid(child, 0)[1], limits)]), flush=True)
            waiting.unregister(handle)
            os.close(handle)
            del running[handle]


if __name__ == "__main__":
    serve(PageLimits(**json.loads(sys.argv[1])), len(os.sched_getaffinity(0)))
