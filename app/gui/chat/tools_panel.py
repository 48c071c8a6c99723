"""The panel next to a chat: enabled tools, the model's tool-call score and permanent decisions."""

import shlex
import shutil
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from PySide6.QtCore import QCoreApplication, Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QBoxLayout, QCheckBox, QDialog, QLineEdit, QPlainTextEdit, QWidget

from app.code.integrations.endpoint import context_here
from app.db.records import Conversation
from app.evals.tool_calls.run import CaseResult, Certificate, CertificateStore, certify, template_has_tools
from app.evals.tool_calls.suite import suite
from app.gui.app_context import AppContext
from app.gui.chat.memory import MemoryDialog
from app.gui.formatted import plain_tip
from app.gui.reasons import error_message, known_text
from app.gui.widgets.basics import IconButton, button, clear, label, row, scrolled, set_kind, stack, when_released
from app.gui.widgets.popups import ComboBox, largest_dialog
from app.gui.widgets.splitter import SidePanel
from app.tools.builtin import CALCULATOR, FILES, MEMORY, SOURCES, WEB
from app.tools.catalogue import Offered, offered, remove_server
from app.tools.consent import ConsentStore, StoredDecision, tool_fingerprint
from app.tools.mcp_config import (
    BadMcpConfig,
    KnownServer,
    McpServerConfig,
    ServerList,
    check_server,
    known_servers,
    parse_servers,
)
from app.tools.mcp_server import Probed, probe, short_name, sign_in
from app.tools.mcp_sign_in import SignIn, SignIns
from app.tools.types import ToolSpec, shown_line
from engine.core.paths import user_paths

_MAX_SHOWN = 90
_SERVER_KEY, _TOOL_KEY = "mcp server:", "mcp__"  # beginnings of keys in the store of decisions
_DEFAULT = "chat.tools"  # the setting that names the tools of new chats


class ToolsPanel(SidePanel):
    """Emits the names of the enabled sources."""

    changed = Signal(tuple)
    page_wanted = Signal(str)  # address to open in the user's browser, for a sign-in

    def __init__(self, services: AppContext, folder: Callable[[], Path] = Path.home) -> None:
        """Create the panel. `folder`: where a server is started to list its tools."""
        super().__init__(services.theme)
        self._services, self._folder = services, folder
        self._on: tuple[str, ...] = ()
        self._shown: tuple[tuple[list[Offered], dict[str, StoredDecision]], tuple[str, ...]] | None = None
        self._model = ""
        self._probed: dict[str, Probed | None] = {}  # None: being tested
        self._signing: dict[str, SignIn] = {}  # servers that wait for the user in a browser
        self._allowed: dict[str, bool] = {}  # tools of servers that were switched
        self._deciding = threading.Lock()
        self._folded: set[str] = set()  # servers whose known tools are folded away
        self.certificate = ToolCallTest(services)
        self._list = stack(spacing=12)
        self._decisions = stack(spacing=4)
        self.problem = label("", "chip-bad", wrap=True)
        self.problem.hide()
        self.dialog: AddServer | None = None
        self.default = button(self.tr("Use these in every new chat"), self._set_default)
        column = stack(
            label(self.tr("Tools for this chat"), "strong"),
            self.certificate,
            self.problem,
            self._list,
            button(self.tr("Add tools…"), self.add),
            self.default,
            self._decisions,
            1,
            spacing=12,
            margins=(16, 16, 16, 16),
        )
        services.settings.changed.connect(lambda name: self._show_default() if name == _DEFAULT else None)
        self.setLayout(stack(scrolled(column, self.tr("Tools"))))
        self.page_wanted.connect(self._open_page)
        services.background.at_close(self._cancel_sign_ins)

    def show_conversation(self, conversation: Conversation) -> None:
        self._on, self._model = conversation.tools, conversation.model
        self._show_default()
        if self.isVisible():
            self.refresh()

    def refresh(self) -> None:
        """Reload servers, decisions and the model's test."""
        self.certificate.show_model(self._model)
        self._do(lambda: (offered(window=True), ConsentStore().all()), self._on_read, newest="content")

    def add(self) -> None:
        """Show the form for a new server."""
        self.dialog = AddServer(self._services, self._folder(), self)
        self.dialog.added.connect(self._add)
        self.dialog.open()

    def _add(self, servers: list[McpServerConfig], probed: Mapping[str, Probed]) -> None:
        names = tuple(server.name for server in servers)

        def done(_: object) -> None:
            self._probed = {
                name: probe_result for name, probe_result in self._probed.items() if name not in names
            } | {name: probe_result for name, probe_result in probed.items() if name in names}
            self._on = (*(name for name in self._on if name not in names), *names)
            self.changed.emit(self._on)
            self.refresh()

        self._do(lambda: ServerList().add(servers), done)

    def _on_read(self, read: tuple[list[Offered], dict[str, StoredDecision]]) -> None:
        """Rebuild only if something changed: rebuilding a switch would lose a click in progress."""
        self.problem.hide()
        if (read, self._on) != self._shown:
            self._shown = (read, self._on)
            when_released(self, self._show)

    def _show(self) -> None:
        if self._shown is None:
            return
        (sources, decisions), _ = self._shown
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
            text = label(f"{decision_text(key)[:_MAX_SHOWN]}: {state}", "small", wrap=True, tip=shown_line(key))
            hint = self.tr("Ask again for {name}").format(name=key)
            forget = IconButton(self._services.theme, "close", hint, partial(self._forget, key))
            line = row(text, forget, spacing=4, grow=0)
            self._decisions.addLayout(line)

    def _row(self, source: Offered) -> QWidget:
        switch = QCheckBox(built_in_texts(source.name)[0] or source.name)
        switch.setChecked(source.name in self._on)
        switch.toggled.connect(lambda on: self._switch(source.name, on=on))
        top = row(switch, 1, spacing=4)
        if not source.built_in:
            words = self.tr("Remove {name}").format(name=source.name)
            top.addWidget(IconButton(self._services.theme, "trash", words, lambda: self._remove(source.name)))
        holder = QWidget()
        shown = source.detail if len(source.detail) <= _MAX_SHOWN else source.detail[:_MAX_SHOWN] + "…"
        detail = label(built_in_texts(source.name)[1] or shown, "small", wrap=True)
        detail.setToolTip(plain_tip(built_in_texts(source.name)[1] or source.detail))
        column = stack(top, detail, spacing=2)
        if not source.built_in:
            self._add_tools(column, source)
        elif source.name == MEMORY:
            column.addWidget(button(self.tr("Show and edit the memory…"), self._show_memory, "link"))
        holder.setLayout(column)
        return holder

    def _show_memory(self) -> None:
        MemoryDialog(self._services, self.window()).open()

    def _add_tools(self, column: QBoxLayout, source: Offered) -> None:
        """List a server's tools, each with a switch; a server that was not tested yet is started by a click."""
        name, probed = source.name, self._probed.get(source.name)
        if source.signed_in:
            out = button(self.tr("Sign out"), partial(self._sign_out, source), "link")
            out.setAccessibleName(self.tr("Sign out of {name}").format(name=name))
            column.addWidget(out)
        if name in self._signing:
            column.addWidget(
                label(self.tr("Waiting until you have signed in, in your browser…"), "small", wrap=True)
            )
            cancel = button(self.tr("Cancel"), partial(self._cancel_sign_in, name), "link")
            cancel.setAccessibleName(self.tr("Cancel the sign-in to {name}").format(name=name))
            column.addWidget(cancel)
            return
        if probed is not None and probed.needs_sign_in:
            words = self.tr("This server asks you to sign in. Its page opens in your browser.")
            column.addWidget(label(words, "small", wrap=True))
            begin = button(self.tr("Sign in…"), partial(self._begin_sign_in, name))
            begin.setAccessibleName(self.tr("Sign in to {name}").format(name=name))
            column.addWidget(begin)
            return
        if probed is None:
            words = self.tr("Connecting…") if name in self._probed else self.tr("Test and list its tools")
            test = button(words, partial(self._test, name), "link")
            test.setEnabled(name not in self._probed)
            tip = self.tr("Starts or contacts this server now: {where}").format(where=source.detail)
            test.setToolTip(plain_tip(tip))
            test.setAccessibleName(self.tr("Test {name}").format(name=name))
            column.addWidget(test)
            return
        if probed.problem:
            column.addWidget(label(known_text(probed.problem), "chip-bad", wrap=True))
            again = button(self.tr("Test again"), partial(self._test, name), "link")
            again.setAccessibleName(self.tr("Test {name}").format(name=name))
            column.addWidget(again)
            return
        opened = name not in self._folded
        fold = button(("▾ " if opened else "▸ ") + self.tr("Tools ({n})").format(n=len(probed.specs)), None, "link")
        fold.setAccessibleName(self.tr("Tools of {name}").format(name=name))
        fold.clicked.connect(lambda _checked=False: self._fold(name, opened=not opened))
        column.addWidget(fold)
        decisions = self._shown[0][1] if self._shown is not None else {}
        for spec in probed.specs if opened else ():
            never = decisions.get(spec.name)
            switch = QCheckBox(shown_line(short_name(name, spec.name)).replace("&", "&&"))
            switch.setChecked(never is None or never.decision != "never")
            switch.setToolTip(plain_tip(spec.description))
            switch.setAccessibleName(
                self.tr("{tool} of {name}").format(tool=short_name(name, spec.name), name=name)
            )
            switch.toggled.connect(partial(self._allow, spec))
            column.addLayout(row(switch, 1, margins=(24, 0, 0, 0)))
        for words in probed.left_out if opened else ():
            column.addWidget(label(known_text(words), "small", wrap=True))

    def _fold(self, name: str, *, opened: bool) -> None:
        self._folded = self._folded - {name} if opened else self._folded | {name}
        when_released(self, self._show)

    def _test(self, name: str) -> None:
        """Start or contact a server at the user's click, and list its tools."""
        self._probed[name] = None
        folder = self._folder()

        def work() -> Probed:
            config = ServerList().find(name)
            return probe(config, folder) if config is not None else Probed()

        def done(result: Probed) -> None:
            self._probed[name] = result
            when_released(self, self._show)

        def failed(error: Exception) -> None:
            done(Probed(problem=error_message(error)))

        self._services.background.run(work, done, failed, self)
        when_released(self, self._show)

    def _begin_sign_in(self, name: str) -> None:
        """Open the server's page in the browser, and list its tools once the user has signed in."""
        folder = self._folder()

        def on_start(signing: SignIn) -> None:
            self._signing[name] = signing

        def work() -> Probed:
            config = ServerList().find(name)
            return sign_in(config, folder, self.page_wanted.emit, on_start) if config is not None else Probed()

        def done(probed: Probed) -> None:
            self._signing.pop(name, None)
            self._probed[name] = probed
            self._shown = None
            self.refresh()

        self._services.background.run(work, done, lambda error: done(Probed(problem=error_message(error))), self)
        self._probed[name] = None
        when_released(self, self._show)

    def _open_page(self, page: str) -> None:
        QDesktopServices.openUrl(QUrl(page))
        when_released(self, self._show)

    def _cancel_sign_in(self, name: str) -> None:
        if name in self._signing:
            self._signing[name].cancel()

    def _cancel_sign_ins(self) -> None:
        """End the waiting when the window closes."""
        for signing in list(self._signing.values()):
            signing.cancel()

    def _sign_out(self, source: Offered) -> None:
        self._probed.pop(source.name, None)
        self._do(lambda: SignIns().keep(source.url, None), lambda _: self.refresh())

    def _allow(self, spec: ToolSpec, on: bool) -> None:
        """Switch one tool of a server: one that is off is never shown to a model."""
        self._allowed[spec.name] = on

        def work() -> None:
            with self._deciding:  # workers run in any order: each stores the newest decision
                decision = None if self._allowed[spec.name] else StoredDecision("never", tool_fingerprint(spec))
                ConsentStore().keep(spec.name, decision)

        self._do(work, lambda _: self.refresh())

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
        """The button is shown only if the tools of this chat differ from those of new chats."""
        names = self._services.settings.now.text(_DEFAULT).split(",")
        self.default.setEnabled(set(self._on) != {name.strip() for name in names if name.strip()})

    def _remove(self, name: str) -> None:
        self._switch(name, on=False)
        self._probed.pop(name, None)
        self._do(lambda: remove_server(name), lambda _: self.refresh())

    def _forget(self, key: str) -> None:
        self._do(lambda: ConsentStore().keep(key, None), lambda _: self.refresh())

    def _do(self, work: Callable[[], object], done: Callable[..., object], newest: str = "") -> None:
        def failed(error: Exception) -> None:
            self.problem.setText(error_message(error))
            self.problem.show()

        self._services.background.run(work, done, failed, self, newest)


def built_in_texts(name: str) -> tuple[str, str]:
    """Title and description of a built-in source; empty for a server."""
    translate = QCoreApplication.translate
    return {
        CALCULATOR: (
            translate("ToolsPanel", "Calculator"),
            translate("ToolsPanel", "Numbers and units, calculated outside the model."),
        ),
        FILES: (
            translate("ToolsPanel", "Files"),
            translate("ToolsPanel", "Reads files in the project's folder and in those the settings allow."),
        ),
        WEB: (
            translate("ToolsPanel", "Web"),
            translate(
                "ToolsPanel",
                "Reads web pages, and searches with the SearXNG instance of the settings. Each site sees this "
                "computer's address and what is read there; the instance gets the search words.",
            ),
        ),
        MEMORY: (
            translate("ToolsPanel", "Memory"),
            translate(
                "ToolsPanel",
                "Uses facts from earlier chats, and saves new ones that you allow. They stay on this computer.",
            ),
        ),
    }.get(name, ("", ""))


def decision_text(key: str) -> str:
    """The subject of a permanent decision, from its key in the store."""
    shown = shown_line(key)
    if shown.startswith(_SERVER_KEY):
        name = shown.removeprefix(_SERVER_KEY).partition(":")[0]
        return QCoreApplication.translate("ToolsPanel", "Starting the tools of {name}").format(name=name)
    server, _, tool = shown.removeprefix(_TOOL_KEY).partition("__") if shown.startswith(_TOOL_KEY) else ("", "", "")
    if key in SOURCES:
        server, tool = built_in_texts(SOURCES[key])[0], key
    words = QCoreApplication.translate("ToolsPanel", "Using {tool} of {name}")
    return words.format(tool=tool, name=server) if tool else shown


class ToolCallTest(QWidget):
    """How many of the test calls a model makes correctly, and a button that measures it."""

    progressed = Signal(str, int)  # model, finished cases; emitted by a worker

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services, self._model = services, ""
        self._stopped: dict[str, threading.Event] = {}  # by model that is being measured
        self._words = label("", "small", wrap=True)
        self.start = button(self.tr("Test this model with tools"), self._on_pressed, "link")
        self.start.setToolTip(self.tr("Gives the model about 30 tasks that need a tool. It takes some minutes."))
        self.setLayout(stack(self._words, self.start, spacing=2))
        self.progressed.connect(self._on_progress)

    def show_model(self, model: str) -> None:
        """Show what is known of a model, or how far its test is."""
        self._model = model
        self.setVisible(bool(model))
        self.start.setText(self.tr("Stop") if model in self._stopped else self.tr("Test this model with tools"))
        if model and model not in self._stopped:
            load = partial(CertificateStore(user_paths().state).load, model)
            self._services.background.run(load, self._on_loaded, lambda _: None, self, newest="certificate")

    def _on_loaded(self, certificate: Certificate | None) -> None:
        words = self.tr("It has not been measured how well this model calls tools.")
        if certificate is not None:
            words = self.tr("Calls tools correctly in {n} % of the test cases.")
        self._words.setText(words.format(n=round(100 * certificate.pass_frac) if certificate else 0))

    def _on_pressed(self) -> None:
        model, api = self._model, self._services.api
        if model in self._stopped:
            self._stopped[model].set()
            return
        stopped = self._stopped[model] = threading.Event()
        finished: list[CaseResult] = []

        def count(result: CaseResult) -> None:
            finished.append(result)
            self.progressed.emit(model, len(finished))
            if stopped.is_set():
                raise InterruptedError

        def work() -> None:
            native, context = template_has_tools(api, model), context_here(api, model) or 0
            measured = certify(api, model, context, native_tools=native, on_result=count)
            CertificateStore(user_paths().state).save(measured)

        def end(error: Exception | None = None) -> None:
            del self._stopped[model]
            self.show_model(self._model)
            if error is not None and not isinstance(error, InterruptedError):
                self._words.setText(error_message(error))

        self._services.background.run(work, lambda _: end(), end, self)
        self._on_progress(model, 0)

    def _on_progress(self, model: str, done: int) -> None:
        if model == self._model and model in self._stopped:
            self.start.setText(self.tr("Stop"))
            words = self.tr("Testing how well this model calls tools: {done} of {total}")
            self._words.setText(words.format(done=done, total=len(suite())))


_WIDTH = 520
_SHOWN_TOOLS = 12


class AddServer(QDialog):
    """Emits the entered servers, and the tools of those that were tested. Only "Test" starts one."""

    added = Signal(list, dict)

    def __init__(self, services: AppContext, folder: Path, parent: QWidget) -> None:
        super().__init__(parent)
        self._services, self._folder = services, folder
        self._probed: dict[str, Probed] = {}
        self._tested: list[McpServerConfig] = []
        self.setWindowTitle(self.tr("Add tools"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setMinimumWidth(_WIDTH)
        self.known = ComboBox()
        self.known.addItem(self.tr("None: fill the form yourself"), None)
        self.dated, servers = known_servers()
        for server in servers:
            self.known.addItem(server.title, server)
        self.known.activated.connect(lambda _: self._fill(self.known.currentData()))
        self.about = label("", "small", wrap=True, selectable=True)
        self.about.hide()
        self.name, self.where = QLineEdit(), QLineEdit()
        self.name.setPlaceholderText("notes")
        self.where.setPlaceholderText(self.tr("npx -y some-server ~/Documents, or https://…"))
        self.values = QPlainTextEdit(placeholderText="API_KEY=…")
        self.values.setFixedHeight(64)
        self.json = QPlainTextEdit(placeholderText='{"mcpServers": {"files": {"command": "npx", "args": ["…"]}}}')
        self.json.setFixedHeight(100)
        for field, words in (
            (self.known, self.tr("Well-known MCP servers")),
            (self.name, self.tr("Name")),
            (self.where, self.tr("Command or address")),
            (
                self.values,
                self.tr("Environment variables, or HTTP headers for an address: one NAME=value per line"),
            ),
            (self.json, self.tr("Or paste the settings (JSON) that the server's web page shows")),
        ):
            field.setAccessibleName(words)
        for text in (self.values, self.json):
            text.setTabChangesFocus(True)
        self.problem = label("", "small", wrap=True, selectable=True)
        self.problem.hide()
        self._form = column = stack(spacing=6, margins=(20, 20, 20, 8))
        for field in (self.known, self.name, self.where, self.values, self.json):
            column.addWidget(label(field.accessibleName(), "strong", wrap=True))
            column.addWidget(field)
            if field is self.known:
                column.addWidget(self.about)
        note = self.tr(
            'A command runs with your rights. "Test" starts it now and lists its tools. In a chat you are asked '
            "before it starts, and before each tool is used."
        )
        column.addWidget(label(note, "small", wrap=True))
        self.test_button = button(self.tr("Test"), self._test)
        self.accept_button = button(self.tr("Add"), self._add, "primary")
        self.accept_button.setDefault(True)
        self._foot = stack(
            self.problem,
            row(self.test_button, 1, button(self.tr("Cancel"), self.reject), self.accept_button, spacing=8),
            margins=(20, 8, 20, 20),
        )
        self.setLayout(stack(scrolled(column, self.windowTitle()), self._foot, spacing=0))
        self._grow()

    def _fill(self, server: KnownServer | None) -> None:
        """Fill the form with a well-known server; nothing is installed or started."""
        self.about.setVisible(server is not None)
        if server is None:
            return
        self.name.setText(server.name)
        self.where.setText(server.where())
        self.where.setCursorPosition(0)
        self.values.setPlainText(server.headers)
        self.json.clear()
        purpose = {
            "filesystem": self.tr("Reads and writes files in the folders that its command names."),
            "git": self.tr("Reads and changes the git repository that its command names."),
            "fetch": self.tr("Reads web pages, of the local network too."),
            "time": self.tr("Shows the time in any time zone."),
            "playwright": self.tr("Opens a browser and uses it."),
            "context7": self.tr("Documentation of programming libraries. Questions go to context7.com."),
            "github": self.tr("Repositories and issues on GitHub. Add your token after “Bearer ”."),
        }.get(server.name, "")
        words = [purpose]
        if server.needs and shutil.which(server.command.split()[0]) is None:
            missing = self.tr("{program} is not installed: it comes with {package}.")
            words.append(missing.format(program=server.command.split()[0], package=server.needs))
        words.append(self.tr("From {source}, looked up on {date}").format(date=self.dated, source=server.source))
        self.about.setText("\n".join(filter(None, words)))
        self._grow()

    def _servers(self) -> list[McpServerConfig]:
        """The entered servers; empty with a message if they cannot be used."""
        try:
            text = self.json.toPlainText()
            return parse_servers(text) if text.strip() else [self._filled()]
        except (BadMcpConfig, ValueError) as error:
            self._show_problem(error_message(error), "chip-bad")
            return []

    def _show_problem(self, words: str, kind: str) -> None:
        set_kind(self.problem, kind)
        self.problem.setText(words)
        self.problem.show()
        self._grow()

    def _grow(self) -> None:
        """Enlarge the dialog for added text that wraps; Qt does not do that by itself."""
        self._form.activate()
        height = sum(part.totalHeightForWidth(self.width()) for part in (self._form, self._foot))
        self.resize(self.width(), max(self.height(), min(height, largest_dialog(self).height())))

    def _test(self) -> None:
        """Start or contact the entered servers, and show their tools or the reason of the failure."""
        servers, folder = self._servers(), self._folder
        if not servers:
            return
        self.test_button.setEnabled(False)
        self._show_problem(self.tr("Connecting…"), "small")

        def done(probes: list[Probed]) -> None:
            self.test_button.setEnabled(True)
            self._tested = servers
            self._probed = {server.name: each for server, each in zip(servers, probes, strict=True)}
            failed = [known_text(each.problem) for each in probes if each.problem]
            names = [
                short_name(server.name, spec.name)
                for server, each in zip(servers, probes, strict=True)
                for spec in each.specs
            ]
            shown = ", ".join(map(shown_line, names[:_SHOWN_TOOLS])) + ("…" if len(names) > _SHOWN_TOOLS else "")
            works = self.tr("It works. Its tools: {names}").format(names=shown or self.tr("none"))
            self._show_problem("\n".join(failed) or works, "chip-bad" if failed else "chip-ok")

        def broke(error: Exception) -> None:
            self.test_button.setEnabled(True)
            self._show_problem(error_message(error), "chip-bad")

        self._services.background.run(lambda: [probe(each, folder) for each in servers], done, broke, self)

    def _add(self) -> None:
        servers = self._servers()
        if servers:
            self.added.emit(servers, self._probed if servers == self._tested else {})
            self.accept()

    def _filled(self) -> McpServerConfig:
        """The form as a configuration. Raises: BadMcpConfig; ValueError: unclosed quote."""
        where = self.where.text().strip()
        lines = [line.partition("=") for line in self.values.toPlainText().splitlines() if "=" in line]
        values = {name.strip(): value.strip() for name, _, value in lines}
        name = self.name.text().strip()
        if where.startswith(("http://", "https://")):
            return check_server(McpServerConfig(name, url=where, headers=values), self.tr("The form"))
        argv = tuple(str(Path(word).expanduser()) if word.startswith("~/") else word for word in shlex.split(where))
        return check_server(McpServerConfig(name, argv, env=values), self.tr("The form"))
