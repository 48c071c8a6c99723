"""/tessera/v1/models and /trash: the models on this computer."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.api.models import EffectiveValue
from engine.library.types import (
    Details,
    FileCheck,
    Format,
    LinkedFolder,
    ModelFile,
    Moved,
    Origin,
    ServerPath,
    State,
    Unlinked,
    Verification,
)
from engine.message_catalog.reasons import Reason


class PullRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/pull: owner/name, owner/name:Q4_K_M, a URL, or the id of a recommended model."""

    model: Annotated[str, Meta(min_length=1, max_length=500)]
    quant: Annotated[str, Meta(max_length=200)] | None = None
    revision: Annotated[str, Meta(max_length=200)] | None = None
    vision: bool = True


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/import: a file or folder on this computer."""

    path: ServerPath


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/link: a file, a folder, or an application.

    Applications are lmstudio, ollama, llama.cpp, jan and huggingface.
    """

    where: ServerPath


class LinkedFolders(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/linked-folders: folders that are scanned in place."""

    folders: tuple[LinkedFolder, ...]


class ModelsFolder(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/models-folder: where downloads and imports are stored, and the free space of that drive."""

    path: str
    free_bytes: int


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tessera/v1/models-folder/move: a new or empty folder on this computer."""

    path: ServerPath


class RenameRequest(msgspec.Struct, frozen=True, kw_only=True):
    """PUT /tessera/v1/models/{id}/name: sets the display name; an empty one restores the model's own name."""

    name: Annotated[str, Meta(max_length=200)]


class LocateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tessera/v1/models/{id}/locate: the new path of a model whose file was moved."""

    path: ServerPath


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the models that were added to the list, or that were found in their new place."""

    added: tuple[str, ...]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the library. A runner opens `path`. `problem` is the reason if the model cannot be used.

    `bits_per_weight` is 0 if unknown. In a list, `details.chat_template` is empty even if the file has a template.
    """

    id: str
    name: str
    format: Format = "gguf"
    path: str = ""
    size_bytes: int = 0
    files: tuple[ModelFile, ...] = ()
    origin: Origin = Origin(kind="file")
    details: Details = Details(architecture="")
    capabilities: tuple[str, ...] = ()
    bits_per_weight: float = 0.0
    added_at: float = 0.0
    folder: str | None = None
    projector: str | None = None
    report: str | None = None
    card: str | None = None
    state: State = "online"
    problem: str | None = None
    problem_detail: Reason | None = None
    card_text: str | None = None
    sampling: dict[str, EffectiveValue] = {}


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/models."""

    models: tuple[Model, ...]


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a GGUF file; `shape` is in ggml order, `qtype` is ggml's type name."""

    name: str
    qtype: str
    shape: tuple[int, ...] = ()
    num_bytes: int = 0


class Tensors(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/models/{id}/tensors."""

    tensors: tuple[Tensor, ...]


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """A removed model. `ticket` restores it; emptying the trash frees `freed_bytes`."""

    ticket: str
    model: str = ""
    name: str = ""
    removed_at: float = 0.0
    freed_bytes: int = 0


class Trash(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/trash, newest first."""

    trash: tuple[Removed, ...]


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """DELETE /tessera/v1/trash."""

    freed_bytes: int
