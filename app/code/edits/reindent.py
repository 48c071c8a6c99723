"""How indentation of a quoted piece of code maps to that of its place in the file."""

from collections.abc import Callable, Sequence

from app.code.edits.lines import indent_of

# Gives a replacement line its indentation at the place, or None where that cannot be told.
Reindent = Callable[[int, str], str | None]


def same(index: int, line: str) -> str:
    """Lines stay as they were given."""
    del index
    return line


def shifted(search: Sequence[str], found: Sequence[str]) -> Reindent | None:
    """The one prefix that all lines gained, or all lost; None if there is no such prefix.

    Answers often lose the indentation of their very first line only, so that line may differ from the rest.
    """
    whole = _shift(search, found)
    if whole is not None:
        return lambda _, line: _moved(line, whole)
    shift = _shift(search[1:], found[1:])
    if shift is None or indent_of(search[0]) or not any(line.strip() for line in search[1:]):
        return None
    head = indent_of(found[0])

    def reindent(index: int, line: str) -> str | None:
        return head + line if index == 0 and not indent_of(line) else _moved(line, shift)

    return reindent


def retabbed(search: Sequence[str], found: Sequence[str]) -> Reindent | None:
    """Spaces in the answer for tabs in the file, or the reverse, at one constant width."""
    pairs = [(indent_of(s), indent_of(f)) for s, f in zip(search, found, strict=True) if s.strip()]
    if any(bool(s) != bool(f) for s, f in pairs):
        return None
    pairs = [pair for pair in pairs if pair[0]]
    if pairs and all(set(s) == {" "} and set(f) == {"\t"} for s, f in pairs):
        widths = {len(s) / len(f) for s, f in pairs}
        wide, narrow = " ", "\t"
    elif pairs and all(set(s) == {"\t"} and set(f) == {" "} for s, f in pairs):
        widths = {len(f) / len(s) for s, f in pairs}
        wide, narrow = "\t", " "
    else:
        return None
    width = widths.pop()
    if widths or width != int(width):
        return None
    unit = int(width)

    def reindent(_: int, line: str) -> str | None:
        indent, body = indent_of(line), line.lstrip(" \t")
        if not body or not indent:
            return body
        if set(indent) != {wide}:
            return None
        if narrow == " ":
            return " " * (unit * len(indent)) + body
        return None if len(indent) % unit else "\t" * (len(indent) // unit) + body

    return reindent


def _shift(search: Sequence[str], found: Sequence[str]) -> tuple[str, str] | None:
    """(prefix to remove, prefix to add): one of them empty."""
    pairs = [(indent_of(s), indent_of(f)) for s, f in zip(search, found, strict=True) if s.strip()]
    if not pairs:
        return None
    first_s, first_f = pairs[0]
    if first_f.endswith(first_s):
        added = first_f[: len(first_f) - len(first_s)]
        if all(f == added + s for s, f in pairs):
            return "", added
    if first_s.endswith(first_f):
        removed = first_s[: len(first_s) - len(first_f)]
        if all(s == removed + f for s, f in pairs):
            return removed, ""
    return None


def _moved(line: str, shift: tuple[str, str]) -> str | None:
    removed, added = shift
    if not line.strip():
        return ""
    return added + line[len(removed) :] if line.startswith(removed) else None
