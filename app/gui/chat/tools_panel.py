"""The panel next to a chat: enabled tools, the model's tool-call score and permanent decisions."""

import shlex
from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtWidgets import QCheckBox, QDialog, QFrame, QLineEdit, QPlainTextEdit, QWidget

from app.db.records import Conversation
from app.evals.tool_calls.run import CertificateStore
from app.gui.app_context import Services
from app.gui.reasons import error_message
from app.gui.widgets.basics import IconButton, button, clear, label, row, scrolled, stack, when_released
from app.tools.builtin import CALCULATOR, FILES
from app.tools.catalogue import Offered, offered
from app.tools.consent import ConsentStore, StoredDecision
from app.tools.mcp_config import BadMcpConfig, McpServerConfig, ServerList, check_server, parse_servers
from app.tools.types import shown_line
from engine.core.paths import user_paths

_MAX_SHOWN = 90
_SERVER_KEY, _TOOL_KEY = "mcp server:", "mcp__"  # beginnings of keys in the store of decisions
_DEFAULT = "chat.tools"  # the setting that names the tools of new chats


class ToolsPanel(QFrame):
    """Emits the names of the enabled sources."""

    changed = Signal(tuple)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.setProperty("kind", "side")
        self.setFixedWidth(304)
        self._on: tuple[str, ...] = ()
        self._asked = 0
        self._shown: tuple[tuple[list[Offered], dict[str, StoredDecision], str], tuple[str, ...]] | None = None
        self._model = ""
        self.certificate = label("", "small", wrap=True)
        self._list = stack(spacing=12)
        self._decisions = stack(spacing=4)
        self.problem = label("", "chip-bad", wrap=True)
        self.problem.hide()
        self.dialog: AddServer | None = None
        column = stack(
            label(self.tr("Tools for this chat"), "strong"),
            self.certificate,
            self.problem,
            self._list,
            button(self.tr("Add tools…"), self.add),
            spacing=12,
            margins=(16, 16, 16, 16),
        )
        self.default = button(self.tr("Use these in every new chat"), self._set_default)
        column.addWidget(self.default)
        column.addLayout(self._decisions)
        column.addStretch(1)
        services.settings.changed.connect(lambda name: self._show_default() if name == _DEFAULT else None)
        self.setLayout(stack(scrolled(column)))

    def show_conversation(self, conversation: Conversation) -> None:
        """Show the tools of a conversation."""
        self._on, self._model = conversation.tools, conversation.model
        self._show_default()
        if self.isVisible():
            self.refresh()

    def refresh(self) -> None:
        """Reload servers, decisions and the tool-call evaluation."""
        model = self._model
        self._asked += 1
        asked = self._asked

        def read() -> tuple[list[Offered], dict[str, StoredDecision], str]:
            found = CertificateStore(user_paths().state).load(model) if model else None
            words = (
                self.tr("Calls tools correctly in {n} % of the test cases.")
                if found
                else self.tr("Tool calling of this model has not been measured: tessera certify {model}")
            )
            share = round(100 * found.pass_frac) if found else 0
            return offered(), ConsentStore().all(), words.format(n=share, model=model)

        def show(found: tuple[list[Offered], dict[str, StoredDecision], str]) -> None:
            if asked == self._asked:  # a later request may have finished first
                self._on_read(found)

        self._do(read, show)

    def add(self) -> None:
        """Show the form for a new server."""
        self.dialog = AddServer(self)
        self.dialog.added.connect(self._add)
        self.dialog.open()

    def _add(self, servers: list[McpServerConfig]) -> None:
        names = tuple(server.name for server in servers)

        def done(_: object) -> None:
            self._on = (*(name for name in self._on if name not in names), *names)
            self.changed.emit(self._on)
            self.refresh()

        self._do(lambda: ServerList().add(servers), done)

    def _on_read(self, read: tuple[list[Offered], dict[str, StoredDecision], str]) -> None:
        """Rebuild only if something changed: rebuilding a switch would lose a click in progress."""
        self.problem.hide()
        if (read, self._on) != self._shown:
            self._shown = (read, self._on)
            when_released(self, self._show)

    def _show(self) -> None:
        if self._shown is None:
            return
        (sources, decisions, certificate), _ = self._shown
        self.certificate.setText(certificate)
        clear(self._list)
        for source in sources:
            self._list.addWidget(self._row(source))
        if not sources:
            words = self.tr(
                "None yet. Servers of the Model Context Protocol give a model tools: files, git, calendars."
            )
            self._list.addWidget(label(words, "small", wrap=True))
        clear(self._decisions)
        if decisions:
            self._decisions.addWidget(label(self.tr("Saved permissions"), "strong"))
        for key, decision in sorted(decisions.items()):
            state = self.tr("always") if decision.decision == "always" else self.tr("never")
            text = label(f"{decision_words(key)[:_MAX_SHOWN]}: {state}", "small", wrap=True)
            text.setToolTip(shown_line(key))
            hint = self.tr("Ask again for {name}").format(name=key)
            forget = IconButton(self._services.theme, "close", hint, partial(self._forget, key))
            line = row(text, forget, spacing=4)
            line.setStretch(0, 1)
            self._decisions.addLayout(line)

    def _row(self, source: Offered) -> QWidget:
        switch = QCheckBox(self._title(source))
        switch.setChecked(source.name in self._on)
        switch.toggled.connect(lambda on: self._switch(source.name, on=on))
        top = row(switch, 1, spacing=4)
        if not source.built_in:
            words = self.tr("Remove {name}").format(name=source.name)
            top.addWidget(IconButton(self._services.theme, "trash", words, lambda: self._remove(source.name)))
        holder = QWidget()
        shown = source.detail if len(source.detail) <= _MAX_SHOWN else source.detail[:_MAX_SHOWN] + "…"
        detail = label(shown, "small", wrap=True)
        detail.setToolTip(source.detail)
        holder.setLayout(stack(top, detail, spacing=2))
        return holder

    def _title(self, source: Offered) -> str:
        return {CALCULATOR: self.tr("Calculator"), FILES: self.tr("Files")}.get(source.name, source.name)

    def _switch(self, name: str, *, on: bool) -> None:
        others = tuple(server for server in self._on if server != name)
        self._on = (*others, name) if on else others
        if self._shown is not None:
            self._shown = (self._shown[0], self._on)  # the switch already shows it
        self.changed.emit(self._on)
        self._show_default()

    def _set_default(self) -> None:
        self._services.settings.set(_DEFAULT, ", ".join(self._on))

    def _show_default(self) -> None:
        """The button is for a change only: the tools of this chat differ from those of new chats."""
        names = self._services.settings.now.text(_DEFAULT).split(",")
        self.default.setEnabled(set(self._on) != {name.strip() for name in names if name.strip()})

    def _remove(self, name: str) -> None:
        self._switch(name, on=False)
        self._do(lambda: ServerList().remove(name), lambda _: self.refresh())

    def _forget(self, key: str) -> None:
        self._do(lambda: ConsentStore().keep(key, None), lambda _: self.refresh())

    def _do(self, work: Callable[[], object], done: Callable[..., object]) -> None:
        def failed(error: Exception) -> None:
            self.problem.setText(error_message(error))
            self.problem.show()

        self._services.background.run(work, done, failed, self)


def decision_words(key: str) -> str:
    """What a permanent decision is about, from its key in the store."""
    shown = shown_line(key)
    if shown.startswith(_SERVER_KEY):
        name = shown.removeprefix(_SERVER_KEY).partition(":")[0]
        return QCoreApplication.translate("ToolsPanel", "Starting the tools of {name}").format(name=name)
    if shown.startswith(_TOOL_KEY):
        server, _, tool = shown.removeprefix(_TOOL_KEY).partition("__")
        words = QCoreApplication.translate("ToolsPanel", "Using {tool} of {name}")
        return words.format(tool=tool, name=server) if tool else shown
    return shown


_WIDTH = 520


class AddServer(QDialog):
    """Emits the entered servers. It starts none of them."""

    added = Signal(list)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(self.tr("Add tools"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setMinimumWidth(_WIDTH)
        self.name, self.where = QLineEdit(), QLineEdit()
        self.name.setPlaceholderText("notes")
        self.where.setPlaceholderText(self.tr("npx -y some-server ~/Documents, or https://…"))
        self.values = QPlainTextEdit()
        self.values.setPlaceholderText("API_KEY=…")
        self.values.setFixedHeight(64)
        self.json = QPlainTextEdit()
        self.json.setPlaceholderText('{"mcpServers": {"files": {"command": "npx", "args": ["…"]}}}')
        self.json.setFixedHeight(120)
        for field, words in (
            (self.name, self.tr("Name")),
            (self.where, self.tr("Command or address")),
            (
                self.values,
                self.tr("Environment variables, or HTTP headers for an address: one NAME=value per line"),
            ),
            (self.json, self.tr("Or paste the JSON from the server's page")),
        ):
            field.setAccessibleName(words)
        for text in (self.values, self.json):
            text.setTabChangesFocus(True)
        self.problem = label("", "chip-bad", wrap=True)
        self.problem.hide()
        column = stack(spacing=6, margins=(20, 20, 20, 20))
        for field in (self.name, self.where, self.values, self.json):
            column.addWidget(label(field.accessibleName(), "strong"))
            column.addWidget(field)
        note = self.tr(
            "A command runs with your rights. You are asked before it starts, and before each tool is used."
        )
        column.addWidget(label(note, "small", wrap=True))
        column.addWidget(self.problem)
        self.accept_button = button(self.tr("Add"), self._add, "primary")
        self.accept_button.setDefault(True)
        column.addLayout(row(1, button(self.tr("Cancel"), self.reject), self.accept_button))
        self.setLayout(column)

    def _add(self) -> None:
        try:
            servers = (
                parse_servers(self.json.toPlainText()) if self.json.toPlainText().strip() else [self._filled()]
            )
        except (BadMcpConfig, ValueError) as error:
            self.problem.setText(error_message(error))
            self.problem.show()
            return
        self.added.emit(servers)
        self.accept()

    def _filled(self) -> McpServerConfig:
        """The form as a configuration. Raises: BadMcpConfig; ValueError: unclosed quote."""
        where = self.where.text().strip()
        lines = [line.partition("=") for line in self.values.toPlainText().splitlines() if "=" in line]
        values = {name.strip(): value.strip() for name, _, value in lines}
        name = self.name.text().strip()
        if where.startswith(("http://", "https://")):
            return check_server(McpServerConfig(name, url=where, headers=values), self.tr("The form"))
        return check_server(McpServerConfig(name, tuple(shlex.split(where)), env=values), self.tr("The form"))
