"""Extract text from files that a user attaches to a chat. A child process reads formats that need a parser."""

import base64
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from engine.documents.file_types import kind_of
from engine.documents.formats.pseudo_pages import decoded
from engine.documents.types import NEEDS_OCR, BadDocument

# Larger than any context. A disk image that is dropped by mistake must not fill memory.
MAX_TEXT_BYTES = 8 << 20
MAX_FILE_BYTES = 64 << 20
MAX_IMAGE_BYTES = 20 << 20
_MOST_REASONS = 5
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
OTHER_IMAGES = frozenset({".avif", ".bmp", ".gif", ".heic", ".heif", ".jxl", ".svgz", ".tif", ".tiff"})
# "unread": the reader rejects these formats and names the format to save them in.
_PARSED = frozenset(
    {"pdf", "docx", "pptx", "xlsx", "opendocument", "rtf", "epub", "eml", "mbox", "notebook", "unread"}
)


class DocumentError(Exception):
    """A file that cannot be attached; `reason` is the cause."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be attached: {reason}")
        self.name = name
        self.reason = reason


@dataclass(frozen=True)
class Document:
    """An attachment for the context: text, or the bytes of an image."""

    name: str
    mime: str
    text: str = ""
    data: bytes | None = None


def parted(files: list[str]) -> tuple[list[str], list[str]]:
    """Files and folders for the library of models, and files for a chat."""
    models = [name for name in files if name.lower().endswith(".gguf") or Path(name).is_dir()]
    return models, [name for name in files if name not in models]


def document_text(name: str, text: str) -> str:
    """Format a document's text for the context."""
    return f"[{name}]\n{text}\n[end of {name}]"


def image_part(mime: str, data: bytes) -> dict[str, Any]:
    """An image as a content part of a message."""
    address = f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": address}}


def read(path: Path) -> Document:
    """Read a text or code file, a PDF, an office document, an e-book or mail, or an image.

    Raises: DocumentError: not a file, too large, not text, damaged, or encrypted.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise DocumentError(path.name, "it is not a file")
    except OSError as error:
        raise DocumentError(path.name, error.strerror or str(error)) from error
    suffix = path.suffix.lower()
    if suffix in IMAGES:
        return Document(path.name, IMAGES[suffix], data=_bytes(path, size, MAX_IMAGE_BYTES))
    if suffix in OTHER_IMAGES:
        raise DocumentError(path.name, f"{suffix} images are not read; save it as PNG, JPEG or WebP")
    kind = kind_of(path.name)
    if kind in _PARSED:
        if size > MAX_FILE_BYTES:
            raise DocumentError(path.name, f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
        return Document(path.name, "text/plain", _in_child(path, kind))
    raw = _bytes(path, size, MAX_TEXT_BYTES)
    try:
        text = decoded(raw)
    except BadDocument as error:
        raise DocumentError(path.name, "it is not a text file") from error
    if not text.strip():
        raise DocumentError(path.name, "it is empty")
    return Document(path.name, "text/plain", text)


def _bytes(path: Path, size: int, limit: int) -> bytes:
    if size > limit:
        raise DocumentError(path.name, f"it is larger than {limit >> 20} MiB")
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise DocumentError(path.name, error.strerror or str(error)) from error


def _in_child(path: Path, kind: str) -> str:
    """Read in a separate process: a hostile file can crash that process, but not the window."""
    from engine.documents.reader_process import Reader

    reader = Reader()
    texts: list[str] = []
    size, num_pages, problem = 0, 0, ""
    scans: list[int] = []
    unread: list[str] = []
    try:
        for answer in reader.read(path, kind):
            problem = answer.problem or problem
            for page in answer.pages:
                num_pages = page.number
                if page.problem == NEEDS_OCR:
                    scans.append(page.number)
                elif page.problem:
                    unread.append(page.problem)
                texts += [chunk.text for chunk in page.chunks]
                size += sum(len(chunk.text) for chunk in page.chunks)
            if size > MAX_TEXT_BYTES:
                problem = f"the rest after {size:,} characters" if not answer.done else problem
                break
    finally:
        reader.close()
    if not any(text.strip() for text in texts):
        if scans and not problem:
            problem = (
                f"{len(scans)} of its {num_pages} pages are pictures without text. Attach these pages as pictures "
                "to a model that reads pictures, or add the file to Documents with OCR"
            )
        raise DocumentError(path.name, problem or next(iter(unread), "") or "there is no text in it")
    # Model and reader must know that something is missing.
    if scans:
        missing = f"{len(scans)} of {num_pages} pages are pictures without text"
        texts.append(f"[{missing} and are not here: {_spans(scans)}]")
    reasons = dict.fromkeys([*unread, problem] if problem else unread)
    if reasons:
        more = ["and more"] if len(reasons) > _MOST_REASONS else []
        texts.append(f"[Not read: {'; '.join([*islice(reasons, _MOST_REASONS), *more])}]")
    return "\n\n".join(texts)


def _spans(numbers: list[int]) -> str:
    """Page numbers in short form, for example "2, 5-9"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
