"""scripts/train_qat.py: what training rounds is what is stored, and rounding lets gradients by."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firsttoken.llama_torch import Llama
from firsttoken.quantization import gptq, quantize

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_qat as script

STREAM = np.random.default_rng(1).integers(1024, size=5000).astype(np.uint16)
SCALE = script.quick_scale()
RECIPE = replace(SCALE.recipe, steps=4, short_steps=2)
TARGET = Llama.from_pretrained(ROOT / "data" / "model" / "target")
TOY = script.toy(TARGET)
WINDOWS = script.split_windows(replace(SCALE, choosing=2))[0]
MATRIX = "model.layers.1.mlp.up_proj"


def learner(way: str, bits: int = 2, rate: float = 1e-3, recipe=RECIPE) -> script.Learner:
    return script.Learner(way, bits, TOY, recipe, rate)


# Rounding


@given(
    arrays(np.float32, (3, 96), elements=st.floats(-8, 8, width=32)),
    st.sampled_from((2, 3, 4, 8)),
)
def test_training_rounds_to_the_very_numbers_of_quantize(w, bits):
    ours = script.StraightThrough.apply(torch.from_numpy(w), bits).numpy()
    expected = quantize(w, bits, axis=0, group_size=script.GROUP).dequantize()
    assert ours.tobytes() == expected.tobytes()


def test_groups_lie_along_the_inputs():
    """Of an output, as GPTQ and the measurement of the chapter have it: not along the outputs."""
    w = TARGET.get_submodule(MATRIX).weight
    ours = script.StraightThrough.apply(w, 3).numpy()
    turned = quantize(w.numpy().T, 3, axis=1, group_size=script.GROUP).dequantize().T
    across = quantize(w.numpy(), 3, axis=1, group_size=script.GROUP).dequantize()
    assert np.array_equal(ours, turned) and not np.array_equal(ours, across)
    matrix = script.rounded(TARGET, 3).get_submodule(MATRIX).weight.numpy()
    assert np.array_equal(ours, matrix)


def test_a_rounded_model_has_few_numbers_in_its_matrices_and_the_rest_as_it_was():
    ours = script.rounded(TARGET, 2)
    before, after = TARGET.state_dict(), ours.state_dict()
    assert before.keys() == after.keys()
    for name, w in after.items():
        if not name.endswith("_proj.weight"):
            assert torch.equal(w, before[name])
        else:
            groups = w.unflatten(1, (-1, script.GROUP))
            peak = groups.abs().amax(-1, keepdim=True)
            assert ((groups == 0) | (groups.abs() == peak)).all()
    assert len(script.all_matrices(TARGET)) == 7 * TARGET.arch.n_layers


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("way", script.WAYS)
def test_a_learner_s_loss_is_that_of_the_rounded_model(way, bits):
    s = learner(way, bits)
    expected = script.nats(script.rounded(TOY, bits), WINDOWS)
    assert script.nats(s.model, WINDOWS) == expected
    assert script.nats(script.unrounded(s.model), WINDOWS) == script.nats(TOY, WINDOWS) != expected
    tokens = torch.from_numpy(WINDOWS[:, :33])
    s.learn(1, tokens[:, :-1], tokens[:, 1:], TOY(tokens[:, :-1]))
    assert script.nats(s.model, WINDOWS) == script.nats(script.rounded(s.model, bits), WINDOWS)


def test_gptq_is_the_library_s_and_sees_only_its_rows():
    rows = script.text_rows(STREAM, (2, 64))
    ours = script.gptq_rounded(TOY, 3, rows)
    seen = []
    first = TOY.model.layers[0].self_attn.q_proj
    hook = first.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    TOY(rows)
    hook.remove()
    x, w = seen[0].flatten(0, 1).numpy(), first.weight.numpy().T
    expected = gptq(w, x, 3, script.GROUP).dequantize().T
    assert np.array_equal(ours.model.layers[0].self_attn.q_proj.weight.numpy(), expected)


# The gradient


@given(
    arrays(np.float32, (2, 64), elements=st.floats(-4, 4, width=32)),
    arrays(np.float32, (2, 64), elements=st.floats(-4, 4, width=32)),
    st.sampled_from((2, 3)),
)
def test_a_gradient_passes_straight_through(w, outer, bits):
    """By the weight it is what it is by the rounded weight, wherever that stands."""
    weight, outer = torch.from_numpy(w).requires_grad_(True), torch.from_numpy(outer)
    out = script.StraightThrough.apply(weight, bits)
    (out**2 * outer).sum().backward()
    torch.testing.assert_close(weight.grad, 2 * out.detach() * outer, rtol=0, atol=0)


@pytest.mark.parametrize("way", script.WAYS)
def test_training_sees_the_matrices_that_its_way_says(way):
    """The gradient of QAT is that of the rounded model, of the control that of the model."""
    s, inside = learner(way, 2), script.WAYS[way][0]
    tokens = torch.from_numpy(WINDOWS[:, :33])
    plain = (script.rounded(TOY, 2) if inside else script.unrounded(TOY)).requires_grad_(True)
    for model in (s.model, plain):
        model(tokens).square().mean().backward()
    ours = s.model.get_submodule(MATRIX).parametrizations.weight.original.grad
    torch.testing.assert_close(ours, plain.get_submodule(MATRIX).weight.grad)


def test_with_the_true_gradient_of_rounding_no_code_changes(monkeypatch):
    """It is zero but for the largest weight of a group, which sets the scale."""
    tokens = torch.from_numpy(WINDOWS)
    losses, changed = {}, {}
    wrong = staticmethod(lambda _, gradient: (torch.zeros_like(gradient), None))
    for name, backward in (("straight through", script.StraightThrough.backward), ("zero", wrong)):
        monkeypatch.setattr(script.StraightThrough, "backward", backward)
        s = learner("QAT", 2, 3e-3, replace(RECIPE, steps=12, short_steps=8))
        for p in (s.model.model.embed_tokens.weight, *s.model.model.norm.parameters()):
            p.requires_grad_(False)  # only the matrices and the norms of layers can learn
        for step in range(12):
            s.learn(step, tokens[:, :-1], tokens[:, 1:], None)
        losses[name] = script.nats(s.model, WINDOWS)
        changed[name] = script.changes(TOY, s.model, 2, (1, "mlp.up_proj"))
    assert losses["straight through"] < losses["zero"] - 0.1
    assert changed["zero"]["changed"] == changed["zero"]["shown_moved"] == 0
    assert changed["straight through"]["changed"] > 0.001


# What is seen of it


def test_changes_are_counted_by_hand():
    s = learner("QAT", 3)
    assert script.changes(TOY, s.model, 3, (1, "mlp.up_proj"))["changed"] == 0
    original = s.model.get_submodule(MATRIX).parametrizations.weight.original
    w = TOY.get_submodule(MATRIX).weight
    with torch.no_grad():
        original.neg_()  # every code but 0 is another one
    found = script.changes(TOY, s.model, 3, (1, "mlp.up_proj"))
    shares = found["shown_codes"]
    assert found["shown_changed"] == pytest.approx(1 - shares["before"][3], abs=1e-4)
    assert shares["after"] == shares["before"][::-1] and len(shares["after"]) == 7
    assert sum(shares["after"]) == pytest.approx(1, abs=1e-3)
    assert found["shown_moved"] == 2
    total = sum(m.weight.numel() for m in script.all_matrices(TOY))
    share = found["shown_changed"] * w.numel() / total
    assert found["changed"] == pytest.approx(share, abs=1e-4)


# The search for a rate


def test_a_search_goes_on_past_an_edge_that_wins(monkeypatch, tmp_path):
    """Losses whose best rate is known stand in for the training."""
    scale = replace(script.Scale(), widenings=2)
    work = script.Work(tmp_path, {})
    monkeypatch.setattr(script, "train", lambda *_: None)
    monkeypatch.setattr(
        script, "Learner", lambda way, bits, target, recipe, rate: FakeLearner(rate)
    )
    for best, n_tried in ((1e-3, 3), (3e-4, 4), (3e-3, 4), (1e-4, 5), (1e-5, 5)):
        monkeypatch.setattr(script, "nats", lambda at, _, b=best: abs(np.log(at / b)))
        found = script.choose_rate("QAT", 2, TOY, STREAM, WINDOWS, scale, work)
        assert len(found["tried"]) == n_tried
        reached = best if best >= 3e-5 else 3e-5  # two rates beyond the grid, no further
        assert found["chosen"] == reached
    assert script.beyond({1e-5: 1.0, 3e-5: 2.0}) is None  # the ladder ends


class FakeLearner:
    def __init__(self, rate: float):
        self.rate = self.model = rate


# The whole


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """(folder, report, call): a whole run of a toy, on a text of its own."""
    folder = tmp_path_factory.mktemp("quick")

    def call(*arguments):
        script.main(["--quick", f"--work={folder}", f"--out={folder}/out", *arguments])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "training_stream", lambda *_: STREAM)
        call()
        yield folder, json.loads((folder / "qat.json").read_text()), call


def test_a_second_call_makes_nothing_anew(quick, monkeypatch):
    folder, first, call = quick
    for name in ("train", "gptq_rounded", "rounded"):
        monkeypatch.setattr(script, name, None)
    call()
    again = json.loads((folder / "qat.json").read_text())
    for result in (first, again):
        result["provenance"]["date"] = ""
    assert again == first


def test_work_of_another_scale_is_refused(quick, monkeypatch):
    _, _, call = quick
    monkeypatch.setattr(script, "quick_scale", lambda: replace(SCALE, widenings=0))
    with pytest.raises(SystemExit, match="another scale"):
        call()


def test_a_quick_run_stores_no_result(quick):
    folder, _, _ = quick
    assert not (folder / "out").exists()


def check_report(stored: dict, scale: script.Scale) -> None:
    """All figures of a report that follow from others do."""
    provenance, recipe = stored["provenance"], stored["recipe"]
    assert {"machine", "date", "commit", "versions", "cpu_s"} <= set(provenance)
    assert provenance["seeds"] == list(scale.seeds)
    assert recipe == json.loads(json.dumps(script.said_of(scale.recipe)))
    assert stored["tokens_seen"] == recipe["steps"] * recipe["tokens_per_step"]
    start, losses = stored["before"], {}
    n_params = start["target"]["n_params"]
    for run in stored["runs"]:
        key = run["way"], run["bits"]
        assert run["n_params"] == n_params
        losses.setdefault(key, []).append(run["nats_per_token"])
        if run["way"] in script.WAYS:
            assert [step for step, _ in run["curve"]] == list(scale.marks)
            for shares in run["shown_codes"].values():
                assert len(shares) == 2 ** run["bits"] - 1
                assert sum(shares) == pytest.approx(1, abs=1e-3)
            assert run["shown_moved"] > 0 and 0 <= run["changed"] <= 1
    ways = ("GPTQ", *script.WAYS)
    assert set(losses) == {(way, bits) for way in ways for bits in scale.bits}
    assert {len(values) for values in losses.values()} == {len(scale.seeds)}
    # Before the first step all models of so many bits are one.
    firsts = {(r["bits"], r["curve"][0][1]) for r in stored["runs"] if "curve" in r}
    assert len(firsts) == len(scale.bits)
    for bits in scale.bits:
        losses["nearest", bits] = [start["nearest"][str(bits)]["nats_per_token"]]
        losses["unquantised", bits] = [start["target"]["nats_per_token"]]
    for d in stored["differences"]:
        a, b = (losses[d[key], d["bits"]] for key in ("way", "minus"))
        assert d["mean"] == pytest.approx(np.mean(a) - np.mean(b), abs=2e-4)
        assert d["half_width_95"] >= 0
    for row in stored["rates"]["found"]:
        tried = dict(row["tried"])
        assert min(tried, key=tried.get) == row["chosen"]
    assert stored["rates"]["seed"] not in provenance["seeds"]
    sizes = stored["rounding"]["bits_per_weight"]
    assert sizes == {str(bits): bits + 16 / script.GROUP for bits in scale.bits}


def test_the_report_is_whole(quick):
    folder, stored, _ = quick
    check_report(stored, SCALE)
    assert stored["provenance"]["measured_code"] == script.MEASURED_CODE
    assert str(folder) not in json.dumps(stored)  # nothing about whose machine it was
    table = script.table(stored)
    assert all(f"{bits} bits  {way}" in table for bits in (2, 3) for way in script.WAYS)


def test_the_table_is_shown_without_work(tmp_path, quick, capsys):
    _, stored, _ = quick
    (tmp_path / "qat.json").write_text(json.dumps(stored))
    script.main(["--table", f"--out={tmp_path}", f"--work={tmp_path}/none"])
    assert capsys.readouterr().out.strip() == script.table(stored)
    assert not (tmp_path / "none").exists()


def test_nothing_is_reported_on_text_that_a_rate_was_chosen_by():
    scale = script.Scale()
    choosing, reporting = script.split_windows(scale)
    together = {tuple(row) for row in (*choosing[:, 1:], *reporting[:, 1:])}
    assert len(together) == scale.choosing + scale.reporting


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "measured").glob("qat*.json")), ids=lambda p: p.name
)
def test_the_stored_report_is_whole(path):
    stored = json.loads(path.read_text())
    check_report(stored, script.Scale())
    assert path.stat().st_size < 50_000
    assert stored["provenance"]["script"] == "scripts/train_qat.py"
    assert stored["rates"]["recipe"] == script.said_of(script.Scale().rate_recipe)
    assert asdict(script.Scale())["seeds"] == tuple(stored["provenance"]["seeds"])
