"""A real `tessera serve` process for tests."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # servers write bytecode, like an installed program
START_S = 120  # imports are slow on a busy machine; a server that exits is reported immediately

# A shell that starts the tests in the background makes them ignore Ctrl-C, and child processes inherit that.
HEARS_INTERRUPTS: dict[str, Any] = (
    {} if sys.platform == "win32" else {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
)


# llama.cpp's memory figures of loads, which each server would request again in a child: by file and settings.
_dry_runs: dict[str, Any] = {}


def give_dry_runs(home: Path) -> None:
    """Give a new home the dry runs that another one made in this process."""
    file = home / "cache" / "dry_runs.json"
    if _dry_runs and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"version": 1, "data": _dry_runs}))


def take_dry_runs(home: Path) -> None:
    """Remember the dry runs of that home."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # KeyError: an old home has the form of its version
        _dry_runs.update(json.loads((home / "cache" / "dry_runs.json").read_text())["data"])


class RunningServer:
    """Runs on a free port with a separate home. `log` is its stderr, `program` the module that is run."""

    def __init__(
        self, home: Path, *arguments: str, env: dict[str, str] | None = None, program: str = "app"
    ) -> None:
        self.home = home
        self._is_usual = program == "app"
        if self._is_usual:
            give_dry_runs(home)
        self.log_path = home / "server.log"
        started = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, "serve", "--port", "0", *arguments],
                cwd=ROOT,
                env={**os.environ, "TESSERA_HOME": str(home), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        file = home / "state" / "server.json"
        while not file.exists():
            if self.process.poll() is not None or time.monotonic() - started > START_S:
                raise RuntimeError(f"the server did not start: {self.log}")
            time.sleep(0.01)
        told = json.loads(file.read_text())
        self.started_s = time.monotonic() - started
        self.url: str = told["url"]
        self.token: str = told["token"]

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def runners(self, module: str = "engine.runner.main") -> list[psutil.Process]:
        """The live runner processes of this server, or those that run another module."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if module in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
            except psutil.Error:
                continue
        return found

    def stop(self) -> None:
        if self._is_usual:
            take_dry_runs(self.home)
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def runs(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """A free loopback port below the system's ephemeral range.

    A port in that range could be taken at any moment by a connection or another test's server.
    """
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 32_768
    while True:
        port = 10_000 + secrets.randbelow(first - 10_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_for(condition, seconds: float = 60.0, what: str = "condition") -> float:
    """Wait until `condition()` is true; return the seconds it took.

    Most conditions are requests, which cost the server CPU time too, so slow ones are checked less often.
    """
    started, pause = time.monotonic(), 0.01
    while not condition():
        if time.monotonic() - started > seconds:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(pause)
        pause = min(0.06, 1.1 * pause)
    return time.monotonic() - started


@contextlib.contextmanager
def unfinished_answer(server: RunningServer, client: Any, model: str, *, tokens: int = 400) -> Iterator[None]:
    """An answer whose runner is paused in the middle until the block ends; then it finishes."""
    body = {"model": model, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        loaded = client.get("/tessera/v1/loaded").json()["models"]
        pid = next(row["pid"] for row in loaded if row["id"] == model)
        runner = next(process for process in server.runners() if process.pid == pid)
        runner.suspend()
        try:
            yield
        finally:
            runner.resume()
        assert any("[DONE]" in line for line in lines), "the answer came to its end"
