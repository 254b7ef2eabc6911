"""scripts/train_diffusion.py: what the denoiser reads and is held to; a stop loses nothing."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from firsttoken.diffusion import loss_bound
from firsttoken.evaluation import token_losses
from firsttoken.llama_torch import Llama
from firsttoken.tokenizer import tokenizer
from proof.scripts.stops import stopped_at

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # it imports from the scripts beside it
    import train_diffusion as script

TOY = replace(script.RECIPE, steps=6, short_steps=3, warmup_steps=1, tokens_per_step=512)
STREAM = np.random.default_rng(1).integers(1024, size=5000).astype(np.uint16)
TOKENS = np.random.default_rng(0).integers(1025, size=(2, 24))  # masks among them


def strong() -> script.Denoiser:
    """The model before its training, an embedding of its own for the mask."""
    model = script.Denoiser.untrained()
    model.model.embed_tokens.weight.data[-1] *= -20
    return model


def theirs(model: script.Denoiser, tokens: np.ndarray, seen: torch.Tensor) -> torch.Tensor:
    """The same weights in transformers' Llama, where each query sees the keys that `seen` names."""
    arch = model.arch
    config = LlamaConfig(
        vocab_size=arch.vocab_size,
        hidden_size=arch.d_model,
        intermediate_size=arch.d_ff,
        num_hidden_layers=arch.n_layers,
        num_attention_heads=arch.n_heads,
        num_key_value_heads=arch.n_kv_heads,
        head_dim=arch.head_dim,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=True,
    )
    other = LlamaForCausalLM(config).eval()
    other.load_state_dict(model.state_dict())
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    mask = mask.expand(len(tokens), 1, *seen.shape)
    with torch.no_grad():
        return other(torch.from_numpy(tokens), attention_mask=mask).logits[:, :-1, :1024]


# The model


def test_it_is_transformers_llama_that_sees_all():
    model, n = strong(), TOKENS.shape[1]
    expected = theirs(model, TOKENS, torch.ones(n, n, dtype=torch.bool))
    torch.testing.assert_close(model(TOKENS), expected, atol=2e-4, rtol=1e-4)
    causal = theirs(model, TOKENS, torch.ones(n, n).tril().bool())
    assert (model(TOKENS) - causal).abs().max() > 0.1


def test_with_a_cache_finished_blocks_see_nothing_of_later_ones():
    """And masks of a pass that only looks leave no trace in the cache."""
    model, cuts = strong(), (0, 10, 16, 24)
    cache = model.new_cache(2, 25)
    block = np.digitize(np.arange(24), cuts)
    seen = torch.from_numpy(block[None, :] <= block[:, None])
    expected = theirs(model, TOKENS, seen)
    for begin, end in pairwise(cuts):
        if begin:
            look = script.denoise(model, TOKENS[:, begin - 1 : begin], cache)
            masked = np.full((2, end - begin), script.MASK)
            assert look(masked).shape == (2, end - begin, 1024) and cache.length == begin
        ours = model(TOKENS[:, begin:end], cache)
        torch.testing.assert_close(ours, expected[:, begin : end - 1], atol=2e-4, rtol=1e-4)
    assert (expected - model(TOKENS)).abs().max() > 0.1


def test_it_starts_as_the_target_that_looks_both_ways(target):
    """One embedding more; under a causal mask, the very same logits."""
    model = script.Denoiser.untrained()
    assert sum(p.numel() for p in model.parameters()) == target.arch.n_params + 192
    tokens = TOKENS % 1024
    causal = np.tril(np.ones((24, 24), bool))
    ours = theirs(model, tokens, torch.from_numpy(causal))
    torch.testing.assert_close(ours, target(tokens)[:, :-1], atol=2e-4, rtol=1e-4)
    assert (model(tokens) - ours).abs().max() > 0.1


# The objective


@given(rows=st.integers(1, 6), n=st.integers(1, 30), seed=st.integers(0, 99))
def test_weights_are_on_what_is_hidden_and_sum_to_the_length(rows, n, seed):
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(1024, size=(rows, n + 1)))
    left, weights = script.corrupted(tokens, np.random.default_rng(seed))
    assert torch.equal(left[:, 0], tokens[:, 0])
    assert torch.equal(weights > 0, left[:, 1:] == script.MASK)
    assert torch.equal(left[:, 1:][weights == 0], tokens[:, 1:][weights == 0])
    torch.testing.assert_close(weights.sum(dim=1), torch.full((rows,), float(n)))


def test_a_batch_covers_the_masking_rates():
    """As many rows as tokens: every number once; fewer rows: one in each stretch of equal size."""
    for seed in range(20):
        counts = script.spread_counts(16, 16, np.random.default_rng(seed))
        assert sorted(counts) == list(range(1, 17))
        few = np.sort(script.spread_counts(4, 256, np.random.default_rng(seed)))
        assert few[0] >= 1 and few[-1] <= 256 and np.all(abs(np.diff(few) - 64) <= 1)


def test_every_number_of_masks_is_equally_likely():
    """8 numbers in 8,000 draws: chi-square at 1e-6."""
    draws = [script.spread_counts(1, 8, np.random.default_rng(seed))[0] for seed in range(8000)]
    assert stats.chisquare(np.bincount(draws, minlength=9)[1:]).pvalue > 1e-6


def test_the_training_loss_is_the_bound_a_token():
    model, tokens = strong(), torch.from_numpy(TOKENS % 1024)
    left, weights = script.corrupted(tokens, np.random.default_rng(5))
    ours = script.training_loss(model, left, tokens, weights).item()
    first, rest = np.split(left.numpy(), [1], axis=1)
    p = script.denoise(model, first)(rest)
    bounds = loss_bound(p, tokens[:, 1:].numpy(), weights.numpy() > 0)
    assert ours == pytest.approx(bounds.mean() / rest.shape[1], rel=1e-5)


# The training


def trained(work: Path, recipe=TOY) -> dict:
    work.mkdir(exist_ok=True)
    return script.train(recipe, STREAM, work, compiled=False, checkpoint_every_s=0)


def test_it_reads_the_stream_s_batches_in_rows_of_256(tmp_path, monkeypatch):
    read = []

    def corrupted(tokens, rng):
        read.append(tokens)
        return tokens, torch.ones(tokens[:, 1:].shape)

    monkeypatch.setattr(script, "corrupted", corrupted)
    trained(tmp_path)
    batches = script.Batches(STREAM, TOY)
    for step, tokens in enumerate(read):
        assert tokens.shape == (2, 256)
        assert torch.equal(tokens.flatten(), batches(step)[0].flatten())


def test_a_run_may_be_shortened_before_its_last_phase_and_says_so(tmp_path, monkeypatch):
    with stopped_at(2, script.Batches, "__call__", monkeypatch):
        trained(tmp_path)
    shorter = replace(TOY, steps=5, short_steps=2)
    assert trained(tmp_path, shorter)["plans"] == [[0, 6], [2, 5]]
    state = trained(tmp_path, shorter)  # all is there
    assert state["step"] == 5 and state["recipe"] == asdict(shorter)
    with pytest.raises(SystemExit, match="too late for other steps"):
        trained(tmp_path, TOY)


# The figures


def test_rows_of_the_held_out_text_share_one_token_and_spread_over_it():
    rows = script.heldout(256)
    assert rows.shape[1] == 256 and np.array_equal(rows[1:, 0], rows[:-1, -1])
    text = (ROOT / "data" / "heldout.txt").read_text("utf-8")
    ids = tokenizer().encode_document(text)
    assert rows[0].tolist() == ids[:256] and rows[1:, 1:].size > len(ids) - 2 * 256
    some = script.heldout(256, 7)
    where = [int(np.flatnonzero((rows == row).all(axis=1))[0]) for row in some]
    assert where[0] == 0 and set(np.diff(where)) <= {len(rows) // 7, len(rows) // 7 + 1}


def test_the_exact_loss_is_the_library_s():
    target = Llama.from_pretrained(ROOT / "data" / "model" / "target")
    rows = script.heldout(40, 3)
    expected = [token_losses(target, row) for row in rows]
    np.testing.assert_allclose(script.exact_losses(target, rows), expected, atol=1e-4)


@pytest.fixture(scope="module")
def target():
    return Llama.from_pretrained(ROOT / "data" / "model" / "target")


def test_a_model_that_knows_nothing_needs_log_v_whatever_is_hidden(target, tmp_path):
    model, rows = strong(), script.heldout(256, 20)
    model.model.embed_tokens.weight.zero_()  # tied: all logits are zero
    result = script.likelihood(model, target, rows, 2, 0, tmp_path)
    for name in ("bound", "left_to_right"):
        nats = result["nats_per_token"][name]
        assert nats["mean"] == pytest.approx(math.log(1024)) and nats["half_width_95"] < 1e-6
        bits = result["bits_per_byte"][name]["mean"]
        assert bits == pytest.approx(10 * 20 * 255 / script.n_bytes(rows[:, 1:]).sum())
    assert [share for share, _ in result["nats_by_share_hidden"]] == [i / 8 for i in range(1, 9)]
    assert [nats for _, nats in result["nats_by_share_hidden"]] == pytest.approx(
        [math.log(1024)] * 8
    )
    gap = result["nats_per_token"]["bound_minus_target_over_windows"]["mean"]
    assert gap == pytest.approx(math.log(1024) - result["nats_per_token"]["target"])


def test_a_model_that_copies_what_it_sees_loses_only_on_what_is_hidden(
    target, tmp_path, monkeypatch
):
    """Nothing of the answer is shown: a reader of the input itself would lose nothing else."""
    shown = []

    def denoise(_, first):
        def probabilities(tokens):
            shown.append(np.hstack((first, tokens)))
            p = np.full((*tokens.shape, 1025), 1e-9)
            np.put_along_axis(p, tokens[..., None], 1.0, axis=-1)
            return p

        return probabilities

    monkeypatch.setattr(script, "denoise", denoise)
    rows = script.heldout(256, 16)
    result = script.likelihood(None, target, rows, 2, 0, tmp_path)
    nothing = -math.log(1e-9)
    for name in ("bound", "left_to_right"):
        assert result["nats_per_token"][name]["mean"] == pytest.approx(nothing)
    # The masks of the order from the left reach to the end; the first token is always given.
    for tokens in shown:
        assert np.array_equal(tokens[:, 0], rows[:, 0])
    for tokens in shown[1::2]:
        masked = tokens == script.MASK
        assert masked.any(axis=1).all() and np.all(np.diff(masked.astype(int)) >= 0)


def test_the_target_s_text_is_drawn_from_its_own_law(target, monkeypatch):
    """The same numbers drawn from passes without a cache give the same text."""
    monkeypatch.setattr(script, "N_NEW", 5)
    prompts = script.heldout(16, 3)
    ours = script.continued(target, prompts, np.random.default_rng(0))
    rows, rng = prompts, np.random.default_rng(0)
    for _ in range(5):
        p = target(rows)[:, -1].double().softmax(-1).numpy()
        rows = np.column_stack((rows, script.draw(p, rng)))
    assert np.array_equal(ours, rows[:, 16:])


@pytest.mark.parametrize("name", script.WAYS)
def test_every_way_writes_all_and_says_when(name, monkeypatch):
    model, prompts = strong(), script.heldout(8, 3)
    monkeypatch.setattr(script, "N_NEW", 64)
    how = script.WAYS[name]
    passes = 16
    tokens, when = script.written(model, prompts, passes, np.random.default_rng(0), how)
    assert tokens.shape == when.shape == (3, 64) and tokens.max() < script.MASK
    for row in when:
        assert np.array_equal(np.bincount(row)[1:], np.full(16, 4))
    if "block" in how:  # as many passes for each block, from the left
        per_block = 16 * how["block"] // 64
        assert np.array_equal(
            (when - 1) // per_block, np.tile(np.arange(64) // how["block"], (3, 1))
        )
    else:
        assert len({tuple(row) for row in when}) > 1


def test_a_cached_pass_reads_its_block_and_no_more(monkeypatch):
    monkeypatch.setattr(script, "N_NEW", 32)
    model, read = strong(), []
    model.register_forward_hook(lambda _, inputs, __: read.append(tuple(inputs[0].shape)))
    how = {"order": "random", "block": 8, "cached": True}
    script.written(model, script.heldout(8, 2), 8, np.random.default_rng(0), how)
    # The prompt but its last token; then two passes a block, each behind the token before it;
    # between blocks a pass that stores what is finished.
    assert read == [(2, 7)] + ([(2, 9)] * 2 + [(2, 8)]) * 3 + [(2, 9)] * 2


def test_repeated_text_is_seen_to_be_poor(target):
    prompts = script.heldout(128, 2)
    same, varied = np.full((2, 128), 7), np.tile(np.arange(300, 428), (2, 1))
    same, varied = (script.qualities(target, prompts, t) for t in (same, varied))
    assert same["entropy_bits"] == pytest.approx([0, 0])
    assert same["distinct_runs_of_4"] == pytest.approx([1 / 125] * 2)
    assert varied["entropy_bits"] == pytest.approx([7, 7])
    assert varied["distinct_runs_of_4"] == pytest.approx([1, 1])
    assert np.all(same["nats_per_token"] < varied["nats_per_token"])  # and yet likelier


def test_loss_of_the_held_out_text_itself_is_that_of_its_last_tokens(target):
    rows = script.heldout(256, 2)
    ours = script.qualities(target, rows[:, :128], rows[:, 128:])
    expected = script.exact_losses(target, rows)[:, 127:].sum(axis=1)
    assert ours["nats_per_token"] == pytest.approx(expected / 128)
    tok = tokenizer()
    n_bytes = [len(b"".join(map(tok.token_bytes, row))) for row in rows[:, 128:].tolist()]
    assert ours["bits_per_byte"] == pytest.approx(expected / math.log(2) / n_bytes)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=40).filter(lambda v: np.std(v) > 1e-6))
def test_intervals_are_those_of_a_t_test(values):
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    ours = script.interval(values)
    assert ours["mean"] == pytest.approx((low + high) / 2, abs=1e-9)
    assert ours["half_width_95"] == pytest.approx((high - low) / 2)


# The whole


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """(folder, call): a whole run of a toy, on a text of its own and in short."""
    folder = tmp_path_factory.mktemp("quick")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "training_stream", lambda *_: STREAM)
        patch.setattr(script, "N_NEW", 32)
        patch.setattr(script, "CONTEXT", 64)

        def call(*arguments):
            script.main(["--quick", f"--work={folder}", f"--out={folder}/out", *arguments])
            return json.loads((folder / "diffusion.json").read_text())

        with pytest.raises(SystemExit, match="no finished training"):
            call("--evaluate")
        first = call()
        yield folder, first, call


def test_a_second_evaluation_draws_nothing_anew_and_says_the_same(quick, monkeypatch):
    _, first, call = quick
    monkeypatch.setattr(script, "written", None)
    monkeypatch.setattr(script, "continued", None)
    again = call("--evaluate")
    for part in ("training", "likelihood", "samples"):
        assert again[part] == first[part]


def test_a_quick_run_stores_no_result(quick):
    folder, _, _ = quick
    assert not (folder / "out").exists()


def check_report(stored: dict) -> None:
    """All figures of a report that follow from others do."""
    assert {"machine", "date", "commit", "versions", "seed"} <= set(stored["provenance"])
    training, written = stored["training"], stored["samples"]
    recipe = training["recipe"]
    assert training["tokens_seen"] == recipe["steps"] * recipe["tokens_per_step"]
    assert training["plans"][-1][1] == training["loss_curve"][-1][0] == recipe["steps"]
    assert set(training["target"]) >= {"n_params", "steps", "wall_s", "machine", "loss_curve"}
    nats, bits = (stored["likelihood"][key] for key in ("nats_per_token", "bits_per_byte"))
    likelihood = stored["likelihood"]
    tokens = likelihood["windows"] * likelihood["tokens_per_window"]
    per_byte = tokens / likelihood["bytes"] / math.log(2)
    assert bits["target"] == pytest.approx(nats["target"] * per_byte)
    assert bits["bound"]["mean"] == pytest.approx(nats["bound"]["mean"] * per_byte)
    gap = nats["bound_minus_target_over_windows"]["mean"]
    assert gap == pytest.approx(nats["bound"]["mean"] - nats["target"])
    assert [way["how"] for way in written["ways"]] == list(script.WAYS.values())
    n = written["new_tokens"]
    for way in written["ways"]:
        blocks = n // way["how"].get("block", n)
        for run in way["runs"]:
            assert blocks <= run["passes"] == n / run["tokens_per_pass"]
            ours = written["target"]["bits_per_byte"]["mean"] + run["minus_target"]["mean"]
            assert run["bits_per_byte"]["mean"] == pytest.approx(ours)
    for text in written["texts"]:
        assert len(text["heldout"]) == len(text["target"]) == n
        for shown in text["written"]:
            counts = np.bincount(shown["pass_of_token"])
            assert len(shown["tokens"]) == n and counts[0] == 0
            assert counts[1:].tolist() == [n // shown["passes"]] * shown["passes"]
    assert {p["model"] for p in stored["times"]["passes"]} == {
        "denoiser", "denoiser, cached", "target, cached", "target in NumPy, cached"
    }  # fmt: skip
    assert all(0 < p["fastest_s"] <= p["median_s"] for p in stored["times"]["passes"])


def test_the_report_is_whole(quick):
    folder, stored, _ = quick
    check_report(stored)
    assert stored["provenance"]["measured_code"] == script.MEASURED_CODE
    assert str(folder) not in json.dumps(stored)  # nothing about whose machine it was
    table = script.table(stored)
    assert all(f"\n{name} " in table for name in script.WAYS)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "measured").glob("diffusion*.json")), ids=lambda p: p.name
)
def test_the_stored_report_is_whole(path):
    stored = json.loads(path.read_text())
    check_report(stored)
    scale = script.Scale()
    assert stored["samples"]["prompts"] == scale.prompts
    assert stored["likelihood"]["masks_per_window"] == scale.repeats
    recipe = json.loads(json.dumps(asdict(script.RECIPE)))
    chosen = {"steps", "short_steps"}
    assert {k: v for k, v in stored["training"]["recipe"].items() if k not in chosen} == {
        k: v for k, v in recipe.items() if k not in chosen
    }
