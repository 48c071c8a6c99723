"""The steps that choose the settings of a load, in order, on one page.

Each step reads what is known about the load and returns the settings, changed or not, and the reason. The placement
carries these changes: the placement card, the API and `tessera fit --explain` show them. `device` compares places;
its work on the CPU is also a list of steps, CPU_STEPS in engine/placement/candidates.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.core.errors import InputFault
from engine.message_catalog.reasons import Reason, because
from engine.placement import rpc_layers
from engine.placement.candidates import Candidate, PlacementQuery
from engine.placement.choose import choose_candidate, placement_of
from engine.placement.estimate import overdraft
from engine.placement.fallbacks import sound_fallbacks
from engine.placement.fault_workarounds import applied, fault_reason, refusing
from engine.placement.fit_report import load_need, offload_target
from engine.placement.history import FALLBACK_FIELDS, PlacementHistory
from engine.placement.load_settings import (
    SETTINGS,
    ContextChoice,
    cap_kv_cells,
    capacity_for,
    decided,
    grown,
    larger_context,
    with_speculation,
)
from engine.placement.resources import Resources
from engine.placement.results import Tuned, machine_key, pinned_elsewhere, shape_key, tuned_settings
from engine.placement.shape import ModelShape
from engine.placement.speed import RARE_ERROR, USUAL_ERROR
from engine.placement.types import (
    DryRunner,
    Fallback,
    MemoryEstimate,
    MemoryPart,
    Placement,
    PlacementLimits,
    SettingChange,
    Step,
    changes_between,
    name_of,
)
from engine.runner.engine_args import given
from engine.runner.load_limits import resize_context
from engine.runner.protocol import LoadSettings

# Maximum share of a load's remaining free memory for cached prefixes.
PREFIX_DIVISOR: Final = 4
# A small model reads a prompt again in less time, so it keeps less: this many bytes per byte of its weights.
PREFIX_PER_WEIGHT: Final = 2
PREFIX_LEAST: Final = 64 << 20


def by_formula(_settings: LoadSettings) -> None:
    """Dry runner that always uses formulas."""


class Load(msgspec.Struct, kw_only=True):
    """State of one load: the inputs of the steps, and the results of earlier steps.

    `base` has the path and the model's settings before placement. `here` are the overrides without a device of
    another machine, whose name is `pinned_remote`. `prefix_bytes` is the maximum memory for cached prefixes.
    """

    base: LoadSettings
    shape: ModelShape
    overrides: PlacementLimits
    machine: Machine
    ledger: Ledger
    history: PlacementHistory
    owner: str = ""
    disk_gbs: float | None = None
    dry_run: DryRunner = by_formula
    resources: Resources | None = None
    pinned_remote: str = ""
    prefix_bytes: int = 0
    placement: Placement | None = None
    context: ContextChoice | None = None
    candidates: tuple[Candidate, ...] = ()
    changes: list[SettingChange] = []
    reasons: dict[str, Reason] = {}

    @property
    def here(self) -> PlacementLimits:
        """The overrides that concern this machine."""
        return msgspec.structs.replace(self.overrides, device=None) if self.pinned_remote else self.overrides

    @property
    def placed(self) -> Placement:
        """The placement, from `device` on."""
        assert self.placement is not None
        return self.placement

    @property
    def stores(self) -> Resources:
        """Stores of what was learned and set on this machine."""
        assert self.resources is not None
        return self.resources

    def question(self, settings: LoadSettings) -> PlacementQuery:
        """Input for choosing where these settings run."""
        rules = self.resources.fault_rules.now() if self.resources is not None else None
        return PlacementQuery(
            self.shape,
            settings,
            self.here,
            self.machine,
            self.ledger,
            self.history,
            self.owner,
            self.disk_gbs,
            rules,
        )

    def need(self, settings: LoadSettings) -> MemoryEstimate:
        return load_need(
            self.shape, settings, self.machine, self.ledger, self.resources.remotes if self.resources else None
        )

    def moved(self, settings: LoadSettings) -> Placement:
        return moved_to(self.placed, settings, self.machine, self.need(settings))

    def unless_faulty(self, settings: LoadSettings, changed: LoadSettings) -> LoadSettings:
        """The changed settings; `settings`, with a reason, if a known fault forbids the changed place alone."""
        if changed == settings:
            return settings
        rules = self.stores.fault_rules.now()
        fault = refusing(rules, self.shape, self.machine, changed)
        if fault is None or refusing(rules, self.shape, self.machine, settings) is not None:
            return changed
        moved = self.moved(changed)
        self.add_reasons(fault_reason("fault_avoided", fault, backend=moved.backend, device=moved.device_name))
        return settings

    def add_reasons(self, *reasons: Reason, **changes: Any) -> None:
        placed = self.placed
        self.placement = msgspec.structs.replace(placed, reasons=(*placed.reasons, *reasons), **changes)


def moved_to(placed: Placement, settings: LoadSettings, machine: Machine, need: MemoryEstimate) -> Placement:
    """The placement with other settings: the device they put the model on, and their memory need."""
    gpu, backend = offload_target(settings, machine)
    there = machine.device(gpu or "cpu")
    return msgspec.structs.replace(
        placed,
        device=gpu or "cpu",
        device_name=there.name if there else placed.device_name,
        backend=backend,
        settings=settings,
        need=need,
    )


# ---- Requirements of the model, its user and its use


def context(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Set as much context as fits in memory, if the user requested no number."""

    def place_with(tried: LoadSettings) -> Candidate:
        for step in STEPS[STEPS.index(context) + 1 : STEPS.index(device)]:
            tried, _ = step(load, tried)
        return choose_candidate(load.question(tried), by_formula).chosen

    def capacity(need: MemoryEstimate) -> Any:
        return capacity_for(need, load.machine, load.ledger, load.owner)

    load.context = larger_context(settings, load.overrides, load.shape, place_with, capacity)
    if load.context is None:
        return settings, None
    return resize_context(settings, load.context.n_ctx), load.context.reason


def requested(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Apply the options of the user, the server or a client; the cache follows context and requests."""
    limits = load.overrides
    settings = resize_context(settings, limits.n_ctx or settings.n_ctx, limits.n_parallel)
    settings = msgspec.structs.replace(settings, chosen_ctx=limits.n_ctx or settings.chosen_ctx)
    if limits.type_k:
        flash = "on" if limits.type_k != "f16" else settings.flash_attn
        settings = msgspec.structs.replace(settings, type_k=limits.type_k, type_v=limits.type_k, flash_attn=flash)
    return settings, because("asked_for")


def parallel_requests(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Allow more parallel requests if the model's use needs it and the user chose no number."""
    use = load.history.use(load.owner)
    wide = grown(load.overrides, use)
    if wide is load.overrides or use is None:
        return settings, None
    return resize_context(settings, settings.n_ctx, wide.n_parallel), because("busy_model", at_once=use.at_once)


def cache_cells(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Size the cache for one whole context, enough for one person; more if several requests run in parallel."""
    use = load.history.use(load.owner)
    return cap_kv_cells(settings, load.shape, grown(load.overrides, use), use), because("cells_by_use")


def speculation(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Enable the file's own MTP head, and copies of recurrent states that cannot be truncated."""
    changed = with_speculation(settings, load.shape)
    return changed, because("own_head") if changed.mtp else because("state_copies", tokens=changed.max_rollback)


def lazy_tables(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Read a large table from the file row by row instead of holding it in memory."""
    table = load.shape.lazy_table
    if table is None or settings.use_mlock or settings.engine_args.use_mlock:
        return settings, None
    return msgspec.structs.replace(settings, lazy_tables=True), because("lazy_table", gib=table.nbytes / (1 << 30))


# ---- Where it runs


def device(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Choose the fastest place where the load fits: CPU, GPUs, OpenVINO; a pin takes precedence."""
    query = load.question(settings)
    ranked = choose_candidate(query, load.dry_run)
    load.placement, load.candidates = placement_of(query, ranked, load.context), ranked.candidates
    load.changes += ranked.chosen.changes
    return ranked.chosen.settings, load.placement.reasons[0]


def other_machines(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Put layers on workers if that is faster or the model does not fit on this machine alone."""
    if load.resources is None or not load.resources.remotes.remotes:
        return settings, None
    far = rpc_layers.Spreading(load.resources, load.machine, load.owner, load.dry_run)
    load.placement = far.instead_of(load.placed, load.shape, load.pinned_remote)
    return load.placed.settings, load.placed.reasons[0]


# ---- What was learned on this machine


def tuned_or_measured(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Use what was tuned here for a model of this shape; otherwise the measured speed."""
    where, which, placed = machine_key(load.machine), shape_key(load.shape), load.placed
    if settings.remotes or placed.streaming is not None:
        return settings, None
    tuned = load.stores.tuned.get(where, which, settings.n_ctx)
    if tuned is not None and not pinned_elsewhere(tuned, placed, load.overrides):
        return _tuned(load, settings, tuned)
    report = load.stores.results.newest(where, which)
    if report is not None and report.backend == (",".join(settings.devices) or "cpu"):
        speed, kind = report.decode_tok_s, "measured_on_stand_in" if report.stand_in else "measured_on_model"
        load.add_reasons(
            because(kind, tok_s=speed, tokens=report.points[0].length),
            decode_tok_s=round(speed, 1),
            basis="measured",
            measured_on="stand-in" if report.stand_in else "model",
        )
    elif placed.fits and placed.basis == "prior" and placed.decode_tok_s and Path(settings.path).is_file():
        load.add_reasons(because("speed_forecast", half=USUAL_ERROR, rare=RARE_ERROR, model=load.owner))
    return settings, None


def _tuned(load: Load, settings: LoadSettings, tuned: Tuned) -> tuple[LoadSettings, Reason | None]:
    """The tuned settings if they fit now; otherwise the placement says why not."""
    changed = tuned_settings(tuned, settings, load.overrides)
    moved = load.moved(changed)
    if changed.devices and moved.device == "cpu":
        load.add_reasons(because("tuned_elsewhere", device=changed.devices[0]))
        return settings, None
    if overdraft(load.ledger, moved.need, load.owner) is not None:
        load.add_reasons(because("tuned_fits_not"))
        return settings, None
    if load.unless_faulty(settings, changed) is settings:
        return settings, None
    load.placement = moved
    load.add_reasons(
        *tuned.reasons(),
        fits=True,
        decode_tok_s=round(tuned.decode_tok_s, 1),
        basis="measured",
        measured_on="stand-in" if tuned.stand_in else "model",
    )
    return changed, tuned.reasons()[0]


def engine_arguments(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Apply the user's raw llama.cpp arguments: they override what was chosen, tuned or measured."""
    args = given(settings.engine_args)
    if not args:
        return settings, None
    changed, reason = decided(settings), _arguments(settings)
    moved = load.moved(changed)
    if changed.devices and moved.device == "cpu":
        raise InputFault(because("engine_args_device", device=changed.devices[0]), "engine_args.devices")
    load.placement = msgspec.structs.replace(moved, fits=overdraft(load.ledger, moved.need, load.owner) is None)
    load.add_reasons(reason)
    if settings.engine_args.devices:
        fault = refusing(load.stores.fault_rules.now(), load.shape, load.machine, changed)
        if fault is not None:
            load.add_reasons(fault_reason("fault_pinned", fault, backend=moved.backend))
    return changed, reason


def fallback_that_worked(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Use the fallback that worked after other settings had failed."""
    if settings.remotes:
        return settings, None
    changed = remembered(load.history, load.owner, settings)
    return load.unless_faulty(settings, changed), because("worked_after_failure")


def prefill_deaths(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Use what was tried after a runner died in a long prompt of this model, on this device with this driver."""
    if settings.remotes:
        return settings, None
    changed, depth = after_deaths(load.history, load.owner, settings, load.machine)
    changed = load.unless_faulty(settings, changed)
    if changed == settings:
        return settings, None
    reason = because("died_reading", tokens=depth)
    load.placement = load.moved(changed)
    load.add_reasons(reason)
    return changed, reason


# ---- What is known to fail or to compute wrong results. Later steps must not change what these have judged.


def fault_workarounds(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Work around known faults of this chip, driver and engine."""
    changed, rules = applied(load.stores.fault_rules.now(), load.shape, load.machine, settings)
    if changed == settings or settings.remotes:
        return settings, None
    reasons = [fault_reason("fault_settings", rule) for rule in rules]
    load.placement = load.moved(changed)
    load.add_reasons(*reasons)
    return changed, reasons[0]


def sound_device(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Use the next fallback if the device is known to compute other results than the CPU."""
    verdict = load.stores.checks.verdict(settings, load.shape, load.machine)
    if verdict is not None and verdict.is_partial and not verdict.wrong:
        load.add_reasons(because("checks_left", devices=settings.devices))
    is_wrong = verdict is not None and verdict.wrong
    fallback = sound(load.stores, load.owner, settings, load.shape, load.machine) if is_wrong else None
    if verdict is None or fallback is None:
        return settings, None
    reason = because("wrong_results", what=verdict.what, change=fallback.change)
    if verdict.operations:
        reason = because("wrong_results_of", **reason.values, operations=verdict.operations)
    load.placement = load.moved(fallback.settings)
    load.add_reasons(reason)
    if fallback.death_depth:
        load.add_reasons(because("died_reading", tokens=fallback.death_depth))
    return fallback.settings, reason


# ---- Final step


def prefix_cache(load: Load, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Give the prefix cache a part of the remaining memory, never memory that a model needs."""
    if settings.remotes:
        return settings, None  # a prefix cached here would cross the link
    need = load.placed.need
    spare = load.ledger.available("cpu", load.machine, exclude=load.owner) - need.device_bytes("cpu")
    ideal = min(load.prefix_bytes, max(PREFIX_LEAST, PREFIX_PER_WEIGHT * need.part_bytes("weights")))
    granted = min(ideal, max(0, spare) // PREFIX_DIVISOR)
    if not granted:
        return settings, None
    part = MemoryPart(name="prefixes", device="cpu", num_bytes=granted)
    changed = msgspec.structs.replace(settings, cache_ram_bytes=granted)
    need = msgspec.structs.replace(need, parts=(*need.parts, part))
    load.placement = msgspec.structs.replace(load.placed, settings=changed, need=need)
    return changed, because("prefixes_by_room")


# The order of the steps. If a load does not fit, it runs again without the steps of the next row of LEFT_OUT,
# provided that they changed something.
STEPS: Final[tuple[Step[Load], ...]] = (
    context,
    requested,
    parallel_requests,
    cache_cells,
    speculation,
    lazy_tables,
    device,
    other_machines,
    tuned_or_measured,
    engine_arguments,
    fallback_that_worked,
    prefill_deaths,
    fault_workarounds,
    sound_device,
    prefix_cache,
)
LEFT_OUT: Final[tuple[tuple[Step[Load], ...], ...]] = ((), (speculation,), (speculation, context))


def run(load: Load, last: Step[Load] = STEPS[-1]) -> Placement:
    """The placement after all steps up to `last`. Raises: InputFault: engine arguments that cannot be applied."""
    for left_out in LEFT_OUT:
        if left_out and name_of(left_out[-1]) not in load.reasons:
            continue
        load.changes, load.context = list(_before_dispatch(load.base)), None
        settings = load.base
        for step in STEPS[: STEPS.index(device) + 1]:
            if step not in left_out:
                settings = _take(load, step, settings)
        if load.placed.fits:
            break
    for step in STEPS[STEPS.index(device) + 1 : STEPS.index(last) + 1]:
        settings = _take(load, step, settings)
    return msgspec.structs.replace(load.placed, changes=tuple(load.changes))


def _take(load: Load, step: Step[Load], settings: LoadSettings) -> LoadSettings:
    noted = len(load.changes)
    changed, reason = step(load, settings)
    if reason is not None and (changed != settings or step is context):
        load.reasons[name_of(step)] = reason
    if len(load.changes) == noted:  # otherwise the step was a list of steps, which recorded them
        load.changes += changes_between(name_of(step), settings, changed, reason)
    if (
        load.placement is not None
        and load.placement.settings != changed
        and step not in STEPS[: STEPS.index(device)]
    ):
        load.placement = load.moved(changed)
    return changed


def _before_dispatch(base: LoadSettings) -> list[SettingChange]:
    """The settings that were set before placement, and who set them."""
    args, changes = base.engine_args, []
    by_arguments = {name for name in SETTINGS if getattr(args, name) is not None}
    by_arguments |= {"engine_args"} | ({"n_ctx", "kv_cells"} if args.n_ctx is not None else set())
    for change in changes_between("defaults", LoadSettings(path=base.path), base, because("before_dispatch")):
        if change.field in by_arguments:
            changes.append(msgspec.structs.replace(change, step=name_of(engine_arguments), reason=_arguments(base)))
        elif change.field == "draft_path":
            changes.append(msgspec.structs.replace(change, step="draft model", reason=because("asked_for")))
        else:
            changes.append(change)
    return changes


def _arguments(settings: LoadSettings) -> Reason:
    args = given(settings.engine_args)
    return because("engine_arguments", arguments=tuple(f"{name} {value}" for name, value in args.items()))


def remembered(history: PlacementHistory, model_id: str, settings: LoadSettings) -> LoadSettings:
    """The settings with those of the fallback that worked for this model, if any."""
    return with_changes(settings, history.remembered(model_id))


def with_changes(settings: LoadSettings, stored: Mapping[str, Any]) -> LoadSettings:
    """The settings with stored ones, which are lists where settings are tuples."""
    changes = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items() if k in FALLBACK_FIELDS}
    return msgspec.structs.replace(settings, **changes)


def death_key(model_id: str, settings: LoadSettings, machine: Machine) -> str:
    """Key of a death while reading: the model, its device, and the driver and kernel that may be at fault."""
    owners = [d for d in machine.devices for r in d.runtimes if r.device_name in settings.devices]
    drivers = ",".join(sorted({f"{d.id} {d.driver_version or ''}" for d in owners}))
    return f"{model_id}|{','.join(settings.devices) or 'cpu'}|{drivers}|{machine.kernel}"


def after_deaths(
    history: PlacementHistory, model_id: str, settings: LoadSettings, machine: Machine
) -> tuple[LoadSettings, int]:
    """The settings tried after runners died in long prompts of this model, and the depth of the last death.

    The depth is 0, and the settings are unchanged, if none died. Deaths on one device may lead to another one, on
    which runners died too.
    """
    depth, seen = 0, set[str]()
    while (key := death_key(model_id, settings, machine)) not in seen:
        seen.add(key)
        death = history.death(key)
        if death is None or not death.concerns(settings):
            break
        settings, depth = with_changes(settings, death.changes), death.depth
    return settings, depth


def sound(
    stores: Resources, model_id: str, settings: LoadSettings, shape: ModelShape, machine: Machine
) -> Fallback | None:
    """Fallback for settings with which a device computes wrong results; None if they are the CPU's.

    It obeys the rules of known faults of the other devices, and what was tried after runners died on them.
    """
    rules = stores.fault_rules.now()
    for fallback in sound_fallbacks(settings, machine) if settings.devices else []:
        tried, depth = after_deaths(stores.history, model_id, fallback.settings, machine)
        changed, _ = applied(rules, shape, machine, tried)
        is_other = changed.devices != settings.devices
        if is_other and refusing(rules, shape, machine, changed) is not None:
            continue
        verdict = stores.checks.verdict(changed, shape, machine)
        if verdict is None or not verdict.wrong:
            return msgspec.structs.replace(fallback, settings=changed, death_depth=depth)
    return None


def place(
    shape: ModelShape,
    base: LoadSettings,
    overrides: PlacementLimits,
    machine: Machine,
    ledger: Ledger,
    history: PlacementHistory,
    dry_run: DryRunner = by_formula,
    owner: str = "",
    disk_gbs: float | None = None,
) -> Placement:
    """The placement on this machine alone, without tuned settings and device checks."""
    load = Load(
        base=base,
        shape=shape,
        overrides=overrides,
        machine=machine,
        ledger=ledger,
        history=history,
        owner=owner,
        disk_gbs=disk_gbs,
        dry_run=dry_run,
    )
    return run(load, device)
