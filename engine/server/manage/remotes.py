"""/tessera/v1/remotes: remote hosts that hold layers of a model, through SSH tunnels."""

import base64
import hashlib

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.api import remotes as api
from engine.core.errors import InputFault
from engine.remotes.types import Remote
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import ServerState, server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/remotes")
async def list_remotes(request: Request) -> api.Remotes:
    """All workers with the result of their last probe. Does not contact them."""
    state = server_state(request)
    rows = tuple(_row(state, remote) for remote in state.remotes.registry.remotes)
    return api.Remotes(remotes=rows, kernel=state.remotes.kernel)


@router.put("/remotes/{name}")
async def put_remote(request: Request, name: str, body: api.RemoteRequest) -> api.RemoteRow:
    """Add or change a worker and probe it. Its host key must be known or part of the request."""
    state = server_state(request)
    fields = msgspec.structs.asdict(body)
    expected = fields.pop("host_key")
    await state.remotes.add(Remote(name=name, host_key="", **fields), expected)
    return _row(state, state.remotes.registry.get(name))


@router.post("/remotes/{name}/check")
async def check_remote(request: Request, name: str) -> api.RemoteRow:
    """Probe a worker now and measure its connection."""
    state = server_state(request)
    await state.remotes.check(name)
    return _row(state, state.remotes.registry.get(name))


@router.delete("/remotes/{name}", status_code=204, response_class=Response)
async def remove_remote(request: Request, name: str) -> None:
    """Remove a worker. Raises: InputFault: it holds layers of a loaded model."""
    state = server_state(request)
    state.remotes.registry.get(name)
    if models := _models(state, name):
        raise InputFault(f"Layers of {', '.join(models)} lie on {name}; unload them first.", "name")
    state.remotes.registry.remove(name)


def _models(state: ServerState, name: str) -> tuple[str, ...]:
    return tuple(m.id for m in state.pool.loaded if any(layers.remote == name for layers in m.settings.remotes))


def _row(state: ServerState, remote: Remote) -> api.RemoteRow:
    seen = state.remotes.registry.seen(remote.name)
    facts, link = seen.facts, seen.link
    return api.RemoteRow(
        name=remote.name,
        host=remote.host,
        user=remote.user,
        port=remote.port,
        worker_port=remote.worker_port,
        use=remote.use,
        fingerprint=_fingerprint(remote.host_key),
        state=seen.state,
        reason=seen.reason,
        reason_detail=seen.detail,
        at=seen.at,
        kernel=facts.kernel if facts is not None else "",
        rtt_ms=round(link.rtt_s * 1000, 2) if link is not None else 0.0,
        up_bytes_s=link.up_bytes_s if link is not None else 0.0,
        down_bytes_s=link.down_bytes_s if link is not None else 0.0,
        devices=facts.devices if facts is not None else (),
        models=_models(state, remote.name),
    )


def _fingerprint(line: str) -> str:
    """The fingerprint in ssh-keygen's format."""
    parts = line.split()
    blob = base64.b64decode(parts[1]) if len(parts) > 1 else b""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
