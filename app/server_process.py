"""A server of one's own, for when none runs."""

import json
import os
import subprocess
import threading
from collections import deque
from typing import Final

from app.client import Client, ServerUnreachable
from devices.child_command import own_command

START_S: Final = 20.0


class ServerProcess:
    """A private server that ends with this process, however this process ends."""

    def __init__(self, *arguments: str) -> None:
        command = own_command("serve", "--port", "0", "--private", str(os.getpid()), *arguments)
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._stderr: deque[str] = deque(maxlen=50)
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def connect(self) -> Client:
        """Wait until the server takes requests.

        Raises: ServerUnreachable: it ended or did not come up in START_S.
        """
        assert self._process.stdout is not None
        timer = threading.Timer(START_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        try:
            told = json.loads(line)
        except ValueError:
            self.stop()
            raise ServerUnreachable("127.0.0.1", "; ".join(self._stderr) or "it did not start") from None
        return Client(told["url"], told["token"])

    def stop(self) -> None:
        """End the server and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._drain.join(1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr.append(line.rstrip())
