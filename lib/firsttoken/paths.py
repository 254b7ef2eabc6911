"""Where the files lie that come with the book."""

from pathlib import Path


def data_path(name: str) -> Path:
    """Return where a shipped file lies: in the repository's data/, else inside the package."""
    here = Path(__file__).parent
    repository = here.parents[1] / "data"
    return (repository if (repository / "model").is_dir() else here / "data") / name
