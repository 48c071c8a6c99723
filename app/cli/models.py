"""`tessera models`: the library in the terminal."""

import json
from copy import copy
from typing import TYPE_CHECKING, Any

import click

from app.cli.converter import converter_command
from app.cli.echo import echo
from app.cli.models_engine_args import engine_args_command
from app.cli.models_files import (
    alias_command,
    convert_command,
    du_command,
    import_command,
    link_command,
    remove_command,
    rename_command,
    verify_command,
)
from app.cli.models_hub import pull_command, search_command, starters_command
from app.cli.models_loaded import load_command, loaded_command, unload_command
from app.cli.models_sampling import sampling_command

if TYPE_CHECKING:
    from engine.services import ModelEntry


@click.group("models")
def command() -> None:
    """Find, fetch and keep models."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_command(as_json: bool) -> None:
    """Show every model on this computer."""
    from contextlib import closing  # noqa: PLC0415 - keeps `tessera --help` fast

    from engine.services import Services  # noqa: PLC0415 - as above

    with closing(Services()) as services:
        entries = services.models()
        aliases: dict[str, list[str]] = {}
        for alias, model in sorted(services.model_settings.aliases().items()):
            aliases.setdefault(model, []).append(alias)
    if as_json:
        rows = [{**as_dict(entry), "aliases": aliases.get(entry.id, [])} for entry in entries]
        click.echo(json.dumps({"models": rows}, ensure_ascii=False))
        return
    _print_table(entries, aliases)


@command.command("show")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_command(model: str, as_json: bool) -> None:
    """Show what is known about MODEL."""
    from contextlib import closing  # noqa: PLC0415 - see list

    from engine.services import Services  # noqa: PLC0415 - see list

    with closing(Services()) as services:
        entry = services.model(model)
    if as_json:
        click.echo(json.dumps(as_dict(entry), ensure_ascii=False))
        return
    _print_details(entry)


for sub in (
    search_command,
    starters_command,
    pull_command,
    import_command,
    convert_command,
    converter_command,
    link_command,
    verify_command,
    sampling_command,
    engine_args_command,
    remove_command,
    rename_command,
    alias_command,
    du_command,
    load_command,
    loaded_command,
    unload_command,
):
    command.add_command(sub)
# As in a shell and in Ollama.
for _other, _sub in (("ls", list_command), ("ps", loaded_command), ("rm", remove_command)):
    _hidden = copy(_sub)
    _hidden.hidden = True
    command.add_command(_hidden, _other)


def as_dict(entry: "ModelEntry") -> dict[str, Any]:
    """An entry as JSON, with what is derived from it."""
    import msgspec  # noqa: PLC0415 - see list

    payload: dict[str, Any] = msgspec.to_builtins(entry)
    payload["size_bytes"] = entry.size_bytes
    payload["capabilities"] = list(entry.capabilities)
    payload["bits_per_weight"] = round(entry.bits_per_weight, 2)
    return payload


def _print_table(entries: tuple["ModelEntry", ...], aliases: dict[str, list[str]]) -> None:
    from app.cli.console import console, escape, table  # noqa: PLC0415 - see list
    from app.format import parameters, size  # noqa: PLC0415 - see list

    rows = []
    for entry in entries:
        can = ", ".join(c for c in entry.capabilities if c != "completion")
        bits = f"{entry.bits_per_weight:.2f}" if entry.bits_per_weight else ""
        amounts = (size(entry.size_bytes), parameters(entry.details.n_params), entry.details.quantization, bits)
        names = ", ".join([entry.name, *aliases.get(entry.id, [])])
        state = "" if entry.state == "online" else str(entry.state)
        rows.append([entry.id, *amounts, can, state, names, _source(entry)])
    out = console()
    heads = ["id", "size", "params", "type", "bits", "can", "state", "names", "from"]
    if not any(row[6] for row in rows):  # all of them can be used
        heads.remove("state")
        rows = [[*row[:6], *row[7:]] for row in rows]
    out.print(table(heads, rows, cut="names"))
    for entry in entries:
        if entry.state == "broken":
            out.print(f"\n{escape(entry.id)}: {escape(entry.problem or '')}", style="yellow")
        elif entry.state == "offline":
            out.print(f"\n{escape(entry.id)} is offline: the drive of {escape(str(entry.path))} is not mounted.")
        elif entry.state == "missing":
            out.print(
                f"\n{escape(entry.id)}: {escape(str(entry.path))} was moved or deleted. "
                "tessera models link ITS-NEW-PLACE, or tessera models remove it."
            )
    if all(e.origin.kind in {"bundled", "installed"} for e in entries):
        out.print("\nThese come with Tessera and are small. Find a larger one: tessera models search qwen3")


def _source(entry: "ModelEntry") -> str:
    origin = entry.origin
    return origin.repo or origin.app or origin.kind


def _print_details(entry: "ModelEntry") -> None:
    from app.format import parameters, size  # noqa: PLC0415 - see list

    details = entry.details
    mix = ", ".join(
        f"{name} {size(count)}" for name, count in sorted(details.type_bytes.items(), key=lambda i: -i[1])
    )
    rows = [
        ("id", entry.id),
        ("name", entry.name),
        ("state", entry.state + (f": {entry.problem}" if entry.problem else "")),
        ("architecture", details.architecture),
        ("parameters", parameters(details.n_params)),
        ("context", f"{details.context_train:,} tokens" if details.context_train else "not given"),
        ("size", size(entry.size_bytes)),
        ("quantization", f"{details.quantization}, {entry.bits_per_weight:.2f} bits per weight"),
        ("tensor types", mix),
        ("can", ", ".join(entry.capabilities)),
        ("license", details.license or "not given"),
        ("from", _source(entry) + (f" at {entry.origin.revision[:12]}" if entry.origin.revision else "")),
        ("chat template", "yes" if entry.chat_template else "no"),
        ("vision projector", entry.projector or ""),
        ("report", entry.report or ""),
        ("card", entry.card or ""),
    ]
    for label, value in rows:
        if value:
            echo(f"{label:<17}{value}")
    for file in entry.files:
        echo(f"{'file':<17}{file.path}")
        echo(f"{'':<17}sha256 {file.sha256 or 'not checked yet (tessera models verify)'}")
