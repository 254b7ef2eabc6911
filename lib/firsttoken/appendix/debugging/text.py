"""The text is wrong, and what stands around the model may be why: tokens, ends, characters."""

import json
import re
from collections.abc import Sequence
from itertools import takewhile

from firsttoken.appendix.debugging.finding import HEALTHY, Finding
from firsttoken.generate.sequence import Generation
from firsttoken.models.tokenizer import Tokenizer

_MARK = re.compile(r"<[|｜][^|｜<>]+[|｜]>")  # DeepSeek's have a wide bar


def why_the_prompt_is_off(
    tokenizer: Tokenizer, ids: Sequence[int], begin_id: int | None
) -> Finding:
    """Say what is wrong with the beginning or the end of a prompt, as the model gets it.

    A template and a tokenizer may both add the token that begins a text, or neither. The name of a
    special token that arrives as text is some tokens of text. A blank at the end belongs to the
    next word's token. `begin_id` is the token that the model's texts begin with, None for no such.

    Shapes: ids: at least one
    Raises: ValueError for no ids.

    >>> from firsttoken.models.tokenizer import tokenizer
    >>> words = tokenizer()
    >>> why_the_prompt_is_off(words, [0, 0, *words.encode("def f")], begin_id=0).cause
    'doubled beginning'
    """
    ids = list(ids)
    if not ids:
        raise ValueError("ids must hold at least one token, got none")
    n_begin = len(list(takewhile(lambda i: i == begin_id, ids)))
    text = tokenizer.decode(ids)
    if n_begin > 1:
        return Finding(
            "doubled beginning", f"The prompt begins {n_begin} times with token {begin_id}."
        )
    if begin_id is not None and n_begin == 0:
        return Finding(
            "missing beginning",
            f"The prompt begins with token {ids[0]}; texts of the training with {begin_id}.",
        )
    if mark := _MARK.search(text):
        n = len(tokenizer.encode(mark[0]))
        return Finding("mark as text", f"{mark[0]} arrived as {n} tokens of text.")
    if text.endswith((" ", "\t")) and not text[:-1].endswith((" ", "\t", "\n")):
        return Finding(
            "blank at the end", f"The prompt ends in {text[-8:]!r}; leave the blank out."
        )
    return Finding(HEALTHY, f"{len(ids)} tokens, a beginning, and no mark as text.")


def why_it_never_stops(
    answer: Generation, tokenizer: Tokenizer, eos_ids: Sequence[int], stop: Sequence[str] = ()
) -> Finding:
    """Say why an answer went on to its last allowed token.

    The model may have said the end and nobody listened. It may have said another end than the
    engine knows: a model has several, and its files name them in more than one place. A stop
    string may stand in the text although nobody stopped. Else the model never said an end.

    Raises: ValueError for an answer without tokens.
    """
    ids = list(answer.ids)
    if not ids:
        raise ValueError("answer must hold at least one token, got none")
    early = [i for i in ids[:-1] if i in eos_ids]
    if early:
        at = ids.index(early[0]) + 1
        return Finding("end ignored", f"Token {at} of {len(ids)} was an end; it went on.")
    limited = answer.finish_reason in ("length", "context")
    unknown = [i for i in ids if tokenizer.token_bytes(i) == b"" and i not in eos_ids]
    if limited and unknown:
        return Finding(
            "end unknown",
            f"Special token {unknown[0]} came at {ids.index(unknown[0]) + 1} of {len(ids)} and is "
            f"none of eos_ids {list(eos_ids)}.",
        )
    text = tokenizer.decode(ids)
    missed = [s for s in stop if s in text] if answer.finish_reason != "stop" else []
    if missed:
        after = len(text) - text.index(missed[0]) - len(missed[0])
        return Finding("stop string missed", f"{missed[0]!r} came, and {after} characters more.")
    if limited:
        return Finding("no end said", f"{len(ids)} tokens hold no end: the limit ended the text.")
    return Finding(HEALTHY, f"It ended by {answer.finish_reason!r} after {len(ids)} tokens.")


def why_json_is_cut_off(answer: Generation, budget: int) -> Finding:
    """Say why an answer is no JSON.

    A limit ends a text wherever it is, also inside a string. A mask allows blanks between all
    parts, and a model that is lost may write nothing else. A stop string may occur inside. And who
    is not held to JSON may write something else.

    Units:  budget: max_tokens, in tokens
    Raises: ValueError for an answer without text.
    """
    if answer.text is None:
        raise ValueError("answer must have a text: hand generate a tokenizer; got None")
    text, n = answer.text, len(answer.ids)
    try:
        json.loads(text)
        return Finding(HEALTHY, f"Valid JSON after {n} of {budget} tokens.")
    except ValueError as error:
        wrong = str(error)
    n_blank = len(text) - len(text.rstrip())
    begun = text.lstrip().startswith(("{", "[")) and "Extra data" not in wrong
    if answer.finish_reason in ("length", "context") and (begun or not text.strip()):
        if 2 * n_blank > len(text):
            return Finding("blanks", f"{n_blank} of {len(text)} characters are blanks at the end.")
        reason = "max_tokens" if answer.finish_reason == "length" else "context"
        return Finding(reason, f"All {n} tokens were used, and the text ends in {text[-12:]!r}.")
    if answer.finish_reason == "stop":
        return Finding("stop string inside", f"A stop string ended it behind {text[-12:]!r}.")
    return Finding("not held to JSON", f"More tokens would not mend it: {wrong}.")


def why_characters_break(
    tokenizer: Tokenizer, ids: Sequence[int], pieces: Sequence[str]
) -> Finding:
    """Say where the � in a stream comes from; `pieces` are what a client was sent for the ids.

    A character may be split between tokens, or between the pieces that a network brings. Decoded
    one by one, both halves are broken. A client may take the bytes for Latin-1. A limit may cut an
    answer inside a character. And a model may write bytes that are no character.
    """
    whole, shown = tokenizer.decode(ids), "".join(pieces)
    mark = "\N{REPLACEMENT CHARACTER}"
    n = shown.count(mark)
    if shown != whole and shown.encode("latin-1", "ignore").decode("utf-8", "ignore") == whole:
        return Finding("read as Latin-1", f"{len(whole)} characters came as {len(shown)}.")
    if n == 0:
        return Finding(HEALTHY, f"{len(shown)} characters, none of them broken.")
    if n > whole.count(mark):
        return Finding(
            "decoded one by one",
            f"The stream has {n} × {mark}, the ids as one text {whole.count(mark)}.",
        )
    if mark not in whole.rstrip(mark):
        return Finding("cut inside a character", f"The last of {len(ids)} tokens are half of one.")
    return Finding(
        "bytes of the model", f"The ids as one text have {whole.count(mark)} × {mark}, too."
    )


def why_the_stop_string_shows(pieces: Sequence[str], text: str, stop: str) -> Finding:
    """Say why a client sees a stop string, or the beginning of one.

    `pieces` are what was streamed, `text` is the whole answer as it counts. Where a stream holds
    nothing back, it has sent the beginning of the stop string before it could know.

    Raises: ValueError for pieces that do not begin with the text.
    """
    shown = "".join(pieces)
    if stop in text:
        return Finding(
            "part of the answer", f"The answer itself holds {stop!r}: it is not cut there."
        )
    if not shown.startswith(text):
        raise ValueError(
            f"pieces must begin with text, {text[-12:]!r} at its end; got {shown[-12:]!r}"
        )
    if shown != text:
        extra = shown[len(text) :]
        return Finding("not held back", f"The stream sent {extra!r} before it knew the end.")
    return Finding(HEALTHY, f"Stream and answer are the same {len(text)} characters.")


def why_foreign_text(
    n_cached: int, earlier: Sequence[int], prompt: Sequence[int], same_adapter: bool = True
) -> Finding:
    """Say whether a prefix cache handed out keys of another text.

    `n_cached` is how many tokens of the prompt were found after `earlier`, and nothing else, had
    been read: on a busy engine any other request may have left them. Keys
    depend on all that stands before them, and on the adapter: at most the common beginning may be
    found, and nothing under another adapter.

    Raises: ValueError for more cached tokens than the prompt has.

    >>> why_foreign_text(16, earlier=[1] * 16 + [2] * 16, prompt=[2] * 16 + [3] * 16).cause
    'key without what stands before'
    """
    if not 0 <= n_cached <= len(prompt):
        raise ValueError(f"n_cached must lie in 0 … {len(prompt)}, got {n_cached}")
    n_common = common_prefix(earlier, prompt)
    if n_cached and not same_adapter:
        return Finding("key without the adapter", f"{n_cached} tokens of another adapter came.")
    if n_cached > n_common:
        return Finding(
            "key without what stands before",
            f"{n_cached} tokens came from the cache, {n_common} are the common beginning.",
        )
    return Finding(HEALTHY, f"{n_cached} tokens came, of {n_common} that both begin with.")


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with in common.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
