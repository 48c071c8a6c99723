"""What the user overrides, a placement, and the alternatives that lost."""

from typing import Literal

import msgspec

from engine.fit.types import Need
from engine.runner.protocol import LoadSettings

Mode = Literal["quiet", "balanced", "fast"]


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. None leaves a choice to the dispatcher.

    `device` pins a device id, a kind (cpu, igpu, dgpu), a backend (vulkan) or `id/backend`.
    `on_battery` prefers little power.
    """

    n_ctx: int | None = None
    n_parallel: int | None = None
    kv_type: str | None = None
    device: str | None = None
    n_gpu_layers: int | None = None
    n_threads: int | None = None
    mode: Mode = "balanced"
    on_battery: bool = False


NO_OVERRIDES = Overrides()


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that lost: how fast it was expected to be, and why it lost."""

    device: str
    backend: str
    n_gpu_layers: int
    decode_tok_s: float | None
    reason: str


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model runs and how. `settings` is what the runner gets; speeds are predictions, None if unknown.

    `basis` says what the speed rests on: a measurement on this machine or a prior; `measured_on` whether this shape
    itself was measured. `tokens_per_joule` was measured here; `energy` tells it, or why it is not known.
    """

    device: str
    device_name: str
    backend: str
    n_layers: int
    settings: LoadSettings
    need: Need
    fits: bool
    decode_tok_s: float | None = None
    basis: Literal["measured", "prior", "unknown"] = "unknown"
    measured_on: Literal["stand-in", "model"] | None = None
    tokens_per_joule: float | None = None
    energy: str = ""
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried after a failure; `change` says in words for the user what it changes."""

    settings: LoadSettings
    change: str
