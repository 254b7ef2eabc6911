"""Keep what the chapters measure on SmolLM2, for readers who have not installed it.

    python scripts/measure_smollm2.py              # all chapters, writes data/measured/smollm2.json
    python scripts/measure_smollm2.py 04 12        # these again, on the machine of the others

A chapter's cells call `on_smollm2(name, measure)`. This runs the chapters as they stand, and stores
what those calls returned. Close other programs first: many of the figures are times.
"""

import argparse
import ast
import json
import os
import tempfile
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from firsttoken.models.smollm2 import KEEP_IN
from firsttoken.paths import SMOLLM2_WHEEL, data_path
from firsttoken.provenance import code_digest, commit, instruction_sets, load_average, processor

# What chapters call on it, as long as it decides numbers.
MEASURED_CODE = code_digest(
    [
        "attention",
        "models/chat",
        "sampling/constrained",
        "drafts/planning",
        "drafts/suffix_automaton",
        "drafts/typical",
        "speculative/trees",
        "engine",
        "models/evaluation",
        "generate/drafting",
        "generate/loop",
        "models/gguf",
        "models/inspection",
        "kv_cache",
        "models/llama",
        "paging",
        "quantization",
        "models/rope",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "models/smollm2",
        "speculative/speed",
        "speculative/verification",
        "models/threads",
    ]
)
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def measuring(notebook: nbformat.NotebookNode) -> str:
    """Return the code of the sections that call `on_smollm2`, each up to its last call."""
    found: list[str] = []
    section: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("#"):
            section = []
        elif cell.cell_type == "code":
            section.append(cell.source)
            if "on_smollm2(" in cell.source:
                found += section
                section = []
    return "\n\n".join(found)


def digest(code: str) -> str:
    """Return a digest of what code does: comments and layout do not count."""
    return sha256(ast.unparse(ast.parse(code)).encode()).hexdigest()[:16]


def measured(path: Path) -> dict[str, Any]:
    """Run a chapter; return what its calls of `on_smollm2` returned, by name."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": NOTEBOOKS}})
    with tempfile.TemporaryDirectory() as folder:
        client.execute(env=os.environ | {KEEP_IN: folder})
        kept = sorted(Path(folder).glob("*.json"))
        return {file.stem: json.loads(file.read_text("utf-8")) for file in kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", help="two digits each; none: all")
    parser.add_argument("--out", type=Path, default=data_path("measured/smollm2.json"))
    options = parser.parse_args()
    machine = f"{processor()} ({instruction_sets()}), {os.cpu_count()} cores"
    stored = json.loads(options.out.read_text("utf-8")) if options.chapters else {}
    if stored and stored["provenance"]["machine"] != machine:
        parser.error(f"the others are of {stored['provenance']['machine']}: take all chapters here")
    busy, started_at, found, code = load_average(), commit(), {}, {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        source = measuring(nbformat.read(path, as_version=4))
        if source and (not options.chapters or path.name[:2] in options.chapters):
            print(path.stem, flush=True)
            found |= measured(path)
            code[path.stem] = digest(source)
    report = {
        "found": stored.get("found", {}) | found,
        "code": stored.get("code", {}) | code,
        "provenance": {
            "model": SMOLLM2_WHEEL,
            "commit": started_at,
            "measured_code": MEASURED_CODE,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "load_average_before": busy,
            "versions": {name: version(name) for name in ("numpy", "torch")},
        },
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
