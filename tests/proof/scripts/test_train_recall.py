"""scripts/train_recall.py: the task has one answer, the layers are the library's, runs resume."""

import json
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


def test_rows_are_models_of_their_own():
    """A model trains beside others as it does alone, and starts as they do for one seed."""
    for model in ("delta", "ssm"):
        both = recall.train(model, 4, [3, 7], [0.01, 0.02], TOY)
        alone = recall.train(model, 4, [7], [0.02], TOY)
        assert both["accuracy"][1] == alone["accuracy"][0]
    starts = [recall.Rows(model, 4, [5], TOY).flat for model in recall.MODELS]
    size = 2 * TOY.n_keys * TOY.d_model
    assert all(torch.equal(start[0, :size], starts[0][0, :size]) for start in starts)


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """The folder of a quick run of all models, in this process."""
    folder = tmp_path_factory.mktemp("grid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_recall, "RECIPE", TOY)
        patch.setattr(train_recall, "WIDTHS", (2, 4))
        patch.setattr(
            train_recall, "ProcessPoolExecutor", lambda jobs, *_, **__: ThreadPoolExecutor(jobs)
        )
        train_recall.main(["--quick", "--seeds=2", f"--out={folder}", f"--work={folder}"])
    return folder


def check_report(stored: dict, widths: tuple[int, ...]) -> None:
    """All figures of a report follow from its runs and from the recipe."""
    recipe = recall.Recipe(**stored["recipe"])
    assert [(m["model"], m["width"]) for m in stored["models"]] == [
        (model, width) for width in widths for model in recall.MODELS
    ]
    assert not set(train_recall.SEARCH_SEEDS) & set(stored["provenance"]["seeds"])
    baseline = {m["width"]: m["accuracy"] for m in stored["models"] if m["model"] == "linear"}
    for m in stored["models"]:
        by_rate = np.reshape(m["search"], (-1, len(recipe.rates), len(recipe.pairs))).mean((0, 2))
        assert m["rate"] == recipe.rates[by_rate.argmax()]
        assert m.items() >= recall.cost(m["model"], m["width"], recipe).items()
        for i, (mean, gap) in enumerate(zip(m["mean"], m["minus_linear"], strict=True)):
            ours, theirs = (np.array(a)[:, i] for a in (m["accuracy"], baseline[m["width"]]))
            assert mean["mean"] == pytest.approx(ours.mean())
            assert gap == pytest.approx(train_recall.paired(ours, theirs))


def test_the_report_of_a_whole_run(grid):
    runs = [
        json.loads(train_recall.stored(grid, model, width).read_text())
        for width in (2, 4)
        for model in recall.MODELS
    ]
    stored = json.loads(json.dumps(train_recall.report(runs)))
    check_report(stored, (2, 4))
    assert stored["provenance"]["measured_code"] == train_recall.MEASURED_CODE
    assert str(grid) not in json.dumps(stored)  # nothing about whose machine it was
    assert all(train_recall.table(runs).count(f"\n{name} ") >= 2 for name in recall.MODELS)


def test_the_stored_report_is_whole():
    stored = json.loads((ROOT / "data" / "measured" / "recall.json").read_text())
    check_report(stored, train_recall.WIDTHS)
