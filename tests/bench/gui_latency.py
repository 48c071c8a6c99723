"""Measures the window: start, streaming, long chats, scrolling, search, idle.

Also typing, resizing and switching pages with an empty chat, 2,000 messages and a message of 2 MB, compared with
an empty Qt window.

Run: python tests/bench/gui_latency.py [--only moves] [--json FILE] [--profile FILE]. Offscreen unless
QT_QPA_PLATFORM is set. `--profile` writes a profile of the moves for pstats.
"""

import argparse
import cProfile
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
from PySide6.QtCore import QElapsedTimer, QEvent, QObject, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPlainTextEdit

from app.db import conversations, messages
from app.db.conversations import search
from app.db.store import (
    Store,
    open_in_memory,
    open_store,
)
from app.gui.application import Desktop
from app.gui.markdown.document import warm_up
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
MOVE_P99_MS, ABOVE_EMPTY_MS = 16.0, 50.0  # goals of every move: p99, and the worst above that of an empty window
WIDTHS = (900, 1180, 1440)
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
    """Times when the event loop was blocked: gaps of a 5 ms timer."""

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


class LayoutRequests(QObject):
    """Counts layout requests: a page that lays itself out in a loop has thousands."""

    count = 0

    def eventFilter(self, watched, event):
        self.count += event.type() == QEvent.Type.LayoutRequest
        return super().eventFilter(watched, event)


def moves(name, window, editor, pages=()):
    """p99 and worst gaps of typing, resizing and switching pages, and layout requests per key."""
    found = {}

    def gaps_of(what, steps, pause_ms):
        QTest.qWait(300)
        with Gaps() as gaps:
            for step in steps:
                step()
                QTest.qWait(pause_ms)
        found[f"{name}_{what}_p99_ms"], found[f"{name}_{what}_worst_ms"] = gaps.p99(), max(gaps.gaps)

    requests = LayoutRequests()
    text = "The tide comes in twice a day, and each time a little later than before. "
    keys = [lambda letter=letter: QTest.keyClicks(editor, letter) for letter in text]
    for width in WIDTHS:
        window.resize(width, 760)
        editor.clear()
        gaps_of(f"typing_{width}", keys, 30)
        QApplication.instance().installEventFilter(requests)  # by itself: it slows every event down
        requests.count = 0
        QTest.keyClicks(editor, text)
        QTest.qWait(100)
        QApplication.instance().removeEventFilter(requests)
        found[f"{name}_requests_per_key_{width}"] = requests.count / len(text)
    editor.clear()
    sizes = [*range(900, 1440, 20), *range(1440, 900, -20)]
    gaps_of("resizing", [lambda width=width: window.resize(width, 760) for width in sizes], 40)
    window.resize(1180, 760)
    if pages:
        for page in pages:
            window.show_page(page)  # built
            QTest.qWait(200)
        gaps_of("pages", [lambda page=page: window.show_page(page) for page in (*pages, "chat") * 3], 150)
        window.show_page("chat")
    return found


def all_moves(desktop, profile=None):
    """The moves of an empty Qt window, and of this one over three kinds of chats."""
    empty = QPlainTextEdit()
    empty.resize(1180, 760)
    empty.show()
    QTest.qWait(300)
    found = moves("qt", empty, empty)
    empty.close()
    window, store, chat = desktop.window, desktop.services.store, desktop.window.chat
    watched = cProfile.Profile()

    def over(name):
        watched.enable()
        found.update(moves(name, window, chat.composer.editor, window.page_names))
        watched.disable()

    chat.new_chat()
    over("empty")
    for name, kinds in (("messages", ["Why?", ANSWER] * 1000), ("large", [ANSWER * 4000, "Read."])):
        made = store.submit(conversations.create, title=name, model="m").result()

        def fill(connection, kinds=kinds, number=made.id):
            parent = None
            with connection:
                for place, text in enumerate(kinds):
                    role = "assistant" if place % 2 else "user"
                    parent = messages.add(connection, number, parent, role, text[:2_000_000]).id

        store.submit(fill).result()
        with Gaps() as gaps:
            chat.open(made.id)
            wait_for(lambda number=made.id: chat.controller.conversation.id == number)
            QTest.qWait(1500)
        found[f"{name}_open_worst_ms"] = max(gaps.gaps)
        over(name)
    if profile:
        watched.dump_stats(profile)
    return found


def verdict_of(name, value, results):
    """A figure's relation to its goal."""
    goal = GOALS.get(name)
    if name.endswith("_p99_ms") and goal is None:
        goal = MOVE_P99_MS
    if name.endswith("_worst_ms") and goal is None and name.split("_")[0] in {"empty", "messages", "large"}:
        beside = "qt_" + name.split("_", 1)[1]
        goal = ABOVE_EMPTY_MS + results.get(beside, 0.0)
    return "" if goal is None else ("  ok" if value <= goal else f"  MISSES {goal:.1f}")


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
    parser.add_argument("--only", choices=("all", "moves"), default="all")
    parser.add_argument("--profile", type=Path)
    chosen = parser.parse_args()
    results = {} if chosen.only == "moves" else {"visible_s": start_time()}
    app = QApplication([])
    store = Store(open_store(user_paths().state / "chats.db"))
    desktop = Desktop(app, store, ServerLink())
    desktop.window.resize(1180, 760)
    desktop.window.show()
    warm_up()  # as `Desktop.start` does soon after the window is shown
    QTest.qWait(300)
    if chosen.only == "all":
        results["stream_p99_ms"], results["stream_worst_ms"] = streaming(desktop)
        results["open_2000_ms"], results["scroll_worst_ms"], results["scroll_p99_ms"] = long_chat(desktop)
    results |= all_moves(desktop, chosen.profile)
    if chosen.only == "all":
        results["idle_cpu_percent"] = idle(desktop)
        results["search_100k_ms"] = find()
    desktop.window.close()
    desktop.close()
    for name, value in results.items():
        print(f"{name:32} {value:10.2f}{verdict_of(name, value, results)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
