"""scripts/train_variants.py: the variants are what they say, and a stopped run loses nothing."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from firsttoken.architectures import Architecture
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.llama_torch import Llama
from firsttoken.tokenizer import tokenizer

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_variants

BY_NAME = {arch.name: arch for arch in train_variants.VARIANTS}
MHA = train_variants.MHA
# The same attention in models that train in a moment, also where bfloat16 is emulated.
TOYS = {name: arch.replace(d_model=32, d_ff=32) for name, arch in BY_NAME.items()}
TOKENS = torch.from_numpy(np.random.default_rng(0).integers(1024, size=(2, 150)))
STREAM = np.random.default_rng(1).integers(1024, size=5000).astype(np.uint16)


def strong(arch: Architecture) -> torch.nn.Module:
    """An untrained model whose weights are so large that every part of it shows."""
    model = train_variants.Model(arch, seed=0)
    for weight in model.parameters():
        weight.data *= 6 if weight.ndim == 2 else 1
    return model.requires_grad_(False)


def weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: weight.numpy() for name, weight in model.named_parameters()}


def test_it_compares_the_seven_that_chapter_06_names():
    assert list(BY_NAME) == ["MHA", "GQA", "MQA", "MLA", "CLA", "window", "hybrid"]
    # Three ways to an eighth of the cache at the context that was trained.
    cache = {name: kv_cache_bytes(arch, 512) for name, arch in BY_NAME.items()}
    assert cache["MQA"] == cache["window"] == 2 * cache["CLA"] == cache["MHA"] / 8


@pytest.mark.parametrize("arch", train_variants.VARIANTS, ids=lambda arch: arch.name)
def test_parameters_are_matched(arch):
    n_params = sum(p.numel() for p in train_variants.Model(arch, 0).parameters())
    assert n_params == arch.n_params == pytest.approx(MHA.n_params, rel=0.002)


@pytest.mark.parametrize("arch", train_variants.VARIANTS, ids=lambda arch: arch.name)
def test_the_cache_is_what_the_projections_of_keys_and_values_give(arch):
    """An outside count: the outputs of those projections, cut to the layer's window."""
    model, elements = strong(arch), []
    for block, window in zip(model.model["layers"], arch.layer_windows, strict=True):
        for name, module in block.self_attn.named_children():
            if name in ("k_proj", "v_proj", "kv_a_proj_with_mqa"):
                module.register_forward_hook(
                    lambda _, __, y, w=window: elements.append(y[0, -(w or 512) :].numel())
                )
    model(torch.zeros(1, 512, dtype=torch.long))
    assert 2 * sum(elements) == kv_cache_bytes(arch, 512, dtype="bf16")


@pytest.mark.parametrize("name", ["MHA", "GQA", "MQA", "window", "hybrid"])
def test_logits_are_those_of_the_library(name):
    model = strong(BY_NAME[name])
    expected = Llama(BY_NAME[name], weights(model))(TOKENS)
    torch.testing.assert_close(model(TOKENS), expected, atol=2e-4, rtol=1e-4)


def test_mla_is_transformers_deepseek():
    arch = BY_NAME["MLA"]
    config = DeepseekV3Config(
        vocab_size=arch.vocab_size,
        hidden_size=arch.d_model,
        intermediate_size=arch.d_ff,
        num_hidden_layers=arch.n_layers,
        num_attention_heads=arch.n_heads,
        num_key_value_heads=arch.n_heads,
        q_lora_rank=None,
        kv_lora_rank=arch.latent_dim,
        qk_rope_head_dim=arch.rope_head_dim,
        qk_nope_head_dim=arch.head_dim - arch.rope_head_dim,
        v_head_dim=arch.v_head_dim,
        first_k_dense_replace=arch.n_layers,  # no experts
        rope_interleave=False,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model, theirs = strong(arch), DeepseekV3ForCausalLM(config).eval()
    state = model.state_dict()
    theirs.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    expected = theirs(TOKENS).logits.detach()
    torch.testing.assert_close(model(TOKENS), expected, atol=2e-4, rtol=1e-4)


def test_a_layer_of_cla_reads_the_keys_of_the_layer_before():
    model, kv = strong(BY_NAME["CLA"]), []
    for block in model.model["layers"]:
        block.self_attn.register_forward_hook(lambda _, __, out: kv.append(out[1]))
    model(TOKENS)
    for i in (0, 2, 4):
        assert kv[i + 1] is kv[i]
        assert all(kv[j] is not kv[i] for j in range(i))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("window", {"window": train_variants.WINDOW + 1}),
        ("window", {"window": train_variants.WINDOW - 1}),
        ("hybrid", {"local_layers": (1, 2, 4, 5)}),
    ],
)
def test_the_comparison_with_the_library_tells_wrong_windows(name, wrong):
    model = strong(BY_NAME[name])
    expected = Llama(BY_NAME[name].replace(**wrong), weights(model))(TOKENS)
    assert (model(TOKENS) - expected).abs().max() > 0.01


@pytest.mark.parametrize("name", ["GQA", "MLA", "CLA", "window"])
def test_one_seed_starts_all_variants_alike(name):
    model, baseline = (
        dict(train_variants.Model(BY_NAME[n], seed=3).named_parameters()) for n in (name, "MHA")
    )
    same = [n for n in model if n in baseline and model[n].shape == baseline[n].shape]
    assert "model.embed_tokens.weight" in same
    assert "model.layers.5.self_attn.o_proj.weight" in same
    assert all(torch.equal(model[n], baseline[n]) for n in same)
    other = dict(train_variants.Model(BY_NAME[name], seed=4).named_parameters())
    assert not torch.equal(model[same[0]], other[same[0]])


def test_windows_of_the_held_out_text_lie_side_by_side():
    windows = train_variants.heldout_windows()
    n_tokens = 1 + len(tokenizer().encode((ROOT / "data" / "heldout.txt").read_text("utf-8")))
    assert windows.shape == ((n_tokens - 1) // 512, 513)
    assert np.array_equal(windows[1:, 0], windows[:-1, -1])


def test_a_model_that_knows_nothing_needs_log_v_for_every_token():
    model, windows = train_variants.Model(MHA, 0), train_variants.heldout_windows(3)
    model.model["embed_tokens"].weight.data.zero_()  # tied: all logits are zero
    result = train_variants.evaluate(model, windows)
    assert result["nats_per_token"] == pytest.approx(math.log(1024))
    assert result["nats_by_position"] == pytest.approx([math.log(1024)] * 4)
    tok = tokenizer()
    n_bytes = sum(len(tok.token_bytes(i)) for row in windows for i in row[1:])
    assert result["bits_per_byte"] == pytest.approx(10 * 3 * 512 / n_bytes)


def test_buckets_average_to_the_whole_and_show_a_window():
    """Up to the window's size nothing is out of sight; behind it something is."""
    windows = train_variants.heldout_windows(2)
    model = strong(BY_NAME["window"])
    narrow = train_variants.evaluate(model, windows)
    share = np.diff(train_variants.POSITIONS) / 512
    assert share @ narrow["nats_by_position"] == pytest.approx(narrow["nats_per_token"])
    model.arch = MHA
    full = train_variants.evaluate(model, windows)
    first, *rest = np.subtract(narrow["nats_by_position"], full["nats_by_position"])
    assert first == pytest.approx(0, abs=1e-5) and np.all(np.abs(rest) > 1e-3)


@given(st.lists(st.tuples(st.floats(1, 3), st.floats(1, 3)), min_size=2, max_size=8))
def test_intervals_are_those_of_a_paired_t_test(pairs):
    a, b = np.array(pairs).T
    ours = train_variants.paired(a, b)
    assert ours["mean"] == pytest.approx((a - b).mean())
    if np.std(a - b) > 1e-6:  # scipy warns where differences agree to the last bits
        low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
        assert ours["half_width_95"] == pytest.approx((high - low) / 2, rel=2e-4)


def quick(patch, folder):
    """The script's main, two steps a toy, in this process and on a text of its own."""
    trained = []
    train = train_variants.train

    def counted(arch, recipe, stream):
        trained.append((arch.name, recipe.seed))
        return train(arch, recipe, stream)

    def main(*arguments):
        trained.clear()
        train_variants.main(
            ["--quick", "--seeds=2", f"--out={folder}", f"--work={folder}", *arguments]
        )
        return list(trained)

    patch.setattr(train_variants, "VARIANTS", tuple(TOYS.values()))
    patch.setattr(train_variants, "train", counted)
    patch.setattr(train_variants, "training_stream", lambda *_: STREAM)
    patch.setattr(
        train_variants, "ProcessPoolExecutor", lambda jobs, *_, **__: ThreadPoolExecutor(jobs)
    )
    return main


@pytest.fixture
def run(monkeypatch, tmp_path):
    return quick(monkeypatch, tmp_path)


def results(folder: Path) -> dict[str, dict]:
    """All that the runs left, but for the seconds they took."""
    runs = {path.name: json.loads(path.read_text()) for path in folder.glob("*-[0-9].json")}
    return {name: {**result, "wall_s": 0} for name, result in runs.items()}


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    """(folder, order) of two seeds of every variant."""
    folder = tmp_path_factory.mktemp("seven")
    with pytest.MonkeyPatch.context() as patch:
        return folder, quick(patch, folder)()


def test_each_variant_trains_two_steps(seven):
    folder, order = seven
    assert order == [(name, seed) for seed in (0, 1) for name in BY_NAME]  # whole seeds first
    for result in results(folder).values():
        assert 6 < result["nats_per_token"] < 8 and result["loss_curve"][-1][0] == 2
        assert len(result["nats_by_position"]) == 4 and 0 < result["bits_per_byte"] < 8
    assert not list(folder.glob("variants_*"))  # a quick run writes no report


def test_a_stopped_run_ends_where_an_unbroken_one_does(run, tmp_path, monkeypatch):
    monkeypatch.setattr(train_variants, "VARIANTS", (TOYS["MHA"], TOYS["CLA"]))
    run()
    unbroken = results(tmp_path)
    assert run() == []  # all is there
    (tmp_path / "MHA-1.json").unlink()  # as if it had been stopped in this run
    (tmp_path / "CLA-1.json").unlink()
    with pytest.raises(SystemExit, match="fewer than two seeds"):
        run("--report")
    assert run() == [("MHA", 1), ("CLA", 1)]
    assert results(tmp_path) == unbroken


def test_a_result_of_another_recipe_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(train_variants, "VARIANTS", (TOYS["MHA"],))
    run()
    monkeypatch.setattr(train_variants, "RECIPE", replace(train_variants.RECIPE, muon_lr=0.01))
    with pytest.raises(SystemExit, match="another recipe"):
        run()


def test_a_result_of_other_code_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(train_variants, "VARIANTS", (TOYS["MHA"],))
    run()
    changed = train_variants.MEASURED_CODE | {"lib/firsttoken/rope.py": "0" * 64}
    monkeypatch.setattr(train_variants, "MEASURED_CODE", changed)
    with pytest.raises(SystemExit, match="other code"):
        run()


def test_a_loss_that_is_no_number_stops_the_run():
    recipe = replace(train_variants.RECIPE, steps=2, short_steps=2, tokens_per_step=512)
    recipe = replace(recipe, adam_lr=math.inf, warmup_steps=1)
    with pytest.raises(RuntimeError, match="MHA, seed 0: loss nan at step 1"):
        train_variants.train(TOYS["MHA"], recipe, STREAM)


def check_report(stored: dict, trained: dict[str, Architecture]) -> None:
    """All figures of a report follow from its runs and from the architectures."""
    assert {"machine", "date", "commit", "versions", "seeds", "wall_s"} <= set(stored["provenance"])
    names = [v["name"] for v in stored["variants"]]
    assert names == list(trained)
    baseline = stored["variants"][0]["runs"]
    for v in stored["variants"]:
        arch = Architecture(**v["arch"])
        assert arch == trained[v["name"]] and v["n_params"] == arch.n_params
        assert v["cache_bytes"] == kv_cache_bytes(arch, stored["text"]["context"])
        assert v["kv_bytes_per_token"] == 2 * arch.kv_elements_per_token
        assert [r["seed"] for r in v["runs"]] == stored["provenance"]["seeds"]
        losses, others = ([r["nats_per_token"] for r in runs] for runs in (v["runs"], baseline))
        assert v["minus_mha"]["nats_per_token"] == pytest.approx(
            train_variants.paired(losses, others)
        )


def test_the_report_is_whole(seven, monkeypatch):
    monkeypatch.setattr(train_variants, "VARIANTS", tuple(TOYS.values()))
    folder, _ = seven
    runs = {
        name: [json.loads((folder / f"{name}-{seed}.json").read_text()) for seed in (0, 1)]
        for name in BY_NAME
    }
    windows = train_variants.heldout_windows(4)
    stored = json.loads(json.dumps(train_variants.report(runs, windows)))
    check_report(stored, TOYS)
    assert stored["provenance"]["measured_code"] == train_variants.MEASURED_CODE
    assert json.dumps(stored).count("measured_code") == 1  # in no run a second time
    assert stored["text"]["train_tokens_seen"] == 2 * 512
    assert str(folder) not in json.dumps(stored)  # nothing about whose machine it was
    table = train_variants.table(stored)
    assert all(f"\n{name} " in table for name in BY_NAME)


def test_a_report_is_confirmed_by_equal_numbers_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr(train_variants, "VARIANTS", (TOYS["MHA"], TOYS["CLA"]))
    run()
    runs = {
        name: [json.loads((tmp_path / f"{name}-{seed}.json").read_text()) for seed in (0, 1)]
        for name in ("MHA", "CLA")
    }
    path = tmp_path / "report.json"
    written = train_variants.report(runs, train_variants.heldout_windows(2))
    written["provenance"]["measured_code"] = {"of": "older code"}
    path.write_text(json.dumps(written))
    assert run(f"--confirm={path}") == []  # both runs are there
    said = json.loads(path.read_text())
    assert said["provenance"]["measured_code"] == train_variants.MEASURED_CODE
    assert said["provenance"]["confirmed"]["seeds"] == [0]
    assert said["variants"] == json.loads(json.dumps(written["variants"]))

    written["variants"][1]["runs"][0]["loss_curve"][-1][1] += 1e-12
    path.write_text(json.dumps(written))
    before = path.read_text()
    with pytest.raises(SystemExit, match="CLA: other loss_curve than in"):
        run(f"--confirm={path}")
    assert path.read_text() == before


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "measured").glob("variants_*.json")), ids=lambda p: p.name
)
def test_the_stored_report_is_whole(path):
    stored = json.loads(path.read_text())
    check_report(stored, BY_NAME)
    assert len(stored["provenance"]["seeds"]) >= 3
    recipe = json.loads(json.dumps(train_variants.asdict(train_variants.RECIPE)))
    assert stored["recipe"].items() <= recipe.items()


def test_a_run_reads_no_window_twice_within_an_epoch():
    """Also where the schedule's two phases meet, since both use the whole context."""
    recipe = replace(train_variants.RECIPE, steps=8, short_steps=5)
    stream = np.arange(40 * train_variants.CONTEXT, dtype=np.uint16)
    batches = train_variants.Batches(stream, recipe)
    starts = [int(row[0]) for step in range(8) for row in batches(step)[0]]
    assert len(set(starts)) == len(starts) == 32
