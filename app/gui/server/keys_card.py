"""Keys of the server: make one for a program, see what each may do, revoke it."""

from PySide6.QtCore import QDateTime, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLineEdit, QVBoxLayout

from app.gui import formatted
from app.gui.services import Services
from app.gui.widgets.basics import Banner, button, clear, label, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import Choice
from engine.api.keys import Key, KeyRequest, Keys, NewKey

_DONE_MS = 1500
_MOST_NAME = 100


class KeysCard(QFrame):
    """A new key is shown once; only its hash is kept by the server."""

    def __init__(self, services: Services, banner: Banner) -> None:
        super().__init__()
        self._services, self._banner = services, banner
        self.setProperty("kind", "card")
        self._keys: Keys | None = None
        self._note = label("", "small", wrap=True)
        self._rows = QVBoxLayout()
        self._rows.setSpacing(8)
        self.name = QLineEdit()
        self.name.setMaxLength(_MOST_NAME)
        self.name.setPlaceholderText(self.tr("Name of the program or person"))
        self.name.setAccessibleName(self.tr("Name of the new key"))
        self.name.textChanged.connect(lambda _: self._refresh_button())
        self.name.returnPressed.connect(self._make)
        self.scope = Choice()
        self.scope.setAccessibleName(self.tr("What the new key may do"))
        self.scope.addItem(self.tr("May run models"), ["chat"])
        self.scope.addItem(self.tr("May also manage models"), ["chat", "manage"])
        self.make = button(self.tr("Make a key"), self._make)
        self._new = QFrame()
        self._new.setProperty("kind", "banner-ok")
        self.key = label("", "", wrap=True, selectable=True)
        services.theme.dress(self.key, mono=True)
        self._copy = button(self.tr("Copy the key"), self._copy_key, "primary")
        line = row(self.key, self._copy)
        line.setStretch(0, 1)
        shown_once = label(self.tr("Copy it now: it is not shown again."), "small")
        self._new.setLayout(stack(shown_once, line, spacing=4, margins=(16, 8, 8, 8)))
        self._new.hide()
        allowed = Flow()
        allowed.add(self.scope)
        allowed.add(self.make)
        entry = stack(self.name, allowed)
        self.setLayout(stack(self._note, self._rows, self._new, entry, spacing=12, margins=(16, 16, 16, 16)))
        self._refresh_button()

    def refresh(self) -> None:
        """Ask which keys there are."""
        run, api = self._services.background.run, self._services.api
        run(api.keys, self._show, lambda _: None, self)

    def _show(self, answer: Keys) -> None:
        if answer == self._keys:
            return
        self._keys = answer
        clear(self._rows)
        for key in answer.keys:
            self._rows.addLayout(self._key_row(key))
        self._note.setText(
            self.tr("Every program must present one of these keys, on this computer too.")
            if answer.keys
            else self.tr("No key is needed on this computer. As soon as there is one, every program needs one.")
        )

    def _key_row(self, key: Key) -> QHBoxLayout:
        name = key.name
        scopes = {"chat": self.tr("runs models"), "manage": self.tr("manages models")}
        chips = [label(scopes[scope], "chip") for scope in key.scopes]
        made = formatted.date(QDateTime.fromSecsSinceEpoch(int(key.created_at)).date())
        revoke = button(self.tr("Revoke"), lambda: self._revoke(name), "danger")
        revoke.setAccessibleName(self.tr("Revoke {name}").format(name=name))
        return row(label(name), *chips, label(self.tr("made {date}").format(date=made), "small"), 1, revoke)

    def _make(self) -> None:
        name = self.name.text().strip()
        if not name:
            return
        request = KeyRequest(name=name, scopes=tuple(self.scope.currentData()))

        def done(made: NewKey) -> None:
            self.key.setText(made.key)
            self._new.show()
            self.name.clear()
            self.refresh()

        self._services.ask(self._banner, lambda: self._services.api.make_key(request), done)

    def _revoke(self, name: str) -> None:
        self._new.hide()
        self._services.ask(self._banner, lambda: self._services.api.revoke_key(name), lambda _: self.refresh())

    def _copy_key(self) -> None:
        QGuiApplication.clipboard().setText(self.key.text())
        self._copy.setText(self.tr("Copied"))
        QTimer.singleShot(_DONE_MS, self._copy, lambda: self._copy.setText(self.tr("Copy the key")))

    def _refresh_button(self) -> None:
        self.make.setEnabled(bool(self.name.text().strip()))
