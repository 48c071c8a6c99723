"""The common form of a chat request in all protocols: a conversation, and the requested response."""

import re
from typing import Any, Final

import msgspec

from engine.chat.types import Message, NamedTool, ToolChoice, ToolDefinition
from engine.core.errors import InputFault
from engine.core.sampling import Source
from engine.core.types import Constraint, Priority


class ChatQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to respond to, as every protocol passes it on.

    `output` constrains the visible response (created by `structured.of_schema` or `of_grammar`); the `_param`
    fields are the client's parameter names for errors. `template` replaces the model's: `chatml` for the built-in
    one, or Jinja text, which is as untrusted as a file's. `thinking` None leaves reasoning to the template's
    default; after `reasoning_budget` tokens reasoning is closed and the response continues. `continue_final`: the
    last message is the start of the response. Without `add_generation_prompt` the prompt ends before the response
    would start, for clients that only inspect it.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    output: Constraint | None = None
    output_param: str = "response_format"
    tools_param: str = "tools"
    thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    template: str | None = None
    template_variables: dict[str, Any] = {}
    continue_final: bool = False
    add_generation_prompt: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: dict[str, Any] = {}
    sampling_source: Source = "request"
    logprobs: int | None = None
    priority: Priority = "interactive"
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    speculate: bool | None = None
    context_shift: bool = False
    loop_guard: bool = False
    deterministic: bool = False
    lora: tuple[tuple[str, float], ...] = ()


# Call names that break no grammar or template; OpenAI allows 64 of [A-Za-z0-9_-].
_NAME: Final = re.compile(r"[^\s\"'<>{}\[\]()\\]{1,128}")


def check_tools(query: ChatQuery) -> None:
    """Check for valid names, no duplicates, and a choice that names one of them.

    Raises: InputFault: naming the field.
    """
    names = [tool.name for tool in query.tools]
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise InputFault(f"{query.tools_param}[{index}]: {name!r} cannot be a tool's name.", query.tools_param)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputFault(f"{query.tools_param}: {twice!r} is defined twice.", query.tools_param)
    if isinstance(query.tool_choice, NamedTool) and query.tool_choice.name not in names:
        raise InputFault(f"tool_choice names {query.tool_choice.name!r}, which is not in tools.", "tool_choice")
    if query.tool_choice == "required" and not names:
        raise InputFault("tool_choice is required, but there are no tools.", "tool_choice")
