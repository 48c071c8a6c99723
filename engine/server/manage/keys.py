"""/tessera/v1/keys: who else may use this server."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from engine.errors import InputFault
from engine.server.body import Body, openapi_body, parse
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1/keys", tags=["management"])


class KeyRequest(Body):
    """POST /tessera/v1/keys."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    scopes: Annotated[list[Literal["chat", "manage"]], Field(min_length=1, max_length=2)] = ["chat"]  # noqa: RUF012


@router.get("")
async def list_keys(request: Request) -> dict[str, Any]:
    """Names and scopes; the keys themselves are not kept."""
    told = [msgspec.to_builtins(key) for key in server_state(request).access.store.all()]
    return {"keys": [{k: v for k, v in key.items() if k != "sha256"} for key in told]}


@router.post("", status_code=201, openapi_extra=openapi_body(KeyRequest))
async def make_key(request: Request) -> dict[str, Any]:
    """Make a key. It is shown this once."""
    body = await parse(request, KeyRequest)
    key = server_state(request).access.store.add(body.name, tuple(dict.fromkeys(body.scopes)))
    return {"name": body.name, "key": key, "scopes": body.scopes}


@router.delete("/{name}", status_code=204, response_class=Response)
async def revoke_key(request: Request, name: str) -> None:
    """Revoke a key."""
    if not server_state(request).access.store.remove(name):
        raise InputFault(f"There is no key named {name!r}.", "name")
