"""The browser and what it opens, for the tests of this folder."""

from browser.fixtures import _served, address, browser, stage  # noqa: F401
from browser.lab import context, lab, lab_home  # noqa: F401
