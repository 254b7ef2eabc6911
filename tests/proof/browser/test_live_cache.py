"""The view of the cache: the library's text and bytes, with the cache and without."""

import pytest
from playwright.sync_api import Page, expect

from firsttoken import live
from firsttoken.architectures import from_hf_config
from firsttoken.generate import generate
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path

ARCH = from_hf_config(data_path("model/target/config.json"))
PROMPT = "def read(path):\n"


def write(page: Page) -> None:
    """Write a text and wait for its end."""
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.get_by_role("button", name="Write", exact=True)).to_be_visible()


def figure(page: Page, name: str) -> float:
    return float(page.locator(f"data[data-name={name}]").get_attribute("value"))


def test_both_ways_write_the_library_s_text(stage):
    """The same text with the cache and without, that of `generate`; bytes are the formula's."""
    n, ids = 24, tokenizer().encode_document(PROMPT)
    view = live.cache(PROMPT, max_tokens=n, temperature=0.9, seed=7)
    expected = generate(load_model("target"), ids, view.params)
    assert len(expected.ids) == n  # the sums below count on it
    page = stage.started(view)
    output, chart = page.locator(".ft-output"), page.locator(".ft-chart svg")
    work = page.get_by_text("Positions sent through the model")
    write(page)
    said = PROMPT + tokenizer().decode(expected.ids)
    assert output.evaluate("node => node.textContent") == said
    n_kept = len(ids) + n - 1  # the last token has been chosen, not read
    assert figure(page, "filled") == kv_cache_bytes(ARCH, n_kept, dtype="fp32")
    assert figure(page, "formula") == figure(page, "filled")
    # Room for the whole text is allocated at once.
    assert figure(page, "allocated") == kv_cache_bytes(ARCH, len(ids) + n, dtype="fp32")
    again = sum(range(len(ids), len(ids) + n))
    expect(work).to_contain_text(f"model: {n_kept}. Without a cache: {again:,}")
    assert widths(page) == [len(ids), n - 1, 1]
    assert chart.locator(".ft-on").get_attribute("d").count("M") == n

    page.get_by_role("button", name="Cache").click()
    write(page)
    assert output.evaluate("node => node.textContent") == said
    assert [figure(page, name) for name in ("formula", "filled", "allocated")] == [0, 0, 0]
    expect(work).to_contain_text(f"model: {again:,}. With a cache: {n_kept},")
    assert widths(page) == [0, 0, n_kept]
    ratio = figure(page, "on") / figure(page, "off")
    said_ratio = page.locator(".ft-verdict").inner_text().removesuffix(" times as fast with it.")
    assert float(said_ratio.replace(",", "")) == pytest.approx(ratio, rel=0.06)  # two digits
    expect(page.get_by_role("status")).to_contain_text("The text is the same")


def widths(page: Page) -> list[float]:
    """Return how many columns of the picture, which are tokens, are of each kind."""
    picture = page.locator(".ft-picture svg")
    kinds = ("prompt", "decode", "computed")
    return [float(picture.locator(f".ft-{kind}").get_attribute("width")) for kind in kinds]
