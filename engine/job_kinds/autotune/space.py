"""Which values of which settings are worth trying for a model on a machine."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from devices.types import Machine
from engine.placement.cpu_choices import TILE_KERNELS
from engine.placement.measurements import Goal, Knobs, Outcome
from engine.placement.speed import BACKENDS

UBATCHES = (32, 64, 128, 256, 512, 1024, 2048)
BATCHES = (512, 2048)
# Lossy beyond q8_0: autotune must not trade quality for speed unasked.
# Measured: docs/log.md, types of the KV cache.
LOSSY_KV = "q8_0"

Level = dict[str, object]


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """One independent choice: the settings each level changes together."""

    name: str
    levels: tuple[Level, ...]

    def words(self, knobs: Knobs) -> str:
        """The level of `knobs` in words."""
        level = self.levels[0]
        return ", ".join(_word(getattr(knobs, field), field) for field in level)


def _word(value: object, field: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or ("none" if field == "tiles" else "processor")
    return str(value)


def dimensions(
    base: Knobs, machine: Machine, prompt_tokens: int, n_layers: int, *, experts: bool = False, tiles: bool = False
) -> tuple[Dimension, ...]:
    """The choices there are, most important first. A dimension with one level is left out.

    `tiles`: our own kernels were built.
    """
    found = [
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
    return tuple(d for d in found if len(d.levels) > 1)


def attention(base: Knobs) -> tuple[Level, ...]:
    """Flash attention and the cache's type: one choice, because a quantized cache needs flash attention."""
    flash = base.flash_attn if base.flash_attn != "off" else "on"
    return (
        {"flash_attn": flash, "kv_type": "f16"},
        {"flash_attn": "off", "kv_type": "f16"},
        {"flash_attn": "on", "kv_type": LOSSY_KV},
    )


def valid(knobs: Knobs) -> bool:
    """llama.cpp would take these settings together."""
    if knobs.n_ubatch > knobs.n_batch or knobs.n_threads < 1:
        return False
    if knobs.cpu_expert_layers and not knobs.n_gpu_layers:
        return False
    return not (knobs.flash_attn == "off" and knobs.kv_type not in ("f32", "f16", "bf16"))


def changed(knobs: Knobs, level: Level) -> Knobs:
    """`knobs` at a level. Where a level needs another setting to be valid, that one follows."""
    made: Knobs = msgspec.structs.replace(knobs, **level)
    if made.devices != knobs.devices:
        made = msgspec.structs.replace(made, tensor_split=(), cpu_expert_layers=0)
    if made.n_ubatch > made.n_batch:
        follows = {"n_batch": made.n_ubatch} if "n_ubatch" in level else {"n_ubatch": made.n_batch}
        made = msgspec.structs.replace(made, **follows)
    return made


def thread_counts(machine: Machine) -> tuple[int, ...]:
    """One, half and all fast cores, and every logical processor this process may use."""
    cores = next((d.cores for d in machine.devices if d.cores), None)
    if cores is None:
        return (1,)
    fast = cores.threads
    allowed = max(fast, cores.allowed_logical if cores.quota_cores is None else fast)
    return tuple(sorted({1, max(1, fast // 2), max(1, fast - 1), fast, allowed}))


def ubatches(prompt_tokens: int, in_use: int) -> tuple[int, ...]:
    """Sizes that differ for a prompt of this length; those above it are all the same, like the one `in_use`."""
    small = [n for n in UBATCHES if n < prompt_tokens]
    above = [in_use] if in_use >= prompt_tokens else [n for n in UBATCHES if n >= prompt_tokens][:1]
    return tuple(small[-4:] + above)


def _devices(base: Knobs, machine: Machine, n_layers: int) -> tuple[Level, ...]:
    """The processor, and each usable backend device with what dispatch offloads, half of it, or everything."""
    levels: list[Level] = [{"devices": (), "n_gpu_layers": 0}]
    for device in machine.devices:
        for runtime in device.runtimes:
            if device.kind not in {"igpu", "dgpu"} or runtime.state != "usable" or runtime.backend not in BACKENDS:
                continue
            layers: Sequence[int] = (n_layers + 1, (n_layers + 1) // 2)
            if base.devices == (runtime.device_name,):
                layers = tuple(dict.fromkeys((base.n_gpu_layers, *layers)))
            levels += [{"devices": (runtime.device_name,), "n_gpu_layers": n} for n in layers if n > 0]
    mine: Level = {"devices": base.devices, "n_gpu_layers": base.n_gpu_layers}  # perhaps several GPUs
    return tuple(levels) if mine in levels else (*levels, mine)


def _tiles(base: Knobs) -> tuple[Level, ...]:
    """For what dispatch takes them for, for all they can do, and for nothing."""
    return tuple({"tiles": types} for types in dict.fromkeys((base.tiles, TILE_KERNELS, ())))


def _experts(base: Knobs, n_layers: int) -> tuple[Level, ...]:
    """Experts of none, a quarter, half or all layers on the processor, and of as many as dispatch leaves there.

    What does not fit is refused before it is tried.
    """
    if not base.n_gpu_layers:
        return ()
    counts = sorted({base.cpu_expert_layers, 0, n_layers // 4, n_layers // 2, n_layers})
    return tuple({"cpu_expert_layers": count} for count in counts)


# What a search is for: the fastest turn or the one of fewest joules, and which gains are more than noise.

# A change must gain this to replace what is in use; below it is noise. Lossy ones must gain more.
WORTH: Final = 0.99
LOSSY_WORTH: Final = 0.95
# Fewer joules are no reason for a turn that takes longer than so many times that of the settings in use. Ours: who
# tunes still waits for answers, and what the computer draws at rest for all that time is not counted. A bound of
# this form is Zeus's MaxSlowdownConstraint (zeus.optimizer.power_limit), which leaves the factor to its user.
MAX_SLOWDOWN: Final = 2.0
# Joules differ clearly beyond so many standard errors of the difference: Student's t for the eight and more degrees
# of freedom of a last round, two-sided at 5 %, is at most 2.3; several points are compared at once.
CLEAR: Final = 2.5
# However noisy a meter is, this gain is believed.
_LEAST_WORTH: Final = 0.05


def cost(outcome: Outcome, prompt: int, goal: Goal) -> float:
    """What is minimized: seconds or joules of a turn. Infinite for a bad point."""
    return outcome.turn_j() if goal == "energy" else outcome.turn_s(prompt)


def finite(value: float) -> float | None:
    """As a report tells it: JSON has no infinity, which is what does not work."""
    return value if math.isfinite(value) else None


def noise(outcomes: Iterable[Outcome]) -> float:
    """Standard deviation of one run's joules as a share of them, by the repeats of points measured alike."""
    squares, free = 0.0, 0
    for outcome in outcomes:
        mean = sum(outcome.joules) / max(1, len(outcome.joules))
        if mean > 0 and len(outcome.joules) > 1:
            squares += sum((j / mean - 1) ** 2 for j in outcome.joules)
            free += len(outcome.joules) - 1
    return math.sqrt(squares / free) if free else 0.0


def worth(mine: Outcome, other: Outcome, deviation: float, *, lossy: bool = False) -> float:
    """The share of the other's cost below which mine is a gain, by how often each was measured and how noisily."""
    least = LOSSY_WORTH if lossy else WORTH
    runs, others = len(mine.joules), len(other.joules)
    if not runs or not others:
        return least
    return max(_LEAST_WORTH, min(least, 1 - CLEAR * deviation * math.sqrt(1 / runs + 1 / others)))
