"""The notice of a newer version: only if enabled, from a real server, and it opens a page."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PySide6.QtCore import QObject, Qt, QUrl, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QPushButton

from app.gui.application import SETTING
from app.updates import MAX_BYTES, UpdateUnknown, newer_version
from engine.core.version import __version__


class Releases(ThreadingHTTPServer):
    """Responds to every path with `body`; `asked` lists paths and request bodies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.body, self.status, self.asked = b"{}", 200, []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/releases/"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """No response."""


@pytest.fixture
def releases():
    with Releases() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Browser(QObject):
    """Replaces the system's browser."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    @Slot(QUrl)
    def take(self, url) -> None:
        self.opened.append(url.toString())


@pytest.fixture
def browser():
    made = Browser()
    QDesktopServices.setUrlHandler("http", made, "take")
    yield made
    QDesktopServices.unsetUrlHandler("http")


@pytest.fixture
def notice(desktop, releases):
    desktop.updates.releases = releases.address
    return desktop.updates


def test_a_newer_version_is_told_when_that_is_wanted_and_its_page_opened(qtbot, desktop, releases, notice, browser):
    releases.body = b'{"version": "999.1", "notes": "more fields"}'
    banner, settings = desktop.window.banner, desktop.services.settings
    notice.look()
    settings.set("network.offline", value=True)
    settings.set(SETTING, value=True)
    assert releases.asked == []  # off by default, and never offline
    settings.set("network.offline", value=False)
    with qtbot.waitSignal(notice.looked):
        notice.look()
    qtbot.waitUntil(lambda: "999.1" in banner.text)
    assert __version__ in banner.text
    ((path, sent),) = releases.asked
    assert path == "/releases/latest.json"
    assert sent["User-Agent"] == "Tessera"
    assert not {"Cookie", "Authorization", "Referer"} & set(sent)
    opener = next(b for b in banner.findChildren(QPushButton) if b.text() == "Open the release page")
    qtbot.mouseClick(opener, Qt.MouseButton.LeftButton)
    assert browser.opened == [releases.address]


@pytest.mark.parametrize("version", [__version__, "0.0.1"])
def test_nothing_new_is_nothing_told(qtbot, desktop, releases, notice, version):
    releases.body = f'{{"version": "{version}"}}'.encode()
    with qtbot.waitSignal(notice.looked):
        desktop.services.settings.set(SETTING, value=True)  # enabling it checks immediately
    assert releases.asked != []
    assert "999" not in desktop.window.banner.text
    assert version not in desktop.window.banner.text


def test_a_page_that_cannot_be_read_is_told_when_asked_and_not_at_a_start(qtbot, desktop, releases, notice):
    releases.status, banner = 500, desktop.window.banner
    with qtbot.waitSignal(notice.looked):
        desktop.services.settings.set(SETTING, value=True)
    assert "could not be read now" in banner.text
    banner.hide()
    with qtbot.waitSignal(notice.looked):
        notice.look()
    assert banner.isHidden()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"), (200, b'{"version": "new"}'), (200, b'{"version": 2}'), (200, b"[" * 50_000),
        (404, b"{}"), (302, b'{"version": "999.1"}'), (200, b'{"version": "' + b"9" * MAX_BYTES + b'"}'),
        (200, b""),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_an_error_that_says_where(releases, status, body):
    releases.status, releases.body = status, body
    with pytest.raises(UpdateUnknown, match=r"latest\.json"):
        newer_version(releases.address)
    assert len(releases.asked) == 1


def test_a_server_that_is_not_there():
    with pytest.raises(UpdateUnknown, match=r"latest\.json"):
        newer_version("http://127.0.0.1:1/")
