"""The choice of the text a file is fitted to: of all kinds, or half of it from a folder of one's own."""

from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.gui.widgets.basics import row
from app.gui.widgets.popups import Choice

_FOLDER = "folder"
_TEXTS: tuple[tuple[str | None, str, str], ...] = (
    (None, "Fit it to text of all kinds", "Books, code and talk in many languages, which come with Tessera."),
    (
        _FOLDER,
        "Fit it to my own text too…",
        "Half of it from a folder of yours, read on this computer only. Then you see what is gained on it.",
    ),
)


class OwnTextChoice(QWidget):
    """`folder` is what the server is asked for; None: the text that comes with the program."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._folder = ""
        self._before = 0
        self.box = Choice()
        self.box.setAccessibleName(self.tr("Text it is fitted to"))
        for value, name, words in _TEXTS:
            self.box.addItem(self.tr(name), value)
            self.box.setItemData(self.box.count() - 1, self.tr(words), Qt.ItemDataRole.ToolTipRole)
        self.box.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)  # a folder's name comes later
        self.box.activated.connect(lambda _: self._on_chosen())
        self.setLayout(row(self.box))

    @property
    def folder(self) -> str | None:
        """The whole path of a folder."""
        return self._folder if self.box.currentData() == _FOLDER else None

    def _on_chosen(self) -> None:
        if self.box.currentData() != _FOLDER:
            self._before = self.box.currentIndex()
            self.changed.emit()
            return
        dialog = QFileDialog(self, self.tr("A folder with text of yours"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(self._on_folder)
        dialog.rejected.connect(lambda: self.box.setCurrentIndex(self._before))
        dialog.open()

    def _on_folder(self, path: str) -> None:
        self._folder = path
        self._before = self.box.currentIndex()
        self.box.setItemText(self._before, self.tr("Fit it to {name} too").format(name=Path(path).name or path))
        self.changed.emit()
