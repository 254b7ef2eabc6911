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
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer
from firsttoken.sampling import SamplingParams

PROMPT = "def is_prime(n):\n    return"
PREPARE, VIEW, READ, GO_ON = range(4)
SOURCES = [
    """import dataclasses, json
from firsttoken import live
from firsttoken.generate import generate
from firsttoken.models.llama import load_model
from firsttoken.models.tokenizer import tokenizer""",
    "prompt = live.next_token('import ', seed=5, max_tokens=30)\nprompt",
    "print(json.dumps([prompt.text, dataclasses.asdict(prompt.params)]))",
    "ids = prompt.ids\n"
    "print(repr(tokenizer().decode(generate(load_model('target'), ids, prompt.params).ids)))",
]


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


def started(page):
    """Run the cell with the view, start it and return it."""
    view = run(page, VIEW).locator(".ft-live")
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
    view = started(notebook)
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
    shown(notebook, VIEW)
    view.get_by_role("button", name="Generate").click()
    expect(field).to_have_value(PROMPT + continuation)
    until(notebook, lambda: json.loads(printed(notebook, READ))[0] == PROMPT + continuation)


def test_keys_stay_in_the_view(notebook):
    """A letter typed, or an arrow on a slider, is no command to the notebook."""
    view = started(notebook)
    n_cells = notebook.locator(".jp-Cell").count()
    view.get_by_role("button", name="New seed").press("b")  # would add a cell
    view.get_by_label("Temperature").press("ArrowDown")
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    at = notebook.evaluate(active)
    view.get_by_label("Temperature").press("ArrowDown")
    assert notebook.evaluate(active) == at
    assert notebook.locator(".jp-Cell").count() == n_cells
