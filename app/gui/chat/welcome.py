"""The welcome view of an empty chat: this computer's capabilities, recommended models and example prompts."""

from functools import partial
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLabel, QScrollArea, QVBoxLayout, QWidget

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.devices.facts import plain_summary
from app.gui.library.recommended import (
    ListDate,
    download_name,
    download_text,
    name_row,
    proposal_text,
    recommendation,
    size_of,
)
from app.gui.widgets.basics import (
    button,
    card,
    clear,
    holding,
    label,
    reserve_scroll_bar,
    row,
    stack,
    when_released,
)
from app.gui.widgets.flow import Flow
from app.suggestions import FOR_A_MODEL, FOR_THE_TOY
from engine.api.machine import Machine
from engine.library.default_model import missing_model_reason

_SHOWN = 3


class Welcome(QScrollArea):
    """Shows the first-run view until a model is installed, later one line."""

    asked = Signal(str)
    pull_pressed = Signal(str)
    library_pressed = Signal()

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        self.setWidgetResizable(True)
        self.setAccessibleName(self.tr("Welcome"))
        self.setFrameShape(QScrollArea.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)
        self._machine = label("", "muted", wrap=True)
        self._machine.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._machine.setMinimumHeight(services.theme.tokens.body * 3)
        self._first = QWidget()
        self._proposals = QVBoxLayout()
        self._proposals.setSpacing(8)
        self._proposals.setContentsMargins(0, 0, 0, 0)
        self._questions = Flow(centred=True)
        self._asked_of = ""
        self._try = _heading("")
        self._begin = _heading(self.tr("Or start with a model that fits this computer"))
        self._begin.hide()
        self._more = button(self.tr("All models"), self.library_pressed.emit, "link")
        self._offers = holding(self._proposals)
        self._first.setLayout(
            stack(
                self._try,
                row(1, self._questions, 1),
                _gap(),
                self._begin,
                self._offers,
                row(1, self._more, 1),
                spacing=12,
            )
        )
        heading = label(self.tr("What can I help with?"), "title", wrap=True)
        heading.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        column = stack(1, heading, self._machine, spacing=8)
        column.addSpacing(16)
        column.addWidget(self._first)
        column.addStretch(1)
        inner = QWidget()
        inner.setProperty("kind", "page")
        holder = QWidget(maximumWidth=services.theme.tokens.column)
        holder.setLayout(column)
        outer = row(spacing=0, margins=(24, 24, 24, 24))
        outer.addStretch(0)
        outer.addWidget(holder, 100)
        outer.addStretch(0)
        inner.setLayout(outer)
        reserve_scroll_bar(self)
        self.setWidget(inner)
        self._proposed = False
        self._show_kind()
        services.models.changed.connect(self._show_kind)
        services.models.reachable_changed.connect(lambda _: self._request_proposals())
        services.models.proposals_changed.connect(lambda: when_released(self, self._show_proposals))

    def showEvent(self, event: QShowEvent) -> None:
        """Request what this computer can run."""
        super().showEvent(event)
        self._request_proposals()

    def _show_kind(self) -> None:
        """Show the first-run view while only models bundled with Tessera are available."""
        own = [choice for choice in self._services.models.choices if not (choice.demo or choice.installed)]
        first_view = not own
        self._first.setVisible(first_view or self._is_new)
        self._more.setVisible(first_view)
        for widget in (self._begin, self._offers):
            widget.setVisible(first_view and bool(self._services.models.proposals))
        self._suggest()
        if own:
            self._machine.setText(self.tr("Everything stays on this computer. Ask below, or drop in a file."))

    def set_new(self, is_new: bool) -> None:
        """Set whether the user has no chats yet. Then example questions are offered with any model."""
        if is_new != self._is_new:
            self._is_new = is_new
            self._show_kind()

    _is_new = False

    def _suggest(self) -> None:
        """Suggest prompts that the default model answers correctly."""
        models = self._services.models
        chosen = models.get(models.default)
        if chosen is None or chosen.id == self._asked_of:
            return
        self._asked_of = chosen.id
        if chosen.demo:
            reason = missing_model_reason()
            warning = self.tr("{name} is a demo model; its answers are often wrong.").format(name=chosen.title)
            self._try.setText(f"{warning} {reason}" if reason else warning)
        else:
            self._try.setText(self.tr("Try it now with {name}").format(name=chosen.title))
        self._questions.clear()
        for suggestion in FOR_THE_TOY if chosen.demo else FOR_A_MODEL:
            text = self.tr(suggestion.question)
            self._questions.add(button(text, partial(self.asked.emit, text)))

    def _request_proposals(self) -> None:
        if not self._services.models.reachable or not self.isVisible():
            return
        # The expected speeds may have become known.
        self._services.models.refresh_proposals(check=self._services.checks_models)
        if not self._proposed:
            self._proposed = True
            run, api = self._services.background.run, self._services.api
            run(api.devices, self._show_machine, lambda _: None, self)

    def _show_machine(self, machine: Machine) -> None:
        self._services.models.machine = machine
        self._machine.setText(plain_summary(machine))
        self._show_kind()

    def _show_proposals(self) -> None:
        clear(self._proposals)
        proposals = self._services.models.proposals[:_SHOWN]
        self._show_kind()
        for proposal in proposals:
            starter = proposal.starter
            facts = self.tr("{n} parameters · about {size}").format(
                n=formatted.count(starter.parameters), size=formatted.size(size_of(proposal))
            )
            if proposal.expected_tok_s:
                speed = self.tr("about {n} tokens/s").format(n=formatted.speed(proposal.expected_tok_s))
                facts = f"{facts} · {speed}"
            facts = f"{facts} · {download_text(size_of(proposal))}"
            name = formatted.model_name(starter.repo)
            get = button(self.tr("Download"), self._puller(starter.id), "primary" if proposal.recommended else "")
            get.setAccessibleName(download_name(proposal))
            line = row(spacing=16)
            why = recommendation(proposal)
            purpose = label(proposal_text(proposal), wrap=True)
            text = stack(name_row(name, proposal), purpose, label(facts, "small", wrap=True), spacing=2)
            if why:
                text.addWidget(label(why, "small", wrap=True))
            line.addLayout(text, 1)
            line.addWidget(get)
            self._proposals.addWidget(card(line, margin=12))
        if proposals:
            self._proposals.addWidget(ListDate(self._services))

    def _puller(self, model: str) -> Any:
        return lambda: self.pull_pressed.emit(model)


def _gap() -> QWidget:
    gap = QWidget()
    gap.setFixedHeight(8)
    return gap


def _heading(text: str) -> QLabel:
    heading = label(text, "strong", wrap=True)
    heading.setAlignment(Qt.AlignmentFlag.AlignHCenter)
    return heading
