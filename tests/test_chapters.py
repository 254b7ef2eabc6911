"""The rules that every chapter keeps.

A rule maps a chapter to complaints. BAD holds, for each rule, chapters that it must reject.
"""

import ast
import functools
import re
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
import reading
from pybtex.database import parse_file

from firsttoken import live
from test_frame import forbidden_complaints

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
APPENDICES = sorted((ROOT / "notebooks").glob("[A-Z]_*.ipynb"))
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
MAX_WORDS = 4500  # in view, as all that follows
MIN_CODE_CELLS, MAX_CODE_CELLS = 20, 35
MAX_LINES, MAX_MEDIAN_LINES, MAX_COLUMNS = 15, 6, 88
MAX_LINES_LOOKED_UP = 8  # in an appendix
MIN_EXERCISES = 3
MIN_COMPARED = 3  # outputs
# They tell a reader who is stuck that the fault is theirs.
TACTLESS = re.compile(r"\b(simply|obviously|trivially|of course|clearly)\b", re.IGNORECASE)
NEEDS_ALT = {"explore", "show", "Image", "SVG"}
MINUTES = re.compile(r"\*\*(\d+) minutes to read, (\d+) more for the exercises\.\*\*")
TRY_IT = re.compile(r"^\*\*Try it\.\*\*", re.MULTILINE)
# A sentence of its own in brackets; what it is about would stand without it, or deserves a place.
IN_BRACKETS = r"\((?:[^()]|\([^()]*\))*"
ASIDE = re.compile(
    rf"(?:^| ){IN_BRACKETS}(?<!etc)(?<!\bal)\.[”’\"]?\)"
    rf"|(?:^|[.!?…][”’\"]? ){IN_BRACKETS}(?:[!?…][”’\"]?\)|\)[.!?…])(?= |$)"
)


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


def sections(chapter: Chapter) -> list[str]:
    """Return the titles of a chapter's sections."""
    return [title for cell in chapter.notebook.cells for title in headings(cell)]


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


def has_the_sections_in_order(chapter):
    found = sections(chapter)
    return [] if found == SECTIONS else [f"sections are {found}"]


def begins_with_its_title(chapter):
    first = chapter.notebook.cells[0]
    ok = first.cell_type == "markdown" and first.source.startswith("# ")
    return [] if ok else ["the first cell is not the title"]


def widest(cell) -> int:
    return max(map(len, cell.source.splitlines()), default=0)


def has_small_cells(chapter, max_lines=MAX_LINES, max_median=MAX_MEDIAN_LINES):
    # What is folded away (quizzes, checks, solutions, the drawing of figures) is not read in line.
    folded = [cell for cell in chapter.code if reading.is_folded(cell)]
    code = [cell for cell in chapter.code if cell not in folded]
    lines = [len(cell.source.splitlines()) for cell in code]
    complaints = [f"{c.id}: {n} lines" for c, n in zip(code, lines, strict=True) if n > max_lines]
    if lines and statistics.median(lines) > max_median:
        complaints.append(f"median of {statistics.median(lines)} lines")
    complaints += [
        f"{c.id}: folded on the site only"
        for c in folded
        if not c.metadata.get("jupyter", {}).get("source_hidden")
    ]
    complaints += [f"{c.id}: wider than the site shows" for c in code if widest(c) > MAX_COLUMNS]
    return complaints + [f"{c.id}: empty" for c in chapter.code if not c.source.strip()]


def fits_a_glance(chapter):
    return has_small_cells(chapter, MAX_LINES_LOOKED_UP, MAX_LINES_LOOKED_UP)


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
        if kept and any(set(o.get("data", ["text/plain"])) != {"text/plain"} for o in cell.outputs):
            complaints.append(f"{cell.id}: of a kept output only text is compared")
    return complaints


def compares_outputs(chapter):
    kept = [c for c in reading.code_in_view(chapter.notebook) if "nbval-check-output" in tags(c)]
    return [] if len(kept) >= MIN_COMPARED else [f"{len(kept)} outputs in view are compared"]


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


def fits_one_reading(chapter):
    words = reading.words_in_view(chapter.notebook)
    cells = len(reading.code_in_view(chapter.notebook))
    complaints = [f"{words} words in view"] if words > MAX_WORDS else []
    in_range = MIN_CODE_CELLS <= cells <= MAX_CODE_CELLS
    return complaints + ([] if in_range else [f"{cells} code cells in view"])


def prints_its_minutes(chapter):
    printed = [found for c in chapter.section("Question") for found in MINUTES.findall(c.source)]
    right = reading.minutes(chapter.notebook)
    ok = len(printed) == 1 and int(printed[0][0]) == right
    return [] if ok else [f"takes {right} minutes to read; printed (read, exercises): {printed}"]


def marks_its_further_parts(chapter):
    complaints = []
    for cell in chapter.text:
        titled = re.search(r"^#+ *Further:", cell.source, re.MULTILINE)
        if titled and not reading.is_further(cell):
            complaints.append(f"{cell.id}: is open when the chapter opens")
        alone = re.fullmatch(r"### Further: \S.*", cell.source)
        if reading.COLLAPSED in cell.metadata and not alone:
            complaints.append(f"{cell.id}: is not one heading '### Further: …'")
    core = reading.core(chapter.notebook)
    return complaints + [
        f"{cell.id}: text of a further part stands above its heading"
        for before, cell in pairwise(chapter.notebook.cells)
        if cell in core and before not in core and not cell.source.startswith("#")
    ]


def claims_in_folded_cells(chapter):
    exercises = chapter.section("Exercises")
    return [
        f"{cell.id}: an assert out of sight; use claim"
        for cell in chapter.code
        if reading.is_folded(cell) and cell not in exercises
        if any(isinstance(node, ast.Assert) for node in ast.walk(parsed(cell)))
    ]


def plays(cell) -> bool:
    """Return whether a cell shows something that a reader can move without changing its code."""
    views = calls([cell], *set(live.__all__) - {"View"})
    of_live = [call for call in views if ast.unparse(call.func).startswith("live.")]
    return bool(of_live or calls([cell], "explore"))


def invites_to_try(cell) -> bool:
    return cell.cell_type == "markdown" and bool(TRY_IT.search(cell.source))


def can_be_played_with(chapter):
    core = reading.core(chapter.notebook)
    complaints = [
        f"{title}: nothing to play with"
        for title in ("Build", "Explore", "Measure")
        if not any(plays(c) or invites_to_try(c) for c in chapter.section(title) if c in core)
    ]
    cells = chapter.notebook.cells
    for i, cell in enumerate(cells):
        beside = cells[max(i - 1, 0) : i] + cells[i + 1 : i + 2]
        answers = any(plays(c) or c.metadata.get("invited") for c in beside)
        if invites_to_try(cell) and not answers:
            complaints.append(f"{cell.id}: what it invites to try is not beside it")
        if "invited" in cell.metadata and not any(map(invites_to_try, beside)):
            complaints.append(f"{cell.id}: no text beside it invites to its change")
    return complaints


def can_be_changed_as_invited(chapter):
    return [
        f"{cell.id}: {dict(change)} is not one change in its source"
        for cell in chapter.notebook.cells
        for change in cell.metadata.get("invited", [])
        if set(change) != {"from", "to"}
        or change["from"] == change["to"]
        or cell.source.count(change["from"]) != 1
    ]


def has_no_asides(chapter):
    return [
        f"{cell.id}: {aside[0].strip()}"
        for cell in reading.text_in_view(chapter.notebook)
        for block in reading.blocks(cell.source)
        for aside in ASIDE.finditer(block)
    ]


RULES = [
    has_the_sections_in_order,
    begins_with_its_title,
    has_small_cells,
    says_what_each_cell_is_for,
    predicts_and_explores,
    has_complete_exercises,
    is_stored_clean,
    compares_outputs,
    has_alternative_text,
    is_kind,
    cites_by_links,
    runs_anywhere,
    defines_nothing_the_library_has,
    uses_nothing_forbidden,
    fits_one_reading,
    prints_its_minutes,
    marks_its_further_parts,
    claims_in_folded_cells,
    can_be_played_with,
    can_be_changed_as_invited,
    has_no_asides,
]


# An appendix is looked up, not read through: what a chapter owes its reader on the way is left out.
APPENDIX_RULES = [
    begins_with_its_title,
    fits_a_glance,
    says_what_each_cell_is_for,
    is_stored_clean,
    has_alternative_text,
    is_kind,
    cites_by_links,
    runs_anywhere,
    defines_nothing_the_library_has,
    uses_nothing_forbidden,
    claims_in_folded_cells,
    has_no_asides,
]


def read(path: Path) -> Chapter:
    """Read a notebook as it is stored; nbformat.read would add a missing cell id."""
    return Chapter(path.stem, nbformat.v4.reads_json(path.read_text()))


KEEPS = [(path, rule) for path in NOTEBOOKS for rule in RULES]
KEEPS += [(path, rule) for path in APPENDICES for rule in APPENDIX_RULES]


@pytest.mark.parametrize(
    ("path", "rule"), KEEPS, ids=[f"{path.stem}-{rule.__name__}" for path, rule in KEEPS]
)
def test_chapter(path, rule):
    chapter = read(path)
    nbformat.validate(chapter.notebook)
    assert rule(chapter) == []


# The rules themselves.


OUTPUT = nbformat.v4.new_output("stream", text="20\n")
KEPT = {"tags": ["keep_output", "nbval-check-output"]}


def good_chapter() -> Chapter:
    """Return a small chapter that keeps every rule."""
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    hidden = {"source_hidden": True}
    invited = {"invited": [{"from": "rows = 1", "to": "rows = 2"}]}
    cells = [text("# The KV cache")]
    for title in SECTIONS:
        cells.append(text(f"## {title}"))
        if title == "Question":
            cells.append(text("**1 minutes to read, 60 more for the exercises.**"))
        if title == "Predict":
            cells.append(code("quiz('How many?', answer=2)"))
        if title == "Explore":
            cells.append(code("explore(draw_line, alt='A line', batch=[1, 2])"))
        if title == "Build":
            for i in range(20):
                cells += [text("This cell adds."), code(f"total = {i}\nassert total == {i}")]
            folded = {"tags": ["hide-input"], "jupyter": hidden}
            claimed = code("claim(total == 19, 'The text says 19.')", metadata=folded)
            cells += [text("So it is 19."), claimed]
            for _ in range(MIN_COMPARED):
                shown = code("total + 1", outputs=[OUTPUT], execution_count=1, metadata=KEPT)
                cells += [text("One more:"), shown]
        if title in ("Build", "Measure"):
            cells += [text("**Try it.** Set `rows` to 2: what moves?")]
            cells += [code("rows = 1", metadata=invited)]
        if title == "Exercises":
            for i in range(1, MIN_EXERCISES + 1):
                stub = code(f"answer_{i} = ...", metadata={"tags": [f"exercise-{i}-stub"]})
                ask = code(f"check(answer_{i}, {i})", metadata={"tags": [f"exercise-{i}-check"]})
                folded = {"tags": [f"exercise-{i}-solution", "hide-cell"], "jupyter": hidden}
                solution = code(f"answer_{i}_solution = {i}", metadata=folded)
                cells += [text("### Find the bug"), stub, text("Check it:"), ask]
                cells += [text("<details><summary>Hint</summary>Count.</details>"), solution]
        if title == "Pitfalls":
            cells += [text("### Further: why it adds", metadata={reading.COLLAPSED: True})]
            cells += [text("(Long.) " * MAX_WORDS), code("proof = True")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    printed = cells[2]
    printed.source = printed.source.replace("1", str(reading.minutes(notebook)))
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


PICTURE = nbformat.v4.new_output("display_data", data={"image/png": "", "text/plain": "<Figure>"})
BAD = {
    has_the_sections_in_order: [drop("## Decide")],
    begins_with_its_title: [drop("# The KV cache")],
    has_small_cells: [
        add("x = 1\n" * 16),
        add("x = 1  # " + "a" * 80),
        add("x = 1", metadata={"tags": ["hide-input"]}),
        lambda c: [cell.update(source="x = 1\n" * 7) for cell in c.code if not tags(cell)] and c,
    ],
    says_what_each_cell_is_for: [drop("Check it:")],
    predicts_and_explores: [edit("code", "quiz", source="answer = 2")],
    has_complete_exercises: [
        drop("answer_1_solution"),
        drop("Hint"),
        edit("code", "answer_1_sol", metadata={"tags": ["exercise-1-solution", "hide-cell"]}),
        edit("code", "check(answer_1", source="answer_1 == 1"),
        lambda c: [cell.update(source="### Sum") for cell in c.text if "bug" in cell.source] and c,
        lambda c: [cell.metadata.pop("tags") for cell in c.code if "answer_3" in cell.source] and c,
    ],
    is_stored_clean: [
        add("total", outputs=[OUTPUT]),
        add("total", execution_count=3, metadata=KEPT),
        add("total", outputs=[PICTURE], execution_count=3, metadata=KEPT),
        add("total", metadata={"execution": {"shell.execute_reply": "2026-11-20T08:00:00Z"}}),
    ],
    compares_outputs: [drop("total + 1")],
    has_alternative_text: [
        edit("markdown", "This cell", source="![](a.png)"),
        edit("markdown", "This cell", source='<img src="a.png" alt="">'),
        add("explore(draw_line, batch=[1, 2])"),
    ],
    is_kind: [edit("markdown", "This cell", source="Obviously, it adds.")],
    cites_by_links: [
        edit("markdown", "This cell", source="See {cite:t}`kwon2023`."),
        edit("markdown", "This cell", source="[Kwon 2023](https://arxiv.org/abs/2309.06180)"),
    ],
    runs_anywhere: [lambda c: c.notebook.metadata.pop("kernelspec") and c],
    defines_nothing_the_library_has: [
        add("def kv_cache_bytes(arch):\n    return 0"),
        add("for GB in range(3):\n    pass"),
    ],
    uses_nothing_forbidden: [add("!pip install torch")],
    fits_one_reading: [
        edit("markdown", "This cell", source="word " * MAX_WORDS),
        edit("markdown", "### Further", source="### A proof", metadata={}),
    ],
    prints_its_minutes: [drop("minutes to read"), add("x = 1\n" * 40)],
    marks_its_further_parts: [
        edit("markdown", "### Further", source="### Further: why\n\nIt adds."),
        edit("markdown", "### Further", metadata={}),
        edit("markdown", "## Where", source="The end.\n\n## Where this lives in real systems"),
    ],
    claims_in_folded_cells: [edit("code", "claim(", source="assert total == 19")],
    can_be_played_with: [
        lambda c: drop("**Try it.**")(c) and drop("rows = 1")(c),
        drop("**Try it.**"),
        edit("code", "rows = 1", metadata={}),
    ],
    can_be_changed_as_invited: [edit("code", "rows = 1", source="rows = 2")],
    has_no_asides: [
        edit("markdown", "This cell", source="It adds (exactly). (Does it?) It does."),
        edit("markdown", "This cell", source="It adds. (It multiplies on log axes)."),
    ],
}


def test_good_chapter_keeps_every_rule():
    chapter = good_chapter()
    complaints = {rule.__name__: rule(chapter) for rule in RULES}
    assert {name: found for name, found in complaints.items() if found} == {}


@pytest.mark.parametrize(
    ("rule", "mutate"),
    [(rule, mutate) for rule in RULES for mutate in BAD[rule]],
    ids=lambda function: function.__name__,
)
def test_rule_rejects(rule, mutate):
    assert rule(mutate(good_chapter())) != []
