"""Tables in text files, separated by comma, semicolon or tab."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine.documents.formats.pseudo_pages import decoded
from engine.documents.types import PART_CHARS, BadDocument, Block, Page

_ROWS: Final = 60
_SAMPLE: Final = 8192
# After a quotation mark that is never closed, all that follows is one cell.
_MOST_CELL_CHARS: Final = 16 << 20
# Excel's own first line, which names the separator.
_STATED: Final = re.compile(r'"?sep=([^\w\s"]|\t)"?\n', re.IGNORECASE)


def table(path: Path) -> Iterator[Page]:
    """Pages of up to 60 rows, each with the table's head (its first row)."""
    text = decoded(path.read_bytes())
    stated = _STATED.match(text)
    if stated:
        text = text[stated.end() :]
    try:
        dialect: type[csv.Dialect] = csv.Sniffer().sniff(
            text[:_SAMPLE], delimiters=stated[1] if stated else ",;\t|"
        )
    except csv.Error:
        dialect = csv.excel_tab if path.suffix.lower() == ".tsv" else csv.excel
    csv.field_size_limit(_MOST_CELL_CHARS)
    head, lines, size, number, row_number = "", [], 0, 1, 0
    try:
        # keep line ends, which a cell may contain
        for row in csv.reader(io.StringIO(text, newline=""), dialect):
            line = " | ".join(" ".join(cell.split()) for cell in row)
            if not line.strip(" |"):
                continue
            row_number += 1
            head = head or line
            lines.append(line)
            size += len(line)
            if len(lines) >= _ROWS or size >= PART_CHARS:
                yield _page(number, head, lines, row_number)
                lines, size, number = [], 0, number + 1
    except csv.Error as error:
        raise BadDocument(f"row {row_number + 1} is not a row of a table ({error})") from error
    if lines:
        yield _page(number, head, lines, row_number)


def _page(number: int, head: str, rows: list[str], last: int) -> Page:
    begin = last - len(rows) + 1
    body = "\n".join(rows if rows[0] == head else [head, *rows])
    return Page(number, (Block("table", body, line=begin),), f"rows {begin} to {last}")
