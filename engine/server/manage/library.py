"""/tessera/v1/models, /hub and /trash: the library over HTTP. Long work answers with a job (see manage/jobs)."""

import asyncio
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field

from engine.errors import BadModelFile, InputFault
from engine.library import foreign, importing
from engine.library.catalogue import Catalogue
from engine.library.lookup import require
from engine.library.machine import memory_bytes
from engine.library.starters import propose
from engine.library.trash import Removed, Trash
from engine.library.types import ModelEntry
from engine.server.body import Body, openapi_body, parse
from engine.server.state import server_state
from quantize.errors import QuantizeError
from quantize.gguf_split import read_gguf_model

router = APIRouter(prefix="/tessera/v1", tags=["library"])


class PullBody(Body):
    """What to fetch: owner/name, owner/name:Q4_K_M, an address, or a starter's id."""

    model: str = Field(min_length=1, max_length=500)
    quant: str | None = Field(default=None, max_length=200)
    revision: str | None = Field(default=None, max_length=200)
    vision: bool = True


class ImportBody(Body):
    """A file or folder on this computer."""

    path: str = Field(min_length=1, max_length=4096)


class LinkBody(Body):
    """A file, a folder, or an application (lmstudio, ollama, llama.cpp, jan, huggingface)."""

    where: str = Field(min_length=1, max_length=4096)


@router.get("/models")
async def list_models(request: Request, *, refresh: bool = False) -> dict[str, Any]:
    """Every model with its state; `refresh` looks for new files first."""
    catalogue = await _catalogue(request)
    if refresh:
        await asyncio.to_thread(catalogue.refresh)
    entries = await asyncio.to_thread(catalogue.entries)
    return {"models": [_model(entry, with_template=False) for entry in entries]}


@router.post("/models/pull", status_code=202, openapi_extra=openapi_body(PullBody))
async def pull(request: Request) -> dict[str, Any]:
    """Start a download."""
    body = await parse(request, PullBody)
    params = {"model": body.model, "quant": body.quant, "revision": body.revision, "vision": body.vision}
    title = f"{body.model}:{body.quant}" if body.quant else body.model
    return _job(request, "pull", title, params)


@router.post("/models/import", status_code=202, openapi_extra=openapi_body(ImportBody))
async def import_model(request: Request) -> dict[str, Any]:
    """Start copying a file or folder into the library."""
    body = await parse(request, ImportBody)
    return _job(request, "import", body.path, {"path": body.path})


@router.post("/models/link", openapi_extra=openapi_body(LinkBody))
async def link(request: Request) -> dict[str, Any]:
    """Use models where they lie."""
    body = await parse(request, LinkBody)
    catalogue = await _catalogue(request)
    changes, entry = await asyncio.to_thread(importing.link, catalogue, body.where)
    return {"added": [entry.id] if entry else list(changes.added)}


@router.get("/models/{model}")
async def show_model(request: Request, model: str) -> dict[str, Any]:
    """One model with everything known about it."""
    return _model(await asyncio.to_thread(require, await _catalogue(request), model), with_template=True)


@router.get("/models/{model}/tensors")
async def show_tensors(request: Request, model: str) -> dict[str, Any]:
    """Name, type, shape and bytes of every tensor, from the header of a GGUF file."""
    entry = await asyncio.to_thread(require, await _catalogue(request), model)
    if entry.format != "gguf" or entry.state != "online":
        raise InputFault(f"{entry.id} has no tensors to show: it is {entry.format}, {entry.state}.", "model")
    try:
        header = await asyncio.to_thread(read_gguf_model, entry.path)
    except QuantizeError as error:
        raise BadModelFile(str(entry.path), str(error)) from error
    return {
        "tensors": [
            {"name": t.name, "qtype": t.ggml_type.name, "shape": list(t.shape), "num_bytes": t.nbytes}
            for _, t in header.tensors()
        ]
    }


@router.post("/models/{model}/verify", status_code=202)
async def verify_model(request: Request, model: str) -> dict[str, Any]:
    """Start hashing a model's files."""
    entry = await asyncio.to_thread(require, await _catalogue(request), model)
    return _job(request, "verify", entry.id, {"model": entry.id})


@router.delete("/models/{model}")
async def remove_model(request: Request, model: str) -> dict[str, Any]:
    """Unload and remove a model; `ticket` brings it back until the trash is emptied."""
    catalogue = await _catalogue(request)
    entry = await asyncio.to_thread(require, catalogue, model)
    await server_state(request).pool.unload(entry.id)
    return _removed(await asyncio.to_thread(Trash(catalogue).remove, entry))


@router.get("/trash")
async def trash(request: Request) -> dict[str, Any]:
    """What can be brought back."""
    found = await asyncio.to_thread(Trash(await _catalogue(request)).contents)
    return {"trash": [_removed(item) for item in found]}


@router.post("/trash/{ticket}/restore")
async def restore(request: Request, ticket: str) -> dict[str, Any]:
    """Undo a removal."""
    entry = await asyncio.to_thread(Trash(await _catalogue(request)).restore, ticket)
    return _model(entry, with_template=False)


@router.delete("/trash")
async def empty_trash(request: Request) -> dict[str, Any]:
    """Delete removed models for good."""
    return {"freed_bytes": await asyncio.to_thread(Trash(await _catalogue(request)).empty)}


@router.get("/hub/search")
async def search(
    text: str = "",
    task: str | None = None,
    architecture: str | None = None,
    parameters: str | None = None,
    sort: Literal["trending", "downloads", "likes", "lastModified"] = "trending",
    limit: int = 20,
    *,
    all_formats: bool = False,
) -> dict[str, Any]:
    """Repositories on the hub; `parameters` as the hub writes it (`min:3B,max:9B`)."""
    from engine.library.hub.client import HubClient  # noqa: PLC0415 a quarter of a second, needed only online

    hits = await asyncio.to_thread(
        HubClient().search,
        text,
        task=task,
        architecture=architecture,
        parameters=parameters,
        gguf_only=not all_formats,
        sort=sort,
        limit=max(1, min(limit, 200)),
    )
    return {"repositories": msgspec.to_builtins(hits)}


@router.get("/hub/plan")
async def plan(
    request: Request, repo: str, revision: str | None = None, *, refresh: bool = False
) -> dict[str, Any]:
    """What each quantization of a repository needs here, and which is best; only headers are read."""
    from engine.library.hub.client import HubClient  # noqa: PLC0415 see search
    from engine.library.hub.plan import plan_repository  # noqa: PLC0415 see search
    from engine.library.machine import machine_judge  # noqa: PLC0415 see search

    catalogue = await _catalogue(request)
    found = await asyncio.to_thread(
        lambda: plan_repository(
            HubClient(), catalogue.paths, repo, revision=revision, judge=machine_judge(), refresh=refresh
        )
    )
    told: dict[str, Any] = msgspec.to_builtins(found)
    for option, source in zip(told["options"], found.options, strict=True):
        option["size_bytes"] = source.choice.size_bytes
        if option["details"] is not None:
            del option["details"]["chat_template"]
    return told


@router.get("/hub/starters")
async def starters(request: Request) -> dict[str, Any]:
    """Three models to begin with that fit this machine, with the speed to expect (null: not known)."""
    placer = server_state(request).placer

    def tell() -> list[dict[str, Any]]:
        told = []
        for proposal in propose(memory_bytes()):
            starter = proposal.starter
            speed = placer.expected_tok_s(starter.bytes_per_token) if placer is not None else 0.0
            facts = {"expected_bytes": starter.expected_bytes, "expected_tok_s": round(speed, 1) or None}
            told.append({**msgspec.to_builtins(proposal), **facts})
        return told

    return {"proposals": await asyncio.to_thread(tell)}


@router.get("/hub/folders")
async def folders() -> dict[str, Any]:
    """Folders of other applications whose models could be linked."""
    found = await asyncio.to_thread(foreign.present)
    return {"folders": [{"app": folder.app, "path": str(folder.path)} for folder in found]}


async def _catalogue(request: Request) -> Catalogue:
    return await server_state(request).models.catalogue()


def _job(request: Request, kind: str, title: str, params: dict[str, Any]) -> dict[str, Any]:
    job: dict[str, Any] = msgspec.to_builtins(server_state(request).jobs.start(kind, title, params))
    return job


def _model(entry: ModelEntry, *, with_template: bool) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(entry)
    told["path"] = str(entry.path)
    told["size_bytes"] = entry.size_bytes
    told["capabilities"] = list(entry.capabilities)
    told["bits_per_weight"] = round(entry.bits_per_weight, 3)
    if not with_template:
        told["details"]["chat_template"] = None if entry.chat_template is None else ""
    return told


def _removed(removed: Removed) -> dict[str, Any]:
    return {
        "ticket": removed.ticket,
        "model": removed.entry.id,
        "name": removed.entry.name,
        "removed_at": removed.removed_at,
        "freed_bytes": removed.freed_bytes,
    }
