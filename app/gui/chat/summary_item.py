"""A fold in the transcript: the summary of an older part, which opens to its originals."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QFrame

from app.db.records import Fold
from app.gui.chat.message_editor import MessageEditor
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, label, row, stack
from app.gui.widgets.virtual_list import ColumnItem


class FoldItem(ColumnItem):
    """Says what the model remembers of a part, and lets it be read, corrected, sent whole, or taken back."""

    shown = Signal(int, bool)  # the originals are wanted in the transcript
    opened = Signal(int, bool)  # the originals are to be sent
    rewritten = Signal(int, str)
    undone = Signal(int)

    def __init__(self, theme: Theme, fold: Fold, count: int, *, expanded: bool) -> None:
        super().__init__()
        self._theme, self._number = theme, fold.id
        unit = theme.tokens.unit
        words = self.tr("{n} earlier messages, summarized").format(n=count)
        if fold.edited:
            words += " · " + self.tr("edited")
        self.fold = button(
            ("▾ " if expanded else "▸ ") + words, lambda: self.shown.emit(fold.id, not expanded), "link"
        )
        self.fold.setAccessibleName(words)
        self.send = QCheckBox(self.tr("Send the originals to the model"))
        self.send.setChecked(fold.opened)
        self.send.toggled.connect(lambda on: self.opened.emit(fold.id, on))
        edit = IconButton(theme, "edit", self.tr("Edit the summary"), self.start_edit, size=16)
        undo = IconButton(
            theme, "trash", self.tr("Take this summary back"), lambda: self.undone.emit(fold.id), size=16
        )
        self.text = label(fold.summary, "muted", wrap=True, selectable=True)
        frame = QFrame()
        frame.setProperty("kind", "note")
        margins = (2 * unit, unit, 2 * unit, unit)
        self._inner = stack(
            row(self.fold, 1, edit, undo, spacing=2), self.text, self.send, spacing=unit, margins=margins
        )
        frame.setLayout(self._inner)
        self._column = stack(frame, margins=(0, unit, 0, unit))
        self.setLayout(self._column)
        self.editor: MessageEditor | None = None

    def fit(self, width: int) -> int:
        """Lay out for this width."""
        self.text.setMinimumHeight(self.text.heightForWidth(width - 4 * self._theme.tokens.unit))
        self._column.activate()
        return max(self._column.totalHeightForWidth(width), self.sizeHint().height())

    def start_edit(self) -> None:
        """Put an editor in the place of the summary."""
        if self.editor is not None:
            return
        editor = MessageEditor(self._theme, self.text.text(), self.tr("Edit the summary"), self.tr("Save"))
        self.editor = editor

        def close() -> None:
            editor.hide()
            editor.deleteLater()
            self.editor = None
            self.text.show()
            self.height_changed.emit()

        def save(text: str) -> None:
            close()
            self.rewritten.emit(self._number, text)

        editor.closed.connect(close)
        editor.accepted.connect(save)
        editor.height_changed.connect(self.height_changed)
        self.text.hide()
        self._inner.insertWidget(1, editor)
        editor.show()
        editor.setFocus()
        self.height_changed.emit()
