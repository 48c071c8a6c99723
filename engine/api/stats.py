"""/tessera/v1/stats: speed, queue, memory, cache and request timings over time."""

import msgspec

from devices.types import DeviceUsage, Usage
from engine.api.models import LoadedModel
from engine.core.request_timing import TimeSpent
from engine.core.startup_timing import Phase
from engine.runner.protocol import ExpertStats


class ModelStats(LoadedModel, frozen=True, kw_only=True):
    """Current state of one model. Token counts are since its load; speeds are since the previous event.

    `load` has the load phases, measured from the request. `runner` has the phases of the runner process, measured
    from its start. `experts` is set if experts are streamed from disk.
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
    """GET /tessera/v1/stats/utilization, oldest first: one sample per second; while idle, one in 5 s."""

    samples: tuple[Usage, ...]


class ModelUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one model since the server started, across reloads."""

    model: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class ModelEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy used by the requests of one model since the server started, above the computer's idle energy."""

    model: str
    joules: float
    tokens: int
    requests: int
    tokens_per_joule: float | None = None


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of Tessera's work in joules. If no meter can be read, `measured` is False and `note` says so.

    `power_w` is the current power of the parts that have a meter. `idle_w` is the idle power of each part.
    """

    measured: bool = False
    note: str = ""
    power_w: float | None = None
    idle_w: dict[str, float] = {}
    joules: float = 0.0
    models: tuple[ModelEnergy, ...] = ()


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """An event of GET /tessera/v1/stats. `rss_bytes` is the memory of the server and all its runners.

    `start` has the phases from the start of the server process to the first token of its first response.
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
    """One sample of the server's work: token counts are since its start; `at` is seconds since the epoch."""

    at: float
    active: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    rss_bytes: int = 0


class WorkSamples(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/stats/history, oldest first: one sample per second; while idle, one in 5 s."""

    samples: tuple[Work, ...]


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/stats/requests: timings of the latest requests, newest first."""

    requests: tuple[TimeSpent, ...]
