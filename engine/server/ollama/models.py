"""Ollama's model routes: lists, details, aliases, downloads and embeddings."""

import asyncio
import hashlib
import json
import math
import sys
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from devices.errors import TesseraError
from engine.core.errors import InputFault, ModelNotFound
from engine.jobs.jobs import Job, JobKind
from engine.library.trash import Trash
from engine.library.types import ModelEntry
from engine.placement.model_settings import NO_PRESET, Preset
from engine.runner.protocol import Embedded
from engine.server.body import ignored_header, openapi_body, parse
from engine.server.embedding import embed as embed_inputs
from engine.server.errors import NotServed
from engine.server.models import LATEST
from engine.server.ollama.errors import SHAPE
from engine.server.ollama.keep_alive import FOREVER_S, NANO, acquire, keep
from engine.server.ollama.schemas import CopyBody, CreateBody, EmbedBody, Named, OldEmbedBody, PullBody, ShowBody
from engine.server.ollama.stream import NDJSON
from engine.server.protocol_router import protocol_router
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from quantize.files.channel_scales import KEY as SCALES_KEY
from quantize.files.gguf_file import LazyArray, ValueType
from quantize.files.gguf_split import read_gguf_model

router = protocol_router(SHAPE, prefix="/api", tags=["ollama"])

# Clients derive the supported features from the version; this one matches the implemented protocol.
OLLAMA_VERSION = "0.12.11"
# Longer lists of a file header are omitted, such as the vocabulary's tokens.
_FEW = 64
_CAPABILITIES = {"reasoning": "thinking", "fim": "insert", "chat": "completion", "rerank": "embedding"}


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of Ollama whose protocol is implemented."""
    return {"version": OLLAMA_VERSION}


def plain(name: str) -> str:
    """The name without the tag that clients append to names without one."""
    return name.removesuffix(LATEST)


def tagged(name: str) -> str:
    """The name as Ollama lists it: `:latest` is appended to names without a tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def _digest(entry: ModelEntry) -> str:
    sha256 = entry.files[0].sha256
    return sha256 or hashlib.sha256(f"{entry.path}:{entry.size_bytes}".encode()).hexdigest()


def _details(entry: ModelEntry) -> dict[str, Any]:
    billions = entry.details.n_params / 1e9
    size = f"{billions:.1f}B" if billions >= 1 else f"{entry.details.n_params / 1e6:.1f}M"
    return {
        "parent_model": "",
        "format": entry.format,
        "family": entry.architecture,
        "families": [entry.architecture],
        "parameter_size": size,
        "quantization_level": entry.details.quantization,
    }


def _capabilities(entry: ModelEntry) -> list[str]:
    return list(dict.fromkeys(_CAPABILITIES.get(name, name) for name in entry.capabilities))


def _tag(name: str, entry: ModelEntry) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": datetime.fromtimestamp(entry.added_at, UTC).isoformat(),
        "size": entry.size_bytes,
        "digest": _digest(entry),
        "details": _details(entry),
    }


@router.get("/tags")
async def tags(request: Request) -> dict[str, Any]:
    """All models, and all aliases that are not patterns."""
    state = server_state(request)
    entries = [e for e in await state.models.entries() if e.servable and e.state == "online"]
    by_id = {e.id: e for e in entries}
    alias_entries = [
        (alias, by_id[model])
        for alias, model in state.models.user_settings.plain_aliases().items()
        if model in by_id
    ]
    rows = [*((e.id, e) for e in entries), *alias_entries]
    return {"models": [{**_tag(tagged(name), e), "capabilities": _capabilities(e)} for name, e in rows]}


@router.get("/ps")
async def loaded(request: Request) -> dict[str, Any]:
    """Loaded models with their expiry times."""
    state = server_state(request)
    # Reading a runner's memory may wait for another process.
    reserved = {r.owner: r for r in await asyncio.to_thread(state.placer.ledger.reservations)}
    rows = []
    for model in state.pool.loaded:
        entry = await state.models.known(model.id)
        ttl_s = FOREVER_S if model.expires_in_s is None else min(model.expires_in_s, FOREVER_S)
        expires = datetime.now(UTC) + timedelta(seconds=ttl_s)
        assert model.facts is not None
        on_device = sum(n for device, n in model.facts.memory_bytes.items() if device != "cpu")
        row = reserved.get(model.id)
        # Size as Ollama defines it: weights, context and compute buffers, without memory for stored prefixes.
        size = row.predicted_bytes - row.parts.get("prefixes", 0) if row is not None else entry.size_bytes
        more = {"expires_at": expires.isoformat(), "size": size, "size_vram": on_device}
        more["context_length"] = model.facts.n_ctx
        rows.append({**_tag(tagged(entry.id), entry), **more})
    return {"models": rows}


@router.post("/show", openapi_extra=openapi_body(ShowBody))
async def show(request: Request) -> Response:
    """Details of a model. `context_length` is the possible length; a loaded model grows to it on demand."""
    state = server_state(request)
    body = await parse(request, ShowBody)
    entry = await state.models.entry(body.wanted)
    preset = state.models.user_settings.preset(plain(body.wanted))
    n_ctx = await state.contexts.largest(entry.id)
    template = entry.chat_template or ""
    if "fim" in entry.capabilities:  # clients look for this before they send a suffix
        template += "{{- /* .Suffix */ -}}"
    payload = {
        "license": entry.details.license or "",
        "modelfile": f"FROM {entry.id}\n" + (f'SYSTEM """{preset.system}"""\n' if preset.system else ""),
        "parameters": "\n".join(f"{name} {value}" for name, value in {"num_ctx": n_ctx, **preset.options}.items()),
        "template": template,
        "details": _details(entry),
        "model_info": await asyncio.to_thread(_model_info, entry, bool(body.verbose)),
        "capabilities": _capabilities(entry),
        "modified_at": datetime.fromtimestamp(entry.added_at, UTC).isoformat(),
        "context_length": n_ctx,
        "loaded_context_length": state.contexts.loaded(entry.id),
    }
    return JSONResponse(payload, headers=ignored_header(body.ignored()))


def _model_info(entry: ModelEntry, verbose: bool) -> dict[str, Any]:
    """All keys of the file's header; long lists are null, as in Ollama's short format."""
    payload: dict[str, Any] = {
        "general.architecture": entry.architecture,
        "general.basename": entry.name,
        "general.parameter_count": entry.details.n_params,
        f"{entry.architecture}.context_length": entry.context_train,
    }
    if entry.format != "gguf":
        return payload
    try:
        metadata = dict(read_gguf_model(entry.path).metadata)
        most = sys.maxsize if verbose else _FEW
        metadata.pop("tokenizer.chat_template", None)
        if not verbose:
            metadata.pop(SCALES_KEY, None)
        return payload | {key: _as_json(value, most) for key, value in metadata.items()}
    except (TesseraError, OSError):
        return payload


def _as_json(value: Any, most: int) -> Any:
    """A value as JSON; None for lists with more than `most` items."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str | bool | int | float):
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    if len(value) > most:
        return None
    if isinstance(value, LazyArray):
        value = value.strings() if value.element_type is ValueType.STRING else value.numbers().tolist()
    return [_as_json(part, most) for part in value]


@router.post("/embed", openapi_extra=openapi_body(EmbedBody))
async def embed(request: Request) -> Response:
    """Embed one or several texts.

    Longer inputs are truncated to the context, as in Ollama, with a note in `tessera`.
    """
    state = server_state(request)
    body = await parse(request, EmbedBody)
    headers = ignored_header(body.ignored())
    inputs: list[str | list[int]] = [body.input] if isinstance(body.input, str) else list(body.input)
    if not any(inputs[:1]) and len(inputs) < 2:
        return JSONResponse({"model": body.model, "embeddings": [], "prompt_eval_count": 0}, headers=headers)
    started_at = time.monotonic()
    _, loaded_s = await while_connected(request, acquire(state, body))
    work = embed_inputs(state, body.model, inputs, body.dimensions, truncate=body.truncate is not False)
    model, vectors, answer = await while_connected(request, work)
    if keep(model, body.keep_alive) and model.idle:
        await state.pool.unload(model.id)
    payload: dict[str, Any] = {
        "model": body.model,
        "embeddings": [vector.tolist() for vector in vectors],
        "total_duration": int((time.monotonic() - started_at) * NANO),
        "load_duration": int(loaded_s * NANO),
        "prompt_eval_count": sum(answer.token_counts),
    }
    if notes := _cuts(answer):
        payload["tessera"] = {"notes": notes}
    return JSONResponse(payload, headers=headers)


@router.post("/embeddings", openapi_extra=openapi_body(OldEmbedBody))
async def embeddings(request: Request) -> Response:
    """Embed one text, in the older format. A longer input is truncated, with a note in `tessera`."""
    state = server_state(request)
    body = await parse(request, OldEmbedBody)
    headers = ignored_header(body.ignored())
    if not body.prompt:
        return JSONResponse({"embedding": []}, headers=headers)
    await while_connected(request, acquire(state, body))
    work = embed_inputs(state, body.model, [body.prompt], truncate=True)
    model, vectors, answer = await while_connected(request, work)
    if keep(model, body.keep_alive) and model.idle:
        await state.pool.unload(model.id)
    payload: dict[str, Any] = {"embedding": vectors[0].tolist()}
    if notes := _cuts(answer):
        payload["tessera"] = {"notes": notes}
    return JSONResponse(payload, headers=headers)


def _cuts(answer: Embedded) -> list[str]:
    """Notes about truncated inputs."""
    return [f"input[{i}] was cut from {n} to {answer.token_counts[i]} tokens" for i, n in answer.cut.items()]


@router.post("/copy", openapi_extra=openapi_body(CopyBody), response_class=Response)
async def copy(request: Request) -> Response:
    """Create an alias of a model."""
    state = server_state(request)
    body = await parse(request, CopyBody)
    await _name(state, body.source, plain(body.destination))
    return Response(headers=ignored_header(body.ignored()))


@router.post("/create", openapi_extra=openapi_body(CreateBody))
async def create(request: Request) -> Response:
    """Create an alias with its own SYSTEM and PARAMETER lines. Other content of a Modelfile is refused."""
    state = server_state(request)
    body = await parse(request, CreateBody)
    if body.from_ is None:
        raise InputFault("from: only a new name for an existing model can be created here.", "from")
    refused = [*body.ignored(), *(["quantize"] if body.quantize else [])]
    if refused:
        raise InputFault(
            f"{refused[0]} cannot be set here: a name gets a system prompt and parameters of its own, no more; "
            f"quantize with `tessera quantize {body.from_}`.",
            refused[0],
        )
    options = body.parameters.model_dump(exclude_none=True) if body.parameters is not None else {}
    await _name(state, body.from_, plain(body.wanted), Preset(body.system or "", options))
    done = {"status": "success"}
    if body.stream is False:
        return JSONResponse(done)
    return Response(json.dumps(done) + "\n", media_type=NDJSON.decode())


async def _name(state: ServerState, model: str, name: str, preset: Preset = NO_PRESET) -> None:
    await state.models.add_alias(name, model, preset)
    state.pool.forget_names()


@router.delete("/delete", openapi_extra=openapi_body(Named), response_class=Response)
async def delete(request: Request) -> Response:
    """Delete an alias, or move a model to the trash, from which it can be restored."""
    state = server_state(request)
    body = await parse(request, Named)
    headers = ignored_header(body.ignored())
    name = plain(body.wanted)
    if state.models.user_settings.remove_alias(name):
        state.pool.forget_names()
        return Response(headers=headers)
    catalogue = await state.models.catalogue()
    entry = await asyncio.to_thread(catalogue.get, name)
    if entry is None:
        raise ModelNotFound(name)
    await state.pool.unload(entry.id)
    await asyncio.to_thread(Trash(catalogue).remove, entry)
    return Response(headers=headers)


@router.post("/pull", openapi_extra=openapi_body(PullBody))
async def pull(request: Request) -> Response:
    """Download a model; the lines report its progress. The job continues if the client disconnects."""
    state = server_state(request)
    body = await parse(request, PullBody)
    headers = ignored_header(body.ignored())
    name = plain(body.wanted)
    params = {"model": name, "quant": None, "revision": None, "vision": True}
    job = state.jobs.start(JobKind.PULL, name, params)
    if body.stream is False:
        last = await while_connected(request, asyncio.to_thread(state.jobs.wait, job.id))
        if last.state != "done":
            raise InputFault(f"{name} was not fetched: {_failure_text(last)}", "model")
        return JSONResponse({"status": "success"}, headers=headers)
    return EventStream(_progress(state, job.id), SHAPE, ping=b"", media_type=NDJSON, headers=headers)


@router.post("/push", include_in_schema=False)
async def push(_: Request) -> None:
    """Refused: models are published with the registry's own tools."""
    raise NotServed("Models are not published from here; upload the file with the registry's own tool.")


def _failure_text(job: Job) -> str:
    return job.error.message if job.error else f"the job is {job.state}"


async def _progress(state: ServerState, job_id: str) -> AsyncGenerator[bytes, None]:
    with state.jobs.subscribe(job_id) as subscription:
        async for job in subscription.changes():
            if job.state == "done":
                yield b'{"status":"success"}\n'
            elif job.ended or job.state == "paused":
                yield json.dumps({"error": f"{job.title} was not fetched: {_failure_text(job)}"}).encode() + b"\n"
                return
            else:
                payload: dict[str, Any] = {"status": job.progress.phase or job.state}
                if job.progress.total:
                    payload |= {"total": job.progress.total, "completed": job.progress.done, "digest": job.title}
                yield json.dumps(payload).encode() + b"\n"
