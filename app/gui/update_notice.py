"""The notice of a newer version: looked for if the user wants that, opens the release page, replaces nothing."""

import logging

from PySide6.QtCore import QObject, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices

from app.gui.app_context import Services
from app.gui.widgets.basics import Banner
from app.updates import RELEASES, newer_version
from engine.core.version import __version__

log = logging.getLogger(__name__)
SETTING = "updates.notice"
# After a start other things come first.
_AFTER_MS = 10_000


class UpdateNotice(QObject):
    """Looks once after the start, and again when the setting is turned on; `looked` says that an answer came."""

    looked = Signal()

    def __init__(self, services: Services, banner: Banner, parent: QObject) -> None:
        super().__init__(parent)
        self._services, self._banner = services, banner
        self.releases = RELEASES
        services.settings.changed.connect(lambda name: self.look() if name == SETTING else None)

    def start(self) -> None:
        """Look in a while."""
        QTimer.singleShot(_AFTER_MS, self, self.look)

    def look(self) -> None:
        """Ask the release page's server, unless the settings say not to; silence where nothing is new."""
        now = self._services.settings.now
        if not now.flag(SETTING) or now.flag("network.offline"):
            return
        self._services.background.run(
            lambda: newer_version(self.releases),
            self._show_version,
            self._on_error,
            self,
        )

    def _on_error(self, error: Exception) -> None:
        log.info("no look for a newer version: %s", error)
        self.looked.emit()

    def _show_version(self, version: str | None) -> None:
        self.looked.emit()
        if version is None:
            return
        words = self.tr("Tessera {new} is out; this is {own}.").format(new=version, own=__version__)
        page = QUrl(self.releases)
        self._banner.notify(
            words, "info", (self.tr("Open the release page"), lambda: QDesktopServices.openUrl(page))
        )
