"""Asks what is in the {{places}} of a prompt or a preset."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QFormLayout, QLineEdit, QWidget

from app.gui.widgets.basics import button, label, row, stack


class VariablesDialog(QDialog):
    """One field for each name; `accept` is what the button says."""

    def __init__(self, title: str, names: list[str], accept: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._fields = {name: QLineEdit() for name in names}
        form = QFormLayout()
        for name, field in self._fields.items():
            field.setAccessibleName(name)
            field.setMinimumWidth(320)
            form.addRow(label(name), field)
        insert = button(accept, self.accept, "primary")
        insert.setDefault(True)
        buttons = row(1, button(self.tr("Cancel"), self.reject), insert)
        self.setLayout(stack(label(title, "strong"), form, buttons, spacing=12, margins=(24, 24, 24, 24)))

    @property
    def values(self) -> dict[str, str]:
        """What was filled in."""
        return {name: field.text() for name, field in self._fields.items()}
