"""Starts the window's server and watches it: when it dies it is started again, once by itself, then by a button."""

import time

from PySide6.QtCore import QObject, QTimer

from app.gui.app_context import Services
from app.gui.server_errors import error_message
from app.gui.server_link import ServerLink
from app.gui.widgets.basics import Banner

_LOOK_MS = 500
# A server that dies twice in this time has a cause that starting it again does not fix.
_TRUST_S = 120.0


class Supervisor(QObject):
    """Looks whether the server runs, while the window is there."""

    def __init__(self, services: Services, link: ServerLink, banner: Banner, parent: QObject) -> None:
        super().__init__(parent)
        self._services, self._link, self._banner = services, link, banner
        self._restarted_at: float | None = None
        self._starting = False
        self._reported = False  # that it ended; what comes next is the user's decision
        self._timer = QTimer(self)
        self._timer.setInterval(_LOOK_MS)
        self._timer.timeout.connect(self._look)
        self._timer.start()

    def stop(self) -> None:
        """Watch no more."""
        self._timer.stop()

    def start(self) -> None:
        """Find a server or start one."""
        self._begin("")

    def _begin(self, when_there: str) -> None:
        if self._starting:
            return
        self._starting, self._reported = True, False
        now = self._services.settings.now
        host, port, offline = now.text("server.host"), now.integer("server.port"), now.flag("network.offline")

        def started(_: str) -> None:
            self._starting = False
            self._services.models.start()
            if when_there:
                self._banner.notify(when_there, "info")

        def failed(error: Exception) -> None:
            self._starting = False
            self._banner.notify(error_message(error), "bad", (self.tr("Try again"), self.start))

        self._services.background.run(lambda: self._link.start(host, port, offline=offline), started, failed, self)

    def _look(self) -> None:
        if self._starting or self._reported or not self._link.crashed:
            return
        now, reason = time.monotonic(), self._link.exit_words
        self._services.models.refresh()
        if self._restarted_at is None or now - self._restarted_at > _TRUST_S:
            self._restarted_at = now
            words = self.tr("The server ended unexpectedly ({reason}) and is starting again.")
            self._banner.notify(words.format(reason=reason), "warn")
            self._begin(self.tr("The server ended unexpectedly ({reason}). It runs again.").format(reason=reason))
            return
        self._reported = True
        self._banner.notify(
            self.tr("The server ended again ({reason}). Its log on the Server page says more.").format(
                reason=reason
            ),
            "bad",
            (self.tr("Start the server"), self.start),
        )
