"""Request bodies of Anthropic's protocol."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from engine.server.body import ANY, Body, ByType

_TEXT: Final = {"type": ANY, "text": ANY}
_SOURCE: Final = {"type": ANY, "media_type": ANY, "data": ANY}
_PLAIN: Final = ByType(
    text=_TEXT,
    image={"type": ANY, "source": _SOURCE},
    document={"type": ANY, "source": _SOURCE, "title": ANY, "context": ANY},
    search_result={"type": ANY, "source": ANY, "title": ANY, "content": _TEXT},
    tool_reference=ANY,
)
# A signature proves to Anthropic's servers who made the block; nobody here needs that proof.
_BLOCK: Final = ByType(
    _PLAIN,
    thinking={"type": ANY, "thinking": ANY, "signature": ANY},
    redacted_thinking={"type": ANY},
    tool_use={"type": ANY, "id": ANY, "name": ANY, "input": ANY},
    tool_result={"type": ANY, "tool_use_id": ANY, "content": _PLAIN, "is_error": ANY},
)


class InputMessage(Body):
    """One turn. `system` inside the conversation is accepted, as current clients send it."""

    shapes: ClassVar = {"content": _BLOCK}

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class Tool(Body):
    """A tool the client runs. Tools that Anthropic's servers run have another `type` and are refused."""

    no_effect: ClassVar = frozenset({"cache_control"})

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
    """Whether the model may reason before it answers, and for how many tokens."""

    no_effect: ClassVar = frozenset({"display"})

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    display: str | None = None


class CountRequest(Body):
    """POST /v1/messages/count_tokens."""

    no_effect: ClassVar = frozenset({"cache_control"})
    shapes: ClassVar = {
        "system": _TEXT,
        "output_config": {"effort": ANY, "format": {"type": ANY, "schema": ANY}},
        "output_format": {"type": ANY, "schema": ANY},
    }

    model: str
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=100_000)]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[Tool], Field(max_length=512)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None

    def ignored(self) -> list[str]:
        """Also an effort without reasoning, which is off unless it is asked for."""
        silent = self.thinking is None or self.thinking.type == "disabled"
        effort = (self.output_config or {}).get("effort")
        return [*super().ignored(), *(["output_config.effort"] if silent and effort is not None else [])]


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    no_effect: ClassVar = CountRequest.no_effect | {"metadata"}

    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    metadata: dict[str, Any] | None = None
