"""The end of a job: what the file says of itself, its own name, the report beside it, the plan that travels."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from quantize.files.measurement_folder import file_sha256
from quantize.files.output_file import Output
from quantize.job.plan_file import NO_PLAN, plan_of, same_or_not, write_plan
from quantize.job.report import provenance_of, report_path, write_report
from quantize.job.request import QuantizeReport, QuantizeRequest
from quantize.job.source import Identity, check_unchanged
from quantize.job.write_model import stamp


def publish(
    request: QuantizeRequest,
    output: Output,
    report: QuantizeReport,
    chosen: Path,
    types: dict[str, str],
    rounded: Collection[str],
    source: Identity,
) -> QuantizeReport:
    """Stamp the `chosen` file, check it and give it its name; the report with what was found on the way.

    Raises: SourceChanged: it is no longer what it was. BadFile, InvalidOption: as `Output.publish`; other bytes
    than those of the plan that was followed. OSError.
    """
    given, exports = request.plan, request.export_plan
    provenance = given.provenance if given and report.shipped == "ours" else provenance_of(report, request.tier)
    stamp(chosen, provenance)
    digest = file_sha256(chosen) if given or exports else ""
    if given and report.shipped == "ours":
        note = same_or_not(given, digest, force=request.force)
        report = msgspec.structs.replace(report, warnings=(*report.warnings, note))
    exported = plan_of(request, report, rounded, provenance, digest) if exports else None
    if exports and not exported:
        report = msgspec.structs.replace(report, warnings=(*report.warnings, NO_PLAN))
    check_unchanged(request.source, source)
    output.publish(chosen, types)
    write_report(report_path(output.path), report)
    if exports and exported:
        write_plan(exports, exported)
    return report
