"""Texts for the engine's decisions: one template per kind, with named fields for its values."""

import shlex
import string
from collections.abc import Callable, Iterable
from typing import Any, Final

from engine.message_catalog.dispatch import CHECKS, COMMANDS, DISPATCH, FIT, OPTIONS
from engine.message_catalog.documents import DOCUMENTS
from engine.message_catalog.errors import CONSENT, ERRORS, SERVER
from engine.message_catalog.library import LIBRARY
from engine.message_catalog.reasons import Reason
from engine.message_catalog.runner import BENCH, ENERGY, PROVIDERS, RUNNER
from engine.message_catalog.upstreams import REMOTES, UPSTREAMS

TEMPLATES: Final = {
    **DISPATCH, **CHECKS, **FIT, **OPTIONS, **RUNNER, **PROVIDERS, **LIBRARY, **DOCUMENTS, **REMOTES, **UPSTREAMS,
    **ENERGY, **BENCH, **SERVER, **ERRORS, **CONSENT,
}  # fmt: skip
# Format specifications for bytes: the first includes the unit, the second omits it.
AMOUNTS: Final = ("bytes", "plain_bytes")
# Format specification for a word of a command: names and paths may contain spaces.
WORD: Final = "word"


class Wording(string.Formatter):
    """Formats sentences; `translated` returns a template in the reader's language."""

    def __init__(self, translated: Callable[[str], str] = str) -> None:
        self._translated = translated

    def sentence(self, reason: Reason) -> str:
        """The sentence of a reason. The text of its server is used if this version does not know the kind."""
        try:
            return self.vformat(self._translated(TEMPLATES[reason.kind]), (), reason.values)
        except LookupError:
            if isinstance(reason.text, str):
                return reason.text
            raise

    def amount(self, num_bytes: int, form: str) -> str:
        """Bytes in one of the forms in AMOUNTS."""
        return f"{num_bytes} bytes" if form == "bytes" else str(num_bytes)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format one value; for several values the specification is their separator."""
        if isinstance(value, Reason):
            return self.sentence(value)
        if isinstance(value, tuple):
            return (format_spec or ", ").join(self.format_field(one, "") for one in value)
        if format_spec in AMOUNTS:
            return self.amount(value, format_spec)
        if format_spec == WORD:
            return shlex.quote(str(value))
        return str(super().format_field(value, format_spec))


_ENGLISH: Final = Wording()


def sentence(what: Reason | str | None) -> str:
    """A reason in English; text is returned unchanged, None as an empty string."""
    return _ENGLISH.sentence(what) if isinstance(what, Reason) else what or ""


def sentences(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """The English sentences of several reasons."""
    return tuple(map(_ENGLISH.sentence, reasons))


def command(reason: Reason) -> str:
    """The command-line text for an option of engine.placement."""
    return _ENGLISH.vformat(COMMANDS.get(reason.kind, ""), (), reason.values)


def with_command(option: Reason) -> Reason:
    """The option with its command-line text."""
    return Reason("with_command", {"option": option, "command": command(option)})
