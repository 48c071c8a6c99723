"""Default values of command-line options, taken from the settings."""

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.echo import echo

if TYPE_CHECKING:
    from app.settings import Settings


class SettingDefault:
    """Default of an option: the setting's value as text, which the option's type parses.

    With `unset`, an automatic value ("auto", 0, empty) becomes None, and --help shows `unset`.
    """

    def __init__(self, name: str, unset: str = "") -> None:
        self._name = name
        self._unset = unset

    def __call__(self) -> str | None:
        value = checked_settings()[self._name]
        return None if self._unset and value in {0, "", "auto"} else str(value)

    def __str__(self) -> str:
        from app.settings import load

        value = load()[self._name]
        return f"{self._unset if self._unset and value in {0, '', 'auto'} else value}; setting {self._name}"


class Number(click.FloatRange):
    """A number within a range; NaN, which passes every comparison with a limit, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert to a number within the range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class OutputFile(click.Path):
    """A file to be written at the end; its folder is checked now, before the work that fills it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert to a path in a folder that exists."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.expanduser().is_dir():
            self.fail(f"there is no folder {str(path.parent)!r}.", param, ctx)
        return path


class TokenCount(click.IntRange):
    """A number of tokens; people also write 32k for 32,768."""

    name = "number of tokens (32768 or 32k)"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """The name of the value in help texts."""
        return "TOKENS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert to a number within the range."""
        thousands = re.fullmatch(r"\s*(\d{1,6})\s*k\s*", str(value), re.IGNORECASE | re.ASCII)
        return super().convert(int(thousands[1]) << 10 if thousands else value, param, ctx)


def checked_settings() -> "Settings":
    """Load and validate the settings. A server of the window only prints problems; the window shows them itself.

    Raises: click.UsageError: the file or the environment has an invalid setting.
    """
    from app.settings import load

    now = load()
    problems = "\n".join(str(problem) for problem in now.problems)
    if problems and "TESSERA_OWN_LOG" not in os.environ:
        raise click.UsageError(problems)
    if problems:
        echo(problems, err=True)
    return now


def obey_offline() -> None:
    """Set HF_HUB_OFFLINE if `network.offline` is set. Call it before huggingface_hub is imported."""
    if checked_settings().flag("network.offline"):
        os.environ["HF_HUB_OFFLINE"] = "1"
