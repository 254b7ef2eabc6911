"""What a build of the site that was stopped leaves never passes for finished."""

from pathlib import Path

import build
import nbformat
import pytest


def test_a_folder_of_the_site_is_whole_or_absent(tmp_path, monkeypatch):
    """One that a full disk left would have its version's name, and pass for finished for ever."""
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == "formulas.zip":
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(build, "NODE", tmp_path / "node")
    for name in build.PYODIDE:
        file = tmp_path / "node" / "node_modules" / "pyodide" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "write_bytes", full)
        build.write_calculator(tmp_path / "static")
    assert not (tmp_path / "static" / "calculator").exists()
    place = build.write_calculator(tmp_path / "static")["place"].removeprefix("_static/")
    assert (tmp_path / "static" / place / "formulas.zip").is_file()


def test_runs_that_were_half_stored_are_told(tmp_path):
    """Jupyter's cache notes a run before it writes it."""
    notebook = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), notebook)
    with build.kept_runs(tmp_path) as cache:
        cache.cache_notebook_file(str(notebook), check_validity=False)
    assert build.readable(tmp_path)
    stored = next((tmp_path / "executed").rglob("*.ipynb"))
    stored.write_bytes(stored.read_bytes()[:50])
    assert not build.readable(tmp_path)
