"""assets: what a site carries is whole, and has another name when anything in it changes."""

import gzip
import hashlib
import json

import pytest

from firsttoken.live import assets


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A file of 2,500 bytes in the place of the real model, and parts of at most 1,000."""
    file = tmp_path / "some-model.q4.gguf"
    file.write_bytes(bytes(range(250)) * 10)
    monkeypatch.setattr(assets, "PART_BYTES", 1000)
    monkeypatch.setattr(assets, "real_file", lambda: file)
    assets.version.cache_clear()
    yield file
    assets.version.cache_clear()


def test_a_site_has_all_files_and_the_real_one_in_parts(real, tmp_path):
    place = assets.write(tmp_path / "site", real)
    assert place == tmp_path / "site" / "live" / assets.version()
    for name in assets.FILES:
        packed = (place / f"{name}.gz").read_bytes()
        assert packed == assets.packed(name) and gzip.decompress(packed)
    assert (place / "live.js").read_text("utf-8") == assets.script()
    listed = json.loads((place / "manifest.json").read_text("utf-8"))
    told = listed.pop("real")
    assert listed == assets.manifest()
    parts = [(place / name).read_bytes() for name in told["parts"]]
    assert [len(part) for part in parts] == [1000, 1000, 500]
    assert b"".join(parts) == real.read_bytes()
    assert told["parts"] == [f"some-model.q4.{i}" for i in range(3)]
    digest = hashlib.sha256(real.read_bytes()).hexdigest()
    assert (told["name"], told["bytes"], told["sha256"]) == ("some-model", 2500, digest)


def test_without_the_real_one_nothing_is_said_of_it(tmp_path):
    place = assets.write(tmp_path)
    assert json.loads((place / "manifest.json").read_text("utf-8")) == assets.manifest()
    assert len(list(place.rglob("*.gz"))) == len(assets.FILES)


def test_hosts_take_each_part():
    assert assets.PART_BYTES < 50e6


def test_a_version_names_what_is_shipped(real, monkeypatch):
    """Another script, another list of files, another real model of the same size, or none."""

    def version() -> str:
        assets.version.cache_clear()
        return assets.version()

    found = [version()]
    assert found[0] == version() and len(found[0]) == 12
    real.write_bytes(real.read_bytes()[::-1])
    found.append(version())
    monkeypatch.setattr(assets, "script", lambda: "another")
    found.append(version())
    monkeypatch.setattr(assets, "manifest", lambda: {})
    found.append(version())
    monkeypatch.setattr(assets, "real_file", lambda: None)
    found.append(version())
    assert len(set(found)) == len(found)
