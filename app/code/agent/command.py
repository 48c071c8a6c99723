"""Run one command without a shell in the project folder, with limits on time, memory and output."""

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from app.code.agent.sandbox import SandboxPermissions, guarded, sandboxed
from devices.environment import program_environment
from devices.process_memory import bound_memory

# Longer output is cut in the middle: the beginning and the end of a command's output matter most.
_HEAD_BYTES = 8_000
_TAIL_BYTES = 12_000
_DRAIN_S = 2.0
_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Result of a command. `exit_code` is None if it timed out or was cancelled."""

    output: str
    exit_code: int | None
    elapsed_s: float


def run_command(
    argv: Sequence[str],
    folder: Path,
    timeout_s: float,
    openings: SandboxPermissions | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    on_output: Callable[[str], None] = lambda _: None,
) -> CommandResult:
    """Run `argv` in `folder`, sandboxed with these openings (None: no sandbox); stdout and stderr are merged.

    It is stopped at the timeout or when `cancelled` returns True. `on_output` gets the output while the command
    runs, on the calling thread; of a flood of output it gets the beginning.
    Raises: OSError: it cannot be started. ValueError: an argument contains a NUL byte.
    """
    if openings is None:
        return _run(list(argv), folder, timeout_s, cancelled, on_output)
    with guarded(folder) as guard, tempfile.TemporaryDirectory(prefix="tessera-command-") as scratch:
        done = _run(sandboxed(argv, guard, openings, Path(scratch)), folder, timeout_s, cancelled, on_output)
    return replace(done, output="\n".join([done.output, *guard.notes])) if guard.notes else done


def _run(
    argv: list[str], folder: Path, timeout_s: float, cancelled: Callable[[], bool], on_output: Callable[[str], None]
) -> CommandResult:
    started_at = time.monotonic()
    child = subprocess.Popen(
        argv,
        cwd=folder,
        env=program_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=sys.platform != "win32",
    )
    bound_memory(child.pid)
    output = _HeadAndTail()
    reader = threading.Thread(target=output.drain, args=(child,), name="agent-command", daemon=True)
    reader.start()
    exit_code: int | None = None
    try:
        while exit_code is None and not cancelled() and time.monotonic() - started_at < timeout_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                exit_code = child.wait(timeout=_LOOK_S)
            if new := output.taken():
                on_output(new)
    finally:
        # Kill all processes that the command left in its group.
        _end(child)
        # A process that left the group may hold the pipe open; do not wait for its output.
        reader.join(_DRAIN_S)
    if new := output.taken(final=True):
        on_output(new)
    return CommandResult(output=output.text(), exit_code=exit_code, elapsed_s=time.monotonic() - started_at)


def _end(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(psutil.Error):  # also processes that left the group
        for process in psutil.Process(child.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class _HeadAndTail:
    """The first and last bytes of a stream of any length."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._fresh = bytearray()
        self._missed = 0  # bytes since the last call of `taken` that are omitted from its result
        self._lock = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def taken(self, *, final: bool = False) -> str:
        """Output since the last call; at most as much as a result holds."""
        with self._lock:
            fresh, self._fresh = self._fresh, bytearray()
            missed, self._missed = self._missed + max(0, len(fresh) - _HEAD_BYTES - _TAIL_BYTES), 0
        text = self._decoder.decode(bytes(fresh[: _HEAD_BYTES + _TAIL_BYTES]), final)
        return f"{text}\n[... {missed} bytes not shown ...]\n" if missed else text

    def drain(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stdout is not None
        with child.stdout as stream:
            while chunk := stream.read1(65536):  # type: ignore[attr-defined]  # a BufferedReader
                with self._lock:
                    if len(self._fresh) < _HEAD_BYTES + _TAIL_BYTES:
                        self._fresh += chunk
                    else:
                        self._missed += len(chunk)
                room = _HEAD_BYTES - len(self._head)
                self._head += chunk[:room]
                self._tail += chunk[room:] if room > 0 else chunk
                if len(self._tail) > 2 * _TAIL_BYTES:
                    self._dropped += len(self._tail) - _TAIL_BYTES
                    del self._tail[:-_TAIL_BYTES]

    def text(self) -> str:
        if len(self._tail) > _TAIL_BYTES:
            self._dropped += len(self._tail) - _TAIL_BYTES
            del self._tail[:-_TAIL_BYTES]
        gap = f"\n[... {self._dropped} bytes left out ...]\n" if self._dropped else ""
        return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")
