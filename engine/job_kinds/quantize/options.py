"""Options of the quantizer, shared by the terminal and HTTP."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from engine.core.defaults import DEFAULT_CONTEXT
from engine.core.errors import InputFault
from engine.core.paths import whole_path
from engine.library.types import ServerPath
from quantize.job.request import QuantizeReport
from quantize.kv_cache_types import K_DAMAGE
from quantize.types import DeviceKind, Rounding, SizeTarget, Tier, TypeOverride

if TYPE_CHECKING:
    FittedCache = str
else:
    FittedCache = Literal[tuple(K_DAMAGE)]

_MIB, _GIB = 1 << 20, 1 << 30
# The tasks that a gate may name; any other gate is a file.
NAMED = ("certify", "evaluate")
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]
_FILES = ("out", "calibration", "own_text", "imatrix", "plan_file", "export_plan")


class LockRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A type for the tensors whose name matches `pattern`; a minimum if `at_least`."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200)]
    type: Annotated[str, Meta(min_length=1, max_length=20)]
    at_least: bool = False


class QuantizeOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/quantize and /plan: a library model, or an absolute path on this computer, and one goal.

    `tier` as in `tessera quantize` (null: instant for a preset by name, else balanced). `fit`: weights and `n_seq`
    contexts of `n_ctx` fit together in `memory_bytes` (null: the free memory), with a KV cache in `kv_type` (null:
    the best). `time_s`: a time budget, which determines the tier. `out`, `calibration`, `own_text` (an additional
    evaluation text), `imatrix`, `plan_file` (a goal by itself) and `export_plan` are absolute paths on this
    computer; without `out` the file is stored in the library. `calibration` may be a folder: half of the
    calibration text is then its text and half the bundled text, and a part of it is held out for evaluation.
    `gpu_layers`: evaluated on the GPU while measuring and comparing (null: as placement would load the source).
    `gate`: `certify`, `evaluate` (runs programs written by the model, in the sandbox) or the absolute path of a
    file of tasks; a file that is clearly worse at it than the source is deleted (then the result's `path` is
    empty).
    `download`: `model` is `owner/name` or `owner/name:LABEL` on the hub and is downloaded first if the library does
    not have it. Without a label it is the most exact file there. If not `keep_source`, the downloaded model is
    deleted after the file was made.
    """

    model: ServerPath
    out: ServerPath | None = None
    overwrite: bool = False
    tier: Tier | None = "balanced"
    budget_bytes: Bytes | None = None
    bpw: Annotated[float, Meta(ge=0.5, le=32)] | None = None
    mix: Annotated[str, Meta(min_length=1, max_length=20)] | None = None
    force: bool = False
    fit: bool = False
    memory_bytes: Bytes | None = None
    n_ctx: Annotated[int, Meta(ge=256, le=1 << 24)] = DEFAULT_CONTEXT
    n_seq: Annotated[int, Meta(ge=1, le=256)] = 1
    kv_type: FittedCache | None = None
    locks: Annotated[tuple[LockRequest, ...], Meta(max_length=100)] = ()
    rounding: Rounding | None = None
    time_s: Annotated[float, Meta(gt=0, le=1e7)] | None = None
    device: DeviceKind = "cpu"
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    gpu_layers: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    verify: bool | None = None
    calibration: ServerPath | None = None
    own_text: ServerPath | None = None
    imatrix: ServerPath | None = None
    plan_file: ServerPath | None = None
    export_plan: ServerPath | None = None
    gate: ServerPath | None = None
    download: bool = False
    keep_source: bool = True

    @property
    def goals(self) -> tuple[str, ...]:
        names = [name for name in ("budget_bytes", "bpw", "mix", "plan_file") if getattr(self, name) is not None]
        return (*names, *(["fit"] if self.fit else []))

    def check(self) -> None:
        """Check the options. Raises: InputFault: not exactly one goal, or a path that is not absolute."""
        for field in _FILES:
            text = getattr(self, field)
            if text is not None:
                whole_path(text, field)
        if self.gate is not None and self.gate not in NAMED:
            whole_path(self.gate, "gate")
        if not self.goals:
            raise InputFault("Name a target: one of budget_bytes, bpw, mix and fit.", "budget_bytes")
        if len(self.goals) > 1:
            raise InputFault(
                f"Give one of budget_bytes, bpw, mix and fit, not {' and '.join(self.goals)}.", self.goals[1]
            )

    def goal(self) -> SizeTarget:
        """The quantizer's goal, except for `fit`, which needs the machine. Raises: InputFault: not exactly one."""
        self.check()
        if self.mix is not None:
            return SizeTarget(kind="mix", mix=self.mix.upper())
        if self.bpw is not None:
            return SizeTarget(kind="bpw", bpw=self.bpw)
        return SizeTarget(kind="budget", limit_bytes=self.budget_bytes)

    def words(self) -> str:
        """The goal as a part of a file name."""
        if self.plan_file is not None:
            return Path(self.plan_file).stem
        if self.mix is not None:
            return self.mix.upper()
        if self.bpw is not None:
            return f"{self.bpw:g}bpw"
        if self.fit:
            return f"fit-{self.n_ctx}" + (f"-{self.kv_type}" if self.kv_type else "")
        size = self.budget_bytes or 0
        # Same units as in the interface, so that both show the same size.
        return f"{size / _GIB:.3g}GiB" if size >= _GIB else f"{size / _MIB:.3g}MiB"

    def type_locks(self) -> tuple[TypeOverride, ...]:
        """The locks in the quantizer's format."""
        return tuple(TypeOverride(lock.pattern, lock.type.upper(), lock.at_least) for lock in self.locks)


class Quantized(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a job of kind `quantize`.

    `model` is empty outside of the library; `path` is empty if no file was made.
    """

    model: str
    path: str
    report: QuantizeReport
