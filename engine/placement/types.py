"""Records of placement: load options, memory needs, where a model runs, and who set what."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason
from engine.runner.engine_args import NO_ARGS, EngineArgs
from engine.runner.protocol import LoadSettings

OptionKind = Literal["kv", "context", "parallel", "quantization", "offload", "unload", "combined"]
Basis = Literal["formula", "probe", "prior"]
PartName = Literal[
    "weights",
    "kv",
    "recurrent",
    "compute",
    "output",
    "projector",
    "draft",
    "overhead",
    "prefixes",
    "correction",
    "experts",
]


CPU: Final = "cpu"
# Device name of layers that workers on other machines hold (engine_args.rpc): they use no memory of this machine.
WORKERS: Final = "workers"


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one kind on one device. `mapped` of them are pages of the file, which others may share."""

    name: PartName
    device: str
    num_bytes: int
    mapped_bytes: int = 0
    basis: Basis = "formula"


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Memory need of one load. `kv_layer_bytes` has the cache of each layer, on any device.

    `resident_bytes` is what the system shows for the runner's process in full use: without scratch memory that is
    never written, plus pages of the file that stay in memory although the weights in them were repacked.
    """

    n_ctx: int
    kv_cells: int
    n_sequences: int
    type_k: str
    type_v: str
    n_gpu_layers: int
    parts: tuple[MemoryPart, ...]
    resident_bytes: int = 0
    kv_layer_bytes: tuple[int, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes over all devices."""
        return sum(part.num_bytes for part in self.parts)

    def device_bytes(self, device: str) -> int:
        return sum(part.num_bytes for part in self.parts if part.device == device)

    def mapped_bytes(self, device: str) -> int:
        """Bytes of file pages on one device."""
        return sum(part.mapped_bytes for part in self.parts if part.device == device)

    def part_bytes(self, name: PartName) -> int:
        """Bytes of one kind over all devices."""
        return sum(part.num_bytes for part in self.parts if part.name == name)

    def by_purpose(self) -> dict[str, int]:
        """Bytes of each kind over all devices."""
        return {part.name: self.part_bytes(part.name) for part in self.parts}

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices in the order of their first part."""
        return tuple(dict.fromkeys(part.device for part in self.parts))


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that llama.cpp reports for a load that allocated nothing.

    `compute_bytes` by backend device name; `overhead_bytes` is the process with its libraries and vocabulary;
    `untouched_bytes` is scratch memory for drafts and idle sequences that ordinary use never writes.
    """

    kv_bytes: int
    recurrent_bytes: int
    output_bytes: int
    compute_bytes: dict[str, int]
    overhead_bytes: int
    untouched_bytes: int = 0
    seconds: float = 0.0


DryRunner = Callable[[LoadSettings], DryRun | None]


class FitOption(msgspec.Struct, frozen=True, kw_only=True):
    """A trade-off that needs less memory: the change, and the need after it."""

    kind: OptionKind
    change: Reason = msgspec.field(name="detail")
    needed_bytes: int
    saved_bytes: int
    cost: float


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "does it fit": needed and available memory per device, and options if it does not fit."""

    model: str
    fits: bool
    need: MemoryEstimate
    available_bytes: dict[str, int]
    largest_context: int
    fit_options: tuple[FitOption, ...] = ()
    notes: tuple[Reason, ...] = msgspec.field(default=(), name="note_details")


About = TypeVar("About")
# A step reads what is known about a load, and returns its settings, changed or not, and the reason.
Step = Callable[[About, LoadSettings], tuple[LoadSettings, Reason | None]]


# A setting's value as in JSON.
Value = bool | int | float | str | tuple[str | float, ...] | None


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a load's settings that one step set."""

    step: str
    field: str
    old: Value
    new: Value
    reason: Reason | None = msgspec.field(default=None, name="reason_detail")


def name_of(step: Callable[..., object]) -> str:
    """The displayed name of a step."""
    return step.__name__.replace("_", " ")


def changes_between(
    step: str, old: LoadSettings, new: LoadSettings, reason: Reason | None
) -> tuple[SettingChange, ...]:
    """A change for each field that differs."""
    return tuple(
        SettingChange(step=step, field=name, old=_value(before), new=_value(after), reason=reason)
        for name in LoadSettings.__struct_fields__
        if (before := getattr(old, name)) != (after := getattr(new, name))
    )


def _value(value: Any) -> Value:
    if isinstance(value, msgspec.Struct):
        return msgspec.json.encode(value).decode()
    if isinstance(value, tuple):
        return tuple(item if isinstance(item, str | float) else str(_value(item)) for item in value)
    converted: Value = value
    return converted


def follow(
    steps: Iterable[Step[About]], about: About, settings: LoadSettings
) -> tuple[LoadSettings, tuple[SettingChange, ...]]:
    """The settings after these steps, and what each step changed."""
    changes: list[SettingChange] = []
    for step in steps:
        changed, reason = step(about, settings)
        changes += changes_between(name_of(step), settings, changed, reason)
        settings = changed
    return settings, tuple(changes)


Mode = Literal["quiet", "balanced", "fast"]


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Load options of the user, with llama.cpp's names. None leaves a field to Tessera.

    `n_ctx` is the longest sequence in tokens; `n_gpu_layers` -1 offloads all layers; `n_parallel` is the number of
    parallel requests; `keep_loaded` keeps the model until it is unloaded by hand. `type_k` is the type of the KV
    cache; V has the same. On the wire and on disk it is `kv_type`.
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
        return LoadOptions(**{name: getattr(self, name) for name in LoadOptions.__struct_fields__})

    def pending(self, loaded: "ModelSettings") -> tuple[str, ...]:
        """Fields that a model loaded with the settings `loaded` would get new values for at its next load."""
        names = (name for name in self.__struct_fields__ if name not in _AT_ONCE)
        return tuple(name for name in names if getattr(self, name) != getattr(loaded, name))


# Fields that take effect without a load.
_AT_ONCE: Final = frozenset({"keep_loaded", "sampling"})


class PlacementLimits(LoadOptions, frozen=True, kw_only=True):
    """Constraints of a placement: the load options, and the state of this server.

    `device` pins a device id, a kind (cpu, igpu, dgpu), a backend (vulkan) or `id/backend`.
    `on_battery` prefers low power. `max_ctx`: the limit for an automatic context, if no one requested a length.
    """

    max_ctx: int | None = None
    device: str | None = None
    mode: Mode = "balanced"
    on_battery: bool = False

    def with_options(self, options: LoadOptions) -> "PlacementLimits":
        """The same overrides with the options set for one model."""
        values = {name: getattr(options, name) for name in LoadOptions.__struct_fields__}
        return msgspec.structs.replace(self, **{name: value for name, value in values.items() if value is not None})


NO_OVERRIDES = PlacementLimits()


class Streaming(msgspec.Struct, frozen=True, kw_only=True):
    """Expected cost of experts that are read from disk on demand.

    Hit rates are the share of a token's expert bytes that are in memory; the worst case is routing without any
    skew. `seen_tokens`: number of earlier tokens behind the estimate (0: a published skew).
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
    """A rejected choice: its expected speed, and why it was rejected."""

    device: str
    backend: str
    n_gpu_layers: int
    decode_tok_s: float | None
    reason: Reason = msgspec.field(name="reason_detail")


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a model runs. `settings` go to the runner; speeds are predictions, None if unknown.

    `basis` is the source of the speed: a measurement on this machine or a prior; `measured_on` says whether this
    shape itself was measured. `tokens_per_joule` was measured here; `energy` has it, or why it is not known.
    `streaming`: the cost if its experts do not fit in memory. `changes`: who set which settings.
    """

    device: str
    device_name: str
    backend: str
    n_layers: int
    settings: LoadSettings
    need: MemoryEstimate
    fits: bool
    decode_tok_s: float | None = None
    basis: Literal["measured", "prior", "unknown"] = "unknown"
    measured_on: Literal["stand-in", "model"] | None = None
    tokens_per_joule: float | None = None
    energy: Reason | None = msgspec.field(default=None, name="energy_detail")
    streaming: Streaming | None = None
    reasons: tuple[Reason, ...] = msgspec.field(default=(), name="reason_details")
    alternatives: tuple[Alternative, ...] = ()
    changes: tuple[SettingChange, ...] = ()


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Settings to try after a failure; `change` describes what they change.

    `death_depth` is the depth in tokens at which a runner died with settings on the way to these; 0 if none did.
    """

    settings: LoadSettings
    change: Reason
    death_depth: int = 0


class WrongAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of a model that were wrong: rows of one of them differed from the CPU's results.

    Answers between `since` and `found_at` (seconds since the epoch) were computed with the same settings. `rule`
    names the rule that disables them. `tokens` is the length of the text, `batch_rows` and
    `sequences` the shape of the batch of each row. Distances are KL divergences in nats: the mean, the largest,
    the mean from a second computation with other kernels, and the one between the two computations.
    """

    model: str
    since: float
    found_at: float
    reason: str
    rule: str = ""
    devices: tuple[str, ...] = ()
    n_ubatch: int = 0
    n_parallel: int = 0
    cache_types: tuple[str, str] = ("f16", "f16")
    flash_attn: str = "auto"
    tokens: int = 0
    rows: int = 0
    batch_rows: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()
    nats: float = 0.0
    largest_nats: float = 0.0
    again_nats: float = 0.0
    noise_nats: float = 0.0


class CanaryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Comparisons with the CPU so far, and the errors found.

    Models computed for `computing_s` seconds, and comparing took `spent_s`. `checked_at` is in seconds since the
    epoch; None: nothing was compared yet.
    """

    computing_s: float = 0.0
    spent_s: float = 0.0
    answers: int = 0
    rows: int = 0
    checked_at: float | None = None
    found: tuple[WrongAnswers, ...] = ()
