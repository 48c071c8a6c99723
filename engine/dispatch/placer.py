"""One place that answers where a model runs, whether it fits, and keeps the ledger while it is loaded."""

import logging
from collections.abc import Mapping
from pathlib import Path

from devices.audit import AuditLog
from devices.errors import Overdrawn
from devices.memory import Ledger
from devices.process_memory import process_memory
from engine.dispatch.choose import audit_key, place
from engine.dispatch.ladder import next_rung
from engine.dispatch.machine_state import MachineState
from engine.dispatch.memory import DispatchMemory
from engine.dispatch.types import NO_WISH, Placement, Rung, Wish
from engine.errors import BadModelFile
from engine.fit.dry_run import DryRunFailed, dry_run
from engine.fit.report import fit_report, ledger_amounts, refusal
from engine.fit.shape import ModelShape, model_shape
from engine.fit.types import DryRun, FitReport
from engine.paths import Paths
from engine.runner.protocol import LoadSettings
from quantize.errors import QuantizeError
from quantize.gguf_split import read_gguf_model

log = logging.getLogger(__name__)


class Placer:
    """Places models and guards memory. Every method blocks for a moment: call it off the event loop."""

    def __init__(self, paths: Paths, machine: MachineState | None = None) -> None:
        self._paths = paths
        self.machine = machine or MachineState(backend_cache=paths.cache / "backends.json")
        self.ledger = Ledger(self.machine.now, AuditLog(paths.state / "memory_audits.jsonl"))
        self.memory = DispatchMemory(paths.state / "dispatch.json")
        self._placements: dict[str, Placement] = {}

    def placement(
        self, model_id: str, settings: LoadSettings, wish: Wish = NO_WISH, *, exact: bool = True
    ) -> Placement:
        """Where and how the model would run now.

        `exact` asks llama.cpp in a child (under a second, kept); else, or if that fails, formulas answer.
        Raises: BadModelFile.
        """
        return self.judge_shape(model_id, read_shape(settings.path), settings, wish, exact=exact)

    def judge_shape(
        self, model_id: str, shape: ModelShape, settings: LoadSettings, wish: Wish = NO_WISH, *, exact: bool = False
    ) -> Placement:
        """The same for a header that was read before, perhaps of a file that is not here."""
        machine = self.machine.full()

        def ask(at: LoadSettings) -> DryRun | None:
            return self._dry_run(at) if exact else None

        return place(shape, settings, wish, machine, self.ledger, self.memory, ask, owner=model_id)

    def report(self, model_id: str, placement: Placement, shape: ModelShape | None = None) -> FitReport:
        """Whether that placement fits now, the largest context, and what to give up if not."""
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
        )

    def admit(self, model_id: str, settings: LoadSettings, wish: Wish = NO_WISH) -> LoadSettings:
        """Reserve what a load needs and return its settings.

        Raises: NotEnoughMemory: with needed, available and the three cheapest ways out. BadModelFile.
        """
        shape = read_shape(settings.path)
        placement = self.judge_shape(model_id, shape, settings, wish, exact=True)
        try:
            self.ledger.reserve(model_id, ledger_amounts(placement.need), audit_key(shape, placement.backend))
        except Overdrawn as error:
            names = {d.id: d.name for d in self.machine.now().devices}
            raise refusal(self.report(model_id, placement, shape), names) from error
        self._placements[model_id] = placement
        log.info("admitted model=%s device=%s bytes=%d", model_id, placement.device, placement.need.total_bytes)
        return placement.settings

    def started(self, model_id: str, pid: int) -> None:
        """A runner process draws on the reservation."""
        self.ledger.attach(model_id, pid)

    def loaded(self, model_id: str, pid: int, buffers: Mapping[str, int]) -> None:
        """The load is done: audit it."""
        measured = process_memory(pid)
        if measured is not None:
            self.ledger.record_measured(model_id, measured, buffers)

    def gone(self, model_id: str) -> None:
        """The runner ended: its memory is free again."""
        self.ledger.release(model_id)

    def placed(self, model_id: str) -> Placement | None:
        """The placement of a model that was admitted."""
        return self._placements.get(model_id)

    def after_failure(self, settings: LoadSettings, tried: tuple[LoadSettings, ...]) -> Rung | None:
        """The next rung of the ladder."""
        return next_rung(settings, self.machine.now(), tried)

    def _dry_run(self, settings: LoadSettings) -> DryRun | None:
        try:
            return dry_run(settings, self._paths.cache / "dry_runs.json")
        except DryRunFailed as error:
            log.warning("no dry run of %s: %s", settings.path, error)
            return None


def read_shape(path: str) -> ModelShape:
    """The shape of a file on disk. Raises: BadModelFile."""
    try:
        return model_shape(read_gguf_model(path))
    except QuantizeError as error:
        raise BadModelFile(path, str(error)) from error
