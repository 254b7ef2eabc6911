"""The browser and what it opens, for the tests of this folder."""

from browser.fixtures import (  # noqa: F401
    _served,
    _served_tiny,
    address,
    browser,
    stage,
    tiny_gguf,
    tiny_stage,
)
from browser.lab import context, lab, lab_home  # noqa: F401
