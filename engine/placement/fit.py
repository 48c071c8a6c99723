"""Dry runs by llama.cpp, needs at other settings than the dry run's, and the largest context that fits."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from devices.backends.libraries import library_folder
from devices.child import run_child
from devices.child_command import child_command
from devices.errors import PoolExceeded
from devices.llama_cpp_versions.folder import child_variables, chosen_version
from devices.memory_ledger import DeviceBytes, Ledger
from devices.msgspec_lock import learned
from devices.types import Machine
from engine.core.errors import EnvironmentFault
from engine.core.json_store import JsonStore, with_row
from engine.message_catalog.reasons import because
from engine.placement.estimate import (
    amounts,
    compute_prior,
    draft_shape,
    estimate,
    kv_layer_bytes,
    with_draft,
    with_head,
)
from engine.placement.shape import ModelShape
from engine.placement.types import WORKERS, DryRun, MemoryEstimate
from engine.runner.load_limits import draft_settings
from engine.runner.protocol import LoadSettings

log = logging.getLogger(__name__)
# A header with 250,000 tokens takes a second; a cold disk and antivirus take the rest.
TIMEOUT_S = 30.0
MAX_ENTRIES = 400
# Settings that change the memory of a load; threads, priorities and cache folders do not.
RELEVANT = (
    "n_ctx", "kv_cells", "n_parallel", "n_batch", "n_ubatch", "n_gpu_layers", "devices", "type_k", "type_v",
    "flash_attn", "repack", "tiles", "embeddings", "engine_args", "remotes",
)  # fmt: skip


class DryRunFailed(EnvironmentFault):
    """llama.cpp rejected the file or the settings, crashed or hung; the message says which."""


def dry_run(settings: LoadSettings, cache: Path | None = None, timeout_s: float = TIMEOUT_S) -> DryRun:
    """Memory that llama.cpp needs for these settings. Results are cached in `cache` by file, settings and build.

    Raises: DryRunFailed.
    """
    try:
        key = _key(settings)
        stored = _read(cache) if cache else {}
    except OSError as error:
        raise DryRunFailed(str(error)) from error
    if key in stored:
        return stored[key]
    argv = child_command("engine.runner.llama.memory_probe", msgspec.json.encode(settings).decode())
    outcome = run_child(argv, timeout_s, child_variables(settings.path))
    if outcome.answer is None:
        raise DryRunFailed(outcome.reason)
    try:
        found = msgspec.convert(outcome.answer, learned(DryRun))
    except msgspec.ValidationError as error:
        raise DryRunFailed(because("probe_unreadable", why=str(error))) from error
    if cache is not None:
        _write(cache, key, found)
    return found


def _key(settings: LoadSettings) -> str:
    facts: list[object] = [(name, getattr(settings, name)) for name in RELEVANT]
    facts.append(("version", chosen_version(settings.path)))
    folder = library_folder()
    for path in (Path(settings.path), *(sorted(folder.glob("*llama*")) if folder else ())):
        try:
            status = path.stat()
            facts.append((str(path), status.st_size, status.st_mtime_ns))
        except OSError:
            facts.append(str(path))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _read(cache: Path) -> dict[str, DryRun]:
    return JsonStore(cache, dict[str, DryRun], dict, durable=False).get()


def _write(cache: Path, key: str, found: DryRun) -> None:
    try:
        JsonStore(cache, dict[str, DryRun], dict, durable=False).change(
            lambda old: dict(list(with_row(old, key, found).items())[-MAX_ENTRIES:])
        )
    except OSError as error:
        log.info("dry runs are not kept: %s", error)


STEP = 256
SMALLEST = 512


def rescaled(shape: ModelShape, dry_run: DryRun, before: LoadSettings, after: LoadSettings) -> DryRun:
    """Estimated dry run at `after`: caches scale like the formula, scratch memory by its own rule.

    Exact for the caches of every architecture whose formula matches llama.cpp at `before`.
    """
    old, new = sum(kv_layer_bytes(shape, before)), sum(kv_layer_bytes(shape, after))
    kv = dry_run.kv_bytes * new // old if old else 0
    change = compute_prior(shape, after) - compute_prior(shape, before)
    compute = dict(dry_run.compute_bytes)
    if compute:
        largest = max(compute, key=lambda name: compute[name])
        compute[largest] = max(0, compute[largest] + change)
    return msgspec.structs.replace(dry_run, kv_bytes=kv, compute_bytes=compute)


def need_at(
    shape: ModelShape,
    settings: LoadSettings,
    isa: frozenset[str],
    gpu: str | None,
    measured: tuple[LoadSettings, DryRun] | None,
    correction: float = 1.0,
) -> MemoryEstimate:
    """The need at `settings`, from a dry run at other settings if there is one."""
    run = rescaled(shape, measured[1], measured[0], settings) if measured else None
    projector = Path(settings.mmproj_path) if settings.mmproj_path else None
    size = projector.stat().st_size if projector is not None and projector.is_file() else 0
    need = estimate(shape, settings, isa, gpu=gpu, dry_run=run, projector_bytes=size, correction=correction)
    if settings.mtp and shape.has_head:
        need = with_head(need, shape, settings, gpu)
    if settings.draft_path is None:
        return need
    return with_draft(need, estimate(draft_shape(settings.draft_path), draft_settings(settings), isa, gpu=gpu))


def largest_context(settings: LoadSettings, limit: int, fits: Callable[[LoadSettings], bool]) -> int:
    """The largest context, in steps of 256, that `fits`; 0 if not even 512 tokens do."""
    low, high = 0, max(limit, SMALLEST) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        if fits(resize_context(settings, middle * STEP)):
            low = middle
        else:
            high = middle - 1
    return low * STEP if low * STEP >= SMALLEST else 0


def resize_context(settings: LoadSettings, n_ctx: int, n_parallel: int | None = None) -> LoadSettings:
    """The same load with `n_ctx` tokens of context, for `n_parallel` parallel requests (None: unchanged).

    A cache of a single context stays one. A cache for several contexts holds as many of the new ones, or one for
    each of `n_parallel`.
    """
    parallel = n_parallel or settings.n_parallel
    cells = settings.kv_cells
    if cells > settings.n_ctx:
        cells = n_ctx * parallel if n_parallel else cells * n_ctx // settings.n_ctx
    elif cells:
        cells = n_ctx
    return msgspec.structs.replace(settings, n_ctx=n_ctx, n_parallel=parallel, kv_cells=cells)


def ledger_amounts(need: MemoryEstimate) -> dict[str, DeviceBytes]:
    """Amounts of this machine's memory that the ledger reserves for a need."""
    return {
        device: DeviceBytes(own, mapped) for device, (own, mapped) in amounts(need).items() if device != WORKERS
    }


def machine_isa(machine: Machine) -> frozenset[str]:
    """Instruction sets of the machine's CPU."""
    cpu = machine.device("cpu")
    return frozenset(cpu.isa) if cpu else frozenset()


def overdraft(ledger: Ledger, need: MemoryEstimate, owner: str = "") -> PoolExceeded | None:
    """Why the ledger would refuse this need now; None if it would not."""
    try:
        ledger.check(ledger_amounts(need), exclude=owner)
    except PoolExceeded as error:
        return error
    return None
