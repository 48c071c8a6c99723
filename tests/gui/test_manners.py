"""General behaviour of the window: one instance, dropped files, shortcuts, closing, crashes, the tray."""

import builtins
import linecache
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from PySide6.QtCore import QEvent, QMimeData, QObject, QPointF, Qt, QUrl
from PySide6.QtGui import QAction, QDropEvent, QGuiApplication, QShortcut
from PySide6.QtNetwork import QLocalSocket
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QFileDialog,
    QLabel,
    QSystemTrayIcon,
    QToolButton,
    QWidget,
)

from app.cli import window
from app.gui import application, main_window
from app.gui.application import SingleInstance
from app.gui.chat.message_editor import MessageEditor
from app.gui.close_guard import would_be_lost
from app.gui.crash import CrashReports, redact
from app.gui.main_window import Tray
from app.gui.shortcuts import SHORTCUTS, ShortcutSheet
from engine.api.jobs import JobKind
from engine.api.library import Linked
from tests.gui.hands import ask, press
from tests.gui.wire import job

# -- one instance


def start(files):
    """Start the program as far as needed to know whether it becomes the window."""
    instance = SingleInstance()
    is_window = instance.claim(files)
    instance.release()
    return is_window


def test_a_second_start_hands_its_files_over_and_ends(qtbot, home):
    first = SingleInstance()
    assert first.claim([])
    with ThreadPoolExecutor(1) as pool:
        with qtbot.waitSignal(first.opened) as opened:
            second = pool.submit(start, ["/models/a.gguf"])
        assert second.result(60) is False
    assert opened.args == [["/models/a.gguf"]]
    first.release()
    assert start([]), "when the first has ended, the next is the window"
    first.deleteLater()


@pytest.mark.timeout(300)  # a process starts, on a busy computer
def test_a_start_while_the_window_closes_waits_and_becomes_the_window(qtbot, home):
    first = SingleInstance()
    assert first.claim([])
    knocking = QLocalSocket()
    knocking.connectToServer(first._name)
    assert knocking.waitForConnected(60_000)
    first.stop_answering()
    assert not knocking.waitForReadyRead(60_000)
    assert knocking.state() == QLocalSocket.LocalSocketState.UnconnectedState, "it knows that nobody took its files"
    code = "from app.gui.application import SingleInstance as S; s = S(); print(flush=True); print(s.claim([]))"
    second = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert second.stdout.readline() == "\n", "it has been started"
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.5)
    first.release()
    assert second.communicate(timeout=100)[0] == "True\n"
    first.deleteLater()


def test_a_second_start_shows_a_hidden_and_a_minimized_window(qtbot, desktop):
    window = desktop.window
    window.hide()  # as the tray does
    window.open_files([])
    assert window.isVisible()
    window.showMinimized()
    window.open_files([])
    assert not window.isMinimized()


def test_qt_does_not_read_the_source_of_what_is_imported_later(monkeypatch, tmp_path):
    late = tmp_path / "imported_later.py"
    late.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "__import__", builtins.__feature_import__)  # as after the first import of Qt
    monkeypatch.setattr(application, "run", lambda _files: exec(f"import {late.stem}"))
    assert CliRunner().invoke(window.command, catch_exceptions=False).exit_code == 0
    assert sys.modules.pop(late.stem).x == 1
    assert str(late) not in linecache.cache


@pytest.mark.timeout(300)  # a process starts, on a busy computer
def test_a_second_process_raises_the_window_of_the_first(qtbot, home):
    first = SingleInstance()
    assert first.claim([])
    code = "import sys; from app.gui.application import run; sys.exit(run(sys.argv[1:]))"
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    with qtbot.waitSignal(first.opened, timeout=100_000) as opened:
        started = subprocess.Popen([sys.executable, "-c", code, "/tmp/dropped.txt"], env=environment)
    assert opened.args == [["/tmp/dropped.txt"]]
    assert started.wait(100) == 0
    first.release()
    first.deleteLater()


@pytest.mark.parametrize("sent", [b"not json\n", b'{"a": 1}\n', b"[1, null]\n", b"[" * 70_000 + b"\n"])
def test_nonsense_on_the_socket_opens_nothing(qtbot, home, sent):
    first = SingleInstance()
    assert first.claim([])
    socket = QLocalSocket()
    socket.connectToServer(first._name)
    assert socket.waitForConnected(60_000)
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
    with qtbot.waitSignal(desktop.window.models_dropped) as dropped:
        desktop.window.dropEvent(event)
    assert dropped.args == [[str(model)]]
    qtbot.waitUntil(lambda: len(desktop.window.chat.composer.attachments) == 1)
    assert "model.gguf" in desktop.window.page("library").banner.text


@pytest.mark.parametrize("page", ["chat", "code"])
def test_models_dropped_on_a_message_go_to_the_library_all_of_them(desktop, server, qtbot, tmp_path, page):
    """It is the largest target of the first page. A projector lies next to its model, a large one is in parts."""
    server.routes["POST", "/tessera/v1/models/link"] = Linked(added=("spark",))
    names = ("llava-00001-of-00002.gguf", "llava-00002-of-00002.gguf", "mmproj-llava.gguf")
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(tmp_path / name)) for name in names])
    desktop.window.show_page(page)
    composer = desktop.window.page(page).composer
    composer.editor.insertFromMimeData(mime)
    library = desktop.window.page("library")
    assert (library.banner.text, composer.attachments) == ("Add 2 files to the library?", [])
    press(library.banner, "Use it in its current folder")

    def linked():
        return [body["where"] for method, path, body in server.requests if path == "/tessera/v1/models/link"]

    qtbot.waitUntil(lambda: sorted(linked()) == [str(tmp_path / names[0]), str(tmp_path / names[2])])


# -- shortcuts


def test_no_page_flashes_a_window_of_its_own_while_it_is_built(qtbot, qapp, desktop):
    class Shown(QObject):
        found = ()

        def eventFilter(self, watched, event):
            if event.type() == QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
                self.found = (*self.found, (type(watched).__name__, getattr(watched, "text", str)()))
            return False

    shown = Shown()
    qapp.installEventFilter(shown)
    try:
        for name in desktop.window.page_names:
            desktop.window.show_page(name)
            qtbot.wait(20)
        desktop.window.chat.options.show()
        desktop.window.chat.tools.toggle()
    finally:
        qapp.removeEventFilter(shown)
    assert shown.found == ()


def test_a_change_that_needs_a_restart_offers_it_and_the_window_starts_again(qtbot, desktop):
    window = desktop.window
    page = window.page("settings")
    window.show_page("settings")
    box = page.editors["window.language"]
    assert box.findData("pseudo") == -1, "a developer's test, no language"
    box.activated.emit(box.findData("de"))
    press(page.banner, "Restart now")
    assert window.starts_again
    assert not window.isVisible()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_restart_that_the_user_gives_up_is_none_at_the_next_close(qtbot, desktop, is_closed):
    window = desktop.window

    def stay(banner):
        banner._close.click() if is_closed else press(banner, "Stay")

    window.find_lost = lambda: ["Make Spark fit"]
    window.restart()
    assert window.isVisible()
    stay(window.banner)
    window.restart()
    press(window.banner, "Close")
    assert window.starts_again
    window.show()
    window._sure = False
    window.restart()
    stay(window.banner)
    window.close()
    press(window.banner, "Close")
    assert not window.starts_again


def test_next_steps_that_gave_way_to_a_warning_are_offered_again_and_then_no_more(qtbot, desktop, server):
    window, models = desktop.window, desktop.services.models
    server.models = [msgspec.structs.replace(server.models[0], name="Quark", demo=False)]
    models.refresh()
    qtbot.waitUntil(lambda: not models.get("spark").demo)
    chat = window.chat
    ask(qtbot, chat)
    assert chat.banner.text.startswith("That works.")
    chat.composer.set_text("x" * 4000)
    assert chat.banner.text.startswith("With your draft, this chat needs"), "a warning comes first"
    window.new_chat()
    qtbot.waitUntil(lambda: not chat.controller.tree.path() and not chat.banner.isVisible())
    ask(qtbot, chat)
    assert chat.banner.text.startswith("That works.")
    assert chat.banner.isVisible()
    ask(qtbot, chat, "And now?")
    assert not chat.banner.isVisible(), "offered once"


@pytest.mark.parametrize(("seconds", "hidden", "told"), [(60, True, True), (5, True, False), (60, False, False)])
def test_the_end_of_a_long_job_is_told_while_the_window_is_behind_others(qtbot, desktop, seconds, hidden, told):
    window, now = desktop.window, time.time() + 1
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    window.setVisible(not hidden)
    qtbot.waitUntil(lambda: window.isActiveWindow() != hidden)
    done = job(JobKind.QUANTIZE, "done", title="Spark", created_at=now - seconds, updated_at=now)
    desktop.jobs._on_jobs([done])
    assert window.banner.text == ("Finished: Making Spark fit" if told else "")


def test_every_shortcut_of_the_table_works(qtbot, desktop):
    window = desktop.window
    bound = {action.shortcut().toString() for action in window.actions()}
    assert {s.keys for s in SHORTCUTS if s.name} <= bound
    assert {f"Ctrl+{n + 1}" for n in range(len(window.destination_names[:9]))} <= bound
    for name in window.page_names:
        window.page(name)
    everywhere = {action.shortcut().toString() for action in window.findChildren(QAction)}
    everywhere |= {shortcut.key().toString() for shortcut in window.findChildren(QShortcut)}
    listed = {s.keys for s in SHORTCUTS} | {f"Ctrl+{n + 1}" for n in range(len(window.destination_names))}
    assert everywhere - listed - {""} == set(), "the list of shortcuts is complete"
    by_keys = {action.shortcut().toString(): action for action in window.actions()}
    by_keys["Ctrl+3"].trigger()
    assert window.destination_names == ["chat", "code", "models", "server", "system", "settings"]
    assert window._stack.currentWidget() is window.page("library"), "the first page of the third destination"
    by_keys["Ctrl+,"].trigger()
    assert window._stack.currentWidget() is window.page("settings")
    by_keys["Ctrl+N"].trigger()
    assert window._stack.currentWidget() is window.chat
    settings = window._services.settings
    for keys, percent in (("Ctrl++", 110), ("Ctrl+-", 100), ("Ctrl++", 110), ("Ctrl+0", 100)):
        by_keys[keys].trigger()
        assert settings.now.integer("window.text_percent") == percent
    for shown in (False, True):
        by_keys["Ctrl+B"].trigger()
        assert window.chat.sidebar.isVisible() == shown
    ask(qtbot, window.chat, "first")
    ask(qtbot, window.chat, "second")
    by_keys["Ctrl+Shift+C"].trigger()
    assert QGuiApplication.clipboard().text() == "Hello **world**"
    by_keys["Ctrl+R"].trigger()
    qtbot.waitUntil(lambda: not window.chat.controller.busy)
    leaf = window.chat.controller.tree.leaf_id
    assert len(window.chat.controller.tree.siblings(leaf)) == 2
    by_keys["Ctrl+E"].trigger()
    editor = window.chat.transcript.findChild(MessageEditor).focusProxy()
    assert editor.toPlainText() == "second"
    QTest.keyClick(editor, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: window.chat.transcript.findChild(MessageEditor) is None)
    first = window.chat.controller.conversation.id
    by_keys["Ctrl+N"].trigger()
    ask(qtbot, window.chat, "another chat")
    newest = window.chat.controller.conversation.id
    qtbot.waitUntil(lambda: window.chat.sidebar.model.item(0).rowCount() == 2)
    for keys, chat in (("Ctrl+PgDown", first), ("Ctrl+PgUp", newest)):
        by_keys[keys].trigger()
        qtbot.waitUntil(lambda chat=chat: window.chat.controller.conversation.id == chat)
    by_keys["F1"].trigger()
    sheet = window.findChild(ShortcutSheet)
    shown = [made.text() for made in sheet.findChildren(QLabel)]
    assert "New chat" in shown
    QTest.keyClick(sheet, Qt.Key.Key_Escape)
    assert not sheet.isVisible()


# -- closing


def test_closing_asks_only_when_work_would_begin_anew(qtbot, desktop):
    running = job(JobKind.QUANTIZE, title="Spark")
    download = job(JobKind.PULL, title="Spark")
    assert would_be_lost({"q": download}, server_ends=True) == []
    assert would_be_lost({"q": job(JobKind.QUANTIZE, "paused")}, server_ends=True) == []
    assert would_be_lost({"q": running}, server_ends=False) == [], "another's server goes on"
    assert len(would_be_lost({"q": running}, server_ends=True)) == 1
    measuring = job(JobKind.MEASURE, title="Measure spark")
    assert would_be_lost({"q": measuring}, server_ends=True) == ["Measure spark"]

    window = desktop.window
    window.find_lost = lambda: would_be_lost({"q": running}, server_ends=True)
    window.close()
    assert window.isVisible()
    assert "would start from the beginning" in window.banner.text
    press(window.banner, "Stay")
    assert window.isVisible()
    window.close()
    with qtbot.waitSignal(window.closed):
        press(window.banner, "Close")
    assert not window.isVisible()


class FakeTray(QSystemTrayIcon):
    """A tray, which the offscreen platform lacks."""

    available = True
    shown = False

    @staticmethod
    def isSystemTrayAvailable():
        return FakeTray.available

    def show(self):
        self.shown = True

    def hide(self):
        self.shown = False

    def isVisible(self):
        return self.shown


def test_with_the_tray_closing_hides_and_without_one_it_never_does(qtbot, desktop, monkeypatch):
    monkeypatch.setattr(main_window, "QSystemTrayIcon", FakeTray)
    window = desktop.window
    FakeTray.available = False
    desktop.services.settings.set("window.tray", True)
    assert not window.tray.keeps_running, "there is no tray to bring the window back"
    FakeTray.available = True
    desktop.services.settings.set("window.tray", False)
    desktop.services.settings.set("window.tray", True)
    assert window.tray.keeps_running
    window.chat.composer.set_busy(True)
    window.chat.composer.submit("Next")
    window.close()
    assert not window.isVisible()
    assert [text for text, _ in window.chat.composer._queue] == ["Next"], "it is sent when the answer has ended"
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
    crashes.reported.connect(desktop.show_crash)
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
    assert redact("the key of tsr_abcdefghijkl") == "the key of tsr_[redacted]"
    assert redact("http://ida:pass@host/path") == "http://[redacted]@host/path"
    assert "aWRhOnBhc3M" not in redact("'authorization': 'Basic aWRhOnBhc3M='")


def test_the_buttons_of_a_file_dialog_can_be_seen_in_the_dark(qtbot, theme):
    theme.set("dark", 100)
    dialog = QFileDialog()
    qtbot.addWidget(dialog)
    dialog.setOption(QFileDialog.Option.DontUseNativeDialog)
    dialog.show()
    names = (
        "backButton",
        "forwardButton",
        "toParentButton",
        "newFolderButton",
        "listModeButton",
        "detailModeButton",
    )
    for name in names:
        image = dialog.findChild(QToolButton, name).icon().pixmap(24).toImage()
        points = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
        assert max(point.lightness() for point in points if point.alpha() > 200) > 100, name
