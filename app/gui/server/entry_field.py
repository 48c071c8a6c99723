"""Fields of the cards that add something."""

from collections.abc import Callable

from PySide6.QtWidgets import QLineEdit


def entry_field(
    hint: str, name: str, most: int, changed: Callable[[], None], entered: Callable[[], None]
) -> QLineEdit:
    """A field of at most `most` characters: `changed` with each of them, `entered` with Return."""
    field = QLineEdit()
    field.setMaxLength(most)
    field.setPlaceholderText(hint)
    field.setAccessibleName(name)
    field.textChanged.connect(lambda _: changed())
    field.returnPressed.connect(entered)
    return field
