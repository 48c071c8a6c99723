"""The whole window with a real server process and the bundled model: the path of docs/first-run.md."""

import socket

import pytest
from PySide6.QtWidgets import QApplication, QPushButton

from app.db.connection import open_store
from app.db.store import Store
from app.gui.application import Desktop
from app.gui.server_link import ServerLink

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def desktop(qtbot, home, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TESSERA_SERVER_PORT", str(free.getsockname()[1]))
    app = QApplication.instance()
    made = Desktop(app, Store(open_store(home / "state" / "chats.db")), ServerLink())
    made.start()
    yield made
    made.window.close()
    made.close()
    for left in (made.window, made.jobs, made.services.models, made.services.settings, made.background):
        left.deleteLater()


def press(qtbot, widget, text):
    def found():
        return [b for b in widget.findChildren(QPushButton) if b.text() == text and b.isVisible() and b.isEnabled()]

    qtbot.waitUntil(lambda: bool(found()))
    found()[0].click()


def test_from_the_first_start_to_a_model_made_to_fit(qtbot, desktop):
    window, services = desktop.window, desktop.services
    chat = window.chat
    qtbot.waitUntil(lambda: bool(services.models.choices), timeout=40_000)
    qtbot.waitUntil(lambda: chat.composer.ready)

    press(qtbot, chat, "What is quantization?")
    qtbot.waitUntil(lambda: len(chat.controller.tree) == 2, timeout=20_000)
    qtbot.waitUntil(lambda: not chat.controller.busy, timeout=60_000)
    answer = chat.controller.tree.path()[-1]
    assert answer.status == "complete"
    assert answer.content
    assert answer.facts["usage"]["completion_tokens"] > 0
    assert answer.facts["timings"]["tok_s"] > 0

    window.show_page("library")
    library = window.page("library")
    qtbot.waitUntil(lambda: len(library.cards) == 1, timeout=20_000)
    press(qtbot, library.cards[0], "Make it fit")

    fit = window.page("fit")
    qtbot.waitUntil(fit.start.isEnabled, timeout=40_000)
    fit.tier.setCurrentIndex(fit.tier.findData("instant"))
    fit._forecast()
    fit.start.click()
    qtbot.waitUntil(lambda: "Done" in fit.banner.text, timeout=100_000)
    press(qtbot, fit.banner, "Chat with it")

    made = chat.controller.conversation.model
    assert made != "spark"
    qtbot.waitUntil(lambda: services.models.get(made) is not None, timeout=20_000)
    qtbot.waitUntil(lambda: chat.composer.ready)
    chat.composer.set_text("What is Tessera?")
    chat.composer.send()
    qtbot.waitUntil(lambda: len(chat.controller.tree) == 2, timeout=20_000)
    qtbot.waitUntil(lambda: not chat.controller.busy, timeout=60_000)
    assert chat.controller.tree.path()[-1].status == "complete"
    assert chat.controller.tree.path()[-1].model == made

    window.show_page("devices")
    devices = window.page("devices")
    qtbot.waitUntil(lambda: "ram" in devices._uses and made in devices._placements, timeout=40_000)
    window.show_page("dashboard")
    dashboard = window.page("dashboard")
    qtbot.waitUntil(lambda: dashboard.table.rowCount() == 2, timeout=20_000)
    window.show_page("server")
    server = window.page("server")
    qtbot.waitUntil(lambda: "loaded model" in server.log.toPlainText(), timeout=20_000)
    assert desktop.link.owned


def test_the_server_ends_with_the_window(qtbot, desktop):
    qtbot.waitUntil(lambda: desktop.services.models.reachable, timeout=40_000)
    process = desktop.link._process
    desktop.link.stop()
    assert process.poll() is not None
    assert desktop.link.url == ""


def test_the_bundled_model_is_measured_by_a_real_server(qtbot, desktop, tmp_path):
    window = desktop.window
    qtbot.waitUntil(lambda: bool(desktop.services.models.choices))
    window.show_page("bench")
    page = window.page("bench")
    qtbot.waitUntil(lambda: page.model.count() > 5)
    assert page.model.currentData() == ("model", "spark")
    page.lengths.setText("16,32")
    page.repeats.setValue(1)
    press(qtbot, page, "Measure")
    qtbot.waitUntil(lambda: page.table.rowCount() == 1, timeout=120_000)
    (line,) = page.decode.lines.values()
    assert [x for x, _ in line] == [16.0, 32.0]
    assert all(y > 0 for _, y in line)
    qtbot.waitUntil(lambda: len(page.busy.series.get("Processor", ())) > 1)
    page.save(tmp_path / "real.csv")
    qtbot.waitUntil((tmp_path / "real.csv").exists)
    assert desktop.services.api.get("/tessera/v1/bench")["results"][0]["points"][0]["decode_tok_s"]["median"] > 0
