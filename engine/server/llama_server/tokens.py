"""POST /tokenize and /detokenize, in llama-server's format and, with `prompt`, in vLLM's."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.responses import Response

from engine.core.errors import InputFault
from engine.pool.pool import HERE
from engine.server.body import Body, ignored_header, openapi_body, parse
from engine.server.chosen_model import chosen_model
from engine.server.state import server_state

router = APIRouter()


class TokenizeRequest(Body):
    """POST /tokenize. Without `model`: the most recently used. `priority` "side" never uses another server."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False
    priority: Literal["interactive", "side"] | None = None


class DetokenizeRequest(Body):
    """POST /detokenize. Without `model`: the most recently used one."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 22)]


@router.post("/tokenize", openapi_extra=openapi_body(TokenizeRequest))
@router.post("/v1/tokenize", openapi_extra=openapi_body(TokenizeRequest), include_in_schema=False)
async def tokenize(request: Request) -> Response:
    """Text to token ids."""
    body = await parse(request, TokenizeRequest)
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise InputFault("content: the text to tokenize is missing.", "content")
    only = HERE if body.priority == "side" else None
    model = await chosen_model(server_state(request), body.model, only)
    assert model.runner is not None
    assert model.facts is not None
    # By default, llama-server adds no BOS and vLLM does.
    special = body.add_special if body.add_special is not None else body.add_special_tokens
    special = special if special is not None else body.prompt is not None
    tokens = await model.runner.tokenize(text, add_special=special, parse_special=body.parse_special)
    answer: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": model.facts.largest_ctx}
    if body.with_pieces:
        pieces = await model.runner.detokenize(tokens)
        answer["tokens"] = [{"id": t, "piece": _piece(p)} for t, p in zip(tokens, pieces, strict=True)]
    return JSONResponse(answer, headers=ignored_header(body.ignored()))


def _piece(piece: bytes) -> str | list[int]:
    """Text, or the byte values if it is not complete UTF-8."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@router.post("/detokenize", openapi_extra=openapi_body(DetokenizeRequest))
@router.post("/v1/detokenize", openapi_extra=openapi_body(DetokenizeRequest), include_in_schema=False)
async def detokenize(request: Request) -> Response:
    """Token ids to text."""
    body = await parse(request, DetokenizeRequest)
    model = await chosen_model(server_state(request), body.model)
    assert model.runner is not None
    text = b"".join(await model.runner.detokenize(body.tokens)).decode("utf-8", "replace")
    return JSONResponse({"content": text, "prompt": text}, headers=ignored_header(body.ignored()))
