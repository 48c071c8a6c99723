"""The choice of a task that the new file must do as well as the original before it is kept."""

from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.gui.widgets.basics import row
from app.gui.widgets.popups import Choice

_FILE = "file"
_GATES: tuple[tuple[str | None, str, str], ...] = (
    (None, "Keep it without a task", "The file is compared with the original on text alone."),
    (
        "certify",
        "Check tool calls before keeping it",
        "Some thirty calls are asked of the original and of the new file. What is clearly worse is not kept.",
    ),
    (
        "evaluate",
        "Check programs before keeping it",
        "Fifty programs are asked of both and run here in a sandbox, without network and without your files.",
    ),
    (
        _FILE,
        "Check my own tasks before keeping it…",
        "A text file with one task on a line, as JSON: prompt, and answer or regex.",
    ),
)


class GateChoice(QWidget):
    """`gate` is what the server is asked for; None: nothing is checked."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.file = ""
        self._before = 0
        self.box = Choice()
        self.box.setAccessibleName(self.tr("Check a task before keeping it"))
        for value, name, words in _GATES:
            self.box.addItem(self.tr(name), value)
            self.box.setItemData(self.box.count() - 1, self.tr(words), Qt.ItemDataRole.ToolTipRole)
        self.box.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)  # a file's name comes later
        self.box.activated.connect(lambda _: self._on_chosen())
        self.setLayout(row(self.box))

    @property
    def gate(self) -> str | None:
        """A task by its name, or the whole path of a file."""
        chosen = self.box.currentData()
        return self.file if chosen == _FILE else chosen

    def _on_chosen(self) -> None:
        if self.box.currentData() != _FILE:
            self._before = self.box.currentIndex()
            self.changed.emit()
            return
        dialog = QFileDialog(self, self.tr("A file of tasks"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilters([self.tr("Tasks (*.jsonl *.json)"), self.tr("All files (*)")])
        dialog.fileSelected.connect(self._on_file)
        dialog.rejected.connect(lambda: self.box.setCurrentIndex(self._before))
        dialog.open()

    def _on_file(self, path: str) -> None:
        self.file = path
        self._before = self.box.currentIndex()
        place = self.box.currentIndex()
        self.box.setItemText(place, self.tr("Check {name} before keeping it").format(name=Path(path).name))
        self.changed.emit()
