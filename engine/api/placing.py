"""Placements and fit reports of dispatch as the contract has them: with sentences beside the facts."""

import msgspec

from engine.api import machine as api
from engine.dispatch.types import Alternative, Placement
from engine.fit.types import FitReport
from engine.wording import sentence, sentences


def model_placement(placed: Placement) -> api.ModelPlacement:
    """A placement in words."""
    settings = placed.settings
    found = msgspec.structs.asdict(placed) | {
        "energy": sentence(placed.energy),
        "energy_detail": placed.energy,
        "reasons": sentences(placed.reasons),
        "reason_details": placed.reasons,
        "alternatives": tuple(map(_alternative, placed.alternatives)),
    }
    return api.ModelPlacement(
        **found,
        n_ctx=settings.n_ctx,
        n_gpu_layers=settings.n_gpu_layers,
        n_threads=settings.n_threads,
        type_k=settings.type_k,
        type_v=settings.type_v,
    )


def fit_report(report: FitReport) -> api.FitReport:
    """A report in words."""
    found = msgspec.structs.asdict(report)
    return api.FitReport(**found | {"notes": sentences(report.notes), "note_details": report.notes})


def _alternative(other: Alternative) -> api.Alternative:
    found = msgspec.structs.asdict(other)
    return api.Alternative(**found | {"reason": sentence(other.reason), "reason_detail": other.reason})
