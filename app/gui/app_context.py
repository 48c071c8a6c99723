"""Shared objects that every page gets: theme, background workers, store, server API and settings."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import QObject, QTimer, Signal

from app import settings as table
from app.client import Routes
from app.db.store import Store
from app.gui.background import Background
from app.gui.reasons import error_message
from app.gui.theme import Theme
from app.gui.widgets.basics import Banner
from app.setting import SettingsError, Value
from engine.api.chat import REMOTE, ModelRow
from engine.api.hub import Proposal, Starters
from engine.api.machine import Machine
from engine.api.models import EffectiveValue

T = TypeVar("T")
log = logging.getLogger(__name__)


class LiveSettings(QObject):
    """The effective settings. A change is saved and emits `changed`."""

    changed = Signal(str)
    save_failed = Signal(str)

    def __init__(self, background: Background, path: Path | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self._path = path
        self._saving = threading.Lock()
        self._unsaved: set[str] = set()
        self.now = table.load(path)

    def set(self, name: str, value: Value) -> None:
        """Change one setting. Raises SettingsError."""
        self.now = self.now.changed(name, value)
        self._unsaved.add(name)
        self._background.run(self._save, on_error=lambda e: self.save_failed.emit(str(e)), parent=self)
        self.changed.emit(name)

    def close(self) -> None:
        """Save changes that no worker has saved yet."""
        try:
            self._save()
        except (OSError, SettingsError) as error:
            log.warning("the settings could not be saved: %s", error)

    def _save(self) -> None:
        """Save the newest state. Workers may run out of order."""
        with self._saving:
            if self._unsaved:
                names, self._unsaved = self._unsaved, set()
                try:
                    table.save(self.now, self._path, names)
                except (OSError, SettingsError):
                    self._unsaved |= names  # the next change or the end saves them too
                    raise


@dataclass(frozen=True)
class ModelChoice:
    """A model for chat. `n_ctx` is 0 while the model's context length is unknown (before loading)."""

    id: str
    title: str
    n_ctx: int = 0
    loaded: bool = False
    reasons: bool = False
    demo: bool = False
    default: bool = False
    installed: bool = False
    remote: bool = False
    sees: bool = True  # accepts images; unknown for a remote model
    capabilities: tuple[str, ...] = ()
    sampling: Mapping[str, EffectiveValue] = field(default_factory=dict)


class Models(QObject):
    """The server's chat models, refreshed while the window is visible."""

    changed = Signal()
    reachable_changed = Signal(bool)
    proposals_changed = Signal()

    def __init__(self, api: Routes, background: Background, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._api = api
        self._background = background
        self.choices: tuple[ModelChoice, ...] = ()
        self.starters = Starters(proposals=())  # recommended models, identical on every page
        self.machine: Machine | None = None  # its devices, from the newest answer of the server
        self.reachable = False
        self._timer = QTimer(self, interval=3000)
        self._timer.timeout.connect(self._poll)

    def start(self) -> None:
        """Refresh now, then periodically."""
        self._timer.start()
        self.refresh()

    def stop(self) -> None:
        """Stop the periodic refresh."""
        self._timer.stop()

    def get(self, model_id: str) -> ModelChoice | None:
        return next((choice for choice in self.choices if choice.id == model_id), None)

    def sees(self, model_id: str) -> bool:
        """Whether images may be sent to the model. True unless the model is known to accept text only."""
        choice = self.get(model_id)
        return choice is None or choice.sees

    def title(self, model_id: str) -> str:
        """The model's title, or `model_id` if the model is not listed."""
        choice = self.get(model_id)
        return choice.title if choice else model_id

    @property
    def partners(self) -> tuple[ModelChoice, ...]:
        """Models to chat with. Demo models only if there are no others."""
        return tuple(choice for choice in self.choices if not choice.demo) or self.choices

    @property
    def default(self) -> str:
        """The local model for a first chat, or "" if no local model is known."""
        local = [choice for choice in self.choices if not choice.remote]
        able = [choice for choice in local if not choice.demo] or local
        return next((choice.id for choice in able if choice.default), able[0].id if able else "")

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        return self.starters.proposals

    def refresh_proposals(self, *, check: bool = False) -> None:
        """Request the recommended models. Their expected speeds may have become known. `check` asks the hub too."""
        ask = partial(self._api.starters, check=check)
        self._background.run(ask, self.take_proposals, lambda _: None, self, newest="proposals")

    def take_proposals(self, answer: Starters) -> None:
        """Store recommended models. Pages show them from here, so that all pages recommend the same."""
        if answer != self.starters:
            self.starters = answer
            self.proposals_changed.emit()

    def refresh(self) -> None:
        """Request the model list. An answer to an earlier request, from before a change, is dropped."""
        self._background.run(self._api.chat_models, self._on_answer, self._on_error, self, newest="models")

    def _poll(self) -> None:
        if not self._background.is_loading(self, "models"):
            self.refresh()

    def _on_answer(self, answer: tuple[ModelRow, ...]) -> None:
        self._timer.setInterval(10_000)
        choices = tuple(choice_of(row) for row in answer if _can_chat(row))
        if not self.reachable:
            self.reachable = True
            self.reachable_changed.emit(True)
        if choices != self.choices:
            self.choices = choices
            self.changed.emit()

    def _on_error(self, error: Exception) -> None:
        self._timer.setInterval(1000)
        log.debug("models not listed: %s", error)
        if self.reachable:
            self.reachable = False
            self.reachable_changed.emit(False)


def choice_of(row: ModelRow) -> ModelChoice:
    """Convert a model row of the server to a `ModelChoice`."""
    return ModelChoice(
        id=row.id,
        title=row.name or row.id,
        n_ctx=row.context_length,
        loaded=row.state == "loaded",
        reasons="reasoning" in row.capabilities,
        demo=row.demo,
        default=row.default,
        installed=row.origin == "installed",
        remote=row.origin == REMOTE,
        sees=row.origin == REMOTE or not row.capabilities or "vision" in row.capabilities,
        capabilities=row.capabilities,
        sampling=row.sampling,
    )


def _can_chat(row: ModelRow) -> bool:
    return not row.capabilities or bool({"chat", "completion"} & set(row.capabilities))


@dataclass(frozen=True)
class AppContext:
    """The shared objects of the window, one of each."""

    theme: Theme
    background: Background
    store: Store
    api: Routes
    settings: LiveSettings
    models: Models

    @property
    def checks_models(self) -> bool:
        """True if the user allows querying the hub for the recommended models."""
        return self.settings.now.flag("network.check_models") and not self.settings.now.flag("network.offline")

    def ask(
        self, banner: Banner, work: Callable[[], T], on_done: Callable[[T], object], *, newest: str = ""
    ) -> None:
        """Run `work` in the background, then `on_done`. Errors are shown on the page's banner.

        `newest`: as in `Background.run`, for runs that report to the same banner.
        """

        def failed(error: Exception) -> None:
            banner.notify(error_message(error), "bad")

        self.background.run(work, on_done, failed, banner, newest)
