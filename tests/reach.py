"""Which cells of a chapter edits of some of them can reach.

It goes by names, and errs towards running a cell. A name is touched if the edit may give it another
value: a statement that was edited or reached binds it or may change its value in place (calls a
method of it, assigns into it, hands it to a call). A statement that reads a touched name is
reached, also if only a function that it uses reads it, and its cell runs. Two names for one list
are not seen through.
"""

import ast
import builtins
import copy
import itertools
import re
import symtable
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

CODE = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
IMPORT = ast.Import | ast.ImportFrom
SEES_ALL = {"globals", "locals", "exec", "eval", "get_ipython", "_"}
# What these are handed they only look at; what iterates may use up what it is handed.
LOOKS = {"abs", "float", "int", "isinstance", "len", "print", "range", "repr", "round", "str"}
# Without an argument such a call reads all names, with one it reads what it is given.
OF_ALL = {"vars", "dir"}
# A line for the shell binds nothing, and reads what stands in braces: as text with names in it.
SHELL = re.compile(r"^( *)!([^$\n]*)$", re.MULTILINE)


@dataclass(eq=False)
class Facts:
    """What a statement does with the names of the chapter, functions in it included."""

    reads: set[str] = field(default_factory=set)
    wants: set[str] = field(default_factory=set)  # reads before its statement has bound them
    needs: set[str] = field(default_factory=set)  # reads before the cell has bound them
    binds: set[str] = field(default_factory=set)  # or deletes
    surely: set[str] = field(default_factory=set)  # of those: whatever happens
    changes: set[str] = field(default_factory=set)  # assigns into
    calls_on: set[str] = field(default_factory=set)  # calls a method of, or hands to a call
    imports: bool = False
    has_code: bool = False  # defines a function or a class
    gives_code: bool = False  # and a value that it changes may hold that afterwards
    source: str = ""  # of the whole statement of the cell that this is a part of


Held = dict[str, set[Facts]]  # of functions, and of what holds some: what calling them does


def cells_to_run(
    sources: Sequence[str],
    edits: Mapping[int, str],
    constant: Collection[str] = (),
    always_constant: Collection[str] = (),
) -> list[int]:
    """Return which cells must run once those in `edits` have other sources.

    They are the edited ones, those that these reach, and those that bind or change what one of
    these reads. What stands above the first edit has run; `constant` names what has then a value
    that no call can change, `always_constant` what never has another in a run without edits. There
    a value that an edit does not touch is the same, so no call can change it after an edit either.
    """
    first = min(edits)
    try:
        cells = [_statements(source) for source in sources]
        new = {index: _statements(source) for index, source in edits.items()}
    except SyntaxError:  # a magic, for one, may do anything
        return list(range(first, len(sources)))
    parts = [part for cell in (*cells, *new.values()) for part in cell]
    own = set().union(*(part.binds for part in parts if not part.imports))
    imported = set(dir(builtins)).union(*(part.binds for part in parts if part.imports))
    later = set().union(*(part.binds for cell in (*cells[first:], *new.values()) for part in cell))
    fixed = (set(constant) - later) | set(always_constant) | (imported - own)
    held: Held = {}
    touched, run, effects = set[str](), set(edits), []
    for index, cell in enumerate(cells):
        now, so_far = new.get(index, cell), dict(held)
        usable = _define(cell, held, fixed)
        if index in edits:
            usable = _merge(usable, _define(now, held, fixed))
            held = dict(usable)
        effects.append(_effects(now, usable, fixed))
        if index < first:
            continue
        gone, made = _changed(cell, now)
        touched |= _effects(gone, usable, fixed)[1]
        for statement in _whole(now):
            here = usable if index in edits else _define(statement, so_far, fixed)
            reads, alters, surely = _effects(statement, here, fixed, by_itself=True)
            if reads & touched or not made.isdisjoint(statement):
                run.add(index)
                touched |= alters
            else:
                touched -= surely
    for index in range(len(cells) - 1, first, -1):
        for name in effects[index][0] if index in run else ():
            for above in range(index - 1, first, -1):
                if name in effects[above][1]:
                    run.add(above)
                if name in effects[above][2]:
                    break
    return sorted(run)


def cells_needed(sources: Sequence[str], wanted: Collection[int]) -> list[int]:
    """Return the cells that must have run for the wanted ones to run, and these themselves.

    A cell is needed if it binds a name, or assigns into one, that a needed cell below it reads.
    What calls change is not followed: a cell that misses it shows it by an error.
    """
    needed, names = set(wanted), set[str]()
    for index in range(max(wanted, default=-1), -1, -1):
        parts = _statements(sources[index])
        gives = set().union(*(part.binds | part.changes for part in parts))
        if index in needed or gives & names:
            needed.add(index)
            names = names.union(*(part.reads for part in parts))
    return sorted(needed)


def _define(cell: Sequence[Facts], held: Held, fixed: set[str]) -> Held:
    """Note which names hold functions after a cell, and return which do at some time in it."""
    usable = dict(held)
    for part in cell:
        seen = set().union(*(held[name] for name in part.reads & held.keys()))
        for name in part.changes | (part.calls_on - fixed):
            held[name] = held.get(name, set()) | seen | ({part} if part.gives_code else set())
        for name in part.binds:
            holds = seen | ({part} if part.has_code else set())
            held[name] = holds if name in part.surely else holds | held.get(name, set())
        usable = _merge(usable, held)
    return usable


def _merge(one: Held, other: Held) -> Held:
    return {name: one.get(name, set()) | other.get(name, set()) for name in one | other}


def _changed(before: Sequence[Facts], now: Sequence[Facts]) -> tuple[Sequence[Facts], set[Facts]]:
    """Return the parts of a cell from the first to the last that an edit changed: old and new."""
    pairs = zip(before, now, strict=False)
    head = sum(1 for _ in itertools.takewhile(_is_same, pairs))
    backwards = zip(reversed(before[head:]), reversed(now[head:]), strict=False)
    tail = sum(1 for _ in itertools.takewhile(_is_same, backwards))
    return before[head : len(before) - tail], set(now[head : len(now) - tail])


def _is_same(pair: tuple[Facts, Facts]) -> bool:
    return pair[0].source == pair[1].source


def _whole(cell: Sequence[Facts]) -> list[list[Facts]]:
    """Return the parts of each statement of a cell."""
    return [list(parts) for _, parts in itertools.groupby(cell, key=lambda part: part.source)]


def _effects(
    cell: Sequence[Facts], held: Held, fixed: set[str], by_itself: bool = False
) -> tuple[set[str], set[str], set[str]]:
    """Return what a cell reads, what it binds or changes, and what it surely binds.

    Of a statement `by_itself` also what it reads of those above it in the cell.
    """
    reads, alters, surely, done = set[str](), set[str](), set[str](), set[str]()
    for part in cell:
        reads |= part.wants if by_itself else part.needs
        alters |= part.binds | part.changes | (part.calls_on - fixed)
        surely |= part.surely
    while names := reads - done:
        done |= names
        for code in set().union(*(held.get(name, set()) for name in names)):
            reads |= code.reads
            alters |= code.changes | (code.calls_on - fixed)
    return reads, alters, surely


def _statements(source: str) -> list[Facts]:
    found: list[Facts] = []
    tree = ast.parse(SHELL.sub(lambda line: f"{line[1]}f{line[2]!r}", source))
    bound = set[str]()
    for node in tree.body:
        _follow([node], here := set(), True, parts := [])
        for part in parts:
            part.needs = part.wants - bound
            part.source = ast.unparse(node)
        bound |= here
        found += parts
    calls = (part for part in ast.walk(tree) if isinstance(part, ast.Call))
    bare = {ast.unparse(call.func) for call in calls if not call.args}
    if bare & OF_ALL or any(part.reads & SEES_ALL for part in found):
        raise SyntaxError("it may read any name")
    return found


def _follow(body: list[ast.stmt], bound: set[str], surely: bool, found: list[Facts]) -> None:
    """Append what statements do, where the names `bound` are bound already."""
    for node in body:
        if isinstance(node, ast.For | ast.While | ast.If | ast.With):
            head = copy.copy(node)
            head.body = [ast.Pass()]
            if not isinstance(node, ast.With):
                head.orelse = []
            facts = _facts(head, node)
            facts.wants = facts.reads - bound
            found.append(facts)
            in_body = facts.binds if isinstance(node, ast.For | ast.With) else set()
            _follow(node.body, bound | in_body, False, found)
            _follow(getattr(node, "orelse", []), set(bound), False, found)
            continue
        facts = _facts(node, node)
        facts.wants = facts.reads - bound
        maybe = any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
        if isinstance(node, ast.Assign | IMPORT | ast.FunctionDef | ast.ClassDef) and not maybe:
            bound |= facts.binds
            facts.surely = facts.binds if surely else set()
        found.append(facts)


class _Scopes(ast.NodeTransformer):
    """Make comprehensions generators: since Python 3.12 only those keep their names apart."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def _facts(node: ast.stmt, whole: ast.stmt) -> Facts:
    """Return what a statement does; of a block its head, whose names its `whole` may change."""
    facts = Facts(imports=isinstance(node, IMPORT))
    top = symtable.symtable(ast.unparse(_Scopes().visit(copy.deepcopy(node))), "cell", "exec")
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for name in table.get_symbols():
            if table is top or name.is_global():
                if name.is_referenced():
                    facts.reads.add(name.get_name())
                if name.is_assigned() or name.is_imported():
                    (facts.binds if table is top else facts.changes).add(name.get_name())
    names = facts.reads | facts.binds
    for part in ast.walk(node):
        if isinstance(part, CODE):
            facts.has_code = True
            # A function without others in it, which does not name itself, can only be called;
            # to a decorator it is handed.
            given = getattr(node, "decorator_list", []) or facts.binds & facts.reads
            facts.gives_code |= part is not node or bool(given)
        if isinstance(part, ast.alias) and part.name == "*":
            raise SyntaxError("it may bind any name")
        if isinstance(part, ast.AugAssign):
            facts.reads |= _bases(part.target) & names
    changes, calls_on = _in_place(whole)
    facts.changes |= changes & names
    facts.calls_on |= calls_on & names
    return facts


def _in_place(node: ast.stmt) -> tuple[set[str], set[str]]:
    """Return into which names a statement assigns, and of which a call may change the value."""
    changes, calls_on, loops = set[str](), set[str](), []
    for part in ast.walk(node):
        match part:
            case ast.Attribute() | ast.Subscript() if not isinstance(part.ctx, ast.Load):
                changes |= _bases(part)
            case ast.AugAssign():
                changes |= _bases(part.target)
            case ast.Call(func=ast.Name(id=name)) if name in LOOKS:
                pass
            case ast.Call():
                given = [*part.args, *(keyword.value for keyword in part.keywords)]
                handed = [each for each in given if isinstance(each, ast.Name | ast.Starred)]
                calls_on = calls_on.union(*map(_bases, handed))
                if isinstance(part.func, ast.Attribute):
                    calls_on |= _bases(part.func)
            case ast.For() | ast.comprehension():
                loops.append(part)
    for loop in loops:  # who changes an item changes what it is an item of
        items = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}
        if items & (changes | calls_on):
            calls_on |= {part.id for part in ast.walk(loop.iter) if isinstance(part, ast.Name)}
    return changes, calls_on


def _bases(node: ast.expr) -> set[str]:
    """Return whose value changes with that of an expression: `a` of `a.b[i]`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
