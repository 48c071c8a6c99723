"""What goes into a prompt, piece by piece, each shown to the person and removable."""

import re
from dataclasses import dataclass
from typing import Literal

ItemKind = Literal["selection", "output", "file", "symbol", "folder", "diff", "search", "outline"]
_BACKTICKS = re.compile(r"`{3,}")


@dataclass(frozen=True, kw_only=True)
class ContextItem:
    """Text with where it is from. `key` identifies it for removal; `reason` says why it is here.

    `first`..`last` are 1-based lines of `path`. `partial`: not all of what was asked for.
    """

    kind: ItemKind
    title: str
    text: str
    reason: str
    path: str | None = None
    first: int | None = None
    last: int | None = None
    num_tokens: int = 0
    partial: bool = False

    @property
    def key(self) -> str:
        """Stable while the same lines of the same thing are meant."""
        return f"{self.kind}:{self.path or self.title}:{self.first or 0}-{self.last or 0}"

    def rendered(self) -> str:
        """The piece as it is in the prompt: a title line and a fence no text inside can close."""
        longest = max((len(run) for run in _BACKTICKS.findall(self.text)), default=2)
        fence = "`" * (longest + 1)
        body = self.text if self.text.endswith("\n") else self.text + "\n"
        return f"{self.title}\n{fence}\n{body}{fence}\n"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Something that was asked for or found, and why it is not in the prompt."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Context:
    """An assembled context: pieces in prompt order, what was left out, and the budget they were chosen for."""

    items: tuple[ContextItem, ...]
    left_out: tuple[LeftOut, ...]
    budget_tokens: int

    @property
    def used_tokens(self) -> int:
        """Tokens of all pieces, estimated as their budget was."""
        return sum(item.num_tokens for item in self.items)

    def rendered(self) -> str:
        """All pieces as one text."""
        return "\n".join(item.rendered() for item in self.items)
