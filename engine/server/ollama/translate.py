"""Ollama's requests as the engine's own conversation."""

import base64
import binascii
import json
from typing import Any

from engine.chat import structured
from engine.chat.chat_pipeline import is_begun
from engine.chat.query import ChatQuery
from engine.chat.types import ImagePart, Message, Part, TextPart, ToolCall, ToolDefinition
from engine.core.errors import InputFault
from engine.core.types import Constraint
from engine.server.images import MAX_IMAGE_BYTES
from engine.server.ollama.schemas import ChatBody, ChatMessage, GenerateBody, Running


def chat_query(body: ChatBody) -> ChatQuery:
    """The turn that a chat request asks for. Raises: InputFault: a message or tool that is not understood."""
    messages: list[Message] = []
    for index, message in enumerate(body.messages):
        messages.append(_message(message, messages, f"messages[{index}]"))
    if not any(m.content or m.tool_calls for m in messages):
        raise InputFault("messages: every message is empty; say something.", "messages")
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ()))
    return _query(body, messages, tools)


def generate_query(body: GenerateBody) -> ChatQuery:
    """The turn that a generate request asks for, when the chat template is to be used."""
    messages = [Message(role="system", content=body.system)] if body.system else []
    messages.append(Message(role="user", content=_content(body.prompt, body.images, "images")))
    return _query(body, messages, ())


def _query(body: Running, messages: list[Message], tools: tuple[ToolDefinition, ...]) -> ChatQuery:
    options = body.settings
    return ChatQuery(
        messages=tuple(messages),
        tools=tools,
        output=output(body.format),
        output_param="format",
        thinking=body.think if isinstance(body.think, bool) else (None if body.think is None else True),
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        continue_final=is_begun(messages),
        max_tokens=options.max_tokens,
        stop=options.stops(),
        sampling=options.sampling(),
        sampling_source="ollama",
    )


def output(wanted: str | dict[str, Any] | None) -> Constraint | None:
    """`json`, a JSON schema, or nothing. Raises: InputFault, ConstraintImpossible."""
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return structured.of_schema({}, "format")
    if isinstance(wanted, str):
        raise InputFault(f'format {wanted!r} is not known; use "json" or a JSON schema.', "format")
    return structured.of_schema(wanted, "format", strict=False)


def _message(message: ChatMessage, earlier: list[Message], param: str) -> Message:
    calls = tuple(_call(c, i, param) for i, c in enumerate(message.tool_calls or ()))
    call_id, name = message.tool_call_id, message.tool_name or message.name
    if message.role == "tool" and call_id is None:
        call_id = _call_of(earlier, name)
    return Message(
        role=message.role,
        content=_content(message.content or "", message.images, f"{param}.images"),
        reasoning=message.thinking,
        tool_calls=calls,
        tool_call_id=call_id,
        name=name,
    )


def _call_of(earlier: list[Message], name: str | None) -> str | None:
    """The call that a result answers: Ollama's clients name the tool, or count on the order."""
    asked = next((m for m in reversed(earlier) if m.tool_calls), None)
    if asked is None:
        return None
    answered = {m.tool_call_id for m in earlier if m.role == "tool"}
    waiting = [c for c in asked.tool_calls if c.id not in answered]
    named = [c for c in waiting if c.name == name]
    return (named or waiting or list(asked.tool_calls))[0].id


def _content(text: str, images: list[str] | None, param: str) -> str | tuple[Part, ...]:
    if not images:
        return text
    parts: list[Part] = [_image(image, f"{param}[{i}]") for i, image in enumerate(images)]
    return (*parts, TextPart(text=text))


def _image(data: str, param: str) -> ImagePart:
    if len(data) > MAX_IMAGE_BYTES * 4 // 3:
        raise InputFault(f"{param} is larger than {MAX_IMAGE_BYTES} bytes.", param)
    try:
        return ImagePart(data=base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError) as error:
        raise InputFault(f"{param} is not valid base64: {error}.", param) from None


def _call(call: dict[str, Any], index: int, param: str) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputFault(f"{param}.tool_calls[{index}].function.name is missing.", f"{param}.tool_calls[{index}]")
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    identity = f"call_{param}_{index}".replace("[", "").replace("]", "")
    return ToolCall(id=str(call.get("id") or identity), name=function["name"], arguments=text)


def _tool(tool: dict[str, Any], param: str) -> ToolDefinition:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputFault(f"{param}.function.name is missing.", f"{param}.function.name")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise InputFault(f"{param}.function.parameters must be a JSON schema.", f"{param}.function.parameters")
    return ToolDefinition(
        name=function["name"], description=str(function.get("description") or ""), parameters=parameters
    )
