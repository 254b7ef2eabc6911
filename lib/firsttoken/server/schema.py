"""Requests as they come over HTTP: OpenAI's fields, and vLLM's beside them.

A field is *supported*, *refused* or *ignored*. Supported fields are declared below. Those listed in
`refused` would change the answer: a request that has one is an error, unless its value changes
nothing. All others are ignored, as vLLM ignores what it does not know; the server's log names them.

Source: OpenAI, API reference, "Completions" and "Chat"; vLLM, "OpenAI-Compatible Server", extra
parameters
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Fields(BaseModel):
    """A JSON object whose declared fields have exactly their types; it may have other fields.

    `refused` names other fields that would change the answer, each with the values that change
    nothing; null always is one.
    """

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=()
    )
    refused: ClassVar[Mapping[str, tuple]] = {}

    def others(self, path: str = "") -> Iterator[tuple[str, bool]]:
        """Yield (path, refused?) of each field that has a value and is not declared."""
        for name, value in (self.model_extra or {}).items():
            if value is not None:
                yield path + name, name in self.refused and value not in self.refused[name]
        for name, value in self:
            for i, part in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(part, Fields):
                    nth = f"[{i}]" if isinstance(value, list) else ""
                    yield from part.others(f"{path}{name.rstrip('_')}{nth}.")


class StreamOptions(Fields):
    """What a stream tells beside the text; `continuous_usage_stats` is vLLM's."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class NamedSchema(Fields):
    """A JSON schema with its name."""

    name: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Fields):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema must be given with the type 'json_schema', and only then")
        return self


class StructuredOutputs(Fields):
    """The form of the answer as vLLM names it: one of four fields."""

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    json_object: bool | None = None

    refused = {"grammar": (), "structural_tag": (), "whitespace_pattern": ()}


class CommonRequest(Fields):
    """What completions and chats share."""

    model: str
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Probability | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    # vLLM's.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1)] | None = None
    # This server's own.
    deadline_s: Annotated[float, Field(gt=0)] | None = None

    refused = {
        "logit_bias": ({},),
        "best_of": (1,),
        "use_beam_search": (False,),
        "length_penalty": (1,),
        "min_tokens": (0,),
        "stop_token_ids": ([],),
        "bad_words": ([],),
        "allowed_token_ids": ([],),
        "include_stop_str_in_output": (False,),
        "skip_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "prompt_logprobs": (),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "logits_processors": ([],),
        "guided_grammar": (),
        "structural_tag": (),
        "echo": (False,),
    }

    @model_validator(mode="after")
    def _options_of_streams(self) -> "CommonRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options must come with stream true")
        return self


class CompletionRequest(CommonRequest):
    """The body of /v1/completions."""

    prompt: str | TokenIds | Annotated[list[str] | list[TokenIds], Field(min_length=1)] | None = ""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    refused = CommonRequest.refused | {
        "suffix": ("",),
        "add_special_tokens": (True,),
        "prompt_embeds": (),
    }


class Part(Fields):
    """A part of a message: a text, or a refusal."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _has_its_text(self) -> "Part":
        if getattr(self, self.type) is None:
            raise ValueError(f"{self.type} must be given")
        return self


class Message(Fields):
    """One message of a conversation, as a client writes it or as a server has sent it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part] | None = None
    refusal: str | None = None

    refused = {"tool_calls": ([],), "function_call": (), "tool_call_id": (), "audio": ()}

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.content is None and self.role != "assistant":
            raise ValueError("content must be given")
        return self

    @property
    def text(self) -> str:
        """The text of all its parts."""
        if isinstance(self.content, str):
            return self.content
        parts = [part.text or part.refusal or "" for part in self.content or ()]
        return "".join(parts) or self.refusal or ""


class ChatRequest(CommonRequest):
    """The body of /v1/chat/completions.

    With the `tool_choice` "none" no tool is called, so `tools` are ignored.
    """

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None

    refused = CommonRequest.refused | {
        "modalities": ([], ["text"]),
        "audio": (),
        "web_search_options": (),
        "add_special_tokens": (False,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "documents": ([],),
    }

    @model_validator(mode="after")
    def _top_of_something(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs must come with logprobs true")
        return self

    @model_validator(mode="after")
    def _calls_nothing(self) -> "ChatRequest":
        for offered, choice in (("tools", "tool_choice"), ("functions", "function_call")):
            wanted = getattr(self, choice)
            if wanted not in (None, "none", "auto"):
                raise ValueError(f"{choice} must be 'none' or 'auto': tools are not supported here")
            if getattr(self, offered) and wanted != "none":
                raise ValueError(f"{offered} must be empty, or {choice} 'none': not supported here")
        return self
