"""Request body of POST /v1/responses."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from engine.core.errors import InputFault
from engine.server.body import ANY, Body, ByType, Metadata
from engine.server.openai.schemas import Reasoning, SamplerFields

# Items of hosted tools, from sessions that started on another server.
HOSTED: Final = frozenset(
    f"{tool}_call{end}"
    for tool in (
        "file_search",
        "web_search",
        "image_generation",
        "code_interpreter",
        "computer",
        "local_shell",
        "shell",
        "apply_patch",
        "program",
    )
    for end in ("", "_output")
) | {
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
}
# Tools that Codex sends as an item of the input, and messages between its agents.
ADDITIONAL_TOOLS: Final = "additional_tools"
AGENT_MESSAGE: Final = "agent_message"
# Accepted fields without effect on this server; they are reported, not refused.
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
# Unsupported fields that are refused, because ignoring them would give a different kind of response.
NOT_POSSIBLE: Final = {
    "prompt": "there are no stored prompts here",
    "image": "Tessera does not generate images",
    "access_programs": "there are none here",
    "background_options": "there are none here",
}


# Response fields that clients send back (ids, states, annotations); the conversation does not need them.
_SENT_BACK: Final = dict.fromkeys(("id", "type", "status", "phase"), ANY)
_PART: Final = ByType(
    {
        "": {"type": ANY, "text": ANY, "refusal": ANY, "annotations": ANY, "logprobs": ANY},
        "input_image": {"type": ANY, "image_url": ANY},
        "input_file": {"type": ANY, "filename": ANY, "file_data": ANY},
    }
)
_CALL: Final = {**_SENT_BACK, "call_id": ANY, "name": ANY, "arguments": ANY, "input": ANY, "namespace": ANY}
_RESULT: Final = {**_SENT_BACK, "call_id": ANY, "output": _PART}
_SUMMARY: Final = {**_SENT_BACK, "encrypted_content": ANY}
_FUNCTION: Final = dict.fromkeys(("type", "name", "description", "parameters", "strict"), ANY)
_CUSTOM: Final = {
    "type": ANY,
    "name": ANY,
    "description": ANY,
    "format": {"type": ANY, "syntax": ANY, "definition": ANY},
}
_TOOL: Final = ByType(
    function=_FUNCTION,
    custom=_CUSTOM,
    namespace={"type": ANY, "name": ANY, "tools": ByType({"": _FUNCTION, "custom": _CUSTOM})},
)
ITEM: Final = ByType(
    {
        "": {**_SENT_BACK, "role": ANY, "content": _PART},
        "reasoning": {**_SENT_BACK, "content": _PART, "summary": ANY, "encrypted_content": ANY},
        "file_search_call": {**_SENT_BACK, "queries": ANY, "results": ANY},
        AGENT_MESSAGE: {**_SENT_BACK, "author": ANY, "recipient": ANY, "content": {"type": ANY, "text": ANY}},
        **dict.fromkeys(("compaction", "compaction_summary"), _SUMMARY),
        **dict.fromkeys(("function_call", "custom_tool_call"), _CALL),
        **dict.fromkeys(("function_call_output", "custom_tool_call_output"), _RESULT),
    }
)
# Items of a conversation that can bring tools.
ITEM_OR_TOOLS: Final = ByType(ITEM, **{ADDITIONAL_TOOLS: {**_SENT_BACK, "tools": _TOOL}})
_CHOSEN: Final = {"type": ANY, "name": ANY}
_FORMAT: Final = ByType(
    {"": {"type": ANY}, "json_schema": dict.fromkeys(("type", "name", "schema", "strict"), ANY)}
)
# Values of `include`. Most have no effect: reasoning is always sent unencrypted.
INCLUDES: Final = frozenset(
    {
        "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results",
        "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
        "message.input_image.image_url", "message.output_text.logprobs",
    }
)  # fmt: skip


class ConversationName(Body):
    """A conversation by its id."""

    id: str


class ResponsesRequest(SamplerFields):
    """POST /v1/responses."""

    no_effect: ClassVar[frozenset[str]] = frozenset(WITHOUT_EFFECT)
    shapes: ClassVar[Mapping[str, Any]] = {
        "input": ITEM_OR_TOOLS,
        "tools": _TOOL,
        "tool_choice": {**dict.fromkeys(("type", "mode", "name", "namespace"), ANY), "tools": _CHOSEN},
        "text": {"format": _FORMAT},
        "stream_options": {"include_obfuscation": ANY},
    }

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(max_length=100_000)] | None = None
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=512)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    include: Annotated[list[str], Field(max_length=32)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that the request continues."""
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation

    def refuse_impossible(self) -> None:
        """Raises: InputFault: a field requests something that is not supported."""
        extra = self.model_extra or {}
        for name, reason in NOT_POSSIBLE.items():
            if extra.get(name):
                raise InputFault(f"{name} is not supported: {reason}.", name)
        if self.conversation is not None and self.previous_response_id is not None:
            raise InputFault("conversation and previous_response_id cannot be combined.", "conversation")
        if self.background and self.store is False:
            raise InputFault(
                "background needs store: an answer that is not stored cannot be fetched later.", "background"
            )
        unknown = [name for name in self.include or () if name not in INCLUDES]
        if unknown:
            raise InputFault(f"include: {unknown[0]!r} is not known.", "include")

    def labels(self) -> dict[str, Any]:
        """A client's own names for its requests. They have no effect here, and the response repeats them."""
        extra = self.model_extra or {}
        return {name: extra.get(name) for name in ("prompt_cache_key", "safety_identifier", "user")}

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of requested alternatives per token; None: no log probabilities."""
        included = "message.output_text.logprobs" in (self.include or ())
        return (self.top_logprobs or 0) if included or self.top_logprobs else None

    def ignored(self) -> list[str]:
        """Also lists stream options without effect, `truncation` and items of hosted tools."""
        names = super().ignored()
        if self.truncation == "auto":  # prompts are never truncated: one that does not fit is an error
            names.append("truncation")
        if self.stream_options and (not self.stream or self.stream_options.get("include_obfuscation")):
            names.append("stream_options")
        if isinstance(self.input, list):
            kinds = enumerate(str(item.get("type")) for item in self.input)
            names += [f"input[{i}]" for i, kind in kinds if kind in HOSTED and kind != "file_search_call"]
        return names
