"""What the library knows about one model; plain records that travel as JSON."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason

# A path on the computer of the server, as a client names it, or a model of the library.
ServerPath = Annotated[str, Meta(min_length=1, max_length=4096)]
Format = Literal["gguf", "safetensors", "onnx", "flm", "vllm", "remote"]
State = Literal["online", "offline", "missing", "changed", "broken"]
OriginKind = Literal["bundled", "installed", "hub", "file", "linked", "built", "remote"]


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model. `sha256` is set once the content was hashed here, never copied from a promise."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model came from: "bundled" is the demo in the source tree, "installed" what start.py fetched.

    `app` names the owner of a linked file; `expected` maps file to promised sha256.
    """

    kind: OriginKind
    app: str | None = None
    repo: str | None = None
    revision: str | None = None
    expected: dict[str, str] = {}


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What the headers say. `quantization` is the usual name of the mix; `type_bytes` its bytes by tensor type.

    `sampling` is what the file recommends, `publisher_sampling` what a generation_config.json beside it does.
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

    `id` is short and never changes for a file; `name` is for people. `folder` is set for models that are a folder
    (safetensors, ONNX). `report` is the file with plan and measurements of our own quantization, `card` the one
    with the model's card. `state` is what a look at the disk said just now: "offline" where its drive is not there,
    "missing" where the drive is and the file is not; `problem` says why it is broken, `problem_detail` as facts.
    `inspected` is the version of the reader that made `details`. `renamed` is the name the user gave it.
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
        """What a runner opens: the folder, or the first file."""
        return Path(self.folder or self.files[0].path)

    @property
    def servable(self) -> bool:
        """A runner opens it as it is; safetensors are quantized first."""
        return self.format != "safetensors"

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def architecture(self) -> str:
        """Architecture name as the file gives it."""
        return self.details.architecture

    @property
    def chat_template(self) -> str | None:
        """The file's own chat template."""
        return self.details.chat_template

    @property
    def context_train(self) -> int:
        """Context the model was trained for, in tokens; 0 if the file does not say."""
        return self.details.context_train

    @property
    def capabilities(self) -> tuple[str, ...]:
        """chat, completion, tools, reasoning, vision, embedding, rerank, fim: what it can be used for."""
        if self.projector is None or "vision" in self.details.capabilities:
            return self.details.capabilities
        return (*self.details.capabilities, "vision")

    @property
    def bits_per_weight(self) -> float:
        """Bits a parameter takes on average; 0 if unknown."""
        total = sum(self.details.type_bytes.values())
        return total * 8 / self.details.n_params if self.details.n_params else 0.0


class FileCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One file: `expected` is what its source promised, or what was found at the last check; None if neither."""

    path: str
    sha256: str | None
    expected: str | None
    ok: bool
    problem: str | None = None


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a model. `basis`: whose promise it was held against (hub, owner, earlier, none)."""

    model: str
    ok: bool
    basis: str
    files: tuple[FileCheck, ...]
