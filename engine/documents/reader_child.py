"""The child that opens documents: parsers are native or old, files are not trusted. See `reading.py`.

A request names a file and the page to continue from; the answer holds as many pages as fit time and size. The open
document is kept for the next request.
"""

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import dropwhile
from pathlib import Path
from typing import Final

import msgspec

from devices.msgspec_lock import learned
from engine.chat.child_service import serve
from engine.documents.chunking import Cutter
from engine.documents.types import Page, PageRead, ReadAnswer, ReadRequest, Unreadable

# An answer ends after this much work, so that progress is seen and a kill costs little.
_ANSWER_S: Final = 4.0
_ANSWER_CHARS: Final = 400_000
# Kind: module and reader; imported when the first file of the kind comes.
_READERS: Final = {
    "text": ("text", "text"),
    "markdown": ("text", "markdown"),
    "code": ("text", "code"),
    "html": ("html", "html"),
    "epub": ("html", "epub"),
    "pdf": ("pdf", "pdf"),
    "docx": ("word", "docx"),
    "pptx": ("office", "pptx"),
    "xlsx": ("office", "xlsx"),
    "opendocument": ("opendocument", "opendocument"),
    "unread": ("opendocument", "unread"),
    "csv": ("table", "table"),
    "eml": ("mail", "eml"),
    "mbox": ("mail", "mbox"),
    "picture": ("ocr", "image_pages"),
}
_decode = msgspec.msgpack.Decoder(learned(ReadRequest)).decode


class _Open:
    """A document that is being read, and the page that comes next."""

    def __init__(self, request: ReadRequest) -> None:
        path = Path(request.path)
        read = _reader(request.kind)
        self.key = (request.path, request.ocr)
        self.num_pages = 0
        if request.kind == "pdf":
            pages: Iterator[Page] = read(path, request.first, ocr=request.ocr)
            self.num_pages = _pdf_pages(path)
        elif request.kind == "mbox":
            pages = read(path, request.first)
        else:
            pages = dropwhile(lambda page: page.number < request.first, read(path))
        self.pages = pages
        self.cutter = Cutter()
        self.next = request.first


def _reader(kind: str) -> Callable[..., Iterator[Page]]:
    module, name = _READERS[kind]
    found: Callable[..., Iterator[Page]] = getattr(import_module(f"engine.documents.formats.{module}"), name)
    return found


def _pdf_pages(path: Path) -> int:
    from engine.documents.formats.pdf import open_pdf  # noqa: PLC0415 - for this format only

    document = open_pdf(path)
    try:
        return len(document)
    finally:
        document.close()


class _Reading:
    """Answers requests, keeping the last document open."""

    def __init__(self) -> None:
        self._open: _Open | None = None

    def answer(self, body: bytes) -> bytes:
        """One request."""
        return msgspec.msgpack.encode(self._read(_decode(body)))

    def _read(self, request: ReadRequest) -> ReadAnswer:
        try:
            if not request.limit:
                _reader(request.kind)
                return ReadAnswer()
            found = self._open
            if found is None or found.key != (request.path, request.ocr) or found.next != request.first:
                found = self._open = _Open(request)
            return self._some(found, request.limit)
        except Unreadable as error:
            problem = str(error)
        except OSError as error:
            problem = error.strerror or str(error)
        except MemoryError:
            raise SystemExit(1) from None  # a fresh child has more of it; the parent asks once more, page by page
        except Exception as error:  # noqa: BLE001 - whatever a damaged file does to a parser is a reason
            problem = f"it is damaged ({type(error).__name__})"
        self._open = None
        return ReadAnswer(problem=problem)

    def _some(self, found: _Open, limit: int) -> ReadAnswer:
        pages: list[PageRead] = []
        begun, size = time.monotonic(), 0
        for page in found.pages:
            read = found.cutter.cut(page)
            pages.append(read)
            found.next = page.number + 1
            size += sum(len(chunk.text) for chunk in read.chunks)
            if len(pages) >= limit or size >= _ANSWER_CHARS or time.monotonic() - begun > _ANSWER_S:
                return ReadAnswer(pages=tuple(pages), done=False, num_pages=found.num_pages)
        self._open = None
        return ReadAnswer(pages=tuple(pages), num_pages=found.num_pages or found.next - 1)


if __name__ == "__main__":
    serve(_Reading().answer)
