"""Quantizing as it is asked for in the terminal: from what was typed to a request, and what fits this machine."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec
import psutil

from devices.detect import inventory
from devices.host_real import RealHost
from devices.memory import Ledger
from engine.bench.keys import machine_key
from engine.bench.type_prices import PriceStore, planner_speeds
from engine.dispatch.machine_state import MachineState
from engine.errors import InputFault
from engine.fit.report import machine_isa
from engine.fit.shape import model_shape
from engine.library.catalogue import Catalogue
from engine.library.lookup import require
from engine.paths import BUNDLED_MODELS, Paths
from engine.quantize_fit import FitGoal, fit_goal, promised, source_dry_run
from quantize.child import run_task
from quantize.convert.folder import ConvertRequest
from quantize.evidence import Rounding
from quantize.gguf_split import read_gguf_model
from quantize.job import QuantizeRequest
from quantize.texts import CALIBRATION, HELD_OUT
from quantize.types import Goal, Lock, Tier

_SOURCE_SUFFIX = re.compile(r"[-.](f16|bf16|f32|fp16|q8_0)$", re.IGNORECASE)


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks for; exactly one of `budget_bytes`, `fit`, `bpw` and `mix` is set.

    `source` is a path or a model of the library. `locks` are (pattern, type, whether it is a minimum).
    `tier` None: instant for a mix asked for by name, else balanced.
    `memory_bytes`, `n_ctx` and `n_seq` belong to `fit`; without `memory_bytes` what is free counts.
    """

    source: str
    out: str | None = None
    budget_bytes: int | None = None
    fit: bool = False
    memory_bytes: int | None = None
    n_ctx: int = 8192
    n_seq: int = 1
    bpw: float | None = None
    mix: str | None = None
    tier: Tier | None = None
    rounding: Rounding | None = None
    locks: tuple[tuple[str, str, bool], ...] = ()
    calibration: str | None = None
    imatrix: str | None = None
    device: Literal["cpu", "gpu"] = "cpu"
    threads: int | None = None
    verify: bool | None = None
    plan_only: bool = False
    overwrite: bool = False
    force: bool = False


def request_for(wish: Wish, paths: Paths, open_catalogue: Callable[[], Catalogue]) -> QuantizeRequest:
    """Everything the job needs to know.

    Raises: InputFault: not exactly one goal. ModelNotFound. Whatever reading the source for `fit` raises.
    """
    source = _source(wish.source, open_catalogue)
    goal, words, fitted = _goal(wish, source, paths)
    return QuantizeRequest(
        source=source,
        out=Path(wish.out).expanduser() if wish.out else default_out(source, words, paths),
        goal=goal,
        calibration=Path(wish.calibration).expanduser() if wish.calibration else CALIBRATION,
        held_out=HELD_OUT,
        cache_dir=paths.cache / "quantize",
        tier=wish.tier or ("instant" if wish.mix else "balanced"),
        rounding=wish.rounding,
        imatrix=Path(wish.imatrix).expanduser() if wish.imatrix else None,
        locks=tuple(Lock(pattern, qtype.upper(), least) for pattern, qtype, least in wish.locks),
        kv=fitted.kv if fitted else (),
        doubled_head_types=fitted.doubled_head_types if fitted else (),
        device=wish.device,
        speeds=measured_speeds(paths, wish.device),
        threads=wish.threads or psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        verify=wish.verify,
        plan_only=wish.plan_only,
        overwrite=wish.overwrite,
        force=wish.force,
    )


def default_out(source: Path, words: str, paths: Paths) -> Path:
    """Beside the source, or in the models folder where the source is part of the installation."""
    name = _SOURCE_SUFFIX.sub("", source.name if source.is_dir() else source.stem)
    folder = source.absolute().parent
    bundled = folder.is_relative_to(BUNDLED_MODELS)
    if bundled:
        paths.models.mkdir(parents=True, exist_ok=True)
    return (paths.models if bundled else folder) / f"{name}-{words}.gguf"


def measured_speeds(paths: Paths, device: Literal["cpu", "gpu"] = "cpu") -> dict[str, float]:
    """Time a weight by type as it was measured on this device; empty where it was not, then a table serves."""
    machine = MachineState(backend_cache=paths.cache / "backends.json").settled()
    found = PriceStore(paths.state / "type_prices.json").newest(machine_key(machine), gpu=device == "gpu")
    return dict(planner_speeds(found))


def _source(text: str, open_catalogue: Callable[[], Catalogue]) -> Path:
    path = Path(text).expanduser()
    if path.exists():
        return path
    catalogue = open_catalogue()
    try:
        return require(catalogue, text).path
    finally:
        catalogue.close()


def _goal(wish: Wish, source: Path, paths: Paths) -> tuple[Goal, str, FitGoal | None]:
    """The goal, a few words for the file's name, and what else `fit` found out."""
    given = [wish.budget_bytes is not None, wish.fit, wish.bpw is not None, wish.mix is not None]
    if sum(given) != 1:
        raise InputFault("say exactly one of budget_bytes, fit, bpw and mix", "budget_bytes")
    if wish.budget_bytes is not None:
        return Goal(kind="budget", limit_bytes=wish.budget_bytes), f"{wish.budget_bytes / 1e9:.3g}GB", None
    if wish.bpw is not None:
        return Goal(kind="bpw", bpw=wish.bpw), f"{wish.bpw:g}bpw", None
    if wish.mix is not None:
        return Goal(kind="mix", mix=wish.mix.upper()), wish.mix.upper(), None
    fitted = machine_fit(source, paths, wish.n_ctx, wish.n_seq, wish.memory_bytes)
    return fitted.goal, f"fit-{wish.n_ctx}", fitted


def machine_fit(source: Path, paths: Paths, n_ctx: int, n_seq: int = 1, memory_bytes: int | None = None) -> FitGoal:
    """What weights and cache may take on this machine, at that context for so many sequences.

    Without `memory_bytes` what is free now counts. Raises: the errors of reading or converting the source.
    """
    machine = inventory(RealHost())
    memory = memory_bytes or Ledger(lambda: machine).available("cpu", machine)
    with TemporaryDirectory(prefix="header-") as scratch:
        path = source
        if source.is_dir():
            path = Path(scratch) / "header.gguf"
            task = ConvertRequest(folder=source, out=path, header_only=True)
            run_task("prepare", task, lambda _progress: None, lambda: False)
        settings = promised(path, n_ctx, n_seq)
        dry = source_dry_run(settings, paths.cache / "dry_runs.json")
        return fit_goal(model_shape(read_gguf_model(path)), memory, settings, machine_isa(machine), dry=dry)
