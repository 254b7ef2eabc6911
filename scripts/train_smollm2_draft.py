"""Train a draft for the book's real model, on what it says itself.

    python scripts/train_smollm2_draft.py                # half an hour of one core
    python scripts/train_smollm2_draft.py --quick --work /tmp/quick

SmolLM2 writes the requests: after the mark that opens a user's turn it goes on as a user would.
Then it answers them, and a few plain ones from here. Its features at the answers are kept, and one
layer of its kind learns from them, as in `train_drafts.py`; it guesses the likeliest tokens only.
At last it is measured on requests that nothing learnt from. A training that was stopped goes on
from its last checkpoint in --work.

Source: requests from the model: Xu et al. 2024, Magpie, arXiv:2406.08464; a draft for the likeliest
        tokens: Zhao et al. 2025, FR-Spec, arXiv:2502.14856
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import Tensor
from tqdm import tqdm
from train_drafts import Recipe, Windows, loss_of, train
from train_model import ROOT
from train_pruning import Work, write

from firsttoken.drafts.heads import LikelyDraft
from firsttoken.generate import Proposal, generate, speculative_generate
from firsttoken.generate.sequence import Generation, TokenSequence
from firsttoken.models.chat import chat_template
from firsttoken.models.llama import Llama as NumpyLlama
from firsttoken.models.llama import load_model
from firsttoken.models.llama_torch import Llama
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import SMOLLM2_WHEEL, smollm2_path
from firsttoken.provenance import (
    code_digest,
    commit,
    instruction_sets,
    load_average,
    processor,
)
from firsttoken.quantization import quantize
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.shortlist import sample
from firsttoken.speculative import acceptance_by_position

MEASURED_CODE = code_digest(
    [
        "models/chat",
        "generate/sequence",
        "drafts/growing",
        "drafts/heads",
        "drafts/lookup",
        "drafts/drafts_torch",
        "generate/drafting",
        "generate/loop",
        "models/llama",
        "models/llama_torch",
        "quantization",
        "sampling/draws",
        "sampling/logits",
        "sampling/params",
        "sampling/shortlist",
        "speculative/speed",
        "speculative/verification",
    ]
)
GAMMA = 6  # guesses in a row, where they are counted
TOPICS = (
    "a bicycle",
    "bread",
    "the moon",
    "a garden",
    "the rain",
    "a library",
    "a train",
    "the honey bee",
    "coffee",
    "the human heart",
    "chess",
    "a lighthouse",
)
KINDS = (
    "Explain how {} works, in plain words.",
    "List five facts about {}.",
    "Write a short story about {}.",
    "Write a letter to a friend about {}.",
    "Compare {} with {}.",
    "What is {}?",
)
# What is measured. Nothing learns from these.
ASKED = (
    "Why is the sky blue?",
    "Write a poem about winter.",
    "Explain how a refrigerator works.",
    "Why do leaves change color in autumn?",
    "List six ways to save water at home.",
    "Write a short story about a lost dog.",
    "Write a letter to a neighbor who is moving away.",
    "Compare cats and dogs as pets.",
    "How do I learn to play the guitar?",
    "Describe a day at the beach.",
    "What is inflation?",
    "Give me a recipe for vegetable soup.",
    "Who was Marie Curie?",
    "Why is sleep important?",
)


@dataclass(frozen=True)
class Data:
    """What the model is made to say."""

    n_requests: int = 696  # of its own
    request_tokens: int = 64  # longer ones are dropped
    answer_tokens: int = 256
    batch: int = 128
    hotter: float = 0.7  # temperature of every third answer; the others are greedy
    seed: int = 0


# Of Muon's rates 0.007 … 0.15, tried for 30 steps, the highest did best.
RECIPE = Recipe(800, muon_lr=0.08, feature_weight=0.1)


@dataclass(frozen=True)
class Scale:
    """How much is said, trained and measured."""

    data: Data = Data()
    n_known: int = 8000  # tokens that may be guessed
    row: int = 320  # tokens of a conversation that are learnt from
    n_validation: int = 24
    recipe: Recipe = RECIPE
    mark_every: int = 100
    topics: tuple[str, ...] = TOPICS
    asked: tuple[str, ...] = ASKED
    n_tokens: int = 40  # of an answer that is measured
    n_rounds: int = 15  # of a pass that is timed
    raced: tuple[int, ...] = (1,)  # guesses in a row


def quick_scale() -> Scale:
    return Scale(
        Data(6, answer_tokens=12, batch=8),
        n_known=300,
        row=24,
        n_validation=4,
        recipe=replace(RECIPE, steps=2, rows=2, warmup_steps=1),
        mark_every=2,
        topics=TOPICS[:2],
        asked=ASKED[:2],
        n_tokens=GAMMA + 3,
        n_rounds=1,
    )


# What the model says


def decode(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    temperatures: np.ndarray,
    rng: np.random.Generator,
    top_k: int = 0,
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Continue several prompts at once, each to its end or by n_tokens.

    Returns what is said, and of each whole text what the last norm says at all tokens but the last.

    Shorter prompts are filled up in front. What fills them is never looked at, and a rotation by
    position only says how far apart two tokens are.
    """
    longest = max(map(len, prompts))
    starts = torch.tensor([longest - len(prompt) for prompt in prompts])
    cache = model.new_cache(len(prompts), longest + n_tokens)
    key = torch.arange(longest + n_tokens)
    seen_at_all = key >= starts[:, None, None, None]  # (B, 1, 1, S)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache.append(layer, k, v)
        k, v = cache.keys(layer), cache.values(layer)
        n_keys, n_new = k.shape[2], q.shape[2]
        query = key[n_keys - n_new : n_keys, None]
        past = key[:n_keys]
        # A place that only fills up sees itself: a row without any key would give no number.
        mask = (seen_at_all[..., :n_keys] & (past <= query)) | (past == query)
        if n_new > 1:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        rows = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # as `llama_torch._attention`
        return F.scaled_dot_product_attention(rows, k, v, attn_mask=mask).reshape(q.shape)

    tokens = torch.tensor([[0] * int(n) + list(p) for n, p in zip(starts, prompts, strict=True)])
    said: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    read: list[Tensor] = []
    hooks = (
        model.model.norm.register_forward_hook(lambda *args: read.append(args[-1].half())),
        # Only the last token's logits are wanted.
        model.lm_head.register_forward_pre_hook(lambda _, args: args[0][:, -1]),
    )
    for _ in range(n_tokens):
        positions = model._positions(tokens.shape[1], cache)
        with torch.no_grad():
            logits = model._logits(tokens, positions, attend).float().numpy()
        drawn = sample(logits, rng, temperatures, top_k)
        for row in sorted(open_rows):
            said[row].append(int(drawn[row]))
            if drawn[row] in model.eos_ids:
                open_rows.remove(row)
        if not open_rows:
            break
        tokens = torch.from_numpy(drawn)[:, None]
    for hook in hooks:
        hook.remove()
    features = torch.cat(read, dim=1).numpy()  # (B, S, D)
    ends = [longest + len(ids) - 1 for ids in said]
    return said, [x[n:end] for x, n, end in zip(features, starts.tolist(), ends, strict=True)]


def requests(
    model: Llama, data: Data, work: Work, topics: Sequence[str] = TOPICS
) -> list[list[int]]:
    """Ids of conversations up to where the answer begins; the first ones are from here."""
    words, template = tokenizer("smollm2"), chat_template("smollm2")
    mark = "Hello"
    (end,) = model.eos_ids
    whole = template.encode([{"role": "user", "content": mark}])
    closing = whole[whole.index(end, whole.index(end) + 1) :]  # behind what the user says
    opening = whole[: -len(closing) - len(words.encode(mark))]
    ours = [kind.format(topic, topics[i - 1]) for kind in KINDS for i, topic in enumerate(topics)]
    found = {said: template.encode([{"role": "user", "content": said}]) for said in ours}
    forbidden = [said.casefold().strip(".?") for said in ASKED]
    part = 0
    while len(found) < len(ours) + data.n_requests:
        rng = np.random.default_rng([data.seed, 1, part])

        def make(rng=rng) -> dict:
            heat = np.ones(data.batch)
            said, _ = decode(
                model, [opening] * data.batch, data.request_tokens, heat, rng, top_k=50
            )
            return {"said": said}

        for ids in work.kept(f"requests-{part:03d}", make)["said"]:
            said = words.decode([i for i in ids if i != end]).strip()
            asked_later = any(text in said.casefold() for text in forbidden)
            if ids[-1] == end and len(said) > 8 and not asked_later:
                found.setdefault(said, opening + ids[:-1] + closing)
        part += 1
        print(f"{len(found)} requests", flush=True)
    return list(found.values())[: len(ours) + data.n_requests]


def answers(
    model: Llama, prompts: list[list[int]], data: Data, work: Work
) -> list[tuple[list[int], int]]:
    """Whole conversations, each with how many of its tokens come before the answer."""
    found = []
    order = np.random.default_rng([data.seed, 2]).permutation(len(prompts)).tolist()
    for at in tqdm(range(0, len(order), data.batch), "answers", mininterval=20):
        rows = order[at : at + data.batch]
        heat = np.array([data.hotter if row % 3 == 2 else 0.0 for row in rows])
        rng = np.random.default_rng([data.seed, 3, at])

        def make(rows=rows, heat=heat, rng=rng, at=at) -> dict:
            asked = [prompts[row] for row in rows]
            said, features = decode(model, asked, data.answer_tokens, heat, rng)
            np.save(work.folder / f"features-{at:04d}.npy", np.concatenate(features))
            return {"said": said}

        said = work.kept(f"answers-{at:04d}", make)["said"]
        found += [
            (prompts[row] + ids, len(prompts[row])) for row, ids in zip(rows, said, strict=True)
        ]
    return found


class Talks(Windows):
    """Conversations in rows of one length, as `train_drafts.train` takes them, with features.

    A row begins where a conversation does. What it is too short for, the next one fills.
    """

    def __init__(
        self, talks: Sequence[Sequence[int]], features: np.ndarray, row: int, n_validation: int
    ):
        stream = np.concatenate([np.array(ids) for ids in talks])
        starts = np.cumsum([0, *map(len, talks)])
        starts = starts[starts + row + 2 <= len(stream)]
        self.tokens = stream[starts[:, None] + np.arange(row + 2)]
        self.features = features[starts[:, None] + np.arange(row + 1)]
        self.n_train = len(starts) - n_validation


def likeliest(talks: list[tuple[list[int], int]], n: int, n_vocab: int) -> np.ndarray:
    """Return which n tokens stand most often in answers, by rising id; of equals, the first."""
    counts = np.bincount([i for ids, at in talks for i in ids[at:]], minlength=n_vocab)
    return np.sort(np.argsort(-counts, kind="stable")[:n])


def guessing_only(target: Llama, known: np.ndarray) -> None:
    """Let a model's unembedding say the logits of some tokens only."""
    rows = target.lm_head.weight[torch.from_numpy(known)]
    target.lm_head = torch.nn.Linear(*rows.T.shape, bias=False).requires_grad_(False)
    target.lm_head.weight.copy_(rows)


def store(network: torch.nn.Module, known: np.ndarray, file: Path) -> None:
    """Write a draft as `draft_heads.LikelyDraft` reads it: 8 bits a weight, a scale a row."""
    tensors: dict[str, np.ndarray] = {"vocabulary": known.astype(np.int32)}
    for name, weight in network.state_dict().items():
        name, array = name.removeprefix("layer."), weight.float().numpy()
        if "embed" in name or "lm_head" in name:
            continue
        if array.ndim == 2:
            rounded = quantize(array, bits=8, axis=0)
            tensors[f"{name}.scale"] = rounded.scale
            array = rounded.codes.astype(np.int8)
        tensors[name] = array
    save_file(tensors, file)


# What is measured


class Timed:
    """A draft with a clock: milliseconds a guess, round by round."""

    def __init__(self, draft: LikelyDraft):
        self.draft, self.observe = draft, draft.observe
        self.ms: list[float] = []

    def propose(self, request: TokenSequence, n: int) -> Proposal:
        """Return up to n guesses."""
        began = time.perf_counter()
        proposal = self.draft.propose(request, n)
        if proposal.tokens:
            self.ms.append(1e3 * (time.perf_counter() - began) / len(proposal.tokens))
        return proposal


def token_ms(run: Generation) -> float:
    """Milliseconds a token, from the first one on: the prompt is read before it."""
    seconds = run.token_times_s[-1] - run.token_times_s[0]
    return 1e3 * seconds / (len(run.ids) - 1)


def checks_ms(model: NumpyLlama, ids: list[int], most: int, n_rounds: int) -> list[float]:
    """Milliseconds of a pass over 1 … most tokens behind a text, the lower quartiles."""
    found: list[list[float]] = [[] for _ in range(most)]
    cache = model.new_cache(1, len(ids) + most)
    model([ids], cache)
    for _ in range(n_rounds):
        for n, times in enumerate(found, 1):
            began = time.perf_counter()
            model([ids[:n]], cache)
            times.append(1e3 * (time.perf_counter() - began))
            cache.truncate(len(ids))
    return [float(np.percentile(times, 25)) for times in found]


def measure(model: NumpyLlama, file: Path, scale: Scale) -> dict:
    """What the draft is worth at temperature 0, by the formula and by the clock."""
    draft, words = LikelyDraft(model, file), chat_template("smollm2")
    params = SamplingParams(0, max_tokens=scale.n_tokens)
    prompts = [words.encode([{"role": "user", "content": ask}]) for ask in scale.asked]
    timed, rounds, texts = Timed(draft), [], []
    for prompt in tqdm(prompts, "guesses"):
        run = speculative_generate(model, timed, prompt, params, GAMMA)
        rounds += [r for r in run.rounds if r.drafted]
        texts.append(run.ids)
    alpha, reached = acceptance_by_position(rounds)
    alpha = np.nan_to_num(alpha)  # what was never reached is worth nothing
    checks = checks_ms(model, prompts[0] + texts[0], GAMMA + 1, scale.n_rounds)
    guess_ms = float(np.percentile(timed.ms, 25))
    tokens = 1 + np.cumprod(alpha).cumsum()
    gammas = np.arange(1, GAMMA + 1)
    says = tokens * checks[0] / (np.array(checks[1:]) + gammas * guess_ms)
    clock: dict[str, list[float]] = {}
    same = True
    for gamma in scale.raced:
        clock[str(gamma)] = []
        for prompt, ids in zip(tqdm(prompts, f"race, gamma {gamma}"), texts, strict=True):
            times: dict[str, list[float]] = {"plain": [], "draft": []}
            for who in ("plain", "draft", "draft", "plain"):
                if who == "plain":
                    run = generate(model, prompt, params)
                else:
                    run = speculative_generate(model, draft, prompt, params, gamma)
                times[who].append(token_ms(run))
                same = same and run.ids == ids
            clock[str(gamma)].append(float(np.median(times["plain"]) / np.median(times["draft"])))
    written = [token for ids in texts for token in ids]
    return {
        "asked": list(scale.asked),
        "n_tokens": scale.n_tokens,
        "alpha": alpha.round(4).tolist(),
        "reached": reached.tolist(),
        "known": round(float(np.isin(written, draft.vocabulary).mean()), 4),
        "checks_ms": np.round(checks, 3).tolist(),
        "guess_ms": round(guess_ms, 3),
        "c": round(guess_ms / checks[0], 4),
        "says": says.round(3).tolist(),
        "clock": {gamma: np.round(row, 3).tolist() for gamma, row in clock.items()},
        "median": {gamma: round(float(np.median(row)), 3) for gamma, row in clock.items()},
        "same_text": same,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=ROOT / "_build" / "smollm2_draft")
    parser.add_argument("--out", type=Path, default=ROOT / "data", help="where data/ is written")
    parser.add_argument("--quick", action="store_true", help="a few steps, to try the script")
    args = parser.parse_args(argv)
    scale = quick_scale() if args.quick else Scale()
    data = scale.data
    torch.set_num_threads(1)
    model = Llama.from_pretrained(smollm2_path()).to(torch.bfloat16)
    said = Work(args.work / "said", {"data": asdict(data)})
    talks = answers(model, requests(model, data, said, scale.topics), data, said)
    features = np.concatenate([np.load(f) for f in sorted(said.folder.glob("features-*.npy"))])
    rows = Talks([ids[:-1] for ids, _ in talks], features, scale.row, scale.n_validation)
    target = Llama.from_pretrained(smollm2_path())
    known = likeliest(talks, scale.n_known, target.arch.vocab_size)
    guessing_only(target, known)
    trained_by = code_digest(["drafts_torch", "llama_torch"])
    work = Work(args.work, said.key | {"recipe": asdict(scale.recipe), "by": trained_by})
    file = args.work / "model.safetensors"

    def make() -> dict:
        network, run = train("eagle", scale.recipe, rows, target, work, scale.mark_every)
        store(network, known, file)
        with torch.no_grad():
            parts = np.array_split(np.arange(2 * scale.recipe.rows), 2)
            losses = [loss_of("eagle", network, target, *rows.batch(part))[0] for part in parts]
        return run | {
            "tokens_seen": scale.recipe.steps * scale.recipe.rows * scale.row,
            "by_heart": round(float(np.mean(losses)), 4),  # as the curve, on what it learnt from
        }

    trained, busy = work.kept("eagle", make), load_average()
    report = {
        "said": {
            "requests": len(talks),
            "tokens": sum(len(ids) - at for ids, at in talks),
            "different": len({token for ids, at in talks for token in ids[at:]}),
        },
        "trained": trained,
        "measured": measure(load_model("smollm2"), file, scale),
        "provenance": {
            "model": SMOLLM2_WHEEL,
            "commit": commit(),
            "measured_code": MEASURED_CODE,
            "seed": data.seed,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor()} ({instruction_sets()}), 1 thread",
            "load_average_before": busy,
            "versions": {name: version(name) for name in ("numpy", "torch")},
        },
    }
    (args.out / "measured").mkdir(parents=True, exist_ok=True)
    write(args.out / "measured" / "smollm2_draft.json", report)


if __name__ == "__main__":
    main()
