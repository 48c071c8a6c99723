"""A marked block of our own lines in a text file that belongs to someone else."""

import re
from collections.abc import Sequence

_BEGIN, _END = "# >>> tessera (managed block; `tessera launch NAME --remove` takes it out)", "# <<< tessera"


def with_block(text: str | None, lines: Sequence[str], *, after: int | None = None) -> str:
    """The text with our block at its end, or after line `after` (1-based); an older block is replaced."""
    text = without_block(text or "")
    block = [_BEGIN, *lines, _END]
    if after is None:
        head = text if not text or text.endswith("\n") else text + "\n"
        return head + "\n".join(block) + "\n"
    rows = text.split("\n")
    return "\n".join(rows[:after] + block + rows[after:])


def without_block(text: str) -> str:
    """The text without our block."""
    begin, end = re.escape(_BEGIN), re.escape(_END)
    return re.sub(rf"^[ \t]*{begin}\n.*?^[ \t]*{end}\n?", "", text, flags=re.DOTALL | re.MULTILINE)


def undo_block(now: str, before: str | None, after: str) -> str:
    """`Integration.undo` for files with our block and lines set aside."""
    del before, after
    return restored(without_block(now))


_ASIDE = "# tessera set aside: "


def set_aside(text: str, keys: Sequence[str]) -> str:
    """Comment out top-level lines `key: value` that our block replaces, so that they can come back."""
    pattern = re.compile(rf"^(?=(?:{'|'.join(map(re.escape, keys))})\s*:)", re.MULTILINE)
    return pattern.sub(_ASIDE, text)


def restored(text: str) -> str:
    """Bring back what was set aside."""
    return text.replace(_ASIDE, "")
