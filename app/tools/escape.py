"""Text that others wrote, where a person reads it: what a terminal would obey is spelled out."""

import shlex
from collections.abc import Sequence


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
