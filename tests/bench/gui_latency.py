"""How the window feels, in numbers: start, streaming, long chats, scrolling, search, idle.

Run: python tests/bench/gui_latency.py [--json FILE]. Offscreen unless QT_QPA_PLATFORM says otherwise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["TESSERA_HOME"] = tempfile.mkdtemp(prefix="tessera-bench-")

import psutil
from PySide6.QtCore import QElapsedTimer, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.db import conversations, messages
from app.db.conversations import search
from app.db.store import (
    Store,
    open_in_memory,
    open_store,
)
from app.gui.application import Desktop
from app.gui.server_link import ServerLink
from engine.core.paths import user_paths

GOALS = {
    "visible_s": 1.0,
    "stream_p99_ms": 16.0,
    "open_2000_ms": 300.0,
    "scroll_worst_ms": 50.0,
    "search_100k_ms": 50.0,
    "idle_cpu_percent": 1.0,
}
START = """
import time; start = time.perf_counter()
import os, sys; sys.path.insert(0, {root!r})
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from app.db.store import open_or_memory
from app.gui.application import Desktop
from app.gui.server_link import ServerLink
from engine.core.paths import user_paths
app = QApplication([])
store, _ = open_or_memory(user_paths().state / "chats.db")
desktop = Desktop(app, store, ServerLink())
desktop.services.settings.now = desktop.services.settings.now.changed("server.start_with_window", False)
desktop.start()
def shown():
    if desktop.window.isVisible():
        print(time.perf_counter() - start, flush=True)
        app.quit()
QTimer.singleShot(0, lambda: (desktop.window.grab(), shown()))
app.exec(); desktop.close()
"""


class Gaps:
    """How long the event loop was away: gaps of a 5 ms timer."""

    def __init__(self):
        self.gaps = []
        self._clock = QElapsedTimer()
        self._timer = QTimer()
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(5)
        self._timer.timeout.connect(self._tick)

    def __enter__(self):
        self._clock.start()
        self._timer.start()
        return self

    def __exit__(self, *_):
        self._timer.stop()

    def _tick(self):
        self.gaps.append(self._clock.nsecsElapsed() / 1e6 - 5)
        self._clock.restart()

    def p99(self):
        return statistics.quantiles(self.gaps, n=100)[98]


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        QTest.qWait(20)
        if time.monotonic() > end:
            sys.exit("the window did not get there in 20 s")


def start_time():
    """Seconds from the first import to a painted window, in a process of its own; median of five (warm).

    Warm is compiled too, as an installed program is: a shell may be told to write no bytecode.
    """
    code = START.format(root=str(ROOT))
    env = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": f"{os.environ['TESSERA_HOME']}/compiled",
    }
    command = [sys.executable, "-c", code]
    runs = [float(subprocess.check_output(command, cwd=ROOT, env=env)) for _ in range(6)]
    return statistics.median(runs[1:])


ANSWER = (
    "## A heading\n\nSome text with **bold** and `code` that goes on for a while, as answers do. " * 2
    + "\n\n- first point with words\n- second point with words\n- third point\n\n"
    + "```python\ndef f(x):\n    return [g(y) for y in range(x)]  # a comment\n\n\nclass A:\n    pass\n```\n\n"
    + "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
)


def streaming(desktop):
    """p99 and worst gap while 200 tokens a second grow an answer to 32 KiB."""
    chat = desktop.window.chat
    store = desktop.services.store
    made = store.submit(conversations.create, title="stream", model="m").result()
    question = store.submit(messages.add, made.id, None, "user", "Write").result()
    store.submit(messages.add, made.id, question.id, "assistant", "", status="streaming").result()
    chat.open(made.id)
    wait_for(lambda: chat.controller.conversation.id == made.id)
    key = chat.controller.tree.leaf_id
    wait_for(lambda: chat.transcript.item(key) is not None)
    text = (ANSWER * 200)[: 32 * 1024]
    position = 28 * 1024
    chat.transcript._on_text(key, text[:position], "")
    wait_for(lambda: chat.transcript.item(key) is not None)
    QTest.qWait(300)
    step = 4 * 200 * 33 // 1000  # characters a flush: 200 tokens of 4 characters a second
    item = chat.transcript.item(key)
    timer = QTimer()
    timer.setInterval(33)

    def flush():
        nonlocal position
        item.append_text(text[position : position + step], "")
        position += step

    timer.timeout.connect(flush)
    with Gaps() as gaps:
        timer.start()
        end = time.monotonic() + 5
        while position < len(text) and time.monotonic() < end:
            QApplication.instance().processEvents()
            time.sleep(0.0005)
        timer.stop()
    return gaps.p99(), max(gaps.gaps)


def long_chat(desktop):
    """Milliseconds to open 2,000 messages and paint them; worst gap while scrolling from end to start."""
    store = desktop.services.store
    chat = desktop.window.chat
    made = store.submit(conversations.create, title="long", model="m").result()

    def fill(connection):
        parent = None
        with connection:
            for n in range(2000):
                role = "user" if n % 2 == 0 else "assistant"
                text = f"Question {n}?" if n % 2 == 0 else ANSWER
                parent = messages.add(connection, made.id, parent, role, text).id

    store.submit(fill).result()
    chat.new_chat()
    QTest.qWait(200)
    opened = []
    chat.controller.opened.connect(lambda: opened.append(1))
    begin = time.perf_counter()
    chat.open(made.id)
    while not opened:
        QApplication.instance().processEvents()
    QApplication.instance().processEvents()
    desktop.window.repaint()
    open_ms = (time.perf_counter() - begin) * 1000
    QTest.qWait(300)
    bar = chat.transcript.verticalScrollBar()
    with Gaps() as gaps:
        timer = QTimer()
        timer.setInterval(16)
        timer.timeout.connect(lambda: bar.setValue(bar.value() - 240))
        timer.start()
        QTest.qWait(4000)
        timer.stop()
        for share in (0.1, 0.6, 0.3, 0.9, 0.0, 1.0):
            bar.setValue(round(bar.maximum() * share))
            QTest.qWait(200)
    return open_ms, max(gaps.gaps), gaps.p99()


def find():
    """Milliseconds of the slowest of several searches over 100,000 messages."""
    connection = open_in_memory().connection
    made = conversations.create(connection, title="all")
    words = [f"word{n}" for n in range(5000)] + ["common"] * 500
    with connection:
        connection.executemany(
            "INSERT INTO messages(conversation_id, role, content, created_s) VALUES (?, 'user', ?, 0)",
            ((made.id, " ".join(words[(n * 7 + k * 31) % len(words)] for k in range(40))) for n in range(100_000)),
        )
    slowest = 0.0
    for query in ("word17", "common", "word17 com", "w", "word4999 word3", "nothing"):
        begin = time.perf_counter()
        search(connection, query)
        slowest = max(slowest, (time.perf_counter() - begin) * 1000)
    connection.close()
    return slowest


def idle(desktop):
    """Percent of one core while the window is shown and nothing happens."""
    desktop.window.show_page("chat")
    desktop.services.models.stop()
    QTest.qWait(1000)
    process = psutil.Process()
    before, begin = process.cpu_times(), time.perf_counter()
    loop = QTimer()
    loop.setSingleShot(True)
    app = QApplication.instance()
    loop.timeout.connect(app.quit)
    loop.start(5000)
    app.exec()
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    results = {"visible_s": start_time()}
    app = QApplication([])
    store = Store(open_store(user_paths().state / "chats.db"))
    desktop = Desktop(app, store, ServerLink())
    desktop.window.resize(1180, 760)
    desktop.window.show()
    QTest.qWait(300)
    results["stream_p99_ms"], results["stream_worst_ms"] = streaming(desktop)
    results["open_2000_ms"], results["scroll_worst_ms"], results["scroll_p99_ms"] = long_chat(desktop)
    results["idle_cpu_percent"] = idle(desktop)
    results["search_100k_ms"] = find()
    desktop.window.close()
    desktop.close()
    for name, value in results.items():
        goal = GOALS.get(name)
        verdict = "" if goal is None else ("  ok" if value <= goal else f"  MISSES {goal}")
        print(f"{name:20} {value:10.2f}{verdict}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
