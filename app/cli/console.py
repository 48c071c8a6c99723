"""Print untrusted text of models, files and servers on a terminal; control characters are escaped."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich import markup
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.tools.types import shown_line

# Programs that read the output need whole lines.
_PIPE_COLUMNS = 1000


def escape(text: str) -> str:
    """A name or sentence for one line: rich's markup, line breaks and other control characters are escaped."""
    return markup.escape(shown_line(text))


def console() -> Console:
    """Console for stdout: as wide as the terminal; unlimited for a pipe or file.

    A terminal without a size, as some containers have, counts as a pipe: rich prints nothing at width 0.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return Console(highlight=False, width=int(columns))
    has_size = sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns
    return Console(highlight=False, width=None if has_size else _PIPE_COLUMNS)


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, cut: str, right: str = "", bold: int = -1
) -> Table:
    """Table with one line per row; if the terminal is too narrow, the column `cut` ends in an ellipsis.

    If that is not enough, the others do too, except the first: it has the names that people type.

    Cells are any text and are escaped here. The column `right` holds numbers; the row `bold` (from 0) is
    emphasized.
    """
    rows_table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        # rich narrows columns that may wrap first; the cells themselves are set not to wrap.
        rows_table.add_column(head, no_wrap=head != cut, justify="right" if head == right else "left")
    rows = list(rows)
    if heads[0] != cut:
        rows_table.columns[0].min_width = max(cell_len(shown_line(row[0])) for row in (heads, *rows))
    for number, cells in enumerate(rows):
        texts = [Text(shown_line(cell), no_wrap=True, overflow="ellipsis") for cell in cells]
        rows_table.add_row(*texts, style="bold" if number == bold else "")
    return rows_table
