"""Keys of the server: make one for a program, see what each may do, revoke it."""

from PySide6.QtCore import QDateTime, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLayout

from app.gui import formatted
from app.gui.app_context import Services
from app.gui.server.rows_card import RowsCard
from app.gui.widgets.basics import Banner, button, label, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import Choice
from engine.api.keys import Key, KeyRequest, Keys, NewKey

_DONE_MS = 1500
_MOST_NAME = 100


class KeysCard(RowsCard[Keys]):
    """A new key is shown once; only its hash is kept by the server."""

    required_changed = Signal()
    required = False  # programs must present a key

    def __init__(self, services: Services, banner: Banner) -> None:
        super().__init__(services, banner)
        self._rows.setSpacing(8)
        name = self.tr("Name of the new key")
        self.name = self._field(self.tr("Name of the program or person"), name, _MOST_NAME)
        self.scope = Choice()
        self.scope.setAccessibleName(self.tr("What the new key may do"))
        self.scope.addItem(self.tr("May run models"), ["chat"])
        self.scope.addItem(self.tr("May also manage models"), ["chat", "manage"])
        self.add.setText(self.tr("Make a key"))
        self._new = QFrame()
        self._new.setProperty("kind", "banner-ok")
        self.key = label("", "", wrap=True, selectable=True)
        services.theme.dress(self.key)
        self._copy = button(self.tr("Copy the key"), self._copy_key, "primary")
        line = row(self.key, self._copy)
        line.setStretch(0, 1)
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

    def _rows_of(self, found: Keys) -> tuple[list[QLayout], str]:
        own = any(not key.program for key in found.keys)
        if (found.required or own) != self.required:
            self.required = found.required or own
            self.required_changed.emit()
        if own:
            note = self.tr("Every program must present one of these keys, on this computer too.")
        elif found.public:
            note = self.tr(
                "Other computers can reach this server, so it lets no other program in until you make a key."
            )
        else:
            note = self.tr("No key is needed on this computer. As soon as there is one, every program needs one.")
        return [self._key_row(key) for key in found.keys], note

    def _key_row(self, key: Key) -> QHBoxLayout:
        name = key.name
        scopes = {"chat": self.tr("runs models"), "manage": self.tr("manages models")}
        chips = [label(scopes[scope], "chip") for scope in key.scopes]
        made = formatted.date(QDateTime.fromSecsSinceEpoch(int(key.created_at)).date())
        words = self.tr("connected program") if key.program else self.tr("made {date}").format(date=made)
        revoke = button(self.tr("Revoke"), lambda: self._revoke(name), "danger")
        revoke.setAccessibleName(self.tr("Revoke {name}").format(name=name))
        return row(label(name), *chips, label(words, "small"), 1, revoke)

    def _add(self) -> None:
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
        self._ask(lambda: self._services.api.revoke_key(name))

    def _copy_key(self) -> None:
        QGuiApplication.clipboard().setText(self.key.text())
        self._copy.setText(self.tr("Copied"))
        QTimer.singleShot(_DONE_MS, self._copy, lambda: self._copy.setText(self.tr("Copy the key")))

    def _refresh_button(self) -> None:
        self.add.setEnabled(bool(self.name.text().strip()))
