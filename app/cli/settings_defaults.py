"""What commands take from the settings table when nothing is given on the command line."""

import os
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo

if TYPE_CHECKING:
    from app.settings import Settings


class SettingDefault:
    """A default for an option: the setting's value, as text for the option's own type.

    With `unset`, a value that leaves the choice to Tessera ("auto", 0, empty) is None, and --help shows `unset`.
    """

    def __init__(self, name: str, unset: str = "") -> None:
        self._name = name
        self._unset = unset

    def __call__(self) -> str | None:
        value = checked_settings()[self._name]
        return None if self._unset and value in {0, "", "auto"} else str(value)

    def __str__(self) -> str:
        from app.settings import load  # noqa: PLC0415 - read when it is shown

        value = load()[self._name]
        return f"{self._unset if self._unset and value in {0, '', 'auto'} else value}; setting {self._name}"


def checked_settings() -> "Settings":
    """The settings, all of them usable; a server of the window only warns, for the window shows them itself.

    Raises: click.UsageError: the file or the environment has one that cannot be used.
    """
    from app.settings import load  # noqa: PLC0415 - read when the command runs

    now = load()
    problems = "\n".join(str(problem) for problem in now.problems)
    if problems and "TESSERA_OWN_LOG" not in os.environ:
        raise click.UsageError(problems)
    if problems:
        echo(problems, err=True)
    return now


def obey_offline() -> None:
    """Keep the hub's client off the network where `network.offline` says so. Call it before it is imported."""
    if checked_settings().flag("network.offline"):
        os.environ["HF_HUB_OFFLINE"] = "1"
