"""/tessera/v1/hub: models to download, with their memory needs on this computer."""

from typing import Literal

import msgspec

from engine.library.hub.types import (
    FitEstimate,
    Newer,
    Option,
    OwnBuild,
    QuantVariant,
    RepoFile,
    RepoHit,
    RepoPlan,
    Repository,
    Starter,
)
from engine.library.types import Details
from engine.message_catalog.reasons import Reason

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


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended model that fits, with a reason and its expected speed and memory on this computer.

    `expected_tok_s` is None if unknown. `reason` is an English sentence; `reason_detail` is the same as structured
    data.
    `want` is what people choose it for: fast answers, a balance of speed and quality, or pictures.
    `download_bytes` is the size of the usual file on the hub, if that was asked for.
    At most one proposal is `recommended`: the largest chat model that generates at reading speed, else the fastest,
    or the smallest if no speed is known.
    """

    starter: Starter
    reason: str = ""
    reason_detail: Reason | None = None
    expected_bytes: int = 0
    expected_tok_s: float | None = None
    recommended: Literal["", "reading_speed", "quickest", "smallest"] = ""
    want: Literal["", "fast", "balanced", "pictures"] = ""
    download_bytes: int = 0


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
