"""What the user overrides, a placement, and the alternatives that lost."""

from typing import Literal

import msgspec

from engine.message_catalog.reasons import Reason
from engine.placement.need_types import Need
from engine.runner.protocol import LoadSettings

Mode = Literal["quiet", "balanced", "fast"]


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. None leaves a choice to the dispatcher.

    `device` pins a device id, a kind (cpu, igpu, dgpu), a backend (vulkan) or `id/backend`.
    `on_battery` prefers little power. `max_ctx`: nobody asked for a context, so it may have up to so many tokens.
    """

    n_ctx: int | None = None
    max_ctx: int | None = None
    n_parallel: int | None = None
    kv_type: str | None = None
    device: str | None = None
    n_gpu_layers: int | None = None
    n_threads: int | None = None
    mode: Mode = "balanced"
    on_battery: bool = False


NO_OVERRIDES = Overrides()


class Streaming(msgspec.Struct, frozen=True, kw_only=True):
    """Experts that are read from the disk when a token asks for them: what that is expected to cost.

    Rates are parts of the bytes a token asks for that are in memory, the worst with routing without any skew.
    `seen_tokens`: how many earlier tokens the expectation rests on (0: a published skew).
    """

    expert_bytes: int
    cached_bytes: int = msgspec.field(name="kept_bytes")
    hit_rate: float
    worst_hit_rate: float
    decode_tok_s: float
    worst_tok_s: float
    disk_gbs: float
    disk_measured: bool = False
    seen_tokens: int = 0


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that lost: how fast it was expected to be, and why it lost."""

    device: str
    backend: str
    n_gpu_layers: int
    decode_tok_s: float | None
    reason: Reason


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model runs and how. `settings` is what the runner gets; speeds are predictions, None if unknown.

    `basis` says what the speed rests on: a measurement on this machine or a prior; `measured_on` whether this shape
    itself was measured. `tokens_per_joule` was measured here; `energy` has it, or why it is not known.
    `streaming`: its experts are more than memory, and this is what that costs.
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
    energy: Reason | None = None
    streaming: Streaming | None = None
    reasons: tuple[Reason, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried after a failure; `change` is what it changes."""

    settings: LoadSettings
    change: Reason
