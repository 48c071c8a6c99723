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
    # keep line ends, which a cell may contain
    reader = csv.reader(io.StringIO(text, newline=""), dialect)
    part, number, row_number = _Part(), 1, 0
    line = next_line = 2 if stated else 1
    try:
        for row_number, cells in enumerate(reader, 1):  # empty rows count, as in a spreadsheet
            line, next_line = next_line, reader.line_num + (2 if stated else 1)
            row = " | ".join(" ".join(cell.split()) for cell in cells)
            if not row.strip(" |"):
                continue
            part.add(row, row_number, line)
            if len(part.rows) >= _ROWS or part.chars >= PART_CHARS:
                yield part.page(number)
                part, number = _Part(part.head), number + 1
    except csv.Error as error:
        raise BadDocument(f"row {row_number + 1} is not a row of a table ({error})") from error
    if part.rows:
        yield part.page(number)


class _Part:
    """Rows of a page, with their numbers in the table and their first lines in the file."""

    def __init__(self, head: tuple[str, int] | None = None) -> None:
        self.head = head
        self.rows: list[str] = []
        self.chars = 0
        self._numbers: list[int] = []
        self._lines: list[int] = []

    def add(self, row: str, number: int, line: int) -> None:
        self.rows.append(row)
        self.chars += len(row)
        self._numbers.append(number)
        self._lines.append(line)
        self.head = self.head or (row, line)

    def page(self, number: int) -> Page:
        assert self.head is not None
        rows, lines = self.rows, self._lines
        if self.head[1] != lines[0]:
            rows, lines = [self.head[0], *rows], [self.head[1], *lines]
        block = Block("table", "\n".join(rows), line=self._lines[0], lines=tuple(lines))
        return Page(number, (block,), f"rows {self._numbers[0]} to {self._numbers[-1]}")
