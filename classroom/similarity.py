"""Show similar code of different students: python classroom/similarity.py COURSE

Reads   COURSE/submitted/STUDENT/TOPIC/TOPIC.ipynb: the solution cells, and the cells that a student
        added. What was handed out counts for nothing, whoever copied it.
Writes  COURSE/report/similarity.html: pairs of students, and students beside the book's library.

Names, comments and layout make no difference, nor does the order of functions. What is alike is no
proof: it is a reason to talk. copydetect compares; it implements Schleimer et al. 2003, "Winnowing:
local algorithms for document fingerprinting".
"""

import argparse
import ast
import dataclasses
import functools
import html
import io
import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np
from copydetect.detector import CodeFingerprint, compare_files
from course import run, write_whole
from feedback import as_code, clean, cut
from marking import is_solution, mark, release
from submitted import Unreadable, handed_in, parsed, shown

ROOT = Path(__file__).parents[1]
# All counted in characters of code without names, comments and spaces.
NOISE = 25  # what is shorter is alike by chance
MIN_ALIKE = 100  # two short answers to the same question are often the same
MIN_SHARE = 0.85  # of one of the two; honest variants of the book's answers stay below
MAX_CODE = 20_000  # characters of one student's answer
MAX_PAIRS = 100  # of a topic, on the page
TOPIC_S, TOPIC_BYTES = 300, 2 * 2**30  # what comparing the answers to one topic may take
ADDED = "added cells"
LIBRARY = "the book's library"


@dataclass(frozen=True)
class Answer:
    """Code of one author for one task, or a function or class of the library."""

    author: str
    task: str
    code: str


@dataclass(frozen=True)
class Pair:
    """Two answers that are alike, and how much of each stands in the other."""

    one: Answer
    other: Answer
    of_one: float
    of_other: float


def fingerprint(code: str, given: np.ndarray | tuple = ()) -> CodeFingerprint:
    """Return copydetect's view of code, without the pieces that are in `given`."""
    return CodeFingerprint("a.py", NOISE, 1, given, language="python", fp=io.StringIO(code))


@functools.cache
def hashes(code: str) -> frozenset[int]:
    """Return all that copydetect would compare of a code."""
    return frozenset(fingerprint(code).hashes)


def sources(course: Path, topic: str) -> Path:
    """Return the folder of an assignment's source: the course's own, else the book's."""
    own = course / "source" / topic
    return own if (own / f"{topic}.ipynb").is_file() else ROOT / "assignments" / topic


def answers(notebook: nbformat.NotebookNode, student: str, tasks: set[str]) -> list[Answer]:
    """Return what a student wrote: the code of each task, and of all cells that they added."""
    found: dict[str, list[str]] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            name = mark(cell).get("grade_id")
            if name in tasks or not name:
                found.setdefault(name or ADDED, []).append(cell.source)
    return [
        Answer(student, task, cut(as_code(clean("\n\n".join(codes))), MAX_CODE))
        for task, codes in found.items()
    ]


def library() -> Iterator[Answer]:
    """Yield the functions and classes of the book's library."""
    library = ROOT / "lib" / "firsttoken"
    for path in sorted(library.rglob("*.py")):
        module = ".".join(path.relative_to(library).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                code = ast.get_source_segment(text, node) or ""
                yield Answer(LIBRARY, f"{module}.{node.name}", code)


def alike(texts: list[Answer], given: list[str]) -> list[Pair]:
    """Return the pairs of answers that are more alike than chance makes them.

    Compared are answers of different students to the same task, cells that were added with all,
    and all with the library. Pieces of `given` are left out of account.
    """
    seen = [fingerprint(code).hashes for code in [*given, "\n".join(given)]]  # and where two meet
    boilerplate = np.unique(np.array([h for hashes in seen for h in hashes], dtype=np.int64))

    def views(texts: Iterable[Answer]) -> list[tuple[Answer, CodeFingerprint]]:
        found = [(text, fingerprint(text.code, boilerplate)) for text in texts]
        return [(text, view) for text, view in found if view.token_coverage >= MIN_ALIKE]

    theirs = views(text for text in texts if text.author != LIBRARY)
    written = set().union(*(view.hashes for _, view in theirs))
    # Most of the library has nothing in common with anybody, and need not be read without `given`.
    ours = views(
        text
        for text in texts
        if text.author == LIBRARY and not written.isdisjoint(hashes(text.code))
    )
    found = []
    for number, (one, view) in enumerate(theirs):
        for other, its in theirs[number + 1 :] + ours:
            same_task = one.task == other.task or ADDED in (one.task, other.task)
            if one.author == other.author or not (same_task or other.author == LIBRARY):
                continue
            if view.hashes.isdisjoint(its.hashes):
                continue
            n_alike, (of_one, of_other), _ = compare_files(view, its)
            # A library's function counts if it was copied, not if a long one has a short piece.
            share = of_one if other.author == LIBRARY else max(of_one, of_other)
            if n_alike >= MIN_ALIKE and share >= MIN_SHARE:
                found.append(Pair(one, other, float(of_one), float(of_other)))
    return sorted(found, key=lambda pair: -max(pair.of_one, pair.of_other))


def compared(course: Path, topic: str) -> tuple[list[Pair], list[str]]:
    """Return what is alike in a topic, and which submissions could not be read."""
    source = sources(course, topic)
    source = nbformat.read(source / f"{topic}.ipynb", as_version=4)
    tasks = {mark(c)["grade_id"] for c in source.cells if c.cell_type == "code" and is_solution(c)}
    texts, unread = [], []
    for folder in sorted((course / "submitted").glob(f"*/{topic}")):
        student = shown(folder.parent.name)
        hand_in = handed_in(folder, topic)
        try:
            if hand_in.problem:
                raise Unreadable(hand_in.problem)
            texts += answers(parsed(hand_in.data), student, tasks)
        except Unreadable as unreadable:
            unread.append(f"{student}: {shown(str(unreadable))}")
    given = [cell.source for cell in release(source).cells if cell.cell_type == "code"]
    return alike([*texts, *library()], given), unread


def apart(course: Path, topic: str) -> dict:
    """Return what `compared` finds, as data, from a process of its own with limits."""
    command = [sys.executable, __file__, str(course), "--topic", topic]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOPIC_S, check=True)
    except subprocess.TimeoutExpired:
        return {"failed": f"it took longer than {TOPIC_S} s"}
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return {"failed": f"the comparison stopped: {said or error}"}
    return json.loads(done.stdout)


STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { border-bottom: 1px solid #ccc; padding: .2rem .6rem;
text-align: left } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem }
pre { font-size: 13px; overflow: auto; max-height: 40rem; background: #f6f6f6; padding: .5rem;
white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext }"""
WORDS = f"""\
<p>What is alike is <strong>a reason to talk, no proof</strong>. Two students may have learned
together, read the same page, or found the one short way. Names, comments, layout and the order of
functions make no difference here; what was handed out counts for nothing. Shown are answers of
which at least {MIN_SHARE:.0%} stands in the other, and at least {MIN_ALIKE} characters of code
without names. Shorter answers, and what was rewritten with other steps, are not found.</p>"""


def page(topics: dict[str, dict]) -> str:
    """Return the report; every text of a student is shown, none is run."""
    said = html.escape
    parts = []
    for topic, found in topics.items():
        parts.append(f"<h2>{said(topic)}</h2>")
        if "failed" in found:
            parts.append(f"<p>Not compared: {said(found['failed'])}</p>")
            continue
        pairs = found["pairs"][:MAX_PAIRS]
        rows, codes = [], []
        for number, pair in enumerate(pairs):
            one, other = pair["one"], pair["other"]
            link = f"{said(topic)}-{number}"
            task = one["task"] if one["task"] == other["task"] else None
            where = said(task or f"{one['task']}, {other['task']}")
            names = f"{said(one['author'])} and {said(other['author'])}"
            shares = f"<td>{pair['of_one']:.0%}</td><td>{pair['of_other']:.0%}</td>"
            rows.append(f'<tr><td>{where}</td><td><a href="#{link}">{names}</a></td>{shares}</tr>')
            sides = "".join(
                f"<div><h4>{said(side['author'])}: {said(side['task'])}</h4>"
                f"<pre>{said(side['code'])}</pre></div>"
                for side in (one, other)
            )
            codes.append(f'<h3 id="{link}">{names}</h3>\n<div class="pair">{sides}</div>')
        if rows:
            head = "".join(
                f'<th scope="col">{text}</th>'
                for text in ("task", "who", "of the first", "of the second")
            )
            parts.append(
                f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
            )
        else:
            parts.append("<p>Nothing is alike.</p>")
        if more := len(found["pairs"]) - len(pairs):
            parts.append(f"<p>There are {more} further pairs.</p>")
        if found["unread"]:
            items = "".join(f"<li>{said(text)}</li>" for text in found["unread"])
            parts.append(f"<p>Not read:</p><ul>{items}</ul>")
        parts += codes
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Similar code</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>Similar code</h1>\n{WORDS}\n"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def write_similarity(course: Path) -> Path:
    """Compare the submissions of each topic, and write the report."""
    folders = (course / "submitted").glob("[!.]*/[!.]*")
    topics = sorted({folder.name for folder in folders if folder.is_dir()})
    topics = [t for t in topics if (sources(course, t) / f"{t}.ipynb").is_file()]
    found = {topic: apart(course, topic) for topic in topics}
    path = course / "report" / "similarity.html"
    write_whole(path, page(found).encode(errors="replace"))
    return path


def main() -> None:
    """Compare the submissions of the course that the command line names."""
    parser = argparse.ArgumentParser(description="Show similar code of different students.")
    parser.add_argument("course", type=Path, help="the folder that holds submitted/")
    parser.add_argument("--topic", help=argparse.SUPPRESS)  # one topic, as JSON
    options = parser.parse_args()
    if not (options.course / "submitted").is_dir():
        sys.exit(f"First Token: there is no folder {options.course / 'submitted'}")
    if options.topic:
        resource.setrlimit(resource.RLIMIT_AS, (TOPIC_BYTES, TOPIC_BYTES))
        pairs, unread = compared(options.course, options.topic)
        found = {"pairs": [dataclasses.asdict(pair) for pair in pairs], "unread": unread}
        print(json.dumps(found))
    else:
        print(write_similarity(options.course))


if __name__ == "__main__":
    run(main)
