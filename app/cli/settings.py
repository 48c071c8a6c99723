"""`tessera settings`: the same settings as on the window's page."""

import json
import sys
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo

if TYPE_CHECKING:
    from app.setting import Setting


@click.group("settings")
def command() -> None:
    """Show and change settings."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_command(as_json: bool) -> None:
    """Show every setting with its value."""
    from app.settings import SETTINGS, load

    now = load()
    if as_json:
        click.echo(json.dumps({row.name: now[row.name] for row in SETTINGS}))
        return
    for row in SETTINGS:
        origin = f" (from {row.environment})" if row.name in now.fixed else ""
        click.echo(f"{row.name} = {json.dumps(now[row.name])}{origin}")
        echo(f"    {row.description} {_values(row)}")
    for problem in now.problems:
        echo(f"not usable, default in force: {problem}", err=True)
    if now.problems:
        sys.exit(2)


def _values(row: "Setting") -> str:
    """Allowed values, default, and the environment variable that overrides the setting."""
    from app.setting import plain_number

    if row.choices:
        values = ", ".join(row.choices)
    elif row.minimum is not None and row.maximum is not None:
        values = f"{plain_number(row.minimum)} to {plain_number(row.maximum)}"
    else:
        values = "true, false" if row.kind is bool else "a whole path" if row.folder else "text"
    return f"[{values}; default {json.dumps(row.default)}; {row.environment}]"


@command.command("get")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the value as JSON.")
def get_command(name: str, as_json: bool) -> None:
    """Print the value of NAME."""
    from app.cli.settings_defaults import checked_settings
    from app.settings import BY_NAME, unknown

    if name not in BY_NAME:
        raise click.BadParameter(f"{name}: {unknown(name)}", param_hint="NAME")
    value = checked_settings()[name]
    click.echo(json.dumps(value)) if as_json else echo(value)


@command.command("set", context_settings={"ignore_unknown_options": True})  # a value may begin with a hyphen
@click.argument("name")
@click.argument("value")
def set_command(name: str, value: str) -> None:
    """Set NAME to VALUE. An open window uses it after its next start."""
    _store(name, value)


def _store(name: str, value: str | None) -> None:
    """Write a setting; None stands for its default."""
    from app.setting import SettingsError
    from app.settings import BY_NAME, load, save, unknown

    if name not in BY_NAME:
        raise click.BadParameter(f"{name}: {unknown(name)}", param_hint="NAME")
    now = load()
    if name in now.fixed:
        raise click.UsageError(f"{name} is set by the environment variable {BY_NAME[name].environment}.")
    try:
        save(now.changed(name, BY_NAME[name].default if value is None else value), names={name})
    except SettingsError as error:
        if error.where:  # the file itself is invalid
            raise click.UsageError(str(error)) from error
        raise click.BadParameter(error.reason, param_hint=name) from error


@command.command("reset")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def reset_command(names: tuple[str, ...]) -> None:
    """Set each NAME to its default."""
    for name in names:
        _store(name, None)


@command.command("path")
@click.option("--all", "with_folders", is_flag=True, help="Also the folders of models, chats, caches and logs.")
def path_command(with_folders: bool) -> None:
    """Print where the settings are stored."""
    from app.settings import settings_file
    from engine.services import user_paths

    if not with_folders:
        echo(settings_file())
        return
    paths = user_paths()
    for name in ("config", "models", "state", "cache", "logs"):
        echo(f"{name:<8}{getattr(paths, name)}")
