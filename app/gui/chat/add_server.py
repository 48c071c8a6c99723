"""The form for a server of the Model Context Protocol, filled in by hand or by pasting the usual JSON."""

import shlex

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QLineEdit, QPlainTextEdit, QWidget

from app.gui.server_errors import error_message
from app.gui.widgets.basics import button, label, row, stack
from app.tools.mcp_config import BadMcpConfig, McpServerConfig, check_server, parse_servers

_WIDTH = 520


class AddServer(QDialog):
    """Emits the servers that were put in; nothing is started here."""

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
            (self.values, self.tr("Variables, or headers of an address: one NAME=value a line")),
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
        """The form as a configuration. Raises: BadMcpConfig, ValueError: a quote is not closed."""
        where = self.where.text().strip()
        lines = [line.partition("=") for line in self.values.toPlainText().splitlines() if "=" in line]
        values = {name.strip(): value.strip() for name, _, value in lines}
        name = self.name.text().strip()
        if where.startswith(("http://", "https://")):
            return check_server(McpServerConfig(name, url=where, headers=values), self.tr("The form"))
        return check_server(McpServerConfig(name, tuple(shlex.split(where)), env=values), self.tr("The form"))
