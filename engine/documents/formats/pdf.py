"""PDF by pdfium: the text of each page; pages that are only pictures are read by OCR where it is there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pypdfium2 as pdfium

from engine.documents.types import Block, Page, Unreadable

# Fewer letters than this on a page with a picture on it: a scan (a stamp or a page number may be text).
_SCAN_CHARS: Final = 24
# Recognizers want letters some 20 to 40 pixels high; 10 point type at 200 dots an inch has 28.
OCR_DPI: Final = 200
MAX_PIXELS: Final = 40_000_000
_HYPHENS: Final = (
    "\x02\n",
    "\ufffe\n",
    "\u00ad\n",
    "\x02\r\n",
    "\ufffe\r\n",
    "\u00ad\r\n",
    "\x02",
    "\ufffe",
    "\u00ad",
)


def pdf(path: Path, first: int = 1, *, ocr: bool = False) -> Iterator[Page]:
    """Pages from `first` on. A page that cannot be read says so and the next one follows."""
    document = open_pdf(path)
    try:
        for number in range(first, len(document) + 1):
            yield _page(document, number, ocr=ocr)
    finally:
        document.close()


def open_pdf(path: Path) -> Any:
    """The document. Raises: Unreadable: damaged or encrypted."""
    try:
        return pdfium.PdfDocument(path)
    except pdfium.PdfiumError as error:
        locked = "password" in str(error).lower() or "security" in str(error).lower()
        raise Unreadable("it is encrypted" if locked else "it is damaged, or not a PDF") from error


def _page(document: Any, number: int, *, ocr: bool) -> Page:
    label = f"page {number}"
    try:
        page = document[number - 1]
    except pdfium.PdfiumError:
        return Page(number, label=label, problem="the page is damaged")
    try:
        text = _text(page)
        if sum(c.isalnum() for c in text) < _SCAN_CHARS and _is_image(page):
            if not ocr:
                return Page(number, _blocks(text), label, "the page is a picture; reading it needs OCR")
            return _recognized(page, number, label)
    except pdfium.PdfiumError as error:
        return Page(number, label=label, problem=f"its text cannot be read ({error})")
    finally:
        page.close()
    return Page(number, _blocks(text), label)


def _text(page: Any) -> str:
    text_page = page.get_textpage()
    try:
        text = str(text_page.get_text_bounded())
    finally:
        text_page.close()
    for mark in _HYPHENS:
        text = text.replace(mark, "")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _is_image(page: Any) -> bool:
    kinds = pdfium.raw
    return any(item.type == kinds.FPDF_PAGEOBJ_IMAGE for item in page.get_objects(max_depth=3))


def _blocks(text: str) -> tuple[Block, ...]:
    """Lines as they stand on the page; a line much shorter than the others ends a paragraph."""
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line]
    if not lines:
        return ()
    usual = sorted(len(line) for line in lines)[len(lines) * 3 // 4]
    blocks: list[Block] = []
    held: list[str] = []
    for line in lines:
        held.append(line)
        if len(line) < usual * 0.7 and line.endswith((".", "!", "?", ":", "”", '"', ")")):
            blocks.append(Block("text", "\n".join(held)))
            held = []
    if held:
        blocks.append(Block("text", "\n".join(held)))
    return tuple(blocks)


def render(page: Any, dpi: int) -> Any:
    """The page as (height, width, 3) uint8 in the order blue, green, red; smaller where it would be enormous."""
    width, height = page.get_size()
    scale = dpi / 72
    pixels = width * height * scale * scale
    if pixels > MAX_PIXELS:
        scale *= (MAX_PIXELS / pixels) ** 0.5
    bitmap = page.render(scale=scale)
    return bitmap.to_numpy()[:, :, :3]


def _recognized(page: Any, number: int, label: str) -> Page:
    from engine.documents.formats.ocr import read_image  # noqa: PLC0415 - its models take a second to load

    try:
        blocks = read_image(render(page, OCR_DPI))
    except Unreadable as error:
        return Page(number, label=label, problem=str(error))
    problem = "" if blocks else "the page is a picture without text that OCR could read"
    return Page(number, blocks, label, problem)
