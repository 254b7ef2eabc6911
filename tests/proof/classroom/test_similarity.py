"""make similarity: copies are found however they are dressed, honest answers are not."""

import ast
import builtins
import re
from pathlib import Path

import nbformat
import pytest
import similarity
from marking import is_solution, mark, release
from nbformat.v4 import new_code_cell
from similarity import ADDED, LIBRARY, Answer, alike, write_similarity

from proof.classroom.honest_tasks import TASKS
from tiny_assignment import TOPICS, assignment, named, replaced

# Honest answers of some length: a class, functions, arrays and loops.
HONEST = {
    "cache": TASKS["paging"]["cache-solution"],
    "lazy": TASKS["flash"]["lazy"],
}


class Renamed(ast.NodeTransformer):
    def new(self, name: str) -> str:
        return name if name in ("self", "np") or name in dir(builtins) else f"my_{name[::-1]}"

    def visit_Name(self, node):
        node.id = self.new(node.id)
        return node

    def visit_arg(self, node):
        node.arg = self.new(node.arg)
        return node

    def visit_Attribute(self, node):
        self.generic_visit(node)
        node.attr = self.new(node.attr)
        return node


def turned(code: str) -> str:
    tree = ast.parse(code)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body.reverse()
    return ast.unparse(tree)


DRESSES = {
    "renamed": lambda code: ast.unparse(Renamed().visit(ast.parse(code))),
    "reordered": turned,
    "comments": lambda code: re.sub(r"\n( *)def ", r"\n\n\n\1# mine, of course\n\1def ", code),
    "all of it": lambda code: ast.unparse(Renamed().visit(ast.parse(turned(code)))),
    "with more": lambda code: TASKS["engine"]["guessing"] + code + "\nprint(np)",
}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("name", HONEST)
def test_a_copy_is_found_however_it_is_dressed(name, dress):
    copied = DRESSES[dress](HONEST[name])
    for task in ("task", ADDED):
        pairs = alike([Answer("ada", "task", HONEST[name]), Answer("bob", task, copied)], given=[])
        assert [(pair.one.author, pair.other.author) for pair in pairs] == [("ada", "bob")]
        assert max(pairs[0].of_one, pairs[0].of_other) > 0.88


def test_honest_answers_are_not_alike():
    """Those in another style are not like the book's, and none is like the library."""
    texts = []
    for topic in TOPICS:
        for cell in filter(is_solution, assignment(topic).source.cells):
            task = f"{topic}: {mark(cell)['grade_id']}"
            texts.append(Answer("book", task, cell.source))
            if other := TASKS.get(topic, {}).get(mark(cell)["grade_id"]):
                texts.append(Answer("other", task, other))
    assert len(texts) > 80
    assert alike([*texts, *similarity.library()], given=[]) == []


@pytest.mark.parametrize("topic", TOPICS)
def test_what_was_handed_out_is_like_nothing(topic):
    source = assignment(topic).source
    given = [c.source for c in release(source).cells if c.cell_type == "code"]
    stubs = [Answer(student, ADDED, "\n".join(given)) for student in ("ada", "bob")]
    solution = "\n".join(c.source for c in filter(is_solution, source.cells))
    assert alike([*stubs, Answer("cleo", ADDED, solution)], given) == []


def test_a_function_of_the_library_is_found():
    ours = list(similarity.library())
    cache = next(text for text in ours if text.task == "kv_cache.cache.KVCache")
    copied = DRESSES["reordered"](cache.code)
    pairs = alike([Answer("ada", "my_cache", copied), *ours], given=[])
    assert (pairs[0].other.author, pairs[0].other.task) == (LIBRARY, "kv_cache.cache.KVCache")


def test_what_was_handed_out_is_left_out_of_account():
    """An answer of which a fifth is the student's own is judged by that fifth."""
    given = DRESSES["with more"](HONEST["cache"])
    one = given + HONEST["lazy"]
    other = given + TASKS["batching"]["plan-solution"]
    texts = [Answer("ada", "a", one), Answer("bob", "a", other)]
    assert alike(texts, [given]) == []
    texts[1] = Answer("bob", "a", one)
    pairs = alike(texts, [given])
    assert len(pairs) == 1 and pairs[0].of_one > 0.9


# ── A course ──────────────────────────────────────────────────────────────────────────────────────

TOPIC = "batching"


def hand_in(course: Path, student: str, code: str, added: str = "") -> None:
    notebook = replaced(release(assignment(TOPIC).source), {"engine-solution": code})
    if added:
        notebook.cells.append(new_code_cell(added))
    folder = course / "submitted" / student / TOPIC
    folder.mkdir(parents=True)
    (folder / f"{TOPIC}.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("course")
    book = named(assignment(TOPIC).source, "engine-solution").source
    hand_in(folder, "book", book)
    for name, code in HONEST.items():
        hand_in(folder, name, code)
    hand_in(folder, "renamed", DRESSES["all of it"](HONEST["cache"]))
    hand_in(folder, "hidden-in-added", "Engine = Mine", DRESSES["renamed"](book))
    hand_in(folder, "<b>script", "def f(:\n  <script>alert(1)</script>" + HONEST["lazy"])
    hand_in(folder, "brackets", "(" * 10**6)
    hand_in(folder, "steering", "\x1b[31m\u202e" * 10**5)
    (folder / "submitted" / "broken" / TOPIC).mkdir(parents=True)
    (folder / "submitted" / "broken" / TOPIC / f"{TOPIC}.ipynb").write_text("{")
    (folder / "submitted" / "ada" / "no_such_topic").mkdir(parents=True)
    return folder


def test_the_report_of_a_course(course):
    path = write_similarity(course)
    text = path.read_text(encoding="utf-8")
    pairs = set(re.findall(r'<a href="#batching-\d+">([^<]*)</a>', text))
    found = ("&lt;b&gt;script and lazy", "cache and renamed", "book and hidden-in-added")
    assert pairs == set(found)
    assert "a reason to talk, no proof" in text
    assert "broken: the file is no notebook" in text
    assert "<script" not in text and "<b>" not in text and "\u202e" not in text
    assert len(text) < 10**5


def test_a_topic_that_takes_too_long_or_fails_costs_only_itself(course, monkeypatch):
    monkeypatch.setattr(similarity, "TOPIC_S", 0.01)
    assert "Not compared: it took longer than 0.01 s" in write_similarity(course).read_text()
    monkeypatch.setattr(similarity, "TOPIC_S", 300)
    monkeypatch.setattr(similarity.sys, "executable", "/bin/false")
    assert "Not compared: the comparison stopped" in write_similarity(course).read_text()
