"""Print command output; control characters in names, paths and messages are escaped."""

from typing import Any

import click


def echo(text: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a line, optionally in a style of `click.style`. Do not use it for JSON, which escapes by itself."""
    from app.tools.types import shown_text

    shown = shown_text(str(text))
    click.echo(click.style(shown, **style) if style else shown, err=err, nl=nl)
