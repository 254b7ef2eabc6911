"""Write the student versions of all assignments: python classroom/release.py FOLDER

Solutions and hidden tests are left out. nbgrader's own generate_assignment gives the same notebooks
where a course is kept on a hub; these are for a course that hands out files.
"""

import shutil
import sys
from pathlib import Path

import nbformat
from marking import release

ROOT = Path(__file__).parents[1]


def write_releases(source: Path, folder: Path) -> list[Path]:
    """Write the student version of each assignment in `source`, with the files that go with it."""
    written = []
    for path in sorted(source.glob("*/*.ipynb")):
        target = folder / path.parent.name
        target.mkdir(parents=True, exist_ok=True)
        for other in path.parent.iterdir():
            if other.is_file() and other.suffix != ".ipynb":
                shutil.copy(other, target)
        nbformat.write(release(nbformat.read(path, as_version=4)), target / path.name)
        written.append(target / path.name)
    return written


if __name__ == "__main__":
    for path in write_releases(ROOT / "assignments", Path(sys.argv[1])):
        print(path)
