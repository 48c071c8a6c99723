"""What can be asked of the quantizer, by the terminal and over HTTP alike."""

from pathlib import Path

import msgspec

from engine.defaults import DEFAULT_CONTEXT
from engine.errors import InputFault
from engine.paths import whole_path
from quantize.types import DeviceKind, Goal, Lock, Rounding, Tier

_MIB, _GIB = 1 << 20, 1 << 30
# The tasks that a gate may name; any other is a file.
NAMED = ("certify", "evaluate")
_FILES = ("out", "calibration", "own_text", "imatrix", "plan_file", "export_plan")


class QuantizeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One of `budget_bytes`, `bpw`, `mix` and `fit`, and how.

    `source` is a model of the library, or in the terminal a path. `fit` is for `n_seq` sequences of `n_ctx` tokens
    in `memory_bytes` (None: what is free), their cache stored in `kv_type` (None: the solver chooses). `locks` are
    (pattern, type, whether it is a minimum). `tier` None: instant for a mix by name, else balanced. `calibration`
    and `imatrix` are files. `own_text` is text to judge
    by too. `time_s` is a time to spend, which decides the tier. `plan_file` is a plan to follow, which is a goal by
    itself, `export_plan` where to write one. `out` None: a name of its own among the library's models. Files are
    whole paths. `gpu_layers` are evaluated on the GPU while measuring and comparing (None: as dispatch would load
    the source). `gate` is a task that the file must not do clearly worse than the source: certify, evaluate, or a
    file of tasks.
    """

    source: str
    out: str | None = None
    budget_bytes: int | None = None
    bpw: float | None = None
    mix: str | None = None
    fit: bool = False
    memory_bytes: int | None = None
    n_ctx: int = DEFAULT_CONTEXT
    n_seq: int = 1
    kv_type: str | None = None
    tier: Tier | None = None
    rounding: Rounding | None = None
    locks: tuple[tuple[str, str, bool], ...] = ()
    calibration: str | None = None
    own_text: str | None = None
    imatrix: str | None = None
    device: DeviceKind = "cpu"
    threads: int | None = None
    gpu_layers: int | None = None
    verify: bool | None = None
    time_s: float | None = None
    plan_file: str | None = None
    export_plan: str | None = None
    gate: str | None = None
    plan_only: bool = False
    overwrite: bool = False
    force: bool = False

    @property
    def goals(self) -> tuple[str, ...]:
        """The names of the goals that were given."""
        given = [name for name in ("budget_bytes", "bpw", "mix", "plan_file") if getattr(self, name) is not None]
        return (*given, *(["fit"] if self.fit else []))

    def check(self) -> None:
        """Raises: InputFault: not exactly one goal, or a file that is no whole path."""
        for field in _FILES:
            named = getattr(self, field)
            if named is not None:
                whole_path(named, field)
        if self.gate is not None and self.gate not in NAMED:
            whole_path(self.gate, "gate")
        if not self.goals:
            raise InputFault("Say what is wanted: one of budget_bytes, bpw, mix and fit.", "budget_bytes")
        if len(self.goals) > 1:
            raise InputFault(
                f"Give one of budget_bytes, bpw, mix and fit, not {' and '.join(self.goals)}.", self.goals[1]
            )

    def goal(self) -> Goal:
        """The quantizer's goal; that of `fit` takes a look at the machine. Raises: InputFault: not exactly one."""
        self.check()
        if self.mix is not None:
            return Goal(kind="mix", mix=self.mix.upper())
        if self.bpw is not None:
            return Goal(kind="bpw", bpw=self.bpw)
        return Goal(kind="budget", limit_bytes=self.budget_bytes)

    def words(self) -> str:
        """The goal as a file's name tells it."""
        if self.plan_file is not None:
            return Path(self.plan_file).stem
        if self.mix is not None:
            return self.mix.upper()
        if self.bpw is not None:
            return f"{self.bpw:g}bpw"
        if self.fit:
            return f"fit-{self.n_ctx}" + (f"-{self.kv_type}" if self.kv_type else "")
        size = self.budget_bytes or 0
        # The units in which the size is shown: one file is not told in two.
        return f"{size / _GIB:.3g}GiB" if size >= _GIB else f"{size / _MIB:.3g}MiB"

    def type_locks(self) -> tuple[Lock, ...]:
        """The locks as the quantizer takes them."""
        return tuple(Lock(pattern, qtype.upper(), least) for pattern, qtype, least in self.locks)
