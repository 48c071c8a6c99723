"""Which model answers when none is named."""

from collections.abc import Collection, Sequence

import psutil

from engine.core.paths import installed_models
from engine.library.types import ModelEntry

# What start.py could not or should not fetch; the file holds the reason.
MISSING_NOTE = "missing.txt"


def demos(entries: Sequence[ModelEntry]) -> frozenset[str]:
    """Ids of the bundled toy model and of what was made from it: for demonstrations, not for answers."""
    titles = {e.details.title for e in entries if e.origin.kind == "bundled"}
    return frozenset(e.id for e in entries if e.origin.kind == "bundled" or e.details.title in titles - {""})


def default_model(entries: Sequence[ModelEntry], loaded: Collection[str] = ()) -> ModelEntry | None:
    """The best choice that chats: a loaded one, one the user got, the one start.py fetched, at last a demo."""
    toys = demos(entries)
    usable = [e for e in entries if e.servable and e.state == "online"]
    # Nothing leaves this machine because nobody said what to use.
    usable = [e for e in usable if e.origin.kind != "remote" and {"chat", "completion"} & set(e.capabilities)]

    def rank(entry: ModelEntry) -> tuple[bool, bool, bool, bool]:
        chats = "chat" in entry.capabilities
        return not chats, entry.id in toys, entry.id not in loaded, entry.origin.kind == "installed"

    return min(usable, key=rank, default=None)


def why_missing() -> str | None:
    """Why start.py left its chat model out; None if it did not, or if this is no installation of start.py."""
    try:
        return (installed_models() / MISSING_NOTE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


# What this machine can hold, as far as the library needs to know before anything is loaded.

_FRACTION = 0.8  # the rest is for the system and other programs
_BYTES_PER_PARAMETER = 0.69  # 4.8 bits a weight, and 15 % for context and buffers


def memory_bytes() -> int:
    """Memory that models may use."""
    return int(psutil.virtual_memory().total * _FRACTION)


def largest_parameters() -> float:
    """Parameters of the largest model that fits at about 4.8 bits a weight."""
    return memory_bytes() / _BYTES_PER_PARAMETER
