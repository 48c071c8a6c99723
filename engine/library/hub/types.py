"""What a hub offers and what it would need here: plain records that travel as JSON."""

from typing import Literal

import msgspec

from engine.library.types import Details

JobName = Literal["tiny", "chat", "coding", "fim", "embedding", "vision"]
# A usual 4-bit mix. Source: assets/models/spark-f16.md and published Q4_K_M files agree on 4.8 bits a weight.
_USUAL_BITS = 4.8
_MARGIN = 1.15  # context and buffers beside the weights


class RepoHit(msgspec.Struct, frozen=True, kw_only=True):
    """One repository in a list of search results; unknown numbers are None."""

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
    """One file: `sha256` is the promise for large files, `git_sha1` (of the git blob) for small ones."""

    name: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One model the repository offers: a quantization in one file or several, or a folder of safetensors."""

    label: str
    format: str
    files: tuple[RepoFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """All safely named files of a repository at one commit (`revision`)."""

    repo: str
    endpoint: str
    revision: str
    files: tuple[RepoFile, ...]
    license: str | None = None


class FitEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a file fits this machine: bytes needed and there, tokens a second expected, and the reasons.

    `measured_on` says what the speed rests on: a `stand-in`, a `model` of this shape, or nothing (None).
    `streamed`: it fits with its experts read from the disk when they are asked for.
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

    `kld` and `ready_kld` are expected mean KL divergences in nats a token, both by the same priors: good for
    comparing the two, not as measurements. `ready_kld` None: the ready file has types the priors do not cover.
    """

    source: str
    file_bytes: int
    bits_per_weight: float
    kld: float
    instead_of: str | None = None
    ready_kld: float | None = None
    based_on: str


class RepoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a repository, smallest first. `fetched_bytes` crossed the network to find this out.

    `build_from` names the option Tessera would quantize itself from: the most exact one. `own` is what it would
    make of it on this machine instead of the best ready file.
    """

    repository: Repository
    options: tuple[Option, ...]
    fetched_bytes: int
    elapsed_s: float
    build_from: str | None = None
    own: OwnBuild | None = None

    def option(self, label: str) -> Option | None:
        """The option of that label, whatever its case."""
        wanted = label.casefold()
        return next((o for o in self.options if o.choice.label.casefold() == wanted), None)

    @property
    def best(self) -> Option | None:
        """The option marked best for this machine."""
        return next((option for option in self.options if option.best), None)


class Newer(msgspec.Struct, frozen=True, kw_only=True):
    """A model with a newer version: its commit on the hub, and the bytes to fetch."""

    model: str
    revision: str
    size_bytes: int


class Starter(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table, from the model card at `source`.

    `active` parameters are read for each token (0: all of them); a `context` of 0 is one the card does not tell.
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
        """Memory it needs at a usual 4-bit mix, or as published if that is smaller; an estimate, not a promise."""
        return int(self.parameters * min(self.native_bits, _USUAL_BITS) / 8 * _MARGIN)

    @property
    def bytes_per_token(self) -> int:
        """Weights read for one token at the same mix."""
        return int((self.active or self.parameters) * min(self.native_bits, _USUAL_BITS) / 8)
