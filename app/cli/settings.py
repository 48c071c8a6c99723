"""`tessera settings`: the same table as the window's page."""

import json

import click

from app.cli.echo import echo


@click.group("settings")
def command() -> None:
    """Show and change settings."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_command(as_json: bool) -> None:
    """Show every setting with its value."""
    from app.settings import SETTINGS, load  # noqa: PLC0415 - keeps `tessera --help` fast

    now = load()
    if as_json:
        click.echo(json.dumps({row.name: now[row.name] for row in SETTINGS}))
        return
    for row in SETTINGS:
        origin = f" (from {row.environment})" if row.name in now.fixed else ""
        click.echo(f"{row.name} = {json.dumps(now[row.name])}{origin}")
        echo(f"    {row.description}")
    for problem in now.problems:
        echo(f"not usable, default in force: {problem}", err=True)


@command.command("get")
@click.argument("name")
def get_command(name: str) -> None:
    """Print the value of NAME."""
    from app.settings import BY_NAME, load  # noqa: PLC0415 - see list

    if name not in BY_NAME:
        raise click.BadParameter(_unknown(name), param_hint="NAME")
    echo(load()[name])


@command.command("set")
@click.argument("name")
@click.argument("value")
def set_command(name: str, value: str) -> None:
    """Set NAME to VALUE. A window that is open takes it at its next start."""
    from app.settings import BY_NAME, SettingsError, load, save  # noqa: PLC0415 - see list

    if name not in BY_NAME:
        raise click.BadParameter(_unknown(name), param_hint="NAME")
    now = load()
    if name in now.fixed:
        raise click.UsageError(f"{name} is set by the environment variable {BY_NAME[name].environment}.")
    try:
        save(now.changed(name, value), names={name})
    except SettingsError as error:
        raise click.BadParameter(error.reason, param_hint=name) from error


@command.command("path")
def path_command() -> None:
    """Print where the settings are kept."""
    from app.settings import settings_file  # noqa: PLC0415 - see list

    echo(settings_file())


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - see list

    from app.settings import BY_NAME  # noqa: PLC0415 - see list

    near = get_close_matches(name, BY_NAME, 1, 0.4)
    return f"there is no setting {name!r}" + (f"; did you mean {near[0]}?" if near else "")
