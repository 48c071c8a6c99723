"""Operates a window at random for minutes and reports errors, blocked event loops and broken texts.

    python tests/optin/window_monkey.py [--seconds 300] [--seed 1] [--pace-ms 120]

A real window (offscreen) has its own real server and folders. Visible and enabled controls are clicked, typed
into, chosen from and resized; file dialogs get a test folder or are cancelled. Reported, with the last actions
before: exceptions in slots and threads, warnings of Qt, an event loop that was blocked for a second, a window that
died, texts with an unfilled field (`{name}`), `None`, an object's address or a traceback. Exits with 1 if anything
was reported. The same seed gives the same actions, but answers and jobs vary in time.
"""

import argparse
import faulthandler
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

_LATE_S = 1.0
_BEAT_MS = 50
_ACTIONS_TOLD = 12
_SENTENCES = (
    "What is a tensor?",
    "",
    "   ",
    "1e999",
    "-1",
    "../../etc/passwd",
    "<b>bold</b> & {name} %1 %s",
    "```python\nprint(1)\n```",
    "ÄÖÜ ß 漢字 🦊 \u202e\u0000\x1b[2J",
    "a" * 5000,
    "http://127.0.0.1:9/v1",
    "$x^2$ | a | b |\n|---|---|\n| 1 | 2 |",
)
# A hole in a text, or what only programs say. Chats, code and names that were typed are left out.
_WRONG = re.compile(r"(?<!\{)\{[a-z_]+\}(?!\})|\bNone\b|<[\w.]+ object at|Traceback|\bnan\b|%[12]\b|\bKeyError\b")
# Texts of the platform plugin of tests, not of the program.
_KNOWN = re.compile(r"This plugin does not support|XDG_RUNTIME_DIR|OpenType support missing")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace-ms", type=int, default=120)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given)
    with tempfile.TemporaryDirectory(prefix="monkey-") as home:
        folder = Path(home) / "safe"
        folder.mkdir()
        (folder / "lease.md").write_text("# Lease\n\nThe rent is due on the fifth of each month.\n" * 40)
        (folder / "sums.py").write_text("def add(a, b):\n    return a + b\n")
        environment = os.environ | {
            "HOME": home,
            "TESSERA_HOME": f"{home}/tessera",
            "MONKEY_FOLDER": str(folder),
            "QT_QPA_PLATFORM": "offscreen",
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, __file__, "--child", *sys.argv[1:]]
        done = subprocess.run(command, env=environment, cwd=home, timeout=given.seconds + 240, check=False)
    if done.returncode not in {0, 1}:
        print(f"FOUND the window died: exit {done.returncode}")
    return int(done.returncode != 0)


class Monkey:
    """Acts on a timer of the event loop, so that dialogs with a loop of their own are pressed too."""

    def __init__(self, seed: int, seconds: float, pace_ms: int) -> None:
        self.rng = random.Random(seed)
        self.pace_ms = pace_ms
        self.ends = time.monotonic() + seconds
        self.acts: deque[str] = deque(maxlen=_ACTIONS_TOLD)
        self.count = 0
        self.kinds: dict[str, int] = {}
        self.found: dict[str, str] = {}
        self.worst_s = self.worst_work_s = self._busy = 0.0
        self.stack = ""
        self._beat = time.monotonic()

    def tell(self, what: str) -> None:
        """Something that is wrong, once."""
        key = re.sub(r"0x[0-9a-f]+|\d+", "#", what)[-300:]
        if key not in self.found:
            self.found[key] = what
            print(f"FOUND {what}\n  after: " + "\n         ".join(self.acts), flush=True)

    def beat(self) -> None:
        now, busy = time.monotonic(), time.thread_time()
        late, worked = now - self._beat - _BEAT_MS / 1000, busy - self._busy
        self._beat, self._busy = now, busy
        self.worst_s, self.worst_work_s = max(self.worst_s, late), max(self.worst_work_s, worked)
        stack, self.stack = self.stack, ""
        if late > _LATE_S and worked > _LATE_S / 2:  # less work than that: the machine was busy
            self.tell(f"stood still for {late:.1f} s, {worked:.1f} s of it at work\n{stack}")

    def watch(self) -> None:
        """From another thread: where the event loop stands when it is late."""
        main = threading.main_thread().ident
        while True:
            time.sleep(_LATE_S / 4)
            frame = sys._current_frames().get(main)
            if frame is None:  # the program ends
                return
            if time.monotonic() - self._beat > _LATE_S * 0.7 and not self.stack:
                self.stack = "".join(traceback.format_stack(frame)[-14:])

    def act(self) -> None:
        from PySide6.QtCore import QTimer
        from PySide6.QtWidgets import QApplication, QFileDialog, QMenu

        if time.monotonic() > self.ends:
            self.leave()
            return
        # Before the act: a dialog with a loop of its own keeps this call from ending, and would a repeating timer.
        QTimer.singleShot(self.pace_ms, self.act)
        front = QApplication.activePopupWidget() or QApplication.activeModalWidget()
        if isinstance(front, QFileDialog):
            self._answer_files(front)
        elif isinstance(front, QMenu):
            self._choose(front)
        else:
            self._press(front)
        self.count += 1
        if self.count % 10 == 0:
            self._read()

    def leave(self) -> None:
        from PySide6.QtWidgets import QApplication

        print(f"the time is over after {self.count} actions", flush=True)
        self.beats.stop()
        while (front := QApplication.activePopupWidget() or QApplication.activeModalWidget()) is not None:
            front.close()
        QApplication.closeAllWindows()
        QApplication.quit()

    def _note(self, what: str) -> None:
        self.acts.append(what)
        self.kinds[what.split(" ", 1)[0]] = self.kinds.get(what.split(" ", 1)[0], 0) + 1

    def _answer_files(self, dialog) -> None:
        if self.rng.random() < 0.6:
            self._note("files cancelled")
            dialog.reject()
            return
        place = os.environ["MONKEY_FOLDER"]
        if dialog.fileMode() is not type(dialog).FileMode.Directory:
            place += (
                "/lease.md" if dialog.acceptMode() is type(dialog).AcceptMode.AcceptOpen else f"/{self.count}.md"
            )
        self._note(f"files {place}")
        dialog.setDirectory(os.environ["MONKEY_FOLDER"])
        dialog.selectFile(place)
        dialog.accept()

    def _choose(self, menu) -> None:
        offers = [a for a in menu.actions() if a.isEnabled() and a.isVisible() and not a.isSeparator()]
        if not offers or self.rng.random() < 0.25:
            self._note("menu closed")
            menu.close()
            return
        chosen = self.rng.choice(offers)
        self._note(f"menu {chosen.text()}")
        menu.close()
        chosen.trigger()

    def _press(self, front) -> None:
        from PySide6.QtCore import QPoint, Qt
        from PySide6.QtTest import QTest
        from PySide6.QtWidgets import (
            QAbstractButton,
            QAbstractItemView,
            QAbstractSlider,
            QAbstractSpinBox,
            QApplication,
            QComboBox,
            QLineEdit,
            QPlainTextEdit,
            QTabBar,
            QTextEdit,
            QWidget,
        )

        roots = [front] if front else [w for w in QApplication.topLevelWidgets() if w.isVisible()]
        kinds = (QAbstractButton, QAbstractItemView, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit,
                 QPlainTextEdit, QTabBar, QTextEdit)  # fmt: skip
        made: list[QWidget] = [
            w for root in roots for w in root.findChildren(QWidget)
            if isinstance(w, kinds) and w.isVisible() and w.isEnabled() and not w.visibleRegion().isEmpty()
        ]  # fmt: skip
        luck = self.rng.random()
        if luck < 0.1 or not made:
            self._key(front or QApplication.activeWindow() or (roots or [None])[0])
            return
        if luck < 0.13 and not front and roots:
            size = self.rng.choice([(420, 500), (760, 560), (1180, 780), (1800, 1000)])
            self._note(f"resize {size}")
            roots[0].resize(*size)
            return
        # By kind first: a page with forty fields would otherwise be left once in a hundred acts.
        kind = self.rng.choice(sorted({type(w).__name__ for w in made}))
        widget = self.rng.choice([w for w in made if type(w).__name__ == kind])
        at = widget.visibleRegion().boundingRect()
        name = widget.accessibleName() or getattr(widget, "text", lambda: "")() or widget.objectName()
        self._note(f"{type(widget).__name__} {str(name)[:60]!r}")
        if isinstance(widget, QLineEdit | QPlainTextEdit | QTextEdit) and not widget.isReadOnly():
            widget.setFocus()
            if self.rng.random() < 0.3:
                QTest.keyClick(widget, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
            text = self.rng.choice(_SENTENCES)
            self.acts[-1] += f" typed {text[:30]!r}"
            QApplication.clipboard().setText(text)
            widget.paste()
            if self.rng.random() < 0.4:
                QTest.keyClick(widget, Qt.Key.Key_Return)
            return
        spot = at.center()
        if isinstance(widget, QAbstractItemView | QAbstractSlider | QTabBar):
            spot = QPoint(self.rng.randint(at.left(), at.right()), self.rng.randint(at.top(), at.bottom()))
        right = self.rng.random() < 0.08
        target = widget.viewport() if isinstance(widget, QAbstractItemView) else widget
        press = Qt.MouseButton.RightButton if right else Qt.MouseButton.LeftButton
        if self.rng.random() < 0.05:
            QTest.mouseDClick(target, press, pos=spot)
        else:
            QTest.mouseClick(target, press, pos=spot)

    def _key(self, target) -> None:
        from PySide6.QtCore import Qt
        from PySide6.QtTest import QTest

        if target is None:
            return
        none, control = Qt.KeyboardModifier.NoModifier, Qt.KeyboardModifier.ControlModifier
        keys = [(k, none) for k in ("Escape", "Tab", "Return", "Down", "Up", "Space", "Delete", "F1", "Home")]
        keys += [
            (k, control) for k in ["K", "N", "F", "Z", "B", "L", "Comma", "1", "2", "3", "4", "5", "Plus", "0"]
        ]
        key, held = self.rng.choice(keys)
        self._note(f"key {'Ctrl+' if held == control else ''}{key}")
        QTest.keyClick(target.focusWidget() or target, getattr(Qt.Key, f"Key_{key}"), held)

    def _read(self) -> None:
        """Look at what the labels and buttons say."""
        from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel

        for root in QApplication.topLevelWidgets():
            for made in root.findChildren(QLabel) + root.findChildren(QAbstractButton):
                text = made.text() if made.isVisible() else ""
                if _WRONG.search(text) and not any(s and s[:20] in text for s in _SENTENCES):
                    self.tell(f"a text: {text[:200]!r} in {type(made.parent()).__name__}")


def child(given: argparse.Namespace) -> int:
    """The window and its monkey in one process."""
    from PySide6.QtCore import QObject, QTimer, QUrl, Slot, qInstallMessageHandler
    from PySide6.QtGui import QDesktopServices

    from app.gui import application, crash

    faulthandler.enable()
    monkey = Monkey(given.seed, given.seconds, given.pace_ms)

    def on_qt(kind, _context, text):
        if not _KNOWN.search(text):
            monkey.tell(f"Qt says ({kind.name}): {text}")

    def on_exception(kind, error, trace):
        monkey.tell("".join(traceback.format_exception(kind, error, trace)))

    qInstallMessageHandler(on_qt)
    installed = crash.CrashReports.install

    def install(self):
        installed(self)
        sys.excepthook = on_exception

    crash.CrashReports.install = install
    threading.excepthook = lambda a: on_exception(a.exc_type, a.exc_value, a.exc_traceback)
    sys.unraisablehook = lambda a: on_exception(a.exc_type, a.exc_value, a.exc_traceback)

    class Nothing(QObject):
        """Where links and folders are opened: no browser here."""

        @Slot(QUrl)
        def opened(self, _url):
            pass

    nothing = Nothing()

    class Watched(application.Desktop):
        def start(self):
            super().start()
            for scheme in ("http", "https", "file"):
                QDesktopServices.setUrlHandler(scheme, nothing, "opened")
            monkey.beats = QTimer(self.window)
            monkey.beats.timeout.connect(monkey.beat)
            monkey._beat, monkey._busy = time.monotonic(), time.thread_time()
            threading.Thread(target=monkey.watch, daemon=True).start()
            monkey.beats.start(_BEAT_MS)
            QTimer.singleShot(given.pace_ms, monkey.act)

    application.Desktop = Watched
    began = time.monotonic()
    code = application.run([])
    kinds = ", ".join(f"{n} {k}" for k, n in sorted(monkey.kinds.items(), key=lambda i: -i[1]))
    print(
        f"seed {given.seed}: {monkey.count} actions in {time.monotonic() - began:.0f} s ({kinds}); "
        f"longest stop of the event loop "
        f"{monkey.worst_s:.2f} s, {monkey.worst_work_s:.2f} s of work; {len(monkey.found)} found; exit {code}"
    )
    return int(bool(monkey.found) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
