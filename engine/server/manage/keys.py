"""/tessera/v1/keys: API keys of this server."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.api.requests import Key, KeyRequest, Keys, NewKey
from engine.core.errors import InputFault
from engine.message_catalog.reasons import because
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1/keys", tags=["management"], route_class=TypedRoute)


@router.get("")
async def list_keys(request: Request) -> Keys:
    """Names and scopes of all keys; the keys themselves are not stored."""
    access = server_state(request).access
    stored = access.store.all()
    keys = tuple(Key(name=k.name, scopes=k.scopes, created_at=k.created_at) for k in stored)
    programs = tuple(Key(name=name, program=True) for name in access.programs.names())
    return Keys(keys=keys + programs, public=access.public, required=access.needs_key)


@router.post("", status_code=201)
async def make_key(request: Request, body: KeyRequest) -> NewKey:
    """Create a key. The response is the only place that shows it."""
    scopes = tuple(dict.fromkeys(body.scopes))
    key = await asyncio.to_thread(server_state(request).access.store.add, body.name, scopes)
    return NewKey(name=body.name, key=key, scopes=scopes)


@router.delete("/{name}", status_code=204, response_class=Response)
async def revoke_key(request: Request, name: str) -> None:
    """Revoke a key."""
    access = server_state(request).access
    was_removed = await asyncio.to_thread(lambda: access.store.remove(name) or access.programs.remove(name))
    if not was_removed:
        raise InputFault(because("no_key", name=name), "name")
