"""Start a chapter: `make new-chapter TOPIC=beam_search`.

Writes the next chapter with its module, tests, assignment and wrong submissions, from
templates/chapter/, and enters it wherever the book lists its chapters. What comes out is a small
whole chapter that passes all rules; replace its content step by step and keep the tests green.
Needs nothing but Python.
"""

import argparse
import bisect
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "templates" / "chapter"
QUESTION = "{title}: how often do two ", "independent draws from a model agree?"
PICTURE = '''
def {topic}(ax: Axes) -> None:
    """How often two draws agree, at a rising temperature."""
    logits, taus = _next_logits(), np.linspace(0.1, 3, 40)
    shares = [agreement(softmax(logits / tau)) for tau in taus]
    ax.plot(taus, shares, color=COLORS["decode"], lw=4)
    ax.set(ylim=(0, 1.05))
'''
LINE = 100  # characters, as for ruff
SIMPSON = """
@article{simpson1949,
  title = {Measurement of Diversity},
  author = {Simpson, Edward H.},
  journal = {Nature},
  volume = {163},
  pages = {688},
  year = {1949},
  url = {https://doi.org/10.1038/163688a0}
}
"""


class Refused(Exception):
    """A chapter cannot be made; the message says why, in one line."""


def new_chapter(topic: str, root: Path = ROOT) -> list[Path]:
    """Write a chapter into the book at `root` and enter it everywhere; return the new files.

    Raises: Refused for a name that is no topic's, or that is taken.
    """
    if not re.fullmatch("[a-z]+(_[a-z]+)*", topic):
        raise Refused(f"TOPIC must be words of small letters joined by _; got {topic!r}")
    last = max(path.stem for path in (root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    number = f"{int(last[:2]) + 1:02}"
    stem, title = f"{number}_{topic}", topic.replace("_", " ").capitalize()

    def filled(text: str) -> str:
        text = text.replace("TOPIC", topic).replace("TITLE", title).replace("NUMBER", number)
        # The topic's own import stands where its name belongs, as the linter wants it.
        imports = r"(?m)(^ *\"?from firsttoken\..*\n)+"
        return re.sub(imports, lambda found: "".join(sorted(found[0].splitlines(True))), text)

    templates = [path for path in sorted(TEMPLATE.rglob("*")) if path.is_file()]
    places = {filled(str(path.relative_to(TEMPLATE))): path for path in templates}
    # Left out: settings of tools, and what tools left behind.
    files = {place: path for place, path in places.items() if not re.search(r"(^|/)[._]", place)}
    taken = [*files, f"lib/firsttoken/{topic}", f"tests/{topic}"]
    taken += [str(p.relative_to(root)) for p in root.glob(f"notebooks/[0-9][0-9]_{topic}.ipynb")]
    for place in taken:
        if (root / place).exists():
            raise Refused(f"{place} is there already. Choose another TOPIC")

    written = {root / place: filled(path.read_text("utf-8")) for place, path in files.items()}
    chapter = json.loads(written[root / "notebooks" / f"{stem}.ipynb"])
    entries = {
        "book/_toc.yml": lambda text: after_last(
            text, r"      - file: notebooks/\d\d_.*\n", f"      - file: notebooks/{stem}\n"
        ),
        "README.md": lambda text: after_last(
            text,
            r"\| \d\d \| \[.*\]\(notebooks/.*\n",
            f"| {number} | [{title}](notebooks/{stem}.ipynb) | {question(title)} |\n",
        ),
        "lib/firsttoken/page/start.py": lambda text: after_last(
            text,
            r"            Chapter\(\n(?:                .*\n)+            \),\n",
            on_map(stem, title),
        ),
        "book/cards.py": lambda text: with_picture(text, stem, topic),
        ".importlinter": lambda text: in_its_layer(text, topic),
        "book/teaching.md": lambda text: in_tables(text, number, topic, title, chapter),
        "book/references.bib": lambda text: text if "{simpson1949," in text else text + SIMPSON,
        "TUTOR.md": lambda text: after_last(text, r"\| `\d\d_\w+` \|.*\n", stumbles(stem)),
    }
    written |= {root / p: enter((root / p).read_text("utf-8")) for p, enter in entries.items()}
    # Nothing is written before all is ready.
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return [root / place for place in files]


def question(title: str) -> str:
    """Return the question of a new chapter; no two chapters may ask the same."""
    return "".join(QUESTION).format(title=title)


def after_last(text: str, pattern: str, line: str) -> str:
    """Return the text with a line behind the last place that fits a pattern."""
    *_, last = re.finditer(f"^{pattern}", text, re.MULTILINE)
    return text[: last.end()] + line + text[last.end() :]


def on_map(stem: str, title: str) -> str:
    """Return a chapter's entry in the map of the book."""
    asked = [f'"{question(title)}",']
    if len(asked[0]) > LINE - 16:
        asked = [f'"{QUESTION[0].format(title=title)}"', f'"{QUESTION[1]}",']
    lines = [f'"{stem}",', f'"{title}",', *asked, '"IV",', '("01_generate",),']
    lines += ["n_quizzes=1,", "n_exercises=3,"]
    inside = "".join(f"{16 * ' '}{line}\n" for line in lines)
    return f"            Chapter(\n{inside}            ),\n"


def with_picture(text: str, stem: str, topic: str) -> str:
    """Return the program of the cards with a picture for a chapter."""
    lines = text.splitlines(keepends=True)
    imports = [i for i, line in enumerate(lines) if line.startswith("from firsttoken.")]
    at = bisect.bisect([lines[i].split()[1] for i in imports], f"firsttoken.{topic}")
    lines.insert(imports[0] + at, f"from firsttoken.{topic} import agreement\n")
    text = "".join(lines)
    text = text.replace("\nPICTURES = {", PICTURE.format(topic=topic) + "\n\nPICTURES = {")
    return after_last(text, r'    "\d\d_\w+": \w+,\n', f'    "{stem}": {topic},\n')


def in_its_layer(text: str, topic: str) -> str:
    """Return the plan of the house with a module among the algorithms, which need NumPy only."""
    layer = re.search(r"(?<=    # algorithms: arrays in, arrays out\n    ).*", text)
    modules = sorted([*layer[0].split(" : "), topic])
    return text[: layer.start()] + " : ".join(modules) + text[layer.end() :]


def in_tables(text: str, number: str, topic: str, title: str, chapter: dict) -> str:
    """Return the teacher's page with a chapter and its assignment."""
    prose = "".join("".join(cell["source"]) for cell in chapter["cells"])
    read, more = map(int, re.search(r"(\d+) minutes to read, (\d+) more", prose).groups())
    row = f"| {number} {title} | 01 | {read} minutes | {read + more} minutes |\n"
    text = after_last(text, r"\| \d\d .*minutes \| \d+ minutes \|\n", row)
    work = f"| {topic} | {number} | 30 | a measure of how often two models say the same |\n"
    return after_last(text, r"\| \w+ \| \d\d \| \d+ \|.*\n", work)


def stumbles(stem: str) -> str:
    """Return a chapter's row for assistants, in the words of its checks."""
    words = (
        "They also agree when both are another token.",
        "A draw makes no pair with itself.",
        "Two draws agree as often as one draw is the likeliest token.",
    )
    return f"| `{stem}` | {' '.join(f'“{each}”' for each in words)} |\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    topic = parser.parse_args(arguments).topic
    try:
        made = new_chapter(topic)
    except Refused as refused:
        print(f"First Token: {refused}.", file=sys.stderr)
        return 1
    (notebook,) = (path for path in made if path.parent.name == "notebooks")
    print("Written:", *(f"  {path.relative_to(ROOT)}" for path in made), sep="\n")
    print("And entered wherever chapters are listed; `git diff` shows where. Now:")
    print(f"  make lab CHAPTER={notebook.stem[:2]}")
    print(f"  .venv/bin/python -m pytest tests tests/check/grading -k '{topic}'")
    print(f"  make proof CHAPTER={notebook.stem[:2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
