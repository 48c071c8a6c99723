"""Messages in the shape a template expects: dictionaries as transformers makes them, bent to its traits."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.chat.builtin import MEDIA_MARKER, tool_prompt
from engine.chat.types import ImagePart, Message, TemplateTraits, ToolCall, ToolDefinition

Dict = dict[str, Any]


def flatten(content: str | tuple[Any, ...]) -> str:
    """One text, with a media marker in the place of each picture."""
    if isinstance(content, str):
        return content
    return "".join(MEDIA_MARKER if isinstance(part, ImagePart) else part.text for part in content)


def images(messages: Sequence[Message]) -> tuple[ImagePart, ...]:
    """All pictures, in order."""
    return tuple(
        part
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, ImagePart)
    )


def _arguments(call: ToolCall, traits: TemplateTraits) -> Any:
    """The arguments as an object where the template wants one and they are one; else the text."""
    if traits.arguments_as_text:
        return call.arguments
    try:
        value = json.loads(call.arguments or "{}")
    except ValueError:
        return {"arguments": call.arguments}
    return value if isinstance(value, dict) else {"arguments": value}


def _call_text(call: ToolCall) -> str:
    """A call as the built-in tool prompt teaches it."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    body = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def without_tool_roles(messages: Sequence[Message], tools: tuple[ToolDefinition, ...]) -> list[Message]:
    """Say tools, calls and results in plain text, for a template that knows none of them."""
    out: list[Message] = []
    if tools:
        out.append(Message(role="system", content=tool_prompt(tools)))
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{flatten(message.content)}\n</tool_response>"
            if out and out[-1].role == "user" and out[-1].text().startswith("<tool_response>"):
                out[-1] = Message(role="user", content=f"{out[-1].text()}\n{text}")
            else:
                out.append(Message(role="user", content=text))
        elif message.tool_calls:
            calls = "\n".join(_call_text(call) for call in message.tool_calls)
            text = "\n".join(filter(None, (flatten(message.content), calls)))
            out.append(msgspec.structs.replace(message, content=text, tool_calls=()))
        else:
            out.append(message)
    if tools and len(out) > 1 and out[1].role in {"system", "developer"}:
        out[:2] = [Message(role="system", content=f"{flatten(out[1].content)}\n\n{out[0].text()}")]
    return out


def hoist_system(messages: Sequence[Message]) -> list[Message]:
    """Every system and developer message joined into one at the start, for templates that want one there."""
    system = [flatten(m.content) for m in messages if m.role in {"system", "developer"}]
    rest = [m for m in messages if m.role not in {"system", "developer"}]
    return [Message(role="system", content="\n\n".join(system)), *rest] if system else rest


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The system text put before the first user message, for templates without a system role."""
    hoisted = hoist_system(messages)
    if not hoisted or hoisted[0].role != "system":
        return hoisted
    system, rest = hoisted[0], hoisted[1:]
    for index, message in enumerate(rest):
        if message.role == "user":
            rest[index] = _prefixed(message, f"{flatten(system.content)}\n\n")
            return rest
    return [Message(role="user", content=system.content), *rest]


def _prefixed(message: Message, prefix: str) -> Message:
    if isinstance(message.content, str):
        return msgspec.structs.replace(message, content=prefix + message.content)
    first, *more = message.content
    if isinstance(first, ImagePart):
        return msgspec.structs.replace(message, content=prefix + flatten(message.content))
    return msgspec.structs.replace(
        message, content=(msgspec.structs.replace(first, text=prefix + first.text), *more)
    )


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring messages of one role joined, for templates that insist on alternation."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else None
        if last and last.role == message.role and message.role in {"user", "assistant"}:
            text = "\n\n".join(filter(None, (flatten(last.content), flatten(message.content))))
            out[-1] = msgspec.structs.replace(last, content=text, tool_calls=last.tool_calls + message.tool_calls)
        else:
            out.append(message)
    return out


def as_dicts(messages: Sequence[Message], traits: TemplateTraits, source: str) -> list[Dict]:
    """Messages as a template's variable `messages`.

    Assistant messages carry their reasoning under each name that templates read (`reasoning_content` is
    the common one); a call's id, name and arguments are where OpenAI puts them.
    """
    out: list[Dict] = []
    names = {call.id: call.name for m in messages for call in m.tool_calls}
    thinking_blocks = "'thinking'" in source and "block['type']" in source
    for message in messages:
        role = message.role
        if role == "developer" and "developer" not in source:
            role = "system"
        text = flatten(message.content)
        item: Dict = {"role": role, "content": text}
        if traits.typed_content:
            item["content"] = [{"type": "text", "text": text}]
        if message.reasoning:
            item["reasoning_content"] = message.reasoning
            item["reasoning"] = message.reasoning
            item["thinking"] = message.reasoning
            if thinking_blocks:
                blocks = [{"type": "thinking", "thinking": message.reasoning}]
                item["content"] = [*blocks, {"type": "text", "text": text}] if text else blocks
        if message.tool_calls:
            item["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call, traits)},
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            item["tool_call_id"] = message.tool_call_id or ""
            item["name"] = message.name or names.get(message.tool_call_id or "", "")
        elif message.name:
            item["name"] = message.name
        out.append(item)
    return out
