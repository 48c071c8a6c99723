"""`tessera doctor`: problems of this machine for local AI, with the command that fixes each."""

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import InputRefused

if TYPE_CHECKING:
    from devices.distribution import Distribution
    from devices.types import Finding, Machine
    from engine.message_catalog.reasons import Reason

MARKS = {"error": "[red]error[/red]", "warning": "[yellow]warning[/yellow]", "advice": "[cyan]advice[/cyan]"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--from", "replay", type=click.Path(path_type=Path, dir_okay=False), help="Examine a recording.")
def command(as_json: bool, replay: Path | None) -> None:
    """Find problems that keep models from running well, worst first. Exits with 1 if something is broken."""
    from devices.as_json import to_json
    from devices.doctor import build_summary, diagnose, meter_summary
    from devices.errors import BadRecording
    from devices.first_look import gpu_lines
    from devices.host_real import RealHost
    from devices.recording import load_recording
    from devices.report import live_report, recorded_report
    from engine.core.paths import user_paths

    try:
        cache = user_paths().cache / "backends.json"
        machine = recorded_report(load_recording(replay)) if replay else live_report(RealHost(), cache, fresh=True)
    except BadRecording as error:
        raise InputRefused(f"{error}. Make one with `tessera devices --record FILE`.") from error
    findings = diagnose(machine) if replay else (*_folders(), *diagnose(machine), *_accelerators(machine))
    findings = tuple(sorted(findings, key=lambda finding: [*MARKS].index(finding.severity)))
    if as_json:
        build = {"build": build_summary(machine), "meters": to_json(list(machine.meters))}
        build["gpus"] = list(gpu_lines(machine))
        click.echo(json.dumps({"findings": to_json(list(findings)), **build}, indent=2))
    else:
        _print(findings, (build_summary(machine), *gpu_lines(machine), meter_summary(machine)))
    raise SystemExit(1 if any(finding.severity == "error" for finding in findings) else 0)


def _folders() -> "tuple[Finding, ...]":
    """Findings about Tessera's own folders, such as those that one start with sudo made."""
    from devices.types import Finding
    from engine.core.paths import user_paths

    paths = user_paths()
    folders = dict.fromkeys((paths.config, paths.models, paths.state, paths.cache, paths.logs))
    # A folder that is missing is made at the first write to it.
    places = dict.fromkeys(next(f for f in (folder, *folder.parents) if _is_there(f)) for folder in folders)
    own = {place for place in places if place in folders or Path.home() in place.parents}
    return tuple(
        Finding(
            "folder_not_writable",
            "warning",
            f"{place} cannot be written",
            "Settings, chats, models or logs are not stored there.",
            # Never of a folder outside the home folder that is not Tessera's: it may be a part of the system.
            f"sudo chown -R $USER {shlex.quote(str(place))}" if place in own and not _owns(place) else "",
        )
        for place in places
        if not os.access(place, os.W_OK | os.X_OK)
    )


def _is_there(folder: Path) -> bool:
    """Whether a folder exists and those above it may be read; one start with sudo is enough to close them."""
    try:
        return folder.exists()
    except OSError:
        return False


def _owns(folder: Path) -> bool:
    return os.name == "nt" or folder.stat().st_uid == os.getuid()


def _accelerators(machine: "Machine") -> "tuple[Finding, ...]":
    """Findings about ONNX Runtime's providers, FastFlowLM, the agent's sandbox and workers."""
    from msgspec.structs import replace

    from app.code.agent import sandbox
    from devices.distribution import distribution
    from devices.host_real import RealHost
    from engine.core.paths import user_paths
    from engine.onnx import discovery
    from engine.placement import fastflowlm
    from engine.placement.model_settings import open_model_settings
    from engine.placement.pins import missing_pins
    from engine.remotes import findings as remotes
    from engine.remotes.registry import RemoteRegistry

    unboxed = _unboxed(sandbox.missing(), distribution(RealHost()))
    registry = RemoteRegistry(user_paths().config / "remotes.json")
    workers = remotes.findings(registry)
    with_workers = replace(machine, devices=(*machine.devices, *registry.devices()))
    return (
        *missing_pins(with_workers, open_model_settings(user_paths()).pins()),
        *unboxed,
        *discovery.findings(discovery.discover(), machine),
        *fastflowlm.findings(machine),
        *workers,
    )


def _unboxed(reason: "Reason | None", system: "Distribution") -> "tuple[Finding, ...]":
    """A finding if the commands of the coding agent run without a sandbox."""
    from devices.types import Finding

    if reason is None:
        return ()
    title, lacking = "Commands of the coding agent run without a sandbox", str(reason)
    command, fix = system.install("bubblewrap"), ""
    if reason.kind == "no_bubblewrap":
        fix = f"Install it with: {command}" if " " in command else f"Install the package {command}."
    return (Finding("no_sandbox", "advice", title, f"{lacking[:1].upper()}{lacking[1:]}.", fix),)


def _print(findings: tuple[object, ...], summary: tuple[str, ...]) -> None:
    from app.cli.console import console, escape
    from devices.types import Finding

    out = console()
    for line in summary:
        out.print(escape(line))
    for finding in findings:
        assert isinstance(finding, Finding)
        out.print(f"\n{MARKS[finding.severity]}: {escape(finding.title)}")
        for line in (finding.detail, finding.fix):
            if line:
                out.print(f"  {escape(line)}")
    if not findings:
        out.print("\nNo problems found.")
