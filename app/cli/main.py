"""The `tessera` command: a table of command groups; each module is imported on first use."""

import io
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import click
from click.exceptions import NoSuchCommand

from devices.child_command import CHILD_OPTION
from devices.environment import absolute_folders
from engine.services import __version__

# name: (module, help line). The line is repeated here so that --help imports nothing.
COMMANDS: dict[str, tuple[str, str]] = {
    "window": ("app.cli.window", "Open the window (also: tessera without a command)."),
    "chat": ("app.cli.chat", "Chat with a model in the terminal."),
    "run": ("app.cli.chat", "The same as chat: tessera run MODEL [PROMPT]."),
    "tools": ("app.cli.tools", "Add and remove tools (MCP servers) that chats may use."),
    "bench": ("app.cli.bench", "Measure the speed of a model on this computer, also before downloading it."),
    "autotune": (
        "app.cli.autotune",
        "Find the fastest settings for a model on this machine, or those that save energy.",
    ),
    "serve": ("app.cli.serve", "Serve models to editors, agents and other programs."),
    "upstreams": ("app.cli.upstreams", "Use models of other servers (vLLM, SGLang, another Tessera) by rules."),
    "service": ("app.cli.service", "Keep the server running as a service of this user."),
    "logs": ("app.cli.logs", "Show the log of the server."),
    "worker": ("app.cli.worker", "Serve this computer's devices to a model on another one, through a tunnel."),
    "remote": ("app.cli.remote", "Spread one model over this computer and others, through SSH tunnels."),
    "cluster": ("app.cli.cluster", "Serve models from several machines through Ray Serve."),
    "connect": ("app.cli.connect", "Use a Tessera server on another machine, from terminal and window."),
    "phone": ("app.cli.phone", "Show a QR code that opens this server's chat page on a phone."),
    "keys": ("app.cli.keys", "Create, list and revoke API keys."),
    "quantize": ("app.cli.quantize", "Quantize a model to the best file for this computer."),
    "power": ("app.cli.power", "Show or set power limits."),
    "settings": ("app.cli.settings", "Show and change settings."),
    "models": ("app.cli.models", "Find, download and manage models."),
    "jobs": ("app.cli.job_line", "List, follow and cancel downloads, quantizations and measurements."),
    "cache": ("app.cli.cache", "Show, limit and clear cached prompts on disk."),
    "collections": ("app.cli.collections", "Collect documents, search them, and ask a model about them."),
    "mcp": ("app.cli.mcp", "Let other programs search and read collections (an MCP server)."),
    "fit": ("app.cli.fit", "Show the memory a model needs here, before it is loaded or downloaded."),
    "doctor": ("app.cli.doctor", "Find problems that keep models from running well here, and how to fix them."),
    "devices": ("app.cli.devices", "Show CPUs, GPUs, NPUs, memory and usable backends."),
    "engine": ("app.cli.engine", "Install, check and roll back versions of llama.cpp."),
    "kernels": ("app.cli.kernels", "Install, check and roll back GPU backends (kernel packs)."),
    "verify-device": ("app.cli.verify_device", "Compare the results of GPUs and NPUs with the CPU's."),
    "onnx": ("app.cli.onnx", "Convert models for ONNX Runtime, and show which devices it can use."),
    "fim-bench": ("app.cli.fim_bench", "Measure keystroke-to-suggestion latency."),
    "launch": ("app.cli.launch", "Start a coding agent on a local model, or connect an editor."),
    "code": ("app.cli.code", "Ask about and edit a project with a local model."),
    "licences": ("app.cli.licences", "Show the parts of Tessera and their licences."),
    "certify": ("app.cli.certify", "Measure how well a model calls tools."),
    "replay": ("app.cli.replay", "Repeat the request of a receipt and compare the answers."),
    "evaluate": ("app.cli.evaluate", "Measure how well a model writes programs, or compare two."),
}

# Order of commands in --help.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Everyday": ("window", "chat", "run", "code", "collections", "tools", "settings", "doctor", "licences"),
    "Models": ("models", "fit", "quantize", "onnx", "jobs", "cache"),
    "Server and clients": ("serve", "service", "logs", "keys", "connect", "launch", "phone", "mcp", "upstreams"),
    "Measuring": ("bench", "autotune", "fim-bench", "certify", "evaluate", "replay"),
    "Machines": ("devices", "verify-device", "kernels", "engine", "power", "remote", "worker", "cluster"),
}

# Commands of other programs, and their Tessera equivalents.
ELSEWHERE: Final[dict[str, str]] = {
    "create": "tessera quantize, or tessera models import",
    "du": "tessera models du",
    "list": "tessera models list",
    "load": "tessera models load",
    "ls": "tessera models list",
    "ps": "tessera models loaded",
    "pull": "tessera models pull",
    "rm": "tessera models remove",
    "show": "tessera models show",
    "start": "tessera serve",
    "status": "tessera doctor",
    "stop": "tessera models unload",
    "unload": "tessera models unload",
}


# Arguments that may be empty: texts, and the value of a setting.
MAY_BE_EMPTY: Final = frozenset({"display_name", "question", "text", "value", "words"})


class NotEmpty(click.ParamType[Any]):
    """A name or path that is not empty.

    Scripts pass "" for a variable that is not set, and the path "" is the current folder.
    """

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self._inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as the inner type does, unless the value is blank."""
        if isinstance(value, str) and not value.strip():
            self.fail("it is empty.", param, ctx)
        return self._inner.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The inner type's completions."""
        return self._inner.shell_complete(ctx, param, incomplete)


def _without_empty(command: click.Command) -> click.Command:
    """Let the command and its subcommands refuse empty names and paths."""
    for param in command.params:
        is_path = isinstance(param.type, click.Path)
        is_name = isinstance(param, click.Argument) and param.type is click.STRING
        if is_path or (is_name and param.name not in MAY_BE_EMPTY):
            param.type = NotEmpty(param.type)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _without_empty(inner)
    return command


class LazyGroup(click.Group):
    """A group whose command modules are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Command names in the order of GROUPS."""
        del ctx
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of the command and return the command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        return _without_empty(command) if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command; an unknown name raises an error with suggestions."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        if name in ELSEWHERE:
            raise NoSuchCommand(name, f"No such command {name!r}. Here it is: {ELSEWHERE[name]}.", ctx=ctx)
        raise NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        del ctx
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="tessera")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug logs on stderr.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Tessera runs open models on this computer."""
    from app.cli.settings_defaults import checked_settings
    from app.settings import export, load

    ctx.obj = {"debug": debug}
    shows_window = ctx.invoked_subcommand == "window" or (ctx.invoked_subcommand is None and has_display())
    shows_errors = shows_window or ctx.invoked_subcommand == "settings"
    lenient = shows_errors or ctx.invoked_subcommand in LENIENT or bool({"-h", "--help"} & set(sys.argv[1:]))
    now = load() if lenient else checked_settings()
    if now.problems and not shows_errors:
        from app.cli.echo import echo

        echo("\n".join(f"{problem}".rstrip(".") + ". The default is used." for problem in now.problems), err=True)
    export(now)
    if ctx.invoked_subcommand is None:
        command = cli.get_command(ctx, "window" if has_display() else "chat")
        assert command is not None
        ctx.invoke(command)


# Commands that help to find out what is wrong: an error in the settings is only printed. `--help` is another.
LENIENT = frozenset({"doctor", "licences", "logs"})


def has_display() -> bool:
    """Return True if a window can be shown and its packages are installed."""
    shown = sys.platform in ("win32", "darwin") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return shown and find_spec("PySide6") is not None


def _unreadable_argument(error: Exception) -> str | None:
    """The argument that is not valid UTF-8, if it caused this error."""
    if not isinstance(error, UnicodeEncodeError):
        return None
    surrogates = range(0xD800, 0xE000)  # Python maps invalid UTF-8 bytes to these
    return next((word for word in sys.argv[1:] if any(ord(letter) in surrogates for letter in word)), None)


def _code_of_abort(error: BaseException) -> int:
    """Exit code of Ctrl-C and of a declined question; a question that no one can answer is a usage error."""
    if not isinstance(error.__context__, EOFError) or sys.stdin.isatty():
        return 130
    from app.cli.echo import echo

    echo("\ntessera: No one can answer this prompt. Options such as --yes answer in advance.", err=True)
    return 2


def _open_standard_streams() -> None:
    """Open the null device for standard streams that the caller has closed.

    Otherwise the next opened file, such as a database, would get their numbers and be written to.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def main() -> None:
    """Entry point of `tessera`. Known errors exit with the code of their family, without a traceback."""
    if sys.argv[1:2] == [CHILD_OPTION]:
        from app.child import run

        run(sys.argv[2:])
        return
    _open_standard_streams()
    os.environ.update(absolute_folders(os.environ))  # before any child starts in another folder
    debug = "--debug" in sys.argv
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # accept lines that are not valid UTF-8
    try:
        sys.exit(cli.main(prog_name="tessera", standalone_mode=False) or 0)
    except click.ClickException as error:
        from app.tools.types import shown_text

        if isinstance(error, click.UsageError):
            error.show()
        else:  # the message may contain untrusted text from a server, a model or a file
            click.echo(f"Error: {shown_text(error.format_message())}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        sys.exit(_code_of_abort(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        from app.error_text import describe, exit_code
        from app.tools.types import shown_text

        code = exit_code(error)
        if code is None and not debug and (word := _unreadable_argument(error)) is not None:
            click.echo(f"tessera: {shown_text(word)} is not UTF-8 text, which is needed here.", err=True)
            sys.exit(2)
        if debug or code is None:
            raise
        click.echo(f"tessera: {shown_text(describe(error))}", err=True)
        sys.exit(code)
