"""`tessera devices`: this machine's devices and the backends that can use them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import InputRefused, NotPossibleHere, echo
from app.cli.settings_defaults import OutputFile

if TYPE_CHECKING:
    from devices.types import Device, Machine

STATES = {"driver_missing": "no driver", "no_permission": "no permission"}
KIND_NAMES = {"cpu": "CPU", "igpu": "integrated GPU", "dgpu": "GPU", "npu": "NPU"}


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--no-try", is_flag=True, help="Only read system files; load no backend library.")
@click.option("--fresh", is_flag=True, help="Try every backend again instead of using cached results.")
@click.option("--record", type=OutputFile(), help="Write a redacted recording.")
@click.option("--from", "replay", type=click.Path(path_type=Path, dir_okay=False), help="Replay a recording.")
def command(as_json: bool, no_try: bool, fresh: bool, record: Path | None, replay: Path | None) -> None:
    """Show CPUs, GPUs and NPUs, their memory, and the backends that can use them."""
    from devices.as_json import to_json
    from devices.errors import BadRecording

    try:
        machine = _machine(record, replay, no_try=no_try, fresh=fresh)
    except BadRecording as error:
        raise InputRefused(f"{error}. Make one with `tessera devices --record FILE`.") from error
    except OSError as error:
        raise NotPossibleHere(f"{record} could not be written: {error.strerror}.") from error
    if as_json:
        click.echo(json.dumps(to_json(machine), indent=2))
        return
    _print(machine)
    if record is not None:
        echo(f"\nRecorded in {record}, without serial numbers and names. Safe to attach to a report.")


def _machine(record: Path | None, replay: Path | None, *, no_try: bool, fresh: bool) -> "Machine":
    from devices.as_json import to_json
    from devices.host_real import RealHost
    from devices.recording import RecordingHost, load_recording, save_recording
    from devices.report import live_report, recorded_report
    from engine.core.paths import user_paths

    if replay is not None:
        return recorded_report(load_recording(replay))
    cache = user_paths().cache / "backends.json"
    if record is None:
        return live_report(RealHost(), cache, try_backends=not no_try, fresh=fresh)
    host = RecordingHost(RealHost())
    machine = live_report(host, cache, try_backends=not no_try, fresh=True)
    save_recording(record, host.recording(to_json(list(machine.backends))))
    return machine


def _print(machine: "Machine") -> None:
    from app.cli.console import console, escape, table
    from app.format import size

    out = console()
    location = ", ".join(
        part for part in (machine.product, machine.system, machine.kernel, machine.environment) if part
    )
    out.print(f"[bold]{escape(location)}[/bold]")
    ram = machine.memory
    speed = f", {ram.bandwidth_gbs:.0f} GB/s ({ram.bandwidth_source})" if ram.bandwidth_gbs else ""
    limit = f", limited to {size(ram.limit_bytes)} by {ram.limit_source}" if ram.limit_bytes else ""
    out.print(f"Memory {size(ram.installed_bytes)}, {size(ram.available_bytes)} available{escape(limit + speed)}\n")
    rows = []
    for device in machine.devices:
        usable = [r for r in device.runtimes if r.state == "usable"]
        names = (r.device_name if r.backend == "openvino" else r.backend for r in usable)  # as in pins
        backends = ", ".join(dict.fromkeys(names))
        cells = (device.id, KIND_NAMES[device.kind], _described(device), size(device.memory.budget_bytes))
        state = STATES.get(device.state, device.state)
        rows.append((*cells, size(device.memory.available_bytes), state, backends or "-"))
    out.print(table(("device", "kind", "name", "memory", "free", "state", "backends"), rows, cut="name"))
    for device in machine.devices:
        if device.state != "usable" and device.fix_hint:
            out.print(f"\n{escape(device.name)}: {escape(device.reason)}.\n  {escape(device.fix_hint)}")
    if machine.findings:
        out.print("\nRun `tessera doctor` for what to improve.")


def _described(device: "Device") -> str:
    if device.cores is None:
        return f"{device.name} ({device.arch})" if device.arch else device.name
    cores = device.cores
    classes = f", {cores.performance} fast" if cores.efficiency else ""
    return f"{device.name} ({cores.physical} cores{classes}, {cores.logical} threads)"
