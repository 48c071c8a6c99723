"""Records of a hub's offers and their requirements on this computer; plain structs that are sent as JSON."""

from typing import Literal

import msgspec

from engine.library.types import Details
from engine.message_catalog.reasons import Reason

JobName = Literal["tiny", "chat", "coding", "fim", "edit", "embedding", "rerank", "vision"]
# A usual 4-bit recipe. Source: assets/models/spark-f16.md and published Q4_K_M files agree on 4.8 bits per weight.
_USUAL_BITS = 4.8
_MARGIN = 1.15  # context and buffers in addition to the weights


class RepoHit(msgspec.Struct, frozen=True, kw_only=True):
    """One repository in the search results; unknown numbers are None."""

    repo: str
    downloads: int
    likes: int
    gated: bool
    task: str | None = None
    updated: str | None = None
    architecture: str | None = None
    n_params: int | None = None
    context_train: int | None = None
    license: str | None = None


class RepoFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `sha256` is the expected hash of large files, `git_sha1` (of the git blob) that of small ones."""

    name: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


class QuantVariant(msgspec.Struct, frozen=True, kw_only=True):
    """One downloadable model: a quantization in one or more files, or a folder of safetensors."""

    label: str
    format: str
    files: tuple[RepoFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """All files with safe names of a repository at one commit (`revision`).

    `base` is the repository of the model from which this one was made.
    """

    repo: str
    endpoint: str
    revision: str
    files: tuple[RepoFile, ...]
    license: str | None = None
    base: str | None = None
    likes: int = 0
    updated: str | None = None


class FitEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a file fits: bytes needed and available, expected tokens per second, and the reasons.

    `measured_on` is the basis of the speed: a `stand-in` (dummy weights), a `model` of this shape, or None.
    `streamed`: it fits if its experts are read from disk on demand.
    """

    fits: bool
    needed_bytes: int
    available_bytes: int
    decode_tok_s: float | None = None
    prefill_tok_s: float | None = None
    device: str = ""
    reasons: tuple[str, ...] = ()
    measured_on: Literal["stand-in", "model"] | None = None
    streamed: bool = False


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One choice with all details from its headers; `problem` is the reason why they could not be read."""

    choice: QuantVariant
    size_bytes: int = 0
    details: Details | None = None
    bits_per_weight: float = 0.0
    verdict: FitEstimate | None = None
    best: bool = False
    problem: str | None = None


class OwnBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A local quantization of `source`, no larger than the ready-made file `instead_of` (None: none fits).

    `kld` and `ready_kld` are expected mean KL divergences in nats per token, computed from the same priors. Use
    them to compare the two files, not as measurements. `ready_kld` is None if the priors do not cover the
    ready-made file's types.
    """

    source: str
    file_bytes: int
    bits_per_weight: float
    kld: float
    instead_of: str | None = None
    ready_kld: float | None = None
    based_on: str


class RepoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a repository, smallest first; planning downloaded `fetched_bytes`.

    `build_from` names the most exact option, the source for local quantization. `own` is the result to expect from
    it on this computer, as an alternative to the best ready-made file. `about` is the first paragraph of the model
    card.
    """

    repository: Repository
    options: tuple[Option, ...]
    fetched_bytes: int
    elapsed_s: float
    build_from: str | None = None
    own: OwnBuild | None = None
    about: str = ""

    def option(self, label: str) -> Option | None:
        """The option with that label, case-insensitive."""
        folded = label.casefold()
        return next((o for o in self.options if o.choice.label.casefold() == folded), None)

    @property
    def best(self) -> Option | None:
        """The option marked as best for this computer."""
        return next((option for option in self.options if option.best), None)


class CompareTask(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate the loss of uploads of one model (see `parse_hub_name`), and of `more` other uploads of it.

    Without a label, all quantizations of the repository. `original` names what to compare with; "" looks for it.
    """

    uploads: tuple[str, ...]
    original: str = ""
    more: int = 0


class UploadLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Expected loss of one upload: mean KL divergence from the original in nats per token, with its interval.

    `problem` is the reason why there is none (an English sentence), `problem_detail` the same as facts.
    """

    repo: str
    label: str
    size_bytes: int
    bits_per_weight: float = 0.0
    kld: float | None = None
    low: float = 0.0
    high: float = 0.0
    problem: str = ""
    problem_detail: Reason | None = None

    @property
    def name(self) -> str:
        """The name to download it by."""
        return f"{self.repo}:{self.label}"


class UploadComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a `compare` job: uploads of one model, smallest first, compared with its original.

    `tested_by` is a model of the library whose quick test measured the sensitivity. Without one, a factor of
    `common_factor` that is the same for all files is unknown; their order is more certain than their intervals.
    `fetched_bytes` were read of files of `total_bytes`; results of earlier comparisons are not read again.
    """

    original: str
    uploads: tuple[UploadLoss, ...]
    common_factor: float = 1.0
    tested_by: str = ""
    fetched_bytes: int = 0
    total_bytes: int = 0


class Newer(msgspec.Struct, frozen=True, kw_only=True):
    """A model with a newer version: its commit on the hub, and the bytes to download."""

    model: str
    revision: str
    size_bytes: int


class Starter(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of recommended models, from the model card at `source`.

    `active` is the number of parameters read per token (0: all). `context` is 0 if the card does not state it.
    """

    id: str
    repo: str
    source: str
    job: JobName
    parameters: int
    native_bits: float
    license: str
    context: int = 0
    active: int = 0

    @property
    def expected_bytes(self) -> int:
        """Estimated memory at a usual 4-bit recipe, or as published if that is smaller."""
        return int(self.parameters * min(self.native_bits, _USUAL_BITS) / 8 * _MARGIN)

    @property
    def bytes_per_token(self) -> int:
        """Weight bytes read per token at the same recipe."""
        return int((self.active or self.parameters) * min(self.native_bits, _USUAL_BITS) / 8)


Recommended = Literal["", "reading_speed", "quickest", "smallest"]
Want = Literal["", "fast", "balanced", "pictures"]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended model that fits, with a reason and its expected speed and memory on this computer.

    `expected_tok_s` is None if unknown. `want` is what people choose it for: fast answers, a balance of speed and
    quality, or pictures ("": any other purpose). `download_bytes` is the size of the usual file on the hub, if it
    was requested. At most one proposal is `recommended`: the largest chat model that generates at reading speed,
    else the fastest, or the smallest if no speed is known.
    """

    starter: Starter
    reason: Reason | None = msgspec.field(default=None, name="reason_detail")
    expected_bytes: int = 0
    expected_tok_s: float | None = None
    recommended: Recommended = ""
    want: Want = ""
    download_bytes: int = 0
