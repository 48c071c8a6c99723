"""Parent side of reading documents: runs a child process that may crash, and reports the page that crashed it."""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from devices.child import BoundedChild, ChildFailed
from devices.msgspec_lock import learned
from engine.documents.types import PageRead, ReadAnswer, ReadRequest

# Limits in CPU time. One response takes about 4 s, a page of OCR about 15 s.
PAGE_LIMIT_S: Final = 60.0
OCR_PAGE_LIMIT_S: Final = 120.0
MEMORY_BYTES: Final = 3 << 29
# A page at 200 dpi needs 1.4 GB and fragments the heap; beyond the limit a new child process continues.
OCR_MEMORY_BYTES: Final = 1 << 31
# Kinds whose pages are read independently.
_PAGED: Final = ("pdf", "mbox", "eml")
_MAILS: Final = ("mbox", "eml")
_decode = msgspec.msgpack.Decoder(learned(ReadAnswer)).decode


def ocr_installed() -> bool:
    """Whether the extra for OCR is installed. The child that reads with it imports it; this process never does."""
    return find_spec("rapidocr") is not None


class Reader:
    """Reads documents in a child process, one at a time. `close` ends the process; the next read starts a new one.

    An `urgent` reader has normal priority, for files that the user has just saved.
    """

    def __init__(self, *, ocr: bool = False, urgent: bool = False) -> None:
        self.ocr = ocr
        self._limit_s = OCR_PAGE_LIMIT_S if ocr else PAGE_LIMIT_S
        self._child = BoundedChild(
            "engine.documents.reader_child",
            timeout_s=self._limit_s,
            memory_bytes=OCR_MEMORY_BYTES if ocr else MEMORY_BYTES,
            background=not urgent,
        )
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None."""
        return self._child.pid

    def warm(self, kinds: Iterable[str]) -> None:
        """Start the child process and import the readers of these kinds, so that the next read has no delay."""
        for kind in kinds:
            with contextlib.suppress(ChildFailed, OSError):
                self._send(ReadRequest("", kind, limit=0))

    def read(self, path: Path, kind: str, first: int = 1) -> Iterator[ReadAnswer]:
        """Yield responses until one is `done`. Pages that crash or stall the child are reported as unreadable."""
        while True:
            request = ReadRequest(str(path), kind, first, ocr=self.ocr)
            try:
                answer = self._send(request)
            except ChildFailed as error:
                answer = self._carefully(request, error)
            yield answer
            if answer.done:
                return
            first = answer.pages[-1].number + 1

    def _carefully(self, request: ReadRequest, failure: ChildFailed) -> ReadAnswer:
        """Retry with one page, to find the one that failed; a file without pages would only time out again."""
        try:
            if failure.timed_out and request.kind not in ("pdf", "mbox"):
                raise failure
            return self._send(msgspec.structs.replace(request, limit=1))
        except ChildFailed as error:
            why = f"reading it took longer than {self._limit_s:.0f} s" if error.timed_out else ""
            why = why or ("reading it needs too much memory" if error.out_of_memory else "")
            why = why or f"its parser ended with code {error.exit_code}"
            if request.kind not in _PAGED:
                return ReadAnswer(problem=why)
            if request.kind in _MAILS and request.attachments:
                return self._message(request, why)
            return ReadAnswer((PageRead(request.first, f"page {request.first}", (), why),), done=False)

    def _message(self, request: ReadRequest, why: str) -> ReadAnswer:
        """A message without its attachments, one of which cannot be read."""
        plain = msgspec.structs.replace(request, limit=1, attachments=False)
        try:
            answer = self._send(plain)
        except ChildFailed as error:
            return self._carefully(plain, error)
        pages = tuple(msgspec.structs.replace(page, problem=page.problem or why) for page in answer.pages)
        return msgspec.structs.replace(answer, pages=pages, done=answer.done or request.kind == "eml")

    def _send(self, request: ReadRequest) -> ReadAnswer:
        with self._lock:
            return _decode(self._child.ask_blocking(msgspec.msgpack.encode(request)))

    def close(self) -> None:
        """End the child process."""
        self._child.close()
