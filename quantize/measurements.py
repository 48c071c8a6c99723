"""What measuring a model yields, and what is asked of it: the contract between measuring, planning and writing."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from devices.msgspec_lock import learned
from quantize.ggml_types import USUAL
from quantize.types import Rounding

T = TypeVar("T")
MeasureTier = Literal["balanced", "max"]
MOMENT_BYTES = 2 << 30  # of second moments that are held at a time


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a phase is: `done` of `total` units of work (not counts), and the seconds it should still take.

    Within a job `share` is how much of the whole is done, 0 to 1, and `left_s` what the whole should still take.
    """

    phase: str
    done: float
    total: float
    detail: str = ""
    left_s: float | None = None
    share: float | None = None


def encode(value: object) -> bytes:
    """A request as JSON; paths become strings."""
    return msgspec.json.encode(value, enc_hook=str)


def decode(raw: bytes | str, kind: type[T]) -> T:
    """A request from JSON."""
    return msgspec.json.decode(raw, type=learned(kind), dec_hook=lambda found, value: found(value))


OnProgress = Callable[[Progress], None]
CancelCheck = Callable[[], bool]
Step = Callable[[float, float, str], None]  # done, total, detail: what a task tells the child's main loop


class TensorEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: how much of its output each type spoils, and what that costs the model.

    `alpha` is KL divergence (nats a token) for each unit of relative output error; `errors[rounding][qtype]` is
    tr(dW H dW^T) / tr(W H W^T), and the share that inputs in 8 bits spoil. Tensors of one `group` were swapped
    together.
    """

    name: str
    group: str
    alpha: float
    errors: dict[Rounding, dict[str, float]]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Measured damage of every quantizable tensor of one file.

    `tier` says how alpha was found: by swapping bands of layers, or tensor by tensor.
    """

    version: int = 1
    tier: MeasureTier
    source_sha256: str
    calibration_sha256: str
    imatrix_sha256: str
    tokens: int
    probe_tokens: int
    tensors: tuple[TensorEvidence, ...]

    @property
    def sha256(self) -> str:
        """Hash of everything in it."""
        return sha256(msgspec.json.encode(self)).hexdigest()

    def damage(self, rounding: Rounding) -> dict[str, dict[str, float]]:
        """Expected KL divergence (nats a token) by tensor and type, each alone."""
        return {t.name: {q: t.alpha * e for q, e in t.errors[rounding].items()} for t in self.tensors}


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `source` is a GGUF file (F32, F16, BF16 or Q8_0); `calibration` a UTF-8 text.

    `cache_dir` keeps everything by content hash: a second run, or one after a kill, continues where it was.
    `max_tokens` bounds the calibration text, `probe_tokens` what each swap is judged on, `memory_bytes` the second
    moments held at a time. `arithmetic` is what sums are computed with (`quantize.reproducible_math`; empty: what
    this CPU does best); the cache separates measurements by it. `source_sha256` and `calibration_sha256` are the
    hashes of the files when the job began (empty: whatever they are).
    """

    source: Path
    calibration: Path
    cache_dir: Path
    tier: MeasureTier = "balanced"
    qtypes: tuple[str, ...] = tuple(t.name for t in USUAL)
    threads: int = 1
    gpu_layers: int = 0
    arithmetic: str = ""
    source_sha256: str = ""
    calibration_sha256: str = ""
    max_tokens: int = 32_768
    probe_tokens: int = 1536
    memory_bytes: int = MOMENT_BYTES


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence and where its parts lie: the importance matrix as llama.cpp's GGUF, the folder of the cache."""

    evidence: Evidence
    imatrix: Path
    folder: Path


class RoundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Round the tensors of `types` (tensor name to type) of a source.

    "stock" uses the importance matrix in `imatrix`, or none; every other rounding needs the second moments in
    `measure`'s cache, and measures again what is gone.
    """

    measure: MeasureRequest
    types: dict[str, str]
    rounding: Rounding = Rounding.GPTQ
    imatrix: Path | None = None


class PackedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One finished tensor: (rows, row_bytes) uint8, experts one after the other, mapped from the cache."""

    name: str
    qtype: str
    blocks: npt.NDArray[np.uint8]


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Compare finished files with a reference on a text; the second half of each window counts.

    All files are open at once: each needs its size in memory beside the reference's. With `min_tokens` it ends as
    soon as so many tokens were seen and the interval tells whether the first file is better than the second.
    """

    reference: Path
    files: tuple[Path, ...]
    text: Path
    max_tokens: int = 32_768
    min_tokens: int | None = None
    window: int = 512
    threads: int = 1
    gpu_layers: int = 0
