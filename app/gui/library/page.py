"""The library page: models on this computer, and finding more."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QMenu, QTabWidget, QVBoxLayout, QWidget

from app.code.certify.run import CertificateStore
from app.gui.api import ApiError, in_words
from app.gui.jobs import Jobs
from app.gui.library.details import DetailsDialog
from app.gui.library.hub_tab import HubTab
from app.gui.library.job_card import JobList, title_of
from app.gui.library.model_card import ModelCard
from app.gui.services import Services
from app.gui.widgets.basics import Banner, Empty, Page, button, clear, stack
from engine.paths import user_paths


class LibraryPage(Page):
    """Lists, downloads, imports, checks and removes models."""

    chat_wanted = Signal(str)
    fit_wanted = Signal(str)

    def __init__(self, services: Services, jobs: Jobs) -> None:
        super().__init__(self.tr("Library"))
        self._services, self._jobs = services, jobs
        self.cards: list[ModelCard] = []
        self.banner = Banner(services.look)
        self._add = button(self.tr("Add a file or folder…"), self._show_add_menu)
        self.header.addWidget(self._add, 0, Qt.AlignmentFlag.AlignTop)
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self._here = QWidget()
        self._column = QVBoxLayout()
        self._column.setSpacing(8)
        self._empty = Empty(
            self.tr("No models yet"),
            self.tr("Find one that fits this computer; it is downloaded once and then works offline."),
            self.tr("Find models"),
        )
        self._empty.pressed.connect(lambda: self.tabs.setCurrentIndex(1))
        self._empty.hide()
        self._here.setLayout(stack(self._column, self._empty, 1, spacing=0, margins=(0, 16, 0, 0)))
        self.hub = HubTab(services)
        self.hub.pull_pressed.connect(self.pull)
        self.hub.trying.connect(jobs.started)
        self.tabs.addTab(self._here, self.tr("On this computer"))
        self.tabs.addTab(self.hub, self.tr("Find models"))
        self.tabs.currentChanged.connect(self._on_tab)
        for widget in (self.banner, JobList(services.look, jobs), self.tabs):
            self.content.addWidget(widget)
        jobs.finished.connect(self._on_job_finished)
        jobs.failed.connect(lambda text: self.banner.tell(text, "bad"))
        services.models.reachable_changed.connect(lambda _: self.refresh())

    def showEvent(self, event: QShowEvent) -> None:
        """Look again when the page is opened."""
        super().showEvent(event)
        self.refresh()

    def refresh(self, *, look_again: bool = False) -> None:
        """Ask the server for the models."""
        path = "/tessera/v1/models" + ("?refresh=true" if look_again else "")
        self._run(lambda: self._certified(self._services.api.get(path)), self._show)

    @staticmethod
    def _certified(answer: dict[str, Any]) -> list[dict[str, Any]]:
        """The models, each with the pass rate of its tool-call certificate where it has one."""
        store = CertificateStore(user_paths().state)
        models: list[dict[str, Any]] = answer.get("models") or []
        for model in models:
            certificate = store.load(model["id"])
            if certificate is not None:
                model["tool_calls_frac"] = certificate.pass_frac
        return models

    def pull(self, model: str, quantization: str = "") -> None:
        """Start a download."""
        if self._services.settings.now.flag("network.offline"):
            self.banner.tell(self.tr("Tessera is set to offline. Change it in Settings to download."), "info")
            return
        body = {"model": model, "quant": quantization or None}
        self._run(lambda: self._services.api.post("/tessera/v1/models/pull", body), self._on_started)

    def add(self, path: str, *, link: bool) -> None:
        """Copy a model into the library, or use it where it lies."""
        if link:
            self._run(
                lambda: self._services.api.post("/tessera/v1/models/link", {"where": path}),
                lambda _: self.refresh(),
            )
        else:
            self._run(
                lambda: self._services.api.post("/tessera/v1/models/import", {"path": path}), self._on_started
            )

    def offer(self, path: str) -> None:
        """A model was dropped on the window: ask what to do with it."""
        self.banner.tell(
            self.tr("Add {name} to the library?").format(name=Path(path).name),
            "info",
            (self.tr("Use it where it is"), lambda: self.add(path, link=True)),
            (self.tr("Copy it"), lambda: self.add(path, link=False)),
        )

    def verify(self, model: str) -> None:
        """Hash the files of a model."""
        self._run(lambda: self._services.api.post(f"/tessera/v1/models/{quote(model)}/verify"), self._on_started)

    def remove(self, model: str, name: str) -> None:
        """Remove a model; it can be brought back."""

        def done(removed: dict[str, Any]) -> None:
            ticket = removed.get("ticket")
            self.refresh()
            self._services.models.refresh()
            self.banner.tell(
                self.tr("{name} was removed.").format(name=name),
                "info",
                (self.tr("Undo"), lambda: self._restore(str(ticket))),
            )

        self._run(lambda: self._services.api.delete(f"/tessera/v1/models/{quote(model)}"), done)

    def _restore(self, ticket: str) -> None:
        self._run(
            lambda: self._services.api.post(f"/tessera/v1/trash/{quote(ticket)}/restore"), lambda _: self.refresh()
        )

    def _show(self, models: list[dict[str, Any]]) -> None:
        if [card.model for card in self.cards] == models and models:
            return  # nothing moves under the pointer
        clear(self._column)
        self.cards = []
        for model in models:
            card = ModelCard(self._services.look, model)
            card.chat_pressed.connect(self.chat_wanted)
            card.fit_pressed.connect(self.fit_wanted)
            card.verify_pressed.connect(self.verify)
            card.remove_pressed.connect(self._ask_remove)
            card.details_pressed.connect(self._show_details)
            self._column.addWidget(card)
            self.cards.append(card)
        self._empty.setVisible(not models)

    def _ask_remove(self, model: str, name: str) -> None:
        self.banner.tell(
            self.tr("Remove {name}? It can be brought back until the trash is emptied.").format(name=name),
            "warn",
            (self.tr("Remove"), lambda: self.remove(model, name)),
        )

    def _show_details(self, model: str) -> None:
        path, api = f"/tessera/v1/models/{quote(model)}", self._services.api

        def ask() -> tuple[dict[str, Any], list[dict[str, Any]]]:
            found: dict[str, Any] = api.get(path)
            try:
                return found, api.get(f"{path}/tensors")["tensors"]
            except ApiError:  # a folder, or a file that is gone: the rest is shown all the same
                return found, []

        def show(found: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
            DetailsDialog(self._services.look, *found, self).open()

        self._run(ask, show)

    def _show_add_menu(self) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction(self.tr("A GGUF file…"), lambda: self._choose(folder=False))
        menu.addAction(self.tr("A folder (safetensors, ONNX)…"), lambda: self._choose(folder=True))
        menu.addAction(self.tr("Look for new files"), lambda: self.refresh(look_again=True))
        menu.popup(self._add.mapToGlobal(self._add.rect().bottomLeft()))

    def _choose(self, *, folder: bool) -> None:
        dialog = QFileDialog(self, self.tr("Add a model"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setFileMode(QFileDialog.FileMode.Directory if folder else QFileDialog.FileMode.ExistingFile)
        if not folder:
            dialog.setNameFilter(self.tr("Models (*.gguf)"))
        dialog.fileSelected.connect(self.offer)
        dialog.open()

    def _on_tab(self, position: int) -> None:
        if position == 1:
            self.hub.show_starters()

    def _on_started(self, job: dict[str, Any]) -> None:
        self._jobs.started(job)

    def _on_job_finished(self, job: dict[str, Any]) -> None:
        if job["state"] == "done":
            self.refresh()
            if job["kind"] == "verify":
                self.banner.tell(self.tr("{name} is as it should be.").format(name=job.get("title", "")), "ok")
            elif job["kind"] in {"pull", "import"}:
                model = (job.get("result") or {}).get("model")
                actions = [(self.tr("Chat with it"), lambda: self.chat_wanted.emit(model))] if model else []
                self.banner.tell(self.tr("{name} is ready.").format(name=job.get("title", "")), "ok", *actions)
        elif job["state"] == "failed":
            self.banner.tell(f"{title_of(job)}: {(job.get('error') or {}).get('message', '')}", "bad")

    def _run(self, work: Any, on_done: Any) -> None:
        self._services.background.run(work, on_done, lambda error: self.banner.tell(in_words(error), "bad"), self)
