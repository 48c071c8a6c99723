"""What commands print: control characters of names, paths and messages are spelled out, never sent."""

from typing import Any

import click


def echo(text: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a line, in a style of `click.style` if one is given. JSON is not for this: it escapes by itself."""
    from app.tools.types import shown_text  # noqa: PLC0415 - keeps --help fast

    shown = shown_text(str(text))
    click.echo(click.style(shown, **style) if style else shown, err=err, nl=nl)
