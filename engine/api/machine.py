"""/tessera/v1/devices, /ledger, /models/{id}/placement and /pin: hardware, memory and model placement."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from devices import types
from devices.memory_ledger import Audit, Reservation
from devices.types import (
    BackendReport,
    CoreCounts,
    Device,
    DeviceUsage,
    Evidence,
    Finding,
    Kind,
    Memory,
    Meter,
    Pool,
    ProcessMemory,
    Runtime,
    State,
    SystemMemory,
)
from engine.api.models import Applies
from engine.message_catalog.reasons import Reason
from engine.placement.types import (
    Alternative,
    CanaryCounts,
    FitOption,
    FitReport,
    MemoryEstimate,
    Placement,
    SettingChange,
    Streaming,
    WrongAnswers,
)


class Machine(types.Machine, frozen=True, kw_only=True):
    """GET /tessera/v1/devices: all known facts about this computer; `build` lists the installed kernels."""

    build: str = ""


class LiveDevices(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/devices/live."""

    devices: tuple[DeviceUsage, ...]


class PinRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/{id}/pin: a device, backend or `device/backend`; null removes the pin."""

    device: Annotated[str, Meta(min_length=1, max_length=100)] | None


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """The device that a model is pinned to; `unloaded` if the model was idle: its next request loads it there.

    `applies` says when the pin takes effect, as for load settings.
    """

    id: str
    device: str | None
    unloaded: bool = False
    applies: Applies = "at_load"


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/ledger: memory pools, their reservations, and the last audits."""

    pools: tuple[Pool, ...] = ()
    available_bytes: dict[str, int] = {}
    other_programs_bytes: int | None = None
    reservations: tuple[Reservation, ...] = ()
    audits: tuple[Audit, ...] = ()


class PlacementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/models/{id}/placement: planned placement, its fit report, current placement and pin.

    `comparing`: id of the running job that measures the places for this model.
    """

    placement: Placement
    fit: FitReport | None = None
    loaded: Placement | None = None
    pinned: str | None = None
    comparing: str | None = None


# /tessera/v1/power: power limits for Tessera's work.

Mode = Literal["quiet", "balanced", "fast"]


class PowerLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/power. `mode` null: the mode that the server was started with.

    `cap_w` is enforced with fewer threads and with pauses between the steps of models that run locally through
    llama.cpp; null means no limit. `battery_percent` is the share of the full battery that may be used from now on.
    After that, requests are refused until the limit is set again or the computer is plugged in; null means no
    limit.
    """

    mode: Mode | None = None
    cap_w: Annotated[float, Meta(ge=1, le=10_000)] | None = None
    battery_percent: Annotated[float, Meta(gt=0, le=100)] | None = None


class CanaryState(CanaryCounts, frozen=True, kw_only=True):
    """GET /tessera/v1/canary: how many rows of answers were compared with the CPU, and the errors found.

    `waiting` answers are recorded and not compared yet.
    """

    enabled: bool = True
    waiting: int = 0


class PowerState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/power: the requested limits and their effect.

    `saver` is True while the system's power-saver profile is active, as mode "quiet" requires, `performance` while
    its performance profile is, as mode "fast" requires during work on mains. `notes` list the limits that cannot be
    enforced, with reasons.
    `threads` and `duty_frac` are the current limits of the runners. `spent_percent` is the battery used since the
    limits were set.
    """

    limits: PowerLimits = PowerLimits()
    mode: Mode = "balanced"
    saver: bool = False
    performance: bool = False
    measured: bool = False
    power_w: float | None = None
    threads: int | None = None
    duty_frac: float = 1.0
    battery_percent: float | None = None
    spent_percent: float | None = None
    notes: tuple[Reason, ...] = msgspec.field(default=(), name="note_details")
