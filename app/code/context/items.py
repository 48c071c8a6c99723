"""Items of a prompt's context; each is shown to the user and can be removed."""

import re
from dataclasses import dataclass
from typing import Literal

ItemKind = Literal["selection", "output", "file", "symbol", "folder", "diff", "search", "outline"]
_BACKTICKS = re.compile(r"`{3,}")


@dataclass(frozen=True, kw_only=True)
class ContextItem:
    """A text and its origin. `key` identifies it for removal; `reason` says why it is included.

    `first`..`last` are 1-based lines of `path`. `partial` is True if only a part of it is included.
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
        """Key that stays the same for the same lines of the same source."""
        return f"{self.kind}:{self.path or self.title}:{self.first or 0}-{self.last or 0}"

    def rendered(self) -> str:
        """The item in the prompt: a title line, and a fence that no text inside can close."""
        longest = max((len(run) for run in _BACKTICKS.findall(self.text)), default=2)
        fence = "`" * (longest + 1)
        body = self.text if self.text.endswith("\n") else self.text + "\n"
        return f"{self.title}\n{fence}\n{body}{fence}\n"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A mention or search result that is not in the prompt, with the reason."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Context:
    """An assembled context: items in prompt order, omitted items, and the token budget."""

    items: tuple[ContextItem, ...]
    left_out: tuple[LeftOut, ...]
    budget_tokens: int

    @property
    def used_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)

    def rendered(self) -> str:
        return "\n".join(item.rendered() for item in self.items)
