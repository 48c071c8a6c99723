"""Print command output; control characters in names, paths and messages are escaped."""

import sys
from typing import Any

import click


class InputRefused(click.ClickException):
    """An argument cannot be used: an unknown name, a damaged file. See docs/terminal.md for exit codes."""

    exit_code = 3


class NotPossibleHere(click.ClickException):
    """This computer lacks what the command needs: a package, a port, a login, disk or memory."""

    exit_code = 4


def print_json(value: object) -> None:
    """Print what the server or the facade returned, for programs."""
    import msgspec

    click.echo(msgspec.json.encode(value).decode())


def secret(name: str) -> str:
    """A key or token: typed without being shown, or the first line of piped input; it may be empty."""
    if sys.stdin.isatty():
        return str(click.prompt(name, hide_input=True, default="", show_default=False))
    return sys.stdin.readline().strip()


def required_secret(name: str) -> str:
    """As `secret`. Raises: UsageError: it is empty."""
    if value := secret(name):
        return value
    raise click.UsageError(f"{name} is missing: type it, or write it to standard input.")


def failed(error: Exception) -> click.ClickException:
    """The description of a known error, with the exit code of its family; 1 for other errors."""
    from app.error_text import EXIT_ENVIRONMENT, describe, exit_code

    code = exit_code(error)
    if code is None or code > EXIT_ENVIRONMENT:
        return click.ClickException(describe(error))
    return (NotPossibleHere if code == EXIT_ENVIRONMENT else InputRefused)(describe(error))


def echo(text: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a line, optionally in a style of `click.style`. Do not use it for JSON, which escapes by itself."""
    from app.tools.types import shown_text

    shown = shown_text(str(text))
    click.echo(click.style(shown, **style) if style else shown, err=err, nl=nl)


def echo_result(text: str, *, passed: bool) -> None:
    """Print a line that begins with "pass" or "fail", coloured."""
    echo("pass" if passed else "fail", nl=False, fg="green" if passed else "red")
    echo(f"  {text}".rstrip())
