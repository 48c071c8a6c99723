"""/tessera/v1/hub: models to download, with their memory needs on this computer."""

import msgspec

from engine.library.hub.types import (
    FitEstimate,
    Newer,
    Option,
    OwnBuild,
    Proposal,
    QuantVariant,
    RepoFile,
    RepoHit,
    RepoPlan,
    Repository,
    Starter,
)
from engine.library.types import Details

__all__ = [
    "Details",
    "FitEstimate",
    "Folder",
    "Folders",
    "Newer",
    "Option",
    "OwnBuild",
    "Proposal",
    "QuantVariant",
    "RepoFile",
    "RepoHit",
    "RepoPlan",
    "Repository",
    "SearchResults",
    "Starter",
    "Starters",
    "Updates",
]


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/search."""

    repositories: tuple[RepoHit, ...]


class Starters(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/starters: from the table of the day `listed_on` (year, month, day).

    `checked`: the hub has them now, and `download_bytes` are the sizes of the usual files there.
    """

    proposals: tuple[Proposal, ...]
    listed_on: str = ""
    checked: bool = False


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of another application whose models can be linked."""

    app: str
    path: str


class Folders(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/folders."""

    folders: tuple[Folder, ...]


class Updates(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/updates; `problems` maps each repository that could not be queried to the reason."""

    updates: tuple[Newer, ...]
    problems: dict[str, str] = {}
