"""scripts/train_pruning.py: sizes that are equal, equal batches, and a stop that loses nothing."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from firsttoken.models.evaluation import bits_per_byte
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama
from firsttoken.models.tokenizer import tokenizer

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_pruning as script

STREAM = np.random.default_rng(1).integers(1024, size=5000).astype(np.uint16)
SCALE = script.quick_scale()
RECIPE = replace(SCALE.recipe, steps=4, short_steps=2)
TARGET = Llama.from_pretrained(ROOT / "data" / "model" / "target")
TOY = script.toy(TARGET)
WINDOWS = script.heldout_windows(2)


def found_for(target: Llama) -> dict:
    """An analysis with random scores."""
    rng, arch = np.random.default_rng(0), target.arch
    scores = {
        kind: {"scores": {m: rng.random(script.unit_shape(arch, kind)).tolist() for m in methods}}
        for kind in ("layers", "heads", "neurons")
        for methods in [script.methods_of(kind)]
    }
    kept = {str(n): {"kept": "0123"[:n]} for n in (1, 2, 4)}
    sets = {"best": "0127", "median": "0356", "worst": "4567"}
    choice = {"layers": kept, "heads": "taylor", "neurons": "gradient", "lottery": sets}
    return {"importance": scores, "chosen": choice}


def test_two_thin_layers_are_as_large_as_a_whole_one():
    found = found_for(TARGET)
    n = {size: script.start_of(size, TARGET, found).arch.n_params for size in script.SIZES}
    assert n["4 layers"] == n["8 thin layers"] == 1_771_200
    assert n["1 layer"] == n["2 thin layers"]
    assert n["1 layer"] == load_model("draft", "torch").arch.n_params


def test_nothing_is_reported_on_text_that_something_was_chosen_by():
    choosing, reporting = script.split_windows(script.Scale())
    assert len(choosing) == 16 and len(reporting) == 48
    together = {tuple(row) for row in (*choosing[:, 1:], *reporting[:, 1:])}
    assert len(together) == 64


def test_muon_is_pytorch_s():
    """As near as bfloat16, in which that works, comes to itself in another order."""
    torch.manual_seed(0)
    shapes = [(24, 8), (8, 24), (8, 24), (16, 16)]
    ours, theirs = ([torch.nn.Parameter(torch.zeros(s)) for s in shapes] for _ in range(2))
    mine = script.Muon(ours, 0.02, 0.1)
    other = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1)
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        mine.step()
        other.step()
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() < 0.03 * b.norm() and a.norm() > 0.01


def student(way: str, recipe=RECIPE, rate: float = 0.5) -> script.Student:
    return script.Student("1 layer", way, script.smaller(TOY, layers=[0]), recipe, rate)


def trained(folder: Path, recipe=RECIPE) -> list[script.Student]:
    """Return the students after a training in the folder."""
    students = [student(way, recipe) for way in ("distil", "from scratch")]
    work = script.Work(folder, {"code": "k"})
    script.train("t", students, recipe, STREAM, TOY, WINDOWS[:1], (0, 3, 4), work, 0)
    return students


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """(folder, report): a whole run of a toy, on a text of its own."""
    folder = tmp_path_factory.mktemp("quick")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "training_stream", lambda *_: STREAM)
        patch.setattr(script, "RANDOM", 1)
        script.main(["--quick", f"--work={folder}", f"--out={folder}/out"])
    return folder, json.loads((folder / "pruning.json").read_text())


def check_report(stored: dict, scale: script.Scale) -> None:
    """All figures of a report that follow from others do."""
    repair, losses = stored["repair"], {}
    assert stored["provenance"]["seeds"] == list(scale.seeds)
    assert repair["recipe"] == json.loads(json.dumps(asdict(scale.recipe)))
    for run in repair["runs"]:
        assert run["n_params"] == repair["before"][run["size"]]["n_params"]
        losses.setdefault((run["size"], run["way"]), []).append(run["nats_per_token"])
    expected = {(size, way) for size in scale.sizes for way in script.WAYS}
    assert set(losses) == expected | {(name, "distil") for name in script.LOTTERY}
    assert {len(values) for values in losses.values()} == {len(scale.seeds)}
    for d in repair["differences"]:
        a, b = (losses[tuple(d[key])] for key in ("run", "minus"))
        assert d["mean"] == pytest.approx(np.mean(a) - np.mean(b), abs=2e-4)
    for way, tried in repair["rates"]["tried"].items():
        assert min(tried, key=lambda row: row[1])[0] == repair["rates"]["chosen"][way]
    assert repair["rates"]["seed"] not in scale.seeds


def test_the_report_and_the_draft_of_a_whole_run(quick):
    folder, stored = quick
    check_report(stored, SCALE)
    assert stored["provenance"]["measured_code"] == script.MEASURED_CODE
    assert str(folder) not in json.dumps(stored)  # nothing about whose machine it was
    assert all(f"\n{size} " in script.table(stored) for size in SCALE.sizes)
    ours = load_model(folder / "pruned_draft", "torch")
    said = stored["draft"]["compared"]["pruned_draft"]
    assert ours.arch.n_params == said["n_params"] and ours.arch.n_layers == 1
    text = (ROOT / "data" / "heldout.txt").read_text("utf-8")[: SCALE.compared_chars]
    assert said["bits_per_byte"] == pytest.approx(bits_per_byte(ours, tokenizer(), text), abs=1e-3)


def test_the_stored_report_is_whole():
    stored = json.loads((ROOT / "data" / "measured" / "pruning.json").read_text())
    check_report(stored, script.Scale())
    said = stored["draft"]["compared"]["pruned_draft"]
    folder = ROOT / "data" / "model" / "pruned_draft"
    assert load_model(folder, "torch").arch.n_params == said["n_params"]
