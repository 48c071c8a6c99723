"""The form of a project: folder, instructions, model and tools."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QDialog, QLineEdit, QPlainTextEdit, QWidget

from app.db.records import Folder
from app.gui.app_context import AppContext
from app.gui.chat.tools_panel import built_in_texts
from app.gui.widgets.basics import button, label, literal, row, stack
from app.gui.widgets.popups import ComboBox, file_dialog
from app.tools.catalogue import Offered

_WIDTH = 520


class ProjectDialog(QDialog):
    """Emits the fields that the user entered."""

    saved = Signal(dict)

    def __init__(self, services: AppContext, folder: Folder, offered: list[Offered], parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(self.tr("Project"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setMinimumWidth(_WIDTH)
        self.name = QLineEdit(folder.name)
        self.path = QLineEdit(folder.path, placeholderText=self.tr("None: a project needs no folder on disk"))
        self.instructions = QPlainTextEdit(folder.instructions, tabChangesFocus=True)
        self.instructions.setFixedHeight(120)
        self.instructions.setPlaceholderText(self.tr("Instructions for the model in every chat here"))
        self.model = ComboBox()
        self.model.addItem(self.tr("Default"), "")
        for choice in services.models.choices:
            self.model.addItem(choice.title, choice.id)
        index = self.model.findData(folder.model)
        if folder.model and index < 0:
            self.model.addItem(folder.model, folder.model)
            index = self.model.count() - 1
        self.model.setCurrentIndex(max(0, index))
        self.tools = {
            source.name: QCheckBox(literal(built_in_texts(source.name)[0] or source.name)) for source in offered
        }
        for name, box in self.tools.items():
            box.setChecked(name in folder.tools)
        column = stack(spacing=6, margins=(20, 20, 20, 20))
        for field, words in (
            (self.name, self.tr("Name")),
            (self.instructions, self.tr("Instructions")),
            (self.model, self.tr("Model for new chats")),
        ):
            field.setAccessibleName(words)
            column.addWidget(label(words, "strong"))
            column.addWidget(field)
        self.path.setAccessibleName(self.tr("Folder"))
        column.addWidget(label(self.tr("Folder"), "strong"))
        column.addLayout(row(self.path, button(self.tr("Choose…"), self._choose)))
        note = self.tr("Tessera reads AGENTS.md and CLAUDE.md in this folder and starts tools there.")
        column.addWidget(label(note, "small", wrap=True))
        if self.tools:
            column.addWidget(label(self.tr("Tools for new chats"), "strong"))
            for box in self.tools.values():
                column.addWidget(box)
        self.save = button(self.tr("Save"), self._save, "primary")
        self.save.setDefault(True)
        column.addLayout(row(1, button(self.tr("Cancel"), self.reject), self.save))
        self.setLayout(column)

    def _choose(self) -> None:
        title = self.tr("Folder of the project")
        file_dialog(self, title, self.path.setText, folder=True, start=self.path.text())

    def _save(self) -> None:
        if not self.name.text().strip():
            self.name.setFocus()
            return
        self.saved.emit(
            {
                "name": self.name.text().strip(),
                "path": self.path.text().strip(),
                "instructions": self.instructions.toPlainText(),
                "model": str(self.model.currentData() or ""),
                "tools": tuple(name for name, box in self.tools.items() if box.isChecked()),
            }
        )
        self.accept()
