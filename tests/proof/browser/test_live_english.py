"""The live views with the real model, as a reader meets them on the site."""

import re

import pytest
from playwright.sync_api import expect

from browser.playground import served_stage
from firsttoken import live
from firsttoken.live import assets, stills
from firsttoken.live.chat import STORED
from firsttoken.models.inspection import look_inside

pytestmark = pytest.mark.skipif(assets.real_file() is None, reason="SmolLM2 is not installed")


@pytest.fixture(scope="module")
def real_stage(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    with served_stage(browser, folder, assets.real_file()) as stage:
        yield stage
        stage.close()
        assert stage.troubles == [], "\n".join(stage.troubles)


def test_a_question_in_english_is_answered(real_stage, monkeypatch):
    """As in JupyterLab, and of the second question the new tokens alone are read."""
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    page = real_stage.open(live.chat([]))
    page.get_by_role("button", name="Talk to it here: 98 MB, once").click()
    for turn in range(0, len(STORED), 2):
        page.get_by_label("Your message").fill(STORED[turn]["content"])
        page.get_by_role("button", name="Send").click()
        answer = page.locator(".ft-chat-said > div").nth(turn + 1)
        expect(answer).to_have_text(STORED[turn + 1]["content"])
    expect(page.get_by_text("written")).to_contain_text("44 stood in the cache, 15 new")
    expect(page.get_by_role("meter")).to_have_attribute("aria-valuemax", "2048")


def test_heads_that_look_at_the_start_are_found_and_silenced(real_stage):
    """All are seen at once; without one of them the next token changes as in the library."""
    page = real_stage.open(live.inside())
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("button", name="real").click()
    page.get_by_role("button", name="Load it: 98 MB, once").click()
    view = live.inside(model="smollm2")
    model, _ = stills.loaded("smollm2")
    seen = look_inside(model, view.ids)
    shares = seen.attention[:, :, 1:, 0].mean(axis=2).ravel()
    heads = page.locator(".ft-all-heads button")
    expect(heads.first).to_have_attribute("aria-label", re.compile("from the start$"))
    shown = [int(each) for each in heads.all_inner_texts()]
    assert shown == pytest.approx(100 * shares, abs=3)
    layer, head = view.settings["layer"], view.settings["head"]
    assert shown[layer * model.arch.n_heads + head] == max(shown)
    page.get_by_role("button", name=f"Silence layer {layer + 1}, head {head + 1}").first.click()
    effect = page.locator(".ft-effect")
    expect(effect).to_contain_text("Without")
    told = [float(each) / 100 for each in re.findall(r"([\d.]+).%", effect.inner_text())]
    without = look_inside(model, view.ids, [(layer, head)])
    likeliest = int(seen.next.argmax())
    expected = [float(each.next[likeliest]) for each in (seen, without)]
    assert [told[0], told[-1]] == pytest.approx(expected, abs=0.03)
