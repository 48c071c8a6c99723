"""The whole window with a real server process and the bundled model: the path of docs/first-chat.md, by clicks."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QComboBox, QPushButton

from app.client import ServerNotStarted
from app.db.store import Store, open_store
from app.gui import server_link
from app.gui.application import Desktop
from app.gui.server_link import ServerLink
from tests.support.models.small_folder import NARROW, small_file

# A server starts, a model is made and measured, on a crowded computer.
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def qtbot(qtbot):
    """A real server starts and works: longer than the other tests of the window wait."""
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
    """A real click on the button of that text or name, as soon as it can be clicked."""

    def found():
        return [
            b
            for b in widget.findChildren(QPushButton)
            if text in {b.text(), b.accessibleName()} and b.isVisible() and b.isEnabled()
        ]

    qtbot.waitUntil(lambda: bool(found()))
    qtbot.mouseClick(found()[0], Qt.MouseButton.LeftButton)


def go(qtbot, window, name):
    """A click on the bar of pages."""
    place = next(place.name for place in window._destinations if name in place.pages)
    qtbot.mouseClick(window._rail.buttons[place], Qt.MouseButton.LeftButton)
    if name in window._sections.buttons:
        qtbot.mouseClick(window._sections.buttons[name], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(window.page(name).isVisible)
    return window.page(name)


def choose(qtbot, box: QComboBox, data):
    """Choose an entry with the keyboard, as a user would."""
    box.setFocus()
    while box.currentData() != data:
        before = box.currentIndex()
        qtbot.keyClick(box, Qt.Key.Key_Down if before < box.findData(data) else Qt.Key.Key_Up)
        assert box.currentIndex() != before


def answer_of_the_written_model(config: str) -> str:
    """What a program gets that reads this configuration."""
    base = re.search(r"apiBase:\s*[\"']?(http://127\.0\.0\.1:\d+/v1)", config).group(1)
    model = re.search(r"\bmodel:\s*[\"']?([\w./-]+)", config).group(1)
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    asked = urllib.request.Request(
        f"{base}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer local", "user-agent": "Continue/1.0"},
    )
    with urllib.request.urlopen(asked, timeout=300) as answered:
        return json.load(answered)["choices"][0]["message"]["content"]


def test_from_the_first_start_to_a_connected_editor(qtbot, desktop, home, tmp_path):
    window, services = desktop.window, desktop.services
    chat = window.chat

    # A first chat: one click.
    qtbot.waitUntil(lambda: chat.composer.ready)
    click(qtbot, chat, "What is quantization?")
    qtbot.waitUntil(lambda: len(chat.controller.tree) == 2)
    qtbot.waitUntil(lambda: not chat.controller.busy)
    answer = chat.controller.tree.path()[-1]
    assert answer.status == "complete"
    assert answer.content
    assert answer.facts.usage.completion_tokens > 0
    assert answer.facts.timings.tok_s > 0

    # A model made to fit: three clicks. A small one arrives meanwhile: the demo would take much longer.
    (home / "models").mkdir(exist_ok=True)
    small_file(tmp_path / "small.gguf", 1, NARROW).rename(home / "models" / "small.gguf")
    library = go(qtbot, window, "library")
    qtbot.waitUntil(lambda: len(library.cards) == 2)
    click(qtbot, library, "Make small fit")
    fit = window.page("fit")

    def forecast_shown():
        assert fit.start.isEnabled(), f"the banner says {fit.banner.text!r}"

    qtbot.waitUntil(forecast_shown)
    choose(qtbot, fit.tier, "instant")
    qtbot.waitUntil(forecast_shown)
    click(qtbot, fit, "Make it fit")
    qtbot.waitUntil(lambda: "Done" in fit.banner.text, timeout=600_000)
    click(qtbot, fit.banner, "Chat with it")
    made = chat.controller.conversation.model
    assert made != "spark"
    qtbot.waitUntil(lambda: services.models.get(made) is not None)
    qtbot.waitUntil(lambda: chat.composer.ready)
    qtbot.keyClicks(chat.composer.editor, "What is Tessera?")
    qtbot.keyClick(chat.composer.editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(chat.controller.tree) == 2)
    qtbot.waitUntil(lambda: not chat.controller.busy)
    assert chat.controller.tree.path()[-1].status == "complete"
    assert chat.controller.tree.path()[-1].model == made

    # A connected editor: two clicks, and what was written works.
    connect = go(qtbot, window, "connect")
    click(qtbot, connect, "Connect Continue (VS Code, JetBrains)")
    click(qtbot, connect, "Apply")
    qtbot.waitUntil(lambda: connect._states["continue"].text() == "Connected")
    written = (tmp_path / "user" / ".continue" / "config.yaml").read_text()
    assert answer_of_the_written_model(written)

    # The other pages know of it.
    server = go(qtbot, window, "server")
    qtbot.waitUntil(lambda: any(row[0] == "Continue/1.0" for row in server.programs.texts()))
    qtbot.waitUntil(lambda: "loaded model" in server.log.toPlainText())
    devices = go(qtbot, window, "devices")
    qtbot.waitUntil(lambda: "ram" in devices._uses and made in devices._placements)
    dashboard = go(qtbot, window, "dashboard")
    qtbot.waitUntil(lambda: dashboard.table.rowCount() == 3)  # the editor is given the small one
    qtbot.waitUntil(lambda: dashboard.history.texts()[0][0] == "Continue")
    assert desktop.link.owned


def test_the_server_ends_with_the_window(qtbot, desktop):
    qtbot.waitUntil(lambda: desktop.services.models.reachable)
    qtbot.waitUntil(lambda: desktop.jobs._stream is not None)
    process = desktop.link._process
    desktop.link.stop()
    assert not process.alive
    assert desktop.link.url == ""
    told = server_link.server_log().read_text()
    assert "Shutting down" in told
    assert "graceful shutdown exceeded" not in told, "it waits for nobody who follows its jobs"


def test_the_bundled_model_is_measured_by_a_real_server(qtbot, desktop, tmp_path):
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
    qtbot.waitUntil(lambda: len(page.busy.series.get("Processor", ())) > 1)
    page.save(tmp_path / "real.csv")
    qtbot.waitUntil((tmp_path / "real.csv").exists)
    assert desktop.services.api.bench_results().results[0].points[0].decode_tok_s.median > 0
