"""The server process of the window, and of an earlier window that was killed before it could end its server."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engine.core.paths import user_paths

if TYPE_CHECKING:
    import psutil

# A server that ends takes its work along and leaves no half files; on a busy computer that takes a while.
_END_S = 20.0
# Clocks of two readings of one start time differ by less; a process id is not given again that soon.
_SAME_START_S = 1.0


class ChildServer:
    """A server that ends with the window. `popen` is None for an adopted one, which is no child of this process."""

    def __init__(self, process: "psutil.Process", popen: "subprocess.Popen[bytes] | None" = None) -> None:
        self._process, self._popen = process, popen

    @property
    def alive(self) -> bool:
        """It runs."""
        if self._popen is not None:
            return self._popen.poll() is None
        return self._process.is_running() and self._process.status() != "zombie"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or when it was adopted."""
        return self._popen.poll() if self._popen is not None else None

    def end(self) -> None:
        """End it and wait for it."""
        import psutil  # noqa: PLC0415 - not before the window is shown

        with suppress(psutil.NoSuchProcess):
            self._process.terminate()
            try:
                self._wait(_END_S)
            except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
                self._process.kill()
                self._wait(None)
        _note().unlink(missing_ok=True)

    def _wait(self, seconds: float | None) -> None:
        if self._popen is not None:
            self._popen.wait(seconds)
        else:
            self._process.wait(seconds)


def started(popen: "subprocess.Popen[bytes]") -> ChildServer:
    """The server this window just started; noted for the next window, should this one be killed."""
    import psutil  # noqa: PLC0415 - not before the window is shown

    process = psutil.Process(popen.pid)
    note = _note()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"pid": popen.pid, "started": process.create_time()}), "utf-8")
    return ChildServer(process, popen)


def adopted(pid: int) -> ChildServer | None:
    """The server `pid` if an earlier window started it; None if it is somebody else's, such as a terminal's."""
    import psutil  # noqa: PLC0415 - not before the window is shown

    try:
        saved = json.loads(_note().read_text("utf-8"))
        process = psutil.Process(int(saved["pid"]))
        same = abs(process.create_time() - float(saved["started"])) < _SAME_START_S
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return ChildServer(process) if same and process.pid == pid else None


def _note() -> Path:
    return user_paths().state / "window-server.json"
