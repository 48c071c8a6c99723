"""/tessera/v1/hub: models to download, with their memory needs on this computer."""

from typing import Annotated

import msgspec
from msgspec import Meta

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
    UploadComparison,
    UploadLoss,
)
from engine.library.types import Details

_HubName = Annotated[str, Meta(min_length=1, max_length=500)]


class CompareUploadsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/hub/compare: uploads of one model, as owner/name, owner/name:Q4_K_M or owner/name/file.gguf.

    Without a quantization, all files of the repository. `original` names what to compare with, in the same forms;
    without it, the most exact file of these repositories or of the one they were made from. `more` other uploads of
    the same model are added, the most downloaded ones.
    """

    uploads: Annotated[tuple[_HubName, ...], Meta(min_length=1, max_length=40)]
    original: Annotated[str, Meta(max_length=500)] = ""
    more: Annotated[int, Meta(ge=0, le=20)] = 0


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
