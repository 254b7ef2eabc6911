"""Claims: errors to whoever writes a chapter, one sentence to whoever changes it."""

import re

import numpy as np
import pytest

from firsttoken.page.exercises import claim
from firsttoken.page.exercises.claims import _Note

SENTENCE = "The text speaks of 30 tokens; yours has 41."


def test_a_claim_stops_the_tests_and_tells_a_reader(monkeypatch, capsys):
    """One that holds says nothing, one that does not only its sentence."""
    for mode in ("raise", "", None):
        put(monkeypatch, mode)
        for holds in (True, np.True_):
            assert claim(holds, SENTENCE) is None
        assert capsys.readouterr() == ("", "")
        for fails in (False, np.False_):
            if mode == "raise":
                with pytest.raises(AssertionError, match=f"^{re.escape(SENTENCE)}$"):
                    claim(fails, SENTENCE)
            else:
                claim(fails, SENTENCE)
                assert capsys.readouterr() == (f"{SENTENCE}\n", "")


def test_the_sentence_is_a_line_of_the_page_and_escaped():
    shown = _Note("`n` is <41>, not $5$.")
    assert repr(shown) == "`n` is <41>, not $5$."
    assert r"<code>n</code> is &lt;41&gt;, not \(5\)." in shown._repr_html_()
    assert "ft-claim" in shown._repr_html_()


def test_what_is_neither_true_nor_false_is_refused_and_so_is_no_sentence(monkeypatch):
    """Arguments in the wrong order, and the forgotten `all`, must not pass as true."""
    arrays = np.array([True, False]), np.array([False])
    for mode in ("raise", None):
        put(monkeypatch, mode)
        for holds in (None, 1, 0.0, "yes", "", [], [True], *arrays):
            with pytest.raises(ValueError, match="holds must be True or False; got"):
                claim(holds, SENTENCE)
        for sentence in ("", "  ", None, 30):
            for holds in (True, False):
                with pytest.raises(ValueError, match="sentence must be non-empty text; got"):
                    claim(holds, sentence)


def put(monkeypatch, mode: str | None) -> None:
    if mode is None:
        monkeypatch.delenv("FIRSTTOKEN_CLAIMS", raising=False)
    else:
        monkeypatch.setenv("FIRSTTOKEN_CLAIMS", mode)
