"""/tessera/v1/upstreams: other servers, and the user's routing rules for them.

/tessera/v1/remotes: remote hosts that hold layers of a model, through SSH tunnels.
"""

import asyncio
import base64
import hashlib

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from devices.msgspec_lock import learned
from engine.api import remotes as worker_api
from engine.api import upstreams as api
from engine.core.addresses import is_plain_text
from engine.core.errors import InputFault
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from engine.remotes.types import Remote
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import ServerState, server_state
from engine.upstreams.types import Rule, Upstream

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/upstreams")
async def list_upstreams(request: Request, *, check: bool = False) -> api.Upstreams:
    """All upstreams with their models, and the rules; `check` probes each upstream first."""
    state = server_state(request)
    if check:
        await state.links.look()
    return _all(state)


@router.put("/upstreams/{name}")
async def put_upstream(request: Request, name: str, body: api.UpstreamRequest) -> api.UpstreamRow:
    """Add or change an upstream and probe it. Without a rule, only probes are sent to it.

    If it moves to another scheme, host or port, its key is deleted; send the key again.
    """
    state = server_state(request)
    upstream = await asyncio.to_thread(state.links.registry.add, name, body.url, body.kind)
    if body.key is not None:
        await asyncio.to_thread(state.links.registry.keys.put, name, body.key)
    await state.links.look(name)
    return _row(state, upstream)


@router.post("/upstreams/{name}/check")
async def check_upstream(request: Request, name: str) -> api.UpstreamRow:
    """Probe an upstream now."""
    state = server_state(request)
    await state.links.look(name)
    return _row(state, state.links.registry.get(name))


@router.put("/upstreams/{name}/key")
async def put_key(request: Request, name: str, body: api.UpstreamKeyRequest) -> api.UpstreamRow:
    """Set or remove the key of an upstream."""
    state = server_state(request)
    state.links.registry.get(name)
    if body.key is None:
        await asyncio.to_thread(state.links.registry.keys.remove, name)
    else:
        await asyncio.to_thread(state.links.registry.keys.put, name, body.key)
    await state.links.look(name)
    return _row(state, state.links.registry.get(name))


@router.delete("/upstreams/{name}", status_code=204, response_class=Response)
async def remove_upstream(request: Request, name: str) -> None:
    """Delete an upstream, its key and its rules."""
    await asyncio.to_thread(server_state(request).links.registry.remove, name)


@router.put("/upstream-rules")
async def put_rule(request: Request, body: api.UpstreamRule) -> api.Upstreams:
    """Add a rule that sends requests for a model to another server."""
    state = server_state(request)
    state.links.registry.add_rule(msgspec.convert(body, learned(Rule), from_attributes=True))
    return _all(state)


@router.delete("/upstream-rules", status_code=204, response_class=Response)
async def remove_rule(request: Request, model: str, upstream: str | None = None) -> None:
    """Delete a rule."""
    if not server_state(request).links.registry.remove_rule(model, upstream):
        raise InputFault(f"There is no rule for {model!r}.", "model")


def _all(state: ServerState) -> api.Upstreams:
    saved = state.links.registry.saved
    return api.Upstreams(
        upstreams=tuple(_row(state, u) for u in saved.upstreams),
        rules=msgspec.convert(saved.rules, learned(tuple[api.UpstreamRule, ...]), from_attributes=True),
    )


def _row(state: ServerState, upstream: Upstream) -> api.UpstreamRow:
    registry = state.links.registry
    health = registry.health(upstream.name)
    return api.UpstreamRow(
        name=upstream.name,
        url=upstream.url,
        kind=upstream.kind or health.kind,
        state=health.state,
        reason=sentence(health.reason),
        reason_detail=health.reason if isinstance(health.reason, Reason) else None,
        at=health.at,
        latency_ms=round(health.latency_s * 1000, 2),
        key=registry.keys.storage(upstream.name),
        plain_text=is_plain_text(upstream.url),
        models=tuple(
            api.UpstreamModel(
                name=m.name,
                n_ctx=m.n_ctx,
                capabilities=m.capabilities,
                allowed=registry.allows(f"{upstream.name}/{m.name}"),
            )
            for m in health.models
        ),
    )


@router.get("/remotes")
async def list_remotes(request: Request) -> worker_api.Remotes:
    """All workers with the result of their last probe. Does not contact them."""
    state = server_state(request)
    rows = tuple(_worker_row(state, remote) for remote in state.remotes.registry.remotes)
    return worker_api.Remotes(remotes=rows, kernel=state.remotes.kernel)


@router.put("/remotes/{name}")
async def put_remote(request: Request, name: str, body: worker_api.RemoteRequest) -> worker_api.RemoteRow:
    """Add or change a worker and probe it. Its host key must be known or part of the request."""
    state = server_state(request)
    fields = msgspec.structs.asdict(body)
    expected = fields.pop("host_key")
    await state.remotes.add(Remote(name=name, host_key="", **fields), expected)
    return _worker_row(state, state.remotes.registry.get(name))


@router.post("/remotes/{name}/check")
async def check_remote(request: Request, name: str) -> worker_api.RemoteRow:
    """Probe a worker now and measure its connection."""
    state = server_state(request)
    await state.remotes.check(name)
    return _worker_row(state, state.remotes.registry.get(name))


@router.delete("/remotes/{name}", status_code=204, response_class=Response)
async def remove_remote(request: Request, name: str) -> None:
    """Remove a worker. Raises: InputFault: it holds layers of a loaded model."""
    state = server_state(request)
    state.remotes.registry.get(name)
    if models := _models_on(state, name):
        raise InputFault(because("layers_on_worker", models=tuple(models), name=name), "name")
    state.remotes.registry.remove(name)


def _models_on(state: ServerState, name: str) -> tuple[str, ...]:
    return tuple(m.id for m in state.pool.loaded if any(layers.remote == name for layers in m.settings.remotes))


def _worker_row(state: ServerState, remote: Remote) -> worker_api.RemoteRow:
    seen = state.remotes.registry.seen(remote.name)
    facts, link = seen.facts, seen.link
    return worker_api.RemoteRow(
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
        models=_models_on(state, remote.name),
    )


def _fingerprint(line: str) -> str:
    """The fingerprint in ssh-keygen's format."""
    parts = line.split()
    blob = base64.b64decode(parts[1]) if len(parts) > 1 else b""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
