"""The window with a real server process; walk/test_stranger.py follows the steps of docs/first-chat.md."""

import socket

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QPushButton

from app.client import ServerNotStarted
from app.db.store import Store, open_store
from app.gui import server_link
from app.gui.application import Desktop
from app.gui.server_link import ServerLink

# A server starts and measures, on a busy computer.
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture
def qtbot(qtbot):
    """A real server starts and works, so this waits longer than other tests of the window."""
    until = qtbot.waitUntil
    qtbot.waitUntil = lambda condition, timeout=240_000: until(condition, timeout=timeout)
    return qtbot


@pytest.fixture
def desktop(qtbot, home, monkeypatch, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TESSERA_SERVER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("TESSERA_CHAT_MAX_TOKENS", "40")
    app = QApplication.instance()
    made = Desktop(app, Store(open_store(home / "state" / "chats.db")), ServerLink())
    made.start()
    yield made
    made.window.find_lost = list
    made.window.close()
    made.close()
    for left in (made.window, made.jobs, made.services.models, made.services.settings, made.background):
        left.deleteLater()


def test_a_server_that_takes_too_long_is_ended_and_says_so(home, monkeypatch):
    del home
    monkeypatch.setattr(server_link, "START_S", 0.1)
    link = ServerLink()
    with pytest.raises(ServerNotStarted, match="It gave no answer within 0 s") as told:
        link.start("127.0.0.1", 0)
    assert "Finished server process" not in str(told.value), "its farewell explains nothing"
    assert not link.crashed


def click(qtbot, widget, text):
    """A real click on the button with that text or name, as soon as it can be clicked."""

    def found():
        return [
            b
            for b in widget.findChildren(QPushButton)
            if text in {b.text(), b.accessibleName()} and b.isVisible() and b.isEnabled()
        ]

    qtbot.waitUntil(lambda: bool(found()))
    qtbot.mouseClick(found()[0], Qt.MouseButton.LeftButton)


def test_a_real_server_measures_the_bundled_model_and_ends_with_the_window(qtbot, desktop, tmp_path):
    window = desktop.window
    qtbot.waitUntil(lambda: bool(desktop.services.models.choices))
    window.show_page("bench")
    page = window.page("bench")
    qtbot.waitUntil(lambda: page.model.count() > 5)
    assert page.model.currentData() == ("model", "spark")
    page.lengths.setText("16,32")
    page.repeats.setValue(1)
    click(qtbot, page, "Measure")
    qtbot.waitUntil(lambda: page.table.rowCount() == 1, timeout=600_000)
    (line,) = (line for name, line in page.decode.lines.items() if name.startswith("spark"))
    assert [x for x, _ in line] == [16.0, 32.0]
    assert all(y > 0 for _, y in line)
    qtbot.waitUntil(lambda: len(page.busy.series.get("CPU", ())) > 1)
    page.save(tmp_path / "real.csv")
    qtbot.waitUntil((tmp_path / "real.csv").exists)
    assert desktop.services.api.bench_results().results[0].points[0].decode_tok_s.median > 0
    qtbot.waitUntil(lambda: desktop.jobs._stream is not None)
    process = desktop.link._process
    desktop.link.stop()
    assert not process.alive
    assert desktop.link.url == ""
    told = server_link.server_log().read_text()
    assert "Shutting down" in told
    assert "graceful shutdown exceeded" not in told, "it waits for nobody who follows its jobs"
