"""What our file is made of in tier max: a copy of the source with its inputs evened out, unlike stock mixes."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from quantize.child import run_task
from quantize.evidence import Cancelled, Measured, MeasureRequest, OnProgress, decode, encode
from quantize.files.imatrix import Importance, read_imatrix, write_imatrix
from quantize.files.output_file import Output
from quantize.files.work_folder import WorkFolder, hash_is_known, read_json, write_json
from quantize.job.request import QuantizeRequest
from quantize.measure.run import measured_before
from quantize.measure.smoothing import Smoothed, SmoothRequest
from quantize.native.calibration import WINDOW
from quantize.types import Rounding

_AS_IT_IS = Smoothed(changed=0, seams=0)
NOT_IN_A_PLAN = "a plan that travels is of the source as it is: its inputs were not evened out, as tier max has it"


def smooths(request: QuantizeRequest, rounding: Rounding) -> bool:
    """Whether a job evens inputs out: tier max, but for plans that travel and matrices of somebody else."""
    foreign = request.plan or request.export_plan or request.imatrix
    return request.tier == "max" and rounding == "craft" and not foreign


@dataclass(frozen=True, slots=True)
class Basis:
    """The file that ours is made of, and how it differs from the source."""

    path: Path = Path()
    even: Smoothed = _AS_IT_IS

    def source_imatrix(self, imatrix: Path | None, output: Output) -> Path | None:
        """The importance matrix of the source itself, from that of this file."""
        if imatrix is None or not self.even.changed:
            return imatrix
        entries = {}
        for name, entry in read_imatrix(imatrix).items():
            exponents = np.array(self.even.exponents.get(name, (0,)), np.float32)
            entries[name] = Importance(entry.sums * np.exp2(2 * exponents), entry.counts)
        out = output.partial("imatrix")
        write_imatrix(out, entries, imatrix.name, WINDOW)
        return out


def smoothed(
    measure: MeasureRequest, output: Output, room: int, on_progress: OnProgress, cancelled: Cancelled
) -> Basis:
    """A copy of the source, of about `room` bytes, with its inputs evened out; the source where nothing is gained.

    Raises: DiskFull. Cancelled. ChildDied. TextTooShort, Unreadable.
    """
    output.require_room(room)
    out = output.partial("smooth")
    task = SmoothRequest(measure=measure, out=out)
    found = msgspec.convert(run_task("smooth", task, on_progress, cancelled), Smoothed)
    return Basis(out if found.changed else measure.source, found)


def remember(measure: MeasureRequest, measured: Measured) -> None:
    """Keep what is known of a source's smoothed copy with the source's own measurements. Raises: DiskFull."""
    write_json(_known(measure), msgspec.json.decode(encode(measured)))


def known_before(measure: MeasureRequest, *, even: bool) -> Measured | None:
    """What is known of a source, or, where that is wanted (`even`), of its smoothed copy; measures nothing."""
    if not hash_is_known(measure.source, measure.cache_dir):
        return None
    found = read_json(_known(measure)) if even else None
    if found is not None:
        measured = decode(msgspec.json.encode(found), Measured)
        if measured.imatrix.exists():
            return measured
    return measured_before(measure)


def _known(measure: MeasureRequest) -> Path:
    return WorkFolder.open(measure).path / f"smoothed-{measure.probe_tokens}.json"
