"""The pages of the server: overview (address, keys, programs, requests), other computers, and the log."""

from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QDateTime, QPoint, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QTextCursor, QTextOption
from PySide6.QtWidgets import QHBoxLayout, QLayout, QPlainTextEdit, QVBoxLayout

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.reasons import error_message
from app.gui.server import requests
from app.gui.server.remote_server_card import ElsewhereCard
from app.gui.server.rows_card import RowsCard
from app.gui.server.upstreams_card import UpstreamsCard
from app.gui.server.workers_card import RemotesCard
from app.gui.server_link import ServerLink
from app.gui.widgets.basics import Banner, IconButton, Page, button, card, framed, label, row, set_kind, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.plain_table import PlainTable
from app.gui.widgets.popups import ComboBox
from app.server_process import server_log
from engine.api.requests import Key, KeyRequest, Keys, NewKey, RecentActivity
from engine.services import DEFAULT_CONTEXT

_DONE_MS = 1500
_MOST_NAME = 100


class KeysCard(RowsCard[Keys]):
    """Manages API keys. A new key is shown once; the server stores only its hash."""

    required_changed = Signal()
    required = False  # whether programs must send a key

    def __init__(self, services: AppContext, banner: Banner) -> None:
        super().__init__(services, banner)
        self._rows.setSpacing(8)
        name = self.tr("Name of the new key")
        self.name = self._field(self.tr("Name of the program or person"), name, _MOST_NAME)
        self.scope = ComboBox(self.tr("Permissions of the new key"))
        self.scope.addItem(self.tr("May run models"), ["chat"])
        self.scope.addItem(self.tr("May also manage models"), ["chat", "manage"])
        self.add.setText(self.tr("Create a key"))
        self._new = framed("banner-ok")
        self.key = label("", "", wrap=True, selectable=True)
        services.theme.dress(self.key)
        self._copy = button(self.tr("Copy the key"), self._copy_key, "primary")
        line = row(self.key, self._copy, grow=0)
        shown_once = label(self.tr("Copy it now: it is not shown again."), "small")
        self._new.setLayout(stack(shown_once, line, spacing=4, margins=(16, 8, 8, 8)))
        self._new.hide()
        allowed = Flow()
        allowed.add(self.scope)
        allowed.add(self.add)
        entry = stack(self.name, allowed)
        self.setLayout(stack(self._note, self._rows, self._new, entry, spacing=12, margins=(16, 16, 16, 16)))
        self._refresh_button()

    def _fetch(self) -> Keys:
        return self._services.api.keys()

    def _rows_of(self, keys: Keys) -> tuple[list[QLayout], str]:
        own = any(not key.program for key in keys.keys)
        if (keys.required or own) != self.required:
            self.required = keys.required or own
            self.required_changed.emit()
        if own:
            note = self.tr("Every program must present one of these keys, on this computer too.")
        elif keys.public:
            note = self.tr(
                "Other computers can reach this server. It accepts no other program until you create a key."
            )
        else:
            note = self.tr("No key is needed on this computer. As soon as there is one, every program needs one.")
        return [self._key_row(key) for key in keys.keys], note

    def _key_row(self, key: Key) -> QHBoxLayout:
        name = key.name
        scopes = {"chat": self.tr("runs models"), "manage": self.tr("manages models")}
        chips = [label(scopes[scope], "chip") for scope in key.scopes]
        created = formatted.date(QDateTime.fromSecsSinceEpoch(int(key.created_at)).date())
        words = self.tr("connected program") if key.program else self.tr("created {date}").format(date=created)
        revoke = button(self.tr("Revoke"), lambda: self._revoke(name), "danger")
        revoke.setAccessibleName(self.tr("Revoke {name}").format(name=name))
        return row(label(name), *chips, label(words, "small"), 1, revoke)

    def _add(self) -> None:
        name = self.name.text().strip()
        if not name or self._services.background.is_loading(self._banner, "key"):
            return
        request = KeyRequest(name=name, scopes=tuple(self.scope.currentData()))

        def done(new_key: NewKey) -> None:
            self.key.setText(new_key.key)
            self._new.show()
            self.name.clear()
            self.refresh()

        self._services.ask(self._banner, lambda: self._services.api.make_key(request), done, newest="key")

    def _revoke(self, name: str) -> None:
        self._new.hide()
        self._run_then_reload(lambda: self._services.api.revoke_key(name))

    def _copy_key(self) -> None:
        QGuiApplication.clipboard().setText(self.key.text())
        self._copy.setText(self.tr("Copied"))
        QTimer.singleShot(_DONE_MS, self._copy, lambda: self._copy.setText(self.tr("Copy the key")))

    def _refresh_button(self) -> None:
        self.add.setEnabled(bool(self.name.text().strip()))


_REFRESH_MS = 2000
_LOG_BYTES = 65_536
_OVERLAP = 200  # characters that find a place in the log again
_AT_END = 4  # lines from the end that still count as the end
_SHOWN_REQUESTS = 50
_SNIPPET_LINES = 14
# The window's own requests would hide all others.
_OWN = "route=/tessera/"


class ServerPage(Page):
    """On/off switch, address, snippets, keys, programs and requests."""

    start_pressed = Signal()

    def __init__(self, services: AppContext, link: ServerLink) -> None:
        super().__init__(
            self.tr("Server"),
            self.tr("Editors, coding agents and other programs use your models through this address."),
        )
        self._services, self._link = services, link
        theme = services.theme
        self.banner = Banner(theme, self)
        self.state = label("", "chip")
        self.address = label("", "strong", selectable=True)
        self._copy = IconButton(theme, "copy", self.tr("Copy the address"), self._copy_address)
        self.switch = button("", self._toggle)
        self._where = label("", "small", wrap=True)
        where = Flow()
        for widget in (self.state, self.address, self._copy):
            where.add(widget)
        self.content.addWidget(card(row(where, self.switch, grow=0), self._where, spacing=12))
        self._build_snippets()
        self._build_activity()
        self.keys = KeysCard(services, self.banner)
        self.keys.required_changed.connect(self._show_snippet)
        self.add_section(self.tr("Keys"), self.keys)
        self.while_visible(_REFRESH_MS, self._follow, self._refresh)
        services.models.reachable_changed.connect(lambda _: self.refresh())
        services.models.changed.connect(self.refresh)
        self.refresh()

    def _build_snippets(self) -> None:
        theme = self._services.theme
        self.client = ComboBox(self.tr("Program to connect"))
        for snippet in SNIPPETS:
            self.client.addItem(snippet.name)
        self.client.currentIndexChanged.connect(lambda _: self._show_snippet())
        self.snippet = QPlainTextEdit(readOnly=True)
        theme.dress(self.snippet)
        self.snippet.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.snippet.setAccessibleName(self.tr("Text to paste"))
        self._hint = label("", "small", wrap=True)
        copy = button(self.tr("Copy"), self._copy_snippet, "primary")
        self._copy_button = copy
        self.add_section(self.tr("Connect a program"), card(row(self.client, 1, copy), self._hint, self.snippet))

    def _build_activity(self) -> None:
        theme = self._services.theme
        self.programs = PlainTable(
            theme, self.tr("Programs that are connected"), requests.program_columns(), numbers=2, rows=5
        )
        self._nobody = label(
            self.tr("No program has sent a request in the last minutes. Connect one with the text above."),
            "muted",
            wrap=True,
        )
        self.add_section(self.tr("Connected programs"), card(self._nobody, self.programs))
        self.requests = PlainTable(
            theme,
            self.tr("Requests, newest first"),
            requests.request_columns(),
            numbers=6,
            rows=8,
            wide=2,
            spare=requests.SPARE_COLUMNS,
        )
        self._none = label(self.tr("Requests appear here, without their contents."), "muted", wrap=True)
        self.add_section(self.tr("Requests"), card(self._none, self.requests))
        self._show_activity(RecentActivity())

    def refresh(self) -> None:
        """Update the page from the current state."""
        running = self._services.models.reachable
        set_kind(self.state, "chip-ok" if running else "chip-warn")
        self.state.setText(self.tr("Running") if running else self.tr("Not running"))
        self.address.setText(f"{self._link.url}/v1" if running else "")
        self._copy.setVisible(running)
        owned = self._link.owned
        self.switch.setText(self.tr("Stop") if running else self.tr("Start"))
        self.switch.setEnabled(not running or owned)
        if not running:
            words = self.tr("Start it to chat here and to connect other programs.")
        elif self._link.remote:
            words = self.tr("On another computer. The page Other computers leads back to this one.")
        elif owned:
            words = self.tr("Started by this window; it stops when the window closes.")
        else:
            words = self.tr(
                "Started by another program (for example tessera serve); it keeps running without this window."
            )
        self._where.setText(words)
        if not running:
            self._show_activity(RecentActivity())
        self._show_snippet()

    def _refresh(self) -> None:
        self.keys.refresh()
        self._follow()

    def _show_snippet(self) -> None:
        snippet = SNIPPETS[max(self.client.currentIndex(), 0)]
        model = self._services.models.default or "MODEL"
        now = self._services.settings.now
        url = self._link.url or f"http://{now.text('server.host')}:{now.integer('server.port')}"
        choice = self._services.models.get(model)
        hint = self.tr(snippet.hint)
        if self.keys.required:
            hint += " " + self.tr("Replace {name} with one of the keys below.").format(name=NAME_OF_A_KEY)
        self._hint.setText(hint)
        context = choice.n_ctx if choice is not None else DEFAULT_CONTEXT
        self.snippet.setPlainText(snippet.text(url, model, context, needs_key=self.keys.required))
        lines = min(self.snippet.blockCount(), _SNIPPET_LINES)
        line = self.snippet.fontMetrics().lineSpacing()
        self.snippet.setFixedHeight(line * (lines + 1) + 2 * self._services.theme.tokens.unit)

    def _toggle(self) -> None:
        if not self._services.models.reachable:
            self.start_pressed.emit()
            return

        def stopped(_: Any) -> None:
            self._services.models.refresh()

        self.switch.setEnabled(False)
        self._services.background.run(self._link.stop, stopped, self._on_error, self)

    def _on_error(self, error: Exception) -> None:
        self.banner.notify(error_message(error), "bad")
        self.refresh()

    def _copy_address(self) -> None:
        QGuiApplication.clipboard().setText(self.address.text())
        self._copy.set_icon("check", "ok")
        QTimer.singleShot(_DONE_MS, self._copy, lambda: self._copy.set_icon("copy", "muted"))

    def _copy_snippet(self) -> None:
        QGuiApplication.clipboard().setText(self.snippet.toPlainText())
        self._copy_button.setText(self.tr("Copied"))
        QTimer.singleShot(_DONE_MS, self._copy_button, lambda: self._copy_button.setText(self.tr("Copy")))

    def _follow(self) -> None:
        background, ask = self._services.background, self._services.api.recent_requests
        if self._services.models.reachable and not background.is_loading(self, "activity"):
            background.run(ask, self._on_activity, lambda _: None, self, newest="activity")

    def _on_activity(self, answer: RecentActivity) -> None:
        """Ignore a response that arrives after the server was stopped."""
        if self._services.models.reachable:
            self._show_activity(answer)

    def _show_activity(self, answer: RecentActivity) -> None:
        programs = [program for program in answer.programs if program.connected]
        self.programs.show_rows([requests.program_row(program) for program in programs])
        self.programs.setVisible(bool(programs))
        self._nobody.setVisible(not programs)
        recent = answer.requests[:_SHOWN_REQUESTS]
        self.requests.show_rows([requests.request_row(request, self._services.models.title) for request in recent])
        self.requests.setVisible(bool(recent))
        self._none.setVisible(not recent)


class OtherComputersPage(Page):
    """Other servers as models, layers on other computers, and a Tessera on another computer."""

    def __init__(self, services: AppContext, link: ServerLink) -> None:
        super().__init__(
            self.tr("Other computers"),
            self.tr("Use models, memory and GPUs of other computers in your network."),
        )
        self.banner = Banner(services.theme, self)
        self.upstreams = UpstreamsCard(services, self.banner)
        self.add_section(self.tr("Other servers"), self.upstreams)
        self.remotes = RemotesCard(services, self.banner)
        self.add_section(self.tr("Layers on other computers"), self.remotes)
        self.elsewhere = ElsewhereCard(services, link, self.banner)
        self.elsewhere.moved.connect(services.models.refresh)
        self.add_section(self.tr("A Tessera on another computer"), self.elsewhere)
        self.while_visible(_REFRESH_MS, lambda: None, self._refresh)

    def _refresh(self) -> None:
        for part in (self.upstreams, self.remotes, self.elsewhere):
            part.refresh()


class LogPage(Page):
    """The server's log, as high as the window."""

    def __init__(self, services: AppContext) -> None:
        super().__init__(
            self.tr("Log"),
            self.tr("What the server of this computer writes, without the requests of this window."),
        )
        self._services = services
        self._text = ""
        self.log = QPlainTextEdit()
        self.log.setReadOnly(True)
        services.theme.dress(self.log, "small")
        self.log.setWordWrapMode(QTextOption.WrapMode.WrapAnywhere)  # its long words are paths and ids
        self.log.setMinimumHeight(200)
        self.log.setAccessibleName(self.tr("Log of the server"))
        self.log.setPlaceholderText(self.tr("The server's output appears here."))
        self.content.addWidget(self.log, 1)
        whole = self._inner.layout()
        if isinstance(whole, QVBoxLayout):  # the content takes the height, not the space below it
            whole.setStretch(0, 1)
            whole.setStretch(1, 0)
        self.while_visible(_REFRESH_MS, self._read_log, self._read_log)

    def _read_log(self) -> None:
        def read() -> str:
            try:
                with server_log().open("rb") as file:
                    file.seek(0, 2)
                    file.seek(max(0, file.tell() - _LOG_BYTES))
                    lines = file.read().decode("utf-8", "replace").splitlines()
                    return "\n".join(line for line in lines if _OWN not in line)
            except OSError:
                return ""

        if not self._services.background.is_loading(self, "log"):
            self._services.background.run(read, self._show_log, None, self, newest="log")

    def _show_log(self, text: str) -> None:
        """Add what is new and remove what is too old. The lines that the user reads or has selected stay."""
        before, self._text = self._text, text
        if text == before:
            return
        bar = self.log.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - _AT_END
        num_old = before.find(text[:_OVERLAP]) if before and text else -1
        if num_old < 0 or not text.startswith(before[num_old:]):  # another log
            self.log.setPlainText(text)
        else:
            self._exchange(before[:num_old], text[len(before) - num_old :])
        if at_end:
            bar.setValue(bar.maximum())

    def _exchange(self, old: str, new: str) -> None:
        """Remove `old` from the beginning and add `new` at the end."""
        bar, seen = self.log.verticalScrollBar(), self.log.cursorForPosition(QPoint(0, 0))
        offset = bar.value() - seen.block().firstLineNumber()
        cursor = QTextCursor(self.log.document())
        cursor.setPosition(len(old.encode("utf-16-le")) // 2, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(new)
        bar.setValue(seen.block().firstLineNumber() + offset)


# Placeholder for a key: the server stores only hashes, so a key cannot be shown.
NAME_OF_A_KEY = "YOUR_KEY"


@dataclass(frozen=True)
class Snippet:
    """A configuration text for one program, with placeholders in braces."""

    name: str
    hint: str
    template: str

    def text(self, url: str, model: str, context: int, *, needs_key: bool) -> str:
        """The text for this server and model. `context` is the model's context length."""
        key = NAME_OF_A_KEY if needs_key else "local"
        header = f"  -H 'Authorization: Bearer {key}' \\\n" if needs_key else ""
        places = {"{header}": header, "{url}": url, "{model}": model, "{context}": str(context), "{key}": key}
        text = self.template
        for place, value in places.items():
            text = text.replace(place, value)
        return text


SNIPPETS: tuple[Snippet, ...] = (
    Snippet(
        "curl",
        "Paste into a terminal.",
        """curl {url}/v1/chat/completions \\
{header}  -H 'Content-Type: application/json' \\
  -d '{"model": "{model}", "messages": [{"role": "user", "content": "Hello"}]}'
""",
    ),
    Snippet(
        "Python (openai)",
        "Needs the openai package.",
        """from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="{key}")
answer = client.chat.completions.create(
    model="{model}",
    messages=[{"role": "user", "content": "Hello"}],
)
print(answer.choices[0].message.content)
""",
    ),
    Snippet(
        "VS Code: Continue",
        "Add to the models list of Continue's config.yaml.",
        """models:
  - name: Tessera
    provider: openai
    model: {model}
    apiBase: {url}/v1
    apiKey: {key}
    roles: [chat, edit, apply, autocomplete]
""",
    ),
    Snippet(
        "VS Code: Cline or Roo Code",
        "In the extension's settings choose the provider OpenAI Compatible.",
        """Base URL:  {url}/v1
API key:   {key}
Model ID:  {model}
""",
    ),
    Snippet(
        "Zed",
        "Add to settings.json.",
        """{
  "language_models": {
    "openai_compatible": {
      "Tessera": {
        "api_url": "{url}/v1",
        "available_models": [{ "name": "{model}", "max_tokens": {context} }]
      }
    }
  }
}
""",
    ),
    Snippet(
        "Aider",
        "Paste into a terminal, in your project's folder.",
        """export OPENAI_API_BASE={url}/v1
export OPENAI_API_KEY={key}
aider --model openai/{model}
""",
    ),
    Snippet(
        "Open WebUI",
        "Admin settings, Connections, add an OpenAI API connection.",
        """URL:  {url}/v1
Key:  {key}
""",
    ),
)
