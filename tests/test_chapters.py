"""The rules that every chapter keeps, and each exercise: its stub fails, its solution passes.

A rule maps a chapter to complaints. BAD holds, for each rule, chapters that it must reject.
"""

import ast
import copy
import functools
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import nbclient
import nbformat
import pytest
import yaml
from pybtex.database import parse_file

from chapter_answers import ANSWERS, Answer
from test_frame import forbidden_complaints

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECTIONS = [
    "Question",
    "Predict",
    "Explain",
    "Build",
    "Explore",
    "Measure",
    "Exercises",
    "Pitfalls",
    "Where this lives in real systems",
    "Decide",
    "References",
]
MIN_CODE_CELLS, MAX_CODE_CELLS = 25, 40  # in view
MAX_LINES, MAX_MEDIAN_LINES, MAX_COLUMNS = 15, 6, 88
MIN_EXERCISES = 3
# They tell a reader who is stuck that the fault is theirs.
TACTLESS = re.compile(r"\b(simply|obviously|trivially|of course|clearly)\b", re.IGNORECASE)
NEEDS_ALT = {"explore", "show", "Image", "SVG"}


class Chapter(NamedTuple):
    """A notebook and its file's stem, as 04_kv_cache."""

    stem: str
    notebook: nbformat.NotebookNode

    @property
    def code(self) -> list:
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]

    @property
    def text(self) -> list:
        return [cell for cell in self.notebook.cells if cell.cell_type == "markdown"]

    def section(self, title: str) -> list:
        """Return the cells from the heading of a section up to the next one."""
        inside, cells = False, []
        for cell in self.notebook.cells:
            found = headings(cell)
            inside = title in found if found else inside
            cells += [cell] if inside else []
        return cells


def headings(cell) -> list[str]:
    """Return the level-2 headings of a cell."""
    if cell.cell_type != "markdown":
        return []
    prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^## +(.+?) *$", prose, re.MULTILINE)


def parsed(cell) -> ast.Module:
    """Return the syntax tree of a code cell, its magics left out."""
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.MULTILINE))


def calls(cells, *names: str) -> list[ast.Call]:
    """Return the calls of functions with these names, however they were imported."""
    nodes = [n for c in cells if c.cell_type == "code" for n in ast.walk(parsed(c))]
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", None)) in names
    ]


def tags(cell) -> list[str]:
    """Return the tags of a cell."""
    return cell.metadata.get("tags", [])


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names that code binds at its top level by definition or assignment."""
    names, todo = set(), list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, (ast.Lambda, ast.comprehension)):
            todo += ast.iter_child_nodes(node)
    return names


@functools.cache
def library_names() -> set[str]:
    """Return every public name that a module or package of the library offers to chapters."""
    library = ROOT / "lib" / "firsttoken"
    modules = [path for path in library.glob("*.py") if path.stem != "assignments"]
    trees = [ast.parse(path.read_text()) for path in modules]
    names = set().union(*map(defined_names, trees))
    # A package offers what its own file imports; names inside it are not a reader's.
    # Views are called as live.cache, so that a chapter may call its own cache by that name.
    for path in set(library.glob("*/__init__.py")) - {library / "live" / "__init__.py"}:
        imported = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)]
        names |= {alias.name for statement in imported for alias in statement.names}
    return {name for name in names if not name.startswith("_")}


def has_its_module_and_tests(chapter):
    match = re.fullmatch(r"\d\d_([a-z_]+)", chapter.stem)
    if not match:
        return [f"{chapter.stem} is not NN_topic"]
    places = [f"lib/firsttoken/{match[1]}.py", f"tests/test_{match[1]}.py"]
    return [f"no {place}" for place in places if not (ROOT / place).exists()]


def has_the_sections_in_order(chapter):
    found = [heading for cell in chapter.notebook.cells for heading in headings(cell)]
    return [] if found == SECTIONS else [f"sections are {found}"]


def begins_with_its_title(chapter):
    first = chapter.notebook.cells[0]
    ok = first.cell_type == "markdown" and first.source.startswith("# ")
    return [] if ok else ["the first cell is not the title"]


def widest(cell) -> int:
    return max(map(len, cell.source.splitlines()), default=0)


def has_enough_small_cells(chapter):
    # What is folded away (quizzes, checks, solutions, the drawing of figures) is not read in line.
    folded = [cell for cell in chapter.code if {"hide-input", "hide-cell"} & set(tags(cell))]
    code = [cell for cell in chapter.code if cell not in folded]
    lines = [len(cell.source.splitlines()) for cell in code]
    complaints = [f"{c.id}: {n} lines" for c, n in zip(code, lines, strict=True) if n > MAX_LINES]
    if not MIN_CODE_CELLS <= len(lines) <= MAX_CODE_CELLS:
        complaints.append(f"{len(lines)} code cells")
    if lines and statistics.median(lines) > MAX_MEDIAN_LINES:
        complaints.append(f"median of {statistics.median(lines)} lines")
    complaints += [
        f"{c.id}: folded on the site only"
        for c in folded
        if not c.metadata.get("jupyter", {}).get("source_hidden")
    ]
    complaints += [f"{c.id}: wider than the site shows" for c in code if widest(c) > MAX_COLUMNS]
    return complaints + [f"{c.id}: empty" for c in chapter.code if not c.source.strip()]


def says_what_each_cell_is_for(chapter):
    return [
        f"{cell.id}: no text before it"
        for before, cell in pairwise([{"cell_type": "none"}, *chapter.notebook.cells])
        if cell.cell_type == "code" and before["cell_type"] != "markdown"
    ]


def predicts_and_explores(chapter):
    complaints = [] if calls(chapter.section("Predict"), "quiz") else ["no quiz in Predict"]
    return complaints + ([] if calls(chapter.section("Explore"), "explore") else ["no explore"])


def exercise_cells(chapter) -> dict[str, dict[str, list[int]]]:
    """Return {number: {part: indices}} of the cells tagged exercise-NUMBER-PART."""
    found = {}
    for index, cell in enumerate(chapter.notebook.cells):
        for tag in tags(cell):
            if match := re.fullmatch(r"exercise-(\d+)-(stub|check|solution)", tag):
                found.setdefault(match[1], {}).setdefault(match[2], []).append(index)
    return found


def has_complete_exercises(chapter):
    cells, complaints, end = chapter.notebook.cells, [], 0
    inside = {cell.id for cell in chapter.section("Exercises")}
    exercises = exercise_cells(chapter)
    if len(exercises) < MIN_EXERCISES:
        complaints.append(f"{len(exercises)} exercises")
    for number, parts in sorted(exercises.items(), key=lambda item: int(item[0])):
        order = [i for part in ("stub", "check", "solution") for i in parts.get(part, [])]
        if len(order) != 3 or order != sorted(order) or order[0] <= end:
            complaints.append(f"exercise {number}: not one stub, check and solution in order")
            continue
        between, (_, check, solution) = cells[end + 1 : order[2]], [cells[i] for i in order]
        end = order[2]
        body = parsed(check).body
        if not calls([check], "check", "check_test") or not isinstance(body[-1], ast.Expr):
            complaints.append(f"exercise {number}: its check does not end in a call of check")
        if not calls(between, "hint") and not any("<details" in c.source for c in between):
            complaints.append(f"exercise {number}: no hint")
        hidden = solution.metadata.get("jupyter", {}).get("source_hidden")
        if "hide-cell" not in tags(solution) or hidden is not True:
            complaints.append(f"exercise {number}: its solution is not hidden")
        if not {cells[i].id for i in order} <= inside:
            complaints.append(f"exercise {number}: outside the section Exercises")
    text = "".join(c.source.lower() for c in chapter.section("Exercises"))
    return complaints + ([] if "find the bug" in text else ["no exercise says 'find the bug'"])


def is_stored_clean(chapter):
    complaints = ["widget state is stored"] if "widgets" in chapter.notebook.metadata else []
    for cell in chapter.code:
        if "execution" in cell.metadata:
            complaints.append(f"{cell.id}: the times of a run are stored")
        kept = {"keep_output", "nbval-check-output"} & set(tags(cell))
        if not kept and cell.outputs:
            complaints.append(f"{cell.id}: stored output")
        if kept and (len(kept) == 1 or not cell.outputs or cell.execution_count is None):
            complaints.append(f"{cell.id}: a kept output needs both tags, an output and a count")
    return complaints


def has_alternative_text(chapter):
    complaints = []
    for cell in chapter.text:
        images = re.findall(r"<img\b[^>]*>", cell.source)
        bare = [image for image in images if not re.search(r"\balt=[\"']?[^\s\"'>]", image)]
        bare += re.findall(r"!\[\s*\]\([^)]*\)", cell.source)
        complaints += [f"{cell.id}: {image}" for image in bare]
    for call in calls(chapter.code, *NEEDS_ALT):
        if "alt" not in {keyword.arg for keyword in call.keywords}:
            complaints.append(f"{ast.unparse(call.func)}() without alt")
    return complaints


def is_kind(chapter):
    return [f"{cell.id}: {word}" for cell in chapter.text for word in TACTLESS.findall(cell.source)]


@functools.cache
def citations() -> dict[str, str]:
    """Return, for the address of each entry of the bibliography, how a text names it."""
    found = {}
    for entry in parse_file(str(ROOT / "book" / "references.bib")).entries.values():
        names = [" ".join(p.prelast_names + p.last_names) for p in entry.persons["author"]]
        few = len(names) < 3 and "others" not in names
        who = " and ".join(names) if few else f"{names[0]} et al."
        found[entry.fields.get("url")] = f"{who.strip('{}')} {entry.fields['year']}"
    return found


def cites_by_links(chapter):
    # A role of Sphinx would stand in JupyterLab as it was typed.
    complaints = [f"{cell.id}: a role" for cell in chapter.text if "{cite" in cell.source]
    references = {cell.id for cell in chapter.section("References")}
    for cell in chapter.text:
        for text, address in re.findall(r"\[([^\]]+)\]\((https?:[^)\s]+)\)", cell.source):
            cited = cell.id in references or address in citations()
            if cited and citations().get(address) != text:
                complaints.append(f"{cell.id}: [{text}] is not an entry of references.bib")
    return complaints


def runs_anywhere(chapter):
    name = chapter.notebook.metadata.get("kernelspec", {}).get("name")
    ids = Counter(cell.get("id") for cell in chapter.notebook.cells)
    complaints = [] if name == "python3" else [f"kernel {name}"]
    return complaints + [f"cell id {i}: {n} times" for i, n in ids.items() if not i or n > 1]


def defines_nothing_the_library_has(chapter):
    defined = set().union(*(defined_names(parsed(cell)) for cell in chapter.code))
    return [f"defines {name}" for name in sorted(defined & library_names())]


def uses_nothing_forbidden(chapter):
    return [f"{c.id}: {text}" for c in chapter.code for text in forbidden_complaints(c.source)]


RULES = [
    has_its_module_and_tests,
    has_the_sections_in_order,
    begins_with_its_title,
    has_enough_small_cells,
    says_what_each_cell_is_for,
    predicts_and_explores,
    has_complete_exercises,
    is_stored_clean,
    has_alternative_text,
    is_kind,
    cites_by_links,
    runs_anywhere,
    defines_nothing_the_library_has,
    uses_nothing_forbidden,
]


def read(path: Path) -> Chapter:
    """Read a notebook as it is stored; nbformat.read would add a missing cell id."""
    return Chapter(path.stem, nbformat.v4.reads_json(path.read_text()))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter(path, rule):
    chapter = read(path)
    nbformat.validate(chapter.notebook)
    assert rule(chapter) == []


def test_toc_lists_exactly_the_notebooks():
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
    files, todo = [], [toc]
    while todo:
        node = todo.pop(0)
        if isinstance(node, dict):
            files += [node[key] for key in ("root", "file") if key in node]
            todo = [value for value in node.values() if isinstance(value, list)] + todo
        elif isinstance(node, list):
            todo = node + todo
    listed = [Path(file).stem for file in files if Path(file).parts[0] == "notebooks"]
    assert listed == [path.stem for path in NOTEBOOKS]


def test_readme_lists_exactly_the_notebooks():
    links = re.findall(r"\(notebooks/([^)]+)\.ipynb\)", (ROOT / "README.md").read_text())
    assert links == [path.stem for path in NOTEBOOKS]


KEEP_BOXES = """
import importlib
ft_boxes = []
importlib.import_module("firsttoken.explore").display = lambda box, _: ft_boxes.append(box)
"""
# A reader's answer must leave no name that a later cell of the chapter may lack.
REMEMBER = "ft_names = dict(globals())"
FORGET = """
for ft_name in set(globals()) - {*ft_names, "ft_names", "ft_name"}:
    del globals()[ft_name]
globals().update(ft_names)
"""
MOVE_SLIDERS = """
for ft_box in ft_boxes:
    *ft_rows, ft_picture = ft_box.children
    for ft_input in (row.children[-1] if hasattr(row, "children") else row for row in ft_rows):
        ft_start = ft_input.index
        for ft_index in range(len(ft_input.options)):
            ft_input.index = ft_index
            if "ft-error" in ft_picture.value:
                print(ft_input.description, ft_input.label, ft_picture.value)
        ft_input.index = ft_start
"""


def run_chapter(
    chapter: Chapter, folder: Path, answers: Sequence[Answer] = ()
) -> tuple[dict[tuple[str, str], bool], dict[Answer, str], str]:
    """Run a notebook once; return {(number, "stub" or "solution"): what its check says}, and more.

    The check runs where it stands, with the stub, after each of the answers to its exercise, and
    once more after the solution. What it says of the answers is the second result. The third is
    the errors of sliders that are moved at the end, since a later cell may have taken a name of
    theirs.
    """
    notebook = copy.deepcopy(chapter.notebook)
    code = nbformat.v4.new_code_cell
    keep, move = code(KEEP_BOXES), code(MOVE_SLIDERS)
    probes, insert_after, answered = {}, {}, {}
    for number, parts in exercise_cells(chapter).items():
        (check,), (solution,) = parts["check"], parts["solution"]
        tree = parsed(notebook.cells[check])
        report = (
            f"ft_result = {ast.unparse(tree.body.pop().value)}\n"
            "print('passed' if ft_result else 'failed', getattr(ft_result, 'message', ''))"
        )
        probe = code(f"{ast.unparse(tree)}\n{report}")
        notebook.cells[check] = probes[number, "stub"] = probe
        probes[number, "solution"] = copy.deepcopy(probe)
        insert_after[solution] = [probes[number, "solution"]]
        insert_after[check] = []
        for answer in answers:
            if answer.exercise == number:
                answered[answer] = copy.deepcopy(probe)
                given = [code(REMEMBER), code(answer.source), answered[answer], code(FORGET)]
                insert_after[check] += given
    for index in sorted(insert_after, reverse=True):
        notebook.cells[index + 1 : index + 1] = insert_after[index]
    notebook.cells = [keep, *notebook.cells, move]
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()

    def said(cell) -> str:
        return "".join(out.get("text", "") for out in cell.outputs).splitlines()[-1]

    words = {"passed": True, "failed": False}
    verdicts = {key: words[said(probe).split()[0]] for key, probe in probes.items()}
    errors = "".join(out.get("text", "") for out in move.outputs)
    return verdicts, {a: said(probe) for a, probe in answered.items()}, errors


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stubs_fail_solutions_pass_and_sliders_move_at_the_end(path):
    """Beside them, answers that readers gave: wrong ones fail, unusual right ones pass."""
    answers = [answer for answer in ANSWERS if answer.chapter == path.stem]
    verdicts, answered, errors = run_chapter(read(path), path.parent, answers)
    assert verdicts == {key: key[1] == "solution" for key in verdicts}
    assert len(answered) == len(answers), "an answer to an exercise that is not there"
    wrong = [(a.what, said) for a, said in answered.items() if not said.startswith(a.expected)]
    assert wrong == []
    assert errors == ""


# The rules themselves.


def good_chapter() -> Chapter:
    """Return a small chapter that keeps every rule."""
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [text("# The KV cache")]
    for title in SECTIONS:
        cells.append(text(f"## {title}"))
        if title == "Predict":
            cells.append(code("quiz('How many?', answer=2)"))
        if title == "Explore":
            cells.append(code("explore(draw_line, alt='A line', batch=[1, 2])"))
        if title == "Build":
            for i in range(20):
                cells += [text("This cell adds."), code(f"total = {i}\nassert total == {i}")]
        if title == "Exercises":
            for i in range(1, MIN_EXERCISES + 1):
                stub = code(f"answer_{i} = None", metadata={"tags": [f"exercise-{i}-stub"]})
                ask = code(f"check(answer_{i}, {i})", metadata={"tags": [f"exercise-{i}-check"]})
                solution = code(
                    f"answer_{i} = {i}",
                    metadata={
                        "tags": [f"exercise-{i}-solution", "hide-cell"],
                        "jupyter": {"source_hidden": True},
                    },
                )
                cells += [text("### Find the bug"), stub, text("Check it:"), ask]
                cells += [text("<details><summary>Hint</summary>Count.</details>"), solution]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    return Chapter("04_kv_cache", notebook)


def edit(cell_type: str, find: str, **changes):
    """Return a mutation that changes the first cell of a type that contains some text."""

    def mutate(chapter):
        cells = chapter.notebook.cells
        cell = next(c for c in cells if c.cell_type == cell_type and find in c.source)
        cell.update(nbformat.from_dict(changes))
        return chapter

    return mutate


def add(source: str, **changes):
    """Return a mutation that changes a code cell of Build."""
    return edit("code", "total = 3", source=source, **changes)


def drop(find: str):
    """Return a mutation that drops the first cell that contains some text."""

    def mutate(chapter):
        cells = chapter.notebook.cells
        cells.remove(next(c for c in cells if find in c.source))
        return chapter

    return mutate


def renamed(chapter):
    return chapter._replace(stem="04_cache_of_keys")


def stripped_of_its_kernel(chapter):
    chapter.notebook.metadata.pop("kernelspec")
    return chapter


def with_widget_state(chapter):
    chapter.notebook.metadata.widgets = {}
    return chapter


def with_equal_ids(chapter):
    chapter.notebook.cells[1].id = chapter.notebook.cells[2].id
    return chapter


OUTPUT = nbformat.v4.new_output("stream", text="2\n")
KEPT = {"tags": ["keep_output", "nbval-check-output"]}
BAD = {
    has_its_module_and_tests: [renamed, lambda c: c._replace(stem="kv_cache")],
    has_the_sections_in_order: [
        drop("## Decide"),
        edit("markdown", "## Explain", source="## Explanation"),
        edit("markdown", "This cell", source="## Build"),
    ],
    begins_with_its_title: [drop("# The KV cache")],
    has_enough_small_cells: [
        add("x = 1\n" * 16),
        add(""),
        add("x = 1  # " + "a" * 80),
        add("x = 1", metadata={"tags": ["hide-input"]}),
        lambda c: c.notebook.update(cells=c.notebook.cells[:20]) or c,
        lambda c: [cell.update(source="x = 1\n" * 7) for cell in c.code if not tags(cell)] and c,
    ],
    says_what_each_cell_is_for: [drop("Check it:")],
    predicts_and_explores: [
        edit("code", "quiz", source="answer = 2"),
        edit("code", "explore", source="draw_line(2)"),
    ],
    has_complete_exercises: [
        drop("answer_2 = None"),
        drop("answer_1 = 1"),
        drop("Hint"),
        edit("code", "answer_1 = 1", metadata={"tags": ["exercise-1-solution", "hide-cell"]}),
        edit("code", "check(answer_1", source="result = check(answer_1, 1)"),
        edit("code", "check(answer_1", source="answer_1 == 1"),
        edit("markdown", "## Exercises", source="Some text."),
        lambda c: [cell.update(source="### Sum") for cell in c.text if "bug" in cell.source] and c,
        lambda c: [cell.metadata.pop("tags") for cell in c.code if "answer_3" in cell.source] and c,
    ],
    is_stored_clean: [
        with_widget_state,
        add("total", outputs=[OUTPUT]),
        add("total", outputs=[OUTPUT], execution_count=3, metadata={"tags": ["keep_output"]}),
        add("total", outputs=[OUTPUT], metadata=KEPT),
        add("total", execution_count=3, metadata=KEPT),
        add("total", metadata={"execution": {"shell.execute_reply": "2026-11-20T08:00:00Z"}}),
    ],
    has_alternative_text: [
        edit("markdown", "This cell", source="![](a.png)"),
        edit("markdown", "This cell", source='<img src="a.png">'),
        edit("markdown", "This cell", source='<img src="a.png" alt="">'),
        add("show(figure)"),
        add("explore(draw_line, batch=[1, 2])"),
        add("plt.show()"),
    ],
    is_kind: [
        edit("markdown", "This cell", source="Obviously, it adds."),
        edit("markdown", "This cell", source="It is of course a sum."),
    ],
    cites_by_links: [
        edit("markdown", "This cell", source="See {cite:t}`kwon2023`."),
        edit("markdown", "## References", source="## References\n[A 2020](https://example.org)"),
        edit("markdown", "This cell", source="[Kwon 2023](https://arxiv.org/abs/2309.06180)"),
    ],
    runs_anywhere: [stripped_of_its_kernel, with_equal_ids],
    defines_nothing_the_library_has: [
        add("def kv_cache_bytes(arch):\n    return 0"),
        add("KVCache = dict"),
        add("for GB in range(3):\n    pass"),
        add("def check_test(test):\n    return True"),
    ],
    uses_nothing_forbidden: [add("!pip install torch"), add("from numpy import *")],
}


def test_good_chapter_keeps_every_rule():
    chapter = good_chapter()
    chapter = add("total", outputs=[OUTPUT], execution_count=1, metadata=KEPT)(chapter)
    assert {rule.__name__: rule(chapter) for rule in RULES if rule(chapter)} == {}


@pytest.mark.parametrize(
    ("rule", "mutate"),
    [(rule, mutate) for rule in RULES for mutate in BAD[rule]],
    ids=lambda function: function.__name__,
)
def test_rule_rejects(rule, mutate):
    assert rule(mutate(good_chapter())) != []


def chapter_that_runs() -> Chapter:
    """Return the small chapter with stand-ins for what it calls."""
    chapter = good_chapter()
    chapter.notebook.cells[:0] = [
        nbformat.v4.new_code_cell(
            "def check(answer, right): return answer == right\n"
            "def quiz(*args, **kwargs): pass\n"
            "def explore(*args, **kwargs): pass\n"
            "draw_line = None"
        )
    ]
    return chapter


def test_an_exercise_that_does_not_check_is_found(tmp_path):
    """A stub that passes and a solution that fails must both show."""
    chapter = chapter_that_runs()
    edit("code", "answer_2 = None", source="answer_2 = 2")(chapter)
    edit("code", "answer_3 = 3", source="answer_3 = 4")(chapter)
    assert run_chapter(chapter, tmp_path)[0] == {
        ("1", "stub"): False,
        ("1", "solution"): True,
        ("2", "stub"): True,
        ("2", "solution"): True,
        ("3", "stub"): False,
        ("3", "solution"): False,
    }


def test_an_answer_leaves_no_name_behind(tmp_path):
    """Else a chapter that lacks an import would pass with that of a reader."""
    chapter = chapter_that_runs()
    chapter.notebook.cells.append(nbformat.v4.new_code_cell("assert 'kept' not in globals()"))
    answer = Answer(chapter.stem, "1", "an import", "passed", "kept = answer_1 = 1")
    _, answered, _ = run_chapter(chapter, tmp_path, [answer])
    assert answered[answer].startswith("passed")


def test_a_slider_that_a_later_cell_breaks_is_found(tmp_path):
    code = nbformat.v4.new_code_cell
    figure = (
        "from firsttoken.explore import explore\n"
        "slope = 1\n"
        "def draw(ax, end):\n"
        "    ax.plot([0, end], [0, slope * end])\n"
        "explore(draw, alt='A line', end=[1, 2])"
    )
    for later, found in (("rise = 2", False), ("slope = None", True)):
        notebook = nbformat.v4.new_notebook(cells=[code(figure), code(later)])
        *_, errors = run_chapter(Chapter("chapter", notebook), tmp_path)
        assert ("TypeError" in errors) == found and bool(errors) == found
