"""The five views as widgets for a notebook, and as HTML for a page of the website."""

import html
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from numbers import Real
from typing import Any

import anywidget
import traitlets

from firsttoken.architectures import Architecture, from_hf_config
from firsttoken.checks import check_choice, check_count
from firsttoken.kv_cache import kv_cache_bytes
from firsttoken.live import assets, kernel, stills
from firsttoken.models.tokenizer import tokenizer
from firsttoken.paths import data_path
from firsttoken.sampling import SamplingParams

# How far the views' sliders and fields reach.
_REAL = {"temperature": (0, 2), "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": (1, 2)}
_WHOLE = {"top_k": (0, 100), "max_tokens": (1, 500), "gamma": (1, 8), "seed": (0, 2**32 - 1)}
_MOST_BYTES = 65_536  # of a text that surprises, as in views/surprise.js

# What chapter 01 reads, up to the bracket after which a name has to come that came before.
PROGRAM = "import os\n\npath = os.path.join(folder, name)\nif os.path.exists("
# Long enough to see the prompt beside what is written, and the draft is often right on it.
READ_LINES = "import os\n\ndef read_lines(path):\n    with open(path) as f:\n"
# Mostly what every listing has, and one word that none has.
LISTING = """import os
import sys


def main():
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            print(bananas)


if __name__ == "__main__":
    main()
"""


# What a model that knows English begins with: in the page and here.
_ENGLISH = json.loads(files("firsttoken").joinpath("live/english.json").read_text("utf-8"))


class View(anywidget.AnyWidget):
    """A view of a model at work, and what the reader has done in it.

    The page runs the shipped pair by itself; SmolLM2 (`model="smollm2"`) answers from the kernel.
    On the website the page runs both, if the site carries SmolLM2.

    `text` is what stands in its text field, `settings` all that can be set, by name; both change
    when the reader changes them, and setting them changes the view.

    Raises: ValueError for a setting that the view does not have, lacks, or cannot show.

    >>> view = next_token("def ", temperature=0.5, seed=3)
    >>> view.text = "class "
    >>> view.text, view.params.temperature, view.params.seed
    ('class ', 0.5, 3)
    >>> view.settings = {**view.settings, "temperature": 3}
    Traceback (most recent call last):
        ...
    ValueError: temperature must lie within 0 … 2, got 3
    """

    _esm = assets.script()
    view = traitlets.Unicode().tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)
    still = traitlets.Unicode().tag(sync=True)  # HTML: what is shown until the reader touches it
    arch = traitlets.Dict().tag(sync=True)  # of a model in the kernel; empty: the page has one
    manifest = traitlets.Dict().tag(sync=True)
    version = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        view: str,
        still: Callable[[Mapping[str, Any], str], str],
        settings: Mapping[str, Any],
        model: str = "target",
    ):
        in_page = model == "target"
        self._names, self._model = set(settings), model
        self._engine = None if in_page else kernel.KernelEngine(*stills.loaded(model))
        super().__init__(
            view=view,
            # What the kernel runs starts by itself where there is one, without a still.
            still=still(settings, model) if in_page or _on_site() else "",
            # A page's JSON knows no NumPy numbers.
            settings={k: v.item() if hasattr(v, "item") else v for k, v in settings.items()},
            arch=self._engine.arch if self._engine else {},
            manifest=assets.manifest() if in_page else {},
            version=assets.version() if in_page else "",
        )
        self.on_msg(self._answer)

    def open(self) -> None:
        """Open the connection to JupyterLab; on the website there is none, and no use for one."""
        if not _on_site():
            super().open()

    @property
    def text(self) -> str:
        """The reader's text, and what the model has added to it."""
        return self.settings["text"]

    @text.setter
    def text(self, text: str) -> None:
        self.settings = {**self.settings, "text": text}

    @property
    def ids(self) -> list[int]:
        """The tokens of the text, behind the one that ends the text before it: for `generate`."""
        _, tok = stills.loaded(self._model)
        return stills.document(tok, self.text)

    @property
    def params(self) -> SamplingParams:
        """The reader's settings, for `generate`."""
        return stills.params_of(self.settings)

    @traitlets.validate("settings")
    def _checked(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        settings = proposal["value"]
        if set(settings) != self._names:
            raise ValueError(f"settings must be {sorted(self._names)}, got {sorted(settings)}")
        _check_settings(settings, self._model)
        return settings

    def _repr_mimebundle_(self, **options: Any) -> Any:
        if _on_site():
            return {"text/html": self.on_site()}
        return super()._repr_mimebundle_(**options)

    def on_site(self, still: str | None = None) -> str:
        """Return the view for the website; `still` is shown at first, if it is not its own."""
        shown = self.still if still is None else still
        return site_html(self.view, self.settings, shown, self._model)

    def _answer(self, _widget: Any, message: Mapping[str, Any], _buffers: Any) -> None:
        """Send a file that the page asks for, in pieces, so that it can show how far it is.

        What the page asks of a model in the kernel is answered in a message.
        """
        if self._engine and "id" in message and (answer := self._engine.hear(message)):
            self.send(answer)
        if message.get("kind") != "file":
            return
        content, size = assets.packed(message["name"]), 1 << 18
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        for index, piece in enumerate(pieces):
            about = {"kind": "piece", "name": message["name"], "index": index, "n": len(pieces)}
            self.send(about, buffers=[piece])


def _first(view: str, model: str, **given: tuple[Any, Any]) -> dict[str, Any]:
    """Return a view's first settings: each value of `given` is (what the caller gave, first value).

    The first value counts where None was given. It is the target's; english.json has the real
    model's.
    """
    own = {name: first for name, (_, first) in given.items()}
    if model == "smollm2":
        own = _ENGLISH[view]
    return {name: own[name] if value is None else value for name, (value, _) in given.items()}


def _arch(model: str) -> Architecture:
    if model == "target":
        return from_hf_config(data_path("model/target/config.json"))
    return stills.loaded(model)[0].arch


def _drafts(model: str) -> Collection[str]:
    return assets.DRAFTS if model == "target" else kernel.DRAFTS


def _check_settings(settings: Mapping[str, Any], model: str) -> None:
    for name, value in settings.items():
        _check_setting(name, value, model)


def _on_site() -> bool:
    return os.environ.get("FIRSTTOKEN_SITE") == "1"


def _check_setting(name: str, value: Any, model: str = "target") -> None:
    """Raise a ValueError that names the setting unless the view can show the value."""
    if name == "text":
        tokenizer().encode(value)
    elif name == "use_cache" and not isinstance(value, bool):
        raise ValueError(f"use_cache must be True or False, got {value!r}")
    elif name == "draft":
        check_choice("draft", value, _drafts(model))
    elif name == "silenced":
        try:
            pairs = [(layer, head) for layer, head in value]
        except (TypeError, ValueError):
            raise ValueError(f"silenced must be pairs of layer and head, got {value!r}") from None
        for layer, head in pairs:
            _check_setting("layer", layer, model)
            _check_setting("head", head, model)
    elif name in _REAL:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ValueError(f"{name} must be a real number, got {value!r}")
        _check_within(name, value, *_REAL[name])
    elif name in ("layer", "head"):
        arch = _arch(model)
        last = (arch.n_layers if name == "layer" else arch.n_heads) - 1
        _check_within(name, check_count(name, value), 0, last)
    elif name in _WHOLE:
        _check_within(name, check_count(name, value), *_WHOLE[name])


def _check_within(name: str, value: Any, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must lie within {low} … {high}, got {value}")


def site_html(
    view: str,
    settings: Mapping[str, Any],
    still: str,
    model: str = "target",
    styles: Sequence[str] = ("loader",),
) -> str:
    """Return a view for the website: the still figure, and the few lines that bring it to life."""
    live = files("firsttoken").joinpath("live")
    loader = live.joinpath("loader.js").read_text("utf-8")
    style = "".join(live.joinpath(f"{name}.css").read_text("utf-8") for name in styles)
    root = site_root(view, settings, still, model)
    return f"{root}<style>{style}</style><script>{loader}</script>"


def site_root(view: str, settings: Mapping[str, Any], still: str, model: str) -> str:
    """Return a view for a page of the website that has another one: its element alone."""
    given = html.escape(json.dumps(settings), quote=True)
    real = "" if model == "target" else ' data-model="real"'
    chat = " ft-chat" if view == "chat" else ""
    return (
        f'<div class="ft-live{chat}" data-view="{view}"{real} data-settings="{given}" '
        f'data-assets="_static/live/{assets.version()}/">{still}</div>'
    )


def next_token(
    text: str | None = None,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    max_tokens: int = 40,
    model: str = "target",
) -> View:
    """Show the likeliest next tokens after a text, with everything that chooses among them.

    A press on a token appends it; the model goes on writing by itself, `max_tokens` at a time. The
    settings are those of `SamplingParams`, as far as the sliders reach, and with the same seed
    `generate` writes the same text. `model` is the shipped "target", or "smollm2": a real model,
    once it is installed, that the kernel runs. Without a text, each begins with one of its own.

    Units:  top_k, max_tokens in tokens; top_p, min_p: probability
    Raises: ValueError that names the argument: no text, a temperature outside 0 … 2, a top_k
            outside 0 … 100, a top_p or min_p outside 0 … 1, a repetition_penalty outside 1 … 2,
            max_tokens outside 1 … 500, a seed outside 0 … 2³² - 1, another model;
            as `load_model`.

    >>> next_token("def ", top_k=40).params.top_k
    40
    """
    settings = {
        "text": _first("next_token", model, text=(text, "def "))["text"],
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    return View("next_token", stills.next_token, settings, model)


def inside(
    text: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    silenced: Iterable[tuple[int, int]] = (),
    model: str = "target",
) -> View:
    """Show what a head reads, and what becomes of the next token when heads are silent.

    Layers and heads are counted from 0, as in `models.inspection`; the reader sees them counted
    from 1. At first, layer 5 and head 3 of the shipped target: the head that copies. `model` and
    what it begins with as in `next_token`.

    Raises: ValueError that names the argument: no text, a layer or head that the model has not,
            another model; as `load_model`.

    >>> inside("import os", layer=0, head=5, silenced=[(3, 4)]).settings["silenced"]
    [[3, 4]]
    """
    silenced = list(silenced)
    begins = _first("inside", model, text=(text, PROGRAM), layer=(layer, 5), head=(head, 3))
    text, layer, head = begins.values()
    for name, value in [("layer", layer), ("head", head), ("silenced", silenced)]:
        _check_setting(name, value, model)
    settings = {
        "text": text,
        "layer": int(layer),
        "head": int(head),
        "silenced": [[int(at), int(number)] for at, number in silenced],
    }
    return View("inside", stills.inside, settings, model)


def cache(
    text: str | None = None,
    *,
    use_cache: bool = True,
    max_tokens: int = 200,
    temperature: float = 0.6,
    seed: int = 5,
    model: str = "target",
) -> View:
    """Show keys and values filling while the model writes, with a switch that turns them off.

    `generate(model, view.ids, view.params, use_cache)` writes the same text. `model` and its first
    text as in `next_token`.

    Raises: ValueError that names the argument: no text, use_cache neither True nor False,
            max_tokens outside 1 … 500, a temperature outside 0 … 2, a negative seed, another model;
            as `load_model`.
    """
    settings = {
        "text": _first("cache", model, text=(text, READ_LINES))["text"],
        "use_cache": use_cache,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "bytes_per_token": kv_cache_bytes(_arch(model), 1, dtype="fp32"),
    }
    _check_settings(settings, model)
    return View("cache", stills.cache, settings, model)


def speculation(
    text: str | None = None,
    *,
    draft: str | None = None,
    gamma: int = 4,
    temperature: float = 0.5,
    seed: int = 1,
    max_tokens: int = 120,
    model: str = "target",
) -> View:
    """Show which tokens of a draft the target keeps, and what that brings on the clock.

    `draft` is what is chosen at first of what the reader can choose; `stills.draft_of` returns the
    library's object of that name:

    - "draft" (at first), "pruned_draft": the shipped models of these names, of one layer each;
    - "suffix_automaton": `SuffixDraft()`, no model;
    - "medusa_heads": `MedusaDraft(target)`, which guesses four tokens at most;
    - "eagle_draft": `EagleDraft(target)`.

    `speculative_generate(target, stills.draft_of(draft), view.ids, view.params, gamma)` writes the
    same text. `model` and its first text as in `next_token`; for "smollm2" the suffix automaton
    guesses, no other.

    Raises: ValueError that names the argument: no text, a draft of another name, a gamma outside
            1 … 8, a temperature outside 0 … 2, a negative seed, max_tokens outside 1 … 500, another
            model; as `load_model`.
    """
    _arch(model)  # or nothing says which drafts there are
    settings = {
        "text": _first("speculation", model, text=(text, READ_LINES))["text"],
        "draft": next(iter(_drafts(model))) if draft is None else draft,
        "gamma": gamma,
        "temperature": temperature,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    _check_settings(settings, model)
    return View("speculation", stills.speculation, settings, model)


def surprise(text: str = LISTING) -> View:
    """Show the loss of each token of a text, and its bits per byte beside those of other readers.

    Units:  held_out in its settings: bits per byte of the target on the shipped held-out text.
    Raises: ValueError for what is no text, and for more than 64 KB of it.
    """
    _check_setting("text", text)
    if len(text.encode()) > _MOST_BYTES:
        raise ValueError(
            f"text must have at most {_MOST_BYTES:,} bytes, got {len(text.encode()):,}"
        )
    training = json.loads(data_path("model/training.json").read_text("utf-8"))
    settings = {"text": text, "held_out": training["heldout"]["bits_per_byte_target"]}
    return View("surprise", lambda settings, _: stills.surprise(settings), settings)
