"""What a reader moves and answers on a page of the built site: slider figures and quizzes."""

from playwright.sync_api import Locator, Page, expect

# One call of the browser for all controls: a chapter's sliders have some hundred frames.
SHOWN = """figure => {
    const values = [...figure.querySelectorAll(".widget-slider, .widget-dropdown")].map(control => {
        const label = control.querySelector("label").innerText.trim();
        const select = control.querySelector("select");
        // The widget keeps the spaces of an option from breaking.
        if (select) return `${label}: ${select.selectedOptions[0].text.replaceAll("\\xa0", " ")}`;
        const value = control.querySelector(".widget-readout").innerText.trim();
        const handle = control.querySelector(".noUi-handle");
        const said = handle.getAttribute("aria-label") + handle.getAttribute("aria-valuetext");
        return said === label + value ? `${label}: ${value}` : `${label} is called ${said}`;
    });
    return `(${values.join(", ")})`;
}"""
FRAME = f"""async figure => {{
    const shown = {SHOWN};
    const end = performance.now() + 60_000;  // a busy machine stands still for seconds
    for (;;) {{
        const pictures = figure.querySelectorAll("svg.ft-figure"), [picture] = pictures;
        const alt = picture?.getAttribute("aria-label");
        if (pictures.length === 1 && picture.checkVisibility() && alt.endsWith(shown(figure)))
            return picture.innerHTML;
        if (performance.now() > end)
            throw new Error(`${{pictures.length}} pictures, not of ${{shown(figure)}}: ${{alt}}`);
        await new Promise(requestAnimationFrame);
    }}
}}"""
# The page itself pauses right after the last move: from here it could come too late. The first
# move is made within the press of the button, which hears no second press meanwhile. An object, as
# its value is there only later.
PAUSED = """([button, handle, n]) => ({values: new Promise(done => {
    const values = [handle.getAttribute("aria-valuenow")];
    new MutationObserver((_, watch) => {
        const value = handle.getAttribute("aria-valuenow");
        if (value === values.at(-1)) return;
        values.push(value);
        if (values.length <= n) return;
        watch.disconnect();
        setTimeout(() => { button.click(); done(values.slice(1)); });
    }).observe(handle, {attributeFilter: ["aria-valuenow"]});
})})"""


def controls(figure: Locator) -> list[Locator]:
    return figure.locator(".widget-slider, .widget-dropdown").all()


def shown_values(figure: Locator) -> str:
    """Return what the controls say, in the form in which explore ends every alt text."""
    return figure.evaluate(SHOWN)


def frame(figure: Locator) -> str:
    """Return the drawing now visible, once it is the one that the controls name."""
    return figure.evaluate(FRAME)


def move_to(control: Locator, last: bool) -> None:
    """Move a slider or a menu to its first or its last value."""
    if control.locator("select").count():
        options = control.locator("select option").count()
        control.locator("select").select_option(index=options - 1 if last else 0)
    else:
        control.locator(".noUi-handle").press("End" if last else "Home")


def move_once(figure: Locator, control: Locator) -> None:
    """Move a slider or a menu by one value, by key, and wait for its picture."""
    before = shown_values(figure)
    menu, handle = control.locator("select"), control.locator(".noUi-handle")
    if menu.count():
        at, n = menu.evaluate("menu => [menu.selectedIndex, menu.length]")
        menu.press("ArrowDown" if at < n - 1 else "ArrowUp")
    else:
        now, last = (handle.get_attribute(f"aria-value{name}") for name in ("now", "max"))
        handle.press("ArrowRight" if now != last else "ArrowLeft")
    frame(figure)
    assert shown_values(figure) != before, f"{before} stays"


def play(row: Locator, n_moves: int) -> list[str]:
    """Let a row's slider play by key until it has moved so often; return the values that it had."""
    button, handle = row.get_by_role("button"), row.get_by_role("slider")
    expect(button).to_have_accessible_name("Play")
    nodes = [button.element_handle(), handle.element_handle()]
    moved = row.page.evaluate_handle(PAUSED, [*nodes, n_moves])
    button.press("Enter")
    values = moved.evaluate("({values}) => values")
    expect(button).to_have_accessible_name("Play")
    return values


def answer_quizzes(page: Page) -> None:
    """Give each quiz of a page some answer: without a kernel it gets a reply."""
    for quiz in page.locator(".ft-exercise:has(form)").all():
        field = quiz.locator("input").first
        if field.get_attribute("type") in ("radio", "checkbox"):
            field.check()
        else:
            field.fill("1")
        quiz.locator("button").first.click()
        expect(quiz.locator(".ft-feedback")).not_to_be_empty()
