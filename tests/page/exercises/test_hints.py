"""Hints."""

import re

from firsttoken.page.exercises import hint


def test_hints_open_one_after_the_other():
    """One alone is not counted."""
    shown = hint("one `x < y`", "two $a$", "three")._repr_html_()
    assert shown.count("<details>") == shown.count("</details>") == 3
    assert shown.index("Hint 1 of 3") < shown.index("Hint 2 of 3") < shown.index("Hint 3 of 3")
    assert re.search(r"one <code>x &lt; y</code></div><details>", shown)
    assert r"two \(a\)</div><details>" in shown
    assert repr(hint("a", "b")) == "Hint 1: a\nHint 2: b"
    assert "<summary>Hint 1</summary>" in hint("a")._repr_html_()
