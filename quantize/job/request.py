"""What is asked of a quantization from end to end, and what comes out of it."""

from pathlib import Path
from typing import Literal

import msgspec

from quantize.job.gate import GateReport, GateTask
from quantize.job.portable_plan import PlanFile
from quantize.types import DeviceKind, FileReport, Goal, KvOption, Lock, QuantPlan, Rounding, Tier

Shipped = Literal["ours", "stock", "nothing"]


class QuantizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make the best file of `source` within `goal`.

    `source` is a GGUF file or a Hugging Face folder. `rounding` None takes the tier's own (instant: stock,
    balanced and max: gptq; a stock mix asked for by name: stock). `imatrix` replaces the importance matrix that
    would be measured. `kv` are the ways to store the cache and `doubled_head_types` the types in which a tied head
    is held twice, for goals of kind "fit". `cache_dir` keeps measurements. `gpu_layers` are evaluated on the GPU.
    `time_s` is a time to spend: it decides tier, rounding and the tokens looked at. `max_tokens` and `probe_tokens`
    are of the calibration text, for moments and for each swap. `force` allows sources that are already quantized
    below Q8_0, and other bytes than those of the `plan` that is followed. `speeds` are measured decoding times by
    type. `own_text` is the user's own text, held out, on which the result is judged too. `plan` is a plan to follow
    instead of making one, `export_plan` where to write one that others can follow. `gate` is a task that the file
    must not do clearly worse than the source.
    """

    source: Path
    out: Path
    goal: Goal
    calibration: Path
    held_out: Path
    cache_dir: Path
    tier: Tier = "balanced"
    rounding: Rounding | None = None
    imatrix: Path | None = None
    locks: tuple[Lock, ...] = ()
    kv: tuple[KvOption, ...] = ()
    doubled_head_types: tuple[str, ...] = ()
    device: DeviceKind = "cpu"
    speeds: dict[str, float] = {}
    threads: int = 1
    gpu_layers: int = 0
    verify: bool | None = None
    verify_tokens: int = 32_768
    max_tokens: int = 32_768
    probe_tokens: int = 1536
    time_s: float | None = None
    own_text: Path | None = None
    plan: PlanFile | None = None
    export_plan: Path | None = None
    gate: GateTask | None = None
    plan_only: bool = False
    overwrite: bool = False
    force: bool = False


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a job should take.

    `phases` are its seconds by phase, in order; `kld` is the predicted mean KL divergence in nats a token.
    `gpu_untimed`: layers are evaluated on the GPU, but no job here has told yet how fast that is, so that the
    seconds are the CPU's.
    """

    seconds: float
    phases: dict[str, float] = {}
    disk_bytes: int
    memory_bytes: int
    kld: float
    gpu_untimed: bool = False


class QuantizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a finished job: lies as JSON beside the file.

    `shipped` tells whose mix the file holds; `nothing` for a plan alone, or where the `gate` let none pass (then
    `out` is None). `ours` and `stock` are measured on text that was not used for calibration. `seconds` by phase.
    `effort` is what a given time was spent on, `more` what more time would buy. `smoothed` is how many inputs our
    file has evened out, `gpu_layers` what the GPU evaluated. `own` is our file on the user's own text. `kv_damage`
    is the KL divergence that a coarser K or V costs this model, by tokens of context.
    """

    version: int = 1
    source: str
    source_sha256: str
    source_bytes: int
    out: str | None
    file_bytes: int | None
    shipped: Shipped
    plan: QuantPlan
    rounding: Rounding
    forecast: Forecast
    ours: FileReport | None = None
    stock_mix: str | None = None
    stock: FileReport | None = None
    own: FileReport | None = None
    gate: GateReport | None = None
    seconds: dict[str, float] = {}
    effort: str = ""
    smoothed: int = 0
    gpu_layers: int = 0
    kv_damage: dict[str, dict[int, float]] = {}
    more: str = ""
    warnings: tuple[str, ...] = ()
    tool: str = ""

    @property
    def file_reports(self) -> tuple[FileReport, ...]:
        """What was measured on held-out text."""
        return tuple(r for r in (self.ours, self.stock) if r is not None)

    @property
    def kld_ratio(self) -> float | None:
        """Our mean KL divergence over that of the stock mix of no more bytes; None if one was not measured."""
        if self.ours is None or self.stock is None:
            return None
        if self.ours.ratio is not None:
            return self.ours.ratio.value
        # A report of before intervals were kept.
        return self.ours.kld_mean.value / self.stock.kld_mean.value if self.stock.kld_mean.value > 0 else None
