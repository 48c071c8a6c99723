"""From options to the quantizer's request: the only place that builds one."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psutil

from engine.core.paths import Paths, is_installed, whole_path
from engine.job_kinds.bench.qtype_speed import PriceStore, planner_speeds
from engine.job_kinds.quantize.fit import FitGoal, fit_goal, promised, source_dry_run
from engine.job_kinds.quantize.offload import has_gpu, layers_on_gpu
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.library.errors import CannotWrite
from engine.placement.fit_report import machine_isa
from engine.placement.machine_state import MachineState
from engine.placement.measurements.keys import machine_key
from engine.placement.resources import Resources
from engine.placement.shape import model_shape
from quantize.calibration_texts import CALIBRATION, HELD_OUT
from quantize.child import run_task
from quantize.convert.folder import ConvertRequest
from quantize.files.gguf_split import read_gguf_model
from quantize.job.gate import GateTask
from quantize.job.plan_file import read_plan
from quantize.job.request import QuantizeRequest
from quantize.types import DeviceKind

_SOURCE_SUFFIX = re.compile(r"[-.](f16|bf16|f32|fp16|q8_0)$", re.IGNORECASE)
_MAKING_S = 0.02  # many times what making a folder takes


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
    """Everything the job needs to know to make `out` of `source`; `gate` is what the gate of the options asks.

    Raises: InputFault: not exactly one goal, or a file that is no whole path. Whatever reading the source raises.
    """
    options.check()
    given = read_plan(whole_path(options.plan_file, "plan_file")) if options.plan_file else None
    fitted = machine_fit(source, options, resources) if options.fit else None
    request = QuantizeRequest(
        source=source,
        out=out,
        goal=given.goal if given else fitted.goal if fitted else options.goal(),
        calibration=whole_path(options.calibration, "calibration") if options.calibration else CALIBRATION,
        held_out=HELD_OUT,
        cache_dir=paths.cache / "quantize",
        tier=given.tier if given else options.tier or ("instant" if options.mix else "balanced"),
        rounding=given.rounding if given else options.rounding,
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
        plan=given,
        export_plan=whole_path(options.export_plan, "export_plan") if options.export_plan else None,
        gate=gate,
        plan_only=plan_only,
        overwrite=options.overwrite,
        force=options.force,
    )
    return request if given is None else msgspec.structs.replace(request, max_tokens=given.max_tokens)


def beside_source(source: Path, options: QuantizeOptions, paths: Paths) -> Path:
    """Beside the source, or in the models folder where the source is part of the installation."""
    name = _SOURCE_SUFFIX.sub("", source.name if source.is_dir() else source.stem)
    folder = source.absolute().parent
    if is_installed(folder):
        folder = paths.models
    return folder / f"{name}-{options.words()}.gguf"


def in_library(name: str, options: QuantizeOptions, paths: Paths) -> Path:
    """A file in the library's own folder that says what it is and is not in use; nothing is made for it."""
    folder = paths.models / "local"
    stem = f"{name.replace('/', '-')}-{options.words()}"
    number = 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}.gguf").exists():
        number += 1
    return path


def make_room(out: Path, paths: Paths) -> None:
    """Make the folder of a file that is to be written into the library. Raises: CannotWrite."""
    folder = out.parent
    if not folder.is_relative_to(paths.models):  # a folder that somebody named is there, or its name is wrong
        return
    for again in (True, True, False):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            break
        except FileExistsError as error:  # another job was making it at this very moment, or it is a file
            if not again:
                raise CannotWrite(str(folder), error.strerror or str(error)) from error
            time.sleep(_MAKING_S)
        except OSError as error:
            raise CannotWrite(str(folder), error.strerror or str(error)) from error


def measured_speeds(paths: Paths, machine: MachineState, device: DeviceKind = "cpu") -> dict[str, float]:
    """Time a weight by type as it was measured on this device; empty where it was not, then a table serves."""
    found = PriceStore(paths.state / "type_prices.json").newest(machine_key(machine.settled()), gpu=device != "cpu")
    return dict(planner_speeds(found))


def gpu_layers_for(source: Path, options: QuantizeOptions, resources: Resources) -> int:
    """The layers that the GPU evaluates: as asked for, else as dispatch gives them.

    None where sums must be those of every other machine (plans that travel), or where nothing is evaluated.
    Raises: the errors of reading or converting the source.
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
    """A file with the header of the source: itself, or of what a folder is converted to."""
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
    """What weights and cache may take on this machine; without `memory_bytes` what the ledger can give now counts.

    Raises: the errors of reading or converting the source.
    """
    machine = resources.machine.now()
    memory = options.memory_bytes or resources.ledger.available("cpu", machine)
    with _with_header(source) as path:
        settings = promised(path, options.n_ctx, options.n_seq)
        dry = source_dry_run(settings, resources.dry_runs)
        shape = model_shape(read_gguf_model(path))
        apart = options.kv_type is None and not has_gpu(machine)
        return fit_goal(shape, memory, settings, machine_isa(machine), dry=dry, apart=apart)
