"""What commands take from the settings table when nothing is said on the command line."""

import os
from collections.abc import Callable

from app.cli.echo import echo


def setting(name: str) -> Callable[[], str]:
    """A default for an option: the setting's value, as text for the option's own type."""

    def value() -> str:
        from app.settings import load  # noqa: PLC0415 - read when the command runs

        now = load()
        for problem in now.problems:
            if problem.name == name:
                echo(f"not usable, default in force: {problem}", err=True)
        return str(now[name])

    return value


def obey_offline() -> None:
    """Keep the hub's client off the network where `network.offline` says so. Call it before it is imported."""
    from app.settings import load  # noqa: PLC0415 - see setting

    if load().flag("network.offline"):
        os.environ["HF_HUB_OFFLINE"] = "1"
