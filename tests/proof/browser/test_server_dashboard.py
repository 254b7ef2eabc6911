"""The server's dashboard in a real browser: it shows the engine at work, and asks nobody else."""

import threading

import pytest
from playwright.sync_api import expect

from served import ExactModel, Served, eventually


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_dashboard_shows_the_engine_at_work(browser, scheme):
    asked, troubles = [], []
    with Served(ExactModel(0.5), max_batch=2) as served:  # it stays at work until it is seen
        page = browser.new_page(color_scheme=scheme)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(served.url)
        expect(page.locator("#health")).to_have_text("up")
        fields = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
        clients = [threading.Thread(target=served.post, kwargs=fields) for _ in range(3)]
        for client in clients:
            client.start()
        for name, text in (("running", "2"), ("waiting", "1")):
            shown = page.get_by_role("status", name=name, exact=True)
            expect(shown).to_have_text(text)
        expect(page.get_by_role("status", name="blocks in use")).to_contain_text("of 512")
        served.model.pass_s = 0.02
        for client in clients:
            client.join()
        expect(page.locator("#answers")).to_have_text("3")
        row = page.get_by_role("row", name="time per output token").get_by_role("cell").all()
        assert all(float(cell.inner_text()) >= 20 for cell in row) and len(row) == 3
        assert troubles == [] and all(url.startswith(served.url) for url in asked)
        served.model.error = RuntimeError("broken")
        assert served.post(prompt="a").status_code == 503
        expect(page.locator("#health")).to_have_text("down")
        page.close()
        eventually(lambda: not served.front.healthy)
