"""/tessera/v1/stats: speed, queue, memory and cache as they change, and where the time of requests went."""

import msgspec

from devices.types import DeviceUsage, Usage
from engine.api.models import LoadedModel
from engine.core.request_timing import TimeSpent
from engine.core.startup_timing import Phase
from engine.runner.protocol import ExpertStats

__all__ = [
    "DeviceUsage",
    "Energy",
    "ExpertStats",
    "ModelEnergy",
    "ModelStats",
    "RequestTimes",
    "Stats",
    "TimeSpent",
    "Usage",
    "UsageSamples",
    "Work",
    "WorkSamples",
]


class ModelStats(LoadedModel, frozen=True, kw_only=True):
    """One model now. Counts of tokens are since it was loaded; speeds are since the event before.

    `load` is where the time of its load went, from its request on; `runner` the same of the process that holds
    it, from its own start. `experts` where they are streamed from the disk.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    cache_hit_frac: float = 0.0
    queued: int = 0
    kv_cells_used: int = 0
    kv_cells_total: int = 0
    rss_bytes: int = 0
    cache_ram_bytes: int = 0
    cache_disk_bytes: int = 0
    tok_s: float = 0.0
    prompt_tok_s: float = 0.0
    experts: ExpertStats | None = None
    load: tuple[Phase, ...] = ()
    runner: tuple[Phase, ...] = ()


class UsageSamples(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/stats/utilization: a sample a second, oldest first."""

    samples: tuple[Usage, ...]


class ModelUse(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of one model since the server started, whatever was loaded meanwhile."""

    model: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class ModelEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of one model drew since the server started, beyond what the computer draws at rest."""

    model: str
    joules: float
    tokens: int
    requests: int
    tokens_per_joule: float | None = None


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Joules of the work here. `measured` is false where no meter can be read, and `note` says so.

    `power_w` is what is drawn now by the parts that have a meter, `idle_w` what each draws at rest.
    """

    measured: bool = False
    note: str = ""
    power_w: float | None = None
    idle_w: dict[str, float] = {}
    joules: float = 0.0
    models: tuple[ModelEnergy, ...] = ()


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """An event of GET /tessera/v1/stats. `rss_bytes` is the server with all its runners.

    `start` is where the time went from the start of the server's process to the first token of its first answer.
    """

    time: float = 0.0
    models: tuple[ModelStats, ...] = ()
    use: tuple[ModelUse, ...] = ()
    tok_s: float = 0.0
    active: int = 0
    waiting: int = 0
    rss_bytes: int = 0
    memory_available_bytes: int = 0
    utilization: Usage | None = None
    energy: Energy = Energy()
    start: tuple[Phase, ...] = ()


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the server did up to one second: tokens are counted since its start; `at` is seconds since the epoch."""

    at: float
    active: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    rss_bytes: int = 0


class WorkSamples(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/stats/history: a sample a second, oldest first."""

    samples: tuple[Work, ...]


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/stats/requests: where the time of the newest requests went, newest first."""

    requests: tuple[TimeSpent, ...]
