"""Text of models, files and servers on a terminal: control characters are spelled out, never sent."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich import markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.tools.types import shown_text

# Wide enough that nothing is cut for a program that reads it.
_PIPE_COLUMNS = 1000


def escape(text: str) -> str:
    """Text as it is in rich's markup, with what a terminal would obey spelled out."""
    return markup.escape(shown_text(text))


def console() -> Console:
    """Standard output: as wide as the terminal, and as wide as the text for a pipe or a file."""
    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_PIPE_COLUMNS if is_pipe else None)


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, cut: str, right: str = "", bold: int = -1
) -> Table:
    """One line a row; where the terminal is too narrow the column `cut` ends in an ellipsis.

    Cells are any text (see `escape`). The column `right` holds numbers; the row `bold` (from 0) stands out.
    """
    made = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        # Only columns that may wrap are narrowed first; their cells do not wrap all the same.
        made.add_column(head, no_wrap=head != cut, justify="right" if head == right else "left")
    for number, cells in enumerate(rows):
        texts = [Text(shown_text(cell), no_wrap=True, overflow="ellipsis") for cell in cells]
        made.add_row(*texts, style="bold" if number == bold else "")
    return made
