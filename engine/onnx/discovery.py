"""Finds the usable execution providers: tries each in a child process with a timeout and describes the result."""

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from devices.child import run_child
from devices.child_command import child_command
from devices.types import Finding, Machine
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason
from engine.onnx.providers import ADAPTERS, UNTRIED, Adapter, installed_release

State = Literal["usable", "no device", "not here", "failed"]
# A vendor's driver stack responds within seconds; on Windows, antivirus software scans large libraries first.
TIMEOUT_S: Final = 30.0
_SYSTEMS: Final = {"win32": "windows", "darwin": "macos"}


class ProviderReport(msgspec.Struct, frozen=True):
    """One provider on this computer. `detail` says what was found or what is missing, and what to do."""

    provider: str
    title: str
    state: State
    detail: str
    vendors: tuple[str, ...] = ()
    tried: str = sentence(UNTRIED)
    devices: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return msgspec.structs.asdict(self)


def discover(environ: Mapping[str, str] | None = None, *, system: str | None = None) -> tuple[ProviderReport, ...]:
    """Reports for the CPU and every provider that exists for this system. Failures of a provider never raise."""
    environ = os.environ if environ is None else environ
    system = system or _SYSTEMS.get(sys.platform, "linux")
    adapters = [a for a in ADAPTERS.values() if system in a.systems]
    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="provider-probe") as pool:
        cpu = pool.submit(_cpu)
        reports = list(pool.map(lambda a: probe(a, environ), adapters))
    return (cpu.result(), *reports)


def probe(adapter: Adapter, environ: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> ProviderReport:
    """The report of one provider, loaded in a child process if its files exist."""
    problem = adapter.problem(None, environ)
    if problem:
        return _report(adapter, "not here", problem)
    library = adapter.library(environ)
    how = ([str(library), "register" if adapter.plugin else "load"] if library else []) or []
    outcome = run_child([*child_command("engine.runner.onnx.probe"), adapter.provider, *how], timeout_s, _quiet())
    if outcome.answer is None:
        return _report(
            adapter,
            "failed",
            f"{Path(library or adapter.title).name}: {outcome.reason}. {sentence(adapter.install)}",
        )
    devices = tuple(f"{d['vendor']} {d['kind']}" for d in outcome.answer.get("devices", ()))
    if not outcome.answer.get("available"):
        state: State = "no device" if library else "not here"
        return _report(adapter, state, adapter.no_device if library else adapter.install)
    release = installed_release(str(library), environ) if adapter.genai_name == "RyzenAI" else None
    what = f"release {release}" if release else ", ".join(devices) or "it loads"
    return _report(adapter, "usable", f"{what}; {sentence(adapter.tried)}", devices)


def _cpu() -> ProviderReport:
    outcome = run_child([*child_command("engine.runner.onnx.probe"), "CPUExecutionProvider"], TIMEOUT_S, _quiet())
    if outcome.answer is None:
        text = f"ONNX Runtime does not load: {outcome.reason}. pip install onnxruntime"
        return ProviderReport("CPUExecutionProvider", "CPU", "failed", text, tried="")
    text = f"ONNX Runtime {outcome.answer.get('version')}"
    return ProviderReport("CPUExecutionProvider", "CPU", "usable", text, tried="")


def _report(
    adapter: Adapter, state: State, detail: str | Reason | None, devices: tuple[str, ...] = ()
) -> ProviderReport:
    return ProviderReport(
        adapter.provider,
        adapter.title,
        state,
        sentence(detail).strip(),
        adapter.vendors,
        sentence(adapter.tried),
        devices,
    )


def _quiet() -> dict[str, str]:
    return {"ORT_DISABLE_TELEMETRY": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def findings(reports: tuple[ProviderReport, ...], machine: Machine) -> tuple[Finding, ...]:
    """Findings for `tessera doctor`: providers that fail, and missing providers of an NPU in this computer."""
    npus = {d.vendor: d for d in machine.devices if d.kind == "npu"}
    rows = []
    for report in reports:
        npu = next((npus[v] for v in report.vendors if v in npus), None)
        if report.state == "failed":
            title = f"{report.title} is installed but does not load"
            rows.append(Finding(f"onnx_{report.provider}", "warning", title, report.detail, ""))
        elif npu is not None and report.state == "usable" and sentence(UNTRIED) in report.tried:
            title = f"{report.title} could run models on {npu.name}: {report.tried}"
            rows.append(Finding("npu_untried", "advice", title, report.detail, "", npu.id))
        elif npu is not None and report.state != "usable" and report.provider in _FOR_NPUS:
            title = f"{report.title}, which could use {npu.name}, is not usable"
            rows.append(Finding("npu_provider", "advice", title, report.detail, "", npu.id))
    return tuple(rows)


_FOR_NPUS: Final = ("RyzenAIExecutionProvider", "OpenVINOExecutionProvider", "QNNExecutionProvider")
