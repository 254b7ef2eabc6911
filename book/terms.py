"""The words of the glossary and the letters of the notation: what they mean, where they stand.

Both pages are read as they are written. terms.yml says in which forms a word is found, and where
it means something else.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import nbformat
import reading
import yaml
from docutils import nodes
from markdown_it.token import Token

BOOK = Path(__file__).parent
NOTEBOOKS = BOOK.parent / "notebooks"
MOST_WORDS = 4  # in a word of the glossary
ARROW = re.compile(r"\s*\{chapter\}`(\w+)`")
# The parts of a chapter that teach; the others ask, warn or refer.
TEACHING = ("Explain", "Build", "Explore", "Measure")
MOST_CHAPTERS = 6  # under one entry of the index
# One letter of a formula, with its index and its star: `n_\text{in}`, `I^*`, `\gamma`.
LETTER = re.compile(r"(\\[A-Za-z]+|[A-Za-z])(_(?:\{[^}]*\}|\w|\\[A-Za-z]+))?(\^\*)?")
# In a formula, but no letter: operators, words that are no index, and the E of an expectation.
NO_LETTER = re.compile(r"(?<!_)\\(?:text|mathrm|mathbf|mathbb|operatorname)\{[^}]*\}")


@dataclass(frozen=True)
class Entry:
    """A word of the glossary, or a row of the notation's tables."""

    name: str  # as it is written; of a row "$G = N/K$"
    meaning: str  # Markdown
    chapter: str = ""  # the stem of the chapter that teaches a word
    letters: tuple[str, ...] = ()  # those of a row, as `letters_of` writes them

    @property
    def key(self) -> str:
        """The entry's name in addresses: letters that differ in case alone stay apart."""
        words = " ".join(("letter", *self.letters) if self.letters else (self.name,))
        return "-".join(re.findall("[A-Za-z0-9]+", words.replace("*", " star")))


# What the two pages say.


@cache
def glossary() -> tuple[Entry, ...]:
    """Return the words of the glossary, in the order of its source."""
    (block,) = re.findall(r"```\{glossary\}\n(.*?)```", read("glossary.md"), re.DOTALL)
    entries = []
    for name, meaning in re.findall(r"^([^\s:].*)\n((?:  .*\n)+)", block, re.MULTILINE):
        (chapter,) = ARROW.findall(meaning)
        entries.append(Entry(name, " ".join(ARROW.sub("", meaning).split()), chapter))
    return tuple(entries)


@cache
def notation() -> tuple[Entry, ...]:
    """Return the rows of the notation's tables that explain a letter; the rest are words."""
    entries = []
    for line in read("notation.md").splitlines():
        row = re.fullmatch(r"\| (\$.*\$) \| (.*?) \| (.*)\|", line)
        if row:
            name, meaning, unit = row.groups()
            text = f"{meaning}, in {unit.strip()}" if unit.strip() else meaning
            letters = tuple(
                written(formula.partition("=")[0]) for formula in re.findall(r"\$([^$]+)\$", name)
            )
            entries.append(Entry(name, f"{text[0].upper()}{text[1:]}.", letters=letters))
    return tuple(entries)


def read(name: str) -> str:
    return (BOOK / name).read_text("utf-8")


@cache
def rules() -> dict:
    return yaml.safe_load(read("terms.yml"))


def number(stem: str) -> int | str:
    """Return a chapter's number, or its letter."""
    first = stem.partition("_")[0]
    return int(first) if first.isdigit() else first


def holds(rules: dict, name: str, chapter: str) -> bool:
    """Say whether a word or letter means in a chapter what its page says."""
    here = number(chapter)
    return here in rules["only"].get(name, [here]) and here not in rules["never"].get(name, [])


def inline(markdown: str) -> list[nodes.Node]:
    """Return a line of the two pages as a page shows it; a word that is linked there is text.

    >>> [type(node).__name__ for node in inline("the **target**'s distribution, $p$")]
    ['Text', 'strong', 'Text', 'math']
    """
    text = re.sub(r"\{term\}`([^`<]+?)(?: <[^`]*)?`", r"\1", markdown)
    (line,) = reading.MARKDOWN.parseInline(text)
    kinds = {"math_inline": nodes.math, "code_inline": nodes.literal, "text": nodes.Text}
    kinds |= {"em_open": nodes.emphasis, "strong_open": nodes.strong}
    around = [nodes.inline()]
    for token in line.children:
        if token.type == "text":
            around[-1] += nodes.Text(token.content)
        elif token.nesting == 0:
            around[-1] += kinds[token.type](token.content, token.content)
        elif token.nesting > 0:
            around.append(kinds[token.type]())
        else:
            done = around.pop()
            around[-1] += done
    return around[0].children


# Words in text.


def forms(entry: Entry) -> list[str]:
    """Return the forms of a word, without plurals.

    >>> forms(Entry("KV head", ""))
    ['KV head', 'key-value head']
    """
    return [entry.name, *rules()["also"].get(entry.name, [])]


def pattern(form: str) -> str:
    """Return the regular expression of a form: plural, hyphens, a capital at the beginning.

    >>> bool(re.fullmatch(pattern("memory-bound"), "Memory bound"))
    True
    >>> [bool(re.fullmatch(pattern("KV cache"), text)) for text in ("KV caches", "kv cache")]
    [True, False]
    """
    letters = re.escape(form).replace(r"\ ", "[ -]").replace(r"\-", "[ -]").replace("'", "['’]")
    if form[0].islower():
        letters = f"[{form[0]}{form[0].upper()}]{letters[1:]}"
    if form.endswith("y") and form[-2] not in "aeiou":
        return f"{letters[:-1]}(?:y|ies)"
    return f"{letters}(?:e?s)?"


@cache
def words() -> tuple[re.Pattern, dict[str, Entry | None]]:
    """Return what finds all words, longest first, and whose group belongs to which of them."""
    found = [(form, entry) for entry in glossary() for form in forms(entry)]
    found += [(phrase, None) for phrase in rules()["not"]]
    found.sort(key=lambda pair: -len(pair[0]))
    groups = {f"w{i}": entry for i, (_, entry) in enumerate(found)}
    either = "|".join(f"(?P<w{i}>{pattern(form)})" for i, (form, _) in enumerate(found))
    return re.compile(rf"(?<![\w-])(?:{either})(?![\w-])"), groups


def find_words(text: str, chapter: str) -> Iterator[tuple[int, int, Entry]]:
    """Yield start, end and entry of each word of the glossary in a chapter's text."""
    finder, groups = words()
    for match in finder.finditer(text):
        entry = groups[match.lastgroup]
        if entry and holds(rules(), entry.name, chapter):
            yield *match.span(), entry


# Letters in formulas.


def written(formula: str) -> str:
    r"""Return a formula in one of the ways in which it can be written.

    >>> [written(formula) for formula in (r"n_\text{in}", "n_{in}", r"n_{\mathrm{in}}", r"b_w ")]
    ['n_{in}', 'n_{in}', 'n_{in}', 'b_w']
    """
    formula = re.sub(r"_\{?\\(?:text|mathrm)\{(\w+)\}\}?", r"_{\1}", formula)
    return re.sub(r"\s|\\[,;!]", "", formula)


def letters_of(formula: str) -> list[str]:
    r"""Return the letters of a formula, as often as they stand in it.

    >>> letters_of(r"\kappa = 2 K H L\, b_{kv}")
    ['\\kappa', 'K', 'H', 'L', 'b_{kv}']
    """
    formula = re.sub(r"_\{?\\(?:text|mathrm)\{(\w+)\}\}?", r"_{\1}", formula)
    formula = NO_LETTER.sub(" ", formula).replace(r"\mathit{tp}", "tp")
    return ["".join(found.groups("")) for found in LETTER.finditer(formula)]


@cache
def rows() -> dict[str, Entry]:
    """Return the row of each letter; in its chapters a distribution's letter may stand alone."""
    found = {letter: entry for entry in notation() for letter in entry.letters}
    return found | {letter[0]: found[letter] for letter in found if letter.endswith("(x)")}


def find_letter(formula: str, chapter: str) -> Entry | None:
    """Return the row of a formula that is one letter and nothing else."""
    entry = rows().get(written(formula))
    return entry if entry and stands(entry, chapter) else None


def stands(entry: Entry, chapter: str) -> bool:
    return all(holds(rules()["letters"], letter, chapter) for letter in entry.letters)


# Sections of chapters.


@dataclass(eq=False)
class Section:
    """A heading and the text up to the next one: which entries it names, which it explains."""

    chapter: str
    heading: str
    part: str  # the heading of level 2 that it belongs to, or its own
    named: Counter[Entry] = field(default_factory=Counter)
    stressed: set[Entry] = field(default_factory=set)  # in italics or bold: how chapters define


@cache
def sections() -> tuple[Section, ...]:
    """Return the sections of all chapters, as they follow each other."""
    return tuple(s for path in sorted(NOTEBOOKS.glob("*.ipynb")) for s in sections_of(path))


def sections_of(path: Path) -> list[Section]:
    found = []
    cells = nbformat.read(path, as_version=4).cells
    for cell in (cell for cell in cells if cell.cell_type == "markdown"):
        tokens = reading.MARKDOWN.parse(cell.source)
        for before, token in zip([None, *tokens], tokens, strict=False):
            if before and before.type == "heading_open":
                heading = shown(token)
                level = int(before.tag[1:])
                part = heading if level < 3 else found[-1].part
                found.append(Section(path.stem, heading, part))
            elif token.type == "math_block":
                note_formula(found[-1], token.content)
            elif token.type == "inline":
                note(found[-1], token)
    return found


def note(section: Section, token: Token) -> None:
    """Note the entries in a piece of text."""
    opened = None  # the first piece of what stands in italics or bold
    for index, child in enumerate(token.children):
        if child.type in ("em_open", "strong_open"):
            opened = index
        elif child.type in ("em_close", "strong_close") and opened is not None:
            text = "".join(piece.content for piece in token.children[opened:index])
            if is_name(text):
                section.stressed |= {e for _, _, e in find_words(text, section.chapter)}
            opened = None
        elif child.type == "math_inline":
            note_formula(section, child.content)
        # A word in the font of code counts where it stands alone.
        elif child.type in ("text", "code_inline"):
            for start, end, entry in find_words(child.content, section.chapter):
                if child.type == "text" or child.content == child.content[start:end]:
                    section.named[entry] += 1


def is_name(stressed: str) -> bool:
    """Say whether what is in italics or bold may be a word that is explained, not a sentence."""
    return len(stressed.split()) <= MOST_WORDS


def note_formula(section: Section, formula: str) -> None:
    for letter in letters_of(formula):
        entry = rows().get(letter)
        if entry and stands(entry, section.chapter):
            section.named[entry] += 1


def shown(token: Token) -> str:
    """Return the text of a heading."""
    return "".join(child.content for child in token.children)


# Where a reader finds them.


@cache
def explained(entry: Entry) -> Section:
    """Return the section that explains a word.

    Raises:
        ValueError: if neither the chapter nor terms.yml says which one it is.
    """
    own = [section for section in sections() if section.chapter == entry.chapter]
    heading = rules()["explained"].get(entry.name)
    if heading:
        found = [section for section in own if section.heading == heading]
    else:
        stressed = [section for section in own if entry in section.stressed]
        found = [section for section in stressed if section.part in TEACHING] or stressed
        taught = [section for section in own if section.part in TEACHING and section.named[entry]]
        found = found or sorted(taught, key=lambda section: -section.named[entry])
    if not found:
        raise ValueError(
            f"terms.yml: no section of {entry.chapter} explains {entry.name!r}; "
            "expected a heading under `explained`"
        )
    return found[0]


@cache
def used(entry: Entry) -> tuple[Section, ...]:
    """Return the sections that use an entry, the first of each chapter, in reading order.

    The chapter that explains a word is left out. A word counts where a section names it twice, a
    letter where it stands in a formula. Of a word that is everywhere, the chapters that use it most
    are given.
    """
    least = 1 if entry.letters else 2
    firsts, total = {}, Counter()
    for section in sections():
        if section.chapter == entry.chapter:
            continue
        if section.part in TEACHING and section.named[entry] >= least:
            firsts.setdefault(section.chapter, section)
        total[section.chapter] += section.named[entry]
    most = sorted(firsts, key=lambda chapter: -total[chapter])[:MOST_CHAPTERS]
    return tuple(section for chapter, section in firsts.items() if chapter in most)
