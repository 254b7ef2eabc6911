"""scripts/train_*.py: what all trainings keep: a stop loses nothing, and no recipe is mixed up."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from proof.scripts import test_train_diffusion as diffusion
from proof.scripts import test_train_drafts as drafts
from proof.scripts import test_train_model as model
from proof.scripts import test_train_pruning as pruning
from proof.scripts import test_train_qat as qat

# PyTorch notes that a norm of bfloat16 by float32 weights has no kernel of its own.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def target_and_draft(work: Path, recipe):
    work.mkdir(exist_ok=True)
    given = "tiny", recipe, model.ARCH, model.STREAM, work
    trained, _ = model.train_model.train(*given, compiled=False, checkpoint_every_s=0)
    return [trained], None


def denoiser(work: Path, recipe):
    state = diffusion.trained(work, recipe)
    assert state["plans"] == [[0, 6]] and state["wall_s"] > 0 and state["cpu_s"] > 0
    return [state["model"]], state["curve"]


def students(work: Path, recipe):
    learned = pruning.trained(work, recipe)
    return [s.model for s in learned], [s.curve for s in learned]


def learners(work: Path, recipe):
    learned = [qat.learner(way, recipe=recipe) for way in ("QAT, distilled", "fine-tune")]
    work = qat.script.Work(work, {"code": "k"})
    given = "t", learned, recipe, qat.STREAM, qat.TOY, qat.WINDOWS[:1], (0, 3, 4), work, 0
    qat.script.train(*given)
    return [s.model for s in learned], [s.curve for s in learned]


def draft(name: str):
    def train(work: Path, recipe):
        windows = drafts.script.Windows(drafts.STREAM, drafts.TARGET, work.with_suffix(".f16"), 2)
        work = drafts.script.Work(work, {"key": "a test"})
        given = name, recipe, windows, drafts.TARGET, work, 2
        network, run = drafts.script.train(*given, checkpoint_every_s=0)
        return [network], run["curve"]

    return train


@dataclass(frozen=True)
class Training:
    """How to train a toy: (models, curve) of a folder and a recipe; and what may be spoilt."""

    train: Callable
    recipe: object
    rate: str
    batches: tuple[type, str] = (model.train_model.Batches, "__call__")
    step: int = 3


PARTS = (drafts.script.Windows, "rows_of")
TRAININGS = {
    "model": Training(target_and_draft, model.TINY, "muon_lr", step=4),
    "diffusion": Training(
        denoiser, diffusion.TOY, "adam_lr", (diffusion.script.Batches, "__call__"), 4
    ),
    "pruning": Training(students, pruning.RECIPE, "adam_lr", (pruning.script.Batches, "__call__")),
    "qat": Training(learners, qat.RECIPE, "adam_lr", (pruning.script.Batches, "__call__")),
} | {
    name: Training(draft(name), replace(drafts.RECIPES[name], steps=4, rows=1), "rate", PARTS, 2)
    for name in ("medusa", "recurrent", "eagle")
}


@contextmanager
def stopped_at(step: int, batches: type, method: str, monkeypatch) -> Iterator[None]:
    """Interrupt a training before it is given the batch of a step."""
    give = getattr(batches, method)

    def stop(self, at, *more):
        if at == step:
            raise KeyboardInterrupt
        return give(self, at, *more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(batches, method, stop)
        yield


def weights(models: list) -> list[torch.Tensor]:
    """Return all numbers of some models, or of what was stored of them."""
    states = [each if isinstance(each, dict) else each.state_dict() for each in models]
    return [weight for state in states for weight in state.values()]


@pytest.mark.parametrize("name", TRAININGS)
def test_a_stopped_run_ends_where_an_unbroken_one_does(name, tmp_path, monkeypatch):
    t = TRAININGS[name]
    models, curve = t.train(tmp_path / "unbroken", t.recipe)
    with stopped_at(t.step, *t.batches, monkeypatch):
        t.train(tmp_path / "stopped", t.recipe)
    resumed, again = t.train(tmp_path / "stopped", t.recipe)
    assert again == curve
    pairs = zip(weights(models), weights(resumed), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    with pytest.raises(SystemExit, match="another recipe"):
        t.train(tmp_path / "stopped", replace(t.recipe, **{t.rate: 0.01}))


@pytest.mark.parametrize("name", ["diffusion", "pruning"])
def test_a_loss_that_is_no_number_stops_the_run(name, tmp_path):
    t = TRAININGS[name]
    with pytest.raises(RuntimeError, match="loss nan at step 1"):
        t.train(tmp_path / "t", replace(t.recipe, **{t.rate: math.inf}))


@pytest.mark.parametrize(
    ("script", "student", "way"),
    [
        (script, student, way)
        for script, student in ((pruning.script, pruning.student), (qat.script, qat.learner))
        for way in script.WAYS
    ],
)
def test_a_way_learns_from_what_it_says(script, student, way):
    """What it does not learn from may be nonsense."""
    tokens = torch.from_numpy(pruning.WINDOWS[:1, :33])
    wanted = pruning.TOY(tokens[:, :-1])
    results = []
    for labels, logits in (
        (tokens[:, 1:], wanted),
        (tokens[:, 1:], wanted.roll(1, -1)),
        (tokens[:, 1:].flip(-1), wanted),
    ):
        s = student(way)
        s.learn(1, tokens[:, :-1], labels, logits)
        results.append(s.model.model.norm.weight.clone())
    distils = script.WAYS[way][1] == "target"
    assert torch.equal(results[0], results[1]) != distils
    assert torch.equal(results[0], results[2]) == distils
