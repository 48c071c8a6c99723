"""One file over the network into a part: several ranges at once, patient with bad links, deaf to nobody."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

import httpx2
import msgspec

from engine.jobs.jobs import Control
from engine.library.errors import FileChanged, HubUnreachable, RateLimited
from engine.library.hub.client import HubClient
from engine.library.hub.partial_file import Part

_log = logging.getLogger(__name__)
_LINKED_ETAG = "x-linked-etag"
_CHUNK_BYTES = 256 * 1024
_JOURNAL_EVERY_S = 2.0
_REPORT_EVERY_S = 0.2
_MAX_BACKOFF_S = 30.0
_MAX_RETRY_AFTER_S = 600.0


class Patience(msgspec.Struct, frozen=True):
    """`streams` ranges at once of `segment_bytes` each; give up after `give_up_s` without a single new byte."""

    streams: int = 4
    segment_bytes: int = 16 * 1024 * 1024
    give_up_s: float = 300.0
    first_backoff_s: float = 1.0


class _RangesIgnored(Exception):
    """The server sent the whole file where a range was asked for."""


class Transfer:
    """Fetch the missing bytes of one part.

    Raises: Paused, Cancelled (the part keeps its bytes); FileChanged; HubUnreachable; the errors of
    HubClient.stream; OSError when the disk refuses.
    """

    def __init__(
        self, client: HubClient, url: str, repo: str, *, part: Part, control: Control, patience: Patience
    ) -> None:
        self._client = client
        self._url = url
        self._repo = repo
        self._part = part
        self._control = control
        self._patience = patience
        self._halt = threading.Event()
        self._moved_at = time.monotonic()
        self._queue: list[int] = []
        self._queue_lock = threading.Lock()

    def run(self, on_bytes: Callable[[int], None]) -> None:
        """Fetch; `on_bytes` gets the bytes of the part several times a second."""
        try:
            self._run_ranges(on_bytes)
        except _RangesIgnored:
            _log.info("no ranges at %s: one stream from the start", self._repo)
            self._part.restart()
            self._run_whole(on_bytes)
        finally:
            self._part.save()

    def _run_ranges(self, on_bytes: Callable[[int], None]) -> None:
        self._queue = self._part.missing()
        workers = min(self._patience.streams, len(self._queue))
        if not workers:
            return
        pool = ThreadPoolExecutor(workers, thread_name_prefix="download")
        futures = [pool.submit(self._work) for _ in range(workers)]
        try:
            self._watch(futures, on_bytes)
        finally:
            # A worker that waits on a silent link notices only when its read times out. Nobody waits for that: it
            # looks at the halt before it writes, and the part refuses writes once it is closed.
            self._halt.set()
            pool.shutdown(wait=False, cancel_futures=True)
        for future in futures:
            future.result()

    def _watch(self, futures: list[Future[None]], on_bytes: Callable[[int], None]) -> None:
        """Report, keep the journal and listen for a request to stop, until the workers are done or one failed."""
        saved_at = time.monotonic()
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=_REPORT_EVERY_S, return_when=FIRST_EXCEPTION)
            on_bytes(self._part.done_bytes)
            self._control.check()
            if any(f.exception() for f in finished):
                return
            if time.monotonic() - saved_at > _JOURNAL_EVERY_S:
                self._part.save()
                saved_at = time.monotonic()

    def _work(self) -> None:
        while not self._halt.is_set():
            with self._queue_lock:
                if not self._queue:
                    return
                segment = self._queue.pop(0)
            self._fetch_segment(segment)

    def _fetch_segment(self, segment: int) -> None:
        backoff = self._patience.first_backoff_s
        while not self._halt.is_set():
            start, end = self._part.span(segment)
            if start >= end:
                return
            try:
                self._fetch_span(segment, start, end)
            except (httpx2.TransportError, HubUnreachable, RateLimited) as error:
                backoff = self._retry_or_raise(error, backoff)

    def _retry_or_raise(self, error: Exception, backoff: float) -> float:
        """Sleep before the next attempt, or give up: the hub will not change its mind, or nothing moves."""
        if isinstance(error, HubUnreachable) and error.status is not None and error.status < 500:  # noqa: PLR2004 5xx mend
            raise error
        pause = min(error.retry_after_s, _MAX_RETRY_AFTER_S) if isinstance(error, RateLimited) else backoff
        if time.monotonic() - self._moved_at + pause > self._patience.give_up_s:
            if isinstance(error, httpx2.TransportError):
                raise HubUnreachable(self._client.endpoint, type(error).__name__) from error
            raise error
        _log.info("waiting %.1f s after %s", pause, type(error).__name__)
        self._halt.wait(pause)
        return min(backoff * 2, _MAX_BACKOFF_S)

    def _fetch_span(self, segment: int, start: int, end: int) -> None:
        with self._client.stream(self._url, self._repo, start, end) as response:
            self._check_identity(response)
            if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                if (start, end) != (0, self._part.journal.size_bytes):
                    raise _RangesIgnored
            else:
                self._check_range(response, start, end)
            missing = end - start
            for chunk in response.iter_raw(_CHUNK_BYTES):
                if self._halt.is_set():
                    return
                self._part.write(segment, chunk[:missing])
                self._moved_at = time.monotonic()
                missing -= min(len(chunk), missing)
                if not missing:
                    return
        if missing:
            raise httpx2.RemoteProtocolError("the answer ended early")

    def _run_whole(self, on_bytes: Callable[[int], None]) -> None:
        """One stream from the first byte; a break means beginning again."""
        backoff = self._patience.first_backoff_s
        self._halt.clear()
        while True:
            try:
                self._stream_whole(on_bytes)
            except (httpx2.TransportError, HubUnreachable, RateLimited) as error:
                self._part.restart()
                backoff = self._retry_or_raise(error, backoff)
                self._control.check()
            else:
                return

    def _stream_whole(self, on_bytes: Callable[[int], None]) -> None:
        part = self._part
        with self._client.stream(self._url, self._repo, 0, None) as response:
            self._check_identity(response)
            for chunk in response.iter_raw(_CHUNK_BYTES):
                self._control.check()
                view = memoryview(chunk)[: part.journal.size_bytes - part.done_bytes]
                while view:
                    segment = part.missing()[0]
                    start, end = part.span(segment)
                    part.write(segment, bytes(view[: end - start]))
                    view = view[end - start :]
                self._moved_at = time.monotonic()
                on_bytes(part.done_bytes)
        if not part.complete:
            raise httpx2.RemoteProtocolError("the answer ended early")

    def _check_identity(self, response: httpx2.Response) -> None:
        """The hub repeats the content's hash with every answer: another one means another file."""
        for answer in (*response.history, response):
            etag = answer.headers.get(_LINKED_ETAG)
            if etag is not None and etag.removeprefix("W/").strip('"') != self._part.journal.identity:
                raise FileChanged(self._repo)

    def _check_range(self, response: httpx2.Response, start: int, end: int) -> None:
        expected = f"bytes {start}-{end - 1}/{self._part.journal.size_bytes}"
        if response.headers.get("Content-Range") != expected:
            raise FileChanged(self._repo)
