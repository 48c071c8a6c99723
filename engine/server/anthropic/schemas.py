"""Request bodies of Anthropic's protocol."""

from typing import Annotated, Any, Literal

from pydantic import Field

from engine.server.body import Body


class InputMessage(Body):
    """One turn. `system` inside the conversation is accepted, as current clients send it."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class Tool(Body):
    """A tool the client runs. Tools that Anthropic's servers run have another `type` and are refused."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class Choice(Body):
    """Whether and which tool must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model may reason before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    display: str | None = None


class CountRequest(Body):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=100_000)]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[Tool], Field(max_length=512)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    metadata: dict[str, Any] | None = None
