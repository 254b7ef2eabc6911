"""Requests as they come over HTTP: OpenAI's fields, and vLLM's beside them.

Source: OpenAI, API reference, "Completions" and "Chat"; vLLM, "OpenAI-Compatible Server", extra
parameters
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Fields(BaseModel):
    """A JSON object that holds its fields and no others, each of exactly its type."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class StreamOptions(Fields):
    """What a stream tells beside the text; `continuous_usage_stats` is vLLM's."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class NamedSchema(Fields):
    """A JSON schema with its name."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


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
    """The same as vLLM has it: one of three ways to say it."""

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None


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

    # Taken, and of no effect here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Not supported: their values must say that nothing is wanted.
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _options_of_streams(self) -> "CommonRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options must come with stream true")
        return self


class CompletionRequest(CommonRequest):
    """The body of /v1/completions."""

    prompt: str | TokenIds | Annotated[list[str] | list[TokenIds], Field(min_length=1)] = ""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    best_of: Literal[1] | None = None


class TextPart(Fields):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(Fields):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        """The text of all its parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(CommonRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    @model_validator(mode="after")
    def _top_of_something(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs must come with logprobs true")
        return self
