"""The child side of `quantize.child`: one task, one request, one answer; progress on the way."""

import os
import sys
import threading
import time
from typing import Any, TextIO

import msgspec

from quantize.child import described
from quantize.errors import QuantizeError
from quantize.evidence import Progress, decode
from quantize.job.tasks import task_named


def main() -> int:
    """Read one request from stdin, do the task named on the command line, write events to stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not end up among the events
    request = sys.stdin.readline()
    if not request:
        return 2
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        kind, run = task_named(sys.argv[1])
        answer = run(decode(request, kind), _Sender(out, sys.argv[1]))
    except (QuantizeError, OSError) as error:
        _emit(out, "fault", described(error))
        return 1
    _emit(out, "result", answer)
    return 0


class _Sender:
    """Writes progress at most ten times a second, with the time left at the pace so far."""

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
        if now - self._last < 0.1 and done < total:  # noqa: PLR2004  ten a second is what a window shows
            return
        self._last = now
        gained = done - self._first
        left = (now - self._start) / gained * (total - done) if gained > 0 else None
        _emit(
            self._out, "progress", Progress(phase=self._phase, done=done, total=total, detail=detail, left_s=left)
        )


def _emit(out: TextIO, kind: str, value: Any) -> None:
    out.write(msgspec.json.encode({"kind": kind, "value": value}).decode() + "\n")
    out.flush()


def _end_with_parent() -> None:
    """The parent holds our stdin open as long as it lives."""
    sys.stdin.read()
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
