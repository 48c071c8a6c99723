"""PDF through pdfium: the text of each page; scanned pages are read by OCR if it is installed."""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pypdfium2 as pdfium

from engine.documents.types import NEEDS_OCR, NO_OCR_HERE, BadDocument, Block, Page

# A page with an image and fewer letters than this is a scan (a stamp or a page number may be text).
_SCAN_CHARS: Final = 24
# OCR models expect letters about 20 to 40 pixels high; 10 point type at 200 dpi has 28.
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
# Annotations whose text a viewer does not show on the page, and form fields that hold text.
_NOT_SHOWN: Final = pdfium.raw.FPDF_ANNOT_FLAG_HIDDEN | pdfium.raw.FPDF_ANNOT_FLAG_NOVIEW
_WITHOUT_TEXT: Final = frozenset({pdfium.raw.FPDF_ANNOT_LINK, pdfium.raw.FPDF_ANNOT_POPUP})
_FIELDS: Final = frozenset({
    pdfium.raw.FPDF_FORMFIELD_TEXTFIELD, pdfium.raw.FPDF_FORMFIELD_COMBOBOX, pdfium.raw.FPDF_FORMFIELD_LISTBOX,
})  # fmt: skip
_MOST_ANNOTATIONS: Final = 5000
_MOST_ATTACHMENTS: Final = 200


def pdf(path: Path, first: int = 1, *, ocr: bool = False) -> Iterator[Page]:
    """Pages from `first` on. An unreadable page has a `problem`, and the next one follows."""
    document = open_pdf(path)
    try:
        document.init_forms()  # does nothing if there are none
        for number in range(first, len(document) + 1):
            yield _page(document, number, ocr=ocr)
    finally:
        document.close()


def open_pdf(path: Path) -> Any:
    """Open the document. Raises: BadDocument: damaged or encrypted."""
    try:
        return pdfium.PdfDocument(path)
    except pdfium.PdfiumError as error:
        locked = "password" in str(error).lower() or "security" in str(error).lower()
        raise BadDocument("it is encrypted" if locked else "it is damaged, or not a PDF") from error


def _page(document: Any, number: int, *, ocr: bool) -> Page:
    label = f"page {number}"
    try:
        page = document[number - 1]
    except pdfium.PdfiumError:
        return Page(number, label=label, problem="the page is damaged")
    try:
        text = "\n".join((_text(page), *_annotations(document, page)))
        if number == 1 and document.count_attachments():
            text += f"\nAttachments (not read): {', '.join(_attachments(document))}"
        if sum(c.isalnum() for c in text) < _SCAN_CHARS and _is_image(page):
            if not ocr:
                return Page(number, _blocks(text), label, NEEDS_OCR)
            return _recognized(page, number, label)
    except pdfium.PdfiumError as error:
        return Page(number, label=label, problem=f"its text cannot be read ({error})")
    finally:
        page.close()
    return Page(number, _blocks(text), label)


def _text(page: Any) -> str:
    text_page = page.get_textpage()
    try:
        # `get_text_bounded` leaves out the last line break that pdfium adds, which joins the numbers of two cells.
        text = _with_whole_rows(text_page, str(text_page.get_text_range()))
    finally:
        text_page.close()
    for mark in _HYPHENS:
        text = text.replace(mark, "")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _with_whole_rows(text_page: Any, text: str) -> str:
    """The text with spaces for line breaks within a row of a table: pdfium ends the line before a short cell."""
    if len(text) != text_page.count_chars():  # characters of two units: the places do not match
        return text
    pieces, at = [], 0
    for end in (match.start() for match in re.finditer(r"(?<!\s)\r\n(?!\s)", text)):
        last, following = text_page.get_charbox(end - 1, loose=True), text_page.get_charbox(end + 2, loose=True)
        if _is_in_row(last, following):
            pieces += [text[at:end], " "]
            at = end + 2
    return "".join([*pieces, text[at:]])


def _is_in_row(last: tuple[float, ...], following: tuple[float, ...]) -> bool:
    """Return whether a character is to the right of the one before it; boxes are left, bottom, right, top."""
    height = min(last[3] - last[1], following[3] - following[1])
    return following[0] >= last[2] and abs(following[1] - last[1]) < height / 4


def _annotations(document: Any, page: Any) -> Iterator[str]:
    """Filled form fields with their names, and comments: they are not part of the page's own text."""
    raw = pdfium.raw
    for index in range(min(raw.FPDFPage_GetAnnotCount(page), _MOST_ANNOTATIONS)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if annotation:
            try:
                text = _annotation(document.formenv, annotation)
            finally:
                raw.FPDFPage_CloseAnnot(annotation)
            if text:
                yield text


def _annotation(forms: Any, annotation: Any) -> str:
    raw = pdfium.raw
    kind = raw.FPDFAnnot_GetSubtype(annotation)
    if raw.FPDFAnnot_GetFlags(annotation) & _NOT_SHOWN or kind in _WITHOUT_TEXT:
        return ""
    if kind != raw.FPDF_ANNOT_WIDGET:
        return _wide(partial(raw.FPDFAnnot_GetStringValue, annotation, b"Contents"))
    if forms is None or raw.FPDFAnnot_GetFormFieldType(forms, annotation) not in _FIELDS:
        return ""
    value = _wide(partial(raw.FPDFAnnot_GetFormFieldValue, forms, annotation))
    name = _wide(partial(raw.FPDFAnnot_GetFormFieldAlternateName, forms, annotation))
    name = name or _wide(partial(raw.FPDFAnnot_GetFormFieldName, forms, annotation))
    return f"{name}: {value}" if name and value else value


def _wide(read: Callable[[Any, int], int]) -> str:
    """The UTF-16 text that a function of pdfium writes into a buffer; without one it returns the size."""
    size = read(None, 0)
    buffer = ctypes.create_string_buffer(max(size, 2))
    read(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    text = buffer.raw[:size].decode("utf-16-le", "replace").rstrip("\0")
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _attachments(document: Any) -> list[str]:
    count = document.count_attachments()
    names = [str(document.get_attachment(at).get_name()) for at in range(min(count, _MOST_ATTACHMENTS))]
    return [*names, "..."] if count > len(names) else names


def _is_image(page: Any) -> bool:
    kinds = pdfium.raw
    return any(item.type == kinds.FPDF_PAGEOBJ_IMAGE for item in page.get_objects(max_depth=3))


def _blocks(text: str) -> tuple[Block, ...]:
    """Paragraphs of a page, with its line breaks; a line much shorter than the others ends a paragraph."""
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line]
    if not lines:
        return ()
    usual = sorted(len(line) for line in lines)[len(lines) * 3 // 4]
    blocks: list[Block] = []
    paragraph: list[str] = []
    for line in lines:
        paragraph.append(line)
        if len(line) < usual * 0.7 and line.endswith((".", "!", "?", ":", "”", '"', ")")):
            blocks.append(Block("text", "\n".join(paragraph)))
            paragraph = []
    if paragraph:
        blocks.append(Block("text", "\n".join(paragraph)))
    return tuple(blocks)


def render(page: Any, dpi: int) -> Any:
    """Render the page as (height, width, 3) uint8 in BGR order, scaled down if it would be too large."""
    width, height = page.get_size()
    scale = dpi / 72
    pixels = width * height * scale * scale
    if pixels > MAX_PIXELS:
        scale *= (MAX_PIXELS / pixels) ** 0.5
    bitmap = page.render(scale=scale)
    return bitmap.to_numpy()[:, :, :3]


def _recognized(page: Any, number: int, label: str) -> Page:

    try:
        blocks = read_image(render(page, OCR_DPI))
    except BadDocument as error:
        return Page(number, label=label, problem=str(error))
    problem = "" if blocks else "the page is an image without text that OCR could read"
    return Page(number, blocks, label, problem)


# OCR by PP-OCRv6 on ONNX Runtime, from the package rapidocr, which contains the models (the extra `ocr`).

# Minimum confidence of a recognized line. Source: the package's own default.
_LEAST_CONFIDENCE: Final = 0.5
# The mean confidence of an upright page is above 0.95, of an upside-down page below 0.8.
_SURE: Final = 0.85
# A page on its side is rotated even if its lines were read with this much more confidence unrotated.
_AS_SURE: Final = 0.05
_MAX_PIXELS: Final = 40_000_000
# ONNX Runtime reports a lack of memory only as text: "Failed to allocate memory", "bad allocation",
# "std::bad_alloc".
_OUT_OF_MEMORY: Final = re.compile("alloc", re.IGNORECASE)


def image_pages(path: Path, first: int = 1, *, ocr: bool = True) -> Iterator[Page]:
    """The pages of an image from `first` on: several of a TIFF, else one. Raises: BadDocument: it is damaged."""
    if not ocr:
        yield Page(1, label="picture", problem=NEEDS_OCR)
        return
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        yield Page(1, label="picture", problem=NO_OCR_HERE)
        return

    Image.MAX_IMAGE_PIXELS = _MAX_PIXELS
    try:
        with Image.open(path) as image:
            # Scans and faxes have several pages. In other formats these are an animation.
            count = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
            for number in range(first, count + 1):
                yield _image_page(image, number, f"page {number}" if count > 1 else "picture")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError) as error:
        raise BadDocument(f"the image cannot be opened ({type(error).__name__})") from error


def _image_page(image: Any, number: int, label: str) -> Page:
    import numpy as np

    image.seek(number - 1)
    try:
        blocks = read_image(np.asarray(image.convert("RGB"))[:, :, ::-1])
    except BadDocument as error:
        return Page(number, label=label, problem=str(error))
    return Page(number, blocks, label, "" if blocks else "there is no text in the image that OCR could read")


@cache
def _recognizer() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise BadDocument(NO_OCR_HERE) from error

    threads = max(1, (os.cpu_count() or 2) // 2)
    runtime = "EngineConfig.onnxruntime"
    return RapidOCR(
        params={
            f"{runtime}.intra_op_num_threads": threads,
            f"{runtime}.inter_op_num_threads": 1,
            "Global.text_score": _LEAST_CONFIDENCE,
            "Global.log_level": "error",
        }
    )


def read_image(pixels: Any) -> tuple[Block, ...]:
    """Lines of text from top to bottom. pixels: (height, width, 3) uint8 in BGR order.

    A page that is not read well is turned as a whole: the package's own classifier turns single lines, and leaves
    them in the wrong order.
    """
    import numpy as np

    blocks = _read(pixels)
    sideways = _is_sideways(blocks)
    if blocks and (sideways or _sureness(blocks) < _SURE):
        turns = (1, 3) if sideways else (2,)
        turned = [_read(np.ascontiguousarray(np.rot90(pixels, count))) for count in turns]
        # The package reads single lines sideways too: only their order shows that the page is on its side.
        best = max(turned, key=_sureness)
        if _sureness(best) + (_AS_SURE if sideways else 0) > _sureness(blocks):
            blocks = best
    lines = _lines([(box, text) for box, text, _ in blocks])
    return (Block("text", "\n".join(lines)),) if lines else ()


def _is_sideways(boxes: list[tuple[Any, str, float]]) -> bool:
    """Whether most of the text is in boxes that are taller than wide."""
    tall = sum(len(text) for box, text, _ in boxes if _height(box) > _width(box))
    return 2 * tall > sum(len(text) for _, text, _ in boxes)


def _read(pixels: Any) -> list[tuple[Any, str, float]]:
    """Corners, text and confidence of each line."""
    try:
        read = _recognizer()(pixels, use_cls=False)
    except BadDocument:
        raise
    except Exception as error:  # the package wraps ONNX Runtime's exceptions
        if _OUT_OF_MEMORY.search(str(error)):
            raise MemoryError from error
        raise BadDocument(f"OCR could not read it ({type(error).__name__})") from error
    if read.boxes is None:
        return []
    return [(box, text, float(sure)) for box, text, sure in zip(read.boxes, read.txts, read.scores, strict=True)]


def _sureness(boxes: list[tuple[Any, str, float]]) -> float:
    """The mean confidence of a page, weighted by line length."""
    return sum(sure * len(text) for _, text, sure in boxes) / max(sum(len(text) for _, text, _ in boxes), 1)


def _lines(boxes: list[tuple[Any, str]]) -> list[str]:
    """Group boxes into lines: boxes whose centers are within half a height of each other, from left to right."""
    placed = sorted((_middle(box), _height(box), min(x for x, _ in box), text) for box, text in boxes)
    lines: list[list[tuple[float, str]]] = []
    last_middle, last_height = -1e9, 0.0
    for middle, height, x0, text in placed:
        if lines and abs(middle - last_middle) < 0.5 * max(height, last_height):
            lines[-1].append((x0, text))
        else:
            lines.append([(x0, text)])
            last_middle, last_height = middle, height
    return [" ".join(text for _, text in sorted(line)) for line in lines]


def _middle(box: Any) -> float:
    return float(sum(y for _, y in box) / len(box))


def _width(box: Any) -> float:
    return float(max(x for x, _ in box) - min(x for x, _ in box))


def _height(box: Any) -> float:
    return float(max(y for _, y in box) - min(y for _, y in box))
