"""Chooses where a model runs, with which settings, and whether it fits now. Stores and reserves nothing."""

import logging
import os
from pathlib import Path

import msgspec

from devices.errors import PoolExceeded, TesseraError
from devices.memory_ledger import DeviceBytes
from devices.types import Machine
from engine.core.errors import BadModelFile, reason_for
from engine.message_catalog.reasons import because
from engine.onnx.folder import OnnxFolder
from engine.placement import llama_server, onnx, openvino, rpc_layers
from engine.placement.candidates import Candidate, forecast_for, is_comparable
from engine.placement.cpu_choices import disk_gbs
from engine.placement.dry_run import DryRunFailed, dry_run
from engine.placement.estimate import (
    audit_key,
    exact_parts,
    kv_layer_bytes,
    largest_context,
    ledger_amounts,
    need_at,
    overdraft,
)
from engine.placement.external import external_report, kind_of, place_external
from engine.placement.fit_report import deterministic_owner, fit_report, load_need
from engine.placement.load_settings import refused
from engine.placement.measurements import SpeedCurve
from engine.placement.npu_rule import busy_igpu
from engine.placement.resources import Resources
from engine.placement.results import machine_key, shape_key
from engine.placement.shape import ModelShape, model_shape
from engine.placement.speed import effective_gbs, speed_curve, weights_read
from engine.placement.steps import Load, by_formula, moved_to, other_machines, remembered, run, sound
from engine.placement.steps import device as device_step
from engine.placement.types import (
    NO_OVERRIDES,
    WORKERS,
    DryRun,
    Fallback,
    FitReport,
    MemoryEstimate,
    Placement,
    PlacementLimits,
    changes_between,
)
from engine.runner.load_limits import exact_settings
from engine.runner.protocol import ExternalProgram, LoadSettings
from quantize.files.header_cache import cached_gguf_model

log = logging.getLogger(__name__)
# Shorter responses are too noisy for a memory speed.
ENOUGH_TOKENS = 64
# Smaller models stay in caches, so their speed does not show the memory's.
LARGE_READ_BYTES = 256 << 20


class Placer:
    """Places models by the machine, its ledger and what was learned here. Every method blocks briefly."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.machine = resources.machine
        self.ledger = resources.ledger
        self.history = resources.history
        self.tuned = resources.tuned
        self.results = resources.results
        self._dry_runs = resources.dry_runs

    def choose(
        self,
        model_id: str,
        settings: LoadSettings,
        overrides: PlacementLimits = NO_OVERRIDES,
        *,
        exact: bool = False,
    ) -> Placement:
        """The placement of a load, with its energy. Raises: BadModelFile."""
        placed = self._with_energy(model_id, self.placement(model_id, settings, overrides, exact=exact))
        if placed.settings.external is not None or not onnx.is_folder(settings.path):
            return placed  # its steps have used the fallback
        return msgspec.structs.replace(placed, settings=remembered(self.history, model_id, placed.settings))

    def placement(
        self,
        model_id: str,
        settings: LoadSettings,
        overrides: PlacementLimits = NO_OVERRIDES,
        *,
        exact: bool = True,
    ) -> Placement:
        """Where and how the model would run now.

        `exact` makes a dry run with llama.cpp in a child (under a second, cached). Without it, or if it fails,
        formulas are used. The user's pin counts unless the overrides name a device.
        Raises: BadModelFile.
        """
        external = kind_of(settings)
        if external is not None and external.place is not None:
            return place_external(settings, self.machine_now(), self.ledger, model_id)
        if overrides.device is None:
            overrides = msgspec.structs.replace(overrides, device=self.resources.settings.get(model_id).device)
        if onnx.is_folder(settings.path):
            folder, machine = onnx.folder_at(settings.path), self.machine_now()
            return onnx.place_folder(folder, settings, onnx.with_power(overrides), machine, self.ledger, model_id)
        overrides = onnx.with_power(overrides)
        if settings.external is not None:
            return self._in_other_build(model_id, settings, settings.external, overrides)
        return run(self._load(model_id, read_shape(settings.path), settings, overrides, exact=exact))

    def _load(
        self, model_id: str, shape: ModelShape, settings: LoadSettings, overrides: PlacementLimits, *, exact: bool
    ) -> Load:
        return Load(
            base=msgspec.structs.replace(settings, cache_ram_bytes=0),
            shape=shape,
            overrides=overrides,
            machine=self.machine_now(),
            ledger=self.ledger,
            history=self.history,
            owner=model_id,
            disk_gbs=disk_gbs(self.resources, shape, settings.path, model_id),
            dry_run=self.dry_run if exact else by_formula,
            resources=self.resources,
            pinned_remote=rpc_layers.pinned_to(self.resources.remotes, overrides.device),
            prefix_bytes=settings.cache_ram_bytes,
        )

    def _in_other_build(
        self, model_id: str, settings: LoadSettings, program: ExternalProgram, overrides: PlacementLimits
    ) -> Placement:
        """Placement in a llama-server that the user added: on a device that it sees, by llama.cpp's formulas.

        Raises: BadModelFile; InputFault: the program is missing.
        """
        build, machine, shape = llama_server.inspect(program.program), self.machine_now(), read_shape(settings.path)
        usual = llama_server.plain(settings)

        def on(device: str) -> Placement:
            at = msgspec.structs.replace(overrides, device=device)
            return self.defaults(model_id, shape, usual, at)

        pins = (overrides.device,) if overrides.device else llama_server.pins(build, machine)
        best = max(map(on, pins), key=lambda placed: (placed.fits, placed.decode_tok_s or 0.0))
        if not set(best.settings.devices) <= set(build.devices):
            best = on("cpu")
        own = llama_server.own_devices(build, machine) if not best.settings.devices else ()
        chosen = llama_server.plain(best.settings)
        if own:  # the build decides itself what goes there
            chosen = msgspec.structs.replace(chosen, n_gpu_layers=-1)
        reasons = llama_server.reasons(chosen, build, own)
        moved = moved_to(best, chosen, machine, self.need(shape, chosen, machine))
        return msgspec.structs.replace(
            moved,
            backend=program.kind,
            fits=overdraft(self.ledger, moved.need, model_id) is None,
            decode_tok_s=None,
            basis="unknown",
            streaming=None,
            reasons=reasons,
            alternatives=(),
            changes=(*best.changes, *changes_between(program.kind, best.settings, chosen, reasons[0])),
        )

    def side_work(self, folder: OnnxFolder, overrides: PlacementLimits) -> onnx.ProviderChoice:
        """Where an encoder or a speech model of fixed shapes would run now, and why. Raises: BadModelFile."""
        machine = self.machine_now()
        settings, busy = LoadSettings(path=str(folder.path)), busy_igpu(machine, self.ledger)
        return onnx.choose_provider(folder, settings, onnx.with_power(overrides), machine, busy, os.environ)

    def _with_energy(self, model_id: str, placed: Placement) -> Placement:
        """The placement with the tokens per joule measured there so far."""
        measured = self.history.tokens_per_joule(model_id, placed.device, placed.backend)
        tokens_per_joule = measured if measured is not None else placed.tokens_per_joule
        unknown = because("energy_not_yet" if self.machine.metered else "energy_no_meter")
        energy = (
            because("tokens_per_joule", tokens_per_joule=tokens_per_joule)
            if tokens_per_joule is not None
            else unknown
        )
        return msgspec.structs.replace(placed, tokens_per_joule=tokens_per_joule, energy=energy)

    def judge_shape(
        self,
        model_id: str,
        shape: ModelShape,
        settings: LoadSettings,
        overrides: PlacementLimits = NO_OVERRIDES,
        *,
        exact: bool = False,
    ) -> Placement:
        """Like `placement`, for a header that was already read, perhaps of a file that is not here."""
        return run(self._load(model_id, shape, settings, overrides, exact=exact))

    def defaults(
        self,
        model_id: str,
        shape: ModelShape,
        settings: LoadSettings,
        overrides: PlacementLimits = NO_OVERRIDES,
    ) -> Placement:
        """Default placement without tuned settings, and without memory for cached prefixes."""
        return run(self._load(model_id, shape, settings, overrides, exact=False), other_machines)

    def unmeasured(
        self, model_id: str, settings: LoadSettings, overrides: PlacementLimits = NO_OVERRIDES
    ) -> list[Candidate]:
        """Places that forecasts alone compare, fastest forecast first; fewer than two places are not compared.

        Empty if the user decided, tuned settings decide, or every place was measured. Raises: BadModelFile.
        """
        pinned = overrides.device or self.resources.settings.get(model_id).device
        if pinned or settings.remotes or settings.external is not None or onnx.is_folder(settings.path):
            return []
        shape, machine = read_shape(settings.path), self.machine_now()
        if self.tuned.get(machine_key(machine), shape_key(shape), settings.n_ctx) is not None:
            return []
        load = self._load(model_id, shape, settings, onnx.with_power(overrides), exact=False)
        run(load, device_step)
        comparable = [c for c in load.candidates if is_comparable(c)]
        missing = [c for c in comparable if c.forecast and self.history.measured_speed(c.forecast.key) is None]
        return sorted(missing, key=lambda c: c.speed.turn_s) if len(comparable) > 1 else []

    def speed_curve(
        self, model_id: str, settings: LoadSettings, overrides: PlacementLimits = NO_OVERRIDES
    ) -> SpeedCurve:
        """Speeds over prompt lengths at the place of `choose`; empty if no rule forecasts them.

        Raises: BadModelFile.
        """
        settings = self.choose(model_id, settings, overrides).settings
        if settings.external is not None or onnx.is_folder(settings.path):
            return SpeedCurve()
        rule = forecast_for(read_shape(settings.path), settings, self.machine_now())
        return speed_curve(rule, self.history, model_id) if rule is not None else SpeedCurve()

    def pin(self, model_id: str, device: str | None) -> None:
        """Store the user's device (None: no choice) and delete the stored fallback of the earlier one."""
        self.resources.settings.change(model_id, device=device)
        self.history.remember(model_id, {})

    def try_engine_args(self, settings: LoadSettings) -> None:
        """Make a dry run with the settings' raw arguments, in a child that allocates nothing.

        Raises: InputFault: llama.cpp rejects them, or they crash it.
        """
        try:
            dry_run(settings, self._dry_runs)
        except DryRunFailed as error:
            raise refused(error) from error

    def learn_spread(self, settings: LoadSettings, tokens: int, decode_s: float) -> None:
        """Learn the workers' speed from a response of a model with layers on workers."""
        shape = read_shape(settings.path)
        if tokens >= ENOUGH_TOKENS and weights_read(shape) >= LARGE_READ_BYTES:
            far = rpc_layers.Spreading(self.resources, self.machine_now(), "", by_formula)
            far.learn(shape, settings, (tokens - 1) / decode_s)

    def sound(self, model_id: str, settings: LoadSettings, shape: ModelShape) -> Fallback | None:
        """Fallback for settings with which a device computes wrong results; None if they are the CPU's."""
        return sound(self.resources, model_id, settings, shape, self.machine_now())

    def report(self, model_id: str, placement: Placement, shape: ModelShape | None = None) -> FitReport:
        """Whether that placement fits now, the largest context, and what to give up if it does not fit."""
        external = kind_of(placement.settings)
        if external is not None and external.place is not None:
            return external_report(model_id, placement, self.machine.now(), self.ledger)
        if placement.device == WORKERS or placement.settings.remotes:
            fits, machine = placement.fits, self.machine.now()
            free = {d: self.ledger.available(d, machine) for d in placement.need.devices if d != WORKERS}
            return FitReport(
                model=model_id, fits=fits, need=placement.need, available_bytes=free, largest_context=0
            )
        if onnx.is_folder(placement.settings.path):
            return onnx.folder_report(model_id, placement, self.machine.now(), self.ledger)
        shape = shape or read_shape(placement.settings.path)
        on_cpu = placement.device == "cpu"
        needs_run = on_cpu and external is None and Path(placement.settings.path).is_file()
        run = self.dry_run(placement.settings) if needs_run else None
        report = fit_report(
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
        note = external.memory_note if external is not None else None
        return msgspec.structs.replace(report, notes=(*report.notes, note)) if note is not None else report

    def context_beside(self, settings: LoadSettings, weights_bytes: int) -> int:
        """Tokens of context that fit now, in the largest memory here, next to `weights_bytes` of weights.

        By formulas; at most the training context; 0 if nothing fits. Raises: BadModelFile.
        """
        shape, machine = read_shape(settings.path), self.machine_now()
        usable = [d.id for d in machine.devices if d.state == "usable" and d.kind != "npu"] or ["cpu"]
        free = max(self.ledger.available(device, machine) for device in usable)
        isa = machine.isa

        def fits(at: LoadSettings) -> bool:
            need = need_at(shape, at, isa, None, None)
            return need.total_bytes - need.part_bytes("weights") + weights_bytes <= free

        return largest_context(settings, shape.context_train or max(settings.n_ctx, 1 << 17), fits)

    def need_of(self, settings: LoadSettings) -> MemoryEstimate:
        """Memory need of a load with these settings, by formulas. Raises: BadModelFile."""
        return self.need(read_shape(settings.path), settings, self.machine_now())

    def shortage(
        self, model_id: str, settings: LoadSettings, copied: LoadSettings | None = None
    ) -> PoolExceeded | None:
        """Memory that a model lacks for these settings, if they replace those it is loaded with; None if it fits.

        `copied` are settings whose caches are temporarily copied to main memory (None: nothing is). The context for
        deterministic requests is resized too, after the other one.
        """
        amounts, shape = ledger_amounts(self.need_of(settings)), read_shape(settings.path)
        exact = next((r for r in self.ledger.reservations() if r.owner == deterministic_owner(model_id)), None)
        if copied is not None:
            caches = [sum(kv_layer_bytes(shape, copied))]
            if exact is not None:
                caches.append(sum(kv_layer_bytes(shape, exact_settings(copied))))
            amounts["cpu"] = _more(amounts.get("cpu"), max(caches))
        if exact is not None:
            after = sum(exact_parts(shape, settings).values())
            for device, before in exact.amounts.items():
                amounts[device] = _more(amounts.get(device), max(0, after - before.total_bytes))
        try:
            self.ledger.check(amounts, exclude=model_id)
        except PoolExceeded as error:
            return error
        return None

    def largest_context(self, model_id: str, settings: LoadSettings, limit: int) -> int:
        """The largest context, up to `limit`, that fits this model in its available memory."""

        def fits(at: LoadSettings) -> bool:
            single = msgspec.structs.replace(settings, n_ctx=at.n_ctx, kv_cells=at.n_ctx)
            return self.shortage(model_id, single) is None

        return largest_context(settings, limit, fits)

    def expected_tok_s(self, bytes_per_token: int) -> float:
        """Decode speed of a model that reads this many bytes per token, on the fastest usable device here."""
        speeds = [
            self.history.speed_gbs(device.id, backend) or effective_gbs(device, backend)
            for device in self.machine_now().devices
            if device.state == "usable" and device.kind != "npu"
            for backend in {r.backend for r in device.runtimes if r.state == "usable"} | {"cpu"} & {device.kind}
        ]
        return max(speeds, default=0.0) * 1e9 / max(1, bytes_per_token)

    def need(
        self, shape: ModelShape, settings: LoadSettings, machine: Machine, run: DryRun | None = None
    ) -> MemoryEstimate:
        """Memory need of a load with these settings; measured by `run` if given."""
        return load_need(shape, settings, machine, self.ledger, self.resources.remotes, run)

    def machine_now(self) -> Machine:
        """The machine with everything that placement needs to know about it."""
        return self.machine.settled()

    def dry_run(self, settings: LoadSettings) -> DryRun | None:
        """Memory of a load from llama.cpp's dry run in a child; None if that is not possible."""
        if openvino.is_openvino(settings):
            return None  # its backend allocates when it compiles graphs, which a dry run does not do
        try:
            return dry_run(settings, self._dry_runs)
        except DryRunFailed as error:
            log.warning("no dry run of %s: %s", settings.path, error)
            return None


def _more(amount: DeviceBytes | None, num_bytes: int) -> DeviceBytes:
    own = amount or DeviceBytes(0)
    return DeviceBytes(own.anonymous_bytes + num_bytes, own.mapped_bytes)


def read_shape(path: str) -> ModelShape:
    """The shape of a file on disk. Raises: BadModelFile."""
    try:
        return model_shape(cached_gguf_model(path))
    except TesseraError as error:
        raise BadModelFile(path, reason_for(error)) from error
