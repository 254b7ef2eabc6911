"""What the first page shows: the shipped model writing, and a card for each chapter."""

import html
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from cards import picture

from firsttoken.generate import generate
from firsttoken.live import View, stills
from firsttoken.models.tokenizer import TextStream, tokenizer
from firsttoken.page.start import CHAPTERS, PARTS
from firsttoken.sampling import SamplingParams, softmax

N_GUESSES = 5  # tokens that are shown for each place
SPOKEN = {" ": " space ", "\n": " newline ", "\t": " tab "}


# The model writing.


@dataclass(frozen=True)
class Guess:
    """A token that may come next: its probability, and whether it is the one drawn."""

    token_id: int
    p: float
    drawn: bool


@dataclass(frozen=True)
class Recording:
    """What the model wrote: one piece per token, and before each the likeliest ones.

    The last of `guesses` are those for the token that would come after the text.
    """

    prompt: str
    pieces: tuple[str, ...]
    guesses: tuple[tuple[Guess, ...], ...]


def record(prompt: str, params: SamplingParams) -> Recording:
    """Let the shipped model go on from a prompt, and note what it was thinking of on the way."""
    model, tok = stills.target(), tokenizer()
    prompt_ids = tok.encode_document(prompt)
    ids = generate(model, prompt_ids, params, ignore_eos=True).ids
    logits = np.asarray(model([prompt_ids + ids]))[0, len(prompt_ids) - 1 :]  # [max_tokens + 1, V]
    stream = TextStream(tok)
    guesses = []
    for p, drawn in zip(softmax(logits), [*ids, None], strict=True):
        likeliest = np.argsort(-p, kind="stable")[:N_GUESSES].tolist()
        guesses.append(tuple(Guess(i, float(p[i]), i == drawn) for i in likeliest))
    pieces = tuple(stream.push(i) for i in ids)
    return Recording(prompt, pieces, tuple(guesses))


def writing(view: View, max_tokens: int) -> str:
    """Return the still figure of a view as the model going on from its text, without any script.

    The text comes token by token, each after the likeliest tokens for its place. The style sheet
    moves it; in print, and for who wants no motion, the whole text stands there at once. A screen
    reader gets it whole, as text, and the last guesses as a picture with its words.
    """
    made = record(view.text, replace(view.params, max_tokens=max_tokens))
    tokens = f"<b>{html.escape(made.prompt)}</b>" + "".join(
        f'<span style="--i:{i}">{html.escape(piece)}</span>' for i, piece in enumerate(made.pieces)
    )
    frames = "".join(
        f'<span style="--i:{i}">{"".join(map(bar, guesses))}</span>'
        for i, guesses in enumerate(made.guesses)
    )
    text = made.prompt + "".join(made.pieces)
    last = ", ".join(f"{spoken(guess.token_id)} {percent(guess.p)}" for guess in made.guesses[-1])
    n_params = stills.target().arch.n_params
    figure = (
        f'<div class="ft-writing" style="--n:{len(made.pieces)}">'
        f'<code class="visually-hidden">{html.escape(text)}</code>'
        f'<div class="ft-recorded" aria-hidden="true">{tokens}</div>'
        f'<div class="ft-guesses" role="img" aria-label="Likeliest after this text: {last}.">'
        f"<p>What comes next?</p>{frames}</div>"
        '<label class="ft-pause"><input type="checkbox" autocomplete="off"/> Pause</label></div>'
        f"<figcaption>The model that comes with this book ({n_params / 1e6:.1f} million "
        "parameters) goes on from the bold text. Bars: the likeliest tokens for each place. "
        f"Recorded while this page was built, at temperature {view.params.temperature:g}."
        "</figcaption>"
    )
    return stills.framed(figure)


def bar(guess: Guess) -> str:
    """Return a guess as three columns: token, bar, probability."""
    tag, piece = "em" if guess.drawn else "span", html.escape(stills.piece(guess.token_id))
    return (
        f'<{tag}>{piece}</{tag}><span style="--p:{100 * guess.p:.1f}"></span>'
        f"<span>{percent(guess.p)}</span>"
    )


def percent(p: float) -> str:
    """Return a probability in whole percent, as HTML."""
    return f"{100 * p:.0f} %" if p >= 0.01 else "&lt; 1 %"


def spoken(token_id: int) -> str:
    """Return a token in words, as an attribute's text."""
    text = tokenizer().decode([token_id])
    words = "".join(SPOKEN.get(char, char) for char in text).strip() or "end of text"
    return html.escape(words, quote=True)


# The cards.


@dataclass(frozen=True)
class Entry:
    """A chapter of the table of contents: its stem, its page's address, and minutes to read."""

    stem: str
    address: str
    minutes: int


def cards(entries: Iterable[Entry]) -> str:
    """Return a card for each chapter, part by part, in the order given."""
    parts = groupby(entries, lambda entry: CHAPTERS[entry.stem].part)
    return "".join(
        f'<h3 class="ft-cards-title">{html.escape(PARTS[part])}</h3>'
        f'<ul class="ft-cards">{"".join(map(card, some))}</ul>'
        for part, some in parts
    )


def card(entry: Entry) -> str:
    """Return one chapter as a list item; its link is the title, and covers the card."""
    chapter = CHAPTERS[entry.stem]
    return (
        f'<li class="ft-card">{picture(entry.stem)}'
        f'<a href="{html.escape(entry.address)}">{html.escape(chapter.label)}</a>'
        f"<p>{html.escape(chapter.question)}</p><p>{entry.minutes} min to read</p></li>"
    )
