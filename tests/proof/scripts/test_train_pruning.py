"""scripts/train_pruning.py: sizes that are equal, equal batches, and a stop that loses nothing."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from firsttoken.evaluation import bits_per_byte, mean_acceptance
from firsttoken.llama import load_model
from firsttoken.llama_torch import Llama
from firsttoken.tokenizer import tokenizer

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


# Sizes


def test_two_thin_layers_are_as_large_as_a_whole_one():
    found = found_for(TARGET)
    n = {size: script.start_of(size, TARGET, found).arch.n_params for size in script.SIZES}
    assert n["4 layers"] == n["8 thin layers"] == 1_771_200
    assert n["1 layer"] == n["2 thin layers"]
    assert n["1 layer"] == load_model("draft", "torch").arch.n_params


def test_a_size_keeps_what_was_chosen():
    found = found_for(TARGET)
    weights, name = TARGET.state_dict(), "model.layers.{}.mlp.up_proj.weight"
    for size, kept in (("4 layers", (0, 1, 2, 3)), ("median", (0, 3, 5, 6))):
        ours = script.start_of(size, TARGET, found).state_dict()
        for new, old in enumerate(kept):
            assert torch.equal(ours[name.format(new)], weights[name.format(old)])
    scores = np.array(found["importance"]["neurons"]["scores"]["gradient"])[1]
    best = torch.from_numpy(np.sort(np.argsort(-scores)[:213]))
    ours = script.start_of("2 thin layers", TARGET, found).state_dict()
    assert torch.equal(ours[name.format(1)], weights[name.format(1)][best])


def test_each_axis_goes_by_the_method_that_does_least_damage():
    """The layers' by the set that a method keeps; the rest where about as much goes."""
    arch, sets = TARGET.arch, {}
    for size in range(1, 9):
        sets |= {"".join(map(str, s)): 1.0 + size for s in script.combinations(range(8), size)}
    sets |= {"0134": 0.3, "0": 0.2, "0123": 0.1}
    methods = script.methods_of("layers")
    scores = {m: np.arange(8.0).tolist() for m in methods}  # keep the last layers
    scores["gradient"] = [9, 8, 1, 7, 6, 0, 0, 0]
    rows = {
        "heads": {m: [[1, 3.0 + i], [2, 9.0 - i]] for i, m in enumerate(methods[:4])},
        "neurons": {m: [[51, 1.0 + i], [307, 9.0 - i], [461, 1.0]] for i, m in enumerate(methods)},
    }
    found = {"damage": rows, "subsets": sets, "importance": {"layers": {"scores": scores}}}
    choice = script.chosen(found, arch)
    assert choice["layers"][4] == {"method": "gradient", "kept": "0134"}
    assert choice["layers"][1]["kept"] == "0"
    assert choice["heads"] == methods[0] and choice["neurons"] == "leave_one_out"
    assert choice["lottery"]["best"] == "0123" and len(choice["lottery"]["worst"]) == 4


def test_nothing_is_reported_on_text_that_something_was_chosen_by():
    choosing, reporting = script.split_windows(script.Scale())
    assert len(choosing) == 16 and len(reporting) == 48
    together = {tuple(row) for row in (*choosing[:, 1:], *reporting[:, 1:])}
    assert len(together) == 64


def test_the_loss_is_that_of_the_shipped_figures():
    expected = script.evaluate(TARGET, WINDOWS)["nats_per_token"]
    assert script.nats(TARGET, WINDOWS) == pytest.approx(expected, abs=1e-4)
    assert script.figures(TARGET, WINDOWS)["nats_per_token"] == script.nats(TARGET, WINDOWS)


# The damage


def test_damage_counts_what_goes(monkeypatch):
    """In place of the loss, the units that are left."""
    sizes = {"heads": "n_heads", "kv_heads": "n_kv_heads", "neurons": "d_ff", "channels": "d_model"}
    scores = {
        kind: {"scores": {"taylor": np.random.default_rng(0).random(shape).tolist()}}
        for kind in ("layers", *sizes)
        for shape in [script.unit_shape(TOY.arch, kind)]
    }
    subsets = {"0": 1.0, "1": 1.0, "01": 2.0}
    monkeypatch.setattr(script, "nats", lambda model, _: asdict(model.arch))
    table = script.damage(TOY, scores, WINDOWS, subsets)
    assert table["layers"]["taylor"] == [[1, 1.0]]
    for kind, size in sizes.items():
        assert set(table[kind]) == {"taylor", "random 0", "random 1", "random 2"}
        for removed, left in table[kind]["taylor"]:
            per = 2 if kind == "heads" else 1  # heads of a group, of which there are two
            assert removed * per + left[size] == getattr(TOY.arch, size)
    assert [removed for removed, _ in table["heads_anywhere"]["taylor"]] == [2, 3, 5, 6, 8, 9, 11]


def test_half_of_every_matrix_is_zero(monkeypatch):
    shares = []

    def share(model, _):
        matrices = [w for n, w in model.named_parameters() if ".layers." in n and w.ndim == 2]
        shares.append([(w == 0).float().mean().item() for w in matrices])
        return 0.0

    monkeypatch.setattr(script, "nats", share)
    ways = script.half_of_the_weights(TOY, WINDOWS[:, :20], WINDOWS)
    assert len(ways) == len(shares) == 4
    np.testing.assert_allclose(shares[:3], 0.5)  # the patterns
    np.testing.assert_allclose(shares[3], 0.5, atol=0.003)  # but for ties


def test_every_set_of_layers_is_tried():
    subsets = script.every_subset(TOY, WINDOWS[:1])
    assert set(subsets) == {"0", "1", "01"}
    assert subsets["01"] == script.nats(TOY, WINDOWS[:1])
    assert subsets["1"] == script.nats(script.smaller(TOY, layers=[1]), WINDOWS[:1])


# The training


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


def test_an_orthogonal_update_turns_and_hardly_stretches():
    torch.manual_seed(0)
    x = torch.randn(3, 12, 40)
    for matrices in (x, x.mT, 1e3 * x):
        u, _, v = torch.linalg.svd(matrices, full_matrices=False)
        turned = script.orthogonal(matrices)
        inner = torch.diagonal(u.mT @ turned @ v.mT, dim1=-2, dim2=-1)
        assert inner.min() > 0.5 and inner.max() < 1.3


def student(way: str, recipe=RECIPE, rate: float = 0.5) -> script.Student:
    return script.Student("1 layer", way, script.smaller(TOY, layers=[0]), recipe, rate)


def test_random_starts_of_a_seed_are_alike_and_pruned_ones_are_the_target_s():
    labels, taught = student("from scratch"), student("distil from scratch")
    other = student("from scratch", replace(RECIPE, seed=7))
    name = "model.layers.0.mlp.up_proj.weight"
    weights = [s.model.state_dict()[name] for s in (labels, taught, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert torch.equal(student("distil").model.state_dict()[name], TOY.state_dict()[name])


def test_who_is_the_target_has_nothing_to_learn_from_it():
    s = script.Student("1 layer", "distil", script.smaller(TOY), RECIPE, 0.5)
    tokens = torch.from_numpy(WINDOWS[:1, :33])
    loss = script.distillation_loss(s.model(tokens), TOY(tokens))
    loss.backward()
    assert max(p.grad.abs().max().item() for p in s.model.parameters()) < 1e-6


def trained(folder: Path, recipe=RECIPE, key: str = "k", ways=("distil", "from scratch")):
    """(students, seconds) after a training in the folder."""
    work = script.Work(folder, {"code": key})
    students = [student(way, recipe) for way in ways]
    script.train("t", students, recipe, STREAM, TOY, WINDOWS[:1], (0, 3, 4), work, 0)
    return students


def test_a_student_does_not_depend_on_who_learns_beside_it(tmp_path):
    (alone,), (_, beside) = (
        trained(tmp_path / "alone", ways=("from scratch",)),
        trained(tmp_path / "beside"),
    )
    assert alone.curve == beside.curve


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    trained(tmp_path)
    with pytest.raises(SystemExit, match="another recipe"):
        trained(tmp_path, ways=("fine-tune", "from scratch"))
    with pytest.raises(SystemExit, match="another code"):
        trained(tmp_path, key="l")


def test_a_part_is_made_once_and_kept_for_its_own_code(tmp_path):
    work, made = script.Work(tmp_path, {"code": {"a": "1"}}), []
    for _ in range(2):
        value = work.kept("part", lambda: made.append(1) or {"x": [1, 2]})
        assert value["x"] == [1, 2] and {"commit", "machine", "cpu_s"} < set(value)
    assert made == [1]
    with pytest.raises(SystemExit, match="another code"):
        script.Work(tmp_path, {"code": {"a": "2"}}).kept("part", dict)


# The whole


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """(folder, report, call): a whole run of a toy, on a text of its own."""
    folder = tmp_path_factory.mktemp("quick")

    def call(*arguments):
        script.main(["--quick", f"--work={folder}", f"--out={folder}/out", *arguments])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "training_stream", lambda *_: STREAM)
        patch.setattr(script, "RANDOM", 1)
        with pytest.raises(SystemExit, match="seed-0 needs analysis: run --only analysis"):
            call("--only=seed-0")
        with pytest.raises(SystemExit, match="--only must be one of subsets"):
            call("--only=seed-9")
        call("--only=subsets")
        assert [path.name for path in folder.glob("*.json")] == ["subsets.json"]
        call()
        yield folder, json.loads((folder / "pruning.json").read_text()), call


def test_a_second_call_makes_nothing_anew(quick, monkeypatch):
    folder, first, call = quick
    for name in ("importance", "train", "damage", "compared"):
        monkeypatch.setattr(script, name, None)
    call()
    again = json.loads((folder / "pruning.json").read_text())
    for result in (first, again):
        result["provenance"]["date"] = ""
    assert again == first


def test_a_quick_run_stores_no_result(quick):
    folder, _, _ = quick
    assert not (folder / "out").exists()


def check_report(stored: dict, scale: script.Scale) -> None:
    """All figures of a report that follow from others do."""
    provenance, found, repair = stored["provenance"], stored["analysis"], stored["repair"]
    assert {"machine", "date", "commit", "versions", "cpu_s"} <= set(provenance)
    assert provenance["seeds"] == list(scale.seeds)
    recipe = repair["recipe"]
    assert repair["tokens_seen"] == recipe["steps"] * recipe["tokens_per_step"]
    losses = {}
    for run in repair["runs"]:
        assert run["n_params"] == repair["before"][run["size"]]["n_params"]
        assert [step for step, _ in run["curve"]] == list(scale.marks)
        losses.setdefault((run["size"], run["way"]), []).append(run["nats_per_token"])
    expected = {(size, way) for size in scale.sizes for way in script.WAYS}
    assert set(losses) == expected | {(name, "distil") for name in script.LOTTERY}
    assert {len(values) for values in losses.values()} == {len(scale.seeds)}
    for d in repair["differences"]:
        a, b = (losses[tuple(d[key])] for key in ("run", "minus"))
        assert d["mean"] == pytest.approx(np.mean(a) - np.mean(b), abs=2e-4)
        assert d["half_width_95"] >= 0
    rates = repair["rates"]
    for way, tried in rates["tried"].items():
        assert min(tried, key=lambda row: row[1])[0] == rates["chosen"][way]
    assert rates["seed"] not in provenance["seeds"]
    half = [loss for kept, loss in found["subsets"].items() if len(kept) == 4]
    assert not half or found["subsets"][found["chosen"]["lottery"]["best"]] == min(half)
    for kind, of in found["importance"].items():
        assert of["spearman"]["leave_one_out"]["all"] == 1
        assert len({len(s) for s in of["scores"].values()}) == 1, kind
    draft = stored["draft"]
    assert draft["tokens_seen"] == draft["recipe"]["steps"] * draft["recipe"]["tokens_per_step"]
    compared = draft["compared"]
    for name in ("draft", "pruned_draft"):
        ratio = compared[name]["step_s"] / compared["target"]["step_s"]
        assert compared[name]["cost_ratio"] == pytest.approx(ratio, rel=0.01)


def test_the_report_is_whole(quick):
    folder, stored, _ = quick
    check_report(stored, SCALE)
    assert stored["provenance"]["measured_code"] == script.MEASURED_CODE
    assert json.dumps(stored).count("measured_code") == 1
    assert str(folder) not in json.dumps(stored)  # nothing about whose machine it was
    table = script.table(stored)
    assert all(f"\n{size} " in table for size in SCALE.sizes) and "\npruned_draft: " in table


def test_the_draft_is_what_the_report_says(quick):
    folder, stored, _ = quick
    ours = load_model(folder / "pruned_draft", "torch")
    said = stored["draft"]["compared"]["pruned_draft"]
    assert ours.arch.n_params == said["n_params"] and ours.arch.n_layers == 1
    assert f"{ours.arch.n_params:,}" in (folder / "pruned_draft" / "README.md").read_text()
    text = (ROOT / "data" / "heldout.txt").read_text("utf-8")[: SCALE.compared_chars]
    assert said["bits_per_byte"] == pytest.approx(bits_per_byte(ours, tokenizer(), text), abs=1e-3)
    assert said["acceptance"] == pytest.approx(
        mean_acceptance(TARGET, ours, tokenizer(), text), abs=1e-3
    )


def test_the_table_is_shown_without_work(tmp_path, quick, capsys):
    _, stored, _ = quick
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "pruning.json").write_text(json.dumps(stored))
    script.main(["--table", f"--out={tmp_path}", f"--work={tmp_path}/none"])
    assert capsys.readouterr().out.strip() == script.table(stored)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "measured").glob("pruning*.json")), ids=lambda p: p.name
)
def test_the_stored_report_is_whole(path):
    stored, scale = json.loads(path.read_text()), script.Scale()
    check_report(stored, scale)
    assert path.stat().st_size < 150_000
    assert stored["repair"]["recipe"] == json.loads(json.dumps(asdict(scale.recipe)))
    said = stored["draft"]["compared"]["pruned_draft"]
    file = ROOT / "data" / "model" / "pruned_draft" / "model.safetensors"
    assert file.stat().st_size == said["file_bytes"] <= 1e6
    assert load_model(file.parent, "torch").arch.n_params == said["n_params"]
