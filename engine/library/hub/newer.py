"""Finds models whose repository has other content than when they were downloaded."""

from pathlib import Path

from engine.core.errors import InputFault
from engine.library import origins
from engine.library.catalogue import Catalogue
from engine.library.errors import GatedRepository, RepositoryNotFound
from engine.library.hub.client import HubClient
from engine.library.hub.download import DownloadPaths, Request, identity
from engine.library.hub.types import Newer, RepoFile
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import because


def look_for_newer(catalogue: Catalogue, client: HubClient) -> tuple[tuple[Newer, ...], dict[str, str]]:
    """Models with a newer version, and the repositories that failed, with the reason.

    Each repository is queried once. A deleted or newly gated one does not hide the updates of the others.

    Raises: HubUnreachable, Offline, RateLimited.
    """
    by_repo: dict[str, list[ModelEntry]] = {}
    for entry in catalogue.entries():
        if entry.origin.kind == "hub" and entry.origin.repo and entry.state == "online":
            by_repo.setdefault(entry.origin.repo, []).append(entry)
    newer: list[Newer] = []
    problems: dict[str, str] = {}
    for repo, entries in by_repo.items():
        try:
            repository = client.repository(repo)
        except (RepositoryNotFound, GatedRepository) as error:
            problems[repo] = str(error)
            continue
        for entry in entries:
            request, changed = _compare(catalogue, entry, Request(repository, ()))
            if changed:
                size = sum(file.size_bytes for file in changed)
                newer.append(Newer(model=entry.id, revision=request.repository.revision, size_bytes=size))
    return tuple(newer), problems


def newest(catalogue: Catalogue, client: HubClient, entry: ModelEntry) -> Request:
    """The model's current files on the hub. Raises: InputFault: it did not come from a hub; hub errors."""
    if entry.origin.kind != "hub" or not entry.origin.repo:
        raise InputFault(because("not_from_a_hub", model=entry.id), "model")
    request, _ = _compare(catalogue, entry, Request(client.repository(entry.origin.repo), ()))
    if not request.files:
        raise InputFault(because("no_files_any_more", repo=entry.origin.repo, model=entry.id), "model")
    return request


def _compare(catalogue: Catalogue, entry: ModelEntry, now: Request) -> tuple[Request, list[RepoFile]]:
    """The model's files in the repository, the one to open first; and those that changed.

    No files if one of them no longer exists there: a part of a model is not a newer version.
    """
    paths = DownloadPaths(catalogue.paths, now.repository)
    note = origins.read_note(paths.folder)
    noted = note.sha256 if note is not None else {}
    mine = [name for name in noted if Path(name).name in entry.origin.expected]
    files = {file.name: file for file in now.repository.files if file.name in mine}
    if not mine or len(files) != len(mine):
        return now, []
    ordered = sorted(files.values(), key=lambda file: (str(paths.final(file)) != str(entry.path), file.name))
    changed = [file for file in ordered if identity(file) != noted[file.name]]
    return Request(now.repository, tuple(ordered)), changed
