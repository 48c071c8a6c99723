"""Converts placements and fit reports of `engine.placement` to API structs, adding sentences to the facts."""

import msgspec

from engine.api import machine as api
from engine.message_catalog import command, sentence, sentences
from engine.placement.types import Alternative, FitOption, FitReport, Placement, SettingChange


def model_placement(placed: Placement) -> api.ModelPlacement:
    """A placement as an API struct, with sentences."""
    settings = placed.settings
    found = msgspec.structs.asdict(placed) | {
        "energy": sentence(placed.energy),
        "energy_detail": placed.energy,
        "reasons": sentences(placed.reasons),
        "reason_details": placed.reasons,
        "alternatives": tuple(map(_alternative, placed.alternatives)),
        "changes": tuple(map(_change, placed.changes)),
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
    """A fit report as an API struct, with sentences."""
    found = msgspec.structs.asdict(report) | {
        "fit_options": tuple(map(_option, report.fit_options)),
        "notes": sentences(report.notes),
        "note_details": report.notes,
    }
    return api.FitReport(**found)


def _alternative(other: Alternative) -> api.Alternative:
    found = msgspec.structs.asdict(other)
    return api.Alternative(**found | {"reason": sentence(other.reason), "reason_detail": other.reason})


def _change(change: SettingChange) -> api.SettingChange:
    found = msgspec.structs.asdict(change)
    return api.SettingChange(**found | {"reason": sentence(change.reason), "reason_detail": change.reason})


def _option(way: FitOption) -> api.FitOption:
    return api.FitOption(
        kind=way.kind,
        text=sentence(way.change),
        flags=command(way.change),
        needed_bytes=way.needed_bytes,
        saved_bytes=way.saved_bytes,
        cost=way.cost,
        detail=way.change,
    )
