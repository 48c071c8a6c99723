"""A card with one row per item of a server-side list. Reloads after every change."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QLayout, QLineEdit, QPushButton, QVBoxLayout

from app.gui.app_context import AppContext
from app.gui.widgets.basics import Banner, LabelKind, button, clear, label, line_field, row, when_released

T = TypeVar("T")


class RowsCard(QFrame, Generic[T]):
    """The card. `T` is the list; `add` is the button that adds an item from the fields."""

    def __init__(self, services: AppContext, banner: Banner) -> None:
        super().__init__()
        self._services, self._banner = services, banner
        self.setProperty("kind", "card")
        self._shown_state: T | None = None
        self._note = label("", "small", wrap=True)
        self._rows = QVBoxLayout()
        self._rows.setSpacing(12)
        self.add = button(self.tr("Add"), self._add)

    @abstractmethod
    def _fetch(self) -> T:
        """Request the list from the server. Worker thread only."""

    @abstractmethod
    def _rows_of(self, state: T) -> tuple[list[QLayout], str]:
        """One row per item, and the note above the rows."""

    @abstractmethod
    def _add(self) -> None:
        """Add an item from the fields."""

    @abstractmethod
    def _refresh_button(self) -> None:
        """Enable or disable `add` after a field changed."""

    def refresh(self) -> None:
        """Reload the list. The listed hosts are not contacted."""
        self._services.background.run(self._fetch, self._show, lambda _: None, self, newest="rows")

    def _show(self, state: T) -> None:
        if state == self._shown_state:
            return
        self._shown_state = state
        when_released(self, self._make_rows)

    def _make_rows(self) -> None:
        if self._shown_state is None:
            return
        clear(self._rows)
        rows, note = self._rows_of(self._shown_state)
        for layout in rows:
            self._rows.addLayout(layout)
        self._note.setText(note)

    def _run_then_reload(self, call: Callable[[], object]) -> None:
        self._services.ask(self._banner, call, lambda _: self._on_asked())

    def _on_asked(self) -> None:
        self.refresh()

    def _field(self, hint: str, name: str, most: int) -> QLineEdit:
        """A field of at most `most` characters. Return adds the item."""
        field = line_field(hint, name)
        field.setMaxLength(most)
        field.textChanged.connect(lambda _: self._refresh_button())
        field.returnPressed.connect(self._add)
        return field

    def _line(
        self,
        name: str,
        chips: list[QLabel],
        check: Callable[[], object],
        forget: Callable[[], object],
        *more: QPushButton,
    ) -> QHBoxLayout:
        """The row of a named item, with the common buttons."""
        looking = button(self.tr("Check"), partial(self._run_then_reload, check))
        looking.setAccessibleName(self.tr("Check {name}").format(name=name))
        removing = button(self.tr("Remove"), partial(self._run_then_reload, forget), "danger")
        removing.setAccessibleName(self.tr("Remove {name}").format(name=name))
        return row(label(name, "strong"), *chips, 1, *more, looking, removing)


def kind_of_state(state: str) -> LabelKind:
    """The chip kind of a state."""
    kinds: dict[str, LabelKind] = {"ok": "chip-ok", "unknown": "chip"}
    return kinds.get(state, "chip-warn")
