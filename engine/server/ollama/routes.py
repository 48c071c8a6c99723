"""POST /api/chat and /api/generate."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from engine.chat import structured
from engine.chat.chat_pipeline import (
    AnswerFinished,
    AnswerLogprobs,
    ChatEvent,
    PreparedChat,
    end_notes,
    ends_with_partial_answer,
)
from engine.chat.fim import FimGap
from engine.chat.query import ChatQuery
from engine.chat.types import ImagePart, Message, Part, TextDelta, TextPart, ToolCall, ToolDefinition
from engine.core.errors import InputFault
from engine.core.types import Constraint, Delta, Done, GenerationRequest, SamplingParams
from engine.placement.model_settings import Preset
from engine.pool.loaded_model import LoadedModel
from engine.server.body import ignored_header, openapi_body, parse
from engine.server.file_parts import MAX_IMAGE_BYTES, decoded_base64
from engine.server.fim import fim_prompt, fim_request
from engine.server.ollama.errors import SHAPE
from engine.server.ollama.keep_alive import acquire, keep, seconds
from engine.server.ollama.models import plain
from engine.server.ollama.schemas import ChatBody, ChatMessage, GenerateBody, Options, Running
from engine.server.ollama.stream import NDJSON, Lines, now
from engine.server.protocol_router import protocol_router
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import Turn

router = protocol_router(SHAPE, tags=["ollama"])

# Tokens reserved for a completion between prompt and suffix if the client sets no limit.
FIM_TOKENS = 256


@router.post("/api/chat", openapi_extra=openapi_body(ChatBody))
async def chat(request: Request) -> Response:
    """Chat response; without messages, load the model or (keep_alive 0) unload it."""
    body = await parse(request, ChatBody)
    preset = _preset(request, body)
    if not body.messages:
        return await _only_load(request, body, {"message": {"role": "assistant", "content": ""}})
    if preset.system and all(message.role != "system" for message in body.messages):
        body.messages.insert(0, ChatMessage(role="system", content=preset.system))
    return await _answer(request, body, chat_query(body), chat=True)


@router.post("/api/generate", openapi_extra=openapi_body(GenerateBody))
async def generate(request: Request) -> Response:
    """Complete a prompt: with the chat template, raw, or as fill-in-the-middle if there is a suffix."""
    body = await parse(request, GenerateBody)
    preset = _preset(request, body)
    if body.system is None and not body.raw and not body.suffix:
        body.system = preset.system or None
    if body.template:
        raise InputFault(
            "template: another template than the model's own is not applied here; use raw.", "template"
        )
    if (body.raw or body.suffix) and body.system:
        raise InputFault("system has no place in a raw prompt or around a gap.", "system")
    if not body.prompt and not body.suffix and not body.images:
        return await _only_load(request, body, {"response": ""})
    if body.raw or body.suffix:
        return await _answer(request, body, body, chat=False)
    return await _answer(request, body, generate_query(body), chat=False)


def _preset(request: Request, body: Running) -> Preset:
    """Apply the defaults of an alias to a request, whose own options take precedence."""
    preset = server_state(request).models.user_settings.preset(plain(body.model))
    if preset.options:
        own = body.options.model_dump(exclude_none=True) if body.options is not None else {}
        body.options = Options.model_validate({**preset.options, **own})
    return preset


async def _only_load(request: Request, body: Running, fields: dict[str, Any]) -> Response:
    state = server_state(request)
    answer = {"model": body.model, "created_at": now(), **fields, "done": True}
    if body.keep_alive is not None and seconds(body.keep_alive, "keep_alive") == 0:
        model_id = (await state.models.known(body.model)).id
        loaded = state.pool.get(model_id)
        if loaded is not None and loaded.ready and not loaded.idle:
            loaded.ttl_s, loaded.pinned = 0.0, False  # unloaded after the running answers
        else:
            await state.pool.unload(model_id)
        return JSONResponse({**answer, "done_reason": "unload"})
    model = await while_connected(request, state.pool.acquire(body.model, min_ctx=body.settings.num_ctx or 0))
    keep(model, body.keep_alive)
    return JSONResponse({**answer, "done_reason": "load"})


async def _answer(request: Request, body: Running, source: ChatQuery | GenerateBody, *, chat: bool) -> Response:
    state = server_state(request)
    headers = ignored_header(body.ignored())
    if body.stream is not False:
        chunks = _lines(state, body, source, chat=chat)
        ping = Lines(body.model, 0, 0.0, chat=chat).line()
        return EventStream(chunks, SHAPE, ping=ping, media_type=NDJSON, headers=headers)
    return JSONResponse(
        await while_connected(request, _complete_response(state, body, source, chat=chat)), headers=headers
    )


async def _lines(
    state: ServerState, body: Running, source: ChatQuery | GenerateBody, *, chat: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(_events(state, body, source, chat=chat)) as events:
        async for lines, item in events:
            out = lines.feed(item)
            if out:
                yield out


async def _complete_response(
    state: ServerState, body: Running, source: ChatQuery | GenerateBody, *, chat: bool
) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    async with aclosing(_events(state, body, source, chat=chat)) as events:
        async for lines, item in events:
            lines.feed(item)
            if isinstance(item, AnswerFinished):
                answer = lines.whole(item)
    return answer


async def _events(
    state: ServerState, body: Running, source: ChatQuery | GenerateBody, *, chat: bool
) -> AsyncGenerator[tuple[Lines, ChatEvent], None]:
    """Yields the events with the object that encodes them; afterwards unloads the model if `keep_alive` is 0."""
    model, load_s = await acquire(state, body)
    leaves = keep(model, body.keep_alive)
    assert model.facts is not None
    lines = Lines(body.model, model.facts.n_ctx, load_s, chat=chat)
    try:
        if isinstance(source, ChatQuery):
            own = chat_of = await state.conversations.prepare(model.facts, source)
            if isinstance(body, GenerateBody):
                chat_of = await _behind(model, own, body.context)
            turn = Turn(state, model, chat_of)
            async with aclosing(turn.events()) as events:
                async for item in events:
                    if isinstance(item, AnswerFinished) and isinstance(body, GenerateBody):
                        lines.context = await _context(model, own, body.context, lines.text)
                    yield lines, item
            return
        raw, notes = await _raw_request(state, model, source)
        async with aclosing(state.pool.generate(model, raw)) as generation:
            async for event in generation:
                if isinstance(event, Delta):
                    if event.logprobs:
                        yield lines, AnswerLogprobs(entries=event.logprobs)
                    yield lines, TextDelta(event.text)
                elif isinstance(event, Done):
                    end = AnswerFinished(
                        finish_reason=event.finish_reason,
                        usage=event.usage,
                        timings=event.timings,
                        notes=(*notes, *end_notes(event)),
                    )
                    yield lines, end
    finally:
        if leaves and model.idle:
            await state.pool.unload(model.id)


async def _behind(model: LoadedModel, chat: PreparedChat, context: list[int] | None) -> PreparedChat:
    """Append the prompt to the conversation whose tokens an earlier response returned as `context`.

    Raises: InputFault: a token that the model does not have.
    """
    if not context or not isinstance(chat.request, GenerationRequest):
        return chat
    assert model.runner is not None
    assert model.facts is not None
    if max(context) >= model.facts.n_vocab:
        raise InputFault(
            f"context: {max(context)} is not a token of this model, which has {model.facts.n_vocab}.", "context"
        )
    before = b"".join(await model.runner.detokenize(context)).decode("utf-8", "replace")
    prompt = before + chat.rendered.prompt
    return msgspec.structs.replace(
        chat,
        request=msgspec.structs.replace(chat.request, prompt=prompt, add_special=False),
        rendered=msgspec.structs.replace(chat.rendered, prompt=prompt, add_special=False),
    )


async def _context(model: LoadedModel, chat: PreparedChat, before: list[int] | None, answer: str) -> list[int]:
    """The conversation's tokens, for the next request. Empty if another server runs the model.

    `chat` is the request without the conversation `before` it, whose tokens are known.
    """
    if not isinstance(chat.request, GenerationRequest) or model.runner is None:
        return []
    add_special = chat.rendered.add_special and not before
    return [*(before or ()), *await model.runner.tokenize(chat.rendered.prompt + answer, add_special=add_special)]


async def _raw_request(
    state: ServerState, model: LoadedModel, body: GenerateBody
) -> tuple[GenerationRequest, tuple[str, ...]]:
    """The generation request, and notes about format constraints that are not enforced."""
    options = body.settings
    values = options.sampling()
    sampling = SamplingParams(**values)
    form = output(body.format)
    constraint, notes = (None, ()) if form is None else await state.checker.fit(form, "format")
    if body.suffix:
        max_tokens = options.max_tokens or FIM_TOKENS
        gap = FimGap(prefix=body.prompt, suffix=body.suffix)
        prompt = await fim_prompt(model, gap, max_tokens, may_shorten=False)
        filled = fim_request(prompt, max_tokens=max_tokens, stop=options.stops(), sampling=sampling)
        return msgspec.structs.replace(filled, constraint=constraint, logprobs=body.wanted_logprobs), notes
    raw = GenerationRequest(
        prompt=body.prompt,
        stop=options.stops(),
        max_tokens=options.max_tokens,
        sampling=sampling,
        explicit=tuple(values),
        constraint=constraint,
        logprobs=body.wanted_logprobs,
    )
    return raw, notes


# Converts Ollama's requests to `ChatQuery`.


def chat_query(body: ChatBody) -> ChatQuery:
    """Convert a chat request to a query. Raises: InputFault: an invalid message or tool."""
    messages: list[Message] = []
    for index, message in enumerate(body.messages or ()):
        messages.append(_message(message, messages, f"messages[{index}]"))
    if not any(m.content or m.tool_calls for m in messages):
        raise InputFault("messages: every message is empty; say something.", "messages")
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ()))
    return _query(body, messages, tools)


def generate_query(body: GenerateBody) -> ChatQuery:
    """Convert a generate request to a query that uses the chat template."""
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
        continue_final=ends_with_partial_answer(messages),
        max_tokens=options.max_tokens,
        stop=options.stops(),
        sampling=options.sampling(),
        sampling_source="ollama",
        logprobs=body.wanted_logprobs,
    )


def output(form: str | dict[str, Any] | None) -> Constraint | None:
    """The constraint for `json` or a JSON schema, or None. Raises: InputFault, ConstraintImpossible."""
    if form is None or form == "":
        return None
    if form == "json":
        return structured.of_schema({}, "format")
    if isinstance(form, str):
        raise InputFault(f'format {form!r} is not known; use "json" or a JSON schema.', "format")
    return structured.of_schema(form, "format", strict=False)


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
    """The call that a tool result belongs to. Ollama's clients name the tool or rely on the order."""
    with_calls = next((m for m in reversed(earlier) if m.tool_calls), None)
    if with_calls is None:
        return None
    answered = {m.tool_call_id for m in earlier if m.role == "tool"}
    waiting = [c for c in with_calls.tool_calls if c.id not in answered]
    same_name = [c for c in waiting if c.name == name]
    return (same_name or waiting or list(with_calls.tool_calls))[0].id


def _content(text: str, images: list[str] | None, param: str) -> str | tuple[Part, ...]:
    if not images:
        return text
    parts: list[Part] = [_image(image, f"{param}[{i}]") for i, image in enumerate(images)]
    return (*parts, TextPart(text=text))


def _image(data: str, param: str) -> ImagePart:
    if len(data) > MAX_IMAGE_BYTES * 4 // 3:
        raise InputFault(f"{param} is larger than {MAX_IMAGE_BYTES} bytes.", param)
    return ImagePart(data=decoded_base64(data, param))


def _call(call: dict[str, Any], index: int, param: str) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputFault(f"{param}.tool_calls[{index}].function.name is missing.", f"{param}.tool_calls[{index}]")
    arguments = function.get("arguments") or {}
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
