"""Builds the quantizer's request from options; the only place that does so."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import psutil

from devices.types import Machine
from engine.core.paths import Paths, is_installed, whole_path
from engine.job_kinds.bench.qtype_speed import PriceStore, planner_speeds
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.library.errors import CannotWrite
from engine.library.model_ids import folder_name
from engine.placement.dry_run import DryRunFailed, dry_run
from engine.placement.estimate import estimate, kv_layer_bytes
from engine.placement.placer import Placer
from engine.placement.resources import MachineState, Resources
from engine.placement.results import machine_key
from engine.placement.shape import ModelShape, is_repacked, model_shape
from engine.placement.types import DryRun
from engine.runner.protocol import LoadSettings
from quantize.child import run_task
from quantize.convert.folder import ConvertRequest
from quantize.files.gguf_file import TensorInfo
from quantize.files.gguf_split import read_gguf_model
from quantize.ggml_types import MEASURED
from quantize.job.gate import GateTask
from quantize.job.plan_file import read_plan
from quantize.job.request import QuantizeRequest
from quantize.kv_cache_types import K_DAMAGE, V_DAMAGE
from quantize.types import CALIBRATION, HELD_OUT, DeviceKind, KvOption, SizeTarget

# Converts "fits this machine at this context" to bytes: the memory that weights and KV cache share.


class FitGoal(msgspec.Struct, frozen=True):
    """The goal and the KV cache types, in the format of `quantize.job.QuantizeRequest`.

    `doubled_head_types`: types in which memory holds a tied embedding a second time as the head.
    """

    goal: SizeTarget
    kv: tuple[KvOption, ...]
    doubled_head_types: tuple[str, ...] = ()


def promised(path: Path | str, n_ctx: int, n_seq: int) -> LoadSettings:
    """The load that the file must fit: every sequence has the whole context."""
    return LoadSettings(path=str(path), n_ctx=n_ctx, kv_cells=n_ctx * n_seq, n_parallel=n_seq)


def fit_goal(
    shape: ModelShape,
    memory_bytes: int,
    settings: LoadSettings,
    isa: frozenset[str] = frozenset(),
    *,
    dry: DryRun | None = None,
    apart: bool = False,
) -> FitGoal:
    """Divide memory into a fixed part and the part that a plan can change.

    `settings` are the load that must fit (see `promised`); `dry` is a dry run of the unquantized source with them.
    `apart`: K and V may have different types, which works on CPUs; llama.cpp's GPU kernels need equal types.
    """
    fixed = _fixed_bytes(shape, settings, isa, dry)
    n_seq = max(1, settings.n_parallel)
    goal = SizeTarget(kind="fit", limit_bytes=memory_bytes, fixed_bytes=fixed, n_ctx=settings.n_ctx, n_seq=n_seq)
    kv = tuple(
        KvOption(k, v, sum(kv_layer_bytes(shape, _with_kv(settings, k, v))), K_DAMAGE[k] + V_DAMAGE[v])
        for k in K_DAMAGE
        for v in V_DAMAGE
        if apart or k == v
    )
    return FitGoal(goal, kv, _doubled(shape, isa) if shape.tied else ())


def source_dry_run(settings: LoadSettings, cache: Path | None = None) -> DryRun | None:
    """llama.cpp's memory for the source apart from weights and KV cache; None if it does not load."""
    try:
        return dry_run(settings, cache)
    except DryRunFailed:
        return None


def _fixed_bytes(shape: ModelShape, settings: LoadSettings, isa: frozenset[str], dry: DryRun | None) -> int:
    """Scratch memory, logits, recurrent states and the process, for the KV cache type that needs most."""
    alike = [(k, k) for k in K_DAMAGE]
    needs = (estimate(shape, _with_kv(settings, k, v), isa, dry_run=dry) for k, v in alike)
    return max(n.total_bytes - n.part_bytes("weights") - n.part_bytes("kv") for n in needs)


def _with_kv(settings: LoadSettings, type_k: str, type_v: str) -> LoadSettings:
    return msgspec.structs.replace(settings, type_k=type_k, type_v=type_v)


def _doubled(shape: ModelShape, isa: frozenset[str]) -> tuple[str, ...]:
    embedding = next((t for t in shape.tensors if t.name == "token_embd.weight"), None)
    if embedding is None:
        return ()
    tensors = (TensorInfo(embedding.name, embedding.shape, qtype, 0, 0) for qtype in MEASURED)
    return tuple(t.ggml_type.name for t in tensors if is_repacked(t, isa, as_head=True))


_SOURCE_SUFFIX = re.compile(r"[-.](f16|bf16|f32|fp16|q8_0)$", re.IGNORECASE)
_MAKING_S = 0.02  # many times the duration of creating a folder


def build_request(
    options: QuantizeOptions,
    source: Path,
    out: Path,
    paths: Paths,
    resources: Resources,
    gate: GateTask | None = None,
    *,
    plan_only: bool = False,
) -> QuantizeRequest:
    """The quantizer's request to make `out` from `source`; `gate` is the task of the options' gate.

    Raises: InputFault: not exactly one goal, or a path that is not absolute. All errors of reading the source.
    """
    options.check()
    plan = read_plan(whole_path(options.plan_file, "plan_file")) if options.plan_file else None
    fitted = machine_fit(source, options, resources) if options.fit else None
    request = QuantizeRequest(
        source=source,
        out=out,
        goal=plan.goal if plan else fitted.goal if fitted else options.goal(),
        calibration=whole_path(options.calibration, "calibration") if options.calibration else CALIBRATION,
        held_out=HELD_OUT,
        cache_dir=paths.cache / "quantize",
        tier=plan.tier if plan else options.tier or ("instant" if options.mix else "balanced"),
        rounding=plan.rounding if plan else options.rounding,
        imatrix=whole_path(options.imatrix, "imatrix") if options.imatrix else None,
        locks=options.type_locks(),
        kv=tuple(o for o in fitted.kv if options.kv_type in {None, o.type_k, o.type_v}) if fitted else (),
        doubled_head_types=fitted.doubled_head_types if fitted else (),
        device=options.device,
        speeds=measured_speeds(paths, resources.machine, options.device),
        threads=options.threads or psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        gpu_layers=gpu_layers_for(source, options, resources),
        verify=options.verify,
        time_s=options.time_s,
        own_text=whole_path(options.own_text, "own_text") if options.own_text else None,
        plan=plan,
        export_plan=whole_path(options.export_plan, "export_plan") if options.export_plan else None,
        gate=gate,
        plan_only=plan_only,
        overwrite=options.overwrite,
        force=options.force,
    )
    return request if plan is None else msgspec.structs.replace(request, max_tokens=plan.max_tokens)


def default_out(source: Path, options: QuantizeOptions, paths: Paths) -> Path:
    """Output path next to the source, or in the models folder if that place is not for the user's own files.

    Such places are the installation, folders that cannot be written, and the hub's cache.
    """
    source = source.absolute()
    name = _SOURCE_SUFFIX.sub("", folder_name(source) if source.is_dir() else source.stem)
    folder = source.parent
    in_hub_cache = any(each.name.startswith("models--") for each in folder.parents)
    if in_hub_cache or is_installed(folder) or not os.access(folder, os.W_OK):
        folder = paths.models
    return folder / f"{name}-{options.words()}.gguf"


def in_library(name: str, options: QuantizeOptions, paths: Paths) -> Path:
    """An unused, descriptive path in the library's own folder; creates nothing."""
    folder = paths.models / "local"
    stem = f"{name.replace('/', '-')}-{options.words()}"
    number = 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}.gguf").exists():
        number += 1
    return path


def make_room(out: Path, paths: Paths) -> None:
    """Create the folder for a file in the library. Raises: CannotWrite."""
    folder = out.parent
    if not folder.is_relative_to(paths.models):  # a folder named by the user must already exist
        return
    for again in (True, True, False):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            break
        except FileExistsError as error:  # another job created it at the same time, or it is a file
            if not again:
                raise CannotWrite(str(folder), error.strerror or str(error)) from error
            time.sleep(_MAKING_S)
        except OSError as error:
            raise CannotWrite(str(folder), error.strerror or str(error)) from error


def measured_speeds(paths: Paths, machine: MachineState, device: DeviceKind = "cpu") -> dict[str, float]:
    """Measured time per weight by type on this device; empty if not measured, then a table is used."""
    prices = PriceStore(paths.state / "type_prices.json").newest(
        machine_key(machine.settled()), gpu=device != "cpu"
    )
    return dict(planner_speeds(prices))


def gpu_layers_for(source: Path, options: QuantizeOptions, resources: Resources) -> int:
    """Number of layers that the GPU evaluates: as requested, else as placement chooses.

    It is 0 if sums must equal those of other machines (portable plans), or if nothing is evaluated. Raises: the
    errors of reading or converting the source.
    """
    travels = options.plan_file or options.export_plan
    idle = options.tier in {None, "instant"} and options.mix is not None and not options.verify
    if options.gpu_layers is not None or travels or idle:
        return 0 if travels else options.gpu_layers or 0
    if not has_gpu(resources.machine.settled()):
        return 0
    with _with_header(source) as path:
        return layers_on_gpu(str(path), model_shape(read_gguf_model(path)), resources)


@contextmanager
def _with_header(source: Path) -> Iterator[Path]:
    """A file with the header of the source, or of a folder's conversion."""
    if not source.is_dir():
        yield source
        return
    with TemporaryDirectory(prefix="header-") as scratch:
        path = Path(scratch) / "header.gguf"
        run_task(
            "prepare", ConvertRequest(folder=source, out=path, header_only=True), lambda _: None, lambda: False
        )
        yield path


def machine_fit(source: Path, options: QuantizeOptions, resources: Resources) -> FitGoal:
    """Memory for weights and KV cache on this machine; without `memory_bytes`, what is available.

    Raises: the errors of reading or converting the source.
    """
    machine = resources.machine.now()
    memory = options.memory_bytes or resources.ledger.available("cpu", machine)
    with _with_header(source) as path:
        shape = model_shape(read_gguf_model(path))
        # No load gives a model more than it was trained for.
        settings = promised(path, min(options.n_ctx, shape.context_train or options.n_ctx), options.n_seq)
        dry = source_dry_run(settings, resources.dry_runs)
        apart = options.kv_type is None and not has_gpu(machine)
        return fit_goal(shape, memory, settings, machine.isa, dry=dry, apart=apart)


# The part of a model that the GPU evaluates while measuring and comparing: the same as for a load.

GPUS: Final = frozenset({"dgpu", "igpu"})  # kinds of device as in `devices.types`
_OWNER: Final = "measuring a model"
_WINDOW: Final = 512  # tokens evaluated at a time. Source: quantize.native.calibration, WINDOW
# A comparison holds the source, Tessera's file and a preset's file at the same time: each of the latter two takes a
# third of 16 bits.
_AT_ONCE: Final = 1.7


def has_gpu(machine: Machine) -> bool:
    """Whether the machine has a GPU, working or not."""
    return any(d.kind in GPUS for d in machine.devices)


def layers_on_gpu(path: str, shape: ModelShape, resources: Resources) -> int:
    """The number of layers, counting the head as one; 0 if the CPU is faster or no GPU works."""
    machine = resources.machine.settled()
    if not has_gpu(machine):
        return 0
    settings = LoadSettings(
        path=path, n_ctx=_WINDOW, kv_cells=_WINDOW, n_parallel=1, n_batch=_WINDOW, n_ubatch=_WINDOW
    )
    placement = Placer(resources).judge_shape(_OWNER, shape, settings)
    device = machine.device(placement.device)
    if device is None or device.kind not in GPUS or placement.settings.remotes:
        return 0
    layers = max(0, placement.settings.n_gpu_layers)
    needed = _AT_ONCE * placement.need.device_bytes(placement.device)
    free = resources.ledger.available(placement.device, machine)
    return layers if needed <= free else int(layers * free / needed)
