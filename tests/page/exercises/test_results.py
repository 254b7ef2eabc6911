"""Results: shown in words, recorded by name."""

from firsttoken.page.exercises import check


def test_only_a_right_result_with_a_name_is_recorded():
    assert 'data-task="Exercise 3"' in check(1, 1, name="Exercise 3, repair")._repr_html_()
    assert "&lt;b&gt;" in check(1, 1, name="<b>")._repr_html_()
    for result in (check(1, 1), check(1, 2, name="Exercise 3"), check(None, 1, name="Exercise 3")):
        assert "<script" not in result._repr_html_()
        assert "data-task" not in result._repr_html_()


def test_results_say_their_verdict_in_words():
    """Colour alone would not do; the plain text is what a terminal shows."""
    right, wrong = check(2, 2, name="Exercise 1"), check(5, 2)
    assert repr(right) == "✓ Exercise 1: Right. 2"
    assert repr(wrong) == "✗ Not yet. Too large.\n    Your answer: 5"
    assert "Exercise 1: Right." in right._repr_html_()
    assert "Not yet." in wrong._repr_html_()
    assert 'role="status"' in wrong._repr_html_()


def test_the_chapter_is_the_last_one_in_the_path(monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/10_books/notebooks/01_generate.ipynb")
    assert 'data-page="01_generate"' in check(1, 1, name="Exercise 1")._repr_html_()
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert 'data-page=""' in check(1, 1, name="Exercise 1")._repr_html_()
