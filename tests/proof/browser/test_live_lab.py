"""The live views in JupyterLab: a cell shows one, and the next cells go on from it."""

import ast
import dataclasses
import json

import nbformat
import pytest
from playwright.sync_api import expect

from browser.lab import ERRORS, opened, run, shown
from browser.visit import until
from firsttoken.generate import generate
from firsttoken.llama import load_model
from firsttoken.sampling import SamplingParams
from firsttoken.tokenizer import tokenizer

PROMPT = "def is_prime(n):\n    return"
PREPARE, FIRST, SECOND, READ, GO_ON, SET = range(6)
SOURCES = [
    """import dataclasses, json
from firsttoken import live
from firsttoken.generate import generate
from firsttoken.llama import load_model
from firsttoken.tokenizer import tokenizer""",
    "prompt = live.next_token('import ', seed=5, max_tokens=30)\nprompt",
    "live.next_token('class ')",
    "print(json.dumps([prompt.text, dataclasses.asdict(prompt.params)]))",
    "ids = prompt.ids\n"
    "print(repr(tokenizer().decode(generate(load_model('target'), ids, prompt.params).ids)))",
    "prompt.text = 'class Stack'\n"
    "prompt.settings = {**prompt.settings, 'temperature': 0.5, 'seed': 9}",
]

FORGET = "async () => Promise.all((await caches.keys()).map(name => caches.delete(name)))"


@pytest.fixture
def notebook(lab, lab_home, context, request):
    """Open a new notebook with the cells above and run the first one; yield its page."""
    name = f"{request.node.name}.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in SOURCES]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    made = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(made, lab_home / "book" / "notebooks" / name)
    page = context.new_page()
    opened(page, f"{lab}/lab/workspaces/{request.node.name}/tree/notebooks/{name}")
    run(page, PREPARE)
    yield page
    assert page.evaluate(ERRORS) == []
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:shutdown-kernel')")
    page.close()


def started(page, index: int):
    """Run a cell with a view, start it and return it."""
    view = run(page, index).locator(".ft-live")
    expect(view.get_by_role("img")).to_be_visible()  # the still figure
    view.get_by_role("button", name="Try it").click()
    expect(view.get_by_label("Your text")).to_be_visible()
    return view


def printed(page, index: int) -> str:
    """Run a cell and return what it printed."""
    output = run(page, index).locator(".jp-OutputArea-output pre")
    expect(output).to_be_visible()
    return output.inner_text()


def test_a_cell_goes_on_from_what_was_typed(notebook):
    """Text and settings arrive in Python, and with the seed both write the same text."""
    view = started(notebook, FIRST)
    field = view.get_by_label("Your text")
    field.fill(PROMPT)
    heat = view.get_by_label("Temperature")
    for _ in range(4):
        heat.press("ArrowLeft")
    expect(heat).to_have_attribute("aria-valuetext", "0.80")
    expected = SamplingParams(temperature=0.8, seed=5, max_tokens=30)
    in_python = [PROMPT, json.loads(json.dumps(dataclasses.asdict(expected)))]
    # The first of a heap of messages to the kernel is sent at once, the last one a moment later.
    until(notebook, lambda: json.loads(printed(notebook, READ)) == in_python)

    continuation = ast.literal_eval(printed(notebook, GO_ON))
    ids = tokenizer().encode_document(PROMPT)
    own = generate(load_model("target"), ids, expected).ids
    assert continuation == tokenizer().decode(own)
    shown(notebook, FIRST)
    view.get_by_role("button", name="Generate").click()
    expect(field).to_have_value(PROMPT + continuation)
    until(notebook, lambda: json.loads(printed(notebook, READ))[0] == PROMPT + continuation)


def test_python_sets_the_view(notebook):
    view = started(notebook, FIRST)
    run(notebook, SET)
    shown(notebook, FIRST)
    expect(view.get_by_label("Your text")).to_have_value("class Stack")
    expect(view.get_by_label("Temperature")).to_have_attribute("aria-valuetext", "0.50")
    expect(view.get_by_label("Seed", exact=True)).to_have_value("9")
    view.get_by_role("button", name="Generate").click()
    continuation = ast.literal_eval(printed(notebook, GO_ON))
    # What was written in the page was taken over before: the cell went on from there.
    assert view.get_by_label("Your text").input_value().startswith("class Stack")
    assert continuation


def test_two_views_share_one_worker(notebook):
    started(notebook, FIRST)
    started(notebook, SECOND)
    assert len(notebook.workers) == 1


def test_keys_stay_in_the_view(notebook):
    """A letter typed, or an arrow on a slider, is no command to the notebook."""
    view = started(notebook, FIRST)
    n_cells = notebook.locator(".jp-Cell").count()
    view.get_by_role("button", name="New seed").press("b")  # would add a cell
    view.get_by_label("Temperature").press("ArrowDown")
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    at = notebook.evaluate(active)
    view.get_by_label("Temperature").press("ArrowDown")
    assert notebook.evaluate(active) == at
    assert notebook.locator(".jp-Cell").count() == n_cells


def test_a_kernel_that_is_gone_is_told(notebook):
    """Not from the browser's memory: this page keeps nothing."""
    notebook.evaluate(FORGET)
    view = run(notebook, FIRST).locator(".ft-live")
    notebook.evaluate("() => window.jupyterapp.commands.execute('notebook:shutdown-kernel')")
    expect(notebook.get_by_role("button", name="No Kernel |")).to_be_visible()
    view.get_by_role("button", name="Try it").click()
    expect(view.get_by_role("alert")).to_contain_text("The kernel does not send the model")
    expect(view.get_by_role("img")).to_be_visible()
    view.get_by_role("button", name="Try again").click()
    expect(view.get_by_role("alert")).to_contain_text("run the cell again")  # it is still gone
