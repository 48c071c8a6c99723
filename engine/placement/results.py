"""Stores what was measured and tuned on this machine, with the keys by which it is found."""

import csv
import hashlib
import io
import threading
import time
from importlib import metadata
from pathlib import Path

import msgspec

from devices.backends import cpu_kernels
from devices.backends.libraries import built_libraries, library_folder
from devices.llama_cpp_versions.folder import chosen_version
from devices.msgspec_lock import learned
from devices.types import Machine
from engine.core.json_store import JsonStore
from engine.message_catalog.reasons import Reason, because
from engine.placement.measurements import Goal, Report, Spread, TunableSettings, TunedSetting, TuneReport
from engine.placement.openvino import is_openvino
from engine.placement.shape import ModelShape
from engine.placement.types import Placement, PlacementLimits
from engine.runner.protocol import LoadSettings


def shape_key(shape: ModelShape) -> str:
    """Key that is equal for files with the same tensors, types and architecture, whatever their weights."""
    tensors = sorted((t.name, tuple(t.shape), t.ggml_type.name) for t in shape.tensors)
    facts = (shape.architecture, shape.heads, shape.attention, shape.sliding_window, tensors)
    return digest(repr(facts))


def machine_key(machine: Machine) -> str:
    """Key that changes with a CPU, a GPU, its driver, the kernels or the installed memory."""
    devices = [
        (d.id, d.kind, d.name, sorted(d.isa), d.cores.allowed_logical if d.cores else 0, d.driver_version)
        for d in machine.devices
    ]
    total = (machine.memory.installed_bytes or machine.memory.total_bytes or 0) >> 30
    return digest(repr((machine.system, machine.arch, total, devices, build())))


def build() -> str:
    """Version of the kernels, and the installed plugins."""
    plugins = sorted(built_libraries(library_folder()))
    backends = (f"{p}{cpu_kernels.VERSION}" if p == cpu_kernels.BACKEND else p for p in plugins)
    return f"{llama_cpp_version()} {','.join(backends)}"


def llama_cpp_version() -> str:
    """Version of llama-cpp-python that all models use; `none` if not installed."""
    return chosen_version() or shipped_version()


def shipped_version() -> str:
    """The version that ships with Tessera; `none` if not installed."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return "none"


def digest(text: str) -> str:
    """A short key derived from the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """A file of JSON lines, oldest first. A corrupt line is skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._newest: dict[tuple[str, str], Report] = {}

    def add(self, report: Report) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(report) + b"\n")

    def all(self, model: str | None = None) -> list[Report]:
        """Every result, or those of one model."""
        if not self._path.exists():
            return []
        reports = []
        for line in self._path.read_bytes().splitlines():
            try:
                reports.append(msgspec.json.decode(line, type=learned(Report)))
            except (ValueError, RecursionError):
                continue
        return [r for r in reports if model is None or r.model == model]

    def newest(self, machine_key: str, shape_key: str) -> Report | None:
        """The newest result of any model of this shape on this machine; prefers real weights over dummy weights."""
        with self._lock:
            try:
                stat = self._path.stat()
            except OSError:
                return None
            if self._stamp != (stat.st_mtime_ns, stat.st_size):
                self._stamp, self._newest = (stat.st_mtime_ns, stat.st_size), {}
                for report in sorted(self.all(), key=lambda r: (not r.stand_in, r.started_at)):
                    if report.points and report.shape_key:
                        self._newest[report.machine_key, report.shape_key] = report
            return self._newest.get((machine_key, shape_key))

    def before(self, report: Report) -> Report | None:
        """The newest earlier result of the same model and settings on the same machine."""

        def key(r: Report) -> tuple[object, ...]:
            settings = (r.backend, r.threads, r.n_ubatch, r.flash_attn, r.type_k, r.type_v, r.n_gpu_layers)
            return r.model, r.machine_key, r.stand_in, *settings

        earlier = [r for r in self.all(report.model) if key(r) == key(report) and r.started_at < report.started_at]
        return earlier[-1] if earlier else None


# The columns of `llama-bench -o csv` that readers of its files need, with its names and in its order.
COLUMNS = (
    "build_commit", "cpu_info", "backends", "model_filename", "model_type", "model_size", "model_n_params",
    "n_batch", "n_ubatch", "n_threads", "type_k", "type_v", "n_gpu_layers", "flash_attn", "use_mmap",
    "n_prompt", "n_gen", "n_depth", "test_time", "avg_ts", "low_ts", "high_ts", "test",
)  # fmt: skip


def to_csv(report: Report) -> str:
    """One row per test, in llama-bench's columns; `low_ts` and `high_ts` are the extremes of the repeats."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.started_at))
    common = (
        llama_cpp_version(), report.machine, report.backend, report.model, report.description,
        report.size_bytes, report.n_params, report.n_batch, report.n_ubatch, report.threads,
        report.type_k, report.type_v, report.n_gpu_layers, report.flash_attn, int(report.use_mmap),
    )  # fmt: skip

    def put(name: str, prompt: int, generated: int, depth: int, s: Spread) -> None:
        speeds = (f"{s.median:.2f}", f"{s.low:.2f}", f"{s.high:.2f}")
        rows.writerow((*common, prompt, generated, depth, when, *speeds, name))

    for point in report.points:
        put(f"pp{point.length}", point.length, 0, 0, point.prefill_tok_s)
        put(f"tg{report.tokens} @ d{point.length}", 0, report.tokens, point.length, point.decode_tok_s)
    for c in report.concurrency:
        put(f"tg{report.tokens} x{c.parallel}", 0, report.tokens, 16, c.total_tok_s)
    return out.getvalue()


MAX_ENTRIES = 1000
# Below this it would read "0 % faster".
MIN_REPORTED_GAIN = 0.005


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """One result: the settings, and the seconds of a turn of `prompt_tokens` with them and with the defaults.

    Tokens per joule are known if energy was the goal.
    """

    machine_key: str
    shape_key: str
    prompt_tokens: int
    knobs: TunableSettings
    turn_s: float
    default_turn_s: float | None
    prefill_tok_s: float
    decode_tok_s: float
    choices: tuple[TunedSetting, ...]
    measured_at: float
    stand_in: bool = False
    goal: Goal = "speed"
    tokens_per_joule: float | None = None
    default_tokens_per_joule: float | None = None

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Key under which one result is stored."""
        return self.machine_key, self.shape_key, self.prompt_tokens, self.goal

    def reasons(self) -> tuple[Reason, ...]:
        """For the placement card: what was measured, and each choice with its measurement."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.measured_at))
        took = because(
            "turn_took",
            tokens=self.prompt_tokens,
            turn_s=self.turn_s,
            prefill_tok_s=self.prefill_tok_s,
            decode_tok_s=self.decode_tok_s,
        )
        first = because("tuned", day=day, took=took, gain=self._gained())
        if self.goal == "energy" and self.tokens_per_joule is not None:
            each = self.tokens_per_joule
            first = because("tuned_for_energy", day=day, tokens_per_joule=each, gain=self._saved(), took=took)
        return (first, *(choice.fact() for choice in self.choices))

    def _gained(self) -> Reason:
        if self.default_turn_s is None:
            return because("defaults_fail")
        gain = self.default_turn_s / self.turn_s - 1 if self.turn_s > 0 else 0.0
        return because("gain_faster", gain=gain) if gain >= MIN_REPORTED_GAIN else because("gain_none")

    def _saved(self) -> Reason:
        if not self.tokens_per_joule or not self.default_tokens_per_joule:
            return because("defaults_fail")
        gain = self.tokens_per_joule / self.default_tokens_per_joule - 1
        return because("gain_saved", gain=gain) if gain >= MIN_REPORTED_GAIN else because("gain_saved_none")


def tuned_of(report: TuneReport, machine_key: str, shape_key: str) -> Tuned:
    """The stored part of a report."""
    return Tuned(
        machine_key=machine_key,
        shape_key=shape_key,
        prompt_tokens=report.prompt_tokens,
        knobs=report.best,
        turn_s=report.turn_s,
        default_turn_s=report.default_turn_s,
        prefill_tok_s=report.prefill_tok_s,
        decode_tok_s=report.decode_tok_s,
        choices=report.choices,
        measured_at=report.measured_at,
        stand_in=report.stand_in,
        goal=report.goal,
        tokens_per_joule=report.tokens_per_joule,
        default_tokens_per_joule=report.default_tokens_per_joule,
    )


class TunedStore:
    """A JSON file of results, reloaded after changes: the CLI may tune while a server runs."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(path, list[Tuned], list, durable=False)

    def get(self, machine_key: str, shape_key: str, n_ctx: int) -> Tuned | None:
        """The result for the longest prompt that fits a context of `n_ctx`, else for the shortest one measured.

        If there are results for both goals, the goal that was tuned for last counts.
        """
        matches = [t for t in self._store.get() if t.machine_key == machine_key and t.shape_key == shape_key]
        newest = max(matches, key=lambda t: t.measured_at, default=None)
        matches = [t for t in matches if newest is not None and t.goal == newest.goal]
        usable = [t for t in matches if t.prompt_tokens <= n_ctx]
        if usable:
            return max(usable, key=lambda t: t.prompt_tokens)
        return min(matches, key=lambda t: t.prompt_tokens, default=None)

    def put(self, tuned: Tuned) -> None:
        """Store a result; it replaces the one with the same key. Raises: OSError: the disk cannot be written."""
        self._store.change(lambda old: [*(t for t in old if t.key != tuned.key), tuned][-MAX_ENTRIES:])


def tuned_settings(tuned: Tuned, settings: LoadSettings, overrides: PlacementLimits) -> LoadSettings:
    """The tuned values applied to placed settings; what the user requested stays unchanged."""
    knobs = tuned.knobs
    if overrides.type_k:
        keeps = settings.type_k in ("f32", "f16", "bf16")
        flash = knobs.flash_attn if keeps else settings.flash_attn
        knobs = msgspec.structs.replace(knobs, kv_type=settings.type_k, flash_attn=flash)
    if overrides.mode == "quiet" or overrides.on_battery:
        knobs = msgspec.structs.replace(knobs, n_threads=min(knobs.n_threads, settings.n_threads))
    if overrides.n_threads is not None:
        knobs = msgspec.structs.replace(knobs, n_threads=overrides.n_threads)
    if overrides.n_gpu_layers is not None:
        knobs = msgspec.structs.replace(knobs, n_gpu_layers=settings.n_gpu_layers)
    return knobs.apply(settings)


def pinned_elsewhere(tuned: Tuned, placement: Placement, overrides: PlacementLimits) -> bool:
    """Whether the user, or a low-power mode, requests a device other than the tuned one."""
    chosen = bool(overrides.device) or is_openvino(placement.settings)
    return chosen and tuned.knobs.devices != placement.settings.devices
