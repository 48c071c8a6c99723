"""The values of settings that are worth trying for a model on a machine."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from devices.types import Machine
from engine.placement.cpu_choices import TILE_KERNELS
from engine.placement.measurements import Goal, TrialOutcome, TunableSettings
from engine.placement.speed import BACKENDS

UBATCHES = (32, 64, 128, 256, 512, 1024, 2048)
BATCHES = (512, 2048)
# Types below q8_0 lose quality: autotune must not trade quality for speed without a request. Measured: the log,
# types of the KV cache.
LOSSY_KV = "q8_0"

Level = dict[str, object]


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """One independent choice; each level is a set of settings that change together."""

    name: str
    levels: tuple[Level, ...]

    def words(self, knobs: TunableSettings) -> str:
        """The level of `knobs` as text."""
        level = self.levels[0]
        return ", ".join(_word(getattr(knobs, field), field) for field in level)


def _word(value: object, field: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or ("none" if field == "tiles" else "processor")
    return str(value)


def dimensions(
    base: TunableSettings,
    machine: Machine,
    prompt_tokens: int,
    n_layers: int,
    *,
    experts: bool = False,
    tiles: bool = False,
) -> tuple[Dimension, ...]:
    """The dimensions of the search, most important first. Dimensions with one level are omitted.

    `tiles`: Tessera's own CPU kernels were built.
    """
    all_dimensions = [
        Dimension(name="device", levels=_devices(base, machine, n_layers)),
        Dimension(name="experts on the processor", levels=_experts(base, n_layers) if experts else ()),
        Dimension(name="threads", levels=tuple({"n_threads": n} for n in thread_counts(machine))),
        Dimension(name="repack", levels=({"repack": True}, {"repack": False})),
        Dimension(name="our own kernels", levels=_tiles(base) if tiles else ()),
        Dimension(name="flash attention and KV type", levels=attention(base)),
        Dimension(name="ubatch", levels=tuple({"n_ubatch": n} for n in ubatches(prompt_tokens, base.n_ubatch))),
        Dimension(name="batch", levels=tuple({"n_batch": n} for n in BATCHES if prompt_tokens > min(BATCHES))),
        Dimension(name="mmap", levels=({"use_mmap": True}, {"use_mmap": False})),
    ]
    return tuple(d for d in all_dimensions if len(d.levels) > 1)


def attention(base: TunableSettings) -> tuple[Level, ...]:
    """Flash attention and KV cache type: one choice, because a quantized cache needs flash attention."""
    flash = base.flash_attn if base.flash_attn != "off" else "on"
    return (
        {"flash_attn": flash, "kv_type": "f16"},
        {"flash_attn": "off", "kv_type": "f16"},
        {"flash_attn": "on", "kv_type": LOSSY_KV},
    )


def valid(knobs: TunableSettings) -> bool:
    """Whether llama.cpp accepts these settings together."""
    if knobs.n_ubatch > knobs.n_batch or knobs.n_threads < 1:
        return False
    if knobs.cpu_expert_layers and not knobs.n_gpu_layers:
        return False
    return not (knobs.flash_attn == "off" and knobs.kv_type not in ("f32", "f16", "bf16"))


def changed(knobs: TunableSettings, level: Level) -> TunableSettings:
    """`knobs` at a level. If the level requires another setting to be valid, that one changes too."""
    new_knobs: TunableSettings = msgspec.structs.replace(knobs, **level)
    if new_knobs.devices != knobs.devices:
        new_knobs = msgspec.structs.replace(new_knobs, tensor_split=(), cpu_expert_layers=0)
    if new_knobs.n_ubatch > new_knobs.n_batch:
        follows = {"n_batch": new_knobs.n_ubatch} if "n_ubatch" in level else {"n_ubatch": new_knobs.n_batch}
        new_knobs = msgspec.structs.replace(new_knobs, **follows)
    return new_knobs


def thread_counts(machine: Machine) -> tuple[int, ...]:
    """One, half and all fast cores, and every logical processor this process may use."""
    cores = next((d.cores for d in machine.devices if d.cores), None)
    if cores is None:
        return (1,)
    fast = cores.threads
    allowed = max(fast, cores.allowed_logical if cores.quota_cores is None else fast)
    return tuple(sorted({1, max(1, fast // 2), max(1, fast - 1), fast, allowed}))


def ubatches(prompt_tokens: int, in_use: int) -> tuple[int, ...]:
    """Sizes that differ for a prompt of this length.

    All sizes above the prompt are equivalent, so only one is tried: the one `in_use` if it is above.
    """
    small = [n for n in UBATCHES if n < prompt_tokens]
    above = [in_use] if in_use >= prompt_tokens else [n for n in UBATCHES if n >= prompt_tokens][:1]
    return tuple(small[-4:] + above)


def _devices(base: TunableSettings, machine: Machine, n_layers: int) -> tuple[Level, ...]:
    """The CPU, and each usable GPU with the automatic number of layers, half of all layers, or all."""
    levels: list[Level] = [{"devices": (), "n_gpu_layers": 0}]
    for device in machine.devices:
        for runtime in device.runtimes:
            if device.kind not in {"igpu", "dgpu"} or runtime.state != "usable" or runtime.backend not in BACKENDS:
                continue
            layers: Sequence[int] = (n_layers + 1, (n_layers + 1) // 2)
            if base.devices == (runtime.device_name,):
                layers = tuple(dict.fromkeys((base.n_gpu_layers, *layers)))
            levels += [{"devices": (runtime.device_name,), "n_gpu_layers": n} for n in layers if n > 0]
    mine: Level = {"devices": base.devices, "n_gpu_layers": base.n_gpu_layers}  # possibly several GPUs
    return tuple(levels) if mine in levels else (*levels, mine)


def _tiles(base: TunableSettings) -> tuple[Level, ...]:
    """The own CPU kernels as chosen by automatic placement, for all types, and for none."""
    return tuple({"tiles": types} for types in dict.fromkeys((base.tiles, TILE_KERNELS, ())))


def _experts(base: TunableSettings, n_layers: int) -> tuple[Level, ...]:
    """Experts of none, a quarter, half or all layers on the CPU, and the number chosen by automatic placement.

    Settings that do not fit in memory are rejected before the trial.
    """
    if not base.n_gpu_layers:
        return ()
    counts = sorted({base.cpu_expert_layers, 0, n_layers // 4, n_layers // 2, n_layers})
    return tuple({"cpu_expert_layers": count} for count in counts)


# The goal of a search: the fastest request or the fewest joules, and which gains exceed the noise.

# Maximum cost of a change, relative to the current settings; smaller gains are noise. Lossy changes must gain more.
WORTH: Final = 0.99
LOSSY_WORTH: Final = 0.95
# With fewer joules, a request may take at most this many times the time of the current settings. The factor is
# Tessera's choice: users still wait for responses, and the idle power during that time is not counted. The form of
# this limit is that of Zeus's MaxSlowdownConstraint (zeus.optimizer.power_limit), which leaves the factor to its
# user.
MAX_SLOWDOWN: Final = 2.0
# Joules differ clearly beyond this many standard errors of the difference: Student's t for the eight and more
# degrees of freedom of a last round, two-sided at 5 %, is at most 2.3; several points are compared at the same
# time.
CLEAR: Final = 2.5
# A gain of this size counts even with a very noisy meter.
_LEAST_WORTH: Final = 0.05


def cost(outcome: TrialOutcome, prompt: int, goal: Goal) -> float:
    """The value to minimize: seconds or joules per request. Infinite for a failed point."""
    return outcome.turn_j() if goal == "energy" else outcome.turn_s(prompt)


def finite(value: float) -> float | None:
    """A number for a report, or None for infinity (a failed point), which JSON cannot represent."""
    return value if math.isfinite(value) else None


def noise(outcomes: Iterable[TrialOutcome]) -> float:
    """Standard deviation of one run's joules as a fraction, from the repeats of equal points."""
    squares, free = 0.0, 0
    for outcome in outcomes:
        mean = sum(outcome.joules) / max(1, len(outcome.joules))
        if mean > 0 and len(outcome.joules) > 1:
            squares += sum((j / mean - 1) ** 2 for j in outcome.joules)
            free += len(outcome.joules) - 1
    return math.sqrt(squares / free) if free else 0.0


def worth(mine: TrialOutcome, other: TrialOutcome, deviation: float, *, lossy: bool = False) -> float:
    """The fraction of the other's cost below which this point is a gain, given repeats and noise."""
    least = LOSSY_WORTH if lossy else WORTH
    runs, others = len(mine.joules), len(other.joules)
    if not runs or not others:
        return least
    return max(_LEAST_WORTH, min(least, 1 - CLEAR * deviation * math.sqrt(1 / runs + 1 / others)))
