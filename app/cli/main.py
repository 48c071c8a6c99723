"""The `tessera` command: a table of command groups, each imported only when it is used."""

from importlib import import_module

import click

from app import __version__

# name: (module, one line of help). The line is repeated here so that --help imports nothing.
COMMANDS: dict[str, tuple[str, str]] = {}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module that holds the command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tessera")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug logs on stderr.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Tessera: run open models on this computer, fitted tensor by tensor."""
    ctx.obj = {"debug": debug}


def main() -> None:
    """Entry point of the `tessera` command."""
    cli(prog_name="tessera")
