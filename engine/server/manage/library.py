"""/tessera/v1/models, /hub and /trash: the model library. Long work returns a job (see manage/jobs)."""

import asyncio
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from fastapi import APIRouter, Request

from devices.errors import TesseraError
from engine.api.hub import (
    CompareUploadsRequest,
    Folder,
    Folders,
    Option,
    RepoPlan,
    SearchResults,
    Starters,
    Updates,
)
from engine.api.jobs import Job, JobKind
from engine.api.library import (
    Freed,
    ImportRequest,
    Linked,
    LinkedFolders,
    LinkRequest,
    LocateRequest,
    Model,
    Models,
    ModelsFolder,
    MoveRequest,
    PullRequest,
    Removed,
    RenameRequest,
    Tensor,
    Tensors,
    Trash,
    Unlinked,
)
from engine.core.errors import BadModelFile, InputFault
from engine.core.paths import whole_path
from engine.core.sampling import choose
from engine.library import importing, models_folder, recommended_models, trash
from engine.library.catalogue import Catalogue, require
from engine.library.errors import HubUnreachable, Offline, RateLimited
from engine.library.hub.file_selection import parse_hub_name
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import because
from engine.placement.model_settings import named_model
from engine.server.manage.models import decided
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state
from engine.services import EngineFacade
from quantize.files.gguf_split import read_gguf_model

log = logging.getLogger(__name__)
router = APIRouter(prefix="/tessera/v1", tags=["library"], route_class=TypedRoute)


@router.get("/models")
async def list_models(request: Request, *, refresh: bool = False) -> Models:
    """All models with their state; `refresh` scans for new files first."""
    catalogue = await _catalogue(request)
    if refresh:
        await asyncio.to_thread(catalogue.refresh)
    entries = await asyncio.to_thread(catalogue.entries)
    external = await server_state(request).models.external(fresh=refresh)
    return Models(models=tuple(_model(entry, with_template=False) for entry in (*entries, *external)))


@router.post("/models/pull", status_code=202)
async def pull(request: Request, body: PullRequest) -> Job:
    """Start a download."""
    title = f"{body.model}:{body.quant}" if body.quant else body.model
    return server_state(request).jobs.start(JobKind.PULL, title, body)


@router.post("/models/import", status_code=202)
async def import_model(request: Request, body: ImportRequest) -> Job:
    """Start copying a file or folder into the library."""
    return server_state(request).jobs.start(JobKind.IMPORT, Path(body.path).name, body)


@router.post("/models/link")
async def link(request: Request, body: LinkRequest) -> Linked:
    """Add models to the library without copying them."""
    catalogue = await _catalogue(request)
    changes, entry = await asyncio.to_thread(importing.link, catalogue, body.where)
    return Linked(added=(entry.id,) if entry else (*changes.added, *changes.moved))


@router.get("/linked-folders")
async def linked_folders(request: Request) -> LinkedFolders:
    """Folders whose models are used in place."""
    return LinkedFolders(folders=await asyncio.to_thread(importing.linked_folders, await _catalogue(request)))


@router.delete("/linked-folders")
async def unlink(request: Request, where: str) -> Unlinked:
    """Stop using the models of a linked folder, or of all linked folders of an application. Files stay."""
    state = server_state(request)
    unlinked = await asyncio.to_thread(importing.unlink, await _catalogue(request), where)
    state.pool.forget_names()
    for model in unlinked.removed:
        await state.pool.unload(model)
    return unlinked


@router.get("/models/{model}")
async def show_model(request: Request, model: str) -> Model:
    """One model with all details, its model card and its sampling values."""
    elsewhere = next((e for e in await server_state(request).models.external() if e.id == model), None)
    if elsewhere is None:
        elsewhere = await asyncio.to_thread(named_model, await _catalogue(request), model)
    entry = elsewhere
    card_text = await asyncio.to_thread(_card_text, entry)
    sampling = decided(choose({}, server_state(request).models.recommended_for(entry).layers(None)))
    return msgspec.structs.replace(_model(entry, with_template=True), card_text=card_text, sampling=sampling)


@router.put("/models/{model}/name")
async def rename_model(request: Request, model: str, body: RenameRequest) -> Model:
    """Set a model's display name; its id does not change."""
    catalogue = await _catalogue(request)
    entry = await asyncio.to_thread(named_model, catalogue, model)
    renamed = await asyncio.to_thread(catalogue.rename, entry.id, " ".join(body.name.split()))
    server_state(request).pool.forget_names()
    return _model(renamed, with_template=False)


@router.post("/models/{model}/locate")
async def locate_model(request: Request, model: str, body: LocateRequest) -> Model:
    """Use a file at its new path as this model, which keeps its id, name and settings."""
    catalogue = await _catalogue(request)
    entry = await asyncio.to_thread(named_model, catalogue, model)
    moved = await asyncio.to_thread(catalogue.relocate, entry.id, whole_path(body.path, "path"))
    server_state(request).pool.forget_names()
    return _model(moved, with_template=False)


@router.get("/models/{model}/tensors")
async def show_tensors(request: Request, model: str) -> Tensors:
    """Name, type, shape and bytes of every tensor, from the header of a GGUF file."""
    entry = await asyncio.to_thread(named_model, await _catalogue(request), model)
    if entry.format != "gguf" or entry.state != "online":
        raise InputFault(
            because("no_tensors_to_show", model=entry.id, format=entry.format, state=entry.state), "model"
        )
    try:
        header = await asyncio.to_thread(read_gguf_model, entry.path)
    except TesseraError as error:
        raise BadModelFile(str(entry.path), str(error)) from error
    return Tensors(
        tensors=tuple(
            Tensor(name=t.name, qtype=t.ggml_type.name, shape=tuple(t.shape), num_bytes=t.nbytes)
            for _, t in header.tensors()
        )
    )


@router.post("/models/{model}/verify", status_code=202)
async def verify_model(request: Request, model: str) -> Job:
    """Start hashing a model's files."""
    entry = await asyncio.to_thread(named_model, await _catalogue(request), model)
    return server_state(request).jobs.start(JobKind.VERIFY, entry.id, {"model": entry.id})


@router.post("/models/{model}/update", status_code=202)
async def update_model(request: Request, model: str) -> Job:
    """Start downloading the newer version of a model.

    The old version stays until the new one is verified and can be read.
    """
    entry = await asyncio.to_thread(named_model, await _catalogue(request), model)
    if entry.origin.kind != "hub":
        raise InputFault(because("not_from_hub", model=entry.id), "model")
    return server_state(request).jobs.start(JobKind.PULL, entry.name, {"model": entry.id, "update": True})


@router.delete("/models/{model}")
async def remove_model(request: Request, model: str) -> Removed:
    """Unload and remove a model; `ticket` restores it until the trash is emptied."""
    catalogue = await _catalogue(request)
    entry = await asyncio.to_thread(require, catalogue, model)
    await server_state(request).pool.unload(entry.id)
    return _removed(await asyncio.to_thread(trash.Trash(catalogue).remove, entry))


@router.get("/models-folder")
async def show_models_folder(request: Request) -> ModelsFolder:
    """The folder of downloads and imports, and the free space there."""
    folder = (await _catalogue(request)).paths.models
    return ModelsFolder(path=str(folder), free_bytes=await asyncio.to_thread(_free_bytes, folder))


@router.post("/models-folder/move", status_code=202)
async def move_models_folder(request: Request, body: MoveRequest) -> Job:
    """Start moving all models to another folder, or continue a move there that was interrupted.

    Models answer from the old folder until all files are in the new one.
    """
    state, target = server_state(request), whole_path(body.path, "path")
    for job in state.jobs.jobs():
        if job.kind is JobKind.MOVE and not job.ended:
            if job.params.get("target") != str(target):
                raise InputFault(because("move_unfinished", path=job.title), "path")
            return job if job.state in {"queued", "running"} else state.jobs.resume(job.id)
    paths = (await _catalogue(request)).paths
    task = await asyncio.to_thread(models_folder.check, paths, target, state.keep_models_folder)
    return state.jobs.start(JobKind.MOVE, task.target, task)


@router.get("/trash")
async def list_trash(request: Request) -> Trash:
    """Removed models that can be restored."""
    removed = await asyncio.to_thread(trash.Trash(await _catalogue(request)).contents)
    return Trash(trash=tuple(map(_removed, removed)))


@router.post("/trash/{ticket:path}/restore")
async def restore(request: Request, ticket: str) -> Model:
    """Restore a removed model."""
    entry = await asyncio.to_thread(trash.Trash(await _catalogue(request)).restore, ticket)
    return _model(entry, with_template=False)


@router.delete("/trash")
async def empty_trash(request: Request) -> Freed:
    """Delete the removed models permanently."""
    return Freed(freed_bytes=await asyncio.to_thread(trash.Trash(await _catalogue(request)).empty))


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
) -> SearchResults:
    """Search repositories on the hub; `parameters` in the hub's format (`min:3B,max:9B`)."""
    hits = await asyncio.to_thread(
        EngineFacade().search,
        text,
        task=task,
        architecture=architecture,
        parameters=parameters,
        gguf_only=not all_formats,
        sort=sort,
        limit=max(1, min(limit, 200)),
    )
    return SearchResults(repositories=hits)


@router.get("/hub/plan")
async def plan(request: Request, repo: str, revision: str | None = None, *, refresh: bool = False) -> RepoPlan:
    """Memory needs of each quantization of a repository, and the best one; reads only file headers."""
    services = await _services(request)
    repo_plan = await asyncio.to_thread(partial(services.plan, repo, revision, refresh=refresh))
    return msgspec.structs.replace(repo_plan, options=tuple(map(_without_template, repo_plan.options)))


@router.post("/hub/compare", status_code=202)
async def compare_uploads(request: Request, body: CompareUploadsRequest) -> Job:
    """Start estimating the loss of uploads of one model, from samples of their rows; nothing is downloaded.

    Reads some 1.5 % of the files and of the original by range requests.
    """
    title = parse_hub_name(body.uploads[0]).repo.rpartition("/")[2]
    for name in (*body.uploads, *filter(None, [body.original])):
        parse_hub_name(name)  # errors belong to this request, not to the job
    return server_state(request).jobs.start(JobKind.COMPARE, title, body)


@router.get("/hub/starters")
async def show_starters(request: Request, *, check: bool = False) -> Starters:
    """Up to three recommended models that fit this computer, with the expected speed (null: unknown).

    `check` asks the hub whether it has them. If it does not answer, the list is as without `check`.
    """
    services, checked = await _services(request), check
    try:
        offers = await asyncio.to_thread(partial(services.starters, check=check))
    except (HubUnreachable, Offline, RateLimited) as error:
        log.info("recommended models not checked: %s", error)
        offers, checked = await asyncio.to_thread(services.starters), False
    speeds = [round(services.placer.expected_tok_s(proposal.starter.bytes_per_token), 1) for proposal in offers]
    first, why = recommended_models.recommend([(p.starter, speed) for p, speed in zip(offers, speeds, strict=True)])
    proposals = [
        msgspec.structs.replace(
            proposal, expected_tok_s=speed or None, recommended=why if proposal.starter.id == first else ""
        )
        for proposal, speed in zip(offers, speeds, strict=True)
    ]
    ordered = tuple(sorted(proposals, key=lambda proposal: not proposal.recommended))
    return Starters(proposals=ordered, listed_on=recommended_models.listed_on(), checked=checked)


@router.get("/hub/updates")
async def updates(request: Request) -> Updates:
    """Models with a newer version on the hub; each repository is queried once."""
    from engine.library.hub.client import HubClient
    from engine.library.hub.newer import look_for_newer

    catalogue = await _catalogue(request)
    newer, problems = await asyncio.to_thread(lambda: look_for_newer(catalogue, HubClient()))
    return Updates(updates=newer, problems=problems)


@router.get("/hub/folders")
async def folders() -> Folders:
    """Folders of other applications whose models can be linked."""
    foreign = await asyncio.to_thread(EngineFacade().foreign_folders)
    return Folders(folders=tuple(Folder(app=folder.app, path=str(folder.path)) for folder in foreign))


async def _services(request: Request) -> EngineFacade:
    catalogue = await _catalogue(request)
    return EngineFacade(catalogue.paths, catalogue, server_state(request).placer)


async def _catalogue(request: Request) -> Catalogue:
    return await server_state(request).models.catalogue()


def _free_bytes(folder: Path) -> int:
    """Free bytes of the drive of a folder that may not exist yet."""
    return next(shutil.disk_usage(path).free for path in (folder, *folder.parents) if path.exists())


def _card_text(entry: ModelEntry) -> str | None:
    try:
        return Path(entry.card).read_text(encoding="utf-8") if entry.card else None
    except OSError:
        return None  # the source folder of the card is gone


def _model(entry: ModelEntry, *, with_template: bool) -> Model:
    details = entry.details
    if not with_template and details.chat_template:
        details = msgspec.structs.replace(details, chat_template="")
    return Model(
        id=entry.id,
        name=entry.name,
        format=entry.format,
        path=str(entry.path),
        size_bytes=entry.size_bytes,
        files=entry.files,
        origin=entry.origin,
        details=details,
        capabilities=tuple(entry.capabilities),
        bits_per_weight=round(entry.bits_per_weight, 3),
        added_at=entry.added_at,
        folder=entry.folder,
        projector=entry.projector,
        report=entry.report,
        card=entry.card,
        state=entry.state,
        problem=entry.problem,
        problem_detail=entry.problem_detail,
    )


def _removed(removed: trash.Removed) -> Removed:
    return Removed(
        ticket=removed.ticket,
        model=removed.entry.id,
        name=removed.entry.name,
        removed_at=removed.removed_at,
        freed_bytes=removed.freed_bytes,
    )


def _without_template(option: Option) -> Option:
    """An option for the response, without the chat template, which is not needed before the download."""
    details = msgspec.structs.replace(option.details, chat_template=None) if option.details else None
    return msgspec.structs.replace(option, details=details)
