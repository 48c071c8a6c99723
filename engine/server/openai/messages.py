"""OpenAI messages as the engine's own."""

from typing import Any

from engine.chat.types import Message, Part, TextPart, ToolCall
from engine.errors import InputFault
from engine.server.attached_text import attached_text
from engine.server.custom_tools import as_arguments
from engine.server.images import decode_data_url
from engine.server.openai.schemas import ChatMessage


def to_messages(messages: list[ChatMessage]) -> list[Message]:
    """Translate, checking what the schema cannot say.

    Raises: InputFault: an empty conversation, unknown parts, or a picture that is not a `data:` URL.
    """
    found = [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    if not any(m.content or m.tool_calls for m in found):
        raise InputFault("messages: every message is empty; say something.", "messages")
    return found


def _message(message: ChatMessage, param: str) -> Message:
    return Message(
        role="tool" if message.role == "function" else message.role,
        content=_content(message.content, f"{param}.content"),
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=tuple(_tool_call(c, f"{param}.tool_calls[{i}]") for i, c in enumerate(message.tool_calls or [])),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _content(content: str | list[dict[str, Any]] | None, param: str) -> str | tuple[Part, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = tuple(_part(p, f"{param}[{i}]") for i, p in enumerate(content))
    if all(isinstance(p, TextPart) for p in parts):
        return "".join(p.text for p in parts if isinstance(p, TextPart))
    return parts


def _part(part: dict[str, Any], param: str) -> Part:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text", "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise InputFault(f"{param}.text must be a string.", f"{param}.text")
        return TextPart(text=text)
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        return decode_data_url(url, f"{param}.image_url")
    if kind == "file":
        return attached_text(part.get("file"), f"{param}.file")
    raise InputFault(f"{param}.type {kind!r} is not supported; use text, image_url or file.", f"{param}.type")


def _tool_call(call: dict[str, Any], param: str) -> ToolCall:
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        name, text = custom.get("name"), custom.get("input")
        if not isinstance(name, str) or not isinstance(text, str):
            raise InputFault(f"{param}.custom needs a name and an input.", f"{param}.custom")
        return ToolCall(id=str(call.get("id", "")), name=name, arguments=as_arguments(text))
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputFault(f"{param}.function.name is missing.", f"{param}.function.name")
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        raise InputFault(f"{param}.function.arguments must be a JSON string.", f"{param}.function.arguments")
    return ToolCall(id=str(call.get("id", "")), name=function["name"], arguments=arguments)
