"""The bundle that is committed is what its sources give."""

import importlib.util
import os

import pytest

from browser.visit import ROOT


def test_the_bundle_is_made_of_its_sources():
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "book" / "bundle.py")
    bundle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bundle)
    if not bundle.MODULES.exists():
        if os.environ.get("CI"):
            pytest.fail("no Node.js packages in _build/node: run `make book` first")
        pytest.skip("no Node.js packages in _build/node: run `make book` first")
    assert bundle.bundled() == bundle.BUNDLE.read_text("utf-8"), "run `python book/bundle.py`"
