"""/tessera/v1/power: how much power the work here may draw."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason

Mode = Literal["quiet", "balanced", "fast"]


class PowerLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/power. `mode` null: as the server was started.

    `cap_w` is held by fewer threads and rests between steps of models that run here through llama.cpp; null: none.
    `battery_percent` of the full battery may be spent from now on; then requests are refused until it is set again
    or the computer is plugged in. null: no such bound.
    """

    mode: Mode | None = None
    cap_w: Annotated[float, Meta(ge=1, le=10_000)] | None = None
    battery_percent: Annotated[float, Meta(gt=0, le=100)] | None = None


class PowerState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/power: the limits that were asked for, and what comes of them.

    `saver`: the system's power-saver profile is held, as mode quiet asks. `notes` say what cannot be held, and why;
    `note_details` have it as facts.
    `threads` and `duty_frac` are what runners keep to now; `spent_percent` is of the battery, since they were set.
    """

    limits: PowerLimits = PowerLimits()
    mode: Mode = "balanced"
    saver: bool = False
    measured: bool = False
    power_w: float | None = None
    threads: int | None = None
    duty_frac: float = 1.0
    battery_percent: float | None = None
    spent_percent: float | None = None
    notes: tuple[str, ...] = ()
    note_details: tuple[Reason, ...] = ()
