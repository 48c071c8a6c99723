"""Fixtures of the window's tests: offscreen, a separate home folder, and no thread, timer or widget left over."""

import os
import threading

os.environ["QT_QPA_PLATFORM"] = "offscreen"

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QLocale, QTimer
from PySide6.QtWidgets import QApplication

from app.db.store import Store, open_store
from app.gui.app_context import AppContext, LiveSettings, Models
from app.gui.application import Desktop
from app.gui.background import Background
from app.gui.chat.page import ChatPage
from app.gui.jobs import Jobs
from app.gui.theme import Theme
from tests.gui.fake_server import EMPTY, Events, FakeServer


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def locale_stays():
    """A window sets the number and date formats of the whole process."""
    before = QLocale()
    yield
    QLocale.setDefault(before)


@pytest.fixture(autouse=True)
def no_leaks(request, qapp, home):
    """After a test, no thread, timer or widget may exist that did not exist before."""
    threads = set(threading.enumerate())
    widgets = set(map(id, QApplication.allWidgets()))
    yield
    for _ in range(3):
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        qapp.processEvents()
    left = [w for w in QApplication.topLevelWidgets() if id(w) not in widgets and w.isVisible()]
    assert left == [], f"widgets left visible: {left}"
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
        assert not thread.is_alive(), f"thread left running: {thread.name}"
    ticking = [timer for timer in qapp.findChildren(QTimer) if timer.isActive()]
    assert ticking == [], f"timers left running: {ticking}"


@pytest.fixture
def qtbot(qtbot):
    """Waits end as soon as the condition holds; on a busy machine that may take long."""
    until, signal = qtbot.waitUntil, qtbot.waitSignal
    qtbot.waitUntil = lambda condition, timeout=60_000: until(condition, timeout=timeout)
    qtbot.waitSignal = lambda wanted, timeout=60_000, **more: signal(wanted, timeout=timeout, **more)
    return qtbot


@pytest.fixture
def server():
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def theme(qapp):
    made = Theme(qapp, "light")
    yield made
    made.close()
    made.deleteLater()


@pytest.fixture
def services(qapp, theme, server, home):
    background = Background(qapp)
    store = Store(open_store(home / "state" / "chats.db"))
    models = Models(server.api, background, qapp)
    yield AppContext(theme, background, store, server.api, LiveSettings(background, parent=qapp), models)
    models.stop()
    background.close()
    store.close()
    models.deleteLater()
    background.deleteLater()


@pytest.fixture
def jobs(qapp, services, server):
    """The jobs of a server that has none."""
    server.routes["GET", "/tessera/v1/jobs/events"] = Events([])
    made = Jobs(server.api, services.background, services.models, qapp)
    yield made
    made.stop()
    made.deleteLater()


@pytest.fixture
def show(qtbot, services):
    made = []

    def show(page):
        qtbot.addWidget(page)
        page.resize(1000, 700)
        page.show()
        made.append(page)
        return page

    services.models.start()
    qtbot.waitUntil(lambda: services.models.reachable)
    yield show
    for page in made:
        page.close()


@pytest.fixture
def desktop(qtbot, home, server):
    for path, answer in EMPTY.items():
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


@pytest.fixture
def page(qtbot, services):
    """The chat page with the server's models; tests of other pages have their own."""
    made = ChatPage(services)
    qtbot.addWidget(made)
    made.resize(1000, 700)
    made.show()
    services.models.start()
    qtbot.waitUntil(lambda: bool(services.models.choices))
    qtbot.waitUntil(lambda: made.controller.conversation.model == "spark")
    yield made
    made.controller.stop()
    made.save_draft()
    made.close()
