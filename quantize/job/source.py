"""A job's source: checks, facts for the plan, and the copy with smoothed channels."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from devices.errors import Cancelled, TesseraError
from quantize.child import answer_of
from quantize.errors import CannotRead, InvalidOption, SourceChanged
from quantize.files.gguf_split import GgufModel, model_files, present_files, read_gguf_model
from quantize.files.gguf_write import header
from quantize.files.imatrix import Importance, read_imatrix, write_imatrix
from quantize.files.measurement_folder import WorkFolder, hash_is_cached, read_json, write_json
from quantize.files.output_file import Output
from quantize.ggml_types import FLOAT_TYPES, NEARLY_EXACT, GgmlType, bits_per_weight
from quantize.job.request import QuantizeRequest
from quantize.job.write_model import output_metadata, output_slots
from quantize.measure.run import evidence_key, measured_before
from quantize.measure.smoothing import Smoothed, SmoothRequest
from quantize.measurements import CancelCheck, Measured, MeasureRequest, OnProgress, decode, encode
from quantize.native.calibration import WINDOW
from quantize.plan.llama_cpp_preset_rules import MIXES, USUAL_MIX
from quantize.plan.speed import model_spec
from quantize.tensor_rules import allows_quantization
from quantize.types import ModelSpec, Rounding, TensorSpec

Identity = tuple[tuple[str, int, int], ...]
_DEFAULT_FILE_TYPE = MIXES[USUAL_MIX].ftype


def identity(source: Path) -> Identity:
    """Names, sizes and modification times of a source's files. Raises: CannotRead. MissingParts.

    Hidden files of a folder do not belong to the model; a job that writes into that folder makes some.
    """
    try:
        if source.is_dir():
            paths = sorted(p for p in source.iterdir() if p.is_file() and not p.name.startswith("."))
        else:
            paths = list(present_files(source))
        stats = [(p.name, p.stat()) for p in paths]
    except OSError as error:
        raise CannotRead(str(source), error.strerror or str(error)) from error
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def check_unchanged(source: Path, before: Identity) -> None:
    """Check that the source has not changed. Raises: SourceChanged."""
    if identity(source) != before:
        raise SourceChanged(str(source))


def check_target(source: Path, out: Path) -> None:
    """Raises: InvalidOption: no file of that name is made, or it would replace one of the source. CannotRead."""
    if out.is_dir():
        raise InvalidOption("OUT", f"{out} is a folder; name a file in it")
    if out.suffix.lower() != ".gguf":
        raise InvalidOption("OUT", f"the name {out.name} must end in .gguf, by which programs know models")
    parts = () if source.is_dir() else model_files(source)
    if out.resolve() in {path.resolve() for path in (source, *parts)}:
        raise InvalidOption("OUT", "it is the SOURCE itself or a part of it, which is never written to")


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
    (most_common, _), *_ = weights.most_common(1)
    plain = next((mix.ftype for mix in MIXES.values() if mix.base is most_common), _DEFAULT_FILE_TYPE)
    return plain if most_common.traits.file_type is None else most_common.traits.file_type


# The base of files rounded by GPTQ: a copy of the source with smoothed inputs (SmoothQuant).
#
# Presets do not use it.

# The cached measurement of a model, and the additional header bytes of its smoothed copy (0: it is of the source).
CachedMeasurement = tuple[Measured | None, int]
_AS_IT_IS = Smoothed(changed=0, seams=0)


def smooths(request: QuantizeRequest, rounding: Rounding) -> bool:
    """Whether a job smooths inputs: with GPTQ and its own measurements, or if its plan says so."""
    if request.plan is not None:
        return request.plan.provenance.smoothed
    return request.tier != "instant" and rounding == Rounding.GPTQ and request.imatrix is None


class QuantSource(msgspec.Struct, frozen=True):
    """The file that Tessera's output is made from, and its smoothing."""

    path: Path = Path()
    even: Smoothed = _AS_IT_IS

    def scale_header_bytes(self, source: GgufModel, spec: ModelSpec) -> int:
        """Additional header bytes compared with the source: the header holds the scales."""
        return (
            header_bytes(read_gguf_model(self.path), spec) - header_bytes(source, spec) if self.even.changed else 0
        )

    def source_imatrix(self, imatrix: Path | None, output: Output) -> Path | None:
        """The importance matrix of the source itself, computed from that of this file."""
        if imatrix is None or not self.even.changed:
            return imatrix
        out = output.partial("imatrix")
        unscaled_imatrix(imatrix, self.even.channel_scales().columns, out)
        return out


def unscaled_imatrix(imatrix: Path, columns: Mapping[str, bytes], out: Path) -> None:
    """Write the importance matrix of a source to `out`, computed from that of its smoothed copy.

    `columns` are the exponents of the copy's columns.
    """
    entries = {}
    for name, entry in read_imatrix(imatrix).items():
        exponents = np.frombuffer(columns.get(name, bytes(1)), np.int8).astype(np.float32)
        entries[name] = Importance(entry.sums * np.exp2(2 * exponents), entry.counts)
    write_imatrix(out, entries, imatrix.name, WINDOW)


def smoothed(
    measure: MeasureRequest,
    exact: Collection[str],
    output: Output,
    num_bytes: int,
    on_progress: OnProgress,
    cancelled: CancelCheck,
) -> QuantSource:
    """A smoothed copy of the source, of about `num_bytes`; the source itself if smoothing gains nothing.

    The tensors of `exact` stay unchanged.

    Raises: DiskFull. Cancelled. ChildDied. TextTooShort, Unreadable.
    """
    output.require_disk(num_bytes)
    out = output.partial("smooth")
    task = SmoothRequest(measure=measure, out=out, unchanged=tuple(sorted(exact)))
    result = answer_of(Smoothed, "smooth", task, on_progress, cancelled)
    return QuantSource(out if result.changed else measure.source, result)


def remember(measure: MeasureRequest, measured: Measured, scale_bytes: int) -> None:
    """Store the measurement of a source's smoothed copy with the source's own measurements. Raises: DiskFull.

    `scale_bytes` is the number of additional header bytes, which hold the scales.
    """
    write_json(_cache_file(measure), {"measured": msgspec.json.decode(encode(measured)), "told_bytes": scale_bytes})


def is_whole(cached: CachedMeasurement, *, even: bool) -> bool:
    """Whether the cache holds all measurements of a job; `even`: those of the smoothed copy."""
    measured, scale_bytes = cached
    return measured is not None and (scale_bytes > 0 or not even)


def cached_measurement(measure: MeasureRequest, *, even: bool) -> CachedMeasurement:
    """Cached measurements of a source, or of its smoothed copy with `even`; measures nothing."""
    if not hash_is_cached(measure.source, measure.cache_dir):
        return None, 0
    cached = read_json(_cache_file(measure)) if even else None
    if isinstance(cached, dict) and "measured" in cached:
        measured = decode(msgspec.json.encode(cached["measured"]), Measured)
        if measured.imatrix.exists():
            return measured, int(cached.get("told_bytes", 0))
    return measured_before(measure), 0


def _cache_file(measure: MeasureRequest) -> Path:
    return WorkFolder.open(measure).path / f"smoothed-{evidence_key(measure)}.json"
