"""PowerPoint presentations, Excel workbooks and Word documents."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from lxml import etree

from engine.documents.formats.archive import XML, attribute, local, open_archive, read_member, relations
from engine.documents.formats.html import blocks_of
from engine.documents.formats.pseudo_pages import in_parts
from engine.documents.formats.word_lists import ListNumbers
from engine.documents.types import BadDocument, Block, Page

_SHEET_ROWS: Final = 60
_MAX_ROWS: Final = 200_000
_MAX_COLUMNS: Final = 200
_CELL: Final = re.compile(r"([A-Z]{1,3})([0-9]{1,7})")
# Parts of a workbook with comments and text boxes.
_BESIDE: Final = re.compile(r"xl/(comments\w*/?\w*|threadedComments/\w+|drawings/drawing\d+)\.xml", re.IGNORECASE)
# Excel repeats the comments of a thread in a comment for older programs.
_NO_RESULT: Final = "formulas whose results are not stored are not read; save it in a spreadsheet program"
_THREAD: Final = "[Threaded comment]"


def pptx(path: Path) -> Iterator[Page]:
    """One page per slide: its texts and tables, charts and SmartArt, and the speaker's notes."""
    with open_archive(path) as archive:
        try:
            order = _slides(archive)
        except (KeyError, etree.LxmlError) as error:
            raise BadDocument("it is damaged, or not a presentation") from error
        seen: set[str] = set()
        for number, name in enumerate(order, 1):
            try:
                tree = etree.fromstring(read_member(archive, name), XML)
                blocks = [*_slide(tree), *_related_parts(archive, name, seen)]
            except MemoryError:
                raise
            except Exception as error:
                why = str(error) if isinstance(error, KeyError | etree.LxmlError) else type(error).__name__
                yield Page(number, label=f"slide {number}", problem=f"the slide is damaged ({why})")
                continue
            yield Page(number, tuple(blocks), f"slide {number}")


def _slides(archive: Any) -> list[str]:
    tree = etree.fromstring(read_member(archive, "ppt/presentation.xml"), XML)
    parts = relations(archive, "ppt/presentation.xml")
    ids = ([v for k, v in e.items() if k.endswith("}id")] for e in tree.iter() if local(e) == "sldId")
    return list(dict.fromkeys(parts[match[0]][0] for match in ids if match))


def _slide(tree: Any) -> Iterator[Block]:
    for shape in tree.iter():
        if local(shape) == "tbl":
            rows = [
                " | ".join(_text(cell) for cell in _descendants(row, "tc")) for row in _descendants(shape, "tr")
            ]
            if any(row.strip(" |") for row in rows):
                yield Block("table", "\n".join(rows))
        elif local(shape) == "sp" and not _is_second_choice(shape):
            place = next(_descendants(shape, "ph"), None)
            title = place is not None and place.get("type") in ("title", "ctrTitle")
            lines = [line for line in (_text(p) for p in _descendants(shape, "p")) if line]
            if title and lines:
                yield Block("heading", " ".join(lines), 1)
            elif lines:
                yield Block("text", "\n".join(lines))


def _is_second_choice(shape: Any) -> bool:
    """Return whether the shape is only a fallback for older programs, and another shape has its text."""
    for above in shape.iterancestors():
        if local(above) == "Fallback":
            choices = (part for part in above.getparent() if local(part) == "Choice")
            return any(next(_descendants(part, "t"), None) is not None for part in choices)
    return False


def _related_parts(archive: Any, slide: str, seen: set[str]) -> Iterator[Block]:
    """Text from a slide's related parts: notes, charts and SmartArt. Parts in `seen` are skipped."""
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
            lines = [_text(p) for p in _descendants(tree, "p")]
            notes = "\n".join(line for line in lines if line and not line.isdecimal())
            if notes:
                yield Block("text", f"Notes: {notes}")
        elif kind in DRAWN_PARTS:
            lines = drawn_text(archive, name)
            if lines:
                yield Block("text", "\n".join(lines))


def _descendants(element: Any, name: str) -> Iterator[Any]:
    return (child for child in element.iter() if local(child) == name)


def _text(element: Any) -> str:
    """The text of an element, with line and paragraph breaks as spaces."""
    parts = (e for e in element.iter() if local(e) in ("t", "br", "p"))
    return " ".join("".join((e.text or "") if local(e) == "t" else " " for e in parts).split())


def xlsx(path: Path) -> Iterator[Page]:
    """Sheets as tables, long ones in pages of 60 rows, each with the sheet's head; then comments and text boxes."""
    import openpyxl

    with open_archive(path):
        pass
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise BadDocument("it is damaged, or not a workbook") from error
    number, seen = 1, set()
    for sheet in book.worksheets:
        part = getattr(sheet, "_worksheet_path", sheet.title)
        if part in seen:  # a workbook may name one sheet many times
            continue
        seen.add(part)
        with open_archive(path) as archive:
            left_out = _left_out(archive, part)
        for page in _sheet(sheet, number, left_out):
            yield page
            number = page.number + 1
    with open_archive(path) as archive:
        beside = [
            block for name in archive.namelist() if _BESIDE.fullmatch(name) for block in _beside(archive, name)
        ]
    if beside:
        yield Page(number, tuple(beside), "comments and text boxes")


def _beside(archive: Any, name: str) -> Iterator[Block]:
    """Text of a workbook that is not in its cells: comments with their cell, and text boxes."""
    tree = etree.fromstring(read_member(archive, name), XML)
    kinds = ("comment", "threadedComment") if "omment" in name else ("sp",)
    for element in tree.iter():
        if local(element) in kinds:
            text = _text(element) or " ".join((element.text or "").split())
            text = text or " ".join("".join(t.text or "" for t in _descendants(element, "text")).split())
            if text and not text.startswith(_THREAD):
                yield Block("text", f"{element.get('ref', '')}: {text}".removeprefix(": "))


def _left_out(archive: Any, part: str) -> set[str]:
    """The parts of a sheet that are not read: cells too far down or to the right, and formulas without results.

    openpyxl returns every cell before a far one, so it is never asked for them.
    """
    from openpyxl.utils.cell import column_index_from_string

    far_rows = far_columns = no_result = False
    try:
        with archive.open(part) as member:
            for _, cell in etree.iterparse(member, tag="{*}c", resolve_entities=False, no_network=True):
                place = _CELL.fullmatch(cell.get("r", "")) if len(cell) else None
                no_result = no_result or _has_no_result(cell)
                if place is not None:
                    far_rows = far_rows or int(place[2]) > _MAX_ROWS
                    far_columns = far_columns or column_index_from_string(place[1]) > _MAX_COLUMNS
                cell.clear()
                for row in cell.iterancestors():
                    while row.getprevious() is not None:
                        del row.getparent()[0]
    except (KeyError, etree.LxmlError):  # the reader of the cells reports it
        pass
    reasons = ((far_rows, _far_rows()), (far_columns, _far_columns()), (no_result, _NO_RESULT))
    return {reason for applies, reason in reasons if applies}


def _has_no_result(cell: Any) -> bool:
    """Return whether a formula has no stored result; the type of an empty text is stored."""
    names = {local(part) for part in cell}
    has_value = any(local(part) in ("v", "is") and (part.text or len(part)) for part in cell)
    return "f" in names and not has_value and cell.get("t") != "str"


def _far_rows() -> str:
    return f"rows after {_MAX_ROWS:,} are not read"


def _far_columns() -> str:
    return f"columns after {_MAX_COLUMNS} are not read"


def _sheet(sheet: Any, number: int, left_out: set[str]) -> Iterator[Page]:
    head, first, last = "", 0, 0
    lines: list[str] = []
    rows = sheet.iter_rows(max_row=_MAX_ROWS + 1, max_col=_MAX_COLUMNS + 1, values_only=True)
    for row_number, row in enumerate(rows, 1):
        if not any(value is not None for value in row):
            continue
        if row_number > _MAX_ROWS:
            left_out.add(_far_rows())
            break
        if len(row) > _MAX_COLUMNS and row[_MAX_COLUMNS] is not None:
            left_out.add(_far_columns())
        line = " | ".join("" if v is None else _cell(v) for v in row[:_MAX_COLUMNS]).rstrip(" |")
        if not line:
            continue
        first, last = first if lines else row_number, row_number
        head = head or line
        lines.append(line)
        if len(lines) >= _SHEET_ROWS:
            yield _table(sheet.title, number, head, lines, f"rows {first} to {last}")
            number, lines = number + 1, []
    if lines:
        yield _table(sheet.title, number, head, lines, f"rows {first} to {last}")
        number += 1
    if left_out:
        yield Page(number, label=sheet.title, problem="; ".join(sorted(left_out)))


def _cell(value: object) -> str:
    """A value of a sheet in one line; a date without a time is only a date."""
    is_day = isinstance(value, datetime) and not (value.hour or value.minute or value.second or value.microsecond)
    return " ".join((str(value.date()) if isinstance(value, datetime) and is_day else str(value)).split())


def _table(title: str, number: int, head: str, rows: list[str], place: str) -> Page:
    text = "\n".join(rows if rows[0] == head else [head, *rows])
    return Page(number, (Block("heading", title, 1), Block("table", text)), f"{title}, {place}")


# Word documents: the text that Word displays, read from the XML itself.
#
# Tracked insertions, moved text, content controls, fields, text boxes and notes are text; deleted text is not.
# Elements are matched by their local names, because documents of the strict form have other namespaces.

# Deleted text, text that was moved away, field codes, and settings without text.
_LEFT_OUT: Final = frozenset({
    "del", "moveFrom", "delText", "delInstrText", "instrText", "fldData", "rPr", "pPr", "sdtPr", "sdtEndPr",
    "tblPr", "tblPrEx", "trPr", "tcPr", "tblGrid", "sectPr", "rt", "docPr", "binData",
})  # fmt: skip
_SIGNS: Final = {"tab": " ", "ptab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOTES: Final = {"footnoteReference": "footnotes", "endnoteReference": "endnotes", "commentReference": "comments"}
# Related parts that contain text: charts and SmartArt.
DRAWN_PARTS: Final = frozenset({"chart", "diagramData"})
# Symbols of fonts such as Wingdings are not Unicode characters.
_PRIVATE_USE: Final = range(0xE000, 0xF900)
_MAX_BASES: Final = 12
_MAX_LEVEL: Final = 9


def docx(path: Path) -> Iterator[Page]:
    """Paragraphs and tables in document order; headings by their style."""
    with open_archive(path) as archive:
        try:
            word = _Word(archive)
            yield from in_parts(word.blocks())
        except (KeyError, ValueError, etree.LxmlError) as error:
            raise BadDocument("it is damaged, or not a Word document") from error


class _Word:
    def __init__(self, archive: Any) -> None:
        self._archive = archive
        start = relations(archive, "")
        main = next((target for target, kind in start.values() if kind == "officeDocument"), "word/document.xml")
        self._tree = etree.fromstring(read_member(archive, main), XML)
        try:
            self._related = relations(archive, main)
        except KeyError:
            self._related = {}
        self._levels = self._heading_levels()
        self._numbers = ListNumbers(self._parts("numbering"), self._parts("styles"))
        self._notes = {kind: self._notes_of(kind) for kind in _NOTES.values()}
        # One entry per open field: True while its code, which Word does not display, is being read.
        self._fields: list[bool] = []

    def blocks(self) -> Iterator[Block]:
        """The blocks in order: headers, body with notes, charts and SmartArt, footers."""
        body = next((child for child in self._tree if local(child) == "body"), None)
        if body is None:
            raise BadDocument("it is damaged, or not a Word document")
        yield from self._margins("header")
        yield from self._blocks(body)
        for target, kind in self._related.values():
            if kind in DRAWN_PARTS:
                lines = drawn_text(self._archive, target)
                if lines:
                    yield Block("text", "\n".join(lines))
        yield from self._margins("footer")

    def _parts(self, kind: str) -> Iterator[Any]:
        for target, of_kind in self._related.values():
            if of_kind == kind:
                try:
                    yield etree.fromstring(read_member(self._archive, target), XML)
                except (KeyError, etree.LxmlError):  # the rest of the text is still useful
                    continue

    def _heading_levels(self) -> dict[str, int]:
        """Heading levels by style id; a style without its own level inherits that of its base style."""
        styles: dict[str, tuple[int, str]] = {}
        for tree in self._parts("styles"):
            for style in (child for child in tree if local(child) == "style"):
                facts = {local(child): attribute(child) for child in style}
                outline = next((attribute(e) for e in style.iter() if local(e) == "outlineLvl"), "")
                styles[attribute(style, "styleId")] = (
                    _level(facts.get("name", ""), outline),
                    facts.get("basedOn", ""),
                )

        def level(style: str, bases: int = 0) -> int:
            own, base = styles.get(style, (0, ""))
            return own or (level(base, bases + 1) if base and bases < _MAX_BASES else 0)

        return {style: heading for style in styles if (heading := level(style))}

    def _notes_of(self, kind: str) -> dict[str, Any]:
        return {attribute(note, "id"): note for tree in self._parts(kind) for note in tree}

    def _margins(self, kind: str) -> Iterator[Block]:
        """Headers or footers, without duplicates and without those that are only a page number."""
        seen = set()
        for tree in self._parts(kind):
            text = " ".join(block.text for block in self._blocks(tree))
            if any(char.isalpha() for char in text) and text not in seen:
                seen.add(text)
                yield Block("text", text)

    def _blocks(self, parent: Any) -> Iterator[Block]:
        for child in _shown(parent):
            kind = local(child)
            if kind == "p":
                yield from self._paragraph(child)
            elif kind == "tbl":
                rows = [" | ".join(row) for row in self._rows(child)]
                if any(row.strip(" |") for row in rows):
                    yield Block("table", "\n".join(rows))
            elif kind == "altChunk":
                yield from self._embedded(child)
            else:
                yield from self._blocks(child)

    def _paragraph(self, paragraph: Any) -> Iterator[Block]:
        text, apart = self._text(paragraph)
        settings = next((child for child in paragraph if local(child) == "pPr"), None)
        facts = {local(child): attribute(child) for child in settings} if settings is not None else {}
        level = _level("", facts.get("outlineLvl", "")) or self._levels.get(facts.get("pStyle", ""), 0)
        if text and (number := self._numbers.next(settings, facts.get("pStyle", ""))):
            text = f"{number} {text}"
        if text and level:
            yield Block("heading", " ".join(text.split()), level)
        elif text:
            yield Block("text", text)
        for part in apart:
            yield from self._blocks(part)

    def _text(self, paragraph: Any) -> tuple[str, list[Any]]:
        """The text of a paragraph, and the elements to read after it: text boxes and notes."""
        pieces: list[str] = []
        apart: list[Any] = []

        def walk(parent: Any) -> None:
            for child in _shown(parent):
                kind = local(child)
                if kind == "fldChar":
                    self._field(attribute(child, "fldCharType"))
                elif kind in ("txbxContent", *_NOTES):
                    note = self._notes[_NOTES[kind]].get(attribute(child, "id")) if kind in _NOTES else child
                    apart.extend([] if note is None else [note])
                elif not any(self._fields):
                    pieces.append(_sign(child, kind))
                    walk(child)
                else:
                    walk(child)

        walk(paragraph)
        # A field code ends with its paragraph; otherwise an unclosed field would hide all following text.
        while self._fields and self._fields[-1]:
            self._fields.pop()
        return "".join(pieces).strip(), apart

    def _field(self, kind: str) -> None:
        if kind == "begin":
            self._fields.append(True)
        elif self._fields and kind == "separate":
            self._fields[-1] = False
        elif self._fields and kind == "end":
            self._fields.pop()

    def _rows(self, table: Any) -> Iterator[list[str]]:
        """Cells of each row; a cell that spans rows repeats its text in each."""
        above: dict[int, str] = {}
        for row in _within(table, "tr"):
            settings = {local(e): e for child in row if local(child) == "trPr" for e in child}
            if "del" in settings:
                continue
            column = int(attribute(settings["gridBefore"]) or 0) if "gridBefore" in settings else 0
            texts = []
            for cell in _within(row, "tc"):
                facts = {local(e): attribute(e) for child in cell if local(child) == "tcPr" for e in child}
                if "cellDel" in facts:
                    continue
                text = self._cell(cell)
                if facts.get("vMerge", "restart") != "restart" and not text:
                    text = above.get(column, "")
                above[column] = text
                span = facts.get("gridSpan", "1")
                column += int(span) if span.isdecimal() else 1
                texts.append(text)
            yield texts

    def _cell(self, cell: Any) -> str:
        parts = [" ".join(block.text.replace(" | ", ", ").split("\n")) for block in self._blocks(cell)]
        return " ".join(" ".join(parts).split())

    def _embedded(self, chunk: Any) -> Iterator[Block]:
        """The blocks of an embedded document that Word merges when it opens this one."""
        target, _ = self._related.get(attribute(chunk, "id"), ("", ""))
        if not target.lower().endswith((".htm", ".html", ".xhtml")):
            raise BadDocument(f"its text is in an embedded file that is not read ({target or 'none'})")
        yield from blocks_of(read_member(self._archive, target))


def drawn_text(archive: Any, name: str) -> list[str]:
    """The lines of a chart (titles, names, values) or of SmartArt."""
    try:
        tree = etree.fromstring(read_member(archive, name), XML)
    except (KeyError, etree.LxmlError):
        return []
    lines = []
    for element in tree.iter():
        kind = local(element)
        if kind == "p":
            lines.append(" ".join("".join(t.text or "" for t in element.iter() if local(t) == "t").split()))
        elif kind == "v" and element.getparent() is not None and local(element.getparent()) == "pt":
            lines.append(element.text or "")
    return [line for line in dict.fromkeys(lines) if line.strip()]


def _shown(parent: Any) -> Iterator[Any]:
    """Children without excluded elements; of alternatives, the first with text."""
    for child in parent:
        kind = local(child)
        if not kind or kind in _LEFT_OUT or (kind == "r" and _is_hidden(child)):
            continue
        if kind == "AlternateContent":
            choices = [part for part in child if local(part) in ("Choice", "Fallback")]
            with_text = (part for part in choices if any(local(e) == "t" for e in part.iter()))
            yield from _shown(next(with_text, child if not choices else choices[0]))
        else:
            yield child


def _within(parent: Any, kind: str) -> Iterator[Any]:
    """The rows of a table or the cells of a row, including those inside content controls and change marks."""
    for child in _shown(parent):
        if local(child) == kind:
            yield child
        elif local(child) not in ("tbl", "p"):
            yield from _within(child, kind)


def _is_hidden(run: Any) -> bool:
    for settings in run:
        if local(settings) == "rPr":
            return any(local(e) == "vanish" and attribute(e) not in ("0", "false", "off") for e in settings)
    return False


def _sign(element: Any, kind: str) -> str:
    if kind == "t":
        return "".join([element.text or "", *(child.tail or "" for child in element)])
    if kind == "sym":
        try:
            code = int(attribute(element, "char"), 16)
        except ValueError:
            return ""
        return "" if code in _PRIVATE_USE or not chr(code).isprintable() else chr(code)
    return _SIGNS.get(kind, "")


def _level(name: str, outline: str) -> int:
    """Heading level from the style's name or the outline level; 0 if it is not a heading."""
    name = name.lower()
    number = name.removeprefix("heading ")
    if name == "title" or (name != number and number.isdecimal()):
        return int(number) if number.isdecimal() else 1
    return int(outline) + 1 if outline.isdecimal() and int(outline) < _MAX_LEVEL else 0
