"""What a question points at: @file, @folder, @symbol and @diff, with or without the word before a colon."""

import re
from dataclasses import dataclass
from typing import Literal

MentionKind = Literal["file", "folder", "symbol", "diff", "any"]

# A mention begins a word, so that mail addresses and decorators inside code are none.
_MENTION = re.compile(
    r"(?<![\w`@./])@(?:(file|folder|symbol):)?(?:\"([^\"\n]+)\"|([\w./\-+~$]*[\w/\-+~$]))(?:#L?(\d+)(?:-L?(\d+))?)?"
)


_KINDS: dict[str | None, MentionKind] = {None: "any", "file": "file", "folder": "folder", "symbol": "symbol"}


@dataclass(frozen=True)
class Mention:
    """One mention. `kind` "any" is settled by what exists. Lines are 1-based and inclusive."""

    kind: MentionKind
    target: str
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        lines = f"#{self.first}-{self.last}" if self.first else ""
        return f"@{self.target}{lines}" if self.kind in {"any", "diff"} else f"@{self.kind}:{self.target}{lines}"


def mentions_in(question: str) -> list[Mention]:
    """Every mention, each once, in order."""
    found: dict[Mention, None] = {}
    for match in _MENTION.finditer(question):
        word, quoted, plain, first, last = match.groups()
        target = quoted or plain
        kind: MentionKind = "diff" if word is None and target == "diff" else _KINDS[word]
        line = int(first) if first else None
        found[Mention(kind, target, line, int(last) if last else line)] = None
    return list(found)


def without_mentions(question: str) -> str:
    """The question's own words, which are what a search should look for."""
    return _MENTION.sub(" ", question)
