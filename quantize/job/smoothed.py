"""The base of files rounded by GPTQ: a copy of the source with smoothed inputs (SmoothQuant).

Presets do not use it.
"""

from collections.abc import Collection
from pathlib import Path

import msgspec
import numpy as np

from quantize.child import answer_of
from quantize.files.gguf_split import GgufModel, read_gguf_model
from quantize.files.imatrix import Importance, read_imatrix, write_imatrix
from quantize.files.measurement_folder import WorkFolder, hash_is_cached, read_json, write_json
from quantize.files.output_file import Output
from quantize.job.request import QuantizeRequest
from quantize.job.source import header_bytes
from quantize.measure.run import evidence_key, measured_before
from quantize.measure.smoothing import Smoothed, SmoothRequest
from quantize.measurements import CancelCheck, Measured, MeasureRequest, OnProgress, decode, encode
from quantize.native.calibration import WINDOW
from quantize.types import ModelSpec, Rounding

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
        entries, columns = {}, self.even.channel_scales().columns
        for name, entry in read_imatrix(imatrix).items():
            exponents = np.frombuffer(columns.get(name, bytes(1)), np.int8).astype(np.float32)
            entries[name] = Importance(entry.sums * np.exp2(2 * exponents), entry.counts)
        out = output.partial("imatrix")
        write_imatrix(out, entries, imatrix.name, WINDOW)
        return out


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
    found = answer_of(Smoothed, "smooth", task, on_progress, cancelled)
    return QuantSource(out if found.changed else measure.source, found)


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
    found = read_json(_cache_file(measure)) if even else None
    if isinstance(found, dict) and "measured" in found:
        measured = decode(msgspec.json.encode(found["measured"]), Measured)
        if measured.imatrix.exists():
            return measured, int(found.get("told_bytes", 0))
    return measured_before(measure), 0


def _cache_file(measure: MeasureRequest) -> Path:
    return WorkFolder.open(measure).path / f"smoothed-{evidence_key(measure)}.json"
