"""`tessera models engine-args`: what llama.cpp is told about a model beside Tessera's own settings."""

import json
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo

if TYPE_CHECKING:
    from engine.api.engine_args import EngineArgs


@click.command("engine-args")
@click.argument("model")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--reset", is_flag=True, help="Leave everything to Tessera again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def engine_args_command(model: str, changes: tuple[str, ...], reset: bool, as_json: bool) -> None:
    """Show or set MODEL's raw arguments of llama.cpp, by the names of its flags.

    An empty value takes one back. llama.cpp tries them before they are kept.
    """
    import msgspec  # noqa: PLC0415 - keeps `tessera --help` fast

    from app.cli.connection import connected  # noqa: PLC0415 - see above
    from app.format import size  # noqa: PLC0415 - see above
    from engine.api.engine_args import NO_ARGS, given  # noqa: PLC0415 - see above

    if reset and changes:
        raise click.UsageError("NAME=VALUE and --reset exclude each other.")
    with connected() as client:
        found = client.engine_args(model)
        if reset or changes:
            wanted = NO_ARGS if reset else _changed(found.engine_args, changes)
            found = client.set_engine_args(model, wanted)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    for name, value in given(found.engine_args).items():
        click.echo(f"{name:<20}{json.dumps(value)}")
    if not given(found.engine_args):
        echo(f"{found.id} has no engine arguments: Tessera and the file decide.")
    if found.needed_bytes is not None:
        echo(f"Its next load needs {size(found.needed_bytes)}.")


def _changed(before: "EngineArgs", changes: tuple[str, ...]) -> "EngineArgs":
    """The arguments with those of the command line."""
    import msgspec  # noqa: PLC0415 - see engine_args_command

    from engine.api.engine_args import BadEngineArg, EngineArgs, from_text, given  # noqa: PLC0415 - as above

    pairs = dict(change.partition("=")[::2] for change in changes)
    missing = next((name for name, value in pairs.items() if not value and f"{name}=" not in changes), None)
    if missing is not None:
        raise click.BadParameter(f"{missing!r} is not NAME=VALUE.")
    try:
        values = {**given(before), **from_text(pairs)}
        return msgspec.convert({k: v for k, v in values.items() if v not in ("", [])}, EngineArgs, strict=False)
    except (BadEngineArg, msgspec.ValidationError) as error:
        raise click.BadParameter(str(error).replace(" - at `$.", " - `").strip()) from error
