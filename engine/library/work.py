"""The library's long tasks as jobs: pull, verify, import."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from engine.core.errors import Cancelled, InputFault
from engine.jobs.job_types import ModelMade
from engine.jobs.jobs import JobContext, JobKind, JobRegistry, Work, params_of
from engine.library.catalogue import Catalogue, require
from engine.library.hashing import git_sha1_of, sha256_of
from engine.library.hub.types import CompareTask
from engine.library.importing import import_copy
from engine.library.recommended_models import starter_repo
from engine.library.types import FileCheck, ModelEntry, Verification
from engine.message_catalog.reasons import because

if TYPE_CHECKING:
    from engine.library.hub.plan import FitEstimator

_DOWNLOADS_AT_ONCE = 2
P = TypeVar("P")


class PullTask(msgspec.Struct, frozen=True, kw_only=True):
    """Download `model` (see `parse_hub_name`) with `quant` and `revision` if given.

    `update`: its newer version; `original`: the most exact file, as a source for others.
    """

    model: str
    quant: str | None = None
    revision: str | None = None
    vision: bool = True
    update: bool = False
    original: bool = False


class ImportTask(msgspec.Struct, frozen=True, kw_only=True):
    """Copy a file or folder into the library."""

    path: str


class VerifyTask(msgspec.Struct, frozen=True, kw_only=True):
    """Hash the files of a model."""

    model: str


def register(
    registry: JobRegistry,
    open_catalogue: Callable[[], Catalogue],
    estimate: "Callable[[], FitEstimator] | None" = None,
) -> None:
    """Register the jobs `pull`, `verify` and `import`; each run closes its catalogue.

    `estimate` creates the estimator that decides whether a file fits on this computer.
    """

    def with_catalogue(work: Callable[[Catalogue, P, JobContext], msgspec.Struct]) -> Work[P]:
        def run(task: P, control: JobContext) -> msgspec.Struct:
            with closing(open_catalogue()) as catalogue:
                return work(catalogue, task, control)

        return run

    def fetch(catalogue: Catalogue, task: PullTask, control: JobContext) -> ModelMade:
        if task.update:
            return _result(update(catalogue, task.model, control))
        return _result(pull(catalogue, task, control, estimate() if estimate is not None else None))

    def hash_files(catalogue: Catalogue, task: VerifyTask, control: JobContext) -> Verification:
        return verify(catalogue, require(catalogue, task.model), control)

    registry.register(JobKind.PULL, with_catalogue(fetch), _DOWNLOADS_AT_ONCE, read=params_of(PullTask))
    registry.register(JobKind.VERIFY, with_catalogue(hash_files), read=params_of(VerifyTask))
    registry.register(JobKind.COMPARE, with_catalogue(_compare), read=params_of(CompareTask))
    registry.register(JobKind.IMPORT, with_catalogue(_import), read=params_of(ImportTask))


def pull(
    catalogue: Catalogue, task: PullTask, control: JobContext, estimate: "FitEstimator | None" = None
) -> ModelEntry:
    """Plan and download the model of a task.

    Raises: the errors of planning and downloading; Paused and Cancelled from `control`.
    """
    # Importing the hub client takes 0.25 s, and only this job needs it.
    from engine.library.hub.client import HubClient
    from engine.library.hub.download import Download, Request, discard_parts
    from engine.library.hub.file_selection import (
        choose,
        files_of,
        parse_hub_name,
    )
    from engine.library.hub.plan import plan_repository

    name = parse_hub_name(starter_repo(task.model) or task.model)
    name = replace(name, label=task.quant or name.label, revision=task.revision or name.revision)
    try:
        control.check()
    except Cancelled:  # cancelled while paused: remove its partial files without contacting the hub
        discard_parts(catalogue.paths, name.repo)
        raise
    client = HubClient()
    control.report("planning", 0, 0)
    plan = plan_repository(client, catalogue.paths, name.repo, revision=name.revision, estimate=estimate)
    if task.original and plan.build_from is None:
        raise InputFault(because("no_original", repo=name.repo), "model")
    option = choose(plan, replace(name, label=plan.build_from) if task.original else name)
    files = files_of(plan.repository, option.choice, vision=task.vision)
    return Download(client, catalogue, Request(plan.repository, files)).run(control)


def update(catalogue: Catalogue, model: str, control: JobContext) -> ModelEntry:
    """Replace a model by its newer version from the hub.

    Raises: BadUpdate: it cannot be read and the older version was restored; the errors of `pull`.
    """
    from engine.library.hub.client import HubClient
    from engine.library.hub.download import Download, discard_parts
    from engine.library.hub.newer import newest

    entry = require(catalogue, model)
    try:
        control.check()
    except Cancelled:
        discard_parts(catalogue.paths, entry.origin.repo or "")
        raise
    client = HubClient()
    control.report("planning", 0, 0)
    return Download(client, catalogue, newest(catalogue, client, entry)).run(control)


def _compare(catalogue: Catalogue, task: CompareTask, control: JobContext) -> msgspec.Struct:
    # These imports are for this job only: the hub client, numpy, ggml.
    from engine.library.hub.client import HubClient
    from engine.library.hub.expected_loss import compare

    return compare(HubClient(), catalogue, task, control)


def _import(catalogue: Catalogue, task: ImportTask, control: JobContext) -> ModelMade:
    earlier = {entry.id for entry in catalogue.entries()}
    entry = import_copy(catalogue, Path(task.path), control)
    return replace(_result(entry), is_new=entry.id not in earlier)


def _result(entry: ModelEntry) -> ModelMade:
    return ModelMade(model=entry.id, path=str(entry.path), size_bytes=entry.size_bytes)


_SHA256_HEX = 64


def verify(catalogue: Catalogue, entry: ModelEntry, control: JobContext) -> Verification:
    """Hash all files, compare and store the hashes. Raises: Cancelled, Paused from `control`."""
    total = sum(file.size_bytes for file in entry.files)
    done = 0
    checks, files = [], []
    for file in entry.files:
        path = Path(file.path)
        promised = entry.origin.expected.get(path.name) or file.sha256
        try:
            actual = sha256_of(path, control, done=done, total=total)
            is_git = promised is not None and len(promised) != _SHA256_HEX
            matches = promised is None or promised == (git_sha1_of(path) if is_git else actual)
        except OSError as error:
            reason = error.strerror or str(error)
            checks.append(FileCheck(path=file.path, sha256=None, expected=promised, ok=False, problem=reason))
            files.append(file)
            continue
        done += file.size_bytes
        problem = None if matches else "the content does not match its checksum"
        checks.append(FileCheck(path=file.path, sha256=actual, expected=promised, ok=matches, problem=problem))
        files.append(msgspec.structs.replace(file, sha256=actual) if matches else file)
    ok = all(check.ok for check in checks)
    if ok:
        catalogue.put(msgspec.structs.replace(entry, files=tuple(files), state="online"))
    return Verification(model=entry.id, ok=ok, basis=_basis(entry), files=tuple(checks))


def _basis(entry: ModelEntry) -> str:
    if entry.origin.expected:
        return "hub" if entry.origin.kind == "hub" else "owner"
    return "earlier" if any(file.sha256 for file in entry.files) else "none"
