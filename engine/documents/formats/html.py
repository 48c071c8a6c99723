"""HTML, and e-books, which are HTML in an archive. Nothing is downloaded and no script is run."""

import contextlib
import posixpath
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from lxml import etree
from lxml import html as lxml_html

from engine.documents.formats.archive import open_archive, read_member
from engine.documents.formats.pseudo_pages import decoded, in_parts, paragraphs
from engine.documents.types import BadDocument, Block, Page

_LEFT_OUT: Final = frozenset({
    "script", "style", "noscript", "template", "svg", "head", "nav", "button", "iframe", "object", "footer",
    "select", "datalist", "binary",
})  # fmt: skip
_NO_TEXT: Final = frozenset({"script", "style", "template", "noscript"})
# ARIA landmarks of page parts that are not content: they repeat on every page of a site.
_LANDMARKS_LEFT_OUT: Final = frozenset({"banner", "contentinfo", "navigation", "search"})
_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_MOST_SPAN, _REPEATED_CHARS = 100, 200
_NOT_IN_CELLS: Final = frozenset({"table", *_HEADINGS})
_ENDS: Final = frozenset({
    "p", "div", "section", "article", "li", "ul", "ol", "dl", "dt", "dd", "blockquote", "figure", "figcaption",
    "br", "hr", "main", "summary", "details", "textarea", "fieldset", "legend", "caption", "th", "form", "center",
    "title", "aside", "header", "address", "body", "td", "tr",
})  # fmt: skip
_CONTAINER: Final = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_OPF: Final = "{http://www.idpf.org/2007/opf}"
_XML: Final = etree.XMLParser(resolve_entities=False, no_network=True, recover=True, huge_tree=False)


# Where an HTML or XML file states its encoding, and names that stand for a larger encoding. Source: WHATWG
# Encoding.
_STATED: Final = re.compile(
    rb"""<meta[^>]+charset\s*=\s*["']?\s*([\w.:-]+)|^\s*<\?xml[^>]+encoding\s*=\s*["']([\w.:-]+)""", re.IGNORECASE
)
_SAME: Final = {
    "iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "ascii": "cp1252", "gb2312": "gb18030",
    "gbk": "gb18030", "x-gbk": "gb18030", "shift_jis": "cp932", "x-sjis": "cp932", "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949", "iso-8859-9": "cp1254", "iso-8859-11": "cp874", "tis-620": "cp874",
    "x-mac-cyrillic": "mac_cyrillic", "macintosh": "mac_roman",
}  # fmt: skip
_TEXT_ENCODING: Final = re.compile(
    r"utf-?8|cp\d+|windows-\d+|iso-?8859-\d+|koi8-[rut]|gb\d+|hz-gb-2312|big5(-?hkscs)?"
    r"|euc-jp|iso-2022-(jp|kr)|mac_\w+|johab", re.IGNORECASE
)  # fmt: skip
_MARKS: Final = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")


def html(path: Path) -> Iterator[Page]:
    """Headings, paragraphs, tables and preformatted text of an HTML file."""
    raw = path.read_bytes()
    if path.suffix.lower() == ".fb2":  # the text contains its titles
        raw = re.sub(rb"<(/?)title\b", rb"<\1h2", raw)
    yield from in_parts(blocks_of(raw))


def blocks_of(raw: bytes, charset: str | None = None) -> Iterator[Block]:
    """The blocks of an HTML document. Raises: BadDocument: it contains no document.

    `charset` is the encoding that was stated outside of it.
    """
    try:
        source = _text_of(raw, charset).encode("utf-8", "replace")
        root = lxml_html.document_fromstring(source, parser=lxml_html.HTMLParser(encoding="utf-8"))
    except (etree.LxmlError, ValueError) as error:
        raise BadDocument(f"it contains no HTML ({error})") from error
    body = root.find("body")
    walk = _Walk()
    yield from walk.run(root if body is None else body)
    yield from walk.flush()


def _text_of(raw: bytes, charset: str | None) -> str:
    """The text in the stated encoding if its bytes are valid in it, otherwise in the detected one."""
    stated = _STATED.search(raw[:4096])
    names = (charset, (stated[1] or stated[2]).decode() if stated else None)
    for name in (_SAME.get(name.lower(), name) for name in names if name):
        if _TEXT_ENCODING.fullmatch(name) and not raw.startswith(_MARKS):
            with contextlib.suppress(LookupError):
                text = raw.decode(name, "replace")
                if text.count("\ufffd") <= len(text) // 1000 + raw.count(b"\xef\xbf\xbd"):
                    return text
    try:
        return decoded(raw)
    except BadDocument:  # it contains zeros
        return raw.replace(b"\0", b"").decode("utf-8", "replace")


class _Walk:
    """Walks an element tree and yields blocks."""

    def __init__(self) -> None:
        self._text: list[str] = []

    def flush(self) -> Iterator[Block]:
        text = " ".join("".join(self._text).split())
        self._text = []
        if text:
            yield from paragraphs(text)

    def run(self, top: Any) -> Iterator[Block]:
        """Yield the blocks of an element. It uses a stack, because the author controls the nesting depth."""
        stack: list[tuple[Any, bool]] = [(top, False)]
        while stack:
            element, ended = stack.pop()
            tag = element.tag if isinstance(element.tag, str) else ""
            if ended:
                if tag in _ENDS:
                    yield from self.flush()
                self._text.append(element.tail or "")
                continue
            if not tag or tag in _LEFT_OUT or element.get("role") in _LANDMARKS_LEFT_OUT:
                self._text.append(element.tail or "")
            elif tag in _HEADINGS or tag == "pre" or (tag == "table" and not _is_layout(element)):
                yield from self.flush()
                yield from _preformatted(element, tag)
                self._text.append(element.tail or "")
            else:
                if tag in _ENDS:
                    yield from self.flush()
                self._text.append(element.text or "")
                stack.append((element, True))
                stack.extend((child, False) for child in reversed(element))


def _is_layout(table: Any) -> bool:
    """Return whether a table only arranges text: it contains tables or headings, or has a single column."""
    inner = (part for part in table.iter() if part is not table and part.tag in _NOT_IN_CELLS)
    if table.get("role") in ("presentation", "none") or next(inner, None) is not None:
        return True
    return all(sum(1 for _ in row.iter("th", "td")) <= 1 for row in table.iter("tr"))


def _preformatted(element: Any, tag: str) -> Iterator[Block]:
    if tag == "pre":
        text = element.text_content().strip("\n")
        if text.strip():
            yield Block("code", text)
    elif tag == "table":
        for caption in element.iter("caption"):
            yield from paragraphs(_line(caption))
        rows = [" | ".join(row) for row in _rows(element)]
        rows = [row for row in rows if row.strip(" |")]
        if rows:
            yield Block("table", "\n".join(rows))
        elif text := _line(element):  # text outside of cells
            yield from paragraphs(text)
    else:
        text = _line(element).replace("\u00b6", " ").strip()
        if text:
            yield Block("heading", text, _HEADINGS[tag])


def _rows(table: Any) -> Iterator[list[str]]:
    """The cells of each row; a cell that spans rows repeats its text in each."""
    above: dict[int, tuple[int, str]] = {}  # by column: in how many more rows, and the text
    for row in table.iter("tr"):
        texts: list[str] = []
        column = 0
        for cell in (*row.iter("th", "td"), None):
            while column in above:
                rows, text = above.pop(column)
                if rows > 1:
                    above[column] = rows - 1, text
                texts.append(text)
                column += 1
            if cell is not None:
                texts.append(_line(cell))
                if (rows := _span(cell, "rowspan")) > 1:
                    above[column] = rows - 1, texts[-1][:_REPEATED_CHARS]
                column += _span(cell, "colspan")
        yield texts


def _span(cell: Any, name: str) -> int:
    digits = (cell.get(name) or "").strip()
    return min(max(int(digits), 1), _MOST_SPAN) if digits.isdecimal() and len(digits) < _MOST_SPAN else 1


def _line(element: Any) -> str:
    """The text of an element on one line; a line break separates words."""
    pieces: list[str] = []
    walk = etree.iterwalk(element, events=("start", "end", "comment", "pi"))
    for event, part in walk:
        if event == "start" and part.tag in _NO_TEXT:
            walk.skip_subtree()
        elif event == "start":
            pieces += [" " if part.tag in _ENDS else "", part.text or ""]
        elif part is not element:
            pieces += [" " if part.tag in _ENDS else "", part.tail or ""]
    return " ".join("".join(pieces).split())


def epub(path: Path) -> Iterator[Page]:
    """The chapters of a book in reading order, in parts of about a page."""
    with open_archive(path) as archive:
        number = 1
        for name in _spine(archive):
            try:
                raw = read_member(archive, name)
            except KeyError:
                yield Page(number, problem=f"{name} is named in the book but not in it")
                number += 1
                continue
            try:
                for page in in_parts(blocks_of(raw), number):
                    yield page
                    number = page.number + 1
            except (MemoryError, GeneratorExit):
                raise
            except Exception as error:
                yield Page(number, problem=f"{name} is damaged ({type(error).__name__})")
                number += 1


def _spine(archive: zipfile.ZipFile) -> list[str]:
    try:
        container = etree.fromstring(read_member(archive, "META-INF/container.xml"), _XML)
        package = next(e.get("full-path") for e in container.iter(f"{_CONTAINER}rootfile"))
        tree = etree.fromstring(read_member(archive, package), _XML)
    except (KeyError, StopIteration, etree.LxmlError, TypeError, AttributeError) as error:
        raise BadDocument("it is not an e-book: its list of chapters is missing") from error
    if any(name.endswith("encryption.xml") for name in archive.namelist()) and _locked(archive):
        raise BadDocument("it is locked (DRM)")
    hrefs = {item.get("id"): unquote(item.get("href") or "") for item in tree.iter(f"{_OPF}item")}
    folder = posixpath.dirname(package)
    paths = [hrefs.get(ref.get("idref"), "") for ref in tree.iter(f"{_OPF}itemref")]
    if not any(paths):
        raise BadDocument("it is not an e-book: its list of chapters is empty")
    files = (href.partition("#")[0] for href in paths)
    # A book of 14 kB may name one chapter 200,000 times; each is read once.
    return list(dict.fromkeys(posixpath.normpath(posixpath.join(folder, href)) for href in files if href))


def _locked(archive: zipfile.ZipFile) -> bool:
    """Return whether chapters are encrypted. DRM-free books may have encrypted fonts only."""
    return b"html" in read_member(archive, "META-INF/encryption.xml")
