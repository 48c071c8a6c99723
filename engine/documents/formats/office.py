"""Presentations and workbooks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lxml import etree

from engine.documents.formats.archive import open_archive, read_member
from engine.documents.formats.relations import XML, local, relations
from engine.documents.formats.word import DRAWN_PARTS, drawn_text
from engine.documents.types import Block, Page, Unreadable

_SHEET_ROWS: Final = 60
_MAX_ROWS: Final = 200_000
_MAX_COLUMNS: Final = 200


def pptx(path: Path) -> Iterator[Page]:
    """One page a slide: its texts and tables, charts and SmartArt, and the speaker's notes."""
    with open_archive(path) as archive:
        try:
            order = _slides(archive)
        except (KeyError, etree.LxmlError) as error:
            raise Unreadable("it is damaged, or not a presentation") from error
        seen: set[str] = set()
        for number, name in enumerate(order, 1):
            try:
                tree = etree.fromstring(read_member(archive, name), XML)
                blocks = [*_slide(tree), *_beside(archive, name, seen)]
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - one slide is damaged, and the others are read
                why = str(error) if isinstance(error, KeyError | etree.LxmlError) else type(error).__name__
                yield Page(number, label=f"slide {number}", problem=f"the slide is damaged ({why})")
                continue
            yield Page(number, tuple(blocks), f"slide {number}")


def _slides(archive: Any) -> list[str]:
    tree = etree.fromstring(read_member(archive, "ppt/presentation.xml"), XML)
    parts = relations(archive, "ppt/presentation.xml")
    ids = ([v for k, v in e.items() if k.endswith("}id")] for e in tree.iter() if local(e) == "sldId")
    return list(dict.fromkeys(parts[found[0]][0] for found in ids if found))


def _slide(tree: Any) -> Iterator[Block]:
    for shape in tree.iter():
        if local(shape) == "tbl":
            rows = [" | ".join(_text(cell) for cell in _named(row, "tc")) for row in _named(shape, "tr")]
            if any(row.strip(" |") for row in rows):
                yield Block("table", "\n".join(rows))
        elif local(shape) == "sp" and not _is_second_choice(shape):
            place = next(_named(shape, "ph"), None)
            title = place is not None and place.get("type") in ("title", "ctrTitle")
            lines = [line for line in (_text(p) for p in _named(shape, "p")) if line]
            if title and lines:
                yield Block("heading", " ".join(lines), 1)
            elif lines:
                yield Block("text", "\n".join(lines))


def _is_second_choice(shape: Any) -> bool:
    """Whether that is what older programs show in the place of another shape with text."""
    for above in shape.iterancestors():
        if local(above) == "Fallback":
            choices = (part for part in above.getparent() if local(part) == "Choice")
            return any(next(_named(part, "t"), None) is not None for part in choices)
    return False


def _beside(archive: Any, slide: str, seen: set[str]) -> Iterator[Block]:
    """What a slide shows or has that stands in parts of its own; what was `seen` is not read again."""
    try:
        parts = relations(archive, slide)
    except KeyError:
        return
    for name, kind in parts.values():
        if name in seen:
            continue
        seen.add(name)
        if kind == "notesSlide":
            tree = etree.fromstring(read_member(archive, name), XML)
            lines = [_text(p) for p in _named(tree, "p")]
            notes = "\n".join(line for line in lines if line and not line.isdecimal())
            if notes:
                yield Block("text", f"Notes: {notes}")
        elif kind in DRAWN_PARTS:
            lines = drawn_text(archive, name)
            if lines:
                yield Block("text", "\n".join(lines))


def _named(element: Any, name: str) -> Iterator[Any]:
    return (found for found in element.iter() if local(found) == name)


def _text(element: Any) -> str:
    """Text with the breaks between its lines and paragraphs as blanks."""
    found = (e for e in element.iter() if local(e) in ("t", "br", "p"))
    return " ".join("".join((e.text or "") if local(e) == "t" else " " for e in found).split())


def xlsx(path: Path) -> Iterator[Page]:
    """Sheets as tables; a long one in pages of some rows, each with the sheet's head."""
    import openpyxl  # noqa: PLC0415 - for workbooks only

    with open_archive(path):
        pass
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise Unreadable("it is damaged, or not a workbook") from error
    number, seen = 1, set()
    for sheet in book.worksheets:
        part = getattr(sheet, "_worksheet_path", sheet.title)
        if part in seen:  # a workbook may name one sheet many times
            continue
        seen.add(part)
        for page in _sheet(sheet, number):
            yield page
            number = page.number + 1


def _sheet(sheet: Any, number: int) -> Iterator[Page]:
    head, held, count = "", [], 0
    left_out: list[str] = []
    rows = sheet.iter_rows(max_row=_MAX_ROWS + 1, max_col=_MAX_COLUMNS + 1, values_only=True)
    for row_number, row in enumerate(rows, 1):
        if not any(value is not None for value in row):
            continue
        if row_number > _MAX_ROWS:
            left_out.append(f"rows after {_MAX_ROWS:,} are not read")
            break
        if len(row) > _MAX_COLUMNS and row[_MAX_COLUMNS] is not None and len(left_out) == 0:
            left_out.append(f"columns after {_MAX_COLUMNS} are not read")
        line = " | ".join("" if v is None else " ".join(str(v).split()) for v in row[:_MAX_COLUMNS]).rstrip(" |")
        if not line:
            continue
        count += 1
        head = head or line
        held.append(line)
        if len(held) >= _SHEET_ROWS:
            yield _table(sheet.title, number, head, held, count)
            number, held = number + 1, []
    if held:
        yield _table(sheet.title, number, head, held, count)
        number += 1
    if left_out:
        yield Page(number, label=sheet.title, problem="; ".join(left_out))


def _table(title: str, number: int, head: str, rows: list[str], last: int) -> Page:
    begin = last - len(rows) + 1
    text = "\n".join(rows if rows[0] == head else [head, *rows])
    return Page(number, (Block("heading", title, 1), Block("table", text)), f"{title}, rows {begin} to {last}")
