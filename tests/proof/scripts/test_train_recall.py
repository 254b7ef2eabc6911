"""scripts/train_recall.py: the task has one answer, the layers are the library's, runs resume."""

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

from firsttoken import recurrent
from firsttoken.attention import attention

ROOT = Path(__file__).parents[3]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")  # they import from the scripts beside them
    import recall
    import train_recall

TOY = recall.Recipe(pairs=(2, 3), n_keys=4, d_model=8, window=3, steps=4, warmup_steps=1)
TOY = replace(TOY, queries_per_step=12, test_queries=48, test_every=2)
RNG = np.random.default_rng(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(RNG.standard_normal(shape))


def same(ours: torch.Tensor, library: np.ndarray | torch.Tensor, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), np.asarray(library), rtol=1e-9, atol=atol)


# ---- the task


@given(
    seed=st.integers(0, 2**32),
    n_sequences=st.integers(1, 5),
    n_pairs=st.integers(1, 9),
    spare=st.integers(0, 9),
)
def test_the_pairs_determine_every_answer(seed, n_sequences, n_pairs, spare):
    """Read as a dictionary, the context answers each query, and each key is asked for once."""
    n_keys = n_pairs + spare
    rng = np.random.default_rng(seed)
    tokens, answers = recall.recall(rng, n_sequences, n_pairs, n_keys)
    assert tokens.shape == (n_sequences, 3 * n_pairs)
    assert answers.shape == (n_sequences, n_pairs)
    assert lawful(tokens, answers, n_keys)


def lawful(tokens: np.ndarray, answers: np.ndarray, n_keys: int) -> bool:
    """Whether no key comes twice, all are asked for, and the pairs give the answers."""
    n_pairs = answers.shape[1]
    for row, wanted in zip(tokens.tolist(), answers.tolist(), strict=True):
        keys, values, queries = row[: 2 * n_pairs : 2], row[1 : 2 * n_pairs : 2], row[2 * n_pairs :]
        known = dict(zip(keys, values, strict=True))
        if len(known) < n_pairs or sorted(queries) != sorted(keys):
            return False
        if not (min(keys) >= 0 and max(keys) < n_keys <= min(values) and max(values) < 2 * n_keys):
            return False
        if [known[query] - n_keys for query in queries] != wanted:
            return False
    return True


def test_wrong_generators_are_told():
    """Answers in the order of the pairs, a key drawn twice, a query of a key that was not there."""
    tokens, answers = recall.recall(np.random.default_rng(0), 8, 4, 9)
    assert lawful(tokens, answers, 9)
    assert not lawful(tokens, tokens[:, 1:8:2] - 9, 9)
    twice, strange = tokens.copy(), tokens.copy()
    twice[:, 2] = twice[:, 0]
    strange[0, -1] = next(key for key in range(9) if key not in tokens[0, 0:8:2])
    assert not lawful(twice, answers, 9)
    assert not lawful(strange, answers, 9)


def test_keys_values_and_orders_are_even():
    """Each key, value and place of a query comes up evenly.

    The largest of the 24 counts lies 5.5 standard deviations off with probability below
    24 · 4e-8 < 1e-6.
    """
    n, p, k = 20_000, 4, 8
    tokens, answers = recall.recall(np.random.default_rng(0), n, p, k)
    place = (tokens[:, 0::2][:, :p, None] == tokens[:, None, 2 * p :]).argmax(2)
    for drawn, kinds in ((tokens[:, 0], k), (answers[:, 0], k), (place[:, 0], p), (place[:, 3], p)):
        counts = np.bincount(drawn, minlength=kinds)
        deviation = math.sqrt(n * (1 / kinds) * (1 - 1 / kinds))
        assert len(counts) == kinds and np.abs(counts - n / kinds).max() < 5.5 * deviation


def test_only_queries_are_asked_and_only_pairs_before_them_matter():
    """Logits come for the last P tokens; a later query changes no earlier answer."""
    for model in recall.MODELS:
        rows = recall.Rows(model, 4, [0], TOY)
        tokens, answers = recall.recall(np.random.default_rng(1), 2, 3, TOY.n_keys)
        changed = tokens.copy()
        changed[:, -1] = (changed[:, -1] + 1) % TOY.n_keys
        with torch.no_grad():
            one, other = (rows(torch.from_numpy(t[None]), 3) for t in (tokens, changed))
        assert one.shape == (1, *answers.shape, TOY.n_keys)
        same(one[:, :, :-1], other[:, :, :-1], atol=1e-5)  # of float32
        assert (one[:, :, -1] - other[:, :, -1]).abs().max() > 1e-3


# ---- the layers are those of the library


@pytest.mark.parametrize("t", [1, 5, 9])
def test_linear_attention_is_the_librarys(t):
    q, k, v = normal(2, 3, t, 4), normal(2, 3, t, 4), normal(2, 3, t, 5)
    for form in ("parallel", "recurrent"):
        library = recurrent.linear_attention(*(x.numpy() for x in (q, k, v)), form=form)
        same(recall.linear_attention(q, k, v), library)


def test_linear_attention_stays_finite_where_all_features_are_small():
    q = torch.full((1, 3, 2), -30.0)
    v = torch.tensor([[[1.0], [3.0], [5.0]]])
    assert recall.linear_attention(q, 0 * q, v).flatten().tolist() == pytest.approx([1, 2, 3])


@pytest.mark.parametrize(("t", "chunk"), [(1, 4), (7, 1), (7, 3), (8, 4), (7, 32)])
def test_gated_delta_is_the_librarys(t, chunk):
    q, k, v = normal(2, 3, t, 4), normal(2, 3, t, 4), normal(2, 3, t, 5)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta = torch.from_numpy(RNG.uniform(0, 1, (2, 3, t)))
    log_decay = torch.from_numpy(-RNG.exponential(size=(2, 3, t)))
    ours = recall.gated_delta(q, k, v, beta, log_decay, chunk)
    args = [x.numpy() for x in (q, k, v, beta, log_decay.exp())]
    same(ours, recurrent.gated_delta(*args, form="recurrent"))
    # Without the correction it is another layer, and so without the decay.
    assert (ours - recall.gated_delta(q, k, v, beta, 0 * log_decay, chunk)).abs().max() > 0.01 or (
        t == 1
    )


def test_a_decay_that_underflows_forgets_and_stays_finite():
    q, v = normal(1, 6, 4), normal(1, 6, 5)
    k = torch.nn.functional.normalize(q, dim=-1)
    ones, log_decay = torch.ones(1, 6).double(), torch.full((1, 6), -600.0).double()
    parts = [x.requires_grad_() for x in (q, k.detach(), v, ones, log_decay)]
    y = recall.gated_delta(*parts, chunk=6)
    same(y, ((q * k).sum(-1, keepdim=True) * v).detach())  # of the last token alone
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), parts))


@pytest.mark.parametrize("t", [1, 6])
def test_the_ssm_is_the_librarys(t):
    rows, b, d, n = 2, 3, 4, 3
    x, log_step, skip = normal(rows, b, t, d), normal(rows, d), normal(rows, d)
    a, c = -normal(rows, d, n).exp(), normal(rows, d, n)
    ours = recall.ssm(x, log_step, a, c, skip)
    for row, channel in np.ndindex(rows, d):
        pick = np.s_[row, channel]
        discrete = recurrent.discretize(a[pick].numpy(), np.ones(n), float(log_step[pick].exp()))
        for form in ("convolution", "recurrent"):
            library = recurrent.ssm(
                x[row, :, :, channel].numpy(), *discrete, c[pick].numpy(), float(skip[pick]), form
            )
            same(ours[row, :, :, channel], library)


@pytest.mark.parametrize("window", [None, 1, 3, 9])
def test_attention_is_the_librarys(window):
    q, k, v = normal(2, 3, 7, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4)
    library = attention(*(x.numpy() for x in (q, k, v)), window=window)
    same(recall.attention(q, k, v, window), library)
    if window == 3:
        with pytest.raises(AssertionError):
            same(recall.attention(q, k, v, window + 1), library)


def test_the_short_convolution_is_torchs():
    x, weight = normal(2, 3, 6, 4), normal(2, 3, 4)
    for row in range(2):
        padded = torch.nn.functional.pad(x[row].mT, (2, 0))
        expected = torch.nn.functional.conv1d(padded, weight[row].flip(0).T[:, None], groups=4).mT
        same(recall.short_convolution(x, weight)[row], expected)


@pytest.mark.parametrize("model", recall.MODELS)
def test_how_much_a_layer_sees(model):
    """By gradients: what the last answer hears of. Windows end; the others reach the start."""
    recipe = replace(TOY, n_keys=32, d_model=16)
    rows = recall.Rows(model, 8, [0], recipe)
    tokens = torch.from_numpy(recall.recall(np.random.default_rng(0), 1, 8, 32)[0][None])
    seen = []
    embed = torch.nn.functional.embedding

    def watched(*args):
        seen.append(embed(*args).detach().requires_grad_())
        return seen[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "embedding", watched)
        logits = rows(tokens, 1)
    (gradient,) = torch.autograd.grad(logits.square().sum(), seen)
    reached = int((gradient.abs().sum((0, 1, 3)) > 0).sum())
    # Two layers, each of a window and one token more by its convolution.
    assert reached == (2 * recipe.window + 1 if model == "window" else tokens.shape[2])


def test_costs_are_those_of_the_tensors():
    for model in recall.MODELS:
        rows = recall.Rows(model, 4, [0, 1], TOY)
        assert rows.flat.shape == (2, recall.cost(model, 4, TOY)["n_params"])
    q, v = np.ones((1, 1, 1, 6)), np.ones((1, 1, 1, 8))
    linear = recurrent.linear_attention_step(None, q[:, :, 0], q[:, :, 0], v[:, :, 0])[0]
    one = np.ones((1, 1))
    delta = recurrent.gated_delta_step(None, q[:, :, 0], q[:, :, 0], v[:, :, 0], one, one)[0]
    assert recall.cost("linear", 6, TOY)["state"] == [{"fixed": linear.size}] * 2
    assert recall.cost("delta", 6, TOY)["state"] == [{"fixed": delta.size}] * 2
    modes = recall.shapes("ssm", 6, TOY)["0.log_rate"]
    assert recall.cost("ssm", 6, TOY)["state"] == [{"fixed": math.prod(modes)}] * 2


# ---- training


def test_rows_are_models_of_their_own():
    """A model trains beside others as it does alone, and starts as they do for one seed."""
    for model in ("delta", "ssm"):
        both = recall.train(model, 4, [3, 7], [0.01, 0.02], TOY)
        alone = recall.train(model, 4, [7], [0.02], TOY)
        assert both["accuracy"][1] == alone["accuracy"][0]
    starts = [recall.Rows(model, 4, [5], TOY).flat for model in recall.MODELS]
    size = 2 * TOY.n_keys * TOY.d_model
    assert all(torch.equal(start[0, :size], starts[0][0, :size]) for start in starts)


def easy(**changes) -> recall.Recipe:
    recipe = recall.Recipe(pairs=(2, 4), n_keys=8, d_model=16, steps=200, warmup_steps=10)
    recipe = replace(recipe, queries_per_step=128, test_queries=1024, test_every=50)
    return replace(recipe, **changes)


def test_attention_learns_the_task_and_stops_early():
    result = recall.train("attention", 8, [0, 1], [0.02, 0.02], easy(solved=0.99))
    assert result["steps"] < 200 and np.min(result["accuracy"]) >= 0.99
    assert [step for step, _ in result["curve"]] == list(range(50, result["steps"] + 1, 50))


def test_with_shuffled_answers_nothing_is_learnt(monkeypatch):
    """Answers drawn anew: 1 of 8 values is hit by chance, whatever is learnt.

    Each of four shares is that of 1024 queries whose answers are independent of what the model
    sees; it leaves 1/8 by 6 standard deviations with probability below 1e-8.
    """
    task = recall.recall

    def shuffled(rng, n_sequences, n_pairs, n_keys):
        tokens, answers = task(rng, n_sequences, n_pairs, n_keys)
        return tokens, rng.integers(n_keys, size=answers.shape)

    monkeypatch.setattr(recall, "recall", shuffled)
    result = recall.train("attention", 8, [0, 1], [0.02, 0.02], easy())
    assert result["steps"] == 200
    assert np.abs(np.subtract(result["accuracy"], 1 / 8)).max() < 6 * math.sqrt(7 / 64 / 1024)


def test_a_test_is_of_sequences_that_are_no_training():
    """Streams of one seed differ, and so do seeds."""
    rngs = [np.random.default_rng(s) for s in ((0, recall.TRAIN), (0, recall.TEST, 4), (1, 0))]
    first = [recall.recall(rng, 4, 4, 64)[0].tolist() for rng in rngs]
    assert first[0] != first[1] != first[2] != first[0]


def test_a_row_that_diverges_has_answered_nothing_and_spoils_no_other():
    both = recall.train("linear", 4, [0, 0], [math.inf, 0.01], TOY)
    alone = recall.train("linear", 4, [0], [0.01], TOY)
    assert both["accuracy"] == [[0, 0], *alone["accuracy"]]


# ---- the grid


def quick(patch, folder):
    """The program's main, two steps a model, in this process."""
    trained = []
    train = recall.train

    def counted(model, width, seeds, *args, **kwargs):
        if not set(seeds) & set(train_recall.SEARCH_SEEDS):
            trained.append((model, width))
        return train(model, width, seeds, *args, **kwargs)

    def main(*arguments):
        trained.clear()
        folders = (f"--out={folder}", f"--work={folder}")
        train_recall.main(["--quick", "--seeds=2", *folders, *arguments])
        return list(trained)

    patch.setattr(train_recall, "RECIPE", TOY)
    patch.setattr(train_recall, "WIDTHS", (2, 4))
    patch.setattr(train_recall, "train", counted)
    patch.setattr(
        train_recall, "ProcessPoolExecutor", lambda jobs, *_, **__: ThreadPoolExecutor(jobs)
    )
    return main


@pytest.fixture
def run(monkeypatch, tmp_path):
    return quick(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """(folder, order) of all models."""
    folder = tmp_path_factory.mktemp("grid")
    with pytest.MonkeyPatch.context() as patch:
        return folder, quick(patch, folder)()


def runs_in(folder: Path) -> list[dict]:
    """What the runs left, in the grid's order."""
    return [
        json.loads(train_recall.stored(folder, model, width).read_text())
        for width in (2, 4)
        for model in recall.MODELS
    ]


def without_times(result: dict) -> dict:
    """A report but for when it was made and how long it took."""
    provenance = {k: v for k, v in result["provenance"].items() if k not in ("date", "wall_s")}
    models = [{k: v for k, v in m.items() if k != "wall_s"} for m in result["models"]]
    return {**result, "provenance": provenance, "models": models}


def test_every_model_trains_width_by_width(grid):
    folder, order = grid
    assert order == [(model, width) for width in (2, 4) for model in recall.MODELS]
    assert all(run["steps"] == 2 for run in runs_in(folder))
    assert not (folder / "recall.json").exists()  # a quick run writes no report


def test_a_stopped_run_gives_the_report_of_an_unbroken_one(grid, run, tmp_path):
    unbroken = runs_in(grid[0])
    for path in grid[0].glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    train_recall.stored(tmp_path, "delta", 4).unlink()  # as if it had been stopped in this run
    with pytest.raises(SystemExit, match="1 of 14 runs are missing"):
        run("--report")
    assert run() == [("delta", 4)]
    assert run() == []  # all is there
    again = train_recall.report(runs_in(tmp_path))
    assert without_times(again) == without_times(train_recall.report(unbroken))


def test_a_result_of_another_recipe_seed_or_code_is_refused(run, grid, tmp_path, monkeypatch):
    for path in grid[0].glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(SystemExit, match="another recipe"):
        run("--seeds=3")
    with monkeypatch.context() as patch:
        patch.setattr(train_recall, "RECIPE", replace(TOY, window=4))
        with pytest.raises(SystemExit, match="another recipe"):
            run()
    monkeypatch.setattr(train_recall, "MEASURED_CODE", {"scripts/recall.py": "0" * 64})
    with pytest.raises(SystemExit, match="other code"):
        run()


def test_the_learning_rate_is_the_best_of_the_search(tmp_path, monkeypatch):
    """By the mean over the numbers of pairs, the smallest of equals; reported seeds have no say."""

    def fake(model, width, seeds, rates, recipe, until=np.all):
        if seeds[0] not in train_recall.SEARCH_SEEDS:
            return {"accuracy": [[1.0, 1.0]] * len(seeds), "steps": 1, "curve": list(rates)}
        assert until is np.any
        shown = dict(zip(TOY.rates, ([0.9, 0.1], [0.5, 0.6], [0.6, 0.5]), strict=True))
        lucky = {
            (train_recall.SEARCH_SEEDS[1], TOY.rates[0]): 0.08
        }  # one row is the best, not its rate
        rows = zip(seeds, rates, strict=True)
        result = [[x + lucky.get((s, r), 0) for x in shown[r]] for s, r in rows]
        return {"accuracy": result, "steps": 1, "curve": []}

    monkeypatch.setattr(train_recall, "train", fake)
    run = train_recall.one_run("linear", 4, TOY, range(5), tmp_path, "")
    assert run["rate"] == TOY.rates[1] and run["curve"] == [TOY.rates[1]] * 5
    assert not set(train_recall.SEARCH_SEEDS) & set(range(train_recall.SEEDS))


def check_report(stored: dict, widths: tuple[int, ...]) -> None:
    """All figures of a report follow from its runs and from the recipe."""
    recipe = recall.Recipe(**stored["recipe"])
    seeds = stored["provenance"]["seeds"]
    assert [(m["model"], m["width"]) for m in stored["models"]] == [
        (model, width) for width in widths for model in recall.MODELS
    ]
    baseline = {m["width"]: m["accuracy"] for m in stored["models"] if m["model"] == "linear"}
    for m in stored["models"]:
        assert np.shape(m["accuracy"]) == (len(seeds), len(recipe.pairs))
        last, means = m["curve"][-1]
        assert last == m["steps"] and means == pytest.approx(np.mean(m["accuracy"], 1), abs=1e-4)
        by_rate = np.reshape(m["search"], (-1, len(recipe.rates), len(recipe.pairs))).mean((0, 2))
        assert m["rate"] == recipe.rates[by_rate.argmax()]
        assert m.items() >= recall.cost(m["model"], m["width"], recipe).items()
        assert tuple(m["mixers"]) == recall.MODELS[m["model"]]
        for i, (mean, gap) in enumerate(zip(m["mean"], m["minus_linear"], strict=True)):
            ours, theirs = (np.array(a)[:, i] for a in (m["accuracy"], baseline[m["width"]]))
            assert mean["mean"] == pytest.approx(ours.mean())
            assert gap == pytest.approx(train_recall.paired(ours, theirs))


def test_the_report_is_whole(grid):
    folder, _ = grid
    stored = json.loads(json.dumps(train_recall.report(runs_in(folder))))
    check_report(stored, (2, 4))
    assert stored["provenance"]["measured_code"] == train_recall.MEASURED_CODE
    assert json.dumps(stored).count("measured_code") == 1  # in no run a second time
    assert str(folder) not in json.dumps(stored)  # nothing about whose machine it was
    table = train_recall.table(runs_in(folder))
    assert all(table.count(f"\n{name} ") >= 2 for name in recall.MODELS)


@pytest.mark.skipif(
    not (ROOT / "data" / "measured" / "recall.json").exists(), reason="not yet measured"
)
def test_the_stored_report_is_whole():
    stored = json.loads((ROOT / "data" / "measured" / "recall.json").read_text())
    check_report(stored, train_recall.WIDTHS)
    assert len(stored["provenance"]["seeds"]) == train_recall.SEEDS
    assert stored["recipe"] == json.loads(json.dumps(train_recall.asdict(train_recall.RECIPE)))
