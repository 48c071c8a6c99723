"""/tessera/v1/hub: models that could be fetched, and what they would need here."""

from typing import Literal

import msgspec

from engine.library.types import Details

__all__ = [
    "Choice",
    "Details",
    "FitEstimate",
    "Folder",
    "Folders",
    "HubOption",
    "OwnBuild",
    "Proposal",
    "RepoFile",
    "RepoHit",
    "RepoPlan",
    "Repository",
    "SearchResults",
    "Starter",
    "Starters",
    "Update",
    "Updates",
]


class RepoHit(msgspec.Struct, frozen=True, kw_only=True):
    """One repository in a list of search results; unknown numbers are None."""

    repo: str
    downloads: int = 0
    likes: int = 0
    gated: bool = False
    task: str | None = None
    updated: str | None = None
    architecture: str | None = None
    n_params: int | None = None
    context_train: int | None = None
    license: str | None = None


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/search."""

    repositories: tuple[RepoHit, ...]


class RepoFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file: `sha256` is the promise for large files, `git_sha1` (of the git blob) for small ones."""

    name: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One model a repository offers: a quantization in one file or several, or a folder of safetensors."""

    label: str
    format: str = "gguf"
    files: tuple[RepoFile, ...] = ()


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """All safely named files of a repository at one commit (`revision`)."""

    repo: str
    endpoint: str = ""
    revision: str = ""
    files: tuple[RepoFile, ...] = ()
    license: str | None = None
    gated: bool = False
    tags: tuple[str, ...] = ()
    base_models: tuple[str, ...] = ()


class FitEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a file fits this machine: bytes needed and there, tokens a second expected, and the reasons.

    `measured_on` says what the speed rests on: a `stand-in`, a `model` of this shape, or nothing (None).
    `streamed`: it fits with its experts read from the disk when they are asked for.
    """

    fits: bool
    needed_bytes: int = 0
    available_bytes: int = 0
    decode_tok_s: float | None = None
    prefill_tok_s: float | None = None
    device: str = ""
    reasons: tuple[str, ...] = ()
    measured_on: Literal["stand-in", "model"] | None = None
    streamed: bool = False


class HubOption(msgspec.Struct, frozen=True, kw_only=True):
    """One choice with all that its headers tell; `problem` says why they could not be read."""

    choice: Choice
    size_bytes: int = 0
    details: Details | None = None
    bits_per_weight: float = 0.0
    verdict: FitEstimate | None = None
    best: bool = False
    problem: str | None = None


class OwnBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A mix made here from `source`, within the bytes of the ready file `instead_of` (None: none fits).

    `kld` and `ready_kld` are expected mean KL divergences in nats a token: good for comparing the two.
    """

    source: str
    file_bytes: int
    bits_per_weight: float
    kld: float
    instead_of: str | None = None
    ready_kld: float | None = None
    based_on: str = ""


class RepoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/plan: the options of a repository, smallest first.

    `fetched_bytes` crossed the network to find this out. `build_from` names the option Tessera would quantize
    itself from, `own` is what it would make of it on this machine instead of the best ready file.
    """

    repository: Repository
    options: tuple[HubOption, ...]
    fetched_bytes: int = 0
    elapsed_s: float = 0.0
    build_from: str | None = None
    own: OwnBuild | None = None


class Starter(msgspec.Struct, frozen=True, kw_only=True):
    """A model to begin with, from the model card at `source`; `job` is what it is good for."""

    id: str
    repo: str
    job: Literal["tiny", "chat", "coding", "fim", "embedding", "vision"]
    parameters: int
    source: str = ""
    native_bits: float = 16.0
    license: str = ""
    context: int = 0
    active: int = 0


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A starter that fits, why this one, and what to expect of it here (`expected_tok_s` None: not known).

    At most one is `recommended`: the largest to chat with that writes as fast as people read, else the quickest,
    or, where no speed is known, the smallest.
    """

    starter: Starter
    reason: str = ""
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


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this computer with a newer version on the hub: its commit, and the bytes to fetch."""

    model: str
    revision: str
    size_bytes: int = 0


class Updates(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/hub/updates; `problems`: repositories that could not be asked, with the reason."""

    updates: tuple[Update, ...]
    problems: dict[str, str] = {}
