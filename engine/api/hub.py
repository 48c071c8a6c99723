"""/tessera/v1/hub: models that could be fetched, and what they would need here."""

from typing import Literal

import msgspec

from engine.library.hub.types import (
    Choice,
    FitEstimate,
    Newer,
    Option,
    OwnBuild,
    RepoFile,
    RepoHit,
    RepoPlan,
    Repository,
    Starter,
)
from engine.library.types import Details
from engine.message_catalog.reasons import Reason

__all__ = [
    "Choice",
    "Details",
    "FitEstimate",
    "Folder",
    "Folders",
    "Newer",
    "Option",
    "OwnBuild",
    "Proposal",
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
    """A starter that fits, why this one, and what to expect of it here (`expected_tok_s` None: not known).

    `reason` is an English sentence, `reason_detail` the same as facts.

    At most one is `recommended`: the largest to chat with that writes as fast as people read, else the quickest,
    or, where no speed is known, the smallest.
    """

    starter: Starter
    reason: str = ""
    reason_detail: Reason | None = None
    expected_bytes: int = 0
    expected_tok_s: float | None = None
    recommended: Literal["", "reading_speed", "quickest", "smallest"] = ""


class Starters(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/starters."""

    proposals: tuple[Proposal, ...]


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of another application whose models could be linked."""

    app: str
    path: str


class Folders(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/folders."""

    folders: tuple[Folder, ...]


class Updates(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/updates; `problems`: repositories that could not be asked, with the reason."""

    updates: tuple[Newer, ...]
    problems: dict[str, str] = {}
