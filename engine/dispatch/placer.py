"""One place that answers where a model runs, whether it fits, and keeps the ledger while it is loaded."""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from devices.audit import AuditLog
from devices.errors import Overdrawn
from devices.memory import Ledger
from devices.process_memory import process_memory
from devices.types import Machine
from engine.bench.keys import machine_key, shape_key
from engine.bench.results import Results
from engine.dispatch import onnx
from engine.dispatch.choose import audit_key, place, weights_read
from engine.dispatch.external import is_external, place_external
from engine.dispatch.ladder import next_rung
from engine.dispatch.machine_state import MachineState
from engine.dispatch.memory import DispatchMemory
from engine.dispatch.priors import effective_gbs
from engine.dispatch.tuned import Tuned, TunedStore, pinned_elsewhere, tuned_settings
from engine.dispatch.types import NO_WISH, Placement, Rung, Wish
from engine.errors import BadModelFile
from engine.fit.context import largest_context, need_at
from engine.fit.dry_run import DryRunFailed, dry_run
from engine.fit.report import fit_report, ledger_amounts, machine_isa, overdraft, refusal
from engine.fit.shape import ModelShape, model_shape
from engine.fit.types import DryRun, FitReport, Need, Part
from engine.paths import Paths
from engine.runner.protocol import LoadSettings
from quantize.errors import QuantizeError
from quantize.gguf_split import read_gguf_model

log = logging.getLogger(__name__)
# Below this share of the free memory a load is admitted by formulas: they are within a tenth.
PLENTY_FRAC = 0.5
# Kept prefixes get at most this part of the memory that a load leaves free.
PREFIX_SHARE = 4
# Smaller models stay in caches: their speed says nothing about the memory.
LARGE_READ_BYTES = 256 << 20
# What the ladder may change and what is therefore remembered.
LADDER_FIELDS = (
    "devices",
    "n_gpu_layers",
    "n_ubatch",
    "n_batch",
    "type_k",
    "type_v",
    "flash_attn",
    "repack",
    "use_mmap",
    "mtp",
    "max_rollback",
)


class Placer:
    """Places models and guards memory. Every method blocks for a moment: call it off the event loop."""

    def __init__(self, paths: Paths, machine: MachineState | None = None) -> None:
        self._paths = paths
        self.machine = machine or MachineState(backend_cache=paths.cache / "backends.json")
        self.ledger = Ledger(self.machine.now, AuditLog(paths.state / "memory_audits.jsonl"))
        self.memory = DispatchMemory(paths.state / "dispatch.json")
        self.tuned = TunedStore(paths.state / "autotune.json")
        self.results = Results(paths.state / "bench.jsonl")
        self._placements: dict[str, Placement] = {}
        self._needs: dict[str, Need] = {}
        self._read_bytes: dict[str, int] = {}

    def placement(
        self, model_id: str, settings: LoadSettings, wish: Wish = NO_WISH, *, exact: bool = True
    ) -> Placement:
        """Where and how the model would run now.

        `exact` asks llama.cpp in a child (under a second, kept); else, or if that fails, formulas answer.
        What the user pinned the model to counts unless the wish names a device.
        Raises: BadModelFile.
        """
        if is_external(settings.path):
            return place_external(settings, self.machine_now())
        if wish.device is None:
            wish = msgspec.structs.replace(wish, device=self.memory.pin(model_id))
        if onnx.is_folder(settings.path):
            folder, machine = onnx.folder_at(settings.path), self.machine_now()
            return onnx.place_folder(folder, settings, onnx.with_power(wish), machine, self.ledger, model_id)
        return self.judge_shape(model_id, read_shape(settings.path), settings, wish, exact=exact)

    def judge_shape(
        self, model_id: str, shape: ModelShape, settings: LoadSettings, wish: Wish = NO_WISH, *, exact: bool = False
    ) -> Placement:
        """The same for a header that was read before, perhaps of a file that is not here."""
        placement = self.defaults(model_id, shape, settings, wish, exact=exact)
        machine = self.machine_now()
        placement = self._measured(model_id, shape, placement, wish, machine)
        return self._with_prefixes(model_id, placement, settings.cache_ram_bytes, machine)

    def defaults(
        self, model_id: str, shape: ModelShape, settings: LoadSettings, wish: Wish = NO_WISH, *, exact: bool = False
    ) -> Placement:
        """What dispatch chooses by itself, without what was tuned, and without memory for kept prefixes."""
        machine = self.machine_now()

        def ask(at: LoadSettings) -> DryRun | None:
            return self._dry_run(at) if exact else None

        without = msgspec.structs.replace(settings, cache_ram_bytes=0)
        return place(shape, without, wish, machine, self.ledger, self.memory, ask, owner=model_id)

    def _measured(
        self, model_id: str, shape: ModelShape, placement: Placement, wish: Wish, machine: Machine
    ) -> Placement:
        """The placement with what was tuned or measured here for a model of this shape."""
        where, which = machine_key(machine), shape_key(shape)
        tuned = self.tuned.get(where, which, placement.settings.n_ctx)
        if tuned is not None and not pinned_elsewhere(tuned, placement, wish):
            return self._with_tuned(model_id, shape, placement, wish, machine, tuned)
        report = self.results.newest(where, which)
        if report is None or report.backend != (",".join(placement.settings.devices) or "cpu"):
            return placement
        speed, on = report.decode_tok_s, "a stand-in" if report.stand_in else "this model"
        reason = f"{speed:.1f} tok/s measured here on {on}, behind {report.points[0].length} tokens"
        return msgspec.structs.replace(
            placement,
            decode_tok_s=round(speed, 1),
            basis="measured",
            measured_on="stand-in" if report.stand_in else "model",
            reasons=(*placement.reasons, reason),
        )

    def _with_tuned(
        self, model_id: str, shape: ModelShape, placement: Placement, wish: Wish, machine: Machine, tuned: Tuned
    ) -> Placement:
        """The tuned settings where they fit now; else the placement says why not."""
        settings = tuned_settings(tuned, placement.settings, wish)
        gpu, backend = offload_target(settings, machine)
        need = self._need(shape, settings, machine, gpu, audit_key(shape, backend), None)
        if settings.devices and gpu is None:
            missing = f"tuned for {settings.devices[0]}, which is not usable now"
            return msgspec.structs.replace(placement, reasons=(*placement.reasons, missing))
        if overdraft(self.ledger, need, model_id) is not None:
            return msgspec.structs.replace(
                placement, reasons=(*placement.reasons, "the settings tuned here do not fit the memory free now")
            )
        device = machine.device(gpu or "cpu")
        return msgspec.structs.replace(
            placement,
            device=gpu or "cpu",
            device_name=device.name if device else placement.device_name,
            backend=backend,
            settings=settings,
            need=need,
            fits=True,
            decode_tok_s=round(tuned.decode_tok_s, 1),
            basis="measured",
            measured_on="stand-in" if tuned.stand_in else "model",
            reasons=(*placement.reasons, *tuned.reasons()),
        )

    def _with_prefixes(self, model_id: str, placement: Placement, wanted_bytes: int, machine: Machine) -> Placement:
        """Computed prefixes may be kept in what is left over, never in what a model needs."""
        spare = self.ledger.available("cpu", machine, exclude=model_id) - placement.need.device_bytes("cpu")
        granted = min(wanted_bytes, max(0, spare) // PREFIX_SHARE)
        if not granted:
            return placement
        part = Part(name="prefixes", device="cpu", num_bytes=granted)
        need = msgspec.structs.replace(placement.need, parts=(*placement.need.parts, part))
        settings = msgspec.structs.replace(placement.settings, cache_ram_bytes=granted)
        return msgspec.structs.replace(placement, settings=settings, need=need)

    def report(self, model_id: str, placement: Placement, shape: ModelShape | None = None) -> FitReport:
        """Whether that placement fits now, the largest context, and what to give up if not."""
        if is_external(placement.settings.path):
            return FitReport(model=model_id, fits=True, need=placement.need, available_bytes={}, largest_context=0)
        if onnx.is_folder(placement.settings.path):
            return onnx.folder_report(model_id, placement, self.machine.now(), self.ledger)
        shape = shape or read_shape(placement.settings.path)
        on_cpu = placement.device == "cpu"
        run = self._dry_run(placement.settings) if on_cpu and Path(placement.settings.path).is_file() else None
        return fit_report(
            model_id,
            shape,
            placement.settings,
            self.machine.now(),
            self.ledger,
            gpu=None if on_cpu else placement.device,
            measured=(placement.settings, run) if run else None,
            correction=self.ledger.audits.correction(audit_key(shape, placement.backend)),
            on_disk=Path(placement.settings.path).is_file(),
        )

    def context_beside(self, settings: LoadSettings, weights_bytes: int) -> int:
        """Tokens of context that fit now, in the largest memory here, once the weights take `weights_bytes`.

        By formulas; at most what the model was trained for; 0 when nothing fits. Raises: BadModelFile.
        """
        shape, machine = read_shape(settings.path), self.machine_now()
        usable = [d.id for d in machine.devices if d.state == "usable" and d.kind != "npu"] or ["cpu"]
        free = max(self.ledger.available(device, machine) for device in usable)
        isa = machine_isa(machine)

        def fits(at: LoadSettings) -> bool:
            need = need_at(shape, at, isa, None, None)
            return need.total_bytes - need.part_bytes("weights") + weights_bytes <= free

        return largest_context(settings, shape.context_train or max(settings.n_ctx, 1 << 17), fits)

    def expected_tok_s(self, bytes_per_token: int) -> float:
        """Decode speed of a model that reads so many bytes a token, on the fastest usable device here."""
        speeds = [
            self.memory.speed_gbs(device.id, backend) or effective_gbs(device, backend)
            for device in self.machine_now().devices
            if device.state == "usable" and device.kind != "npu"
            for backend in {r.backend for r in device.runtimes if r.state == "usable"} | {"cpu"} & {device.kind}
        ]
        return max(speeds, default=0.0) * 1e9 / max(1, bytes_per_token)

    def choose_settings(self, model_id: str, settings: LoadSettings, wish: Wish = NO_WISH) -> LoadSettings:
        """The settings a load gets: dispatched, or those that worked after others had failed.

        Raises: BadModelFile.
        """
        remembered = self.memory.remembered(model_id)
        placement = self.placement(model_id, settings, wish, exact=False)
        self._placements[model_id] = placement
        known = {k: tuple(v) if k == "devices" else v for k, v in remembered.items() if k in LADDER_FIELDS}
        return msgspec.structs.replace(placement.settings, **known)

    def admit(self, model_id: str, settings: LoadSettings) -> None:
        """Reserve what a load with these settings needs.

        Where memory is plentiful the formulas decide at once; where it is not, llama.cpp is asked first.
        Raises: NotEnoughMemory: with needed, available and the three cheapest ways out. BadModelFile.
        """
        machine = self.machine_now()
        if is_external(settings.path):
            return
        if onnx.is_folder(settings.path):
            self._needs[model_id] = onnx.admit(model_id, settings, machine, self.ledger)
            return
        shape = read_shape(settings.path)
        gpu, backend = offload_target(settings, machine)
        key = audit_key(shape, backend)
        need = self._need(shape, settings, machine, gpu, key, None)
        run = None
        if gpu is None and need.total_bytes > PLENTY_FRAC * self.ledger.available("cpu", machine, exclude=model_id):
            run = self._dry_run(settings)
            need = self._need(shape, settings, machine, gpu, key, run)
        try:
            self.ledger.reserve(model_id, ledger_amounts(need), key, need.resident_bytes)
        except Overdrawn as error:
            names = {d.id: d.name for d in machine.devices}
            measured = (settings, run) if run else None
            report = fit_report(model_id, shape, settings, machine, self.ledger, gpu=gpu, measured=measured)
            raise refusal(report, names) from error
        self._needs[model_id] = need
        self._read_bytes[model_id] = weights_read(shape)
        log.info("admitted model=%s device=%s bytes=%d", model_id, gpu or "cpu", need.total_bytes)

    def refine(self, model_id: str, settings: LoadSettings) -> None:
        """After a load: replace what formulas reserved by what llama.cpp says it takes."""
        if is_external(settings.path) or onnx.is_folder(settings.path):
            return
        machine = self.machine_now()
        gpu, backend = offload_target(settings, machine)
        run = self._dry_run(settings) if gpu is None else None
        if run is None:
            return
        shape = read_shape(settings.path)
        need = self._need(shape, settings, machine, gpu, audit_key(shape, backend), run)
        self._needs[model_id] = need
        self.ledger.refine(model_id, ledger_amounts(need), need.resident_bytes)

    def _need(
        self,
        shape: ModelShape,
        settings: LoadSettings,
        machine: Machine,
        gpu: str | None,
        key: str,
        run: DryRun | None,
    ) -> Need:
        measured = (settings, run) if run else None
        correction = self.ledger.audits.correction(key)
        return need_at(shape, settings, machine_isa(machine), gpu, measured, correction)

    def machine_now(self) -> Machine:
        """The machine with what dispatch needs to know of it."""
        return self.machine.settled()

    def started(self, model_id: str, pid: int) -> None:
        """A runner process draws on the reservation."""
        self.ledger.attach(model_id, pid)

    def loaded(self, model_id: str, pid: int, buffers: Mapping[str, int]) -> None:
        """The load is done: audit it. `buffers` are bytes by the backend's names (`CPU_Mapped`, `Vulkan0`)."""
        self.ledger.attach(model_id, pid)
        measured = process_memory(pid)
        if measured is not None:
            self.ledger.record_measured(model_id, measured, buffers)

    def unloading(self, model_id: str, kept_bytes: int) -> None:
        """The model was used and leaves now: its process shows what it really took."""
        self.ledger.record_measured(model_id, moment="unload", kept_bytes=kept_bytes)

    def observed(self, model_id: str, tok_s: float) -> None:
        """A decode speed measured on this machine: it beats the prior at the next placement.

        Only where one device holds the whole model, and the model is large enough that memory speed decides.
        """
        placement, read = self._placements.get(model_id), self._read_bytes.get(model_id, 0)
        if placement is None or read < LARGE_READ_BYTES:
            return
        if placement.device == "cpu" or placement.settings.n_gpu_layers > placement.n_layers:
            self.memory.record_speed(placement.device, placement.backend, read, tok_s)

    def answered(self, model_id: str, tokens: int, depth: float, at_once: int) -> None:
        """An answer ended: how a model is used decides what suits it at its next load."""
        self.memory.record_use(model_id, tokens, depth, at_once)

    def gone(self, model_id: str) -> None:
        """The runner ended: its memory is free again."""
        self.memory.flush()
        self.ledger.release(model_id)

    def parts(self, model_id: str) -> dict[str, int]:
        """Bytes by purpose of a model that was admitted, over all devices."""
        need = self._needs.get(model_id)
        return {part.name: need.part_bytes(part.name) for part in need.parts} if need else {}

    def placed(self, model_id: str) -> Placement | None:
        """The placement of a model that was admitted."""
        return self._placements.get(model_id)

    def after_failure(self, model_id: str, settings: LoadSettings, tried: tuple[LoadSettings, ...]) -> Rung | None:
        """The next rung of the ladder; what it changes is remembered until the model loads without it."""
        rung = next_rung(settings, self.machine.now(), tried)
        if rung is not None:
            log.warning("model=%s failed, next: %s", model_id, rung.change)
        return rung

    def worked(self, model_id: str, first: LoadSettings, used: LoadSettings) -> None:
        """A load succeeded after `first` had failed: remember what was different."""
        changes = {f: getattr(used, f) for f in LADDER_FIELDS if getattr(used, f) != getattr(first, f)}
        self.memory.remember(model_id, changes)

    def nothing_worked(self, model_id: str) -> None:
        """The ladder has ended: the next load starts with a free choice."""
        self.memory.remember(model_id, {})

    def _dry_run(self, settings: LoadSettings) -> DryRun | None:
        try:
            return dry_run(settings, self._paths.cache / "dry_runs.json")
        except DryRunFailed as error:
            log.warning("no dry run of %s: %s", settings.path, error)
            return None


def offload_target(settings: LoadSettings, machine: Machine) -> tuple[str | None, str]:
    """Device id and backend that layers go to with these settings; None and `cpu` when nothing is offloaded."""
    if not settings.devices or settings.n_gpu_layers == 0:
        return None, "cpu"
    for device in machine.devices:
        for runtime in device.runtimes:
            if runtime.device_name == settings.devices[0] and device.kind != "cpu":
                return device.id, runtime.backend
    return None, "cpu"


def read_shape(path: str) -> ModelShape:
    """The shape of a file on disk. Raises: BadModelFile."""
    try:
        return model_shape(read_gguf_model(path))
    except QuantizeError as error:
        raise BadModelFile(path, str(error)) from error
