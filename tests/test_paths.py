"""Where shipped files are found: in the repository, and where only the package is installed."""

from pathlib import Path

from firsttoken import paths
from firsttoken.paths import data_path

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
