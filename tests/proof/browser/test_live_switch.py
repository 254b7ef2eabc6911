"""Every live view with a real model beside the small one: the switch, files of one's own, the chat.

A tiny model in a GGUF file stands in the place of the real one.
"""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.barriers import barriers
from browser.visit import SCREENS, SETTLED, WIDTH, until
from firsttoken import live
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.live import assets, widgets
from firsttoken.models.llama import load_model

ENGLISH = widgets._ENGLISH
VIEWS = ("next_token", "inside", "cache", "speculation", "surprise")
TEXT = "def read(path):\n"
# Let files come slowly enough to look at a page meanwhile; held until the page says go.
HOLD = """() => {
    window.gate = new Promise(open => { window.go = open; });
    const fetched = window.fetch;
    window.fetch = async (url, ...rest) => {
        if (String(url).includes("tiny")) await window.gate;
        return fetched(url, ...rest);
    };
}"""
DROP = """(element, [name, content]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([content], name));
    const options = { dataTransfer: carried, bubbles: true, cancelable: true };
    return element.dispatchEvent(new DragEvent("drop", options));
}"""
LITTLE = "Object.defineProperty(Navigator.prototype, 'deviceMemory', { get: () => 1 })"

every_view = pytest.mark.parametrize("name", VIEWS)


def started(stage, name: str, *given, **options) -> Page:
    page = stage.open(getattr(live, name)(*given), **options)
    page.get_by_role("button", name="Try it").click()
    expect(model(page, "small")).to_have_attribute("aria-pressed", "true")
    return page


def model(page: Page, name: str):
    return page.get_by_role("group", name="Model").get_by_role("button", name=name)


def offer(page: Page):
    return page.get_by_role("button", name="Load it")


def switched(page: Page) -> None:
    """Have the real model shown."""
    model(page, "real").press("Enter")
    offer(page).press("Enter")
    expect(page.locator(".ft-live-place > *")).to_have_count(0)


@pytest.mark.parametrize("screen", SCREENS)
@every_view
def test_the_switch_is_usable_by_everyone(tiny_stage, name, screen):
    """By keyboard, which goes on in the view; in both themes, on both screens."""
    page = started(tiny_stage, name, screen=screen)
    model(page, "real").press("Enter")
    expect(model(page, "real")).to_be_focused()
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.evaluate(SETTLED)
        assert barriers(page) == [], theme
    offer(page).press("Enter")
    expect(page.get_by_label("Your text")).to_have_value(ENGLISH[name]["text"])
    if screen == "desktop":
        expect(page.get_by_label("Your text")).to_be_focused()
    if name == "inside":  # its table has no words before the first answer
        expect(page.locator(".ft-effect")).to_contain_text("The model expects")
    assert barriers(page) == []
    assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]
    model(page, "small").press("Enter")
    expect(model(page, "small")).to_be_focused()


@every_view
def test_what_the_reader_wrote_goes_along_once(tiny_stage, name):
    page = started(tiny_stage, name)
    field = page.get_by_label("Your text")
    field.fill(TEXT)
    switched(page)
    expect(field).to_have_value(TEXT)
    field.fill("import os")
    model(page, "small").click()
    expect(field).to_have_value(TEXT)
    model(page, "real").click()
    expect(field).to_have_value("import os")


def test_a_site_without_a_real_model_has_no_switch(stage):
    page = stage.started(live.next_token())
    expect(page.get_by_role("group", name="Model")).to_have_count(0)
    expect(page.get_by_text(".gguf")).to_have_count(0)


def test_loading_is_seen_and_left_off(tiny_stage):
    """The small model goes on meanwhile; nothing of the real one comes unasked."""
    page = started(tiny_stage, "next_token", TEXT)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    model(page, "real").click()
    assert not [url for url in asked if "tiny" in url]
    page.evaluate(HOLD)
    offer(page).click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("status").last).to_contain_text("per second")
    model(page, "small").click()
    expect(page.get_by_role("progressbar")).to_have_count(0)
    page.evaluate("window.go()")
    expect(page.get_by_label("Your text")).to_have_value(re.compile("^def read"))
    model(page, "real").click()
    if offer(page).is_visible():  # or it has come all the same
        offer(page).click()
    expect(page.locator(".ft-live-place > *")).to_have_count(0)
    expect(page.get_by_label("Your text")).to_have_value(re.compile("^def read"))


def test_a_second_view_of_the_page_need_not_ask_again(tiny_stage):
    page = tiny_stage.open(live.cache(), live.surprise())
    first, second = page.locator(".ft-live").all()
    for view in (first, second):
        view.get_by_role("button", name="Try it").click()
        view.get_by_role("button", name="real").click()
        if view is first:
            view.get_by_role("button", name="Load it").click()
        expect(view.get_by_label("Your text")).to_have_value(re.compile(r"^\w+ \w+ \w+ \w+"))
    assert len(page.workers) == 2  # one for each model


def test_the_caches_bytes_are_the_models_own(tiny_stage, tiny_gguf):
    page = started(tiny_stage, "cache")
    switched(page)
    page.get_by_label("Tokens to write").fill("5")
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.get_by_role("status").last).to_contain_text("Now switch the cache off")
    numbers = {key: page.locator(f"data[data-name={key}]") for key in ("formula", "filled")}
    kept = {key: int(each.get_attribute("value")) for key, each in numbers.items()}
    each = kv_cache_bytes(load_model(tiny_gguf).arch, 1, dtype="fp32")
    assert kept["formula"] == kept["filled"] and kept["filled"] % each == 0 < kept["filled"]


def test_of_the_drafts_the_look_up_is_left(tiny_stage):
    page = started(tiny_stage, "speculation")
    expect(page.locator("option")).to_have_count(len(assets.DRAFTS))
    switched(page)
    expect(page.locator("option")).to_have_count(1)
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.get_by_role("status").last).to_contain_text("of the target")


def test_files_are_dropped_on_a_view(tiny_stage, tiny_gguf):
    """A broken one, one of another kind; a text still surprises."""
    page = started(tiny_stage, "surprise")
    field = page.get_by_label("Your text")
    field.evaluate(DROP, ["words.txt", "Hello, you."])
    expect(field).to_have_value("Hello, you.")
    field.evaluate(DROP, ["broken.gguf", "GGUF, or so it says"])
    expect(page.get_by_role("alert").filter(has_text=re.compile(r"\w+ \w+"))).to_be_visible()
    expect(field).to_have_value("Hello, you.")
    page = started(tiny_stage, "inside")
    page.get_by_label("Your text").evaluate(DROP, ["words.txt", "Hello, you."])
    expect(page.get_by_role("alert")).to_have_text("words.txt is no .gguf file.")
    page.locator("input[type=file]").set_input_files(tiny_gguf)
    expect(model(page, tiny_gguf.name)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("alert")).to_have_count(0)
    arch = load_model(tiny_gguf).arch
    expect(page.locator(".ft-all-heads tbody tr")).to_have_count(arch.n_layers)
    expect(page.locator(".ft-effect")).to_contain_text("The model expects")


def test_a_long_name_of_a_file_has_room(tiny_stage, tiny_gguf, tmp_path):
    page = started(tiny_stage, "cache", screen="phone")
    long = tmp_path / f"{'model-' * 20}.gguf"
    long.write_bytes(tiny_gguf.read_bytes())
    page.locator("input[type=file]").set_input_files(long)
    expect(page.locator(".ft-live-place > *")).to_have_count(0)
    expect(model(page, long.name)).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(WIDTH) <= SCREENS["phone"]["width"]


def test_little_memory_is_told_before(tiny_stage):
    page = started(tiny_stage, "next_token")
    page.add_init_script(LITTLE)
    page.reload()
    page.get_by_role("button", name="Try it").click()
    model(page, "real").click()
    expect(page.get_by_role("alert")).to_contain_text("this device has 1 GB")
    offer(page).click()
    expect(page.get_by_label("Your text")).to_have_value(ENGLISH["next_token"]["text"])


# --- inside: the sinks ----------------------------------------------------------------------------


def test_activations_are_rounded_and_what_that_changes_is_said(tiny_stage):
    """The bars move, and come back: the small model has no such choice."""
    page = started(tiny_stage, "next_token", TEXT)
    box = page.get_by_label("Round activations to 8 bits")
    expect(box).to_be_hidden()
    switched(page)
    bars = page.locator(".ft-bars .ft-before")
    expect(bars.first).to_contain_text("%")
    exact = bars.all_inner_texts()
    box.press("Space")
    expect(
        page.get_by_text(re.compile(r"logits move by \d\.\d\d at most.*A step takes"))
    ).to_be_visible()
    expect(box).to_be_checked()
    expect(bars.first).to_contain_text("%")
    box.press("Space")
    expect(page.get_by_text("logits move")).to_have_count(0)
    expect(bars).to_have_text(exact)


def rounding(page: Page):
    return page.get_by_label("Round activations to 8 bits")


def test_a_model_is_rounded_for_all_views_and_no_other_is(tiny_stage, tiny_gguf):
    page = tiny_stage.open(live.next_token(TEXT), live.surprise())
    first, second = page.locator(".ft-live").all()
    for view in (first, second):
        view.get_by_role("button", name="Try it").click()
        view.get_by_role("button", name="real").click()
        if view is first:
            view.get_by_role("button", name="Load it").click()
        expect(view.get_by_label("Your text")).to_have_value(re.compile(r"^\w+ \w+"))
    rounding(page).first.press("Space")
    expect(rounding(page).nth(1)).to_be_checked()
    first.locator("input[type=file]").set_input_files(tiny_gguf)
    expect(model(first, tiny_gguf.name)).to_have_attribute("aria-pressed", "true")
    expect(rounding(page).first).not_to_be_checked()
    expect(first.get_by_text("logits move")).to_have_count(0)
    model(first, "real").click()
    expect(rounding(page).first).to_be_checked()


def test_files_that_others_replace_give_their_memory_back(tiny_stage, tiny_gguf, tmp_path):
    """A broken one as well, once the one before it is no longer shown."""
    page = started(tiny_stage, "next_token", TEXT)
    n = len(page.workers)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, or so it says")
    chosen = page.locator("input[type=file]")
    chosen.set_input_files(tiny_gguf)
    expect(page.locator(".ft-live-place > *")).to_have_count(0)
    until(page, lambda: len(page.workers) == n + 1)
    chosen.set_input_files(broken)
    expect(page.get_by_role("alert").filter(has_text="GGUF")).to_be_visible()
    model(page, "small").click()
    until(page, lambda: len(page.workers) == n)


def test_sinks_are_seen_for_all_heads(tiny_stage):
    """Instead of what heads change, until every head is tried."""
    page = started(tiny_stage, "inside", TEXT)
    sinks = page.get_by_role("button", name="Sinks")
    expect(sinks).to_have_attribute("aria-pressed", "false")
    sinks.press("Enter")
    heads = page.locator(".ft-all-heads button")
    expect(heads.first).to_have_attribute("aria-label", re.compile(r"from the start$"))
    shown = [int(each) for each in heads.all_inner_texts()]
    assert all(0 <= each <= 100 for each in shown)
    found = page.locator(".ft-found")
    expect(found).to_contain_text(f"of {len(shown)} heads take more than half from the start")
    page.get_by_role("button", name="Try every head").press("Enter")
    expect(sinks).to_have_attribute("aria-pressed", "false")
    expect(found).to_contain_text("The largest change")


# --- the chat -------------------------------------------------------------------------------------


@pytest.fixture
def talk(monkeypatch, tiny_gguf):
    """A chat as the site has it; `talk.door()` is the first page's."""
    monkeypatch.setenv("FIRSTTOKEN_SITE", "1")
    monkeypatch.setattr(assets, "real_file", lambda: tiny_gguf)
    return live.chat([], max_tokens=400)


def talking(stage, talk, **options) -> Page:
    page = stage.open(talk, **options)
    page.get_by_role("button", name="Talk to it here").press("Enter")
    expect(page.get_by_label("Your message")).to_be_visible()
    return page


def bare(whole: Path, folder: Path) -> Path:
    """Write a file without its chat template."""
    path, key = folder / "bare.gguf", b"tokenizer.chat_template"
    path.write_bytes(whole.read_bytes().replace(key, b"x" * len(key)))
    return path


def say(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_label("Your message").press("Enter")


@pytest.mark.parametrize("screen", SCREENS)
def test_the_chat_is_usable_by_everyone(tiny_stage, talk, screen):
    page = talking(tiny_stage, talk, screen=screen)
    page.get_by_label("Seed").fill("3")
    say(page, "import os")
    expect(page.get_by_text("written")).to_contain_text("per second")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.evaluate(SETTLED)
        assert barriers(page) == [], theme
    assert page.evaluate(WIDTH) <= SCREENS[screen]["width"]


def test_an_answer_is_stopped_and_what_there_is_of_it_stays(tiny_stage, talk):
    page = talking(tiny_stage, talk)
    # The page presses Stop itself: from here it could come too late.
    page.get_by_role("button", name="Stop").evaluate(
        """button => {
            const look = () => {
                if (document.querySelector(".ft-chat-written")) button.click();
                else requestAnimationFrame(look);
            };
            look();
        }"""
    )
    say(page, "import os")
    expect(page.get_by_text("You stopped it.")).to_be_visible()
    answer = page.locator(".ft-chat-model > div").text_content()
    assert answer and answer in page.locator(".ft-output").text_content()
    page.get_by_role("button", name="Start over").click()
    expect(page.locator(".ft-chat-said")).to_have_count(0)
    expect(page.get_by_role("meter")).to_have_attribute("aria-valuenow", "0")


@pytest.mark.parametrize("has_template", [True, False])
def test_a_chat_is_rounded_before_anything_is_said(
    tiny_stage, talk, tiny_gguf, tmp_path, has_template
):
    """Also with a model that is not made for chats: it is tried on the mark alone."""
    page = talking(tiny_stage, talk)
    if not has_template:
        page.locator("input[type=file]").set_input_files(bare(tiny_gguf, tmp_path))
        expect(model(page, "bare.gguf")).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".ft-live-place > *")).to_have_count(0)
    rounding(page).press("Space")
    expect(page.get_by_text("A step takes")).to_be_visible()
    expect(rounding(page)).to_be_enabled()
    expect(rounding(page)).to_be_checked()


# Press something as soon as the answer begins: from here it could come too late.
AMID = """press => {
    const look = () => {
        if (document.querySelector(".ft-chat-written")) press.click();
        else requestAnimationFrame(look);
    };
    look();
}"""


def test_a_view_that_is_shown_anew_amid_an_answer_has_one(tiny_stage, talk):
    """The answer of the view before does not come beside its own."""
    page = talking(tiny_stage, talk)
    rounding(page).evaluate(AMID)
    say(page, "import os")
    expect(page.get_by_text("A step takes")).to_be_visible()
    expect(page.get_by_text(" written")).to_be_visible()
    expect(page.locator(".ft-chat-model")).to_have_count(1)
    say(page, "import re")
    expect(page.locator(".ft-chat-user")).to_have_count(2)
    expect(page.get_by_text(" written")).to_be_visible()
    expect(page.locator(".ft-chat-model")).to_have_count(2)


def test_the_same_seed_gives_the_same_answer(tiny_stage, talk):
    page, answers = talking(tiny_stage, talk), []
    page.get_by_label("Temperature").press("End")
    for seed in (3, 3, 4):
        page.get_by_label("Seed").fill(str(seed))
        say(page, "import os")
        expect(page.get_by_text("written")).to_be_visible()
        answers.append(page.locator(".ft-chat-model > div").text_content())
        page.get_by_role("button", name="Start over").click()
        expect(page.locator(".ft-chat-said")).to_have_count(0)
    assert answers[0] == answers[1] != answers[2]


def test_what_does_not_fit_is_told_and_what_is_said_is_text(tiny_stage, talk):
    page = talking(tiny_stage, talk)
    page.on("dialog", lambda dialog: tiny_stage.troubles.append(f"dialog: {dialog.message}"))
    hostile = "<img src=x onerror=alert(1)><|endoftext|>👩‍👩‍👧"
    say(page, hostile)
    expect(page.get_by_text("written")).to_be_visible()
    assert page.locator(".ft-chat-user > div").text_content() == hostile
    marks = page.locator(".ft-output .ft-chat-mark").all_text_contents()
    assert hostile in page.locator(".ft-output").text_content()
    assert set(marks) == {"<|endoftext|>"} and len(marks) in (2, 3)
    page.get_by_role("button", name="Start over").click()
    say(page, "import os\n" * 400)
    expect(page.get_by_text("context of")).to_be_visible()
    page.get_by_role("button", name="Start over").click()
    say(page, "import os")
    expect(page.get_by_text("written")).to_be_visible()


def test_the_door_of_the_first_page_opens_the_chat(tiny_stage, talk, monkeypatch):
    """It stands below another view, whose script it needs."""
    view = live.next_token(TEXT)
    page = tiny_stage._page(view.on_site() + talk.door(), "light", "desktop")
    page.get_by_role("button", name="Talk to a real one, here in the page").click()
    expect(page.get_by_label("Your message")).to_be_focused()
    say(page, "import os")
    expect(page.get_by_text("written")).to_be_visible()
    expect(page.get_by_role("button", name="Try it")).to_be_visible()


def test_a_model_without_a_template_is_told(tiny_stage, tiny_gguf, talk, tmp_path):
    """A file of the reader's own need not be made for chats; the conversation before stays."""
    page = talking(tiny_stage, talk)
    say(page, "import os")
    expect(page.get_by_text("written")).to_be_visible()
    answer = page.locator(".ft-chat-model > div").text_content()
    page.locator("input[type=file]").set_input_files(bare(tiny_gguf, tmp_path))
    expect(model(page, "bare.gguf")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".ft-chat-said")).to_have_count(0)
    say(page, "import os")
    expect(page.get_by_text("no chat template")).to_be_visible()
    model(page, "real").click()
    assert page.locator(".ft-chat-model > div").text_content() == answer
