"""Turn a client's request into what the engine is asked, or an error that names the field."""

import json
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from firsttoken.architectures import Architecture
from firsttoken.models.chat import ChatTemplate, render_chat
from firsttoken.models.tokenizer import Tokenizer
from firsttoken.sampling import SamplingParams
from firsttoken.sampling.constrained import Json, Language, Regex
from firsttoken.server.errors import ApiError
from firsttoken.server.json_schema import literal, schema_regex
from firsttoken.server.messages import Ask
from firsttoken.server.schema import ChatRequest, CommonRequest, CompletionRequest, StreamOptions

AnyRequest = TypeVar("AnyRequest", bound=CommonRequest)

# The most states that a client's expression may have: more take seconds to make.
_MAX_STATES = 6_000
_N_FORMS_KEPT = 64


def parse(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """Return the body of a request as an object; `ignored` names its fields that nothing reads.

    Raises: ApiError 400 that names a field that is wrong, or refused.

    >>> parse(CompletionRequest, b'{"model": "m", "n": 0}')
    Traceback (most recent call last):
    firsttoken.server.errors.ApiError: n: must be at least 1, got 0
    >>> parse(CompletionRequest, b'{"model": "m", "min_tokens": 3}')
    Traceback (most recent call last):
    firsttoken.server.errors.ApiError: min_tokens: not supported here, and would change the answer
    """
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _field_error(error) from None
    for path, refused in request.others():
        if refused:
            what = "not supported here, and would change the answer"
            raise ApiError(400, f"{path}: {what}", param=path, code="invalid_value")
    return request


def ignored(request: CommonRequest) -> list[str]:
    """Return the paths of the fields of a request that nothing here reads.

    >>> ignored(parse(CompletionRequest, b'{"model": "m", "cache_salt": "x"}'))
    ['cache_salt']
    """
    return [path for path, _ in request.others()]


def _field_error(error: ValidationError) -> ApiError:
    """Return the first of pydantic's errors in words of our own, with the path of its field."""
    found: list[Any] = list(error.errors(include_url=False))
    # Each member of a union has its errors. Those deepest in the value say most; and of these, a
    # wrong type says less than anything else.
    found = [e for e in found if e["loc"][:1] == found[0]["loc"][:1]]
    deepest = max(map(_depth, found))
    found = [e for e in found if _depth(e) == deepest]
    found = [e for e in found if e["type"] not in _TYPES] or found
    first = found[0]
    if first["type"] == "json_invalid":
        what = first["msg"].removeprefix("Invalid JSON: ")
        return ApiError(400, f"the body is no JSON: {what}", code="invalid_json")
    param = _path(first["loc"])
    if first["type"] in _TYPES:
        kinds = dict.fromkeys(_TYPES[e["type"]] for e in found if _path(e["loc"]) == param)
        message = f"must be {' or '.join(kinds)}, got {_shown(first['input'])}"
    else:
        message = _complaint(first)
    if first["type"] == "value_error":  # a rule on several fields names the one at fault first
        word = message.split()[0]
        param, message = f"{param}.{word}".strip("."), message.removeprefix(f"{word} ")
    text = f"{param}: {message}" if param else f"the body {message}"
    return ApiError(400, text, param=param or None, code="invalid_value")


# Kinds of errors that are pydantic's, in words for clients that do not know it.
_TYPES = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_COMPLAINTS = {
    "missing": "must be given",
    "literal_error": "must be {expected}, got {got}",
    "greater_than": "must be above {gt}, got {got}",
    "greater_than_equal": "must be at least {ge}, got {got}",
    "less_than": "must be below {lt}, got {got}",
    "less_than_equal": "must be at most {le}, got {got}",
    "finite_number": "must be a finite number",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} in it, got {actual_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "value_error": "{error}",
}


def _complaint(error: Any) -> str:
    form = _COMPLAINTS.get(error["type"], "has a value that cannot be read: {got}")
    return form.format(**{**error.get("ctx", {}), "got": _shown(error["input"])})


def _shown(value: object) -> str:
    """Return the beginning of a value as JSON."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _path(loc: Sequence[str | int]) -> str:
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part != "str":  # others are names of a union's members
            path += f".{part}" if path else part
    return path


def _depth(error: Any) -> int:
    return sum(isinstance(part, int) for part in error["loc"])


@dataclass(frozen=True)
class Job:
    """A request as the server works on it: what the engine is asked, and how to answer."""

    asks: list[Ask]
    model: str
    stream: bool
    options: StreamOptions
    logprobs: int | None  # alternatives sent with each token; None: no log-probabilities


class _Form(NamedTuple):
    """The language that an answer must belong to, pickled, and how many tokens suffice for one."""

    pickled: bytes
    min_tokens: int


class Translator:
    """Turns requests into jobs, for one architecture, its tokenizer and its adapters.

    `n_places` is how many tokens the engine's cache has room for, `max_answers` how many one
    request may ask for.
    """

    def __init__(
        self,
        arch: Architecture,
        tokenizer: Tokenizer,
        name: str,
        adapters: Sequence[str],
        n_places: int,
        max_answers: int,
    ):
        self._tokenizer = tokenizer
        template = tokenizer.chat_template
        self._template = None if template is None else ChatTemplate(template, tokenizer)
        self.name, self.adapters, self._max_answers = name, tuple(adapters), max_answers
        self._vocab_size = min(arch.vocab_size, tokenizer.vocab_size)
        # One token more than the cache holds: the last one is chosen, but never read.
        self.max_length = min(arch.max_context or n_places + 1, n_places + 1)
        tokens = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
        self._longest_token = max(map(len, tokens))
        self._forms: OrderedDict[tuple[str, str], _Form] = OrderedDict()

    def completion(self, request: CompletionRequest) -> Job:
        """Return the job of a completion.

        A text becomes a document of its own, behind `Tokenizer.start_ids`; ids stay as they are.
        """
        prompt = request.prompt if request.prompt is not None else ""
        if isinstance(prompt, str):
            prompts = [self._encode(prompt, "prompt")]
        elif isinstance(prompt[0], int):
            prompts = [self._ids(prompt, "prompt")]
        else:
            prompts = [
                self._encode(p, f"prompt[{i}]")
                if isinstance(p, str)
                else self._ids(p, f"prompt[{i}]")
                for i, p in enumerate(prompt)
            ]
        wanted = request.max_tokens or 16
        return self._job(request, prompts, "prompt", "max_tokens", wanted, request.logprobs)

    def chat(self, request: ChatRequest) -> Job:
        """Return the job of a chat: the answer may fill the context unless the client says less.

        The messages become the text of the model's own chat template; for a model that has none,
        of `render_chat`.

        Where the client's limit exceeds the rest of the context, that rest is the limit: an answer
        that fills it ends with "length". For a completion this is an error, as at OpenAI.
        """
        said = [(message.role, message.text) for message in request.messages]
        if self._template is None:
            prompt = self._encode(render_chat(said), "messages")
        else:
            self._check_length("".join(text for _, text in said), "messages")
            try:
                ids = self._template.encode([{"role": r, "content": text} for r, text in said])
            except ValueError as error:
                raise ApiError(400, str(error), param="messages", code="invalid_value") from None
            prompt = self._fitting(ids, "messages")
        field = "max_completion_tokens" if request.max_completion_tokens else "max_tokens"
        room = self.max_length - len(prompt)
        wanted = min(getattr(request, field) or room, room)
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        return self._job(request, [prompt], "messages", field, wanted, logprobs)

    def has_form(self, request: CommonRequest) -> bool:
        """Say whether a request asks for a form of its answer: that may take time to make."""
        return next(_forms(request), None) is not None

    def _check_length(self, text: str, field: str) -> None:
        # No token has more bytes than the longest: what is far too long is not even tokenized.
        least = len(text.encode()) // self._longest_token
        if least >= self.max_length:
            raise self._too_long(field, f"at least {least}")

    def _encode(self, text: str, field: str) -> list[int]:
        self._check_length(text, field)
        ids = [*self._tokenizer.start_ids, *self._tokenizer.encode(text)]
        if not ids:
            raise ApiError(
                400, f"{field}: must not be empty: this model's texts begin with no token of their "
                "own", param=field, code="invalid_value",
            )  # fmt: skip
        return self._fitting(ids, field)

    def _ids(self, ids: Sequence[Any], field: str) -> list[int]:
        if max(ids) >= self._vocab_size:
            raise ApiError(
                400,
                f"{field}: token ids must lie in 0 … {self._vocab_size - 1}, got {max(ids)}",
                param=field,
            )
        return self._fitting(list(ids), field)

    def _fitting(self, ids: list[int], field: str) -> list[int]:
        if len(ids) >= self.max_length:
            raise self._too_long(field, str(len(ids)))
        return ids

    def _too_long(self, field: str, n: str) -> ApiError:
        return ApiError(
            400,
            f"{field} has {n} tokens, expected fewer than the {self.max_length} that prompt and "
            "answer may have together",
            param=field,
            code="context_length_exceeded",
        )

    def _job(
        self,
        request: CommonRequest,
        prompts: Sequence[list[int]],
        prompt_field: str,
        tokens_field: str,
        max_tokens: int,
        logprobs: int | None,
    ) -> Job:
        n = request.n or 1
        if n * len(prompts) > self._max_answers:
            raise ApiError(
                400,
                f"n {n} for {len(prompts)} prompts: one request may ask for at most "
                f"{self._max_answers} answers",
                param="n" if n > 1 else prompt_field,
            )
        longest = max(map(len, prompts))
        if longest + max_tokens > self.max_length:
            raise ApiError(
                400,
                f"{tokens_field} {max_tokens} and a prompt of {longest} tokens are more than the "
                f"{self.max_length} tokens that prompt and answer may have together",
                param=tokens_field,
                code="context_length_exceeded",
            )
        form = self._form(request)
        if form is not None and request.ignore_eos:
            raise ApiError(
                400, "ignore_eos: an answer of a given form must end", param="ignore_eos"
            )
        if form is not None and form.min_tokens > max_tokens:
            raise ApiError(
                400,
                f"{tokens_field} {max_tokens}: an answer of this form may need "
                f"{form.min_tokens} tokens",
                param=tokens_field,
            )
        params = SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_k=max(request.top_k or 0, 0),
            top_p=1.0 if request.top_p is None else request.top_p,
            min_p=request.min_p or 0.0,
            repetition_penalty=request.repetition_penalty or 1.0,
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            max_tokens=max_tokens,
            stop=request.stop or (),  # type: ignore[arg-type]
            seed=request.seed,
        )
        asks = [
            Ask(
                prompt,
                params,
                n,
                bool(request.ignore_eos),
                None if form is None else form.pickled,
                self._adapter(request.model),
                request.priority or 0,
                request.deadline_s,
                logprobs,
                bool(request.stream),
            )
            for prompt in prompts
        ]
        options = request.stream_options or StreamOptions()
        return Job(asks, request.model, bool(request.stream), options, logprobs)

    def _adapter(self, model: str) -> str | None:
        if model == self.name:
            return None
        if model in self.adapters:
            return model
        raise ApiError(
            404,
            f"there is no model {model!r}; there are: {', '.join((self.name, *self.adapters))}",
            param="model",
            code="model_not_found",
        )

    def _form(self, request: CommonRequest) -> _Form | None:
        wanted = list(_forms(request))
        if not wanted:
            return None
        if len(wanted) > 1:
            raise ApiError(
                400,
                f"{wanted[1][0]}: the form of the answer is given already, by {wanted[0][0]}",
                param=wanted[1][0],
            )
        field, kind, value = wanted[0]
        key = kind, json.dumps(value)
        if key in self._forms:
            self._forms.move_to_end(key)
            return self._forms[key]
        try:
            language = _language(kind, value)
        except ValueError as error:
            raise ApiError(400, f"{field}: {error}", param=field) from None
        # At worst a token for each byte, and the end.
        made = _Form(pickle.dumps(language), language.n_missing(language.start) + 1)
        self._forms[key] = made
        if len(self._forms) > _N_FORMS_KEPT:
            self._forms.popitem(last=False)
        return made


def _forms(request: CommonRequest) -> Iterator[tuple[str, str, Any]]:
    """Yield (field, kind, value) for each form that a request asks for."""
    form = request.response_format
    if form is not None and form.type == "json_object":
        yield "response_format", "object", None
    if form is not None and form.json_schema is not None:
        yield "response_format.json_schema.schema", "json", form.json_schema.json_schema
    ways = request.structured_outputs
    for field, kind, value in (
        ("structured_outputs.json", "json", ways and ways.json_),
        ("structured_outputs.regex", "regex", ways and ways.regex),
        ("structured_outputs.choice", "choice", ways and ways.choice),
        ("structured_outputs.json_object", "object", (ways and ways.json_object) or None),
        ("guided_json", "json", request.guided_json),
        ("guided_regex", "regex", request.guided_regex),
        ("guided_choice", "choice", request.guided_choice),
    ):
        if value is not None:
            yield field, kind, value


def _language(kind: str, value: Any) -> Language:
    if kind == "object":
        return Json(root="object", max_spaces=1)
    if kind == "json":
        return Regex(schema_regex(value), _MAX_STATES)
    if kind == "choice":
        return Regex("|".join(map(literal, value)), _MAX_STATES)
    return Regex(value, _MAX_STATES)
