"""Runs the parts of a marathon: a server that exits and restarts, the window, a writer of chats, a clock."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.support.servers import ROOT, RunningServer

# Prints each message's number after the store has acknowledged it. A store that cannot write is tried again.
WRITER = """
import sys, time
from pathlib import Path
from app.db import conversations, messages
from app.db.store import open_store
from app.db.errors import StoreError
from app.db.store import Store
store = Store(open_store(Path(sys.argv[1])))
chat = None
while True:
    try:
        if chat is None:
            chat = store.submit(conversations.create, title="x").result()
        sent = store.submit(messages.add, chat.id, None, "user", "a message " * 20).result()
        print(sent.id, flush=True)
    except StoreError as error:
        print("refused", type(error).__name__, flush=True)
    time.sleep(0.05)
"""


def free_port():
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return any_socket.getsockname()[1]


def free_display():
    """A display number that is not in use, so that two runs can run in parallel."""
    return next(f":{n}" for n in range(93, 200) if not Path(f"/tmp/.X{n}-lock").exists())


def alive(process):
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def built_clock(folder):
    """The library that moves the clock, compiled; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = folder / "false_clock.so"
    source = Path(__file__).parent / "false_clock.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


class World:
    """Everything that exists during the run. `found` collects findings, `tried` counts injected faults."""

    def __init__(self, folder, rng, hub_address):
        self.folder, self.rng = folder, rng
        self.home, self.port = folder / "home", free_port()
        self.scratch = folder / "tmp"
        self.scratch.mkdir(parents=True, exist_ok=True)
        (self.home / "models").mkdir(parents=True, exist_ok=True)
        self.clock = folder / "clock"
        self.set_clock(0)
        self.false_clock = built_clock(folder)
        self.env = {"HF_ENDPOINT": hub_address, "TMPDIR": str(self.scratch), "NO_PROXY": "127.0.0.1"}
        self.found, self.log_bytes, self.server_starts = [], 0, 0
        self.server = self.window = self.writer = self.screen = None
        self.up = asyncio.Event()
        self.acknowledged, self.refused_writes, self.beats = 0, 0, []
        self.windows, self.damaging = 0, False
        self.own_disk = folder.is_mount()

    def blame(self, what):
        self.found.append(what)
        print("FOUND", what[:1500], flush=True)

    # ------------------------------------------------------------------ server

    def _server_env(self):
        if self.false_clock is None:
            return self.env
        return {**self.env, "FALSE_CLOCK": str(self.clock), "LD_PRELOAD": str(self.false_clock)}

    async def start_server(self):
        """Start it on the same port as before; not being up within two minutes is a finding."""
        self.server_starts += 1
        (self.home / "state" / "server.json").unlink(missing_ok=True)
        arguments = ("--port", str(self.port))
        for attempt in range(4):
            try:
                make = lambda: RunningServer(self.home, *arguments, env=self._server_env())
                self.server = await asyncio.to_thread(make)
            except RuntimeError as error:
                said = str(error)[-600:]
                await asyncio.sleep(5 * attempt)
            else:
                self.up.set()
                return
        raise RuntimeError(f"the server does not start any more: {said}")

    def read_log(self):
        """Look through the log of the server that just ended, or runs."""
        if self.server is None:
            return
        text = self.server.log
        self.log_bytes += len(text)
        ends = Counter()
        # A log that cannot be written, on a full disk, is reported by a separate traceback.
        text = re.sub(r"--- Logging error ---\n.*?(?=\n--- Logging|\n\d{4}-|\Z)", "", text, flags=re.DOTALL)
        for part in text.split("Traceback (most recent call last):")[1:]:
            lines = part.splitlines()
            error = next((n for n, line in enumerate(lines) if line and not line.startswith((" ", "\t"))), 0)
            ends["\n".join(lines[max(0, error - 6) : error + 1])] += 1
        # A server without descriptors reports it itself, with few lines per minute.
        for end, number in [(e, n) for e, n in ends.most_common() if "_accept_connection" not in e][:5]:
            self.blame(f"{number} times in the server's log: {end[-900:]}")
        for line in text.splitlines():
            if "taken as empty" in line and not self.damaging:
                self.blame(f"the server took a file for damaged that nobody damaged: {line[-300:]}")

    async def end_server(self, how=signal.SIGKILL):
        """End the server by a signal. After SIGTERM it must end within 30 s, its children within another 20 s."""
        process = psutil.Process(self.server.process.pid)
        children = process.children(recursive=True)
        self.up.clear()
        process.send_signal(how)
        try:
            await asyncio.to_thread(self.server.process.wait, 60)
        except subprocess.TimeoutExpired:
            self.blame("the server did not end within 60 s of SIGTERM")
            self.server.process.kill()
            await asyncio.to_thread(self.server.process.wait)
        for _ in range(200):
            if not any(map(alive, children)):
                break
            await asyncio.sleep(0.1)
        else:
            left = [(c.pid, c.status(), c.cmdline()[1:6]) for c in children if alive(c)]
            self.blame(f"processes outlive their server by 20 s: {left}")
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self.read_log()
        self.server_sums = None

    # ------------------------------------------------------------------ window

    def start_window(self):
        """The real window on a separate display. Prints one line per second; see marathon_window.py."""
        if shutil.which("Xvfb") is None:
            return
        if self.screen is None:
            self.display = free_display()
            self.screen = subprocess.Popen(
                ["Xvfb", self.display, "-screen", "0", "1400x900x24"], stderr=subprocess.DEVNULL
            )
            time.sleep(1)
        env = {**os.environ, **self.env, "TESSERA_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        env |= {"TESSERA_SERVER_PORT": str(self.port), "TESSERA_SERVER_START_WITH_WINDOW": "false"}
        env |= {"DISPLAY": self.display, "QT_QPA_PLATFORM": "xcb", "MARATHON_SEED": str(self.rng.getrandbits(30))}
        self.windows += 1
        self.window_log = self.folder / f"window{self.windows}.log"
        with self.window_log.open("wb") as log:
            program = Path(__file__).parent / "marathon_window.py"
            self.window = subprocess.Popen(
                [sys.executable, str(program)], env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=log
            )
        self.beats.append(time.monotonic())
        threading.Thread(target=self._hear_window, args=(self.window,), daemon=True).start()

    def _hear_window(self, process):
        for line in process.stdout:
            self.beats.append(time.monotonic())
            if b"late" in line:
                self.window_late = max(getattr(self, "window_late", 0.0), float(line.split()[1]))

    def end_window(self, how=signal.SIGKILL):
        if self.window is None:
            return
        self.window.send_signal(how)
        self.window.wait(60)
        said = self.window_log.read_text(errors="replace")
        if "Traceback" in said:
            self.blame(f"a traceback of the window: {said[said.index('Traceback') :][:1500]}")

    # ------------------------------------------------------------------ chats

    @property
    def chats(self):
        return self.folder / "writer" / "chats.db"

    def start_writer(self):
        self.chats.parent.mkdir(exist_ok=True)
        env = {**os.environ, **self.env, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", WRITER, str(self.chats)]
        log = (self.folder / "writer.log").open("ab")
        self.writer = subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
        log.close()
        self.heard = threading.Thread(target=self._hear_writer, args=(self.writer,), daemon=True)
        self.heard.start()

    def _hear_writer(self, process):
        for line in process.stdout:
            if line.startswith(b"refused"):
                self.refused_writes += 1
            else:
                self.acknowledged += 1
                self.last_sent = int(line)

    def end_writer(self):
        """Kill it and count: every acknowledged message is in the file, and the file is intact."""
        self.writer.kill()
        self.writer.wait()
        self.heard.join(20)
        import apsw

        if not self.chats.exists():
            return
        database = apsw.Connection(str(self.chats))
        ((kept,),) = database.execute("SELECT count(*) FROM messages")
        ((whole,),) = database.execute("PRAGMA integrity_check")
        database.close()
        if kept < self.acknowledged or whole != "ok":
            self.blame(f"{self.acknowledged} messages were acknowledged, {kept} are there; integrity: {whole}")

    # ------------------------------------------------------------------ clock, requests of management

    def set_clock(self, shift_s):
        """Move the clock of the server and its children; the file stays the same one, because they map it."""
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(shift_s.to_bytes(8, "little", signed=True))

    def told(self):
        return json.loads((self.home / "state" / "server.json").read_text())

    def close(self):
        server = self.server.process if self.server is not None else None
        for process in (self.window, self.writer, self.screen, server):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
