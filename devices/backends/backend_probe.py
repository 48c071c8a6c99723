"""Tests all backend libraries concurrently, each in its own child, and caches the results."""

import hashlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from devices import install_hints, types
from devices.as_json import backend_reports, to_json
from devices.atomic_file import write_atomically
from devices.backends import cpu_kernels, libraries, openvino
from devices.backends.libraries import DRIVER_MARKS, file_facts
from devices.child import ProbeOutcome, run_child
from devices.child_command import child_command
from devices.msgspec_lock import learned
from devices.types import BackendDevice, BackendReport, Machine

# Source: Ollama gives a library 30 s, 90 s on Windows, where antivirus reads it first; drivers respond within 5.
TIMEOUT_S = 15.0
TIMEOUT_WINDOWS_S = 90.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Why a backend has no device, if there is one reason.
NO_DEVICE = {cpu_kernels.BACKEND: cpu_kernels.NO_INSTRUCTIONS}


class ProbeSpec(msgspec.Struct, frozen=True):
    """One library to test: the backend's name, the displayed library name, and the child's command."""

    backend: str
    library: str
    argv: tuple[str, ...]
    files: tuple[Path, ...] = ()


def trial_command(backend: str, folder: Path | None, paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Command of the child that loads a backend's libraries and lists usable devices; `folder` contains ggml."""
    if backend == openvino.BACKEND:
        return child_command("devices.backends.openvino_child", str(folder), *map(str, paths))
    return child_command("devices.backends.ggml_child", str(folder), *map(str, paths))


def try_backends(
    machine: Machine,
    cache: Path | None,
    *,
    fresh: bool = False,
    timeout_s: float | None = None,
    trials: tuple[ProbeSpec, ...],
) -> tuple[BackendReport, ...]:
    """A report for every backend: tested, or known to be missing. Never raises for what a backend does.

    `cache` is a file of earlier results, used while driver, kernel, libraries and boot are unchanged; failed
    backends are tested again every time.
    """
    limit = timeout_s or (TIMEOUT_WINDOWS_S if machine.system == "windows" else TIMEOUT_S)
    cached = {} if fresh or cache is None else _read_cache(cache)
    keys = {trial.backend: _cache_key(machine, trial) for trial in trials}
    reports = {t.backend: cached[keys[t.backend]] for t in trials if keys[t.backend] in cached}
    missing = [trial for trial in trials if trial.backend not in reports]
    if missing:
        with ThreadPoolExecutor(max_workers=len(missing), thread_name_prefix="backend-trial") as pool:
            for trial, outcome in zip(missing, pool.map(lambda t: run_child(t.argv, limit), missing), strict=True):
                reports[trial.backend] = _report(trial, outcome, machine)
        if cache is not None:
            _write_cache(cache, {keys[name]: report for name, report in reports.items()})
    tried = {trial.backend for trial in trials}
    return (*(reports[t.backend] for t in trials), *_not_built(machine, tried))


def _report(trial: ProbeSpec, outcome: ProbeOutcome, machine: Machine) -> BackendReport:
    if outcome.answer is None:
        fix = f"Run `{' '.join(trial.argv)}` by hand to see its messages; update the driver it needs."
        return BackendReport(trial.backend, trial.library, "failed", outcome.reason, fix, seconds=outcome.seconds)
    answer = outcome.answer
    try:
        devices = msgspec.convert(answer.get("devices", []), learned(tuple[BackendDevice, ...]))
        features = msgspec.convert(answer.get("features", []), tuple[str, ...])
        refused = msgspec.convert(answer.get("refused", []), tuple[str, ...])
    except msgspec.ValidationError as error:
        reason = f"its answer could not be read: {error}"
        return BackendReport(trial.backend, trial.library, "failed", reason, "Report this as a bug.")
    return BackendReport(
        backend=trial.backend,
        library=str(answer.get("library") or trial.library),
        state="usable" if devices else "no_device",
        reason="; ".join(refused) if devices else NO_DEVICE.get(trial.backend, "it loaded but found no device"),
        fix_hint=None if devices else install_hints.no_device(trial.backend, machine.system),
        version=str(answer.get("version") or ""),
        seconds=outcome.seconds,
        features=features,
        devices=devices,
    )


def _not_built(machine: Machine, tried: set[str]) -> list[BackendReport]:
    """Backends that a device of this machine could use, but whose library is not installed."""
    reports = []
    for backend in libraries.BACKENDS:
        if backend.name in tried or machine.system not in backend.systems:
            continue
        is_needed = any(
            d.kind in backend.kinds and (not backend.vendors or d.vendor in backend.vendors)
            for d in machine.devices
        )
        if is_needed:
            reason = types.NOT_INSTALLED
            hint = install_hints.missing_backend(backend.name, machine.system, machine.arch)
            reports.append(BackendReport(backend.name, "", "not_built", reason, hint))
    if "onnx" not in tried:
        fix = "Install it: `pip install onnxruntime`."
        reports.append(BackendReport("onnx", "", "not_built", "ONNX Runtime is not installed", fix))
    return reports


def _cache_key(machine: Machine, trial: ProbeSpec) -> str:
    """Key of all that the result depends on: libraries, drivers, kernel, boot, visibility settings."""
    facts: list[object] = [trial.backend, machine.kernel, machine.arch, sys.version]
    facts += [(d.id, d.driver, d.driver_version, d.state) for d in machine.devices]
    facts += file_facts((*trial.files, *DRIVER_MARKS))
    try:
        facts.append(Path(BOOT_ID).read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        facts.append("")
    prefixes = ("GGML_", "VK_", "HIP_", "ROCR_", "CUDA_", "HSA_", "ORT_", "LLAMA_CPP_", "ZE_", "ONEAPI_")
    facts += sorted((k, v) for k, v in os.environ.items() if k.startswith(prefixes))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _read_cache(cache: Path) -> dict[str, BackendReport]:
    try:
        stored: Any = json.loads(cache.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {key: report for key, value in stored.items() for report in backend_reports([value])}


def _write_cache(cache: Path, reports: dict[str, BackendReport]) -> None:
    reusable = {key: to_json(report) for key, report in reports.items() if report.state in {"usable", "no_device"}}
    try:
        write_atomically(cache, json.dumps(reusable).encode(), durable=False)
    except OSError:
        return  # the home is read-only: each start takes a second longer
