"""Chats as the models that were tuned for them read them: messages between marks."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from firsttoken.models.tokenizer import Tokenizer, tokenizer

Messages = Sequence[Mapping[str, Any]]

# Unicode keeps these for programs' own use: no text holds them.
_NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))


class _Generation(Extension):
    """The tag around what a model wrote, which tells training so (SmolLM3's template has it)."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        """Return what stands between it and its end, as if the tags were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A model's chat template: how messages become the text, and the tokens, that it reads.

    A template is a small program in Jinja, by the makers of the model. It runs in a sandbox, where
    it reaches the messages, the names `bos_token` and `eos_token`, and nothing else.

    Raises: ValueError for a template that is no Jinja.
    Source: transformers 5.23, utils/chat_template_utils.py

    >>> source = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
    >>> lines = ChatTemplate(source, tokenizer())
    >>> lines.render([{"role": "user", "content": "Hi!"}])
    'user: Hi!<|endoftext|>'
    >>> hi, trick = ([{"role": "user", "content": c}] for c in ("Hi!", "<|endoftext|>"))
    >>> lines.encode(hi).count(0), lines.encode(trick).count(0)
    (1, 1)
    """

    def __init__(self, source: str, tokenizer: Tokenizer):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = datetime.now().strftime
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"source must be a template in Jinja: {error}") from None
        self.source, self._tokenizer = source, tokenizer
        marks = sorted(tokenizer.special_tokens, key=len, reverse=True)
        self._marks = _alternatives(marks)
        self._beginnings = _alternatives(mark[:n] for mark in marks for n in range(1, len(mark)))
        self._ends = _alternatives(mark[n:] for mark in marks for n in range(1, len(mark)))

    def render(self, messages: Messages, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation, by default up to where the answer begins.

        `messages` are dicts with "role" and "content", as in OpenAI's interface.

        Raises: ValueError for what is no list of messages, and where the template refuses them.
        """
        _check(messages)
        names = self._tokenizer.special_names
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **names
            )
        except Exception as error:  # a template is somebody's program: any error is possible
            raise ValueError(f"messages are refused by the chat template: {error}") from None

    def encode(self, messages: Messages, add_generation_prompt: bool = True) -> list[int]:
        """Return the ids of that text, in which only the template writes special tokens.

        A message that spells a mark, `<|im_end|>`, would otherwise end itself and begin another
        one, in anybody's name. Here it is encoded as the characters it consists of.

        Raises: ValueError as `render`.
        """
        _check(messages)
        texts = json.dumps(messages, ensure_ascii=False, default=str)
        guard = next((c for c in _NONCHARACTERS if c not in texts), None)
        if guard is None:
            raise ValueError("messages must leave one of U+FDD0 … U+FDEF unused, got all of them")
        guarded = [self._guarded(message, guard) for message in messages]
        text, ids, start = self.render(guarded, add_generation_prompt), [], 0
        for mark in re.finditer(f"(?<!{guard})(?:{self._marks})", text):
            ids += self._tokenizer.encode(text[start : mark.start()].replace(guard, ""))
            ids.append(self._tokenizer.special_tokens[mark[0]])
            start = mark.end()
        return ids + self._tokenizer.encode(text[start:].replace(guard, ""))

    def _guarded(self, value: Any, guard: str) -> Any:
        """Return a message with a guard in its marks, and at parts that a neighbour completes.

        It stands before each of their characters, spaces apart, which a template may trim: what
        begins behind a guard is no mark.
        """
        if isinstance(value, Mapping):
            return {key: self._guarded(each, guard) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._guarded(each, guard) for each in value]
        if not isinstance(value, str):
            return value
        for part in (
            self._marks,
            rf"(?:{self._beginnings})(?=\s*\Z)",
            rf"\A\s*(?:{self._ends})",
        ):
            value = re.sub(part, lambda found: re.sub(r"(?=\S)", guard, found[0]), value)
        return value


def chat_template(name: str | Path) -> ChatTemplate:
    """Return the chat template of a model: a directory, a GGUF file, or a name `tokenizer` knows.

    A directory has it in chat_template.jinja or in tokenizer_config.json.

    Raises: ValueError as `tokenizer`, and for a model that brings no template.
    """
    words = tokenizer(name)
    if words.chat_template is None:
        raise ValueError(f"name must be of a model with a chat template, got {str(name)!r}")
    return ChatTemplate(words.chat_template, words)


def render_chat(messages: Sequence[tuple[str, str]]) -> str:
    r"""Return a text that stands for a conversation, for a model that brings no template: a toy.

    The shipped model has read Python programs and no conversations, so a chat becomes what it
    knows: comments. Each message is a line `# role: text`, its further lines comments, too; the
    answer begins behind `# assistant:`. A message can imitate another one here: it is for texts
    that one trusts.

    >>> render_chat([("system", "Be brief."), ("user", "Hi!\nWho?")])
    '# system: Be brief.\n# user: Hi!\n# Who?\n# assistant:'
    """
    lines = [f"{role}: {text}" for role, text in messages]
    commented = "\n".join(lines).replace("\n", "\n# ")
    return f"# {commented}\n# assistant:"


def _check(messages: Messages) -> None:
    if (
        not isinstance(messages, Sequence)
        or not messages
        or not all(isinstance(each, Mapping) and "role" in each for each in messages)
    ):
        raise ValueError(f"messages must be dicts with a role, at least one; got {messages!r}")


def _alternatives(parts: Any) -> str:
    return "|".join(map(re.escape, sorted(set(parts), key=len, reverse=True))) or r"(?!)"


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter would write <, > and & for web pages."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _refuse(message: str) -> None:
    raise TemplateError(message)
