"""What a view shows before it is touched, and where no script runs: a figure with alt text.

Each is drawn from the library's own results for the view's first text and settings.
"""

from collections.abc import Mapping
from typing import Any


def next_token(settings: Mapping[str, Any]) -> str:
    """Return the likeliest next tokens as a figure."""
    return "<p>(still)</p>"


def inside(settings: Mapping[str, Any]) -> str:
    """Return what one head reads as a figure."""
    return "<p>(still)</p>"


def cache(settings: Mapping[str, Any]) -> str:
    """Return the filled cache as a figure."""
    return "<p>(still)</p>"


def speculation(settings: Mapping[str, Any]) -> str:
    """Return a text coloured by what became of the draft's guesses."""
    return "<p>(still)</p>"


def surprise(settings: Mapping[str, Any]) -> str:
    """Return a text coloured by the loss of each token."""
    return "<p>(still)</p>"
