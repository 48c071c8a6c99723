"""Stores what was learned on this machine: decode speeds, usage, and settings that worked after others failed."""

import contextlib
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from devices.msgspec_lock import learned
from engine.core.json_store import JsonStore
from engine.runner.protocol import LoadSettings

# Response tokens of a usual turn, as in autotune.
ANSWER_TOKENS: Final = 128


class Heads(msgspec.Struct, frozen=True):
    """Geometry of attention: query heads, key heads, values per head."""

    queries: int
    keys: int
    width: int


class AttentionTimes(msgspec.Struct, frozen=True, array_like=True):
    """Seconds at a length in tokens, fused and plain: prefill of that length, and one token generated after it."""

    length: int
    fused_prompt_s: float
    plain_prompt_s: float
    fused_token_s: float
    plain_token_s: float

    @property
    def plain_to_fused(self) -> float:
        """Time of a turn with plain attention divided by the time with fused attention."""
        fused, plain = (
            self.fused_prompt_s + ANSWER_TOKENS * self.fused_token_s,
            self.plain_prompt_s + ANSWER_TOKENS * self.plain_token_s,
        )
        return plain / fused if fused > 0 else 1.0


class AttentionSpeed(msgspec.Struct, frozen=True):
    """Fused and plain attention as measured for one head geometry, at one or more lengths."""

    points: tuple[AttentionTimes, ...]

    def nearest(self, depth: float) -> AttentionTimes:
        """The measurement nearest to `depth` tokens."""
        return min(self.points, key=lambda point: abs(point.length - depth))


class SpeedPoint(msgspec.Struct, frozen=True, array_like=True):
    """Seconds per token after `depth` others, as measured and as the rule forecast them for the measured model."""

    depth: Annotated[float, msgspec.Meta(ge=0)]
    measured_s: Annotated[float, msgspec.Meta(gt=0)]
    forecast_s: Annotated[float, msgspec.Meta(gt=0)]


class MeasuredSpeed(msgspec.Struct, frozen=True):
    """Times of one place for a family of models, shallowest point first. `at`: when, in seconds since 1970.

    `together`: total tokens/s of several answers at once, relative to one alone, by their number.
    """

    prompt: tuple[SpeedPoint, ...]
    decode: tuple[SpeedPoint, ...]
    at: float = 0.0
    together: tuple[tuple[int, Annotated[float, msgspec.Meta(gt=0)]], ...] = ()


def seconds_at(points: Sequence[SpeedPoint], depth: float, forecast: Callable[[float], float]) -> float:
    """Seconds per token after `depth` others, of a model that `forecast` describes.

    The points are moved to this model by its own forecast at their depths. Between two of them, and beyond, time
    grows with the forecast; the measured slope may even fall, but not below half of what was measured. Beyond
    points that are close to each other, noise would decide the slope, so the slope is mostly that of the forecast.
    """
    moved = [(forecast(p.depth), p.measured_s * forecast(p.depth) / p.forecast_s) for p in points]
    at_depth = forecast(depth)
    above = next((i for i, point in enumerate(points) if point.depth >= depth), len(points))
    if 0 < above < len(points) and moved[above - 1][0] < moved[above][0]:
        (at, at_s), (other, other_s) = moved[above - 1], moved[above]
        slope = (other_s - at_s) / (other - at)
    else:
        at, at_s = moved[min(above, len(points) - 1)]
        others = [point for point in moved if point[0] != at]
        if not others:
            return at_s * at_depth / at
        clear = [point for point in others if abs(point[0] / at - 1) >= CLEAR_GROWTH]
        # The nearest of those, else the farthest of all.
        (other, other_s), *_ = sorted(clear or others, key=lambda point: abs(point[0] - at), reverse=not clear)
        clear_frac = min(1.0, (abs(other / at - 1) / CLEAR_GROWTH) ** 2)
        usual = (at_s / at + other_s / other) / 2  # how long tokens take here, as a multiple of the forecast
        slope = clear_frac * (at_s - other_s) / (at - other) + (1 - clear_frac) * usual
    return max(at_s + slope * (at_depth - at), min(at_s, other_s) / 2)


def attention_key(machine: str, heads: Heads, threads: int) -> str:
    """Key of everything that such a measurement depends on; `machine` is a machine's key."""
    return f"{machine}|{heads.queries}x{heads.keys}x{heads.width}|{threads}"


class Death(msgspec.Struct, frozen=True):
    """A runner died while it read a prompt, at this depth in tokens; `changes` are the settings tried next."""

    depth: Annotated[int, msgspec.Meta(ge=0)]
    changes: dict[str, Any]

    def concerns(self, settings: LoadSettings) -> bool:
        """Whether a prompt of a load with these settings can become as long."""
        return max(settings.n_ctx, settings.max_ctx) >= self.depth


T = TypeVar("T")
MAX_ENTRIES: Final = 500
# Usage statistics cover a model's newest tokens, this many of them: usage changes.
USE_TOKENS: Final = 20_000
# A correction that changed by more than this is written at once.
NEWS: Final = 0.1
# Two measured points show how time grows if their forecasts differ by this factor. A measurement under load is off
# by as much, so closer points count less, by the square of their distance relative to it.
CLEAR_GROWTH: Final = 0.2
# Newest responses whose median is a model's correction: a single one may have run next to other work.
NEWEST_RESPONSES: Final = 5
# Responses between two writes of the statistics.
SAVE_EVERY: Final = 16
# Settings that a fallback may change and that are therefore stored.
FALLBACK_FIELDS = (
    "devices",
    "n_gpu_layers",
    "tensor_split",
    "cpu_expert_layers",
    "n_ubatch",
    "n_batch",
    "type_k",
    "type_v",
    "flash_attn",
    "repack",
    "tiles",
    "use_mmap",
    "mtp",
    "max_rollback",
    "variables",
)


_Sound = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
# A measurement beyond these limits is wrong: the clock changed, or the computer slept.
_MOST_OFF: Final = (0.02, 50.0)
_Correction = Annotated[float, msgspec.Meta(ge=_MOST_OFF[0], le=_MOST_OFF[1])]


class ModelUsage(msgspec.Struct, frozen=True, array_like=True):
    """Usage statistics of a model: means over the `tokens` it generated.

    `depth` is the number of tokens before each; `at_once` is the number of running requests when its response
    ended.
    """

    tokens: _Sound
    depth: _Sound
    at_once: _Sound


class HistoryFile(msgspec.Struct, kw_only=True):
    """Content of a `PlacementHistory` file: tables, in which a corrupt row affects only that row.

    Earlier versions stored `pins` here: they stay until `ModelSettingsStore` has taken them over.
    """

    speeds: Any = None
    corrections: Any = None
    fallbacks: Any = msgspec.field(default=None, name="ladders")
    pins: Any = None
    uses: Any = None
    energies: Any = None
    attention: Any = None
    disks: Any = None
    measured: Any = None
    deaths: Any = None


_TABLES: Final = tuple(name for name in HistoryFile.__struct_fields__ if name != "pins")


class PlacementHistory:
    """A small JSON file of tables: those of `HistoryFile`.

    `speeds`: device|backend → GB/s read while decoding. `corrections`: device|backend|model → measured decode speed
    divided by the formula's. `ladders`: model → settings of the fallback that worked.
    `uses`: model → tokens, depth and parallel requests. `energies`: model|device|backend → tokens generated per
    joule. `attention`: `attention_key` → seconds of fused and plain attention. `disks`: disk → GB/s. `measured`: a
    forecast's key → seconds per token at several depths. `deaths`: `death_key` → depth, and settings tried next.

    Keys include everything the value depends on, so a new driver or file simply has no entry yet.
    """

    def __init__(self, path: Path | None) -> None:
        self._store = JsonStore(path, HistoryFile, HistoryFile, durable=False)
        self._lock = threading.Lock()
        stored = self._store.get()
        self._speeds: dict[str, float] = _sound_rows(stored.speeds, Annotated[float, msgspec.Meta(gt=0)])
        self._corrections: dict[str, float] = _sound_rows(stored.corrections, _Correction)
        self._fallbacks: dict[str, dict[str, Any]] = _sound_rows(stored.fallbacks, dict[str, Any])
        self._uses: dict[str, ModelUsage] = _sound_rows(stored.uses, ModelUsage)
        self._energies: dict[str, float] = _sound_rows(stored.energies, Annotated[float, msgspec.Meta(gt=0)])
        self._attention: dict[str, AttentionSpeed] = _sound_rows(stored.attention, AttentionSpeed)
        self._disks: dict[str, float] = _sound_rows(stored.disks, Annotated[float, msgspec.Meta(gt=0)])
        self._measured: dict[str, MeasuredSpeed] = _sound_rows(stored.measured, MeasuredSpeed)
        self._deaths: dict[str, Death] = _sound_rows(stored.deaths, Death)
        # The newest corrections of each key; the one from the file counts as the first of them.
        self._responses: dict[str, deque[float]] = {}
        self._unsaved = 0
        self._written = {name: dict(getattr(self, f"_{name}")) for name in _TABLES}

    def speed_gbs(self, device: str, backend: str) -> float | None:
        """Measured GB/s read while decoding."""
        return self._speeds.get(f"{device}|{backend}")

    def record_speed(self, device: str, backend: str, bytes_per_token: int, tok_s: float) -> None:
        """Store a measurement; a repeated one moves the stored value half way."""
        if not (bytes_per_token > 0 and 0 < tok_s < 1e6):  # noqa: PLR2004 - a clock that did not advance
            return
        measured, key = bytes_per_token * tok_s / 1e9, f"{device}|{backend}"
        with self._lock:
            before = self._speeds.get(key)
            self._speeds[key] = measured if before is None else (before + measured) / 2
            self._save()

    def correction(self, device: str, backend: str, model: str) -> float | None:
        """Measured decode speed of this model divided by the formula's."""
        return self._corrections.get(f"{device}|{backend}|{model}")

    def usual_correction(self, device: str, backend: str) -> float | None:
        """The median of all models' corrections there; None if none was measured."""
        start = f"{device}|{backend}|"
        corrections = [value for key, value in self._corrections.items() if key.startswith(start)]
        return statistics.median(corrections) if corrections else None

    def record_correction(self, device: str, backend: str, model: str, factor: float) -> None:
        """Record a measurement. The correction is the median of the newest ones."""
        if not _MOST_OFF[0] <= factor <= _MOST_OFF[1]:
            return
        key = f"{device}|{backend}|{model}"
        with self._lock:
            before = self._corrections.get(key)
            newest = self._responses.setdefault(key, deque([] if before is None else [before], NEWEST_RESPONSES))
            newest.append(factor)
            self._corrections[key] = statistics.median(newest)
            self._unsaved += 1
            if before is None or abs(self._corrections[key] / before - 1) > NEWS:
                self._save()

    def disk_gbs(self, disk: str | None) -> float | None:
        """Measured read speed of that disk, in GB/s."""
        return self._disks.get(disk) if disk is not None else None

    def record_disk(self, disk: str, gbs: float) -> None:
        """Store a measurement of a disk."""
        with self._lock:
            self._disks[disk] = gbs
            self._save()

    def use(self, model: str) -> ModelUsage | None:
        """Usage statistics of the model; None if it was never used."""
        return self._uses.get(model)

    def record_use(self, model: str, tokens: int, depth: float, at_once: int) -> None:
        """Record a response of `tokens`, on average after `depth` others, next to `at_once` - 1 other requests."""
        if tokens <= 0:
            return
        with self._lock:
            before = self._uses.get(model, ModelUsage(0.0, depth, at_once))
            total = min(before.tokens + tokens, max(USE_TOKENS, tokens))
            share = tokens / total
            self._uses[model] = ModelUsage(
                total,
                before.depth + share * (depth - before.depth),
                before.at_once + share * (at_once - before.at_once),
            )
            self._unsaved += 1
            if self._unsaved >= SAVE_EVERY:
                self._save()

    def tokens_per_joule(self, model: str, device: str, backend: str) -> float | None:
        """Tokens per joule measured for this model on that device and backend."""
        return self._energies.get(f"{model}|{device}|{backend}")

    def record_energy(self, model: str, device: str, backend: str, tokens_per_joule: float) -> None:
        """Record a measured response; each moves the stored value by a quarter."""
        if not 0 < tokens_per_joule < 1e9:  # noqa: PLR2004 - a meter that did not advance
            return
        key = f"{model}|{device}|{backend}"
        with self._lock:
            before = self._energies.get(key, tokens_per_joule)
            self._energies[key] = before + (tokens_per_joule - before) / 4
            self._unsaved += 1

    def attention(self, key: str) -> AttentionSpeed | None:
        """Cost of fused and plain attention here, by `attention_key`."""
        line = self._attention.get(key)
        return line if line is not None and line.points else None

    @property
    def knows_attention(self) -> bool:
        """Whether any attention was measured here."""
        return bool(self._attention)

    def record_attention(self, key: str, measured: AttentionSpeed) -> None:
        """Store a measurement; it replaces an older one."""
        with self._lock:
            self._attention[key] = measured
            self._save()

    def measured_speed(self, key: str) -> MeasuredSpeed | None:
        """Speeds that were measured here, by a forecast's key."""
        speed = self._measured.get(key)
        return speed if speed is not None and speed.prompt and speed.decode else None

    @property
    def knows_speeds(self) -> bool:
        """Whether any speeds were measured here."""
        return bool(self._measured)

    def record_measured(self, key: str, measured: MeasuredSpeed) -> None:
        """Store a measurement; it replaces an older one."""
        with self._lock:
            self._measured.pop(key, None)
            self._measured[key] = measured
            self._save()

    def flush(self) -> None:
        """Write the statistics collected since the last write."""
        with self._lock:
            if self._unsaved:
                self._save()

    def remembered(self, model: str) -> dict[str, Any]:
        """Load settings that replaced failing ones for this model; empty if none were needed."""
        return dict(self._fallbacks.get(model, {}))

    def remember(self, model: str, changes: dict[str, Any]) -> None:
        """Store the settings of the fallback that worked; empty changes delete the entry."""
        with self._lock:
            if changes:
                self._fallbacks[model] = changes
            else:
                self._fallbacks.pop(model, None)
            self._save()

    def death(self, key: str) -> Death | None:
        """The record of a runner's death while reading, by `death_key`."""
        return self._deaths.get(key)

    def record_death(self, key: str, depth: int, changes: dict[str, Any]) -> None:
        """Store the settings to try next, with those tried before. Of several deaths, the smallest depth counts."""
        with self._lock:
            before = self._deaths.pop(key, Death(depth, {}))
            self._deaths[key] = Death(min(before.depth, depth), {**before.changes, **changes})
            self._save()

    def _save(self) -> None:
        self._unsaved = 0
        current = HistoryFile(
            speeds=_newest(self._speeds),
            corrections=_newest(self._corrections),
            fallbacks=_newest(self._fallbacks),
            uses=_newest(self._uses),
            energies=_newest(self._energies),
            attention=_newest(self._attention),
            disks=_newest(self._disks),
            measured=_newest(self._measured),
            deaths=_newest(self._deaths),
        )
        with contextlib.suppress(OSError):  # without this file only the first choice is slower
            self._store.change(lambda stored: self._merged(stored, current))
            self._written = _tables(current)

    def _merged(self, stored: HistoryFile, current: HistoryFile) -> HistoryFile:
        """Merge what another process has written since the last write with what changed here."""
        theirs, mine, tables = _tables(stored), _tables(current), {}
        for name, written in self._written.items():
            merged = theirs[name]
            for key in dict.fromkeys((*written, *mine[name])):
                if key not in mine[name]:
                    merged.pop(key, None)
                elif key not in written or written[key] != mine[name][key]:
                    merged[key] = mine[name][key]
            tables[name] = _newest(merged)
        return HistoryFile(**tables, pins=stored.pins)


def _sound_rows(table: Any, kind: Any) -> dict[str, Any]:
    sound = {}
    for name, row in table.items() if isinstance(table, dict) else ():
        with contextlib.suppress(msgspec.ValidationError):
            sound[name] = msgspec.convert(row, learned(kind))
    return sound


def _tables(history: HistoryFile) -> dict[str, dict[str, Any]]:
    """Copies of its tables by name; empty for anything that is not a table."""
    tables = {name: getattr(history, name) for name in _TABLES}
    return {name: dict(table) if isinstance(table, dict) else {} for name, table in tables.items()}


def _newest(table: dict[str, T]) -> dict[str, T]:
    return dict(list(table.items())[-MAX_ENTRIES:])
