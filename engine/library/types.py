"""The library's records of a model; plain structs that are sent as JSON."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason

# A path on the server's computer, as a client names it, or a model of the library.
ServerPath = Annotated[str, Meta(min_length=1, max_length=4096)]
Format = Literal["gguf", "safetensors", "onnx", "flm", "vllm", "remote"]
State = Literal["online", "offline", "missing", "changed", "broken"]
OriginKind = Literal["bundled", "installed", "hub", "file", "linked", "built", "remote"]


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model. `sha256` is set only after the content was hashed here; it is never an expected hash."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a model: "bundled" is the demo in the source tree, "installed" is start.py's download.

    `app` names the owner of a linked file; `expected` maps file to expected sha256.
    """

    kind: OriginKind
    app: str | None = None
    repo: str | None = None
    revision: str | None = None
    expected: dict[str, str] = {}


class LinkedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder whose models are used in place; `app` is its application or "". `is_here`: it can be read now."""

    path: str
    app: str
    models: int
    is_here: bool


class Unlinked(msgspec.Struct, frozen=True, kw_only=True):
    """Folders that are not linked any more, and ids of the models that were removed from the list. Files stay."""

    folders: tuple[str, ...]
    removed: tuple[str, ...]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Data from the headers. `quantization` is the recipe's usual name; `type_bytes` its bytes by tensor type.

    `sampling` is recommended by the file, `publisher_sampling` by a generation_config.json in its folder.
    """

    architecture: str
    title: str = ""
    n_params: int = 0
    context_train: int = 0
    quantization: str = ""
    type_bytes: dict[str, int] = {}
    chat_template: str | None = None
    capabilities: tuple[str, ...] = ()
    license: str | None = None
    is_projector: bool = False
    sampling: dict[str, float | int] = {}
    publisher_sampling: dict[str, float | int] = {}


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalogue.

    `id` is short and never changes for a file; `name` is the display name. `folder` is set for models that are a
    folder (safetensors, ONNX). `report` is the file with plan and measurements of Tessera's quantization, `card`
    the file with the model card. `state` is the current state on disk: "offline" if the drive is not mounted,
    "missing" if it is mounted but the file does not exist. `problem` says why the model is broken, `problem_detail`
    is the same as facts. `inspected` is the version of the reader that created `details`. `renamed` is the name
    that the user gave it.
    """

    id: str
    name: str
    format: Format
    files: tuple[ModelFile, ...]
    origin: Origin
    details: Details
    added_at: float
    folder: str | None = None
    projector: str | None = None
    report: str | None = None
    card: str | None = None
    state: State = "online"
    problem: str | None = None
    problem_detail: Reason | None = None
    inspected: int = 0
    renamed: str | None = None

    @property
    def path(self) -> Path:
        """The path that a runner opens: the folder, or the first file."""
        return Path(self.folder or self.files[0].path)

    @property
    def servable(self) -> bool:
        """Whether a runner can load the files directly; safetensors must be quantized first."""
        return self.format != "safetensors"

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def architecture(self) -> str:
        """Architecture name from the file."""
        return self.details.architecture

    @property
    def chat_template(self) -> str | None:
        """The file's own chat template."""
        return self.details.chat_template

    @property
    def context_train(self) -> int:
        """Context length the model was trained with, in tokens; 0 if unknown."""
        return self.details.context_train

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The supported uses: chat, completion, tools, reasoning, vision, embedding, rerank, fim."""
        if self.projector is None or "vision" in self.details.capabilities:
            return self.details.capabilities
        return (*self.details.capabilities, "vision")

    @property
    def bits_per_weight(self) -> float:
        """Average bits per parameter; 0 if unknown."""
        total = sum(self.details.type_bytes.values())
        return total * 8 / self.details.n_params if self.details.n_params else 0.0


class FileCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one file: `expected` is the source's hash, else that of the last check; None if neither exists."""

    path: str
    sha256: str | None
    expected: str | None
    ok: bool
    problem: str | None = None


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Result for a model. `basis` is the origin of the expected hashes (hub, owner, earlier, none)."""

    model: str
    ok: bool
    basis: str
    files: tuple[FileCheck, ...]


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a job of kind `move`: the new folder and the bytes in it. `left` are files that stayed behind."""

    path: str
    size_bytes: int
    left: tuple[str, ...] = ()
