"""/tessera/v1/devices, /ledger, /models/{id}/placement and /pin: the machine, its memory, and where models run."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from devices import types
from devices.memory_audit import Audit
from devices.types import (
    BackendReport,
    CoreCounts,
    Device,
    Evidence,
    Finding,
    Kind,
    LiveDevice,
    Memory,
    Meter,
    Pool,
    ProcessMemory,
    Runtime,
    State,
    SystemMemory,
)
from engine.api.models import Applies
from engine.core.types import DeviceCheck
from engine.message_catalog.reasons import Reason
from engine.placement.types import Need, OptionKind, Streaming, Value
from engine.runner.protocol import LoadSettings

__all__ = [
    "Alternative",
    "Audit",
    "BackendReport",
    "ComparedDevice",
    "CoreCounts",
    "Device",
    "Evidence",
    "Finding",
    "FitOption",
    "FitReport",
    "Kind",
    "LedgerState",
    "LiveDevice",
    "LiveDevices",
    "Machine",
    "Memory",
    "Meter",
    "ModelPlacement",
    "Need",
    "PinRequest",
    "Pinned",
    "PlacementAnswer",
    "Pool",
    "ProcessMemory",
    "Reason",
    "Reservation",
    "Runtime",
    "SettingChange",
    "State",
    "Streaming",
    "SystemMemory",
]


class Machine(types.Machine, frozen=True, kw_only=True):
    """GET /tessera/v1/devices: everything known about this machine; `build` says which kernels are installed."""

    build: str = ""


class LiveDevices(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/devices/live."""

    devices: tuple[LiveDevice, ...]


class PinRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/{id}/pin: a device, backend or `device/backend`; null lets Tessera choose again."""

    device: Annotated[str, Meta(min_length=1, max_length=100)] | None


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is kept from now on; `unloaded`: it was idle, and its next request loads it there.

    `applies` is when that comes into force, as of load settings.
    """

    id: str
    device: str | None
    unloaded: bool = False
    applies: Applies = "at_load"


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What one runner was granted and holds: bytes by pool (`drawn`), by device and by purpose (`parts`)."""

    owner: str
    drawn: dict[str, int] = {}
    predicted_bytes: int = 0
    devices: dict[str, int] = {}
    measured: ProcessMemory | None = None
    buffers: dict[str, int] = {}
    pid: int | None = None
    parts: dict[str, int] = {}


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/ledger: pools, who holds what of them, and the last audits."""

    pools: tuple[Pool, ...] = ()
    available_bytes: dict[str, int] = {}
    other_programs_bytes: int | None = None
    reservations: tuple[Reservation, ...] = ()
    audits: tuple[Audit, ...] = ()


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that lost: how fast it was expected to be, and why it lost; `reason_detail` has that as facts."""

    device: str
    backend: str
    n_gpu_layers: int
    decode_tok_s: float | None
    reason: str
    reason_detail: Reason | None = None


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the placement set one field of `settings`; `reason` is a sentence of `reason_detail`."""

    step: str
    field: str
    old: Value
    new: Value
    reason: str = ""
    reason_detail: Reason | None = None


class ModelPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model runs and how; `engine.placement.types.Placement` explains the fields.

    The fields of `settings` stand beside it too. `reasons` and `energy` are English sentences; `reason_details` and
    `energy_detail` are the same as kinds with values, for programs and for other languages.
    """

    device: str
    backend: str
    device_name: str = ""
    n_layers: int = 0
    settings: LoadSettings | None = None
    need: Need | None = None
    fits: bool = True
    decode_tok_s: float | None = None
    basis: Literal["measured", "prior", "unknown"] = "unknown"
    measured_on: Literal["stand-in", "model"] | None = None
    tokens_per_joule: float | None = None
    energy: str = ""
    energy_detail: Reason | None = None
    streaming: Streaming | None = None
    reasons: tuple[str, ...] = ()
    reason_details: tuple[Reason, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    changes: tuple[SettingChange, ...] = ()
    n_ctx: int = 0
    n_gpu_layers: int = 0
    n_threads: int = 0
    type_k: str = ""
    type_v: str = ""


class ComparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One way of computing on one device beside the CPU's. `state`: right, wrong, failed (no load), or skipped."""

    device: str
    backend: str
    what: str
    state: str
    reason: str = ""
    check: DeviceCheck | None = None


class FitOption(msgspec.Struct, frozen=True, kw_only=True):
    """A trade-off that needs less memory: its text, the flags that ask for it, and what the load then needs.

    `detail` has the text as facts.
    """

    kind: OptionKind
    text: str
    flags: str
    needed_bytes: int
    saved_bytes: int
    cost: float
    detail: Reason | None = None


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """Does it fit: needed and available per device, and what to do if not. `note_details`: the notes as facts."""

    model: str
    fits: bool
    need: Need
    available_bytes: dict[str, int]
    largest_context: int
    fit_options: tuple[FitOption, ...] = ()
    notes: tuple[str, ...] = ()
    note_details: tuple[Reason, ...] = ()


class PlacementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/models/{id}/placement: where it would run, what that needs, where it runs, and its pin."""

    placement: ModelPlacement
    fit: FitReport | None = None
    loaded: ModelPlacement | None = None
    pinned: str | None = None


# /tessera/v1/power: how much power the work here may draw.

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
