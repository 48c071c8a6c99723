"""A list whose last entry asks for a file or a folder, and is named after it from then on."""

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.gui.widgets.basics import row
from app.gui.widgets.popups import Choice

PATH = "place"


class PathChoice(QWidget):
    """`value` is what was chosen: a row's own, or the whole path that stands for the row of PLACE.

    A row is its value, its name and its tip. Subclasses say how a place is asked for and what its row is called.
    """

    changed = Signal()

    def __init__(self, name: str, rows: Sequence[tuple[str | None, str, str]]) -> None:
        super().__init__()
        self._path = ""
        self._before = 0
        self.box = Choice()
        self.box.setAccessibleName(name)
        for value, text, tip in rows:
            self.box.addItem(self.tr(text), value)
            self.box.setItemData(self.box.count() - 1, self.tr(tip), Qt.ItemDataRole.ToolTipRole)
        self.box.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)  # a place's name comes later
        self.box.activated.connect(lambda _: self._on_chosen())
        self.setLayout(row(self.box))

    @property
    def value(self) -> str | None:
        """A row's own value, or a whole path."""
        chosen = self.box.currentData()
        return self._path if chosen == PATH else chosen

    def dialog(self) -> QFileDialog:
        """What asks for a place."""
        raise NotImplementedError

    def words(self, name: str) -> str:
        """The row of a place of that name."""
        raise NotImplementedError

    def _on_chosen(self) -> None:
        if self.box.currentData() != PATH:
            self._before = self.box.currentIndex()
            self.changed.emit()
            return
        dialog = self.dialog()
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self._on_path)
        dialog.rejected.connect(lambda: self.box.setCurrentIndex(self._before))
        dialog.open()

    def _on_path(self, path: str) -> None:
        self._path = path
        self._before = self.box.currentIndex()
        self.box.setItemText(self._before, self.words(Path(path).name or path))
        self.changed.emit()
