"""The format of an error: of the router that got the request, else of the path's protocol."""

import asyncio

import httpx2
import pytest
from fastapi import FastAPI

from engine.core.errors import ModelNotFound
from engine.server.anthropic import errors as anthropic
from engine.server.error_shape import HANDLERS, refusal_body, shape_of_path
from engine.server.middleware import ErrorMiddleware
from engine.server.ollama import errors as ollama
from engine.server.openai import errors as openai
from engine.server.protocol_router import protocol_router


async def missing():
    """No model has this name."""
    raise ModelNotFound("nobody")


async def broken():
    """A bug."""
    raise ZeroDivisionError


def answers(shape, *asked):
    """Responses of an application whose routes with this format have paths that no protocol's prefix matches."""
    router = protocol_router(shape, prefix="/elsewhere", tags=["test"])
    router.add_api_route("/missing", missing, methods=["POST"])
    router.add_api_route("/broken", broken, methods=["POST"])
    app = FastAPI()
    app.add_middleware(ErrorMiddleware)
    app.include_router(router)
    for raised, handler in HANDLERS.items():
        app.add_exception_handler(raised, handler)

    async def ask():
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return [await client.request(method, path) for method, path in asked]

    return asyncio.run(ask())


def test_a_router_tells_errors_in_its_shape_wherever_its_routes_lie():
    found, bug, method = answers(
        anthropic.SHAPE,
        ("POST", "/elsewhere/missing"),
        ("POST", "/elsewhere/broken"),
        ("GET", "/elsewhere/missing"),
    )
    assert (found.status_code, found.json()["error"]["type"]) == (404, "not_found_error")
    assert (bug.status_code, bug.json()["error"]["type"]) == (500, "api_error")
    assert (method.status_code, method.json()["type"]) == (405, "error")
    (found,) = answers(ollama.SHAPE, ("POST", "/elsewhere/missing"))
    assert isinstance(found.json()["error"], str)
    (found,) = answers(openai.SHAPE, ("POST", "/elsewhere/missing"))
    assert found.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/messages/nothing", anthropic.SHAPE),
        ("/api/nothing", ollama.SHAPE),
        ("/api/v0/nothing", openai.SHAPE),
        ("/v1/nothing", openai.SHAPE),
        ("/nothing", openai.SHAPE),
    ],
)
def test_where_no_route_lies_the_path_decides(path, shape):
    assert shape_of_path(path) is shape
    assert refusal_body({"path": path}, 404, "not_found", "no") == shape.refusal(404, "not_found", "no")


def test_one_message_names_the_problem_of_each_wrong_field():
    from pydantic import ValidationError

    from engine.server.body import fault
    from engine.server.openai.schemas import ChatRequest

    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate(
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 9, "max_tokens": -3}
        )
    found = fault(refused.value)
    assert found.param in {"temperature", "max_tokens"}
    assert "temperature: Input should be less than or equal to 5 (got 9)." in str(found)
    assert "max_tokens: Input should be greater than or equal to -1 (got -3)." in str(found)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a"] * 3000, "input: List should have at most 2048 items after validation, not 3000."),
        ([[-1]], "input[0][0]: Input should be greater than or equal to 0 (got -1)."),
        (5, "input: Input should be a valid string (got 5)."),
        (["a", "b", 5], "input[2]: Input should be a valid string (got 5)."),
    ],
)
def test_a_message_is_about_the_type_that_is_closest_to_what_was_sent(value, message):
    from pydantic import ValidationError

    from engine.server.body import fault
    from engine.server.openai.embeddings import EmbeddingRequest

    with pytest.raises(ValidationError) as refused:
        EmbeddingRequest.model_validate({"model": "m", "input": value})
    assert str(fault(refused.value)) == message
