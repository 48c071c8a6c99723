"""What was learnt on this machine: measured decode speeds, and settings that worked after others failed."""

import contextlib
import threading
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from devices.msgspec_lock import learned
from engine.core.json_store import JsonStore

# A turn as autotune has it: the text is read, so many tokens are answered.
ANSWER_TOKENS: Final = 128


class Heads(msgspec.Struct, frozen=True):
    """Geometry of attention: heads of queries, heads of keys, values of one head."""

    queries: int
    keys: int
    width: int


class AttentionTimes(msgspec.Struct, frozen=True, array_like=True):
    """Seconds at a length in tokens: reading a prompt of that length, and one token behind it, each way."""

    length: int
    fused_prompt_s: float
    plain_prompt_s: float
    fused_token_s: float
    plain_token_s: float

    @property
    def plain_to_fused(self) -> float:
        """Seconds of a turn with plain attention for each second with the fused one."""
        fused, plain = (
            self.fused_prompt_s + ANSWER_TOKENS * self.fused_token_s,
            self.plain_prompt_s + ANSWER_TOKENS * self.plain_token_s,
        )
        return plain / fused if fused > 0 else 1.0


class AttentionSpeed(msgspec.Struct, frozen=True):
    """Both ways of attention as measured for one geometry of heads, at one or more lengths."""

    points: tuple[AttentionTimes, ...]

    def nearest(self, depth: float) -> AttentionTimes:
        """What was measured nearest to texts of `depth` tokens."""
        return min(self.points, key=lambda point: abs(point.length - depth))


def attention_key(machine: str, heads: Heads, threads: int) -> str:
    """What such a measurement depends on; `machine` is a machine's key."""
    return f"{machine}|{heads.queries}x{heads.keys}x{heads.width}|{threads}"


T = TypeVar("T")
MAX_ENTRIES: Final = 500
# A model's use is that of its newest tokens, this many of them: habits change.
USE_TOKENS: Final = 20_000
# Answers between two writes of what they taught.
SAVE_EVERY: Final = 16
# What a fallback may change and what is therefore remembered.
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
)


_Sound = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class Use(msgspec.Struct, frozen=True, array_like=True):
    """How a model was used: means over the `tokens` it generated.

    `depth` is how many tokens stood before each, `at_once` how many requests ran when its answer ended.
    """

    tokens: _Sound
    depth: _Sound
    at_once: _Sound


class Learnt(msgspec.Struct, kw_only=True):
    """What the file of a `PlacementHistory` holds: tables, of which a damaged row costs that row only.

    `pins` were stored here by earlier versions: they stay until `ModelSettingsStore` has taken them over.
    """

    speeds: Any = None
    fallbacks: Any = msgspec.field(default=None, name="ladders")
    pins: Any = None
    uses: Any = None
    energies: Any = None
    attention: Any = None
    disks: Any = None


_TABLES: Final = tuple(name for name in Learnt.__struct_fields__ if name != "pins")


class PlacementHistory:
    """A small JSON file of `speeds`, `ladders`, `uses`, `energies`, `attention` and `disks`.

    `speeds`: device|backend → GB/s read while decoding. `ladders`: model → settings of the fallback that worked.
    `uses`: model → tokens, depth and requests at once. `energies`: model|device|backend → tokens generated for a
    joule. `attention`: what `attention_key` names → seconds of both ways of attention. `disks`: disk → GB/s.

    Keys carry what the value depends on, so an update of a driver or a file simply asks anew.
    """

    def __init__(self, path: Path | None) -> None:
        self._store = JsonStore(path, Learnt, Learnt)
        self._lock = threading.Lock()
        found = self._store.get()
        self._speeds: dict[str, float] = _sound_rows(found.speeds, Annotated[float, msgspec.Meta(gt=0)])
        self._fallbacks: dict[str, dict[str, Any]] = _sound_rows(found.fallbacks, dict[str, Any])
        self._uses: dict[str, Use] = _sound_rows(found.uses, Use)
        self._energies: dict[str, float] = _sound_rows(found.energies, Annotated[float, msgspec.Meta(gt=0)])
        self._attention: dict[str, AttentionSpeed] = _sound_rows(found.attention, AttentionSpeed)
        self._disks: dict[str, float] = _sound_rows(found.disks, Annotated[float, msgspec.Meta(gt=0)])
        self._unsaved = 0
        self._written = {name: dict(getattr(self, f"_{name}")) for name in _TABLES}

    def speed_gbs(self, device: str, backend: str) -> float | None:
        """Measured bytes a second read while decoding, in GB/s."""
        return self._speeds.get(f"{device}|{backend}")

    def record_speed(self, device: str, backend: str, bytes_per_token: int, tok_s: float) -> None:
        """Keep a measurement; a repeated one moves the stored value half way."""
        if not (bytes_per_token > 0 and 0 < tok_s < 1e6):  # noqa: PLR2004 - a clock that stood still
            return
        measured, key = bytes_per_token * tok_s / 1e9, f"{device}|{backend}"
        with self._lock:
            before = self._speeds.get(key)
            self._speeds[key] = measured if before is None else (before + measured) / 2
            self._save()

    def disk_gbs(self, disk: str | None) -> float | None:
        """What that disk was measured to read a second, in GB/s."""
        return self._disks.get(disk) if disk is not None else None

    def record_disk(self, disk: str, gbs: float) -> None:
        """Keep a measurement of a disk."""
        with self._lock:
            self._disks[disk] = gbs
            self._save()

    def use(self, model: str) -> Use | None:
        """How the model was used so far."""
        return self._uses.get(model)

    def record_use(self, model: str, tokens: int, depth: float, at_once: int) -> None:
        """An answer of `tokens` ended, on average behind `depth` others, beside `at_once` - 1 requests."""
        if tokens <= 0:
            return
        with self._lock:
            before = self._uses.get(model, Use(0.0, depth, at_once))
            total = min(before.tokens + tokens, max(USE_TOKENS, tokens))
            share = tokens / total
            self._uses[model] = Use(
                total,
                before.depth + share * (depth - before.depth),
                before.at_once + share * (at_once - before.at_once),
            )
            self._unsaved += 1
            if self._unsaved >= SAVE_EVERY:
                self._save()

    def tokens_per_joule(self, model: str, device: str, backend: str) -> float | None:
        """What answers of this model gave for a joule there."""
        return self._energies.get(f"{model}|{device}|{backend}")

    def record_energy(self, model: str, device: str, backend: str, tokens_per_joule: float) -> None:
        """An answer was measured; each moves the stored value by a quarter."""
        if not 0 < tokens_per_joule < 1e9:  # noqa: PLR2004 - a meter that stood still
            return
        key = f"{model}|{device}|{backend}"
        with self._lock:
            before = self._energies.get(key, tokens_per_joule)
            self._energies[key] = before + (tokens_per_joule - before) / 4
            self._unsaved += 1

    def attention(self, key: str) -> AttentionSpeed | None:
        """What both ways of attention cost here, by `attention_key`."""
        found = self._attention.get(key)
        return found if found is not None and found.points else None

    @property
    def knows_attention(self) -> bool:
        """Something of it was measured here."""
        return bool(self._attention)

    def record_attention(self, key: str, measured: AttentionSpeed) -> None:
        """Keep a measurement, in the place of an older one."""
        with self._lock:
            self._attention[key] = measured
            self._save()

    def flush(self) -> None:
        """Write what answers taught since the last time."""
        with self._lock:
            if self._unsaved:
                self._save()

    def remembered(self, model: str) -> dict[str, Any]:
        """Load settings that replaced failing ones for this model; empty when none were needed."""
        return dict(self._fallbacks.get(model, {}))

    def remember(self, model: str, changes: dict[str, Any]) -> None:
        """Keep the settings of the fallback that worked; empty changes forget it."""
        with self._lock:
            if changes:
                self._fallbacks[model] = changes
            else:
                self._fallbacks.pop(model, None)
            self._save()

    def _save(self) -> None:
        self._unsaved = 0
        learnt = Learnt(
            speeds=_newest(self._speeds),
            fallbacks=_newest(self._fallbacks),
            uses=_newest(self._uses),
            energies=_newest(self._energies),
            attention=_newest(self._attention),
            disks=_newest(self._disks),
        )
        with contextlib.suppress(OSError):  # forgetting costs a slower first choice, nothing else
            self._store.change(lambda kept: self._merged(kept, learnt))
            self._written = _tables(learnt)

    def _merged(self, kept: Learnt, learnt: Learnt) -> Learnt:
        """What another process has written since, with what changed here since the last time."""
        theirs, mine, found = _tables(kept), _tables(learnt), {}
        for name, written in self._written.items():
            merged = theirs[name]
            for key in dict.fromkeys((*written, *mine[name])):
                if key not in mine[name]:
                    merged.pop(key, None)
                elif key not in written or written[key] != mine[name][key]:
                    merged[key] = mine[name][key]
            found[name] = _newest(merged)
        return Learnt(**found, pins=kept.pins)


def _sound_rows(table: Any, kind: Any) -> dict[str, Any]:
    """The rows of a table that are of this kind."""
    found = {}
    for name, row in table.items() if isinstance(table, dict) else ():
        with contextlib.suppress(msgspec.ValidationError):
            found[name] = msgspec.convert(row, learned(kind))
    return found


def _tables(learnt: Learnt) -> dict[str, dict[str, Any]]:
    """Copies of its tables by name; an empty one where there is something else."""
    tables = {name: getattr(learnt, name) for name in _TABLES}
    return {name: dict(table) if isinstance(table, dict) else {} for name, table in tables.items()}


def _newest(table: dict[str, T]) -> dict[str, T]:
    return dict(list(table.items())[-MAX_ENTRIES:])
