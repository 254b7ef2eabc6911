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
import re
import symtable
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

IMPORT = ast.Import | ast.ImportFrom
CODE = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
SEES_ALL = {"globals", "locals", "exec", "eval", "get_ipython", "_"}
# What these are handed they only look at; what iterates may use up what it is handed.
LOOKS = {"abs", "float", "int", "isinstance", "len", "print", "range", "repr", "round", "str"}
# Without an argument such a call reads all names, with one it reads what it is given.
OF_ALL = {"vars", "dir"}
# A line for the shell binds nothing, and reads what stands in braces: as text with names in it.
SHELL = re.compile(r"^( *)!([^$\n]*)$", re.MULTILINE)


@dataclass(eq=False)
class Statement:
    """What a statement does with the names of the chapter, functions in it included."""

    source: str
    imports: bool
    has_code: bool  # defines a function or a class
    reads: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)  # or deletes
    surely: set[str] = field(default_factory=set)  # of those: whatever happens
    changes: set[str] = field(default_factory=set)  # assigns into
    calls_on: set[str] = field(default_factory=set)  # calls a method of, or hands to a call


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
        old = [_statements(source) for source in sources]
        new = [_statements(edits.get(index, source)) for index, source in enumerate(sources)]
    except SyntaxError:  # a magic, for one, may do anything
        return list(range(first, len(sources)))
    everything = [statement for cell in (*old, *new) for statement in cell]
    own = set().union(*(s.binds for s in everything if not s.imports))
    imported = set(dir(builtins)).union(*(s.binds for s in everything if s.imports))
    later = set().union(*(s.binds for cell in (*old[first:], *new[first:]) for s in cell))
    fixed = (set(constant) - later) | set(always_constant) | (imported - own)
    held: dict[str, set[Statement]] = {}  # of functions, and of what holds some: their code
    touched, run, effects = set[str](), set(edits), []
    for index, (before, now) in enumerate(zip(old, new, strict=True)):
        known, still = {s.source for s in before}, {s.source for s in now}
        reads, alters, surely = set[str](), set[str](), set[str]()
        for statement in [*(s for s in before if s.source not in still), *now]:
            _hold(statement, held, fixed)
            uses, changes = _effects(statement, held, fixed)
            if statement.source not in still:
                touched |= changes
                continue
            reads |= uses - surely
            alters |= changes
            surely |= statement.surely
            if index >= first and (uses & touched or statement.source not in known):
                run.add(index)
                touched |= changes
            else:
                touched -= statement.surely
        effects.append((reads, alters, surely))
    for index in range(len(new) - 1, first, -1):
        for name in effects[index][0] if index in run else ():
            for above in range(index - 1, first, -1):
                if name in effects[above][1]:
                    run.add(above)
                if name in effects[above][2]:
                    break
    return sorted(run)


def without_slow(
    sources: Sequence[str], edits: Mapping[int, str], chosen: Sequence[int], slow: Collection[int]
) -> list[int]:
    """Return `chosen` without slow cells, and without those that read what such a cell binds.

    An edited cell stays.
    """
    held: dict[str, set[Statement]] = {}
    missing, kept = set[str](), []
    for index, source in enumerate(sources):
        try:
            statements = _statements(edits.get(index, source))
        except SyntaxError:  # a magic, for one, may read anything
            kept += [index] if index in chosen and not missing else []
            continue
        reads, binds, surely = set[str](), set[str](), set[str]()
        for statement in statements:
            _hold(statement, held, set())
            reads |= _effects(statement, held, set())[0] - surely
            binds |= statement.binds | statement.changes
            surely |= statement.surely
        if index not in chosen:
            continue
        if index in edits or (index not in slow and not reads & missing):
            kept.append(index)
            missing -= surely
        else:
            missing |= binds
    return kept


def cells_needed(sources: Sequence[str], wanted: Collection[int]) -> list[int]:
    """Return the cells that must have run for the wanted ones to run, and these themselves.

    A cell is needed if it binds a name, or assigns into one, that a needed cell below it reads.
    What calls change is not followed: a cell that misses it shows it by an error.
    """
    needed, names = set(wanted), set[str]()
    for index in range(max(wanted, default=-1), -1, -1):
        statements = _statements(sources[index])
        gives = set().union(*(s.binds | s.changes for s in statements))
        if index in needed or gives & names:
            needed.add(index)
            names = names.union(*(s.reads for s in statements))
    return sorted(needed)


def _hold(statement: Statement, held: dict[str, set[Statement]], fixed: set[str]) -> None:
    """Note which names may hold functions after a statement."""
    code = {statement} if statement.has_code else set()
    code = code.union(*(held.get(name, set()) for name in statement.reads))
    for name in statement.binds | statement.changes | (statement.calls_on - fixed):
        held[name] = code if name in statement.surely else code | held.get(name, set())


def _effects(
    statement: Statement, held: Mapping[str, set[Statement]], fixed: set[str]
) -> tuple[set[str], set[str]]:
    """Return what a statement reads, and what it binds or changes; also by calling functions."""
    reads, done = set(statement.reads), set[str]()
    alters = statement.binds | statement.changes | (statement.calls_on - fixed)
    while names := reads - done:
        done |= names
        for code in set().union(*(held.get(name, set()) for name in names)):
            reads |= code.reads
            alters |= code.changes | (code.calls_on - fixed)
    return reads, alters


def _statements(source: str) -> list[Statement]:
    tree = ast.parse(SHELL.sub(lambda line: f"{line[1]}f{line[2]!r}", source))
    bare = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call) and not n.args}
    found = [_statement(node) for node in tree.body]
    if bare & OF_ALL or any(statement.reads & SEES_ALL for statement in found):
        raise SyntaxError("it may read any name")
    return found


class _Scopes(ast.NodeTransformer):
    """Make comprehensions generators: since Python 3.12 only those keep their names apart."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def _statement(node: ast.stmt) -> Statement:
    inside = list(ast.walk(node))
    if any(isinstance(part, ast.alias) and part.name == "*" for part in inside):
        raise SyntaxError("it may bind any name")
    found = Statement(
        ast.unparse(node), isinstance(node, IMPORT), any(isinstance(part, CODE) for part in inside)
    )
    top = symtable.symtable(ast.unparse(_Scopes().visit(copy.deepcopy(node))), "cell", "exec")
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                if symbol.is_referenced():
                    found.reads.add(symbol.get_name())
                if symbol.is_assigned() or symbol.is_imported():
                    (found.binds if table is top else found.changes).add(symbol.get_name())
    names = found.reads | found.binds
    loops = [node.iter] if isinstance(node, ast.For) else []
    loops += [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
    if loops:  # its own variables it binds before its body reads them
        own = [node.target] if isinstance(node, ast.For) else []
        own += [i.optional_vars for i in node.items if i.optional_vars] if not own else []
        found.reads -= set().union(*map(_bases, own)) - set().union(*map(_bases, loops))
    found.reads |= {
        n for p in inside if isinstance(p, ast.AugAssign) for n in _bases(p.target)
    } & names
    if isinstance(node, ast.Assign | IMPORT | ast.FunctionDef | ast.ClassDef):
        maybe = any(isinstance(part, ast.NamedExpr) for part in inside)
        found.surely = set() if maybe else set(found.binds)
    changes, calls_on = _in_place(inside)
    found.changes |= changes & names
    found.calls_on |= calls_on & names
    return found


def _in_place(inside: Sequence[ast.AST]) -> tuple[set[str], set[str]]:
    """Return into which names a statement assigns, and of which a call may change the value."""
    changes, calls_on, loops = set[str](), set[str](), []
    for part in inside:
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
