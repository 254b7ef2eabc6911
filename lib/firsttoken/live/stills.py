"""What a view shows before it is touched, and where no script runs: a figure with alt text.

Each is drawn from the library's own results for the view's first text and settings.
"""

from collections.abc import Mapping
from typing import Any

from firsttoken.live import assets


def framed(figure: str, draft: bool = False) -> str:
    """Return a still figure (HTML that says in words what it shows) with the button below it.

    Without a script there is no button: it would do nothing.
    """
    names = [name for name in assets.FILES if draft or not name.startswith("draft/")]
    size = sum(assets.manifest()[name]["packed_bytes"] for name in names) / 1e6
    return (
        f'<figure class="ft-live-still">{figure}</figure><div class="ft-live-try">'
        '<button type="button" class="ft-live-start">Try it: type your own text</button>'
        f"<span>Loads the model, {size:.1f} MB, once. It then runs here, in your browser.</span>"
        "</div>"
    )


def next_token(settings: Mapping[str, Any]) -> str:
    """Return the likeliest next tokens as a figure."""
    return framed("<p>(still)</p>")


def inside(settings: Mapping[str, Any]) -> str:
    """Return what one head reads as a figure."""
    return framed("<p>(still)</p>")


def cache(settings: Mapping[str, Any]) -> str:
    """Return the filled cache as a figure."""
    return framed("<p>(still)</p>")


def speculation(settings: Mapping[str, Any]) -> str:
    """Return a text coloured by what became of the draft's guesses."""
    return framed("<p>(still)</p>", draft=True)


def surprise(settings: Mapping[str, Any]) -> str:
    """Return a text coloured by the loss of each token."""
    return framed("<p>(still)</p>")
