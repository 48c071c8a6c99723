"""Fields of one line."""

from PySide6.QtWidgets import QLineEdit


def line_field(hint: str, name: str = "") -> QLineEdit:
    """A field with `hint` in it while it is empty; screen readers say `name`, else the hint."""
    field = QLineEdit()
    field.setPlaceholderText(hint)
    field.setAccessibleName(name or hint)
    return field


def search_field(hint: str, name: str = "") -> QLineEdit:
    """The same, with a button that empties it."""
    field = line_field(hint, name)
    field.setClearButtonEnabled(True)
    return field
