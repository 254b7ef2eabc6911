"""The bundle that is committed is what its sources give."""

from browser.bundling import bundler


def test_the_bundle_is_made_of_its_sources():
    bundle = bundler()
    assert bundle.bundled() == bundle.BUNDLE.read_text("utf-8"), "run `python book/bundle.py`"
