"""A chat in a cell: the model runs in the kernel, the page shows what it reads and writes."""

import html
import os
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from numbers import Real
from pathlib import Path
from typing import Any, cast

import anywidget
import numpy as np
import traitlets

from firsttoken.checks import check_count
from firsttoken.generate.sequence import TokenSequence
from firsttoken.live import stills
from firsttoken.live.last_text import LastText
from firsttoken.live.widgets import site_html, site_root
from firsttoken.models import smollm2
from firsttoken.models.chat import ChatTemplate, Messages, chat_template
from firsttoken.models.llama import load_model
from firsttoken.models.protocols import FeatureModel
from firsttoken.models.tokenizer import TextStream, Tokenizer, tokenizer
from firsttoken.paths import smollm2_path
from firsttoken.sampling import SamplingParams

Array = np.ndarray

# What SmolLM2 answered at temperature 0, and its template: for readers who have not installed it.
STORED = (
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is Paris."},
    {"role": "user", "content": "And of Italy?"},
    {"role": "assistant", "content": "The capital of Italy is Rome."},
)
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n"
    "' + message['content'] + '<|im_end|>' + '\n"
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n"
    "' }}{% endif %}"
)
_ROLES = {"system": "System", "user": "You", "assistant": "Model"}
_BUSY = ("loading", "writing")
_ROOM = 512  # tokens in the cache at first; it grows with the conversation
_ENDS = {
    "eos": "The model ended its answer.",
    "length": "Cut off: so many tokens were asked for.",
    "context": "Cut off: the model's context is full.",
    "stopped": "You stopped it.",
}
_STYLES = ("loader", "controls", "chat")
_IN_JUPYTERLAB = "It answers in JupyterLab, where the model runs: <code>make lab</code>."
_START = "Loads the model into the kernel: some seconds, and half a gigabyte of memory."

# A text as a page gets it: its parts, each with whether the template wrote it as a mark.
Parts = list[tuple[str, bool]]


class _Stopped(Exception):
    """The reader wants no more of this answer."""


class Chat(anywidget.AnyWidget):
    """A conversation with a model, which writes in a thread of the kernel while it answers.

    `messages` is all that has been said, as `ChatTemplate` takes it; `settings` are "system" (the
    system message; empty: the template's own), "temperature", "max_tokens" and "seed". The first
    answer has this seed, each further one the next; a new seed or `clear` begins anew.
    """

    _esm = files("firsttoken").joinpath("live/chat.js").read_text("utf-8")
    _css = "".join(
        files("firsttoken").joinpath(f"live/{name}.css").read_text("utf-8") for name in _STYLES
    )
    still = traitlets.Unicode().tag(sync=True)  # HTML: what is shown until the reader starts it
    settings = traitlets.Dict().tag(sync=True)
    said: Any = traitlets.List().tag(sync=True)  # without the system message
    parts: Any = traitlets.List().tag(
        sync=True
    )  # of the text that the model got, and of its answer
    # phase: still, missing, loading, ready or writing; note: in words; answer: as far as it is;
    # n_tokens of max_context: how full the context is (0 of 0: not known yet).
    state: Any = traitlets.Dict(
        {"phase": "still", "note": "", "answer": "", "n_tokens": 0, "max_context": 0}
    ).tag(sync=True)
    view = "chat"

    def __init__(self, messages: Messages, settings: Mapping[str, Any], model: str | Path):
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: LastText | None = None
        self._name, self._n_answers = model, 0
        system, said = _split(messages)
        super().__init__(said=said, settings={"system": system, **settings})
        self._tokenizer, self._template = _tokenizer_and_template(model)
        self.parts = self._parts_now()
        self.still = still(said, self.parts, self._ending())
        self.on_msg(self._heard)

    def _ending(self) -> str:
        """Return what stands below the still: on the website, a button only if it has the model."""
        if _on_site():
            button = stills.real_button("Talk to it here") if self._name == "smollm2" else ""
            return button or f'<p class="ft-note">{_IN_JUPYTERLAB}</p>'
        note, label = _START, "Start the chat"
        try:
            if self._name == "smollm2":
                smollm2_path()
        except ValueError as missing:
            note, label = html.escape(str(missing)), "Look for it again"
        return _button(note, label)

    def on_site(self) -> str:
        """Return the chat for the website."""
        return site_html("chat", self._page_settings(), self.still, "smollm2", _STYLES)

    def door(self) -> str:
        """Return the chat as one button, for a page that has another view; "" without the model."""
        button = stills.real_button("Talk to a real one, here in the page")
        return button and site_root("chat", self._page_settings(), button, "smollm2")

    def _page_settings(self) -> dict[str, Any]:
        return {**self.settings, "said": self.said}

    def open(self) -> None:
        """Open the connection to JupyterLab; on the website there is none, and no use for one."""
        if not _on_site():
            super().open()

    def close(self) -> None:
        """Stop writing, and take the view away."""
        self.stop()
        super().close()

    @property
    def messages(self) -> list[dict[str, str]]:
        """All that has been said, the system message first if there is one."""
        system = self.settings["system"]
        return [*([{"role": "system", "content": system}] if system else []), *self.said]

    def start(self) -> None:
        """Load the model, and have it answer if the last message is the reader's."""
        if self._is_idle():
            self._work()

    def say(self, text: str) -> None:
        """Send a message; the answer is written while other cells run. `wait` waits for it.

        Raises: ValueError while it still answers another one, and for a message without text.
        """
        if not self._is_idle():
            raise ValueError("text must wait: the model still answers; stop() ends that")
        text = _well_formed(text)
        if not text.strip():
            raise ValueError(f"text must say something, got {text!r}")
        self.said = [*self.said, {"role": "user", "content": text}]
        self._work()

    def stop(self) -> None:
        """End the answer that is being written; what there is of it stays."""
        self._stopping.set()
        self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def clear(self) -> None:
        """Forget what has been said; the system message stays, and what the cache has of it."""
        self.stop()
        self.said, self.parts, self._n_answers = [], [], 0
        self._say("", n_tokens=0)

    def _say(self, note: str, **changes: Any) -> None:
        self.state = {**self.state, "note": note, "answer": "", **changes}

    def _parts_now(self) -> Parts:
        """Return the text of what has been said, as far as it is known before the model is."""
        if not self.messages:
            return []
        ids = self._template.encode(self.messages, add_generation_prompt=False)
        return _parts(ids, self._tokenizer)

    def _is_idle(self) -> bool:
        if self.state["phase"] in _BUSY:
            return False
        self.wait()  # the thread has said that it is done
        return True

    def _work(self) -> None:
        self._stopping.clear()
        phase, note = ("writing", "") if self._last else ("loading", "Loading the model …")
        self._say(note, phase=phase)
        self._thread = threading.Thread(target=self._load_and_answer, daemon=True)
        self._thread.start()

    def _load_and_answer(self) -> None:
        """Do in the thread what takes time, and leave the view ready for more."""
        try:
            if self._last is None:
                self._model = self._load()
                self._last = LastText(self._model, _ROOM)
                self._say("", max_context=self._model.arch.max_context)
            note = self._answer() if self.said and self.said[-1]["role"] == "user" else ""
            self._say(note, phase="ready")
        except Exception as error:  # nobody else would hear of it
            phase = "missing" if self._last is None else "ready"
            self._say(str(error) or repr(error), phase=phase)

    def _load(self) -> FeatureModel:
        """Return the model; SmolLM2 is loaded once for all that need it."""
        if self._name != "smollm2":
            return cast(FeatureModel, load_model(self._name))
        model, self._tokenizer = smollm2.load_smollm2()
        self._template = ChatTemplate(str(self._tokenizer.chat_template), self._tokenizer)
        return cast(FeatureModel, model)

    def _answer(self) -> str:
        """Write an answer to what has been said; return what is to be noted about it."""
        assert self._last is not None
        last, tok, template = self._last, self._tokenizer, self._template
        settings = self.settings
        params = SamplingParams(
            temperature=settings["temperature"],
            max_tokens=settings["max_tokens"],
            seed=settings["seed"] + self._n_answers,
        )
        self._n_answers += 1
        ids, written, stream = template.encode(self.messages), list[int](), TextStream(tok)
        times_s = list[float]()
        self.parts = _parts(ids, tok)
        n_known = last.n_known(ids)
        tokens = f"{len(ids):,} tokens: {n_known:,} stood in the cache, {len(ids) - n_known:,} new."
        self._say(f"Reading. {tokens}", phase="writing", n_tokens=len(ids))

        def heard(token: int) -> None:
            written.append(token)
            times_s.append(time.perf_counter())
            answer = self.state["answer"] + stream.push(token)
            self._say(f"Writing. {tokens}", answer=answer, n_tokens=len(ids) + len(written))

        request = TokenSequence(self._model, ids, params, heard)
        last.reserve(request.max_length)
        try:
            while (why := request.finish_reason) is None:
                request.append(request.choose(self._read(request.ids)))
        except _Stopped:
            why = "stopped"
        self.said = [*self.said, {"role": "assistant", "content": tok.decode(written)}]
        self.parts = _parts([*ids, *written], tok)
        pace = ""
        if len(written) > 1:  # the first one came with the reading
            pace = f", {(len(written) - 1) / (times_s[-1] - times_s[0]):.0f} per second"
        return f"{tokens} {len(written):,} written{pace}. {_ENDS[why]}"

    def _read(self, ids: Sequence[int]) -> Array:
        """Return the logits after a text; between two passes the reader may stop it."""
        assert self._last is not None
        reading = self._last.read(ids)
        try:
            while True:
                self._pause()
                next(reading)
        except StopIteration as end:
            return end.value

    def _pause(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _heard(self, _widget: Any, message: Mapping[str, Any], _buffers: Any) -> None:
        """Do what the page asks for; ignore what comes too late or makes no sense."""
        kind = message.get("kind")
        if kind == "start":
            self.start()
        elif kind == "stop":
            self._stopping.set()
        elif kind == "clear":
            self.clear()
        elif kind in ("send", "set"):
            changes = message.get("settings", {})
            names = ("system", "temperature", "seed")
            known = {name: changes[name] for name in changes if name in names}
            settings = {**self.settings, **known}
            settings["system"] = _well_formed(settings["system"])
            if settings["seed"] != self.settings["seed"]:
                self._n_answers = 0
            self.settings = settings
            if kind == "send" and self._is_idle() and message["text"].strip():
                self.say(message["text"])

    @traitlets.validate("settings")
    def _checked(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        settings = proposal["value"]
        names = {"system", "temperature", "max_tokens", "seed"}
        if set(settings) != names:
            raise ValueError(f"settings must be {sorted(names)}, got {sorted(settings)}")
        if not isinstance(settings["system"], str):
            raise ValueError(f"system must be a text, got {settings['system']!r}")
        heat = settings["temperature"]
        is_real = isinstance(heat, Real) and not isinstance(heat, bool)
        if not is_real or not 0 <= heat <= 2:
            raise ValueError(f"temperature must lie within 0 … 2, got {heat!r}")
        if check_count("max_tokens", settings["max_tokens"], at_least=1) > 2000:
            raise ValueError(f"max_tokens must lie within 1 … 2000, got {settings['max_tokens']}")
        check_count("seed", settings["seed"])
        # A page's JSON knows no NumPy numbers.
        whole = {name: int(settings[name]) for name in ("max_tokens", "seed")}
        return {**settings, **whole, "temperature": float(heat)}

    def _repr_mimebundle_(self, **options: Any) -> Any:
        if _on_site():
            return {"text/html": self.on_site()}
        return super()._repr_mimebundle_(**options)


def chat(
    messages: Messages = STORED,
    *,
    temperature: float = 0.0,
    max_tokens: int = 200,
    seed: int = 0,
    model: str | Path = "smollm2",
) -> Chat:
    """Show a chat with a model: what is said, and below it the text that the model really gets.

    `messages` is the conversation so far, with a system message or without; if the last one is the
    user's, the model answers it as soon as the chat is started. It runs in the kernel, writes as
    `generate` does, and keeps the cache of the conversation: of the next question it reads only
    what is new. Until it is started, the view shows the conversation as given. On the website the
    page itself runs SmolLM2, if the site carries it.

    `model` is a name that `load_model` knows, of a model with a chat template.

    Units:  max_tokens in tokens, for each answer
    Raises: ValueError that names the argument: messages that are no dicts of a role and a content
            that is a text, a temperature outside 0 … 2, max_tokens outside 1 … 2000, a negative
            seed, a model without a chat template.

    >>> talk = chat([{"role": "user", "content": "Hi!"}], temperature=0.5)
    >>> talk.messages, talk.settings["temperature"]
    ([{'role': 'user', 'content': 'Hi!'}], 0.5)
    """
    settings = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    return Chat(messages, settings, model)


def still(said: Messages, parts: Parts, ending: str) -> str:
    """Return a conversation as HTML, with the text that the model gets, and some HTML below."""
    rows = "".join(
        f'<div class="ft-chat-said ft-chat-{"user" if each["role"] == "user" else "model"}">'
        f"<b>{html.escape(str(_ROLES.get(each['role'], each['role'])))}</b>"
        f"<div>{html.escape(each['content'])}</div></div>"
        for each in said
    )
    text = "".join(
        f'<span class="ft-chat-mark">{html.escape(part)}</span>' if is_mark else html.escape(part)
        for part, is_mark in parts
    )
    whole = html.escape("".join(part for part, _ in parts))
    return (
        f'<div class="ft-chat-log">{rows}</div>'
        "<details class='ft-chat-details' open><summary>The text that the model gets</summary>"
        f'<div class="ft-output" role="img" aria-label="The text that the model gets: {whole}">'
        f"{text}</div></details>{ending}"
    )


def _button(note: str, label: str) -> str:
    return (
        '<div class="ft-live-try"><button type="button" class="ft-live-start">'
        f'{label}</button><span role="status">{note}</span></div>'
    )


class _Characters:
    """Stands for SmolLM2's tokenizer where it is not installed: characters, and two marks."""

    def __init__(self) -> None:
        self.special_names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        self.special_tokens = {name: -i for i, name in enumerate(self.special_names.values(), 1)}

    def encode(self, text: str) -> list[int]:
        """Return the numbers of the characters."""
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the characters."""
        return "".join(map(chr, ids))


def _tokenizer_and_template(model: str | Path) -> tuple[Tokenizer, ChatTemplate]:
    """Return a model's tokenizer and template; of SmolLM2, which may be missing, stand-ins."""
    if model == "smollm2":
        stand_in = cast(Tokenizer, _Characters())
        return stand_in, ChatTemplate(TEMPLATE, stand_in)
    return tokenizer(model), chat_template(model)


def _parts(ids: Sequence[int], tok: Tokenizer) -> Parts:
    """Return the text of some ids in parts, with the marks by themselves."""
    names = {i: name for name, i in tok.special_tokens.items()}
    parts, run = Parts(), list[int]()
    for token in [*ids, None]:
        if token is not None and token not in names:
            run.append(token)
            continue
        if run:
            parts.append((tok.decode(run), False))
            run = []
        if token is not None:
            parts.append((names[token], True))
    return parts


def _split(messages: Messages) -> tuple[str, list[dict[str, str]]]:
    """Return the system message, "" if there is none, and the others."""
    try:
        said = [{key: each[key] for key in ("role", "content")} for each in messages]
        fine = all(isinstance(value, str) for each in said for value in each.values())
    except (TypeError, KeyError):
        fine = False
    if not fine:
        raise ValueError(f"messages must be dicts of a role and a content, got {messages!r}")
    said = [{key: _well_formed(value) for key, value in each.items()} for each in said]
    if said and said[0]["role"] == "system":
        return said[0]["content"], said[1:]
    return "", said


def _well_formed(text: str) -> str:
    """Return a text whose halves of characters, which no tokenizer knows, are U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _on_site() -> bool:
    return os.environ.get("FIRSTTOKEN_SITE") == "1"
