"""What an agent may do only when a person says so, shown exactly as it would happen."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

ConsentKind = Literal["edit", "run", "mcp", "mcp server"]
# "session": the very same thing may be done again without asking until the session ends.
Decision = Literal["no", "once", "session"]


@dataclass(frozen=True, kw_only=True)
class ConsentRequest:
    """`detail` is the whole truth (the diff, the argv, the arguments); `warning` what deserves attention.

    Two requests with the same `key` are the same thing.
    """

    kind: ConsentKind
    title: str
    detail: str
    key: str
    warning: str | None = None


Ask = Callable[[ConsentRequest], Decision]


@dataclass
class Consent:
    """Remembers what was allowed for the session; everything else is asked."""

    ask: Ask
    _allowed: set[str] = field(default_factory=set)

    def given(self, request: ConsentRequest) -> bool:
        """Whether the person allows it, asking if need be."""
        if request.key in self._allowed:
            return True
        decision = self.ask(request)
        if decision == "session":
            self._allowed.add(request.key)
        return decision != "no"

    def remembers(self, request: ConsentRequest) -> bool:
        """It was allowed for the session and will not be asked."""
        return request.key in self._allowed


def shown_argv(argv: Sequence[str]) -> str:
    """A command so that it can be read without doubt: quoted, with invisible characters spelled out."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else "$" + ascii(word).replace('"', '\\"') for word in argv
    )


def shown_line(text: str) -> str:
    """A title or a warning, which is one line: line breaks and tabs are spelled out too."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown_text(text: str) -> str:
    """Text for a terminal or a label: control characters but line breaks and tabs are spelled out."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
