"""book/bundle.py, which makes the live views' script, for tests of what it makes."""

import importlib.util
import os
from types import ModuleType

import pytest

from browser.visit import ROOT


def bundler() -> ModuleType:
    """Return it as a module of one's own; where Node.js' packages are missing, skip the test."""
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "book" / "bundle.py")
    bundle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bundle)
    if not bundle.MODULES.exists():
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop("no Node.js packages in _build/node: run `make book` first")
    return bundle
