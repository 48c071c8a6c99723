"""Request and report of a whole quantization job."""

from pathlib import Path
from typing import Literal

import msgspec

from quantize.job.gate import GateReport, GateTask
from quantize.job.portable_plan import PlanFile
from quantize.types import DeviceKind, FileReport, KvOption, QuantPlan, Rounding, SizeTarget, Tier, TypeOverride

Shipped = Literal["ours", "stock", "nothing"]
# The step that the file of a stopped job lacks: measurements of the model, or the comparison with a preset.
Stopped = Literal["", "unmeasured", "uncompared"]


class QuantizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make the best file of `source` within `goal`.

    `source` is a GGUF file or a Hugging Face folder. `rounding` None takes the tier's default (instant: stock,
    balanced and max: gptq; a preset requested by name: stock). `imatrix` replaces the measured importance matrix.
    For goals of kind "fit", `kv` are the allowed KV cache types, and `doubled_head_types` the types in which memory
    holds a tied head twice. `cache_dir` stores measurements. `gpu_layers` are evaluated on the GPU. `time_s` is a
    time budget: it determines tier, rounding and token counts. `max_tokens` and `probe_tokens` limit the
    calibration text for the Hessians and for each swap. `force` allows sources already quantized below Q8_0, and
    output bytes that differ from the followed `plan`. `speeds` are measured decoding times by type. `own_text` is
    held-out text of the user, for an additional evaluation. `plan` is a plan to follow instead of making one,
    `export_plan` the path for a portable plan. `gate` is a task that the file must not perform significantly worse
    than the source.
    """

    source: Path
    out: Path
    goal: SizeTarget
    calibration: Path
    held_out: Path
    cache_dir: Path
    tier: Tier = "balanced"
    rounding: Rounding | None = None
    imatrix: Path | None = None
    locks: tuple[TypeOverride, ...] = ()
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
    """Expected cost and result of a job.

    `phases` are its seconds by phase, in order; `kld` is the predicted mean KL divergence in nats per token, and
    `kld_low` to `kld_high` the range it is expected in.
    `gpu_untimed` means that layers run on the GPU but no earlier job measured its speed; the seconds are then the
    CPU's.
    """

    seconds: float
    phases: dict[str, float] = {}
    disk_bytes: int
    memory_bytes: int
    kld: float
    kld_low: float = 0.0
    kld_high: float = 0.0
    gpu_untimed: bool = False


class QuantizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The full report of a finished job, stored as JSON next to the file.

    `shipped` names the recipe in the file. It is `nothing` for a plan without a file, or if the `gate` rejected all
    files (then `out` is None). `ours` and `stock` are measured on text that was not used for calibration. `seconds`
    by phase. `effort` is the effort level chosen for a time budget, `more` the benefit of more time. `smoothed` is
    the number of smoothed inputs (SmoothQuant) in Tessera's file, `gpu_layers` the layers evaluated on the GPU.
    `own` is Tessera's file on the user's text. `kv_damage` is the KL divergence of smaller K or V types for this
    model, by context length. `formats` is the number of the source's weights stored in few bits, by format.
    `stopped`: the job was asked to end with its best file so far, which lacks measurements or the comparison.
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
    formats: dict[str, int] = {}
    stopped: Stopped = ""
    warnings: tuple[str, ...] = ()
    tool: str = ""

    @property
    def file_reports(self) -> tuple[FileReport, ...]:
        """The measurements on held-out text."""
        return tuple(r for r in (self.ours, self.stock) if r is not None)

    @property
    def kld_ratio(self) -> float | None:
        """Mean KL divergence of Tessera's file over that of the preset of the same size.

        None if one was not measured.
        """
        if self.ours is None or self.stock is None:
            return None
        if self.ours.ratio is not None:
            return self.ours.ratio.value
        # Old reports have no intervals.
        return self.ours.kld_mean.value / self.stock.kld_mean.value if self.stock.kld_mean.value > 0 else None
