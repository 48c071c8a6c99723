"""Requests and results of measurements, shared by the measuring, planning and writing code."""

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
MOMENT_BYTES = 2 << 30  # maximum size of the Hessians held in memory


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a phase: `done` of `total` units of work (not counts), and the remaining seconds.

    Within a job, `share` is the finished fraction of the whole job (0 to 1), and `left_s` its remaining seconds.
    `usable`: the job has a complete file and can end with it at any time; its value is that of `Stopped`.
    """

    phase: str
    done: float
    total: float
    detail: str = ""
    left_s: float | None = None
    share: float | None = None
    usable: str = ""


def encode(value: object) -> bytes:
    """Encode a request as JSON; paths become strings."""
    return msgspec.json.encode(value, enc_hook=str)


def decode(raw: bytes | str, kind: type[T]) -> T:
    """Decode a request from JSON."""
    return msgspec.json.decode(raw, type=learned(kind), dec_hook=lambda target, value: target(value))


OnProgress = Callable[[Progress], None]
CancelCheck = Callable[[], bool]
# done, total, detail: a task's progress report to the child process's main loop
Step = Callable[[float, float, str], None]


class TensorEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Quantization errors of one tensor by type, and their effect on the model.

    `alpha` is the sensitivity: KL divergence (nats per token) per unit of relative output error.
    `errors[rounding][qtype]` is tr(dW H dW^T) / tr(W H W^T), plus the error of 8-bit inputs. Tensors of the same
    `group` were swapped together.
    """

    name: str
    group: str
    alpha: float
    errors: dict[Rounding, dict[str, float]]


class LossMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Measured KL divergence of every quantizable tensor of one file.

    `tier` is the method that measured the sensitivity: by swapping bands of layers, or tensor by tensor.
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
        """Hash of all fields."""
        return sha256(msgspec.json.encode(self)).hexdigest()

    def damage(self, rounding: Rounding) -> dict[str, dict[str, float]]:
        """Expected KL divergence (nats per token) by tensor and type, with only that tensor quantized."""
        return {t.name: {q: t.alpha * e for q, e in t.errors[rounding].items()} for t in self.tensors}


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement to make. `source` is a GGUF file (F32, F16, BF16 or Q8_0), `calibration` a UTF-8 text.

    `cache_dir` stores all results by content hash, so that a repeated or interrupted run continues from there.
    `max_tokens` limits the calibration text, `probe_tokens` the text used for each swap, and `memory_bytes` the
    Hessians held in memory at a time. `arithmetic` selects the instruction set for sums
    (`quantize.reproducible_math`; empty: the fastest on this CPU); the cache separates measurements by it.
    `source_sha256` and `calibration_sha256` are the hashes of the files at the start of the job (empty: use the
    current files).
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
    """The measurements, the importance matrix in llama.cpp's GGUF format, and the cache folder."""

    evidence: LossMeasurements
    imatrix: Path
    folder: Path


class RoundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Round the tensors of `types` (tensor name to type) of a source.

    "stock" uses the importance matrix in `imatrix`, or none. Every other rounding needs the Hessians in `measure`'s
    cache; missing ones are measured again. With `exact`, weights on the grid of their type are packed without loss.
    """

    measure: MeasureRequest
    types: dict[str, str]
    rounding: Rounding = Rounding.GPTQ
    imatrix: Path | None = None
    exact: bool = False


class PackedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One finished tensor: (rows, row_bytes) uint8, expert after expert, memory-mapped from the cache."""

    name: str
    qtype: str
    blocks: npt.NDArray[np.uint8]


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Compare finished files with a reference on a text; only the second half of each window counts.

    All files are open at the same time, so memory must hold them and the reference. With `min_tokens` the
    comparison stops after that many tokens, once the interval shows whether the first file is better than the
    second.
    """

    reference: Path
    files: tuple[Path, ...]
    text: Path
    max_tokens: int = 32_768
    min_tokens: int | None = None
    window: int = 512
    threads: int = 1
    gpu_layers: int = 0
