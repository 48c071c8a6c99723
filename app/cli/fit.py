"""`tessera fit`: estimates a model's memory on this machine, before it is loaded or downloaded."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import InputRefused, echo, print_json
from app.cli.settings_defaults import TokenCount, obey_offline
from quantize.kv_cache_types import CACHE_TYPES

if TYPE_CHECKING:
    from engine.services import FitReport, Placement


_PARTS = {"prefixes": "cached prompts", "kv": "context (kv)"}
_BASES = {"formula": "the file", "probe": "a trial on this machine", "prior": "an estimate"}


@click.command("fit")
@click.argument("model", required=False)
@click.option("--shape", help="A well-known model without its file, such as qwen3-8b; 'list' shows all.")
@click.option("--type", "mix", default="Q4_K_M", show_default=True, help="Preset or type of --shape.")
@click.option("--ctx", type=TokenCount(1, 1 << 24), help="Context in tokens.")
@click.option("--parallel", type=click.IntRange(1, 128), help="Requests answered at the same time.")
@click.option("--kv", type=click.Choice(tuple(CACHE_TYPES), case_sensitive=False), help="KV cache type.")
@click.option("--device", help="Pin a device id, a kind (cpu, igpu, dgpu) or a backend.")
@click.option("--layers", type=click.IntRange(0, 10000), help="Layers on the GPU.")
@click.option("--projector", type=click.Path(exists=True, dir_okay=False), help="Vision projector to load with it.")
@click.option(
    "--from",
    "replay",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use a recorded machine instead of this one.",
)
@click.option("--explain", is_flag=True, help="Show which step set which setting, and why.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def command(
    model: str | None,
    shape: str | None,
    mix: str,
    ctx: int | None,
    parallel: int | None,
    kv: str | None,
    device: str | None,
    layers: int | None,
    projector: str | None,
    replay: Path | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Show the memory MODEL needs and where it would run.

    MODEL is a name, a file of which at least the header is here, or owner/name[:quant] on the hub.
    """
    from devices.errors import BadRecording
    from devices.recording import load_recording
    from engine.services import EngineFacade

    if shape == "list":
        shapes = EngineFacade().shapes()
        print_json({"shapes": shapes}) if as_json else echo("\n".join(shapes))
        return
    if (model is None) == (shape is None):
        raise click.UsageError("Name a MODEL, or use --shape.")
    if model is not None and "/" in model and not Path(model).is_file():
        obey_offline()
    try:
        machine = load_recording(replay) if replay else None
    except BadRecording as error:
        raise InputRefused(f"{error}. Make one with `tessera devices --record FILE`.") from error
    with closing(EngineFacade()) as services:
        report, placement = services.fit(
            model or shape or "",
            machine,
            projector,
            mix if shape else None,
            n_ctx=ctx,
            n_parallel=parallel,
            type_k=kv,
            device=device,
            n_gpu_layers=layers,
        )
    if as_json:
        click.echo(json.dumps(_as_json(report, placement, explain=explain), indent=2))
    else:
        _print(report, placement)
        if explain:
            _explain(placement)
    raise SystemExit(0 if report.fits else 1)


def _as_json(report: "FitReport", placement: "Placement", *, explain: bool) -> dict[str, object]:
    from engine.api.sentences import with_sentences

    built: dict[str, object] = with_sentences(report)
    built["needed_bytes"] = {d: report.need.device_bytes(d) for d in report.need.devices}
    built["placement"] = placed = with_sentences(placement)
    if not explain:
        del placed["changes"]
    return built


def _explain(placement: "Placement") -> None:
    from app.cli.console import console, table
    from app.format import setting

    rows = [
        (change.step, change.field, setting(change.old), setting(change.new), str(change.reason or ""))
        for change in placement.changes
    ]
    out = console()
    out.print("\nSource of each setting, in the order of the steps:")
    out.print(table(("step", "setting", "before", "after", "because"), rows, cut="because"))


def _print(report: "FitReport", placement: "Placement") -> None:
    from app.cli.console import console, escape, table
    from app.format import size
    from engine.api.sentences import command

    out = console()
    need = report.need
    verdict = "fits" if report.fits else "does not fit"
    basis = {"measured": "measured here", "prior": "estimated"}.get(placement.basis, placement.basis)
    tok_s = placement.decode_tok_s if report.fits else None
    speed = f", about {tok_s:.0f} tok/s ({escape(basis)})" if tok_s else ""
    out.print(f"[bold]{escape(report.model)}[/bold] {verdict} on {escape(placement.device_name)}{speed}")
    parallel = placement.settings.n_parallel
    requests = f"{parallel} request{'' if parallel == 1 else 's'} at once"
    out.print(f"context {need.n_ctx} tokens, {requests}, cache {need.type_k}/{need.type_v}\n")
    rows = []
    for part in need.parts:
        mapped = f" ({size(part.mapped_bytes)} mapped)" if part.mapped_bytes else ""
        rows.append(
            (_PARTS.get(part.name, part.name), part.device, size(part.num_bytes) + mapped, _BASES[part.basis])
        )
    out.print(table(("part", "device", "bytes", "based on"), rows, cut="device", right="bytes"))
    for device in need.devices:
        free = size(report.available_bytes.get(device))
        cached = sum(p.num_bytes for p in need.parts if p.name == "prefixes" and p.device == device)
        more = f", and up to {size(cached)} for cached prompts" if cached else ""
        out.print(f"\n{device}: {size(need.device_bytes(device) - cached)} needed{more}; {free} available")
    if report.largest_context and report.fits and need.n_ctx > report.largest_context:
        out.print(f"It was trained for a context of {report.largest_context} tokens.")
    elif report.largest_context:
        out.print(f"Largest context that fits: {report.largest_context} tokens")
    for reason in (*placement.reasons, *([placement.energy] if placement.energy else [])):
        out.print(f"- {escape(str(reason))}")
    for way in report.fit_options[:3]:
        change, flags = escape(str(way.change)), escape(command(way.change))
        out.print(f"To make it fit: {change}: {size(way.needed_bytes)} ({flags})")
    if not report.fits and not report.fit_options:
        out.print("No option makes it fit here: it needs a computer with more memory.")
    for note in report.notes:
        out.print(f"Note: {escape(str(note))}")
