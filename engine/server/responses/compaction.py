"""POST /v1/responses/compact: replaces a conversation by the user's messages and a summary from the model."""

import base64
import time
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.responses import Response

from engine.chat.chat_pipeline import AnswerFinished
from engine.chat.query import ChatQuery
from engine.chat.types import Message, TextDelta, TextPart
from engine.core.errors import EnvironmentFault, InputFault
from engine.core.ownership import new_id
from engine.server.body import Body, ignored_header, openapi_body, parse
from engine.server.responses.schemas import ITEM
from engine.server.responses.stream import usage_body
from engine.server.responses.tools import Toolbox
from engine.server.responses.translate import sealed, to_messages
from engine.server.sse import while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import prepare_turn

router = APIRouter(tags=["openai"])
# About one and a half pages of text. A longer summary would save little in the context lengths used locally.
SUMMARY_TOKENS: Final = 1024
_ASK: Final = (
    "Summarize our whole conversation up to here, so that it can go on from the summary alone. Keep what I asked "
    "for, decisions, results, names, numbers, file names and open tasks. Write only the summary."
)


class NoSummary(EnvironmentFault):
    """The model did not write a usable summary."""

    code = "no_summary"


class CompactRequest(Body):
    """The conversation to compact: items, a stored response with everything before it, or both."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"prompt_cache_key"})
    shapes: ClassVar = {"input": ITEM}

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(max_length=100_000)] | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    prompt_cache_key: str | None = None


@router.post("/v1/responses/compact", openapi_extra=openapi_body(CompactRequest))
async def compact(request: Request) -> Response:
    """Shorten a conversation: keep all user messages, replace the rest by one item with the model's summary."""
    state = server_state(request)
    body = await parse(request, CompactRequest)
    answer = await while_connected(request, _compacted(state, body))
    return JSONResponse(answer, headers=ignored_header(body.ignored()))


async def _compacted(state: ServerState, body: CompactRequest) -> dict[str, Any]:
    items = body.input if body.input is not None else []
    if isinstance(items, list):
        items = [state.responses.meant(item, f"input[{i}]") for i, item in enumerate(items)]
    context: tuple[Message, ...] = ()
    if body.previous_response_id is not None:
        state.background.refuse_unfinished(body.previous_response_id)
        context = state.responses.previous(body.previous_response_id).messages
    context = (*context, *to_messages(items, Toolbox()))
    if not context:
        raise InputFault("input is empty; there is nothing to compact.", "input")
    head = (Message(role="system", content=body.instructions),) if body.instructions else ()
    query = ChatQuery(
        messages=(*head, *context, Message(role="user", content=_ASK)),
        thinking=False,
        max_tokens=SUMMARY_TOKENS,
    )
    turn = await prepare_turn(state, body.model, query)
    texts: list[str] = []
    usage = None
    async with aclosing(turn.events()) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                texts.append(event.text)
            elif isinstance(event, AnswerFinished):
                usage = usage_body(event.usage)
    summary = "".join(texts).strip()
    if not summary:
        raise NoSummary(f"{turn.model.id} wrote no summary; the conversation is unchanged.")
    questions = [_user_item(message) for message in context if message.role == "user"]
    compaction = {"id": new_id("cmp", "_"), "type": "compaction", "encrypted_content": sealed(summary)}
    return {
        "id": new_id("resp", "_"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*questions, compaction],
        "usage": usage,
    }


def _user_item(message: Message) -> dict[str, Any]:
    parts = message.content if isinstance(message.content, tuple) else (TextPart(text=message.content),)
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": "input_text", "text": part.text})
        else:
            url = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
            content.append({"type": "input_image", "image_url": url, "detail": "auto"})
    item = {"id": new_id("msg", "_"), "type": "message", "status": "completed", "role": "user"}
    return {**item, "content": content}
