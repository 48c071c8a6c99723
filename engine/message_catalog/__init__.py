"""What a person reads of the engine's decisions: one template a kind, with named places for its values."""

import string
from collections.abc import Callable, Iterable
from typing import Any, Final

from engine.message_catalog.bench import BENCH
from engine.message_catalog.dispatch import CHECKS, DISPATCH
from engine.message_catalog.documents import DOCUMENTS
from engine.message_catalog.energy import ENERGY
from engine.message_catalog.errors import ERRORS
from engine.message_catalog.fit import COMMANDS, FIT, OPTIONS
from engine.message_catalog.library import LIBRARY
from engine.message_catalog.providers import PROVIDERS
from engine.message_catalog.reasons import Reason
from engine.message_catalog.remotes import REMOTES
from engine.message_catalog.runner import RUNNER
from engine.message_catalog.server import SERVER
from engine.message_catalog.upstreams import UPSTREAMS

TEMPLATES: Final = {
    **DISPATCH, **CHECKS, **FIT, **OPTIONS, **RUNNER, **PROVIDERS, **LIBRARY, **DOCUMENTS, **REMOTES, **UPSTREAMS,
    **ENERGY, **BENCH, **SERVER, **ERRORS,
}  # fmt: skip
# Places for bytes: the first names the unit, the second stands beside one that is named.
AMOUNTS: Final = ("bytes", "plain_bytes")


class Wording(string.Formatter):
    """Composes sentences; `translated` gives a template in the reader's language."""

    def __init__(self, translated: Callable[[str], str] = str) -> None:
        self._translated = translated

    def sentence(self, reason: Reason) -> str:
        """A reason as a person reads it."""
        return self.vformat(self._translated(TEMPLATES[reason.kind]), (), reason.values)

    def amount(self, num_bytes: int, form: str) -> str:
        """Bytes in one of AMOUNTS."""
        return f"{num_bytes} bytes" if form == "bytes" else str(num_bytes)

    def format_field(self, value: Any, format_spec: str) -> str:
        """One value; where it is several, the specification is what stands between them."""
        if isinstance(value, Reason):
            return self.sentence(value)
        if isinstance(value, tuple):
            return (format_spec or ", ").join(self.format_field(one, "") for one in value)
        if format_spec in AMOUNTS:
            return self.amount(value, format_spec)
        return str(super().format_field(value, format_spec))


_ENGLISH: Final = Wording()


def sentence(what: Reason | str | None) -> str:
    """A reason in English, or what is in words already; empty where there is none."""
    return _ENGLISH.sentence(what) if isinstance(what, Reason) else what or ""


def sentences(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Several."""
    return tuple(map(_ENGLISH.sentence, reasons))


def command(reason: Reason) -> str:
    """What is typed for an option of engine.placement."""
    return _ENGLISH.vformat(COMMANDS[reason.kind], (), reason.values)


def with_command(option: Reason) -> Reason:
    """Such an option, with what is typed for it."""
    return Reason("with_command", {"option": option, "command": command(option)})
