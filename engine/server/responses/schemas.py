"""Request body of POST /v1/responses."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from engine.errors import InputFault
from engine.server.body import Body

# Fields that are understood and have nothing to act on here; they are reported, not refused.
WITHOUT_EFFECT: Final = (
    "context_management",
    "max_tool_calls",
    "moderation",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
# Fields that ask for something this server does not do; going on without it would be another answer.
NOT_POSSIBLE: Final = {
    "background": "this server answers while the client is connected",
    "conversation": "conversations are kept by the client, or with previous_response_id",
    "prompt": "there are no stored prompts here",
    "image": "no pictures are made here",
    "access_programs": "there are none here",
    "background_options": "this server answers while the client is connected",
}


class ResponsesRequest(Body):
    """POST /v1/responses."""

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(max_length=100_000)] | None = None
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=512)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    include: Annotated[list[str], Field(max_length=32)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None

    def refuse_impossible(self) -> None:
        """Raises: InputFault: a field asks for what is not done here."""
        extra = self.model_extra or {}
        for name, reason in NOT_POSSIBLE.items():
            if extra.get(name):
                raise InputFault(f"{name} is not supported: {reason}.", name)
        if self.top_logprobs or "message.output_text.logprobs" in (self.include or ()):
            param = "top_logprobs" if self.top_logprobs else "include"
            raise InputFault("Log probabilities are not supported here; use /v1/chat/completions.", param)

    def without_effect(self) -> list[str]:
        """Names of fields that do not change the answer."""
        found = self.ignored()
        if self.truncation == "auto":  # nothing is ever cut: a prompt that does not fit is an error
            found.append("truncation")
        if (self.text or {}).get("verbosity") is not None:
            found.append("text.verbosity")
        if (self.reasoning or {}).get("summary") is not None:
            found.append("reasoning.summary")
        return found
