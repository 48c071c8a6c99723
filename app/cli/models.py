"""`tessera models`: the model library in the terminal."""

import json
import re
from contextlib import closing
from copy import copy
from typing import TYPE_CHECKING, Any

import click

from app.cli.converter import converter_command
from app.cli.echo import NotPossibleHere, echo, print_json
from app.cli.models_files import (
    alias_command,
    convert_command,
    du_command,
    import_command,
    link_command,
    move_folder_command,
    remove_command,
    rename_command,
    unlink_command,
    verify_command,
)
from app.cli.models_hub import compare_command, pull_command, search_command, starters_command
from app.cli.settings_defaults import Number, TokenCount
from quantize.kv_cache_types import CACHE_TYPES

if TYPE_CHECKING:
    from engine.api.models import EngineArgs
    from engine.services import Chosen, ModelEntry

_WORDS = {
    "user": "your setting for this model",
    "file": "the model's file",
    "generation_config": "the publisher's settings",
    "model_card": "the model card",
    "llama.cpp": "llama.cpp's default",
}


@click.command("sampling")
@click.argument("model")
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Save a default for MODEL (repeatable)."
)
@click.option("--reset", is_flag=True, help="Follow the model's recommendation again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sampling_command(model: str, changes: tuple[str, ...], reset: bool, as_json: bool) -> None:
    """Show or set MODEL's sampling defaults for requests that name none."""
    from engine.services import EngineFacade

    if reset and changes:
        raise click.UsageError("--set and --reset exclude each other.")
    with closing(EngineFacade()) as services:
        entry = services.model(model)
        settings = services.model_settings
        if reset:
            settings.set_sampling(entry.id, {})
        elif changes:
            settings.set_sampling(entry.id, {**settings.get(entry.id).sampling, **dict(map(_change, changes))})
        usual, plain = services.sampling(entry)
    if as_json:
        payload = {"id": entry.id, "sampling": usual.facts()}
        click.echo(json.dumps(payload if plain == usual else {**payload, "without_reasoning": plain.facts()}))
        return
    _print_sampling(usual)
    if plain != usual:
        echo("without reasoning:")
        _print_sampling(plain)


def _print_sampling(chosen: "Chosen") -> None:
    for name, fact in chosen.facts().items():
        link = f", {fact['link']}" if "link" in fact else ""
        echo(f"{name:<20}{fact['value']:<8g}{_WORDS[fact['source']]}{link}")


def _change(text: str) -> tuple[str, float | int]:
    """Parse one `--set` option."""
    name, _, value = text.partition("=")
    try:
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not NAME=NUMBER.", param_hint="--set") from None


@click.command("engine-args")
@click.argument("model")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--reset", is_flag=True, help="Remove all of them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def engine_args_command(model: str, changes: tuple[str, ...], reset: bool, as_json: bool) -> None:
    """Show or set MODEL's raw llama.cpp arguments, by the names of its flags.

    An empty value removes one. llama.cpp tries them before they are saved.
    """
    import msgspec

    from app.cli.connection import connected
    from app.format import size
    from engine.api.models import NO_ARGS, given

    if reset and changes:
        raise click.UsageError("NAME=VALUE and --reset exclude each other.")
    with connected() as client:
        stored = client.engine_args(model)
        if reset or changes:
            args = NO_ARGS if reset else _changed(stored.engine_args, changes)
            stored = client.set_engine_args(model, args)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(stored)))
        return
    for name, value in given(stored.engine_args).items():
        click.echo(f"{name:<20}{json.dumps(value)}")
    if not given(stored.engine_args):
        echo(f"{stored.id} has no engine arguments: Tessera and the file decide.")
    if stored.needed_bytes is not None:
        echo(f"Its next load needs {size(stored.needed_bytes)}.")


def _changed(before: "EngineArgs", changes: tuple[str, ...]) -> "EngineArgs":
    """Apply the changes of the command line to the engine arguments."""
    import msgspec

    from engine.api.models import BadEngineArg, EngineArgs, from_text, given

    pairs = dict(change.partition("=")[::2] for change in changes)
    missing = next((name for name, value in pairs.items() if not value and f"{name}=" not in changes), None)
    if missing is not None:
        raise click.BadParameter(f"{missing!r} is not NAME=VALUE.")
    try:
        values = {**given(before), **from_text(pairs)}
        return msgspec.convert({k: v for k, v in values.items() if v not in ("", [])}, EngineArgs, strict=False)
    except (BadEngineArg, msgspec.ValidationError) as error:
        raise click.BadParameter(_plain(str(error))) from error


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list"}


def _plain(error: str) -> str:
    """Msgspec's message in plain words, such as "ctx_size must be a whole number"."""
    wrong = re.fullmatch(r"Expected `(\w+)(?: \| null)?`, got `\w+` - at `\$\.(\w+)`", error)
    return f"{wrong[2]} must be {_KINDS.get(wrong[1], wrong[1])}" if wrong else error.replace("$.", "")


# `tessera models loaded` and `tessera models unload`: models that the running server holds in memory.


@click.command("loaded")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def loaded_command(as_json: bool) -> None:
    """Show the models the running server has loaded: memory in use, and memory reserved for a full context."""
    import msgspec

    from app.client import running_server
    from app.format import size

    client = running_server()
    if client is None:
        click.echo(json.dumps({"models": []}) if as_json else "No server runs, so no model is loaded.")
        return
    with client:
        models = client.loaded()
        reserved = {r.owner: r for r in client.ledger().reservations}
        resident = {model.id: model.rss_bytes for model in client.stats().models}
    if as_json:
        rows = []
        for model in models:
            reservation = reserved.get(model.id)
            numbers = {
                "memory_bytes": reservation.predicted_bytes if reservation is not None else None,
                "prefix_bytes": reservation.parts.get("prefixes", 0) if reservation is not None else None,
                "resident_bytes": resident.get(model.id) or None,
            }
            rows.append({**msgspec.to_builtins(model), **numbers})
        click.echo(json.dumps({"models": rows}))
        return
    for model in models:
        memory = f"{size(resident[model.id])} in use" if resident.get(model.id) else ""
        if model.id in reserved:
            reservation = reserved[model.id]
            prefixes = reservation.parts.get("prefixes", 0)
            memory += f", {size(reservation.predicted_bytes - prefixes)} reserved"
            memory += f" and {size(prefixes)} for prompts of earlier requests" if prefixes else ""
        echo(f"{model.id:<32}{model.state:<12}{memory.removeprefix(', ')}")
        for note in model.notes:
            echo(f"  {note}")
    if not models:
        echo("No model is loaded.")


@click.command("load")
@click.argument("model")
@click.option("--ctx", type=TokenCount(16, 1 << 24), help="Context in tokens.")
@click.option(
    "--kv",
    type=click.Choice(tuple(CACHE_TYPES), case_sensitive=False),
    help="Type of the KV cache. Applies to later loads too.",
)
@click.option("--ttl", "ttl_s", type=Number(0, 1e9), help="Seconds until it is unloaded when idle; 0: never.")
@click.option("--pin/--no-pin", "pinned", default=None, help="Never unload it automatically.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def load_command(
    model: str, ctx: int | None, kv: str | None, ttl_s: float | None, pinned: bool | None, as_json: bool
) -> None:
    """Load MODEL into the running server's memory."""
    from app.client import running_server
    from engine.api.models import LoadRequest

    client = running_server()
    if client is None:
        raise NotPossibleHere("No server is running. Start one: tessera serve, or tessera service install")
    with client:
        loaded = client.load(model, LoadRequest(n_ctx=ctx, kv_type=kv, ttl_s=ttl_s, pinned=pinned))
    if as_json:
        print_json(loaded)
        return
    echo(f"{loaded.id} is loaded with a context of {loaded.n_ctx} tokens on {loaded.backend}.")
    for note in loaded.notes:
        echo(f"  {note}")


@click.command("unload")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def unload_command(model: str, as_json: bool) -> None:
    """Take MODEL out of memory; its running answers end. The next request loads it again."""
    import msgspec

    from app.client import running_server

    client = running_server()
    if client is None:
        click.echo(
            json.dumps({"id": model, "unloaded": False}) if as_json else "No server runs: nothing is loaded."
        )
        return
    with client:
        answer = client.unload(model)
    words = f"{answer.id} is unloaded." if answer.unloaded else f"{answer.id} was not loaded."
    click.echo(json.dumps(msgspec.to_builtins(answer)) if as_json else words)


@click.group("models")
def command() -> None:
    """Find, download and manage models."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_command(as_json: bool) -> None:
    """Show every model on this computer."""
    from contextlib import closing

    from engine.services import EngineFacade

    with closing(EngineFacade()) as services:
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
    from contextlib import closing

    from engine.services import EngineFacade

    with closing(EngineFacade()) as services:
        entry = services.model(model)
    if as_json:
        click.echo(json.dumps(as_dict(entry), ensure_ascii=False))
        return
    _print_details(entry)


for sub in (
    search_command,
    starters_command,
    compare_command,
    pull_command,
    import_command,
    convert_command,
    converter_command,
    link_command,
    unlink_command,
    verify_command,
    sampling_command,
    engine_args_command,
    remove_command,
    rename_command,
    alias_command,
    du_command,
    move_folder_command,
    load_command,
    loaded_command,
    unload_command,
):
    command.add_command(sub)
# Aliases as in a shell and in Ollama.
for _other, _sub in (("ls", list_command), ("ps", loaded_command), ("rm", remove_command)):
    _hidden = copy(_sub)
    _hidden.hidden = True
    command.add_command(_hidden, _other)


def as_dict(entry: "ModelEntry") -> dict[str, Any]:
    """An entry as JSON, with derived values."""
    import msgspec

    payload: dict[str, Any] = msgspec.to_builtins(entry)
    payload["size_bytes"] = entry.size_bytes
    payload["capabilities"] = list(entry.capabilities)
    payload["bits_per_weight"] = round(entry.bits_per_weight, 2)
    return payload


def _print_table(entries: tuple["ModelEntry", ...], aliases: dict[str, list[str]]) -> None:
    from app.cli.console import console, escape, table
    from app.format import parameters, size

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
    from app.format import parameters, size

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
