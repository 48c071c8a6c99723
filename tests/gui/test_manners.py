"""How the window behaves: one instance, dropped files, shortcuts, closing, crashes, the tray, contrast, sizes."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent, QGuiApplication
from PySide6.QtNetwork import QLocalSocket
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QApplication,
    QLabel,
    QPushButton,
    QSystemTrayIcon,
    QToolButton,
    QWidget,
)

from app.db.connection import open_store
from app.db.store import Store
from app.gui import tray
from app.gui.application import Desktop
from app.gui.crash import CrashReports, redact
from app.gui.leaving import would_be_lost
from app.gui.look import tokens
from app.gui.shortcuts import SHORTCUTS, ShortcutSheet
from app.gui.single_instance import SingleInstance
from app.gui.tray import Tray
from tests.gui.fake_server import Events

ROUTES = {
    "/tessera/v1/models": {"models": []},
    "/tessera/v1/jobs/events": Events([]),
    "/tessera/v1/devices": {"devices": [], "memory": {}},
    "/tessera/v1/hub/starters": {"proposals": []},
}


@pytest.fixture
def desktop(qtbot, home, server):
    for path, answer in ROUTES.items():
        server.routes["GET", path] = answer
    app = QApplication.instance()
    made = Desktop(app, Store(open_store(home / "state" / "chats.db")), server.api)
    made.services.models.start()
    made.window.resize(1180, 760)
    made.window.show()
    qtbot.waitUntil(lambda: bool(made.services.models.choices))
    yield made
    made.window.tray.set_wanted(False)
    made.window.find_lost = list
    made.window.quit()
    made.close()
    for left in (made.window, made.jobs, made.services.models, made.services.settings, made.background):
        left.deleteLater()


def press(widget, text):
    next(b for b in widget.findChildren(QPushButton) if b.text() == text and b.isVisible()).click()


# -- one instance


def test_a_second_start_hands_its_files_over_and_ends(qtbot, home):
    first, second = SingleInstance(), SingleInstance()
    assert first.claim([])
    with qtbot.waitSignal(first.opened) as opened:
        assert not second.claim(["/models/a.gguf"])
    assert opened.args == [["/models/a.gguf"]]
    first.release()
    assert second.claim([]), "when the first has ended, the next is the window"
    second.release()
    for made in (first, second):
        made.deleteLater()


def test_a_second_process_raises_the_window_of_the_first(qtbot, home):
    first = SingleInstance()
    assert first.claim([])
    code = "import sys; from app.gui.application import run; sys.exit(run(sys.argv[1:]))"
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    started = subprocess.Popen([sys.executable, "-c", code, "/tmp/dropped.txt"], env=environment)
    with qtbot.waitSignal(first.opened) as opened:
        pass
    assert opened.args == [["/tmp/dropped.txt"]]
    assert started.wait(30) == 0
    first.release()
    first.deleteLater()


@pytest.mark.parametrize("sent", [b"not json\n", b'{"a": 1}\n', b"[1, null]\n", b"[" * 70_000 + b"\n"])
def test_nonsense_on_the_socket_opens_nothing(qtbot, home, sent):
    first = SingleInstance()
    assert first.claim([])
    socket = QLocalSocket()
    socket.connectToServer(first._name)
    assert socket.waitForConnected(2000)
    with qtbot.waitSignal(first.opened) as opened:
        socket.write(sent)
        socket.flush()
    assert opened.args == [[]]
    socket.abort()
    first.release()
    first.deleteLater()


# -- files


def test_dropped_models_go_to_the_library_and_other_files_to_the_chat(qtbot, desktop, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("what is written here")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) for path in (notes, model)])
    event = QDropEvent(
        QPointF(9, 9), Qt.DropAction.CopyAction, mime, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    )
    with qtbot.waitSignal(desktop.window.model_dropped) as dropped:
        desktop.window.dropEvent(event)
    assert dropped.args == [str(model)]
    qtbot.waitUntil(lambda: len(desktop.window.chat.composer.attachments) == 1)
    assert "model.gguf" in desktop.window.page("library").banner.text


# -- shortcuts


def test_every_shortcut_of_the_table_works(qtbot, desktop):
    window = desktop.window
    bound = {action.shortcut().toString() for action in window.actions()}
    assert {s.keys for s in SHORTCUTS if s.name} <= bound
    assert {f"Ctrl+{n + 1}" for n in range(len(window.page_names[:9]))} <= bound
    by_keys = {action.shortcut().toString(): action for action in window.actions()}
    by_keys["Ctrl+3"].trigger()
    assert window._stack.currentWidget() is window.page(window.page_names[2])
    by_keys["Ctrl+,"].trigger()
    assert window._stack.currentWidget() is window.page("settings")
    by_keys["Ctrl+N"].trigger()
    assert window._stack.currentWidget() is window.chat
    by_keys["F1"].trigger()
    sheet = window.findChild(ShortcutSheet)
    shown = [made.text() for made in sheet.findChildren(QLabel)]
    assert "New chat" in shown
    QTest.keyClick(sheet, Qt.Key.Key_Escape)
    assert not sheet.isVisible()


# -- closing


def test_closing_asks_only_when_work_would_begin_anew(qtbot, desktop):
    running = {"id": "q", "kind": "quantize", "title": "Spark", "state": "running", "params": {}}
    download = {**running, "kind": "pull"}
    assert would_be_lost({"q": download}, server_ends=True) == []
    assert would_be_lost({"q": {**running, "state": "paused"}}, server_ends=True) == []
    assert would_be_lost({"q": running}, server_ends=False) == [], "another's server goes on"
    assert len(would_be_lost({"q": running}, server_ends=True)) == 1

    window = desktop.window
    window.find_lost = lambda: would_be_lost({"q": running}, server_ends=True)
    window.close()
    assert window.isVisible()
    assert "would begin anew" in window.banner.text
    press(window.banner, "Stay")
    assert window.isVisible()
    window.close()
    with qtbot.waitSignal(window.closed):
        press(window.banner, "Close")
    assert not window.isVisible()


class FakeTray(QSystemTrayIcon):
    """A tray where offscreen there is none."""

    available = True
    shown = False

    @staticmethod
    def isSystemTrayAvailable():  # noqa: N802 - Qt's name
        return FakeTray.available

    def show(self):
        self.shown = True

    def hide(self):
        self.shown = False

    def isVisible(self):  # noqa: N802 - Qt's name
        return self.shown


def test_with_the_tray_closing_hides_and_without_one_it_never_does(qtbot, desktop, monkeypatch):
    monkeypatch.setattr(tray, "QSystemTrayIcon", FakeTray)
    window = desktop.window
    FakeTray.available = False
    desktop.services.settings.set("window.tray", True)
    assert not window.tray.keeps_running, "there is no tray to bring the window back"
    FakeTray.available = True
    desktop.services.settings.set("window.tray", False)
    desktop.services.settings.set("window.tray", True)
    assert window.tray.keeps_running
    window.close()
    assert not window.isVisible()
    window.tray.show_window()
    assert window.isVisible()
    desktop.services.settings.set("window.tray", False)
    assert not window.tray.keeps_running


def test_offscreen_there_is_no_tray(qapp, desktop):
    made = Tray(desktop.window, lambda: None)
    made.set_wanted(True)
    assert not made.keeps_running


# -- crashes


def test_a_crash_leaves_a_redacted_report_that_can_be_copied(qtbot, desktop, tmp_path):
    crashes = CrashReports(tmp_path / "crashes")
    crashes.reported.connect(desktop.tell_crash)
    logging.getLogger().addHandler(crashes.log)
    logging.getLogger("t").warning("authorization: Bearer hf_abcdefghijkl in %s/models", str(Path.home()))
    error = ValueError("a broken slot")
    crashes.on_exception(type(error), error, None)
    logging.getLogger().removeHandler(crashes.log)
    (file,) = (tmp_path / "crashes").glob("crash-*.txt")
    text = file.read_text()
    assert "a broken slot" in text
    assert "hf_abcdefghijkl" not in text
    assert str(Path.home()) not in text
    assert "Something went wrong" in desktop.window.banner.text
    press(desktop.window.banner, "Copy the report")
    assert QGuiApplication.clipboard().text() == text
    crashes.deleteLater()


def test_a_fault_of_native_code_is_told_at_the_next_start_and_only_once(qapp, tmp_path, home):
    folder = tmp_path / "crashes"
    code = (
        "import faulthandler, sys; sys.argv = sys.argv[1:]; from pathlib import Path; "
        "from app.gui.crash import CrashReports; c = CrashReports(Path(sys.argv[0])); c.install(); "
        "faulthandler._sigsegv()"
    )
    died = subprocess.run([sys.executable, "-c", code, str(folder)], check=False, capture_output=True)
    assert died.returncode != 0
    for expected in (True, False):
        crashes = CrashReports(folder)
        crashes.install()
        assert ("egmentation" in crashes.earlier_fault or "fault" in crashes.earlier_fault.lower()) is expected
        crashes.close()
        crashes.deleteLater()
    assert len(list(folder.glob("crash-native-*.txt"))) == 1


def test_secrets_are_redacted():
    assert redact("key='sk-ant-aaaaaaaaaa'").count("aaaa") == 0
    assert redact("token: abcdefghijkl") == "token: [redacted]"


# -- look


def luminance(colour):
    def part(value):
        value /= 255
        return value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4

    return 0.2126 * part(colour.red()) + 0.7152 * part(colour.green()) + 0.0722 * part(colour.blue())


@pytest.mark.parametrize("dark", [False, True])
def test_high_contrast_reaches_seven_to_one(dark):
    found = tokens(dark=dark, contrast=True)
    for ground in ("background", "surface", "raised"):
        for text in ("text", "muted", "accent", "link", "ok", "warn", "bad"):
            pair = sorted((luminance(found.colour(ground)), luminance(found.colour(text))))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 7, (ground, text)


def test_contrast_changes_live(desktop):
    before = desktop.services.look.tokens.colours["text"]
    desktop.services.settings.set("window.contrast", "high")
    assert desktop.services.look.tokens.colours["text"] != before
    desktop.services.settings.set("window.contrast", "normal")
    assert desktop.services.look.tokens.colours["text"] == before


# -- sizes and languages


def cut_off(page):
    """Words of buttons and one-line labels that do not have the room they need, and what sticks out of the page."""
    found = []
    for made in page.findChildren(QWidget):
        if not made.isVisible() or not isinstance(made, QAbstractButton | QLabel):
            continue
        text = made.text()
        if not text:
            continue
        wraps = isinstance(made, QLabel) and made.wordWrap()
        needed = made.fontMetrics().horizontalAdvance(max(text.split("\n"), key=len))
        if not wraps and made.width() < needed:
            found.append(("cut", type(made).__name__, text, made.width(), needed))
        if isinstance(made, QLabel) and wraps and made.height() < made.heightForWidth(made.width()) - 2:
            found.append(("clipped", type(made).__name__, text, made.height(), made.heightForWidth(made.width())))
        scrolled = made.parentWidget()
        while scrolled is not None and not isinstance(scrolled, QAbstractScrollArea):
            scrolled = scrolled.parentWidget()
        inside = page.rect().translated(0, 0)
        left = made.mapTo(page, QPoint(0, 0)).x()
        if left < 0 or left + made.width() > inside.width() + 1:
            found.append(("outside", type(made).__name__, text, left, made.width()))
    return found


@pytest.mark.parametrize("percent", [100, 200])
def test_nothing_is_cut_off_at_900_by_600(qtbot, desktop, percent):
    desktop.services.look.set("light", percent)
    desktop.window.resize(900, 600)
    for name in desktop.window.page_names:
        desktop.window.show_page(name)
        qtbot.wait(60)
        assert desktop.window.width() == 900, f"{name} does not fit into 900 pixels"
        page = desktop.window.page(name)
        assert cut_off(page) == [], (name, cut_off(page))
    desktop.services.look.set("light", 100)


def test_every_page_has_an_order_of_focus_that_reaches_its_controls(qtbot, desktop):
    for name in desktop.window.page_names:
        desktop.window.show_page(name)
        qtbot.wait(30)
        page = desktop.window.page(name)
        wanted = {
            made
            for made in page.findChildren(QAbstractButton)
            if made.isVisible() and made.isEnabled() and not isinstance(made.parent(), QAbstractScrollArea)
            and not made.objectName().startswith("qt_") and not isinstance(made.parentWidget(), QToolButton)
        }  # fmt: skip
        reached, at = set(), page
        for _ in range(2000):
            at = at.nextInFocusChain()
            if at.focusPolicy() & Qt.FocusPolicy.TabFocus:
                reached.add(at)
            if at is page:
                break
        missed = {made for made in wanted if made not in reached and "ScrollLeft" not in made.objectName()}
        assert [(name, made.accessibleName() or made.text()) for made in missed] == []


@pytest.fixture
def pseudo(qapp):
    from app.gui.language import PseudoTranslator

    translator = PseudoTranslator(qapp)
    qapp.installTranslator(translator)
    yield
    qapp.removeTranslator(translator)
    translator.deleteLater()


def untranslated(page, known):
    """Texts on the page that did not go through the translation; `known` is what the user or the server wrote."""
    found = []
    for made in page.findChildren(QWidget):
        if not made.isVisible() or not isinstance(made, QLabel | QAbstractButton):
            continue
        text = made.text()
        if any(letter.isalpha() for letter in text) and "[" not in text and not any(k in text for k in known):
            found.append(text)
    return found


def test_every_text_of_every_page_goes_through_the_translation(qtbot, home, server, pseudo):
    from app.gui.language import pseudo as translated

    assert translated("{n} tokens") == "[{n} tökéñš~~~~]"
    for path, answer in ROUTES.items():
        server.routes["GET", path] = answer
    app = QApplication.instance()
    made = Desktop(app, Store(open_store(home / "state" / "chats.db")), server.api)
    made.services.models.start()
    made.window.show()
    qtbot.waitUntil(lambda: bool(made.services.models.choices))
    names = {
        "http", "tessera ", "Spark", str(home), "VS Code", "Ctrl", "Return", "Esc", "F1", "Shift", "pip ", "npm ",
        "Zed", "Aider", "Continue", "Cline", "curl", "openai", "Claude", "Codex", "Tessera", "no route",
        "aider", "OpenCode", "llama", "GiB",
    }  # fmt: skip
    missed = {}
    for name in made.window.page_names:
        made.window.show_page(name)
        qtbot.wait(60)
        found = untranslated(made.window.page(name), names)
        if found:
            missed[name] = found
    made.window.quit()
    made.close()
    for left in (made.window, made.jobs, made.services.models, made.services.settings, made.background):
        left.deleteLater()
    assert missed == {}, json.dumps(missed, indent=1, ensure_ascii=False)


def test_right_to_left_mirrors_the_window(qtbot, qapp, desktop):
    rail = desktop.window._rail
    assert rail.mapTo(desktop.window, QPoint(0, 0)).x() == 0
    qapp.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    try:
        qtbot.waitUntil(lambda: rail.mapTo(desktop.window, QPoint(0, 0)).x() > desktop.window.width() / 2)
    finally:
        qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
