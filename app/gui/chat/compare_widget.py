"""Two answers to one question, side by side."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.gui.chat.message_widget import MessageWidget
from app.gui.theme import Theme
from app.gui.widgets.basics import button, label, row, stack
from app.gui.widgets.virtual_list import ColumnItem


class PairWidget(ColumnItem):
    """The first model's answer on the left, the second's on the right; `chosen` is what the chat continues from."""

    picked = Signal(int)

    def __init__(
        self, theme: Theme, panes: list[MessageWidget], waiting: str, chosen_id: int, *, busy: bool
    ) -> None:
        super().__init__()
        self._gap = 2 * theme.tokens.unit
        self.panes = panes
        self._inset = 2 * theme.tokens.unit
        self._feet: list[QWidget] = []
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, theme.tokens.unit, 0, theme.tokens.unit)
        layout.setSpacing(self._gap)
        for pane in panes:
            pane.height_changed.connect(self.height_changed)
            layout.addWidget(self._framed(pane, chosen_id, busy=busy), 1)
        if len(panes) == 1:
            note = label(self.tr("Waits for the first answer, so that both run at full speed"), "muted", wrap=True)
            holder = self._frame()
            holder.setLayout(stack(label(waiting, "small"), note, 1, spacing=4, margins=(16, 16, 16, 16)))
            layout.addWidget(holder, 1)

    def pane(self, message_id: int) -> MessageWidget | None:
        """The half that shows this message."""
        return next((pane for pane in self.panes if pane.message.id == message_id), None)

    def fit(self, width: int) -> int:
        """Lay out both halves for their share of this width."""
        half = (width - self._gap) // 2
        tallest = 0
        for pane in self.panes:
            tallest = max(tallest, pane.fit(half - 2 * self._inset))
        layout = self.layout()
        assert layout is not None
        layout.invalidate()
        layout.activate()
        margins = layout.contentsMargins()
        foot = 0
        for made in self._feet:
            made.ensurePolished()  # before it, a button does not know its height
            foot = max(foot, made.sizeHint().height())
        return tallest + foot + 2 * self._gap + margins.top() + margins.bottom()

    def _framed(self, pane: MessageWidget, chosen_id: int, *, busy: bool) -> QFrame:
        frame = self._frame()
        column = QVBoxLayout()
        column.setContentsMargins(self._inset, self._gap // 2, self._inset, self._gap // 2)
        column.setSpacing(self._gap // 2)
        column.addWidget(pane)
        column.addStretch(1)
        if len(self.panes) > 1 and not busy:
            if pane.message.id == chosen_id:
                foot: QWidget = label(self.tr("The chat goes on from here"), "chip-ok")
            else:
                foot = button(self.tr("Go on with this one"), lambda: self.picked.emit(pane.message.id))
            column.addLayout(row(foot, 1))
            self._feet.append(foot)
        frame.setLayout(column)
        return frame

    @staticmethod
    def _frame() -> QFrame:
        frame = QFrame()
        frame.setProperty("kind", "card")
        return frame
