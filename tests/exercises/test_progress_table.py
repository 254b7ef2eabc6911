"""The table of what is solved, as text; tests/browser/test_progress.py looks at the browser."""

from firsttoken.exercises import progress
from firsttoken.start import CHAPTERS


def test_plain_text_says_how_much_there_is():
    lines = repr(progress()).splitlines()
    assert lines[0].startswith("Your browser counts")
    assert f"    04 The KV cache: {CHAPTERS['04_kv_cache'].n_tasks}" in lines
    assert not any(line.endswith(": 0") for line in lines), "a chapter without tasks is not named"
