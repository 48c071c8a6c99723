"""Scales a LoRA adapter for a smoothed model file, like that file's channels were scaled."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from devices.atomic_file import scratch_folder
from devices.errors import TesseraError
from engine.core.paths import user_paths
from engine.runner.llama.native.model import LoadFailed
from quantize.errors import DiskFull, NotWritable
from quantize.files.channel_scales import KEY, ChannelScales, read_channel_scales
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata
from quantize.files.provenance import KEY as PROVENANCE
from quantize.files.provenance import read_provenance
from quantize.ggml_types import GgmlType
from quantize.native.source_weights import SourceWeights

_A, _B = ".lora_a", ".lora_b"
Floats = npt.NDArray[np.float32]


@contextmanager
def fitted(path: Path, metadata: Mapping[str, str]) -> Iterator[Path]:
    """Yield the adapter, or a temporary scaled copy if the model's metadata says that it is smoothed.

    Raises: LoadFailed: the file is smoothed without its scales, the adapter does not match, or the disk is full.
    """
    provenance = read_provenance(metadata.get(PROVENANCE, ""))
    scales_text = metadata.get(KEY)
    if scales_text is None and not (provenance is not None and provenance.smoothed):
        yield path
        return
    scales = read_channel_scales(scales_text or "")
    if scales is None:
        raise LoadFailed(
            f"the LoRA adapter {path} does not fit this file: its inputs were smoothed when it was quantized, "
            "and it does not record how. Quantize it again, or use another file of the model"
        )
    with ExitStack() as stack:
        try:
            copy = stack.enter_context(scratch_folder(user_paths().cache / "copies")) / path.name
            _write(path, copy, scales)
        except (OSError, DiskFull, NotWritable) as e:
            raise LoadFailed(f"a scaled copy of the LoRA adapter {path} could not be written: {e}") from e
        except TesseraError as e:
            raise LoadFailed(f"the LoRA adapter {path} does not fit this model or is damaged: {e}") from e
        yield copy


def _write(path: Path, copy: Path, scales: ChannelScales) -> None:
    adapter = SourceWeights(path)
    floats = GgmlType["F32"]
    slots = [TensorSlot(i.name, i.shape, floats) for i in map(adapter.info, adapter.names)]
    writer = GgufWriter(copy, copied_metadata(adapter.model.parts[0]), slots)
    try:
        for name in adapter.names:
            writer.write(name, _scaled(adapter, name, scales))
        writer.close()
    except BaseException:
        writer.abandon()
        raise


def _scaled(adapter: SourceWeights, name: str, scales: ChannelScales) -> Iterator[npt.NDArray[Any]]:
    """Scale the product of both matrices like the weight: A by columns, B by rows."""
    matrices, rows, width = adapter.shape(name)
    larger = scales.columns.get(name.removesuffix(_A)) if name.endswith(_A) else None
    smaller = scales.rows.get(name.removesuffix(_B)) if name.endswith(_B) else None
    for raw, channels in ((larger, width), (smaller, rows)):
        if raw is not None and len(raw) != channels:
            raise LoadFailed(
                f"the LoRA adapter {adapter.path} does not fit: {name} has {channels} channels, not {len(raw)}"
            )
    for matrix in range(matrices):
        values: Floats = adapter.rows(name, matrix)
        if larger is not None:
            values = np.ldexp(values, _exponents(larger))
        if smaller is not None:
            values = np.ldexp(values, -_exponents(smaller)[:, None])
        yield np.ascontiguousarray(values, np.float32)


def _exponents(raw: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(raw, np.int8).astype(np.int32)
