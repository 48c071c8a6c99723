"""Checks of a job's source: facts for the plan, sufficient precision, and no change during the job."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from devices.errors import Cancelled, TesseraError
from quantize.errors import CannotRead, InvalidOption, SourceChanged
from quantize.files.gguf_split import GgufModel, model_files, read_gguf_model
from quantize.files.gguf_write import header
from quantize.ggml_types import FLOAT_TYPES, NEARLY_EXACT, GgmlType, bits_per_weight
from quantize.job.write_model import output_metadata, output_slots
from quantize.plan.llama_cpp_preset_rules import MIXES, USUAL_MIX
from quantize.plan.speed import model_spec
from quantize.tensor_rules import allows_quantization
from quantize.types import ModelSpec, TensorSpec

Identity = tuple[tuple[str, int, int], ...]
_DEFAULT_FILE_TYPE = MIXES[USUAL_MIX].ftype


def identity(source: Path) -> Identity:
    """Names, sizes and modification times of a source's files. Raises: CannotRead."""
    paths = sorted(p for p in source.iterdir() if p.is_file()) if source.is_dir() else model_files(source)
    try:
        stats = [(p.name, p.stat()) for p in paths]
    except OSError as error:
        raise CannotRead(str(source), error.strerror or str(error)) from error
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def check_unchanged(source: Path, before: Identity) -> None:
    """Check that the source has not changed. Raises: SourceChanged."""
    if identity(source) != before:
        raise SourceChanged(str(source))


@contextmanager
def watched(source: Path) -> Iterator[Identity]:
    """Yield the source's identity, and report an error as SourceChanged if the source changed meanwhile.

    Raises: SourceChanged: instead of the error that the changed weights caused. Unreadable.
    """
    before = identity(source)
    try:
        yield before
    except (Cancelled, SourceChanged):
        raise
    except TesseraError as error:
        if identity(source) != before:
            raise SourceChanged(str(source)) from error
        raise


def whole_spec(model: GgufModel) -> ModelSpec:
    """The model properties that a plan needs, over all parts of a model."""
    spec = model_spec(model.parts[0])
    tensors = tuple(TensorSpec(t.name, t.shape, t.ggml_type.name) for _, t in model.tensors())
    return msgspec.structs.replace(spec, tensors=tensors)


def header_bytes(model: GgufModel, spec: ModelSpec) -> int:
    """Bytes of the output before its first tensor, for any choice of types."""
    metadata = output_metadata(model.parts[0], _DEFAULT_FILE_TYPE, provenance=True)
    return len(header(metadata, output_slots(model.tensors(), {t.name: t.qtype for t in spec.tensors})))


def check_precision(spec: ModelSpec, *, force: bool) -> tuple[str, ...]:
    """Warnings about a source that is already quantized. Raises: InvalidOption: too coarse, without `force`."""
    types = {GgmlType[t.qtype] for t in spec.tensors if allows_quantization(t)} - FLOAT_TYPES
    if not types:
        return ()
    coarsest = min(types, key=bits_per_weight)
    if bits_per_weight(coarsest) >= bits_per_weight(NEARLY_EXACT):
        return (f"the source is quantized to {coarsest.name}: a file from the original is slightly better",)
    if not force:
        reason = f"it is already quantized to {coarsest.name}; what that lost cannot be restored. Get the original"
        raise InvalidOption(
            "SOURCE",
            f"{reason} (its F16, BF16 or Q8_0 file: tessera models search NAME), or add --force: then the loss of "
            "both adds up, and what is measured is only the new one",
        )
    return (f"the source is already quantized to {coarsest.name}",)


def file_type(mix: str | None) -> int:
    """llama.cpp's file type number of a preset."""
    return MIXES[mix].ftype if mix in MIXES else _DEFAULT_FILE_TYPE


def mostly(source: Path, types: Mapping[str, str]) -> int:
    """llama.cpp's file type number for mixed types: that of the type with the most weights."""
    weights: Counter[GgmlType] = Counter()
    for _, tensor in read_gguf_model(source).tensors():
        weights[GgmlType[types[tensor.name]]] += tensor.num_values
    (found, _), *_ = weights.most_common(1)
    plain = next((mix.ftype for mix in MIXES.values() if mix.base is found), _DEFAULT_FILE_TYPE)
    return plain if found.traits.file_type is None else found.traits.file_type
