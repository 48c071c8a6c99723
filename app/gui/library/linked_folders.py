"""The dialog of linked folders: models that are used in place, also those of other applications."""

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QDialog, QPushButton, QWidget

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.library.model_card import app_title
from app.gui.reasons import error_message
from app.gui.widgets.basics import Banner, button, clear, label, row, scrolled, stack, when_released
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.popups import file_dialog, largest_dialog
from engine.api.hub import Folder
from engine.api.library import Linked, LinkedFolder, Unlinked

_SIZE = QSize(640, 460)


class LinkedFoldersDialog(QDialog):
    """Lists linked folders, each with a button to unlink it, and folders of other applications to link."""

    changed = Signal()  # the library has other models now

    def __init__(self, services: AppContext, parent: QWidget) -> None:
        super().__init__(parent)
        self._services = services
        self.setWindowTitle(self.tr("Linked folders"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.resize(_SIZE.boundedTo(largest_dialog(parent)))
        note = self.tr(
            "Models in these folders are used where they are, without copying. Unlinking takes them from the list; "
            "their files stay."
        )
        self.banner = Banner(services.theme)
        self._rows = stack(spacing=8)
        column = stack(spacing=8)
        column.addLayout(self._rows)
        column.addStretch(1)
        self.link_button = button(self.tr("Link a folder…"), self._choose)
        self.close_button = button(self.tr("Done"), self.accept)
        for control in (self.link_button, self.close_button):
            control.setAutoDefault(False)
        self.setLayout(
            stack(
                label(note, "small", wrap=True),
                self.banner,
                scrolled(column, self.tr("Linked folders")),
                row(self.link_button, 1, self.close_button, spacing=8),
                spacing=12,
                margins=(20, 20, 20, 20),
            )
        )
        self.refresh()

    def refresh(self) -> None:
        """Ask the server which folders are linked, and which others there are."""
        api = self._services.api

        def ask() -> tuple[tuple[LinkedFolder, ...], tuple[Folder, ...]]:
            return api.linked_folders().folders, api.foreign_folders().folders

        def show(folders: tuple[tuple[LinkedFolder, ...], tuple[Folder, ...]]) -> None:
            when_released(self, lambda: self._show(*folders))

        self._services.background.run(ask, show, self._failed, self, newest="folders")

    def _show(self, linked: tuple[LinkedFolder, ...], foreign: tuple[Folder, ...]) -> None:
        clear(self._rows)
        for folder in linked:
            words = self.tr("1 model") if folder.models == 1 else self.tr("{n} models")
            facts = [app_title(folder.app)] if folder.app else []
            facts.append(words.format(n=formatted.whole(folder.models)))
            if not folder.is_here:
                facts.append(self.tr("not there now"))
            unlink = button(self.tr("Unlink"), partial(self._unlink, folder.path))
            unlink.setAccessibleName(self.tr("Unlink {path}").format(path=folder.path))
            self._rows.addWidget(_line(folder.path, " · ".join(facts), unlink))
        if not linked:
            self._rows.addWidget(label(self.tr("No folder is linked yet."), "muted", wrap=True))
        linked_paths = {folder.path for folder in linked}
        others = [folder for folder in foreign if folder.path not in linked_paths]
        if others:
            self._rows.addSpacing(8)
            self._rows.addWidget(label(self.tr("Models of other applications on this computer"), "strong"))
        for other in others:
            link = button(self.tr("Link"), partial(self._link, other.path))
            link.setAccessibleName(self.tr("Link {path}").format(path=other.path))
            self._rows.addWidget(_line(other.path, app_title(other.app), link))

    def _choose(self) -> None:
        file_dialog(self, self.tr("Link a folder of models"), self._link, folder=True)

    def _link(self, path: str) -> None:
        def done(linked: Linked) -> None:
            words = self.tr("Linked. Its models are in the library now.")
            if not linked.added:
                words = self.tr("Linked. There is no new model in it; models that you put there will appear.")
            self._notify(words)

        self._services.ask(self.banner, lambda: self._services.api.link(path), done)

    def _unlink(self, path: str) -> None:
        def done(unlinked: Unlinked) -> None:
            words = self.tr("Unlinked. {n} models were taken from the list.")
            if len(unlinked.removed) == 1:
                words = self.tr("Unlinked. 1 model was taken from the list.")
            self._notify(words.format(n=len(unlinked.removed)), (self.tr("Undo"), lambda: self._link(path)))

        self._services.ask(self.banner, lambda: self._services.api.unlink(path), done)

    def _notify(self, words: str, *actions: tuple[str, Callable[[], object]]) -> None:
        self.banner.notify(words, "ok", *actions)
        for action in self.banner.findChildren(QPushButton):
            action.setAutoDefault(False)  # Enter must not press it
        self.changed.emit()
        self.refresh()

    def _failed(self, error: Exception) -> None:
        self.banner.notify(error_message(error), "bad")


def _line(path: str, facts: str, action: QPushButton) -> QWidget:
    """A folder's row: its known facts and its button."""
    action.setAutoDefault(False)
    holder = QWidget()
    line = row(stack(ElidedLabel(path), label(facts, "small"), spacing=0), action, spacing=12)
    line.setStretch(0, 1)
    holder.setLayout(line)
    return holder
