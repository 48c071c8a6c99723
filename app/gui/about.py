"""About dialog: version, runtime versions, and the licences of all components."""

import platform

from PySide6.QtCore import QLibraryInfo, QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QSplitter,
    QWidget,
)

from app.gui.app_context import AppContext
from app.gui.widgets.basics import button, label, line_field, row, stack
from app.gui.widgets.popups import largest_dialog
from app.licences import Component, components, own_licence
from engine.core.version import __version__

_SIZE = QSize(820, 560)
_COMPONENT = Qt.ItemDataRole.UserRole


class About(QDialog):
    """Components on the left, the licence of the selected one on the right; Esc closes the dialog."""

    read = Signal()

    def __init__(self, services: AppContext, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("About Tessera"))
        self.resize(_SIZE.boundedTo(largest_dialog(parent)))
        qt, python = QLibraryInfo.version().toString(), platform.python_version()
        self._facts = f"Tessera {__version__}, Qt {qt}, Python {python}"
        self._parts = QListWidget()
        self._parts.setAccessibleName(self.tr("Parts of the program"))
        self._parts.currentItemChanged.connect(lambda now, _before: self._show(now))
        self._find = line_field(self.tr("Search parts and licences"))
        self._find.textChanged.connect(self._filter)
        self._text = QPlainTextEdit(readOnly=True)
        self._text.setAccessibleName(self.tr("Licence"))
        sides = QSplitter()
        sides.addWidget(self._parts)
        sides.addWidget(self._text)
        sides.setStretchFactor(1, 1)
        sides.setSizes([280, 540])
        head = label(
            self.tr("Licensed under the Apache License 2.0. It contains the parts below."), "muted", wrap=True
        )
        self.setLayout(
            stack(
                label(self._facts, "title", selectable=True),
                head,
                self._find,
                sides,
                row(
                    button(self.tr("Copy version"), lambda: QGuiApplication.clipboard().setText(self._facts)),
                    1,
                    button(self.tr("Close"), self.close),
                ),
                spacing=12,
                margins=(24, 24, 24, 24),
                grow=3,
            )
        )
        self._fill((Component(name="Tessera", version=__version__, licence="Apache-2.0", text=own_licence()),))
        services.background.run(components, self._fill, parent=self)

    def _fill(self, all_components: tuple[Component, ...]) -> None:
        for each in all_components:
            item = QListWidgetItem(f"{each.name} {each.version}\n{each.licence}".strip())
            item.setData(_COMPONENT, each)
            self._parts.addItem(item)
        if self._parts.currentRow() < 0:
            self._parts.setCurrentRow(0)
        self._filter(self._find.text())
        self.read.emit()

    def _filter(self, words: str) -> None:
        for number in range(self._parts.count()):
            item = self._parts.item(number)
            item.setHidden(words.casefold() not in item.text().casefold())

    def _show(self, item: QListWidgetItem | None) -> None:
        if item is None:
            return
        part: Component = item.data(_COMPONENT)
        head = "\n".join(filter(None, (f"{part.name} {part.version}".strip(), part.licence, part.page)))
        self._text.setPlainText(f"{head}\n\n{part.text or self.tr('Its package contains no licence text.')}")
