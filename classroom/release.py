"""Write the student versions of all assignments: python classroom/release.py FOLDER

Solutions and hidden tests are left out. nbgrader's own generate_assignment gives the same notebooks
where a course is kept on a hub; these are for a course that hands out files.
"""

import sys
from pathlib import Path

import nbformat
from course import run, write_whole
from marking import release

ROOT = Path(__file__).parents[1]


def write_releases(source: Path, folder: Path) -> list[Path]:
    """Write the student version of each assignment in `source`, with the files that go with it."""
    written = []
    for path in sorted(source.glob("*/*.ipynb")):
        target = folder / path.parent.name
        for other in path.parent.iterdir():
            if other.is_file() and other.suffix != ".ipynb":
                write_whole(target / other.name, other.read_bytes())
        text = nbformat.writes(release(nbformat.read(path, as_version=4)))
        write_whole(target / path.name, text + "\n")
        written.append(target / path.name)
    return written


def main() -> None:
    """Write what the command line asks for."""
    for path in write_releases(ROOT / "assignments", Path(sys.argv[1])):
        print(path)


if __name__ == "__main__":
    run(main)
