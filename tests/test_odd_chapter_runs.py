"""Chapters with odd numbers run in a file of their own, so that two workers share the chapters."""

import pytest

from test_chapter_runs import run_and_judge
from test_chapters import NOTEBOOKS


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NOTEBOOKS[1::2], ids=lambda path: path.stem)
def test_chapter_runs(path):
    run_and_judge(path)
