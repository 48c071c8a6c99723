"""`tessera launch`: start an editor or coding agent on a local model, or write its configuration."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.echo import NotPossibleHere, echo, failed
from devices.programs import installed_program

if TYPE_CHECKING:
    from app.code.integrations.store import ConnectStore
    from app.code.integrations.types import Endpoint, FileEdit, Integration, Launch


@click.command(
    context_settings={"ignore_unknown_options": True},
    help="Start the coding agent NAME on a local model and pass it the ARGUMENTS, or --connect an editor to it. "
    "Without NAME: list them.",
)
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", "-m", help="Model to use (default: a loaded one, else the best for tools).")
@click.option("--connect", "do", flag_value="connect", help="Write its configuration, with a backup.")
@click.option("--remove", "do", flag_value="remove", help="Undo its configuration.")
@click.option("--dry-run", is_flag=True, help="Show what would be written or started, and stop.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before writing.")
def command(
    name: str | None, arguments: tuple[str, ...], model: str | None, do: str | None, dry_run: bool, yes: bool
) -> None:
    """Connect, remove, or start."""
    from app.cli.connection import connected
    from app.client import ApiError, ServerUnreachable
    from app.client.remote_server import RemoteServer
    from app.code.integrations.context_needs import load_for, need_of
    from app.code.integrations.endpoint import endpoint_of
    from app.code.integrations.registry import INTEGRATIONS
    from app.code.integrations.store import ConnectStore
    from app.code.integrations.types import PLACEHOLDER_KEY
    from devices.errors import TesseraError
    from engine.services import EngineFacade, user_paths

    store = ConnectStore(user_paths().state)
    if name is None:
        _list(store)
        return
    if name not in INTEGRATIONS:
        raise click.UsageError(f"{name!r} is not known. Known: {', '.join(INTEGRATIONS)}.")
    integration = INTEGRATIONS[name]
    try:
        if do == "remove":
            _write(store, integration, store.planned_removal(integration), dry_run, yes, removing=True)
            if not dry_run:
                EngineFacade().program_keys.remove(name)
            return
        with connected() as client:
            is_remote = bool(RemoteServer().url)
            start = None if do == "connect" else integration.launch
            folder = user_paths().state / "launch" / integration.name
            endpoint = endpoint_of(client, model)
            if start is not None and not dry_run:
                _installed(start(endpoint, folder), integration)  # before a key is made and a model loaded for it
            key = client.token if is_remote else _key(name, dry_run=dry_run)
            endpoint = replace(endpoint, key=key or PLACEHOLDER_KEY)
            if start is None:
                if not client.pid and not is_remote:
                    endpoint = _later(endpoint)
                _print_limits(endpoint, integration)
                _connect(store, integration, endpoint, dry_run, yes)
                return
            if not dry_run and (need := need_of(name, integration.kind)) is not None:
                load_for(client, endpoint.model, integration.title, need)
                endpoint = endpoint_of(client, endpoint.model, endpoint.key)  # with the new context length
            _print_limits(endpoint, integration)
            sys.exit(_start(start(endpoint, folder), folder, arguments, integration, dry_run))
    except (TesseraError, ApiError, ServerUnreachable) as error:
        raise failed(error) from error


def _list(store: "ConnectStore") -> None:
    from app.code.integrations.registry import INTEGRATIONS

    for integration in INTEGRATIONS.values():
        mark = "connected" if store.connected(integration.name) else ""
        echo(f"{integration.name:14} {integration.title:30} {integration.kind:7} {mark}".rstrip())


def _key(name: str, *, dry_run: bool) -> str:
    """The program's API key; a dry run creates none."""
    from engine.services import EngineFacade

    keys = EngineFacade().program_keys
    return keys.key(name) or "(created when it is connected)" if dry_run else keys.make(name)


def _later(endpoint: "Endpoint") -> "Endpoint":
    """The endpoint with the future server's URL, because the current private server ends with this command."""
    from app.cli.settings_defaults import checked_settings

    now = checked_settings()
    host = now.text("server.host")
    host = "127.0.0.1" if host in {"0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104 - not a binding
    url = f"http://{host}:{now.integer('server.port')}"
    echo(f"No server is running. Start one for {url}: tessera serve, or tessera service install", err=True)
    return replace(endpoint, url=url)


def _print_limits(endpoint: "Endpoint", integration: "Integration") -> None:
    from app.code.integrations.context_needs import need_of

    echo(f"{integration.title} on {endpoint.model}, context {endpoint.context} tokens, {endpoint.url}", err=True)
    need = need_of(integration.name, integration.kind)
    if need is not None and endpoint.context < need.least:
        shown = f"tessera fit {shlex.quote(endpoint.model)} --ctx {need.least}"
        echo(
            f"Warning: {integration.title} needs {need.least:,} tokens of context ({need.source}); this model can "
            f"have {endpoint.context:,} here. Choose another with --model; `{shown}` shows what this one lacks.",
            err=True,
        )


def _connect(
    store: "ConnectStore", integration: "Integration", endpoint: "Endpoint", dry_run: bool, yes: bool
) -> None:
    _write(store, integration, store.planned(integration, Path.home(), endpoint), dry_run, yes, removing=False)
    if integration.steps is not None:
        echo(integration.steps(endpoint))


def _write(
    store: "ConnectStore",
    integration: "Integration",
    edits: "list[FileEdit]",
    dry_run: bool,
    yes: bool,
    *,
    removing: bool,
) -> None:
    for edit in edits:
        echo(edit.diff(), nl=False)
    if dry_run or (not edits and not removing):
        return
    if edits and not yes and not click.confirm("Apply this?"):
        raise click.Abort
    backups = store.remove(integration, edits) if removing else store.connect(integration, edits)
    for backup in backups:
        echo(f"Backup: {backup}")
    echo(f"{integration.title}: {'removed' if removing else 'connected'}.")


def _installed(launch: "Launch", integration: "Integration") -> str:
    """Path of the program. Raises: NotPossibleHere: it is not installed."""
    program = installed_program(launch.argv[0])
    if program is None:
        raise NotPossibleHere(f"{launch.argv[0]} is not installed. Install it with: {integration.install}")
    return program


def _start(
    launch: "Launch", folder: Path, arguments: tuple[str, ...], integration: "Integration", dry_run: bool
) -> int:
    from app.code.integrations.store import write_private
    from app.tools.types import shown_argv

    argv = [*launch.argv, *arguments]
    if dry_run:
        for key, value in launch.env.items():
            echo(f"{key}={value}")
        echo(shown_argv(argv))
        return 0
    program = _installed(launch, integration)
    for file_name, text in launch.files.items():
        write_private(folder / file_name, text)
    return subprocess.run([program, *argv[1:]], env={**os.environ, **launch.env}, check=False).returncode
