"""The child process of `quantize.child`: runs a task, sends progress and the result, and may run further tasks."""

import os
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any, TextIO

import msgspec
import psutil

from devices.errors import TesseraError
from devices.msgspec_lock import learned
from quantize.child import described
from quantize.job.tasks import task_named
from quantize.measurements import Progress, decode


class _Order(msgspec.Struct):
    """One line of input. The process accepts another task if it holds at most `goes_on_below_bytes` of memory."""

    task: str
    request: msgspec.Raw
    goes_on_below_bytes: int


def main() -> int:
    """Run the tasks from stdin, line by line; write events to stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep output of native code out of the events
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        order = msgspec.json.decode(lines.get(), type=learned(_Order))
        try:
            kind, run = task_named(order.task)
            answer = run(decode(bytes(order.request), kind), _Sender(out, order.task))
        except (TesseraError, OSError) as error:
            _emit(out, "fault", described(error))
            return 1
        goes_on = psutil.Process().memory_info().rss <= order.goes_on_below_bytes
        _emit(out, "result", answer, goes_on=goes_on)
        if not goes_on:
            return 0


class _Sender:
    """Sends progress at most ten times per second, with the remaining time at the pace so far."""

    def __init__(self, out: TextIO, phase: str) -> None:
        self._out = out
        self._phase = phase
        self._start = time.monotonic()
        self._first: float | None = None
        self._last = 0.0

    def __call__(self, done: float, total: float, detail: str) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now - self._last < 0.1 and done < total:
            return
        self._last = now
        gained = done - self._first
        left_s = (now - self._start) / gained * (total - done) if gained > 0 else None
        _emit(
            self._out, "progress", Progress(phase=self._phase, done=done, total=total, detail=detail, left_s=left_s)
        )


def _emit(out: TextIO, kind: str, value: Any, *, goes_on: bool = False) -> None:
    out.write(msgspec.json.encode({"kind": kind, "value": value, "goes_on": goes_on}).decode() + "\n")
    out.flush()


def _listen(lines: "SimpleQueue[str]") -> None:
    """Read stdin; the process ends when the parent closes it or dies."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
