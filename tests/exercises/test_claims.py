"""Claims: errors to whoever writes a chapter, one sentence to whoever changes it."""

import numpy as np
import pytest

from firsttoken.exercises import claim
from firsttoken.exercises.claims import _Note

SENTENCE = "The text speaks of 30 tokens; yours has 41."


@pytest.mark.parametrize("mode", ["raise", "", None])
def test_a_claim_that_holds_says_nothing(monkeypatch, capsys, mode):
    put(monkeypatch, mode)
    for holds in (True, np.True_):
        assert claim(holds, SENTENCE) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("holds", [False, np.False_])
def test_a_claim_that_does_not_hold_stops_the_tests(monkeypatch, holds):
    put(monkeypatch, "raise")
    with pytest.raises(AssertionError) as error:
        claim(holds, SENTENCE)
    assert str(error.value) == SENTENCE


@pytest.mark.parametrize("mode", ["", None])
def test_a_claim_that_does_not_hold_tells_a_reader_and_goes_on(monkeypatch, capsys, mode):
    put(monkeypatch, mode)
    claim(False, SENTENCE)
    assert capsys.readouterr() == (f"{SENTENCE}\n", "")


def test_the_sentence_is_a_line_of_the_page_and_escaped():
    shown = _Note("`n` is <41>, not $5$.")
    assert repr(shown) == "`n` is <41>, not $5$."
    assert r"<code>n</code> is &lt;41&gt;, not \(5\)." in shown._repr_html_()
    assert "ft-claim" in shown._repr_html_()


@pytest.mark.parametrize("mode", ["raise", None])
@pytest.mark.parametrize(
    "holds", [None, 1, 0.0, "yes", "", [], [True], np.array([True, False]), np.array([False])]
)
def test_what_is_neither_true_nor_false_is_refused(monkeypatch, mode, holds):
    """Arguments in the wrong order, and the forgotten `all`, must not pass as true."""
    put(monkeypatch, mode)
    with pytest.raises(ValueError, match="holds must be True or False; got"):
        claim(holds, SENTENCE)


@pytest.mark.parametrize("sentence", ["", "  ", None, 30])
def test_a_claim_without_a_sentence_is_refused(sentence):
    for holds in (True, False):
        with pytest.raises(ValueError, match="sentence must be non-empty text; got"):
            claim(holds, sentence)


def put(monkeypatch, mode: str | None) -> None:
    if mode is None:
        monkeypatch.delenv("FIRSTTOKEN_CLAIMS", raising=False)
    else:
        monkeypatch.setenv("FIRSTTOKEN_CLAIMS", mode)
