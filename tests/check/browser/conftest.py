"""The browser and what it opens, for the tests of this folder."""

from browser.fixtures import (  # noqa: F401
    _served,
    address,
    browser,
    pytest_terminal_summary,
    stage,
)
from browser.lab import context, lab, lab_home  # noqa: F401
