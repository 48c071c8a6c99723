"""The Connect page, which shows the change of an editor's or agent's configuration, writes it, and removes it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication, QShowEvent, QSyntaxHighlighter, QTextCharFormat, QTextDocument
from PySide6.QtWidgets import QFrame, QLabel, QPlainTextEdit, QPushButton

from app.code.integrations.endpoint import context_here
from app.code.integrations.mcp_texts import MCP_PROGRAMS, mcp_command
from app.code.integrations.registry import INTEGRATIONS
from app.code.integrations.store import ConnectStore
from app.code.integrations.types import PLACEHOLDER_KEY, Endpoint, FileEdit, Integration
from app.gui.app_context import AppContext
from app.gui.reasons import known_text
from app.gui.server_link import ServerLink
from app.gui.theme import Theme
from app.gui.widgets.basics import Banner, Page, button, card, label, row, set_kind, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox, entries_of
from devices.programs import installed_program
from engine.api.collections import Collection
from engine.core.paths import user_paths
from engine.services import EngineFacade as EngineServices

T = TypeVar("T")
_COPIED_MS = 1500
_TEXT_HEIGHT = 180  # pixels
_GLYPH = 20  # icon size in pixels at the normal text size; its background is twice as large


class ConnectPage(Page):
    """A card per program. The diff of a pending change is shown below the program's card."""

    def __init__(self, services: AppContext, link: ServerLink, home: Path | None = None) -> None:
        super().__init__(
            self.tr("Connect"),
            self.tr(
                "Connect an editor or a coding agent to a model on this computer. You see every "
                "change first, and backups are made."
            ),
        )
        self._services, self._link = services, link
        self._home = home or Path.home()
        self._store = ConnectStore(user_paths().state)
        self._keys = EngineServices().program_keys
        self._write: Callable[[], list[Path]] | None = None
        self._done_words = ""
        self._connecting: Integration | None = None  # the program whose connection is being reviewed
        self.banner = Banner(services.theme, self)
        self.model = ComboBox(self.tr("Model"))
        self.model.setMinimumWidth(240)
        self.model.activated.connect(lambda _: self._on_model_chosen())
        self.content.addWidget(card(row(label(self.tr("Model"), "small"), self.model, 1)))
        self._states: dict[str, QLabel] = {}
        self._here: dict[str, QLabel] = {}
        self._cards: dict[str, QFrame] = {}
        self.buttons: dict[str, tuple[QPushButton, QPushButton]] = {}
        for name, integration in INTEGRATIONS.items():
            self._cards[name] = self._card(name, integration)
            self.content.addWidget(self._cards[name])
        self.shown = QPlainTextEdit(readOnly=True)
        services.theme.dress(self.shown, "small")
        self.shown.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.shown.setMinimumHeight(220)
        self.shown.setAccessibleName(self.tr("The change"))
        DiffColours(services.theme, self.shown.document())
        self.confirm = button(self.tr("Apply"), self._confirm, "primary")
        self._what = label("", "strong")
        self.review = card(row(self._what, 1, button(self.tr("Cancel"), self._cancel), self.confirm), self.shown)
        self.review.hide()
        self.content.insertWidget(3, self.review)
        self.documents = DocumentsCard(services)
        self.add_section(self.tr("Your documents in other programs (MCP)"), self.documents)
        services.models.changed.connect(self._on_models)
        self._on_models()

    def _card(self, name: str, integration: Integration) -> QFrame:
        state = label(self.tr("Not connected"), "chip")
        connect = button(self.tr("Connect"), lambda: self._plan(integration))
        remove = button(self.tr("Remove"), lambda: self._plan_removal(integration))
        remove.hide()
        words = self.tr("Connect {name}").format(name=integration.title)
        connect.setAccessibleName(words)
        remove.setAccessibleName(self.tr("Remove {name}").format(name=integration.title))
        self._states[name] = state
        self.buttons[name] = (connect, remove)
        hint = self.tr(integration.install)  # a command, an address or an instruction
        if integration.launch is not None:
            hint += " · " + self.tr("or start it from a terminal: {command}").format(
                command=f"tessera launch {name}"
            )
        here = self._here[name] = label(self.tr("Installed"), "chip")
        here.hide()
        head = Flow(spacing=8)
        for part in (label(integration.title, "strong", wrap=True), state, here):
            head.add(part)
        text = stack(head, label(hint, "small", wrap=True), spacing=4)
        line = row(self._glyph(name), text, remove, connect, spacing=12, grow=1)
        return card(line)

    def _glyph(self, name: str) -> QLabel:
        """A neutral icon to recognize a program. It is not the vendor's logo."""
        theme, glyph = self._services.theme, label("", "glyph")

        def paint() -> None:
            side = min(theme.tokens.scaled(_GLYPH), round(1.5 * _GLYPH))
            glyph.setPixmap(theme.icon(f"client-{name.replace('.', '-')}", "muted").pixmap(side, side))
            glyph.setFixedSize(2 * side, 2 * side)

        paint()
        theme.changed.connect(paint)
        glyph.setAlignment(Qt.AlignmentFlag.AlignCenter)
        return glyph

    def showEvent(self, event: QShowEvent) -> None:
        """Update the connection states."""
        super().showEvent(event)
        self._refresh()
        self.documents.refresh()

    def _refresh(self) -> None:
        def work() -> dict[str, tuple[bool, bool]]:
            """For each program: whether it is connected, and whether its command is installed."""
            return {
                name: (
                    self._store.connected(name),
                    integration.launch is not None and installed_program(name) is not None,
                )
                for name, integration in INTEGRATIONS.items()
            }

        def show(states: dict[str, tuple[bool, bool]]) -> None:
            for name, (is_connected, is_here) in states.items():
                set_kind(self._states[name], "chip-ok" if is_connected else "chip")
                self._states[name].setText(self.tr("Connected") if is_connected else self.tr("Not connected"))
                self._here[name].setVisible(is_here)
                self.buttons[name][1].setVisible(is_connected)

        self._services.background.run(work, show, parent=self, newest="states")

    def _on_models(self) -> None:
        offered = [(choice.title, choice.id) for choice in self._services.models.partners]
        if offered == entries_of(self.model):
            return  # do not refresh the combo box, it may be open
        previous = self.model.currentData()
        self.model.clear()
        for title, model in offered:
            self.model.addItem(title, model)
        self.model.setCurrentIndex(max(self.model.findData(previous), 0))

    def _endpoint(self, program: str) -> Endpoint | None:
        choice = self._services.models.get(self.model.currentData() or "")
        if choice is None or not self._link.url:
            self.banner.notify(
                self.tr("The server does not run yet, or has no model. See the Server page."), "warn"
            )
            return None
        key = self._link.token if self._link.remote else self._keys.make(program)
        return Endpoint(
            url=self._link.url,
            model=choice.id,
            context=choice.n_ctx,
            key=key or PLACEHOLDER_KEY,
            capabilities=choice.capabilities,
        )

    def _on_model_chosen(self) -> None:
        """Plan again: the change that is shown is for the model that was chosen before."""
        if self.review.isVisible() and self._connecting is not None:
            self._cancel()
            self._plan(self._connecting)

    def _plan(self, integration: Integration) -> None:
        self._connecting = integration
        endpoint = self._endpoint(integration.name)
        if endpoint is None:
            return

        def known() -> Endpoint:
            return replace(endpoint, context=endpoint.context or context_here(self._link, endpoint.model) or 0)

        if integration.edits is None:
            self._show_steps(integration, endpoint)
            self._plan_next(known, lambda values: self._correct_steps(integration, values))
            return
        self._plan_next(known, lambda values: self._plan_edits(integration, values))

    def _plan_next(self, work: Callable[[], T], then: Callable[[T], object]) -> None:
        """A step towards the review; the steps of an earlier one are dropped."""
        self._services.ask(self.banner, work, then, newest="plan")

    def _correct_steps(self, integration: Integration, endpoint: Endpoint) -> None:
        if self.review.isVisible() and self._what.text() == integration.title:
            self._show_steps(integration, endpoint)

    def _plan_edits(self, integration: Integration, endpoint: Endpoint) -> None:
        def show(edits: list[FileEdit]) -> None:
            if not edits:
                self.banner.notify(
                    self.tr("{name} is already connected to this model.").format(name=integration.title)
                )
                return
            self._offer(integration, edits, lambda: self._store.connect(integration, edits), removing=False)
            if integration.steps is not None:
                self._done_words += "\n" + known_text(integration.steps(endpoint))

        self._plan_next(lambda: self._store.planned(integration, self._home, endpoint), show)

    def _plan_removal(self, integration: Integration) -> None:
        self._connecting = None

        def show(edits: list[FileEdit]) -> None:
            self._offer(integration, edits, lambda: self._disconnect(integration, edits), removing=True)

        self._plan_next(lambda: self._store.planned_removal(integration), show)

    def _disconnect(self, integration: Integration, edits: list[FileEdit]) -> list[Path]:
        backups = self._store.remove(integration, edits)
        self._keys.remove(integration.name)
        return backups

    def _show_steps(self, integration: Integration, endpoint: Endpoint) -> None:
        self._write = None
        self._what.setText(integration.title)
        self._place_review(integration)
        self.shown.setPlainText(known_text(integration.steps(endpoint)) if integration.steps is not None else "")
        self.confirm.hide()
        self.review.show()

    def _offer(
        self, integration: Integration, edits: list[FileEdit], write: Callable[[], list[Path]], *, removing: bool
    ) -> None:
        self._write = write
        done = self.tr("{name} is no longer connected.") if removing else self.tr("{name} is connected.")
        self._done_words = done.format(name=integration.title)
        self._what.setText(integration.title)
        self._place_review(integration)
        self.shown.setPlainText("".join(edit.diff() for edit in edits))
        self.confirm.show()
        self.review.show()

    def _place_review(self, integration: Integration) -> None:
        """Place the review below the card of its program."""
        card = self._cards[integration.name]
        self.content.removeWidget(self.review)
        self.content.insertWidget(self.content.indexOf(card) + 1, self.review)

    def _cancel(self) -> None:
        self._write = None
        self.review.hide()

    def _confirm(self) -> None:
        write, self._write = self._write, None
        if write is None:
            return
        words = self._done_words
        self.review.hide()  # now: another one may be shown before this one is written

        def show(backups: list[Path]) -> None:
            lines = [self.tr("Backup: {path}").format(path=path) for path in backups]
            self.banner.notify("\n".join([words, *lines]), "ok")
            self._refresh()

        self._services.ask(self.banner, write, show)


class DocumentsCard(QFrame):
    """A text to paste, with which a program reads the chosen collections and no others."""

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self._services = services
        self._names: tuple[str, ...] = ()
        self.collection = ComboBox(self.tr("Documents that the program may read"))
        self.collection.currentIndexChanged.connect(lambda _: self._show())
        self.program = ComboBox(self.tr("Program that reads documents"))
        for each in MCP_PROGRAMS:
            self.program.addItem(self.tr(each.name), each.name)
        self.program.currentIndexChanged.connect(lambda _: self._show())
        self.text = QPlainTextEdit(readOnly=True)
        services.theme.dress(self.text, "small")
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self.text.setFixedHeight(_TEXT_HEIGHT)
        self.text.setAccessibleName(self.tr("Text to paste for documents"))
        self.copy = button(self.tr("Copy"), self._copy, "primary", name=self.tr("Copy the text for documents"))
        self._where = label("", "small", wrap=True)
        why = label(
            self.tr(
                "A program that speaks MCP can search and read the documents that you choose here, and change "
                "nothing. What it reads goes to the model that it uses, which may be on another computer."
            ),
            "small",
            wrap=True,
        )
        self._none = label(self.tr("There are no documents yet: add a folder on the page Documents."), wrap=True)
        self._rows = [self.collection, self.program, self.copy, self._where, self.text]
        line = row(self.collection, self.program, 1, self.copy)
        self.setLayout(stack(why, self._none, line, self._where, self.text, spacing=8, margins=(16, 16, 16, 16)))
        self._list(())

    def refresh(self) -> None:
        def show(collections: Sequence[Collection]) -> None:
            self._list(tuple(each.name for each in collections))

        ask = self._services.api.collections
        self._services.background.run(ask, show, lambda _: None, self, newest="collections")

    def _list(self, names: tuple[str, ...]) -> None:
        for widget in self._rows:
            widget.setVisible(bool(names))
        self._none.setVisible(not names)
        if names == self._names:
            return
        self._names = names
        previous = self.collection.currentData()
        self.collection.clear()
        for name in names:
            self.collection.addItem(name, (name,))
        if len(names) > 1:
            self.collection.addItem(self.tr("All of these"), names)
        self.collection.setCurrentIndex(max(self.collection.findData(previous), 0))
        self._show()

    def _show(self) -> None:
        chosen = self.collection.currentData()
        if chosen:
            program = MCP_PROGRAMS[max(self.program.currentIndex(), 0)]
            self._where.setText(self.tr(program.where))
            self.text.setPlainText(program.text(mcp_command(chosen)))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text.toPlainText())
        self.copy.setText(self.tr("Copied"))
        QTimer.singleShot(_COPIED_MS, self.copy, lambda: self.copy.setText(self.tr("Copy")))


class DiffColours(QSyntaxHighlighter):
    """Colours a diff and follows the theme."""

    def __init__(self, theme: Theme, document: QTextDocument) -> None:
        super().__init__(document)
        self._theme = theme
        theme.changed.connect(self.rehighlight)

    def highlightBlock(self, text: str) -> None:
        """Colour a line by its first characters."""
        tokens = self._theme.tokens
        shape = QTextCharFormat()
        if text.startswith(("+++", "---", "@@")):
            shape.setForeground(tokens.colour("muted"))
        elif text.startswith(("+", "-")):
            added = text.startswith("+")
            shape.setForeground(tokens.colour("ok" if added else "bad"))
            shape.setBackground(tokens.colour("ok_soft" if added else "bad_soft"))
        else:
            return
        self.setFormat(0, len(text), shape)
