"""The parent's side of reading documents: a child that may die, and the report about a page that killed it."""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from devices.child import BoundedChild, ChildFailed
from devices.msgspec_lock import learned
from engine.documents.types import PageRead, ReadAnswer, ReadRequest

# Of processor time. One answer takes about 4 s, a page of OCR some 15.
PAGE_LIMIT_S: Final = 60.0
OCR_PAGE_LIMIT_S: Final = 120.0
MEMORY_BYTES: Final = 3 << 29
# A page of 200 dots an inch needs 1.4 GB and leaves pieces of the heap behind; past the limit a new child goes on.
OCR_MEMORY_BYTES: Final = 1 << 31
_decode = msgspec.msgpack.Decoder(learned(ReadAnswer)).decode


class Reader:
    """Reads documents in a child of its own, one at a time. `close` ends the child; the next read starts one.

    An `urgent` one is for a file that somebody just saved: it does not stand behind everything else.
    """

    def __init__(self, *, ocr: bool = False, urgent: bool = False) -> None:
        self._ocr = ocr
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
        """The child's process id."""
        return self._child.pid

    def warm(self, kinds: Iterable[str]) -> None:
        """Start the child and have it import what these kinds need, so that the next file is read at once."""
        for kind in kinds:
            with contextlib.suppress(ChildFailed, OSError):
                self._ask(ReadRequest("", kind, limit=0))

    def read(self, path: Path, kind: str, first: int = 1) -> Iterator[ReadAnswer]:
        """Answers until one is `done`. A page that ends or stalls the child is a problem of that page."""
        while True:
            request = ReadRequest(str(path), kind, first, ocr=self._ocr)
            try:
                answer = self._ask(request)
            except ChildFailed:
                answer = self._carefully(request)
            yield answer
            if answer.done:
                return
            first = answer.pages[-1].number + 1

    def _carefully(self, request: ReadRequest) -> ReadAnswer:
        """One page at a time, to know which one it was."""
        try:
            return self._ask(msgspec.structs.replace(request, limit=1))
        except ChildFailed as error:
            why = f"reading it took longer than {self._limit_s:.0f} s" if error.timed_out else ""
            why = why or ("reading it needs too much memory" if error.out_of_memory else "")
            why = why or f"its parser ended with code {error.exit_code}"
            if request.kind not in ("pdf", "mbox"):
                return ReadAnswer(problem=why)
            return ReadAnswer((PageRead(request.first, f"page {request.first}", (), why),), done=False)

    def _ask(self, request: ReadRequest) -> ReadAnswer:
        with self._lock:
            return _decode(self._child.ask_blocking(msgspec.msgpack.encode(request)))

    def close(self) -> None:
        """End the child."""
        self._child.close()
