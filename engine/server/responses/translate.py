"""Converts input items to messages; adjacent assistant items are merged into one message."""

import base64
import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from engine.chat.template_messages import joined_text, last_answer, with_fields
from engine.chat.tools.parser import PARAGRAPH
from engine.chat.types import Message, Part, TextPart, ToolCall
from engine.core.errors import InputFault
from engine.server.custom_tools import as_arguments
from engine.server.file_parts import UnreadablePart, attached_text, decode_data_url, part_or_text
from engine.server.responses.schemas import ADDITIONAL_TOOLS, AGENT_MESSAGE, HOSTED
from engine.server.responses.tools import Toolbox

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "developer"}
_SUMMARIES = ("compaction", "compaction_summary")
# The results of hosted tools are in the text of the response.
_WITHOUT_MESSAGE: Final = HOSTED | {ADDITIONAL_TOOLS}


@dataclass
class _Assistant:
    """Assistant items since the last item of another role."""

    reasoning: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message | None:
        if not (self.reasoning or self.texts or self.calls):
            return None
        return Message(
            role="assistant",
            content=PARAGRAPH.join(self.texts),
            reasoning="\n".join(self.reasoning) or None,
            tool_calls=tuple(self.calls),
        )


def to_messages(items: str | list[dict[str, Any]], box: Toolbox) -> list[Message]:
    """Convert a request's input to messages.

    Raises: InputFault: an invalid item; `param` names it.
    """
    if isinstance(items, str):
        return [Message(role="user", content=items)]
    out: list[Message] = []
    turn = _Assistant()

    def flush() -> None:
        nonlocal turn
        message = turn.message()
        if message is not None:
            out.append(message)
        turn = _Assistant()

    answered = last_answer([_speaker(item) for item in items])
    for index, item in enumerate(items):
        param = f"input[{index}]"
        kind = str(item.get("type") or "message")
        # Items between a call and its result stay in the turn, because results must directly follow their calls.
        if turn.texts and not turn.calls and kind == "reasoning":
            flush()
        if kind == "reasoning":
            turn.reasoning.append(_reasoning(item))
        elif kind in ("function_call", "custom_tool_call"):
            turn.calls.append(_call(item, kind == "custom_tool_call", box, param))
        elif kind in _SUMMARIES or (kind == "message" and item.get("role") == "assistant"):
            turn.texts.append(_assistant_text(item, kind, param))
        elif kind not in _WITHOUT_MESSAGE:
            flush()
            out.append(_other(item, kind, param, is_earlier=index < answered))
    flush()
    return [m for m in out if m.content or m.tool_calls or m.role == "tool"]


def _speaker(item: dict[str, Any]) -> object:
    """The role of an item; calls and reasoning are the assistant's."""
    is_call = item.get("type") in ("function_call", "custom_tool_call", "reasoning")
    return "assistant" if is_call else item.get("role")


def _assistant_text(item: dict[str, Any], kind: str, param: str) -> str:
    """The text of an assistant message, or of the summary that replaces earlier messages."""
    if kind in _SUMMARIES:
        summary = opened(item.get("encrypted_content"), f"{param}.encrypted_content")
        return f"Summary of our conversation so far:\n{summary}"
    content = _content(item.get("content"), f"{param}.content", required=False)
    return content if isinstance(content, str) else "".join(_texts(content))


def _texts(parts: tuple[Part, ...]) -> list[str]:
    return [part.text for part in parts if isinstance(part, TextPart)]


def _other(item: dict[str, Any], kind: str, param: str, *, is_earlier: bool) -> Message:
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        output = output if isinstance(output, str | list) else json.dumps(output)
        content = _content(output, f"{param}.output", required=False)
        return Message(role="tool", content=content, tool_call_id=_text(item, "call_id", param))
    if kind == AGENT_MESSAGE:
        return Message(role="user", content=_agent_message(item))
    role = _ROLES.get(str(item.get("role")))
    if kind != "message" or role is None:
        raise InputFault(f"{param}: an item of type {kind!r} is not understood here.", f"{param}.type")
    content = _content(item.get("content"), f"{param}.content", required=not is_earlier)
    message = Message(role="user", content=content)
    if role == "user":
        return message
    return Message(role="developer" if role == "developer" else "system", content=message.content)


def _agent_message(item: dict[str, Any]) -> str:
    """A message between two agents of a client, without parts that only its writer can decrypt."""
    content = item.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "\n".join([f"Message from {item.get('author')} to {item.get('recipient')}:", *texts]) if texts else ""


def _text(item: dict[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InputFault(f"{param}.{name} must be a string.", f"{param}.{name}")
    return value


def _reasoning(item: dict[str, Any]) -> str:
    parts = item.get("content") or item.get("summary")
    listed = parts if isinstance(parts, list) else ()
    return "\n".join(str(part.get("text") or "") for part in listed if isinstance(part, dict))


def _call(item: dict[str, Any], custom: bool, box: Toolbox, param: str) -> ToolCall:
    namespace = item.get("namespace")
    name = box.flat_name(_text(item, "name", param), namespace if isinstance(namespace, str) else None)
    arguments = as_arguments(_text(item, "input", param)) if custom else _text(item, "arguments", param)
    return ToolCall(id=_text(item, "call_id", param), name=name, arguments=arguments)


def _content(content: object, param: str, *, required: bool) -> str | tuple[Part, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InputFault(f"{param} must be text or a list of parts.", param)
    fields = ((part, f"{param}[{index}]") for index, part in enumerate(content))
    parts = tuple(part_or_text(partial(_part, part, name), name, required=required) for part, name in fields)
    joined = joined_text(parts)
    return parts if joined is None else joined


def _part(part: object, param: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in ("input_text", "output_text", "text", "refusal", "summary_text"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str):
            return with_fields(part, text)
    if isinstance(part, dict) and kind == "input_image":
        return decode_data_url(part.get("image_url"), f"{param}.image_url")
    if isinstance(part, dict) and kind == "input_file":
        return attached_text(part, param)
    raise UnreadablePart(f"{param}: a part of type {kind!r} is not understood here.", param)


# The summary in a `compaction` item. It is encoded, not encrypted, because only the conversation's owner gets it.

_MARK: Final = "tessera-summary-1:"


def sealed(summary: str) -> str:
    """The item's `encrypted_content`."""
    return _MARK + base64.urlsafe_b64encode(summary.encode()).decode()


def opened(content: object, param: str) -> str:
    """The summary of an item. Raises: InputFault: this server did not create it."""
    try:
        if isinstance(content, str) and content.startswith(_MARK):
            return base64.urlsafe_b64decode(content.removeprefix(_MARK)).decode()
    except ValueError:  # not base64, not ASCII or not UTF-8
        pass
    raise InputFault(f"{param} was not made by this server's /v1/responses/compact.", param)
