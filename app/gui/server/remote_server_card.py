"""Connects the window to a remote Tessera by address or link and key; shows this server's link for a phone."""

import io
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import segno
from PySide6.QtCore import QByteArray, Signal
from PySide6.QtGui import QPixmap
from PySide6.QtWidgets import QFrame, QLabel, QLineEdit

from app.client import ApiError, Client
from app.client.remote_server import RemoteServer, parts_of
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.reasons import translated
from app.gui.widgets.basics import Banner, button, label, line_field, row, stack
from engine.api.requests import KeyRequest
from engine.services import is_plain_text

if TYPE_CHECKING:
    from app.gui.server_link import ServerLink

_MOST = 4000
_MODULE_PIXELS = 5
_LOCAL = ("127.0.0.1", "localhost", "::1", "")


class ElsewhereCard(QFrame):
    """Chooses the server of this window.

    `moved` is emitted when another server was chosen, or the local one again.
    """

    moved = Signal()

    def __init__(self, services: AppContext, link: "ServerLink", banner: Banner) -> None:
        super().__init__()
        self._services, self._link, self._banner = services, link, banner
        self.setProperty("kind", "card")
        self._remote = RemoteServer()
        self._note = label("", "small", wrap=True)
        self.url = self._field("http://192.168.1.5:7373", self.tr("Address of another Tessera, or its link"))
        self.key = self._field(self.tr("Key"), self.tr("Key of the other Tessera"))
        self.key.setEchoMode(QLineEdit.EchoMode.Password)
        self.use = button(self.tr("Use it"), self._use)
        self.back = button(self.tr("Use this computer's server"), self._back)
        self.show_code = button(self.tr("Show a QR code of this server"), self._show_code)
        self.code = QLabel()
        self.code.setAccessibleName(self.tr("QR code of the link"))
        self.code.hide()
        self.shown = label("", "small", wrap=True, selectable=True)
        self.shown.hide()
        entry = row(self.url, self.key, self.use, grow=0)
        self.setLayout(
            stack(
                self._note,
                entry,
                row(self.show_code, self.back, 1),
                self.code,
                self.shown,
                spacing=12,
                margins=(16, 16, 16, 16),
            )
        )
        self.refresh()

    def _field(self, hint: str, name: str) -> QLineEdit:
        field = line_field(hint, name)
        field.setMaxLength(_MOST)
        field.textChanged.connect(lambda _: self._refresh_buttons())
        field.returnPressed.connect(self._use)
        return field

    def refresh(self) -> None:
        """Show the current server, and whether other devices can reach it."""
        chosen = self._remote.url
        if chosen:
            words = self.tr("This window and the terminal use {url}.").format(url=chosen)
            if is_plain_text(chosen):
                words += " " + self.tr("The connection is not encrypted: others on the network can read it.")
        else:
            words = self.tr("This window can use a Tessera on another computer: its models, its memory, its keys.")
        self._note.setText(words)
        self.back.setVisible(bool(chosen))
        self._refresh_buttons()

    def _refresh_buttons(self) -> None:
        self.use.setEnabled(bool(self.url.text().strip()))
        self.show_code.setEnabled((urlsplit(self._link.url or "").hostname or "") not in _LOCAL)
        self.show_code.setToolTip(
            ""
            if self.show_code.isEnabled()
            else self.tr("Only this computer can reach this server. To allow others: tessera serve --host")
        )

    def _use(self) -> None:
        link, key = self.url.text().strip(), self.key.text().strip()
        if not link:
            return
        self.use.setEnabled(False)

        def look() -> tuple[str, str | None, int]:
            address, within = parts_of(link)
            with Client(address, key or within) as client:
                return address, key or within, len(client.chat_models())

        def done(connection: tuple[str, str | None, int]) -> None:
            address, accepted, count = connection
            self._remote.choose(address, accepted)
            self._link.disconnect()
            for field in (self.url, self.key):
                field.clear()
            self._banner.notify(
                self.tr("{url} is used now: {count} models.").format(url=address, count=count), "ok"
            )
            self.refresh()
            self.moved.emit()

        self._services.background.run(look, done, self._failed, self, newest="server")

    def _failed(self, error: Exception) -> None:
        self._refresh_buttons()
        # Show the remote server's error as it is: `error_message` would advise to start the local server.
        detail = error.facts.get("detail") if isinstance(error, ApiError) else None
        self._banner.notify(formatted.sentence(translated(detail, str(error))), "bad")

    def _back(self) -> None:
        self._services.background.drop(self, "server")
        self._remote.forget()
        self._link.disconnect()
        self.refresh()
        self.moved.emit()

    def _show_code(self) -> None:
        api, url = self._services.api, self._link.url

        def make() -> str:
            number = 1
            while True:
                try:
                    new_key = api.make_key(KeyRequest(name="phone" if number == 1 else f"phone {number}"))
                except ApiError as error:
                    number += 1
                    if error.param != "name" or number > 20:  # noqa: PLR2004 - more phones than anyone has
                        raise
                else:
                    return f"{url}/chat#key={quote(new_key.key)}"

        def done(link: str) -> None:
            pixmap = QPixmap()
            pixmap.loadFromData(QByteArray(_png(link)))
            self.code.setPixmap(pixmap)
            self.shown.setText(
                self.tr("{link}\nAnyone with this link may run models here; its key is in the list above.").format(
                    link=link
                )
            )
            self.code.show()
            self.shown.show()

        if not self._services.background.is_loading(self, "code"):  # each link creates a key
            self._services.background.run(make, done, self._failed, self, newest="code")


def _png(text: str) -> bytes:
    out = io.BytesIO()
    segno.make(text, error="m", micro=False).save(out, kind="png", scale=_MODULE_PIXELS, border=4)
    return out.getvalue()
