"""One `flm serve` process: started on a free port of loopback, watched, stopped."""

import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import httpx2
import psutil

from devices.environment import without_secrets
from engine.core.addresses import free_port
from engine.flm.detect import executable

# Large models take minutes to reach the NPU. Source: Lemonade waits as long.
READY_S: Final = 300.0
_POLL_S: Final = 0.1
_STOP_S: Final = 3.0


class StartFailed(Exception):
    """FastFlowLM is missing, or its server did not come up; the message says why and what to do."""


class FlmServer:
    """The process. `last_line` is the newest it printed."""

    def __init__(self, tag: str, n_ctx: int) -> None:
        """Raises: StartFailed."""
        program = executable()
        if program is None:
            raise StartFailed(
                "FastFlowLM is not installed: there is no `flm`. See https://fastflowlm.com/docs/install"
            )
        port = free_port()
        self.tag = tag
        self.url = f"http://127.0.0.1:{port}"
        self._lines: deque[str] = deque(maxlen=40)
        # Its default is every network interface.
        command = [program, "serve", tag, "--host", "127.0.0.1", "--port", str(port), "--ctx-len", str(n_ctx)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=without_secrets({"FLM_DISABLE_UPDATE_CHECK": "1"}),
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise StartFailed(f"{program} could not be started: {error.strerror}") from error
        self._reader = threading.Thread(target=self._read, name="flm-output", daemon=True)
        self._reader.start()

    @property
    def last_line(self) -> str:
        """The newest line it printed."""
        return self._lines[-1] if self._lines else "it said nothing"

    @property
    def rss_bytes(self) -> int:
        """Memory it holds on the processor's side."""
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip():
                self._lines.append(line.strip()[:400])

    def wait_ready(self, progress: Callable[[float], None], timeout_s: float = READY_S) -> None:
        """Until it answers. Raises: StartFailed: it ended, or said nothing in time."""
        started = time.monotonic()
        with httpx2.Client(timeout=2.0, trust_env=False) as client:
            while (waited := time.monotonic() - started) < timeout_s:
                code = self._process.poll()
                if code is not None:
                    self._reader.join(1)
                    raise StartFailed(f"flm ended with code {code}: {self.last_line}. Try `flm validate`.")
                try:
                    if client.get(f"{self.url}/api/tags").status_code == httpx2.codes.OK:
                        progress(1.0)
                        return
                except httpx2.HTTPError:
                    pass  # not yet
                progress(min(0.95, waited / timeout_s))
                time.sleep(_POLL_S)
        raise StartFailed(f"flm gave no answer within {timeout_s:.0f} s: {self.last_line}. Try `flm validate`.")

    def wait(self) -> int:
        """Until it ends; its exit code."""
        code = self._process.wait()
        self._reader.join(1)
        return code

    def stop(self) -> None:
        """End it: politely, then for certain."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
