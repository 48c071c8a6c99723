"""Word documents: what Word shows, read from the XML itself.

Tracked insertions, moved text, content controls, fields, text boxes and notes are text; deleted text is none.
Elements are told apart by their local names: documents of the strict form have other namespaces.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lxml import etree

from engine.documents.formats.archive import open_archive, read_member
from engine.documents.formats.html import blocks_of
from engine.documents.formats.pseudo_pages import in_parts
from engine.documents.formats.relations import XML, local, relations
from engine.documents.types import Block, Page, Unreadable

# Deleted text, text that was moved away, the codes of fields, and settings that hold no text.
_LEFT_OUT: Final = frozenset({
    "del", "moveFrom", "delText", "delInstrText", "instrText", "fldData", "rPr", "pPr", "sdtPr", "sdtEndPr",
    "tblPr", "tblPrEx", "trPr", "tcPr", "tblGrid", "sectPr", "rt", "docPr", "binData",
})  # fmt: skip
_SIGNS: Final = {"tab": " ", "ptab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOTES: Final = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}
# Pictures of text that stand in parts of their own: charts and SmartArt.
DRAWN_PARTS: Final = frozenset({"chart", "diagramData"})
# Symbols of fonts such as Wingdings are no characters of Unicode.
_PRIVATE_USE: Final = range(0xE000, 0xF900)
_MAX_BASES: Final = 12
_MAX_LEVEL: Final = 9


def docx(path: Path) -> Iterator[Page]:
    """Paragraphs and tables in the order of the text; headings by their style."""
    with open_archive(path) as archive:
        try:
            word = _Word(archive)
            yield from in_parts(word.blocks())
        except (KeyError, ValueError, etree.LxmlError) as error:
            raise Unreadable("it is damaged, or not a Word document") from error


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
        self._notes = {kind: self._notes_of(kind) for kind in _NOTES.values()}
        # One for each field that is open: whether its code is being read, which is not shown.
        self._fields: list[bool] = []

    def blocks(self) -> Iterator[Block]:
        """The headers, the text with its notes, what is drawn, and the footers."""
        body = next((child for child in self._tree if local(child) == "body"), None)
        if body is None:
            raise Unreadable("it is damaged, or not a Word document")
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
                except (KeyError, etree.LxmlError):  # the text is worth reading without it
                    continue

    def _heading_levels(self) -> dict[str, int]:
        """The level of each style of headings by its id; of one that is based on another by that."""
        named: dict[str, tuple[int, str]] = {}
        for tree in self._parts("styles"):
            for style in (child for child in tree if local(child) == "style"):
                facts = {local(child): _value(child) for child in style}
                outline = next((_value(e) for e in style.iter() if local(e) == "outlineLvl"), "")
                named[_value(style, "styleId")] = _level(facts.get("name", ""), outline), facts.get("basedOn", "")

        def level(style: str, bases: int = 0) -> int:
            own, base = named.get(style, (0, ""))
            return own or (level(base, bases + 1) if base and bases < _MAX_BASES else 0)

        return {style: found for style in named if (found := level(style))}

    def _notes_of(self, kind: str) -> dict[str, Any]:
        return {_value(note, "id"): note for tree in self._parts(kind) for note in tree}

    def _margins(self, kind: str) -> Iterator[Block]:
        """Headers or footers, each text once; a page number alone is none."""
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
        facts = {local(child): _value(child) for child in settings} if settings is not None else {}
        level = _level("", facts.get("outlineLvl", "")) or self._levels.get(facts.get("pStyle", ""), 0)
        if text and level:
            yield Block("heading", " ".join(text.split()), level)
        elif text:
            yield Block("text", text)
        for part in apart:
            yield from self._blocks(part)

    def _text(self, paragraph: Any) -> tuple[str, list[Any]]:
        """The text of a paragraph, and what stands apart from it: text boxes and notes."""
        pieces: list[str] = []
        apart: list[Any] = []

        def walk(parent: Any) -> None:
            for child in _shown(parent):
                kind = local(child)
                if kind == "fldChar":
                    self._field(_value(child, "fldCharType"))
                elif kind in ("txbxContent", *_NOTES):
                    note = self._notes[_NOTES[kind]].get(_value(child, "id")) if kind in _NOTES else child
                    apart.extend([] if note is None else [note])
                elif not any(self._fields):
                    pieces.append(_sign(child, kind))
                    walk(child)
                else:
                    walk(child)

        walk(paragraph)
        # The code of a field ends with its paragraph: a field without an end would hide all that follows.
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
        """Cells of each row; one that spans rows has its text in each of them."""
        above: dict[int, str] = {}
        for row in _within(table, "tr"):
            settings = {local(e): e for child in row if local(child) == "trPr" for e in child}
            if "del" in settings:
                continue
            column = int(_value(settings["gridBefore"]) or 0) if "gridBefore" in settings else 0
            texts = []
            for cell in _within(row, "tc"):
                facts = {local(e): _value(e) for child in cell if local(child) == "tcPr" for e in child}
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
        """Another document that Word would take in when it opens this one."""
        target, _ = self._related.get(_value(chunk, "id"), ("", ""))
        if not target.lower().endswith((".htm", ".html", ".xhtml")):
            raise Unreadable(f"its text is in an embedded file that is not read ({target or 'none'})")
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
    """Children without what is left out; of alternatives the first that holds something."""
    for child in parent:
        kind = local(child)
        if not kind or kind in _LEFT_OUT or (kind == "r" and _is_hidden(child)):
            continue
        if kind == "AlternateContent":
            choices = [part for part in child if local(part) in ("Choice", "Fallback")]
            held = (part for part in choices if any(local(e) == "t" for e in part.iter()))
            yield from _shown(next(held, child if not choices else choices[0]))
        else:
            yield child


def _within(parent: Any, kind: str) -> Iterator[Any]:
    """The rows of a table or the cells of a row, through controls and marks of changes around them."""
    for child in _shown(parent):
        if local(child) == kind:
            yield child
        elif local(child) not in ("tbl", "p"):
            yield from _within(child, kind)


def _is_hidden(run: Any) -> bool:
    for settings in run:
        if local(settings) == "rPr":
            return any(local(e) == "vanish" and _value(e) not in ("0", "false", "off") for e in settings)
    return False


def _sign(element: Any, kind: str) -> str:
    if kind == "t":
        return "".join([element.text or "", *(child.tail or "" for child in element)])
    if kind == "sym":
        try:
            code = int(_value(element, "char"), 16)
        except ValueError:
            return ""
        return "" if code in _PRIVATE_USE or not chr(code).isprintable() else chr(code)
    return _SIGNS.get(kind, "")


def _level(name: str, outline: str) -> int:
    """A heading's level by the name of its style, or by where it stands in the outline; 0: it is none."""
    name = name.lower()
    number = name.removeprefix("heading ")
    if name == "title" or (name != number and number.isdecimal()):
        return int(number) if number.isdecimal() else 1
    return int(outline) + 1 if outline.isdecimal() and int(outline) < _MAX_LEVEL else 0


def _value(element: Any, name: str = "val") -> str:
    """An attribute by its local name."""
    return next((value for key, value in element.items() if key.rpartition("}")[2] == name), "")
