"""What the user wants of a load, a placement, and the alternatives that lost."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason
from engine.placement.need_types import Need
from engine.placement.setting_changes import SettingChange
from engine.runner.engine_args import NO_ARGS, EngineArgs
from engine.runner.protocol import LoadSettings

Mode = Literal["quiet", "balanced", "fast"]


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the user wants of a load, in llama.cpp's names. None leaves a field to Tessera.

    `n_ctx` is the longest sequence in tokens, `n_gpu_layers` -1 offloads all layers, `n_parallel` is how many
    requests run at once, `keep_loaded` lets the model stay until it is unloaded by hand. `type_k` is the type of
    the KV cache; V has the same. On the wire and on disk it is `kv_type`.
    """

    n_ctx: Annotated[int, Meta(ge=256, le=1 << 24)] | None = None
    n_gpu_layers: Annotated[int, Meta(ge=-1, le=10_000)] | None = None
    n_threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    n_parallel: Annotated[int, Meta(ge=1, le=128)] | None = None
    type_k: Annotated[str, Meta(max_length=20)] | None = msgspec.field(default=None, name="kv_type")
    keep_loaded: bool = False


class ModelSettings(LoadOptions, frozen=True, kw_only=True, omit_defaults=True):
    """Everything the user set for one model.

    `device` pins it, `engine` names the added program that serves it (`tessera engine add`), `draft` is the id of
    its draft model, `engine_args` are llama.cpp's own arguments.
    """

    device: str | None = None
    engine: str | None = None
    draft: str | None = None
    engine_args: EngineArgs = NO_ARGS
    sampling: dict[str, float | int] = {}

    @property
    def load_options(self) -> LoadOptions:
        """The part that is only about loads."""
        return LoadOptions(**{name: getattr(self, name) for name in LoadOptions.__struct_fields__})

    def pending(self, loaded: "ModelSettings") -> tuple[str, ...]:
        """Fields that a model that was loaded with the settings `loaded` would get otherwise at its next load."""
        names = (name for name in self.__struct_fields__ if name not in _AT_ONCE)
        return tuple(name for name in names if getattr(self, name) != getattr(loaded, name))


# These need no load.
_AT_ONCE: Final = frozenset({"keep_loaded", "sampling"})


class Overrides(LoadOptions, frozen=True, kw_only=True):
    """What a placement has to respect: the options of the load, and the circumstances of this server.

    `device` pins a device id, a kind (cpu, igpu, dgpu), a backend (vulkan) or `id/backend`.
    `on_battery` prefers little power. `max_ctx`: nobody asked for a context, so it may have up to so many tokens.
    """

    max_ctx: int | None = None
    device: str | None = None
    mode: Mode = "balanced"
    on_battery: bool = False

    def with_options(self, options: LoadOptions) -> "Overrides":
        """The same with what was set for one model."""
        given = {name: getattr(options, name) for name in LoadOptions.__struct_fields__}
        return msgspec.structs.replace(self, **{name: value for name, value in given.items() if value is not None})


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
    `streaming`: its experts are more than memory, and this is what that costs. `changes`: who set what of
    `settings`.
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
    changes: tuple[SettingChange, ...] = ()


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried after a failure; `change` is what it changes."""

    settings: LoadSettings
    change: Reason
