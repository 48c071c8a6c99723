"""OpenDocument texts, presentations and workbooks (LibreOffice and others): the text that the program displays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lxml import etree

from engine.documents.file_types import ARCHIVES
from engine.documents.formats.archive import XML, local, open_archive, read_member
from engine.documents.formats.pseudo_pages import in_parts
from engine.documents.types import BadDocument, Block, Page

# Deleted text, comments, note numbers, ruby text, and elements without text.
_LEFT_OUT: Final = frozenset({
    "tracked-changes", "annotation", "note-citation", "ruby-text", "forms", "sequence-decls", "variable-decls",
    "user-field-decls", "table-source", "title", "desc", "event-listeners", "scripts",
})  # fmt: skip
# Read after the paragraph that they are anchored in.
_APART: Final = frozenset({"text-box", "note-body", "table"})
# One XML file with all parts.
_FLAT: Final = frozenset({".fodt", ".fodp", ".fods"})
_PARAGRAPHS: Final = frozenset({"p", "h"})
# Limit for repeated cells and spaces: one element may stand for a million.
_MAX_REPEATED: Final = 50


def opendocument(path: Path) -> Iterator[Page]:
    """Paragraphs, tables, notes and text boxes in document order; headings by their level."""
    if path.suffix.lower() in _FLAT:
        try:
            document = etree.parse(path, XML).getroot()
        except etree.LxmlError as error:
            raise BadDocument("it is damaged, or not an OpenDocument file") from error
        yield from in_parts(_all(document, document))
        return
    with open_archive(path) as archive:
        try:
            manifest = "META-INF/manifest.xml"
            if manifest in archive.namelist() and b"encryption-data" in read_member(archive, manifest):
                raise BadDocument("it is encrypted")
            content = etree.fromstring(read_member(archive, "content.xml"), XML)
        except (KeyError, etree.LxmlError) as error:
            raise BadDocument("it is damaged, or not an OpenDocument file") from error
        try:
            styles = etree.fromstring(read_member(archive, "styles.xml"), XML)
        except (KeyError, etree.LxmlError):  # the rest of the text is still useful
            styles = ()
        yield from in_parts(_all(styles, content))


def _all(styles: Any, content: Any) -> Iterator[Block]:
    headers, footers = _margins(styles)
    yield from headers
    for body in content.iter():
        if local(body) == "body":
            yield from _blocks(body)
    yield from footers


def _margins(styles: Any) -> tuple[list[Block], list[Block]]:
    """Headers and footers, without duplicates and without those that are only a page number."""
    margins: dict[str, dict[str, None]] = {"header": {}, "footer": {}}
    for element in styles.iter() if len(styles) else ():
        kind = local(element).removesuffix("-left").removesuffix("-first")
        if kind in margins:
            text = " ".join(block.text for block in _blocks(element))
            if any(char.isalpha() for char in text):
                margins[kind][text] = None
    return [Block("text", text) for text in margins["header"]], [Block("text", text) for text in margins["footer"]]


def _blocks(parent: Any) -> Iterator[Block]:
    for child in parent:
        kind = local(child)
        if not kind or kind in _LEFT_OUT:
            continue
        if kind in _PARAGRAPHS:
            yield from _paragraph(child, kind)
        elif kind == "table":
            rows = [" | ".join(row).rstrip(" |") for row in _rows(child)]
            rows = [row for row in rows if row]
            if rows:
                yield Block("table", "\n".join(rows))
        else:
            yield from _blocks(child)


def _paragraph(paragraph: Any, kind: str) -> Iterator[Block]:
    apart: list[Any] = []
    text = "".join(_pieces(paragraph, apart)).strip()
    level = _number(paragraph, "outline-level", 1) if kind == "h" else 0
    if text and level:
        yield Block("heading", " ".join(text.split()), level)
    elif text:
        yield Block("text", text)
    for part in apart:
        yield from _blocks(part)


def _pieces(element: Any, apart: list[Any]) -> Iterator[str]:
    """The text of a paragraph; elements to read after it are added to `apart`."""
    yield element.text or ""
    for child in element:
        kind = local(child)
        if kind == "s":
            yield " " * _number(child, "c", 1)
        elif kind in ("tab", "line-break"):
            yield " " if kind == "tab" else "\n"
        elif kind in _APART:
            apart.append(child)
        elif kind in _PARAGRAPHS:  # paragraph of a list or shape inside it
            yield from (" ", *_pieces(child, apart), " ")
        elif kind and kind not in _LEFT_OUT:
            yield from _pieces(child, apart)
        yield child.tail or ""


def _rows(table: Any) -> Iterator[list[str]]:
    for child in table:
        kind = local(child)
        if kind == "table-row":
            yield list(_cells(child))
        elif kind and kind not in _LEFT_OUT:
            yield from _rows(child)


def _cells(row: Any) -> Iterator[str]:
    for cell in row:
        if local(cell) in ("table-cell", "covered-table-cell"):
            text = " ".join(" ".join(block.text for block in _blocks(cell)).split()).replace(" | ", ", ")
            yield from [text] * _number(cell, "number-columns-repeated", 1)


def _number(element: Any, name: str, default: int) -> int:
    """A numeric attribute by its local name, at most 50."""
    digits = next((value for key, value in element.items() if key.rpartition("}")[2] == name), "")
    return min(int(digits), _MAX_REPEATED) if digits.isdecimal() else default


def unread(path: Path) -> Iterator[Page]:
    """Reject a known but unsupported format, so that the file is listed with a reason. Raises: BadDocument."""
    suffix = path.suffix.lower()
    if suffix in ARCHIVES:
        raise BadDocument(f"{suffix} archives are not read; add the unpacked files")
    raise BadDocument(f"{suffix} files are not read; save it as .docx, .pptx, .xlsx, .odt or PDF")
