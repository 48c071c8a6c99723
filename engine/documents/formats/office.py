"""Word documents, presentations and workbooks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lxml import etree

from engine.documents.formats.archive import open_archive, read_member
from engine.documents.formats.parts import in_parts
from engine.documents.types import Block, Page, Unreadable

_A: Final = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P: Final = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_R: Final = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_XML: Final = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
_SHEET_ROWS: Final = 60
_MAX_ROWS: Final = 200_000
_MAX_COLUMNS: Final = 200


def docx(path: Path) -> Iterator[Page]:
    """Paragraphs and tables in the order of the text; headings by their style."""
    import docx as word  # noqa: PLC0415 - half a second, for Word files only
    from docx.table import Table  # noqa: PLC0415 - see above

    with open_archive(path):
        pass
    try:
        document = word.Document(str(path))
    except (KeyError, ValueError, etree.LxmlError) as error:
        raise Unreadable("it is damaged, or not a Word document") from error

    def blocks() -> Iterator[Block]:
        for item in document.iter_inner_content():
            if isinstance(item, Table):
                rows = [" | ".join(_once(row)) for row in item.rows]
                if any(row.strip(" |") for row in rows):
                    yield Block("table", "\n".join(rows))
            elif item.text.strip():
                name = (item.style.name or "") if item.style is not None else ""
                level = name.removeprefix("Heading ")
                if name == "Title" or (name.startswith("Heading ") and level.isdecimal()):
                    yield Block("heading", item.text.strip(), int(level) if level.isdecimal() else 1)
                else:
                    yield Block("text", item.text.strip())

    yield from in_parts(blocks())


def _once(row: Any) -> Iterator[str]:
    """Cells of a row; one that spans several columns once."""
    seen = None
    for cell in row.cells:
        if cell._tc is not seen:  # noqa: SLF001 - the library gives a merged cell again for each column
            yield " ".join(cell.text.split())
        seen = cell._tc  # noqa: SLF001 - as above


def pptx(path: Path) -> Iterator[Page]:
    """One page a slide: its texts and tables, and the speaker's notes."""
    with open_archive(path) as archive:
        try:
            order = _slides(archive)
        except (KeyError, etree.LxmlError) as error:
            raise Unreadable("it is damaged, or not a presentation") from error
        for number, name in enumerate(order, 1):
            try:
                tree = etree.fromstring(read_member(archive, name), _XML)
                blocks = list(_slide(tree))
                notes = _notes(archive, name)
            except (KeyError, etree.LxmlError) as error:
                yield Page(number, label=f"slide {number}", problem=f"the slide is damaged ({error})")
                continue
            if notes:
                blocks.append(Block("text", f"Notes: {notes}"))
            yield Page(number, tuple(blocks), f"slide {number}")


def _relations(archive: Any, name: str) -> dict[str, tuple[str, str]]:
    folder, _, leaf = name.rpartition("/")
    raw = read_member(archive, f"{folder}/_rels/{leaf}.rels")
    found = {}
    for relation in etree.fromstring(raw, _XML):
        target = relation.get("Target") or ""
        parts = [] if target.startswith("/") else folder.split("/")
        for part in target.strip("/").split("/"):
            parts = parts[:-1] if part == ".." else [*parts, part]
        found[relation.get("Id")] = ("/".join(parts), (relation.get("Type") or "").rsplit("/", 1)[-1])
    return found


def _slides(archive: Any) -> list[str]:
    tree = etree.fromstring(read_member(archive, "ppt/presentation.xml"), _XML)
    relations = _relations(archive, "ppt/presentation.xml")
    return [relations[entry.get(f"{_R}id")][0] for entry in tree.iter(f"{_P}sldId")]


def _slide(tree: Any) -> Iterator[Block]:
    for shape in tree.iter(f"{_P}sp", f"{_A}tbl"):
        if shape.tag == f"{_A}tbl":
            rows = [" | ".join(_text(cell) for cell in row.iter(f"{_A}tc")) for row in shape.iter(f"{_A}tr")]
            if any(row.strip(" |") for row in rows):
                yield Block("table", "\n".join(rows))
            continue
        place = shape.find(f".//{_P}ph")
        title = place is not None and place.get("type") in ("title", "ctrTitle")
        lines = [line for line in (_text(p) for p in shape.iter(f"{_A}p")) if line]
        if title and lines:
            yield Block("heading", " ".join(lines), 1)
        elif lines:
            yield Block("text", "\n".join(lines))


def _notes(archive: Any, slide: str) -> str:
    try:
        relations = _relations(archive, slide)
    except KeyError:
        return ""
    for name, kind in relations.values():
        if kind == "notesSlide":
            tree = etree.fromstring(read_member(archive, name), _XML)
            lines = [_text(p) for p in tree.iter(f"{_A}p")]
            return "\n".join(line for line in lines if line and not line.isdecimal())
    return ""


def _text(element: Any) -> str:
    return " ".join("".join(t.text or "" for t in element.iter(f"{_A}t")).split())


def xlsx(path: Path) -> Iterator[Page]:
    """Sheets as tables; a long one in pages of some rows, each with the sheet's head."""
    import openpyxl  # noqa: PLC0415 - for workbooks only

    with open_archive(path):
        pass
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise Unreadable("it is damaged, or not a workbook") from error
    number = 1
    for sheet in book.worksheets:
        for page in _sheet(sheet, number):
            yield page
            number = page.number + 1


def _sheet(sheet: Any, number: int) -> Iterator[Page]:
    head, held, count = "", [], 0
    for row in sheet.iter_rows(max_row=_MAX_ROWS, max_col=_MAX_COLUMNS, values_only=True):
        line = " | ".join("" if value is None else " ".join(str(value).split()) for value in row).rstrip(" |")
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


def _table(title: str, number: int, head: str, rows: list[str], last: int) -> Page:
    begin = last - len(rows) + 1
    text = "\n".join(rows if rows[0] == head else [head, *rows])
    return Page(number, (Block("heading", title, 1), Block("table", text)), f"{title}, rows {begin} to {last}")
