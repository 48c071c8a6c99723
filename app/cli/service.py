"""`tessera service`: runs the server as a user service."""

import json
import os

import click

from app import os_service
from app.cli.echo import NotPossibleHere, echo
from app.cli.logs import command as logs
from app.settings import given_environment
from app.tools.types import shown_text
from devices.child_command import own_command


@click.group(help="Run the server as a service: started at login, restarted if it ends.")
def command() -> None:
    """Uses the system's service manager, as this user."""


@command.command("install")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def install(options: tuple[str, ...]) -> None:
    """Install and start the service. OPTIONS after `--` are those of `tessera serve`, such as `-- --port 8000`."""
    from app.cli.serve import command as serve

    serve.make_context("tessera serve", list(options))  # a mistake is reported now, not at the next login
    try:
        manager = os_service.manager(own_command("serve", *options), env=given_environment())
        os_service.install(manager)
    except (os_service.ServiceFailed, OSError) as error:
        raise NotPossibleHere(shown_text(str(error))) from error
    echo(f"Installed with {manager.name}: {manager.path}")
    _, left_out = os_service.passed_variables(os.environ)
    if manager.variables:
        echo(f"It starts with these variables of this shell: {', '.join(manager.variables)}")
    if left_out:
        echo(f"Skipped, because they may be secrets: {', '.join(left_out)}")
    for note in manager.notes:
        echo(note)
    if not manager.tried:
        echo(f"This has not been tested with {manager.name} yet; `tessera service status` says whether it runs.")


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def status(*, as_json: bool) -> None:
    """Show whether the service is installed and running."""
    try:
        seen = os_service.status(os_service.manager(own_command("serve")))
    except os_service.ServiceFailed as error:
        raise NotPossibleHere(shown_text(str(error))) from error
    if as_json:
        facts = {
            "manager": seen.manager, "path": str(seen.path), "installed": seen.installed, "running": seen.running
        }  # fmt: skip
        click.echo(json.dumps(facts, indent=2))
        return
    words = "not installed" if not seen.installed else "running" if seen.running else "installed, not running"
    echo(f"{words} ({seen.manager}, {seen.path})")


@command.command("restart")
def restart() -> None:
    """Restart the service, for example after a change of settings; running answers are stopped."""
    try:
        os_service.restart(os_service.manager(own_command("serve")))
    except os_service.ServiceFailed as error:
        raise NotPossibleHere(shown_text(str(error))) from error
    echo("Restarted.")


command.add_command(logs, "logs")


@command.command("remove")
def remove() -> None:
    """Stop and remove the service. Models, chats and settings stay."""
    try:
        there = os_service.remove(os_service.manager(own_command("serve")))
    except (os_service.ServiceFailed, OSError) as error:
        raise NotPossibleHere(shown_text(str(error))) from error
    echo("Removed." if there else "It was not installed.")
