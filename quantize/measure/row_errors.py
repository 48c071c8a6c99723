"""Compares sampled rows of a quantized file with the same rows of its original, in a child process."""

import hashlib
import random
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.child import answer_of
from quantize.errors import IncompleteFile
from quantize.files.channel_scales import ChannelScales, read_channel_scales
from quantize.ggml_types import TEST_TYPE
from quantize.measurements import CancelCheck, OnProgress, Step
from quantize.native.blocks import dequantize_rows, quantize_rows, type_traits
from quantize.types import TensorError

Floats = npt.NDArray[np.float32]
# Sampled rows of a tensor: this fraction, but no more rows than hold so many values, in so many runs of neighbours.
# Measured: all rows give the same order of files and the same spread (tests/bench/results/hub_loss.jsonl).
_FRACTION = 0.013
_MAX_VALUES = 65_536
_RUNS = 3


class RowRun(msgspec.Struct, frozen=True, array_like=True):
    """`count` neighbouring rows from `first`."""

    first: int
    count: int


def sampled_runs(name: str, width: int, rows: int) -> tuple[RowRun, ...]:
    """The rows to read of a tensor: the same in every file with a tensor of this name and shape.

    The runs are spread over the tensor and begin at random rows, because heads repeat at regular distances.
    """
    count = min(rows, max(1, min(int(rows * _FRACTION), -(-_MAX_VALUES // width))))
    runs = min(_RUNS, count)
    draw = random.Random(hashlib.sha256(f"{name} {width} {rows}".encode()).digest())  # noqa: S311 a sample
    sampled = []
    for run in range(runs):
        low, high = rows * run // runs, rows * (run + 1) // runs
        length = count * (run + 1) // runs - count * run // runs
        sampled.append(RowRun(draw.randint(low, max(low, high - length)), length))
    return tuple(sampled)


class SampledTensor(msgspec.Struct, frozen=True, kw_only=True):
    """The sampled rows of one tensor: their numbers, and where their bytes begin in the two files of samples."""

    name: str
    width: int
    runs: tuple[RowRun, ...]
    qtype: str
    begin: int
    original_qtype: str
    original_begin: int


class RowErrorsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a file and of its original. `scales` are the file's channel scales as in its metadata, or ""."""

    sample: Path
    original: Path
    tensors: tuple[SampledTensor, ...]
    scales: str = ""


def row_errors(
    request: RowErrorsRequest, on_progress: OnProgress, cancelled: CancelCheck
) -> tuple[TensorError, ...]:
    """The errors of all sampled tensors; the untrusted bytes are decoded in a child process.

    Raises: Cancelled. ChildDied: ggml crashed on them. IncompleteFile.
    """
    return answer_of(tuple[TensorError, ...], "row_errors", request, on_progress, cancelled)


def measure_row_errors(request: RowErrorsRequest, send: Step) -> tuple[TensorError, ...]:
    """The child process's part."""
    scales = read_channel_scales(request.scales) if request.scales else None
    errors = []
    for index, tensor in enumerate(request.tensors):
        send(index, len(request.tensors), tensor.name)
        original = _rows(request.original, tensor.original_begin, tensor, tensor.original_qtype)
        rows = _rows(request.sample, tensor.begin, tensor, tensor.qtype)
        errors.append(_error(tensor, original, _unscaled(tensor, rows, scales) if scales else rows))
    send(len(request.tensors), len(request.tensors), "")
    return tuple(errors)


def _rows(path: Path, begin: int, tensor: SampledTensor, qtype: str) -> Floats:
    count = sum(run.count for run in tensor.runs)
    size = type_traits(qtype).row_bytes(tensor.width)
    with path.open("rb") as file:
        file.seek(begin)
        raw = file.read(count * size)
    if len(raw) != count * size:
        raise IncompleteFile(str(path), begin + len(raw), begin + count * size)
    return dequantize_rows(np.frombuffer(raw, np.uint8).reshape(count, size), qtype, tensor.width)


def _unscaled(tensor: SampledTensor, rows: Floats, scales: ChannelScales) -> Floats:
    """Undo the smoothing of a file that Tessera made: columns were multiplied, rows divided."""
    columns, divided = (side.get(tensor.name) for side in (scales.columns, scales.rows))
    if columns is not None and len(columns) == tensor.width:
        rows = rows * np.exp2(-np.frombuffer(columns, np.int8).astype(np.float32))
    picked = np.concatenate([np.arange(run.first, run.first + run.count) for run in tensor.runs])
    if divided is not None and len(divided) > picked.max():
        rows = rows * np.exp2(np.frombuffer(divided, np.int8)[picked].astype(np.float32))[:, None]
    return rows


def _error(tensor: SampledTensor, original: Floats, rows: Floats) -> TensorError:
    if not np.isfinite(original).all() or not np.isfinite(rows).all():
        return TensorError(name=tensor.name, error=1.0, deviation=0.0, tested=0.0, finite=False)
    exact = original.astype(np.float64)
    total = float((exact**2).sum()) or 1.0
    by_row = ((rows - exact) ** 2).sum(axis=1)
    tested = TEST_TYPE.traits.error or 0.0
    if tensor.width % TEST_TYPE.traits.block_values == 0:
        rounded = dequantize_rows(quantize_rows(original, TEST_TYPE.name), TEST_TYPE.name, tensor.width)
        tested = float(((rounded - exact) ** 2).sum()) / total
    return TensorError(
        name=tensor.name,
        error=float(by_row.sum()) / total,
        deviation=float(by_row.std() * np.sqrt(len(by_row))) / total,
        tested=tested,
    )
