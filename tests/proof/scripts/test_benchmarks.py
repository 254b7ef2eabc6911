"""benchmarks/ and the switches of the chapters: where results go, and what a switch starts."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
import torch

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted((ROOT / "benchmarks").glob("*.py"))
SWITCHES = {
    "12_speculative": ("benchmarks/speculative.py", ["--rounds", "1"]),
    "14_batching": ("scripts/measure_engine.py", ["--even-if-busy"]),
    "15_paging": ("benchmarks/paging.py", []),
}
# Stands for a program that measures for minutes: says what it was asked to do.
PROGRAM = """
import json, sys
*options, _, out = sys.argv[1:]
print("measuring")
json.dump(options, open(out, "w"))
"""


def switch(stem: str) -> str:
    """Return the cell of a chapter that measures here, switched on."""
    cells = json.loads((ROOT / "notebooks" / f"{stem}.ipynb").read_text("utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "switch")
    assert source.count("measure_now = False") == 1
    return source.replace("measure_now = False", "measure_now = True")


def run_switches(folder: Path) -> list[str]:
    """Run every switch in one kernel, as from notebooks/; return what each shows at its end."""
    show = "print([path.read_text() for path in reports[1:]])"
    sources = ["def data_path(name): return name"]
    sources += [f"{switch(stem)}\n{show}" for stem in SWITCHES]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    (folder / "notebooks").mkdir()
    where = {"metadata": {"path": str(folder / "notebooks")}}
    nbclient.NotebookClient(notebook, resources=where, kernel_name="python3").execute()
    return ["".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells[1:]]


def test_a_switch_starts_its_program_and_finds_the_report(tmp_path):
    for program, _ in SWITCHES.values():
        (tmp_path / program).parent.mkdir(exist_ok=True)
        (tmp_path / program).write_text(PROGRAM)
    for shown, (_, options) in zip(run_switches(tmp_path), SWITCHES.values(), strict=True):
        assert shown.split() == ["measuring", *str([json.dumps(options)]).split()]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_s_result_is_stored_under_its_name(path):
    report = json.loads((ROOT / "data" / "measured" / f"{path.stem}.json").read_text("utf-8"))
    assert "versions" in report or "versions" in report["provenance"]
    assert not list(path.parent.glob("*.json"))
    assert f'data_path("measured/{path.stem}.json")' in path.read_text("utf-8")


def report_benchmarks():
    path = ROOT / "scripts" / "report_benchmarks.py"
    spec = importlib.util.spec_from_file_location("report_benchmarks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_stored_runs():
    """Of all programs in benchmarks/, and no line without a number."""
    text = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    assert text == report_benchmarks().page(), "run `python scripts/report_benchmarks.py`"
    source = (ROOT / "scripts" / "report_benchmarks.py").read_text("utf-8")
    assert [path.stem for path in PROGRAMS if f'stored("{path.stem}")' not in source] == []
    assert all(re.search(r"\d", line[2]) and line[3] for line in table(text))


def test_a_picture_of_five_lines(tmp_path):
    module = report_benchmarks()
    module.draw(
        {row[:2]: row[2] for row in module.rows(ROOT / "data" / "measured")}, tmp_path / "a.svg"
    )
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert all(name in text for names in module.PICTURED.values() for name in names)


def table(text):
    """Return the cells of the lines of a table in Markdown, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def flash_benchmark():
    spec = importlib.util.spec_from_file_location("flash_run", ROOT / "benchmarks" / "flash.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_quick_run_of_the_flash_benchmark(monkeypatch, tmp_path):
    module = flash_benchmark()
    monkeypatch.setattr(module, "in_own_process", lambda name, n_tokens: 0)  # seconds each
    monkeypatch.setattr(sys, "argv", ["flash.py", "--quick", "--rounds", "1"])
    monkeypatch.setattr(module, "data_path", lambda name: tmp_path / "never")
    before = torch.get_num_threads()
    try:
        module.main()
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(sys, "argv", [*sys.argv, "--out", str(tmp_path / "out.json")])
        module.main()
    finally:
        torch.set_num_threads(before)
    report = json.loads((tmp_path / "out.json").read_text())
    assert {r["program"] for r in report["prefill"]} == set(module.prefill(128))
    assert {(r["threads"], r["kv_heads"]) for r in report["decode"]} == {
        (t, k) for t in (1, 2) for k in (1, 8)
    }
