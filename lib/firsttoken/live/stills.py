"""What a view shows before it is touched, and where no script runs: a figure with alt text.

Each is drawn from the library's own results for the view's first text and settings.
"""

import functools
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from firsttoken.drafts import SuffixDraft
from firsttoken.drafts.heads import EagleDraft, MedusaDraft
from firsttoken.generate import Draft, generate, speculative_generate
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.live import assets
from firsttoken.live.kernel import start_id
from firsttoken.models import smollm2
from firsttoken.models.evaluation import bits_per_byte, token_losses
from firsttoken.models.inspection import look_inside
from firsttoken.models.llama import Llama, load_model
from firsttoken.models.protocols import Model
from firsttoken.models.tokenizer import Tokenizer, tokenizer
from firsttoken.page import plots
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams, next_token_distribution, softmax
from firsttoken.speculative import Round

_N_BARS = 10
_TEXT_SHOWN = 40  # characters of a text that a title has room for
_MOST_INSIDE = 96  # tokens, as in views/inside.js: of a longer text the last ones
# What became of a drafted token, as in views/speculation.css.
_DRAFT, _TARGET = plots.COLORS["draft"], plots.COLORS["target"]
_LOOKS = {
    "kept": f"background:{_DRAFT}33;border-bottom:2px solid {_DRAFT}",
    "replaced": f"background:{_TARGET}29;border-bottom:3px double {_TARGET}",
    "bonus": f"border-bottom:2px dotted {_TARGET}",
}
_MOST_SHOWN = 200  # tokens of a text that surprises: a longer one would make the page heavy
_LEVELS = (0.5, 1, 2, 4, 8)  # bits: where the colour of a loss changes, as in views/surprise.js


def framed(figure: str, draft: str | None = None, model: str = "target") -> str:
    """Return a still figure (HTML that says in words what it shows) with the button below it.

    The button says what it loads: the target, and a draft if there is one, or the real model.
    Without a script there is no button: it would do nothing. Nor is there one for the real model
    where the site does not carry it.
    """
    if model != "target":
        ending = real_button("Try it here") or (
            '<div class="ft-live-try">'
            "<span>SmolLM2 answers in JupyterLab, where the kernel runs it.</span></div>"
        )
        return f'<figure class="ft-live-still">{figure}</figure>{ending}'
    names = [*assets.TARGET, *(assets.DRAFTS[draft] if draft else ())]
    size = sum(assets.manifest()[name]["packed_bytes"] for name in names) / 1e6
    return (
        f'<figure class="ft-live-still">{figure}</figure><div class="ft-live-try">'
        '<button type="button" class="ft-live-start">Try it: type your own text</button>'
        f"<span>Loads the model, {size:.1f} MB, once. It then runs here, in your browser.</span>"
        "</div>"
    )


def real_button(label: str) -> str:
    """Return the button that loads the real model into a page; "" where the site lacks it."""
    file = assets.real_file()
    if file is None:
        return ""
    return (
        '<div class="ft-live-try"><button type="button" class="ft-live-start">'
        f"{label}: {file.stat().st_size / 1e6:.0f} MB, once</button>"
        "<span>SmolLM2 then runs in your browser. What you type stays there.</span></div>"
    )


def drawn(fig: Figure, alt: str) -> str:
    """Return a finished figure as SVG in the page's colours."""
    picture = plots.inline_svg(plots.svg_drawing(fig), alt, plots.extent(fig))
    plt.close(fig)
    return picture


def visible(text: str) -> str:
    """Return a text with marks for what cannot be seen.

    >>> visible("a b\\n")
    'a·b↵'
    """
    return text.translate({ord(" "): "·", ord("\n"): "↵", ord("\t"): "→", ord("\r"): "␍"})


def piece(token_id: int, tok: Tokenizer | None = None) -> str:
    """Return the text of one token as a reader sees it; `tok`: None for the shipped tokenizer.

    >>> piece(0), piece(tokenizer().encode(" def")[0])
    ('end of text', '·def')
    """
    tok = tok or tokenizer()
    if tok.token_name(token_id) == "<|endoftext|>":
        return "end of text"
    text = tok.token_bytes(token_id).decode("utf-8", errors="backslashreplace")
    return visible(text or tok.token_name(token_id))


@functools.cache
def target() -> Llama:
    """Return the shipped target, loaded once for all stills of a page."""
    return cast(Llama, load_model("target"))


def loaded(model: str) -> tuple[Llama, Tokenizer]:
    """Return what views run: the shipped "target", or "smollm2", which is loaded once as well.

    Raises: ValueError for another name, and as `load_model` where SmolLM2 is not installed.
    """
    if model not in ("target", "smollm2"):
        raise ValueError(f"model must be 'target' or 'smollm2', got {model!r}")
    if model == "target":
        return target(), tokenizer()
    return cast(tuple[Llama, Tokenizer], smollm2.load_smollm2())


def document(tok: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text, behind the one that it begins after."""
    return [start_id(tok), *tok.encode(text)]


def params_of(settings: Mapping[str, Any]) -> SamplingParams:
    """Return what of a view's settings says how tokens are chosen."""
    known = SamplingParams.__dataclass_fields__
    return SamplingParams(**{k: v for k, v in settings.items() if k in known})


def next_token(settings: Mapping[str, Any], model: str = "target") -> str:
    """Return the likeliest next tokens as a figure."""
    net, tok = loaded(model)
    ids, params = document(tok, settings["text"]), params_of(settings)
    logits = net([ids])[0, -1]
    before, after = softmax(logits), next_token_distribution(logits, params, ids)
    top = np.argsort(-before, kind="stable")[:_N_BARS]
    with plt.rc_context(plots.STYLE):
        fig, ax = plt.subplots(figsize=(4.4, 3.3))
        _draw_bars(ax, [piece(i, tok) for i in top], 100 * before[top], 100 * after[top])
        text = settings["text"]
        cut = "…" if len(text) > _TEXT_SHOWN else ""
        title = f"{cut}{visible(text[-_TEXT_SHOWN:])}"
        ax.set_title(title, family="monospace", x=-0.2, parse_math=False)
        fig.subplots_adjust(left=0.2, bottom=0.2)
    chances = ", ".join(
        f"{piece(i, tok)} {before[i]:.1%}" + ("" if after[i] else ", dropped") for i in top
    )
    alt = (
        f"The {_N_BARS} likeliest tokens after the text “{text}”, as bars: {chances}. "
        f"The settings keep {np.count_nonzero(after):,} of {len(after):,} tokens."
    )
    return framed(drawn(fig, alt), model=model)


def _draw_bars(ax: plt.Axes, names: list[str], before: np.ndarray, after: np.ndarray) -> None:
    """Draw pale bars for what the model says, and strong ones for what the settings make of it."""
    places, blue = np.arange(len(names)), plots.COLORS["prefill"]
    for place, p, kept in zip(places, before, after, strict=True):
        ground, line = (blue + "38", "-") if kept else ("none", "--")
        ax.barh(place, p, height=0.8, edgecolor=blue, facecolor=ground, linestyle=line)
    ax.barh(places, after, height=0.4, color=blue)
    ax.set_yticks(places, names, family="monospace", parse_math=False)  # $ is a token, too
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("probability in %\npale: the model's, strong: with the settings")


def inside(settings: Mapping[str, Any], model: str = "target") -> str:
    """Return what the last token reads through one head, as a coloured text."""
    net, tok = loaded(model)
    start, *ids = document(tok, settings["text"])
    ids = ids[-_MOST_INSIDE:]
    layer, head = settings["layer"], settings["head"]
    seen = look_inside(net, [start, *ids], settings["silenced"])
    shares = seen.attention[layer, head, -1]
    names = ["start", *(piece(i, tok) for i in ids)]
    most = np.argsort(-shares, kind="stable")[:3]
    reads = ", ".join(f"{100 * shares[i]:.1f} % from “{names[i]}”" for i in most)
    likeliest = int(seen.next.argmax())
    words = (
        f"Layer {layer + 1}, head {head + 1}: the last token, “{names[-1]}”, reads {reads}. Next, "
        f"the model expects “{piece(likeliest, tok)}”, with {100 * seen.next[likeliest]:.1f} %."
    )
    looks = [_shade("cache", share) for share in shares[1:]]
    return framed(_coloured(words, ids, looks, tok), model=model)


def cache(settings: Mapping[str, Any], model: str = "target") -> str:
    """Return the cache as a figure: what it holds when half of the text has been written."""
    net, tok = loaded(model)
    ids, arch, params = document(tok, settings["text"]), net.arch, params_of(settings)
    half = replace(params, max_tokens=math.ceil(params.max_tokens / 2))
    n_written = len(generate(net, ids, half).ids)
    assert arch.max_context is not None  # that of both models
    n_places = min(len(ids) + params.max_tokens, arch.max_context)
    # The last token has been chosen, but not read.
    n_kept = len(ids) + n_written - 1 if settings["use_cache"] else 0
    n_bytes = kv_cache_bytes(arch, n_kept, dtype="fp32")
    kept = {"prefill": (0, min(len(ids), n_kept)), "decode": (len(ids), n_kept)}
    with plt.rc_context(plots.STYLE):
        fig, ax = plt.subplots(figsize=(5.0, max(2.6, 0.16 * arch.n_layers)))
        for row in range(2 * arch.n_layers):  # keys of a layer, and below them its values
            place = 1 + row // 2 + (0.19 if row % 2 else -0.19)
            ax.barh(place, n_places, height=0.34, color=plots.COLORS["ink"], alpha=0.1)
            for colour, (start, end) in kept.items():
                width = max(0, end - start)
                ax.barh(place, width, left=start, height=0.34, color=plots.COLORS[colour])
        ax.set(xlabel="position: blue of the prompt, orange written", ylabel="layer")
        ax.set(xlim=(0, n_places), yticks=range(1, arch.n_layers + 1))
        ax.set_title(f"{n_kept:,} tokens kept: {n_bytes:,} bytes")
        ax.invert_yaxis()
        ax.grid(visible=False)
    alt = (
        f"Keys and values in {arch.n_layers} layers, after {n_written} tokens were written to a "
        f"prompt of {len(ids)}: {n_kept:,} positions are kept, {n_bytes:,} bytes."
    )
    return framed(drawn(fig, alt), model=model)


def draft_of(name: str) -> Model | Draft:
    """Return what guesses for the target, by its name in `assets.DRAFTS`."""
    if name == "suffix_automaton":
        return SuffixDraft()
    if name == "medusa_heads":
        return MedusaDraft(target())
    if name == "eagle_draft":
        return EagleDraft(target())
    return load_model(data_path(f"model/{name}"))


def speculation(settings: Mapping[str, Any], model: str = "target") -> str:
    """Return a text coloured by what became of the draft's guesses."""
    net, tok = loaded(model)
    pair, ids = (net, draft_of(settings["draft"])), document(tok, settings["text"])
    run = speculative_generate(*pair, ids, params_of(settings), settings["gamma"])
    kinds = [kind for round_ in run.rounds for kind in _kinds(round_)]
    kinds = kinds[: len(run.ids)]  # a text may end in the middle of a round
    words = (
        f"{len(run.ids)} tokens in {len(run.rounds)} passes of the target: "
        f"{kinds.count('kept')} guesses of the draft were kept (purple), {kinds.count('replaced')} "
        f"replaced (red), and {kinds.count('bonus')} tokens came as a bonus (dotted)."
    )
    text = _coloured(words, run.ids, [_LOOKS[kind] for kind in kinds], tok)
    return framed(text, settings["draft"], model)


def surprise(settings: Mapping[str, Any]) -> str:
    """Return a text coloured by the loss of each token."""
    text = settings["text"]
    start, *ids = tokenizer().encode_document(text)
    if not ids:
        return framed(_coloured("No text yet: type one, and see what surprises the model.", [], []))
    bits = token_losses(target(), [start, *ids]) / math.log(2)
    worst = int(bits.argmax())
    words = (
        f"{bits_per_byte(target(), tokenizer(), text):.2f} bits per byte. The more bits a token "
        "needs, the stronger its colour. "
        f"Most of all: “{piece(ids[worst])}”, {bits[worst]:.1f} bits."
    )
    strengths = [sum(each >= step for step in _LEVELS) / len(_LEVELS) for each in bits]
    return framed(_coloured(words, ids, [_shade("decode", each) for each in strengths]))


def _kinds(round_: Round) -> list[str]:
    """Return what became of the tokens of a round, one after another."""
    last = "bonus" if round_.accepted == round_.drafted else "replaced"
    return ["kept"] * round_.accepted + [last]


def _shade(concept: str, strength: float) -> str:
    """Return the look of a token that is coloured by a strength from 0 to 1."""
    if strength < 0.01:
        return ""
    colour = plots.COLORS[concept]
    line = f"box-shadow:inset 0 -{4 * strength:.1f}px {colour}"
    return f"background:{colour}{round(127 * strength):02x};{line}"


def _coloured(
    words: str, ids: Sequence[int], looks: Iterable[str], tok: Tokenizer | None = None
) -> str:
    """Return a sentence, and a text with the look of each token (CSS; empty: as it is)."""
    marked, tok = [], tok or tokenizer()
    for token_id, look in zip(ids, looks, strict=True):
        text = html.escape(tok.token_bytes(token_id).decode("utf-8", errors="backslashreplace"))
        text = text.replace("\n", "↵\n")
        marked.append(f'<span style="{look}">{text}</span>' if look else text)
    sentence = html.escape(words)
    return (
        f'<div role="img" aria-label="{sentence}"><p style="margin:0 0 .5rem">{sentence}</p>'
        '<div style="white-space:pre-wrap;overflow-wrap:anywhere;font:1rem/1.9 var(--ft-mono)">'
        f"{''.join(marked)}</div></div>"
    )
