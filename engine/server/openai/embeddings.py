"""POST /v1/embeddings and /v1/rerank."""

import base64
import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.responses import Response

from engine.core.errors import InputFault
from engine.core.ownership import new_id
from engine.runner.protocol import Embedded
from engine.server.body import ANY, Body, ignored_header, openapi_body, parse
from engine.server.embedding import embed, prompted
from engine.server.openai.schemas import TokenId
from engine.server.sse import while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import chosen_model

router = APIRouter()

# OpenAI's documented limit for inputs per request.
MAX_INPUTS = 2048


Inputs = (
    str
    | Annotated[list[TokenId], Field(min_length=1)]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
    | Annotated[list[list[TokenId]], Field(min_length=1, max_length=MAX_INPUTS)]
)


def _listed(inputs: Inputs) -> list[str | list[int]]:
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs[0], int):
        return [[t for t in inputs if isinstance(t, int)]]
    return [item for item in inputs if isinstance(item, str | list)]


class EmbeddingRequest(Body):
    """POST /v1/embeddings."""

    model: str
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    # Not in OpenAI's protocol. Without it, texts get no prefix.
    input_type: Literal["query", "passage", "document", "search_query", "search_document"] | None = None

    def inputs(self) -> list[str | list[int]]:
        return _listed(self.input)


class NativeEmbeddingRequest(Body):
    """POST /embedding of llama-server. Without `model`: the most recently used one."""

    model: str | None = None
    content: Inputs | None = None
    input: Inputs | None = None

    def inputs(self) -> list[str | list[int]]:
        """The inputs as a list. Raises: InputFault: there are none."""
        content = self.content if self.content is not None else self.input
        if content is None:
            raise InputFault("content: the text to embed is missing.", "content")
        return _listed(content)


class RerankRequest(Body):
    """POST /v1/rerank, as Jina and Cohere define it."""

    shapes: ClassVar = {"documents": {"text": ANY}}

    model: str
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | dict[str, Any]], Field(min_length=1, max_length=MAX_INPUTS)]
    top_n: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    return_documents: bool | None = None

    def texts(self) -> list[str]:
        texts = []
        for index, document in enumerate(self.documents):
            text = document if isinstance(document, str) else document.get("text")
            if not isinstance(text, str):
                raise InputFault(f"documents[{index}].text must be a string.", f"documents[{index}].text")
            texts.append(text)
        return texts


@router.post("/v1/embeddings", openapi_extra=openapi_body(EmbeddingRequest))
async def embeddings(request: Request) -> Response:
    """Embed one or several texts. Chat models embed too, with the mean over their last layer."""
    state = server_state(request)
    body = await parse(request, EmbeddingRequest)
    inputs = body.inputs()
    if body.input_type:
        inputs = await prompted(state, body.model, inputs, body.input_type)
    _, vectors, answer = await while_connected(request, embed(state, body.model, inputs, body.dimensions))
    base64_wanted = body.encoding_format == "base64"
    tokens = sum(answer.token_counts)
    return JSONResponse(
        {
            "object": "list",
            "model": body.model,
            "data": [
                {
                    "object": "embedding",
                    "index": i,
                    "embedding": base64.b64encode(v.tobytes()).decode() if base64_wanted else v.tolist(),
                }
                for i, v in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        },
        headers=ignored_header(body.ignored()),
    )


@router.post("/embedding", openapi_extra=openapi_body(NativeEmbeddingRequest))
@router.post("/embeddings", openapi_extra=openapi_body(NativeEmbeddingRequest), include_in_schema=False)
async def native_embeddings(request: Request) -> Response:
    """Embed one or several texts, in llama-server's format: for each text a list with one vector."""
    state = server_state(request)
    body = await parse(request, NativeEmbeddingRequest)
    inputs = body.inputs()
    name = body.model or (await chosen_model(state, None)).id
    _, vectors, _ = await while_connected(request, embed(state, name, inputs))
    rows = [{"index": index, "embedding": [vector.tolist()]} for index, vector in enumerate(vectors)]
    return JSONResponse(rows, headers=ignored_header(body.ignored()))


@router.post("/v1/rerank", openapi_extra=openapi_body(RerankRequest))
@router.post("/rerank", openapi_extra=openapi_body(RerankRequest), include_in_schema=False)
@router.post("/reranking", openapi_extra=openapi_body(RerankRequest), include_in_schema=False)
@router.post("/v1/reranking", openapi_extra=openapi_body(RerankRequest), include_in_schema=False)
@router.post("/v1/reranker", openapi_extra=openapi_body(RerankRequest), include_in_schema=False)
@router.post("/v2/rerank", openapi_extra=openapi_body(RerankRequest), include_in_schema=False)
async def rerank(request: Request) -> Response:
    """Sort documents by their relevance to a query, with a reranking model."""
    state = server_state(request)
    body = await parse(request, RerankRequest)
    texts = body.texts()
    answer = await while_connected(request, _rank(state, body, texts))
    rows = [np.frombuffer(row, "<f4") for row in answer.vectors]
    scored = sorted(((_relevance(row), float(row[0]), i) for i, row in enumerate(rows)), reverse=True)
    tokens = sum(answer.token_counts)
    results = []
    for relevance, score, index in scored[: body.top_n]:
        result: dict[str, Any] = {"index": index, "relevance_score": relevance, "score": score}
        if body.return_documents:
            result["document"] = {"text": texts[index]}
        results.append(result)
    return JSONResponse(
        {
            "id": new_id("rerank"),
            "object": "list",
            "model": body.model,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        },
        headers=ignored_header(body.ignored()),
    )


async def _rank(state: ServerState, body: RerankRequest, texts: list[str]) -> Embedded:
    model = await state.pool.acquire(body.model)
    assert model.runner is not None
    inputs: list[str | list[int]] = list(texts)
    answer = await model.runner.embed(inputs, query=body.query)
    state.metrics.embedded(model.id, sum(answer.token_counts))
    return answer


def _relevance(row: Any) -> float:
    """A score from 0 to 1: with several classes it is a probability already, a single value is a logit."""
    value = float(row[0])
    return value if len(row) > 1 else 1 / (1 + math.exp(-max(-60.0, min(60.0, value))))
