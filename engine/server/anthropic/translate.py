"""Anthropic's requests as the engine's own conversation."""

import base64
import binascii
import json
import re
from typing import Any, Final

import msgspec

from engine.chat import structured
from engine.chat.chat_pipeline import is_begun
from engine.chat.query import ChatQuery
from engine.chat.types import ImagePart, Message, NamedTool, Part, TextPart, ToolCall, ToolChoice, ToolDefinition
from engine.core.errors import InputFault
from engine.core.types import Constraint
from engine.server.anthropic.schemas import Choice, CountRequest, InputMessage, MessagesRequest, Tool
from engine.server.anthropic_tools import SERVER_TOOLS, client_tool
from engine.server.images import MAX_IMAGE_BYTES

# Claude Code writes a hash that changes with every request at the very start of the system prompt; left there
# no prefix would ever be found in the cache.
_BILLING: Final = re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE)


def to_query(body: CountRequest) -> ChatQuery:
    """The turn that a request asks for.

    Raises: InputFault: a block, tool or field that cannot be honoured.
    """
    messages = _system(body.system)
    for index, message in enumerate(body.messages):
        messages.extend(_messages(message, f"messages[{index}]"))
    if not any(m.content or m.tool_calls for m in messages):
        raise InputFault("messages: every message is empty; say something.", "messages")
    effort = (body.output_config or {}).get("effort")
    form, param = _form(body)
    query = ChatQuery(
        messages=tuple(messages),
        tools=tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())),
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        output=form,
        output_param=param,
        thinking=body.thinking is not None and body.thinking.type != "disabled",
        reasoning_effort=effort if isinstance(effort, str) else None,
        reasoning_budget=body.thinking.budget_tokens if body.thinking and body.thinking.type == "enabled" else None,
        continue_final=is_begun(messages),
    )
    if not isinstance(body, MessagesRequest):
        return query
    given = {k: v for k in ("temperature", "top_p", "top_k") if (v := getattr(body, k)) is not None}
    return msgspec.structs.replace(
        query,
        sampling=given,
        max_tokens=body.max_tokens,
        stop=tuple(s for s in body.stop_sequences or () if s),
    )


def _form(body: CountRequest) -> tuple[Constraint | None, str]:
    config, param = (body.output_config or {}).get("format"), "output_config.format"
    if config is None:
        config, param = body.output_format, "output_format"
    if config is None:
        return None, param
    if not isinstance(config, dict) or config.get("type") != "json_schema":
        raise InputFault(f'{param}.type must be "json_schema".', f"{param}.type")
    return structured.of_schema(config.get("schema"), f"{param}.schema", strict=False), f"{param}.schema"


def neutral(text: str) -> str:
    """The system text without the header that changes with every request."""
    return _BILLING.sub("", text)


def _system(system: str | list[dict[str, Any]] | None) -> list[Message]:
    if system is None:
        return []
    if isinstance(system, list):
        texts = [_text(block, f"system[{i}]") for i, block in enumerate(system)]
        system = "\n\n".join(filter(None, map(neutral, texts)))
    system = neutral(system)
    return [Message(role="system", content=system)] if system else []


def _text(block: dict[str, Any], param: str) -> str:
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise InputFault(f"{param} must be a text block.", param)
    return str(block["text"])


def _messages(message: InputMessage, param: str) -> list[Message]:
    """One of theirs is one or several of ours: tool results are messages of their own."""
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        text = neutral(message.content) if role == "system" else message.content
        return [Message(role=role, content=text)] if text else []
    if role == "assistant":
        return [_assistant(message.content, param)]
    out: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(message.content):
        where = f"{param}.content[{index}]"
        if block.get("type") == "tool_result":
            if parts:
                out.append(Message(role=role, content=_joined(parts)))
                parts = []
            out.append(_result(block, where))
        else:
            parts.extend(_parts(block, where))
    if parts:
        out.append(Message(role=role, content=_joined(parts)))
    return out


def _joined(parts: list[Part]) -> str | tuple[Part, ...]:
    if all(isinstance(p, TextPart) for p in parts):
        return "\n\n".join(p.text for p in parts if isinstance(p, TextPart))
    return tuple(parts)


def _parts(block: dict[str, Any], param: str) -> list[Part]:
    kind = block.get("type")
    if kind == "text":
        return [TextPart(text=_text(block, param))]
    if kind == "image":
        return [_image(block.get("source"), f"{param}.source")]
    if kind == "document":
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
            heads = [str(block[name]) for name in ("title", "context") if block.get(name)]
            return [TextPart(text="\n\n".join([*heads, source["data"]]))]
        raise InputFault(f"{param}: only documents of plain text are supported.", f"{param}.source")
    if kind == "search_result":
        head = ", ".join(str(block[name]) for name in ("title", "source") if block.get(name))
        texts = [_text(b, f"{param}.content[{i}]") for i, b in enumerate(block.get("content") or ())]
        return [TextPart(text=text) for text in ([head] if head else []) + texts]
    raise InputFault(f"{param}.type {kind!r} is not supported.", f"{param}.type")


def _image(source: object, param: str) -> ImagePart:
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise InputFault(f"{param}: only base64 images are accepted; the server opens no addresses.", param)
    data = source.get("data")
    if not isinstance(data, str) or len(data) > MAX_IMAGE_BYTES * 4 // 3:
        raise InputFault(f"{param}.data must be base64 of at most {MAX_IMAGE_BYTES} bytes.", f"{param}.data")
    try:
        decoded = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise InputFault(f"{param}.data is not valid base64: {error}.", f"{param}.data") from None
    return ImagePart(data=decoded, media_type=str(source.get("media_type", "image/png")))


def _result(block: dict[str, Any], param: str) -> Message:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise InputFault(f"{param}.tool_use_id is missing.", f"{param}.tool_use_id")
    content = block.get("content") or ""
    if isinstance(content, str):
        body: str | tuple[Part, ...] = content
    elif isinstance(content, list):
        parts = [p for i, b in enumerate(content) for p in _parts(_dict(b, param), f"{param}.content[{i}]")]
        body = _joined(parts)
    else:
        raise InputFault(f"{param}.content must be text or blocks.", f"{param}.content")
    if block.get("is_error") and isinstance(body, str):
        body = f"Error: {body}"
    return Message(role="tool", content=body, tool_call_id=call_id)


def _dict(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputFault(f"{param}.content must hold blocks.", f"{param}.content")
    return value


def _assistant(blocks: list[dict[str, Any]], param: str) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        where, kind = f"{param}.content[{index}]", block.get("type")
        if kind == "text":
            texts.append(_text(block, where))
        elif kind == "thinking":
            reasoning.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            name, arguments = block.get("name"), block.get("input", {})
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise InputFault(f"{where} needs a name and an input object.", where)
            text = json.dumps(arguments, ensure_ascii=False)
            calls.append(ToolCall(id=str(block.get("id", "")), name=name, arguments=text))
        elif kind != "redacted_thinking":  # only its maker can read that
            raise InputFault(f"{where}.type {kind!r} is not supported.", f"{where}.type")
    return Message(
        role="assistant",
        content="".join(texts),
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(calls),
    )


def _tool(tool: Tool, param: str) -> ToolDefinition:
    words, schema = tool.description or "", tool.input_schema
    if tool.type not in {None, "custom"}:
        defined = client_tool(str(tool.type), tool.model_extra or {})
        if defined is None:
            where = "is run by Anthropic's servers" if tool.type.startswith(SERVER_TOOLS) else "is not known here"
            raise InputFault(f"{param}.type {tool.type!r} {where}; offer tools the client runs.", f"{param}.type")
        words, schema = words or defined[0], schema or defined[1]
    return ToolDefinition(
        name=tool.name,
        description=words,
        parameters=schema if schema is not None else {"type": "object", "properties": {}},
        strict=bool(tool.strict),
    )


def _choice(choice: Choice | None) -> ToolChoice:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type == "tool":
        if not choice.name:
            raise InputFault("tool_choice.name is missing.", "tool_choice.name")
        return NamedTool(name=choice.name)
    return "required" if choice.type == "any" else "none"
