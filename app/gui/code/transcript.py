"""The page's requests and responses, one below the other."""

import time

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea

from app.code.edits.display import EditDisplay
from app.generation_phase import GenerationPhase
from app.gui.chat.phase_label import PhaseLabel
from app.gui.markdown.view import MarkdownView
from app.gui.theme import Theme
from app.gui.widgets.basics import clear, framed, holding, label, row, stack

_MARGIN = 16
_BUBBLE_FRACTION = 0.85  # fraction of the width, as in the chat
_END = 4  # pixels from the end that still count as the end


class Transcript(QScrollArea):
    """Follows the end while a response streams, unless the user scrolled away."""

    begun = Signal()  # a request was added

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._views: list[MarkdownView] = []
        self._questions: list[MarkdownView] = []
        self._display = EditDisplay()
        self._stick = True
        self._phase = PhaseLabel()
        self._layout = stack(spacing=12, margins=(_MARGIN, _MARGIN, _MARGIN, _MARGIN))
        self._layout.setAlignment(Qt.AlignmentFlag.AlignTop)
        inner = holding(self._layout)
        self.setWidget(inner)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(self.tr("Questions and answers"))
        bar = self.verticalScrollBar()
        bar.rangeChanged.connect(lambda _low, high: bar.setValue(high) if self._stick else None)
        bar.valueChanged.connect(self._on_scrolled)

    @property
    def last_answer(self) -> str:
        """The text of the last response."""
        return self._views[-1].markdown if self._views else ""

    def begin(self, question: str, model: str = "") -> None:
        """Add a request with an empty response below it, with the name of the model that answers."""
        self.begun.emit()
        self._display = EditDisplay()
        self._layout.addLayout(row(1, self._bubble(question)))
        view = MarkdownView(self._theme)
        view.fit_width(self._width())
        self._views.append(view)
        self._layout.addLayout(stack(*((label(model, "small"),) if model else ()), view, spacing=8))
        self._layout.addWidget(self._phase)
        self._phase.begin(time.monotonic())
        self._stick = True
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())

    def _bubble(self, question: str) -> QFrame:
        """A request bubble, as in the chat."""
        bubble = framed("bubble")
        body = MarkdownView(self._theme)
        body.set_plain(question)
        body.setAccessibleName(self.tr("Your question"))
        unit = self._theme.tokens.unit
        bubble.setLayout(stack(body, margins=(2 * unit, unit + 3, 2 * unit, unit - 2)))
        self._questions.append(body)
        self._fit_question(body)
        return bubble

    def _fit_question(self, body: MarkdownView) -> None:
        widest = round(self._width() * _BUBBLE_FRACTION) - 4 * self._theme.tokens.unit
        body.fit_width(min(widest, max(24, body.ideal_width())))

    def show_phase(self, phase: GenerationPhase) -> None:
        """Show the phase of the last response."""
        self._phase.show_phase(phase)

    def append(self, text: str) -> None:
        """Append text to the last response. Its edits are shown as diffs."""
        self._show(self._display.push(text))

    def end(self) -> None:
        """Finish the last response, complete or stopped."""
        self._show(self._display.finish())
        self._phase.end()

    def add_turn(self, question: str, model: str, text: str) -> None:
        """Add a request of an earlier session with its response."""
        self.begin(question, model)
        self.append(text)
        self.end()

    def _show(self, text: str) -> None:
        if self._views and text:
            self._views[-1].append_markdown(text)

    def clear(self) -> None:
        """Remove all requests and responses."""
        self._views.clear()
        self._questions.clear()
        self._layout.removeWidget(self._phase)
        self._phase.end()
        clear(self._layout)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Lay out the messages for the new width."""
        super().resizeEvent(event)
        for view in self._views:
            view.fit_width(self._width())
        for body in self._questions:
            self._fit_question(body)

    def _width(self) -> int:
        return max(self.viewport().width() - 2 * _MARGIN, 120)

    def _on_scrolled(self, value: int) -> None:
        self._stick = value >= self.verticalScrollBar().maximum() - _END
