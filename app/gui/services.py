"""What every page is given: the look, the door to background work, the store, the server, the settings."""

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app import settings as table
from app.db.store import Store
from app.gui.api import Api
from app.gui.background import Background
from app.gui.look import Look

log = logging.getLogger(__name__)


class LiveSettings(QObject):
    """The settings in force; a change is saved and announced."""

    changed = Signal(str)
    save_failed = Signal(str)

    def __init__(self, background: Background, path: Path | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self._path = path
        self._saving = threading.Lock()
        self.now = table.load(path)

    def set(self, name: str, value: table.Value) -> None:
        """Change one setting. Raises SettingsError."""
        self.now = self.now.changed(name, value)
        self._background.run(self._save, on_error=lambda e: self.save_failed.emit(str(e)), parent=self)
        self.changed.emit(name)

    def _save(self) -> None:
        """Write the newest state: workers may run out of order."""
        with self._saving:
            table.save(self.now, self._path)


@dataclass(frozen=True)
class ModelChoice:
    """A model that can be chatted with. `n_ctx` 0: not known before it is loaded."""

    id: str
    title: str
    n_ctx: int = 0
    loaded: bool = False
    vision: bool = False


class Models(QObject):
    """The models the server offers, refreshed while the window is shown."""

    changed = Signal()
    reachable_changed = Signal(bool)

    def __init__(self, api: Api, background: Background, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._api = api
        self._background = background
        self.choices: tuple[ModelChoice, ...] = ()
        self.reachable = False
        self._asking = False
        self._timer = QTimer(self)
        self._timer.setInterval(3000)
        self._timer.timeout.connect(self.refresh)

    def start(self) -> None:
        """Begin to ask, now and from time to time."""
        self._timer.start()
        self.refresh()

    def stop(self) -> None:
        """Ask no more."""
        self._timer.stop()

    def get(self, model_id: str) -> ModelChoice | None:
        """The model of that id."""
        return next((choice for choice in self.choices if choice.id == model_id), None)

    def refresh(self) -> None:
        """Ask the server."""
        if self._asking:
            return
        self._asking = True
        self._background.run(lambda: self._api.get("/v1/models"), self._on_answer, self._on_error, self)

    def _on_answer(self, answer: Any) -> None:
        self._asking = False
        self._timer.setInterval(10_000)
        choices = tuple(choice_of(row) for row in answer.get("data", ()) if _can_chat(row))
        if not self.reachable:
            self.reachable = True
            self.reachable_changed.emit(True)
        if choices != self.choices:
            self.choices = choices
            self.changed.emit()

    def _on_error(self, error: Exception) -> None:
        self._asking = False
        self._timer.setInterval(1000)
        log.debug("models not listed: %s", error)
        if self.reachable:
            self.reachable = False
            self.reachable_changed.emit(False)


def choice_of(row: dict[str, Any]) -> ModelChoice:
    """A row of /v1/models as a choice; fields beyond the standard are optional."""
    return ModelChoice(
        id=row["id"],
        title=str(row.get("name") or row["id"]),
        n_ctx=int(row.get("context_length") or 0),
        loaded=row.get("state") == "loaded",
        vision="vision" in (row.get("capabilities") or ()),
    )


def _can_chat(row: dict[str, Any]) -> bool:
    capabilities = row.get("capabilities")
    return not capabilities or bool({"chat", "completion"} & set(capabilities))


@dataclass(frozen=True)
class Services:
    """One of each for the whole window."""

    look: Look
    background: Background
    store: Store
    api: Api
    settings: LiveSettings
    models: Models

    def with_api(self, api: Api) -> "Services":
        """The same with another server (tests)."""
        return replace(self, api=api)
