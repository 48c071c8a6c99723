"""Does it fit this machine: the whole answer for one model and one placement."""

from collections.abc import Callable, Mapping

import msgspec

from devices.errors import Overdrawn
from devices.memory_ledger import Amount, Ledger
from devices.types import Machine
from engine.core.errors import NotEnoughMemory
from engine.message_catalog.reasons import Reason, because
from engine.placement.estimate import amounts
from engine.placement.fit import largest_context, need_at
from engine.placement.shape import ModelShape
from engine.placement.types import WORKERS, DryRun, FitOption, FitReport, Need
from engine.runner.expert_tensors import least_bytes, stacks
from engine.runner.protocol import LoadSettings

NUM_OPTIONS = 3


def ledger_amounts(need: Need) -> dict[str, Amount]:
    """A need as the ledger reserves it: what is on this machine."""
    return {device: Amount(own, mapped) for device, (own, mapped) in amounts(need).items() if device != WORKERS}


def machine_isa(machine: Machine) -> frozenset[str]:
    """Instruction sets of the machine's processor."""
    cpu = machine.device("cpu")
    return frozenset(cpu.isa) if cpu else frozenset()


def fit_report(
    name: str,
    shape: ModelShape,
    settings: LoadSettings,
    machine: Machine,
    ledger: Ledger,
    *,
    gpu: str | None = None,
    measured: tuple[LoadSettings, DryRun] | None = None,
    correction: float = 1.0,
    on_disk: bool = True,
) -> FitReport:
    """Judge a load against the free memory of `machine` and what `ledger` has promised to others.

    `measured` is a dry run and the settings it was made at. What is not `on_disk` is still to be fetched: then a
    smaller quantization is not made but chosen.
    """
    isa = machine_isa(machine)

    def estimate(at: LoadSettings) -> Need:
        return need_at(shape, at, isa, gpu, measured, correction)

    def fits(need: Need) -> bool:
        return overdraft(ledger, need, name) is None

    need = estimate(settings)
    held = {r.owner: r.predicted_bytes for r in ledger.reservations() if r.owner != name}
    fit = fits(need)
    ways: tuple[FitOption, ...] = ()
    if not fit:
        from engine.placement.savings import fit_options  # noqa: PLC0415 - most models fit

        ways = fit_options(shape, settings, estimate, fits, held, name, on_disk=on_disk)
    limit = shape.context_train or max(settings.n_ctx, 1 << 17)
    smallest = settings
    if settings.expert_bytes:  # a longer context takes the place of experts
        least = least_bytes(stacks(shape.tensors, shape.experts), shape.experts)
        smallest = msgspec.structs.replace(settings, expert_bytes=min(least, settings.expert_bytes))
    return FitReport(
        model=name,
        fits=fit,
        need=need,
        available_bytes={d: ledger.available(d, machine, exclude=name) for d in need.devices},
        largest_context=largest_context(smallest, limit, lambda at: fits(estimate(at))),
        fit_options=ways,
        notes=_notes(shape, settings),
    )


def overdraft(ledger: Ledger, need: Need, owner: str = "") -> Overdrawn | None:
    """Why the ledger would refuse this need now; None when it would not."""
    try:
        ledger.check(ledger_amounts(need), exclude=owner)
    except Overdrawn as error:
        return error
    return None


def claim(
    owner: str, need: Need, key: str, machine: Machine, ledger: Ledger, report: Callable[[], FitReport] | None
) -> None:
    """Reserve what a load takes; `key` groups loads whose errors are alike.

    Raises: NotEnoughMemory: what `report` says is missing; without one, what the ledger lacks.
    """
    try:
        ledger.reserve(owner, ledger_amounts(need), key, need.resident_bytes, need.by_purpose())
    except Overdrawn as error:
        if report is None:
            raise NotEnoughMemory(error.needed_bytes, error.available_bytes, error.pool) from error
        raise refusal(report(), {d.id: d.name for d in machine.devices}) from error


def refusal(report: FitReport, device_names: Mapping[str, str]) -> NotEnoughMemory:
    """The error a load that does not fit is refused with: needed, available and the cheapest ways out."""
    device = max(report.need.devices, key=lambda d: report.need.device_bytes(d) - report.available_bytes.get(d, 0))
    return NotEnoughMemory(
        report.need.device_bytes(device),
        report.available_bytes.get(device, 0),
        device_names.get(device, device),
        tuple(way.change for way in report.fit_options[:NUM_OPTIONS]),
    )


def _notes(shape: ModelShape, settings: LoadSettings) -> tuple[Reason, ...]:
    notes = []
    if shape.context_train and settings.n_ctx > shape.context_train:
        notes.append(because("beyond_training", tokens=shape.context_train))
    if not shape.layers:
        notes.append(because("no_layers"))
    return tuple(notes)
