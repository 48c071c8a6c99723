"""The icon in the tray: optional, and the window never hides where there is no tray to bring it back."""

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QMainWindow, QMenu, QSystemTrayIcon

from app.gui.theme import ASSETS


class Tray(QObject):
    """While shown, closing the window leaves Tessera running; the icon brings it back or ends it."""

    def __init__(self, window: QMainWindow, quit_app: Callable[[], object]) -> None:
        super().__init__(window)
        self._window = window
        self._quit = quit_app
        self._icon: QSystemTrayIcon | None = None
        self._menu: QMenu | None = None

    @property
    def keeps_running(self) -> bool:
        """Closing the window hides it."""
        return self._icon is not None and self._icon.isVisible()

    def set_wanted(self, wanted: bool) -> None:
        """Show or remove the icon; without a tray nothing happens."""
        if not wanted or not QSystemTrayIcon.isSystemTrayAvailable():
            if self._icon is not None:
                self._icon.hide()
                self._icon.deleteLater()
                self._icon = None
            return
        if self._icon is not None:
            return
        self._menu = QMenu(self._window)
        self._menu.addAction(self.tr("Show Tessera"), self.show_window)
        self._menu.addAction(self.tr("Quit"), self._quit)
        self._icon = QSystemTrayIcon(QIcon(str(ASSETS / "icons" / "tessera.svg")), self)
        self._icon.setToolTip("Tessera")
        self._icon.setContextMenu(self._menu)
        self._icon.activated.connect(self._on_activated)
        self._icon.show()

    def show_window(self) -> None:
        """Bring the window back."""
        self._window.show()
        self._window.raise_()
        self._window.activateWindow()

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason == QSystemTrayIcon.ActivationReason.Trigger:
            self.show_window()
