"""POST /v1/messages and /v1/messages/count_tokens."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field
from pydantic_core import from_json
from starlette.responses import Response

from engine.chat import structured
from engine.chat.chat_pipeline import AnswerFinished, AnswerStarted, ChatEvent, ends_with_partial_answer
from engine.chat.query import ChatQuery
from engine.chat.template_messages import last_answer
from engine.chat.tools.parser import PARAGRAPH
from engine.chat.types import (
    CallArguments,
    CallEnded,
    CallStarted,
    ImagePart,
    Message,
    NamedTool,
    Part,
    ReasoningDelta,
    TextDelta,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolDefinition,
)
from engine.core.errors import InputFault
from engine.core.ownership import new_id
from engine.core.types import Constraint, Usage
from engine.server.anthropic.errors import SHAPE
from engine.server.anthropic_tools import SERVER_TOOLS, client_tool
from engine.server.body import ANY, Body, ByType, ignored_header, openapi_body, parse
from engine.server.file_parts import MAX_IMAGE_BYTES, UnreadablePart, decoded_base64, part_or_text
from engine.server.protocol_router import protocol_router
from engine.server.sampling_fields import MAX_STOPS
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import prepare_turn

# Request bodies of Anthropic's protocol.

_TEXT: Final = {"type": ANY, "text": ANY}
_SOURCE: Final = {"type": ANY, "media_type": ANY, "data": ANY, "content": _TEXT}
_PLAIN: Final = ByType(
    text=_TEXT,
    image={"type": ANY, "source": _SOURCE},
    document={"type": ANY, "source": _SOURCE, "title": ANY, "context": ANY},
    search_result={"type": ANY, "source": ANY, "title": ANY, "content": _TEXT},
    tool_reference=ANY,
)
# `signature` is accepted but not verified; only Anthropic's servers need it.
_BLOCK: Final = ByType(
    _PLAIN,
    thinking={"type": ANY, "thinking": ANY, "signature": ANY},
    redacted_thinking={"type": ANY},
    tool_use={"type": ANY, "id": ANY, "name": ANY, "input": ANY},
    tool_result={"type": ANY, "tool_use_id": ANY, "content": _PLAIN, "is_error": ANY},
)


class InputMessage(Body):
    """One message. The role `system` inside the conversation is accepted, because current clients send it."""

    shapes: ClassVar = {"content": _BLOCK}

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class Tool(Body):
    """A tool that the client runs. Tools that Anthropic's servers run have another `type` and are refused."""

    no_effect: ClassVar = frozenset({"cache_control"})

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class RequestedTool(Body):
    """Tool choice: whether a tool must be called, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model may reason before its response, and for how many tokens."""

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
    tool_choice: RequestedTool | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None

    def ignored(self) -> list[str]:
        """Also lists an effort without reasoning, because reasoning is off by default."""
        silent = self.thinking is None or self.thinking.type == "disabled"
        effort = (self.output_config or {}).get("effort")
        names = [*super().ignored(), *(["output_config.effort"] if silent and effort is not None else [])]
        for number, message in enumerate(self.messages):
            blocks = message.content if isinstance(message.content, list) and message.role == "assistant" else []
            hosted = (i for i, block in enumerate(blocks) if _is_hosted(block.get("type")))
            names += [f"messages[{number}].content[{i}]" for i in hosted]
        return names


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    no_effect: ClassVar = CountRequest.no_effect | {"metadata"}

    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    metadata: dict[str, Any] | None = None


router = protocol_router(SHAPE, tags=["anthropic"])

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@router.post("/v1/messages", openapi_extra=openapi_body(MessagesRequest))
async def messages(request: Request) -> Response:
    """Chat response."""
    state = server_state(request)
    body = await parse(request, MessagesRequest)
    query = to_query(body)
    headers = ignored_header(body.ignored())
    if body.stream:
        chunks = _stream(state, body.model, query)
        return EventStream(chunks, SHAPE, ping=PING, headers=headers)
    return JSONResponse(
        await while_connected(request, _complete_response(state, body.model, query)), headers=headers
    )


@router.post("/v1/messages/count_tokens", openapi_extra=openapi_body(CountRequest))
async def count_tokens(request: Request) -> Response:
    """Exact number of tokens of a conversation's prompt."""
    body = await parse(request, CountRequest)
    turn = await prepare_turn(server_state(request), body.model, to_query(body))
    return JSONResponse({"input_tokens": await turn.prompt_tokens()}, headers=ignored_header(body.ignored()))


async def _stream(state: ServerState, model: str, query: ChatQuery) -> AsyncGenerator[bytes, None]:
    turn = await prepare_turn(state, model, query)
    blocks = BlockStream(new_id("msg", "_"), model)
    async with aclosing(turn.events()) as events:
        async for item in events:
            out = blocks.feed(item)
            if out:
                yield out


async def _complete_response(state: ServerState, model: str, query: ChatQuery) -> dict[str, Any]:
    turn = await prepare_turn(state, model, query)
    blocks = BlockStream(new_id("msg", "_"), model)
    end: AnswerFinished | None = None
    async with aclosing(turn.events()) as events:
        async for item in events:
            blocks.feed(item)
            if isinstance(item, AnswerFinished):
                end = item
    assert end is not None
    return blocks.whole(end)


# Responses in Anthropic's format: content blocks, complete or as named server-sent events.

_encode = msgspec.json.encode


def event(name: str, body: dict[str, Any]) -> bytes:
    """One named event. Clients ignore events without a name."""
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **body}) + b"\n\n"


def usage(counts: Usage) -> dict[str, int]:
    """Token usage; tokens from the prefix cache do not count as input."""
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
    }


def stop_reason(end: AnswerFinished) -> str:
    """The stop reason, in Anthropic's terms."""
    if end.finish_reason == "tool_calls":
        return "tool_use"
    if end.finish_reason == "length":
        return "max_tokens"
    return "stop_sequence" if end.stop is not None else "end_turn"


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a call; if it was cut off, the complete ones."""
    try:
        value = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class BlockStream:
    """Converts chat events to Anthropic's events. `blocks` collects the response for the non-streamed format."""

    def __init__(self, message_id: str, model: str) -> None:
        self._id = message_id
        self._model = model
        self._kind = ""
        self.blocks: list[dict[str, Any]] = []

    def message(self, counts: Usage) -> dict[str, Any]:
        """The message object without its blocks."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(counts),
        }

    def feed(self, item: ChatEvent) -> bytes:  # noqa: PLR0911 - one return per kind of event
        if isinstance(item, TextDelta):
            return self._grow("text", "text", "text_delta", item.text)
        if isinstance(item, ReasoningDelta):
            return self._grow("thinking", "thinking", "thinking_delta", item.text)
        if isinstance(item, CallArguments):
            self.blocks[-1]["input"] += item.delta
            return self._delta({"type": "input_json_delta", "partial_json": item.delta})
        if isinstance(item, CallStarted):
            # Call ids of some dialects repeat in later messages. Templates that need their own ids derive them from
            # the name.
            block = {"type": "tool_use", "id": new_id("toolu", "_"), "name": item.name, "input": {}}
            return self._close() + self._open("tool_use", block, {**block, "input": ""})
        if isinstance(item, CallEnded):
            return self._close()
        if isinstance(item, AnswerStarted):
            counts = Usage(prompt_tokens=item.prompt_tokens, cached_tokens=item.cached_tokens)
            return event("message_start", {"message": self.message(counts)})
        return self._close() + self._end(item) if isinstance(item, AnswerFinished) else b""

    def whole(self, end: AnswerFinished) -> dict[str, Any]:
        """The response as one object."""
        content = []
        for block in self.blocks:
            result = dict(block)
            if result["type"] == "tool_use":
                result["input"] = _arguments(result["input"])
            content.append(result)
        return {**self.message(end.usage), "content": content, **self._stopped(end)}

    def _stopped(self, end: AnswerFinished) -> dict[str, Any]:
        stopped: dict[str, Any] = {"stop_reason": stop_reason(end), "stop_sequence": end.stop}
        if end.malformed:  # reported separately, never as text of the response
            stopped["malformed_tool_calls"] = list(end.malformed)
        if end.notes:
            stopped["tessera"] = {"notes": list(end.notes)}
        return stopped

    def _grow(self, kind: str, field: str, delta: str, text: str) -> bytes:
        out = b""
        if self._kind != kind:
            block = {"type": kind, field: ""}
            if kind == "thinking":
                block["signature"] = ""
            if self.blocks:  # the new paragraph is a separate block
                text = text.lstrip()
            out = self._close() + self._open(kind, block, dict(block))
        self.blocks[-1][field] += text
        return out + self._delta({"type": delta, field: text})

    def _open(self, kind: str, shown: dict[str, Any], block: dict[str, Any]) -> bytes:
        self._kind = kind
        self.blocks.append(block)
        return event("content_block_start", {"index": len(self.blocks) - 1, "content_block": shown})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", {"index": len(self.blocks) - 1, "delta": delta})

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        kind, self._kind = self._kind, ""
        out = b""
        if kind == "thinking":
            out = self._delta({"type": "signature_delta", "signature": ""})
        return out + event("content_block_stop", {"index": len(self.blocks) - 1})

    def _end(self, end: AnswerFinished) -> bytes:
        delta = self._stopped(end)
        return event("message_delta", {"delta": delta, "usage": usage(end.usage)}) + event("message_stop", {})


# Converts Anthropic's requests to `ChatQuery`.

# Claude Code writes a hash that changes with every request at the start of the system prompt. It is removed,
# because otherwise the prefix cache would never match.
_BILLING: Final = re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE)


def to_query(body: CountRequest) -> ChatQuery:
    """Convert a request to a query.

    Raises: InputFault: an unsupported block, tool or field.
    """
    messages = _system(body.system)
    answered = last_answer([message.role for message in body.messages])
    for index, message in enumerate(body.messages):
        messages.extend(_messages(message, f"messages[{index}]", is_earlier=index < answered))
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
        continue_final=ends_with_partial_answer(messages),
    )
    if not isinstance(body, MessagesRequest):
        return query
    sampling = {k: v for k in ("temperature", "top_p", "top_k") if (v := getattr(body, k)) is not None}
    return msgspec.structs.replace(
        query,
        sampling=sampling,
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


def _messages(message: InputMessage, param: str, *, is_earlier: bool) -> list[Message]:
    """Convert one message to one or several; each tool result becomes a separate message."""
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        text = neutral(message.content) if role == "system" else message.content
        return [Message(role=role, content=text)] if text else []
    if role == "assistant":
        return [_assistant(message.content, param)]
    # Results come first, because they must directly follow their calls.
    results: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(message.content):
        where = f"{param}.content[{index}]"
        if block.get("type") == "tool_result":
            results.append(_result(block, where))
        else:
            parts.extend(_parts(block, where, required=not is_earlier))
    content = _joined(parts)
    if role == "system" and isinstance(content, str):
        content = neutral(content)
    return [*results, Message(role=role, content=content)] if content else results


def _joined(parts: list[Part]) -> str | tuple[Part, ...]:
    if all(isinstance(p, TextPart) and not p.replaces for p in parts):
        return "\n\n".join(p.text for p in parts if isinstance(p, TextPart))
    return tuple(parts)


def _parts(block: dict[str, Any], param: str, *, required: bool) -> list[Part]:
    parts = part_or_text(partial(_read, block, param, required=required), param, required=required)
    return [parts] if isinstance(parts, TextPart) else parts


def _read(block: dict[str, Any], param: str, *, required: bool) -> list[Part]:
    kind = block.get("type")
    if kind == "text":
        return [TextPart(text=_text(block, param))]
    if kind == "image":
        return [_image(block.get("source"), f"{param}.source")]
    if kind == "document":
        heads = [str(block[name]) for name in ("title", "context") if block.get(name)]
        parts = _document(block.get("source"), f"{param}.source", required=required)
        return [TextPart(text="\n\n".join(heads)), *parts] if heads else parts
    if kind == "search_result":
        head = ", ".join(str(block[name]) for name in ("title", "source") if block.get(name))
        texts = [TextPart(text=head)] if head else []
        return [*texts, *_blocks(block.get("content"), f"{param}.content", required=required)]
    if kind == "tool_reference":  # result of a tool search; the tool itself is in the request's tools
        return [TextPart(text=str(block.get("tool_name", "")))]
    raise UnreadablePart(f"{param}.type {kind!r} is not supported.", f"{param}.type")


def _document(source: object, param: str, *, required: bool) -> list[Part]:
    fields = source if isinstance(source, dict) else {}
    if fields.get("type") == "text" and isinstance(fields.get("data"), str):
        return [TextPart(text=fields["data"])]
    if fields.get("type") == "content":
        return _blocks(fields.get("content"), f"{param}.content", required=required)
    raise UnreadablePart(f"{param}: only documents of plain text are supported.", param)


def _image(source: object, param: str) -> ImagePart:
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise UnreadablePart(f"{param}: only base64 images are accepted; the server opens no addresses.", param)
    data = source.get("data")
    if not isinstance(data, str) or len(data) > MAX_IMAGE_BYTES * 4 // 3:
        raise InputFault(f"{param}.data must be base64 of at most {MAX_IMAGE_BYTES} bytes.", f"{param}.data")
    decoded = decoded_base64(data, f"{param}.data")
    return ImagePart(data=decoded, media_type=str(source.get("media_type", "image/png")))


def _result(block: dict[str, Any], param: str) -> Message:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise InputFault(f"{param}.tool_use_id is missing.", f"{param}.tool_use_id")
    body = _joined(_blocks(block.get("content"), f"{param}.content", required=False))
    if block.get("is_error"):
        body = f"Error: {body}" if isinstance(body, str) else (TextPart(text="Error:"), *body)
    return Message(role="tool", content=body, tool_call_id=call_id)


def _blocks(content: object, param: str, *, required: bool) -> list[Part]:
    """The parts of a content inside a block: text or blocks. Raises: InputFault."""
    if not content:
        return []
    if isinstance(content, str):
        return [TextPart(text=content)]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InputFault(f"{param} must be text or blocks.", param)
    fields = ((block, f"{param}[{index}]") for index, block in enumerate(content))
    return [part for block, name in fields for part in _parts(block, name, required=required)]


def _assistant(blocks: list[dict[str, Any]], param: str) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        where, kind = f"{param}.content[{index}]", block.get("type")
        if kind == "text":
            # Adjacent blocks are one text; others are paragraphs.
            apart = texts and blocks[index - 1].get("type") != "text"
            texts.append((PARAGRAPH if apart else "") + _text(block, where))
        elif kind == "compaction" and isinstance(block.get("content"), str):
            texts.append(f"Summary of our conversation so far:\n{block['content']}")
        elif kind == "thinking":
            reasoning.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            name, arguments = block.get("name"), block.get("input", {})
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise InputFault(f"{where} needs a name and an input object.", where)
            text = json.dumps(arguments, ensure_ascii=False)
            calls.append(ToolCall(id=str(block.get("id", "")), name=name, arguments=text))
        elif not _is_hosted(kind):
            raise InputFault(f"{where}.type {kind!r} is not supported.", f"{where}.type")
    return Message(
        role="assistant",
        content="".join(texts),
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(calls),
    )


def _is_hosted(kind: object) -> bool:
    """True if a block of an answer belongs to a tool that Anthropic runs; the answer's text repeats its findings.

    Redacted thinking can be decrypted by Anthropic only.
    """
    return kind in ("redacted_thinking", "server_tool_use", "mcp_tool_use") or str(kind).endswith("_tool_result")


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


def _choice(choice: RequestedTool | None) -> ToolChoice:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type == "tool":
        if not choice.name:
            raise InputFault("tool_choice.name is missing.", "tool_choice.name")
        return NamedTool(name=choice.name)
    return "required" if choice.type == "any" else "none"
