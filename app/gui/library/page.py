"""The Library page: models on this computer, and finding more."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtWidgets import (
    QInputDialog,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from app.client import ApiError
from app.evals.tool_calls.run import CertificateStore
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.close_guard import show_in_folder
from app.gui.job_card import JobList, title_of
from app.gui.jobs import Jobs
from app.gui.library.details import DetailsDialog
from app.gui.library.hub_tab import HubTab
from app.gui.library.linked_folders import LinkedFoldersDialog
from app.gui.library.load_dialog import LoadDialog
from app.gui.library.model_card import ModelCard, capability_text
from app.gui.reasons import answer_awaited, error_message, failure_of
from app.gui.widgets.basics import (
    Banner,
    EmptyState,
    Page,
    button,
    clear,
    label,
    row,
    search_field,
    stack,
    when_released,
)
from app.gui.widgets.popups import ComboBox, Menu, file_dialog
from app.setting import SettingsError
from engine.api.hub import Updates
from engine.api.jobs import Job, JobKind, ModelMade, Quantized, result_of
from engine.api.library import (
    Linked,
    Model,
    ModelsFolder,
    Moved,
    PullRequest,
    Removed,
    Tensor,
    Verification,
)
from engine.api.quantizing import QuantizeOptions
from engine.core.paths import user_paths

# Interval for detecting files or drives that reappear while the page is visible.
_REFRESH_MS = 2000
_NAMED = 3  # files that a message names
_MOST_CARDS = 100  # cards built at most: five hundred take seconds and gigabytes; the filter finds the others


class LibraryPage(Page):
    """Lists, downloads, imports, verifies and removes models."""

    chat_wanted = Signal(str)
    fit_wanted = Signal(str)

    def __init__(self, services: AppContext, jobs: Jobs) -> None:
        super().__init__(self.tr("Library"))
        self._services, self._jobs = services, jobs
        self.cards: list[ModelCard] = []
        self._shown: list[tuple[Model, float | None]] = []
        self._newer: dict[str, int] = {}  # download bytes of models with a newer version on the hub
        self.banner = Banner(services.theme, self)
        self._add = button(self.tr("Add a file or folder…"), self._show_add_menu)
        self._check = button(self.tr("Check for updates"), self.look_for_newer)
        self._check.hide()
        self.header.addWidget(self._check, 0, Qt.AlignmentFlag.AlignTop)
        self.header.addWidget(self._add, 0, Qt.AlignmentFlag.AlignTop)
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self.tabs.setAccessibleName(self.tr("Models"))
        self._here = QWidget()
        self._column = QVBoxLayout()
        self._column.setSpacing(8)
        self._column.addWidget(label(answer_awaited(), "muted", wrap=True))  # the first cards take its place
        self._empty = EmptyState(
            self.tr("No models yet"),
            self.tr("Find one that fits this computer; it is downloaded once and then works offline."),
            self.tr("Find models"),
        )
        self._empty.pressed.connect(lambda: self.tabs.setCurrentIndex(1))
        self._empty.hide()
        self.search = search_field(self.tr("Filter by name, kind or capability"), self.tr("Filter the models"))
        self.search.textChanged.connect(lambda _: self._make_cards())
        self.order = ComboBox(self.tr("Order of the models"))
        for words, name in (
            (self.tr("Usual order"), ""),
            (self.tr("By name"), "name"),
            (self.tr("Largest first"), "size"),
            (self.tr("Newest first"), "added"),
            (self.tr("Longest context first"), "context"),
        ):
            self.order.addItem(words, name)
        self.order.activated.connect(lambda _: self._make_cards())
        self._total = label("", "small")
        change = button(self.tr("Change folder…"), self.choose_models_folder, "link")
        change.setToolTip(self.tr("Move all models to another folder or drive"))
        self._sorting = QWidget()
        self._total.setWordWrap(True)
        first = row(self.search, self.order, spacing=12, grow=0)
        second = row(self._total, change, spacing=12, grow=0)
        self._sorting.setLayout(stack(first, second, margins=(0, 0, 0, 12)))
        self._here.setLayout(stack(self._sorting, self._column, self._empty, 1, spacing=0, margins=(0, 16, 0, 0)))
        self.hub = HubTab(services, jobs)
        self.hub.pull_pressed.connect(self.pull)
        self.hub.fit_pressed.connect(self.fit_from_hub)
        self.hub.trying.connect(jobs.started)
        self.tabs.addTab(self._here, self.tr("On this computer"))
        self.tabs.addTab(self.hub, self.tr("Find models"))
        self.tabs.currentChanged.connect(self._on_tab)
        self._unfinished = JobList(services.theme, jobs)
        for widget in (self._unfinished, self.tabs):
            self.content.addWidget(widget)
        self.while_visible(_REFRESH_MS, self._poll, self._rescan)
        jobs.finished.connect(self._on_job_finished)
        jobs.failed.connect(lambda text: self.banner.notify(text, "bad"))
        services.models.reachable_changed.connect(lambda _: self.refresh())
        services.theme.changed.connect(self._rebuild)
        services.models.changed.connect(self._mark_loaded)

    def _rescan(self) -> None:
        """Show the known models, then rescan the model folders."""
        self.refresh(then=lambda: self.refresh(look_again=True))

    def _poll(self) -> None:
        if not self._services.background.is_loading(self, "models"):
            self.refresh()

    def changeEvent(self, event: QEvent) -> None:
        """Rescan when the user returns to the window, perhaps after copying a file into a folder."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.ActivationChange and self.isActiveWindow() and self.isVisible():
            self.refresh(look_again=True)

    def refresh(self, *, look_again: bool = False, then: Callable[[], object] | None = None) -> None:
        """Request the model list, then call `then`. `look_again`: the server rescans for new files first."""
        if not self._services.models.reachable:
            return

        def failed(error: Exception) -> None:
            if isinstance(error, ApiError) and error.status == 0:
                return  # the main window already reports an unreachable server
            self.banner.report(error_message(error))

        def ask() -> list[tuple[Model, float | None]]:
            return self._certified(self._services.api.library(refresh=look_again))

        def show(models: list[tuple[Model, float | None]]) -> None:
            self.banner.report("")
            self._show(models)
            if then is not None:
                then()

        self._services.background.run(ask, show, failed, self, newest="models")

    @staticmethod
    def _certified(models: Sequence[Model]) -> list[tuple[Model, float | None]]:
        """Add to each model the pass rate of its tool-call evaluation, or None."""
        store = CertificateStore(user_paths().state)
        certificates = ((model, store.load(model.id)) for model in models)
        return [(model, certificate.pass_frac if certificate else None) for model, certificate in certificates]

    def pull(self, model: str, quantization: str = "") -> None:
        if self._is_offline():
            return
        request = PullRequest(model=model, quant=quantization or None)
        self._services.ask(self.banner, lambda: self._services.api.pull(request), self._jobs.started)

    def show_original(self, repo: str) -> None:
        """Show a repository of the hub, or the recommended models if `repo` is ""."""
        self.tabs.setCurrentIndex(1)
        if repo and not self._is_offline():
            self.hub.open(repo)

    def fit_from_hub(self, options: QuantizeOptions) -> None:
        """Start a job that downloads an original and makes it fit."""
        if self._is_offline():
            return
        self.verticalScrollBar().setValue(0)  # scroll to the job's card
        self._services.ask(self.banner, lambda: self._services.api.quantize(options), self._jobs.started)

    def add(self, path: str, *, link: bool) -> None:
        """Copy a model into the library, or link it at its current path."""
        if link:
            self._services.ask(
                self.banner, lambda: self._services.api.link(path), lambda new: self._linked(path, new)
            )
        else:
            self._services.ask(self.banner, lambda: self._services.api.import_model(path), self._jobs.started)

    def _linked(self, path: str, new: Linked) -> None:
        self.refresh()
        if new.added:
            library = self._services.api.library
            self._services.ask(self.banner, library, lambda models: self._tell_of(models, new))
            return
        text = self.tr("{name} is already in the library.")
        if Path(path).is_dir():
            text = self.tr("There is no new model in {name}. Models that you put there appear here automatically.")
        self.banner.notify(text.format(name=Path(path).name or path), "info")

    def _tell_of(self, models: Sequence[Model], new: Linked) -> None:
        """Report linked models, with what to do next. A vision projector alone is no model."""
        added = [model for model in models if model.id in new.added]
        if not added:
            return
        model, names = added[0], ", ".join(model.name for model in added)
        chat = (self.tr("Chat with it"), lambda: self.chat_wanted.emit(model.id))
        can_chat = len(added) == 1 and {"chat", "completion"} & {*model.capabilities}
        self.banner.notify(self.tr("{name} is ready.").format(name=names), "ok", *([chat] if can_chat else []))

    def offer(self, *paths: str) -> None:
        """Ask whether to link or copy models that were dropped on the window. Parts of a file are one model."""
        from quantize.files.gguf_split import model_files

        models = tuple(dict.fromkeys(str(model_files(Path(path))[0]) for path in paths))
        words = self.tr("Add {name} to the library?").format(name=Path(models[0]).name)
        if len(models) > 1:
            words = self.tr("Add {n} files to the library?").format(n=len(models))

        def add(*, link: bool) -> None:
            for path in models:
                self.add(path, link=link)

        self.banner.notify(
            words,
            "info",
            (self.tr("Use it in its current folder"), lambda: add(link=True)),
            (self.tr("Copy it"), lambda: add(link=False)),
        )

    def look_for_newer(self) -> None:
        """Check the hub for newer versions of downloaded models."""
        if self._is_offline():
            return

        def show(updates: Updates) -> None:
            self._newer = {update.model: update.size_bytes for update in updates.updates}
            self._rebuild()
            lines = [
                self.tr("{n} models have a newer version.").format(n=len(self._newer))
                if self._newer
                else self.tr("All downloaded models are up to date."),
                *(f"{repo}: {reason}" for repo, reason in updates.problems.items()),
            ]
            self.banner.notify("\n".join(lines), "warn" if updates.problems else "info")

        self._services.ask(self.banner, self._services.api.updates, show, newest="updates")

    def update_model(self, model: str) -> None:
        """Download the newer version of a model."""
        if self._is_offline():
            return

        def begun(job: Job) -> None:
            self._newer.pop(model, None)
            self._rebuild()
            self._jobs.started(job)

        self._services.ask(self.banner, lambda: self._services.api.update(model), begun)

    def _is_offline(self) -> bool:
        offline = self._services.settings.now.flag("network.offline")
        if offline:
            self.banner.notify(self.tr("Tessera is set to offline. Change it in Settings to download."), "info")
        return offline

    def verify(self, model: str) -> None:
        """Hash the files of a model."""
        self._services.ask(self.banner, lambda: self._services.api.verify(model), self._jobs.started)

    def remove(self, model: str, name: str) -> None:
        def done(removed: Removed) -> None:
            self.refresh()
            self._services.models.refresh()
            self.banner.notify(
                self.tr("{name} was removed.").format(name=name),
                "info",
                (self.tr("Undo"), lambda: self._restore(removed.ticket)),
            )

        self._services.ask(self.banner, lambda: self._services.api.remove(model), done)

    def _restore(self, ticket: str) -> None:
        self._services.ask(self.banner, lambda: self._services.api.restore(ticket), lambda _: self.refresh())

    def _rebuild(self) -> None:
        """Rebuild the cards: their layout depends on the text size."""
        models, self._shown = self._shown, []
        self._show(models)

    def _show(self, models: list[tuple[Model, float | None]]) -> None:
        if models == self._shown and models:
            return  # avoids moving widgets under the pointer
        if self._shown:
            self._services.models.refresh()  # the models available for chat have changed too
        self._shown = models
        when_released(self, self._make_cards)

    def _make_cards(self) -> None:
        models = self._shown
        clear(self._column)
        self.cards = []
        self._sorting.setVisible(len(models) > 1)
        here = sum(model.size_bytes for model, _ in models if model.state == "online")
        words = self.tr("{n} models, {size} on the disk")
        self._total.setText(words.format(n=formatted.whole(len(models)), size=formatted.size(here)))
        matches = arranged(models, self.search.text(), self.order.currentData())
        for model, tool_calls_frac in matches[:_MOST_CARDS]:
            card = ModelCard(self._services.theme, model, tool_calls_frac, self._newer.get(model.id, 0))
            card.chat_pressed.connect(self.chat_wanted)
            card.fit_pressed.connect(self.fit_wanted)
            card.original_pressed.connect(self.show_original)
            card.verify_pressed.connect(self.verify)
            card.remove_pressed.connect(self._confirm_removal)
            card.details_pressed.connect(self._show_details)
            card.locate_pressed.connect(self._locate)
            card.folder_pressed.connect(show_in_folder)
            card.settings_pressed.connect(self._open_settings)
            card.rename_pressed.connect(self._prompt_for_name)
            card.update_pressed.connect(self.update_model)
            self._column.addWidget(card)
            self.cards.append(card)
        if len(matches) > _MOST_CARDS:
            more = self.tr("{n} more: search for them").format(n=formatted.whole(len(matches) - _MOST_CARDS))
            self._column.addWidget(label(more, "small"))
        self._mark_loaded()
        self._empty.setVisible(not models)
        self._check.setVisible(any(model.origin.kind == "hub" for model, _ in models))

    def _mark_loaded(self) -> None:
        for card in self.cards:
            choice = self._services.models.get(card.model.id)
            card.mark_loaded(loaded=choice is not None and choice.loaded)

    def _confirm_removal(self, model: str, name: str) -> None:
        self.banner.notify(
            self.tr("Remove {name}? It can be restored until the trash is emptied.").format(name=name),
            "warn",
            (self.tr("Remove"), lambda: self.remove(model, name)),
        )

    def _prompt_for_name(self, model: str, name: str) -> None:
        dialog = QInputDialog(self)
        dialog.setWindowTitle(self.tr("Rename model"))
        dialog.setLabelText(self.tr("Name; empty: the model's own"))
        dialog.setTextValue(name)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)

        def done(_: object) -> None:
            self.refresh()
            self._services.models.refresh()

        api = self._services.api
        dialog.textValueSelected.connect(
            lambda text: self._services.ask(self.banner, lambda: api.rename(model, text), done)
        )
        dialog.open()

    def _open_settings(self, model: str, name: str) -> None:
        dialog = LoadDialog(self._services, model, name, self.window())
        dialog.loading.connect(
            lambda _: self._services.ask(
                self.banner, lambda: self._services.api.load(model), lambda _: self._services.models.refresh()
            )
        )
        words = self.tr("{name} is answering. It reloads with these settings when the last answer ends.")
        dialog.waiting.connect(lambda _: self.banner.notify(words.format(name=name), "ok"))
        dialog.open()

    def _locate(self, model: str) -> None:
        """Let the user show where a model's file is now."""
        folder = any(entry.id == model and entry.folder for entry, _ in self._shown)
        api = self._services.api

        def done(_: object) -> None:
            self.refresh()
            self._services.models.refresh()

        def found(path: str) -> None:
            self._services.ask(self.banner, lambda: api.locate(model, path), done)

        self._open_dialog(self.tr("Where is this model now?"), found, folder=folder)

    def _open_dialog(self, title: str, chosen: Callable[[str], object], *, folder: bool) -> None:
        file_dialog(self, title, chosen, folder=folder, name_filter="" if folder else self.tr("Models (*.gguf)"))

    def _show_details(self, model: str) -> None:
        api = self._services.api

        def ask() -> tuple[Model, tuple[Tensor, ...]]:
            details = api.model(model)
            try:
                return details, api.tensors(model).tensors
            except ApiError:  # a folder or a missing file: show the rest
                return details, ()

        def show(details: tuple[Model, tuple[Tensor, ...]]) -> None:
            DetailsDialog(self._services.theme, *details, self).open()

        self._services.ask(self.banner, ask, show, newest="details")

    def _show_add_menu(self) -> None:
        menu = Menu(self._services.theme, self)
        menu.add("attach", self.tr("A GGUF file…"), lambda: self._choose(folder=False))
        menu.add("folder", self.tr("A folder (safetensors, ONNX)…"), lambda: self._choose(folder=True))
        menu.add("external", self.tr("Linked folders…"), self._open_linked_folders)
        menu.add("refresh", self.tr("Look for new files"), lambda: self.refresh(look_again=True))
        menu.add("folder", self.tr("Move the models to another folder…"), self.choose_models_folder)
        menu.below(self._add)

    def _choose(self, *, folder: bool) -> None:
        self._open_dialog(self.tr("Add a model"), self.offer, folder=folder)

    def _open_linked_folders(self) -> None:
        dialog = LinkedFoldersDialog(self._services, self.window())
        dialog.changed.connect(self.refresh)
        dialog.open()

    def choose_models_folder(self) -> None:
        """Let the user choose a folder for the models, and ask before they are moved there."""

        def chosen(path: str) -> None:
            def look() -> tuple[ModelsFolder, Path]:
                target = Path(path)
                occupied = target.is_dir() and any(target.iterdir())
                return self._services.api.models_folder(), target / "tessera-models" if occupied else target

            self._services.ask(self.banner, look, lambda answer: self._ask_to_move(*answer))

        file_dialog(self, self.tr("Folder for the models"), chosen, folder=True)

    def _ask_to_move(self, now: ModelsFolder, target: Path) -> None:
        api = self._services.api
        words = self.tr(
            "Move all models from {old} to {new}? Until all files are there, they are used from the old folder."
        ).format(old=now.path, new=target)
        move = (
            self.tr("Move"),
            lambda: self._services.ask(self.banner, lambda: api.move_models(str(target)), self._jobs.started),
        )
        self.banner.notify(words, "info", move)

    def _on_quantized(self, job: Job) -> None:
        """Report a file that was made from an original on the hub. The page "Make it fit" reports the others."""
        quantized = result_of(job, Quantized)
        if quantized is None or not job.params.get("download"):
            return
        if not quantized.path:
            text = self.tr("The new file was discarded: it did the task clearly worse than the original.")
            self.banner.notify(text, "warn")
            return
        chat = (self.tr("Chat with it"), lambda: self.chat_wanted.emit(quantized.model))
        self.banner.notify(self.tr("Done: {name} is in your library.").format(name=quantized.model), "ok", chat)

    def _on_moved(self, moved: Moved) -> None:
        """Report the new folder, and which files stayed in the old one."""
        with contextlib.suppress(SettingsError):
            self._services.settings.set("models.folder", moved.path)
        self._services.models.refresh()
        if moved.left:
            words = self.tr("The models are in {name} now. {n} files stayed in the old folder: {files}")
            text = words.format(name=moved.path, n=len(moved.left), files=", ".join(moved.left[:_NAMED]))
            self.banner.notify(text, "warn")
        else:
            self.banner.notify(self.tr("The models are in {name} now.").format(name=moved.path), "ok")

    def _on_tab(self, position: int) -> None:
        if position == 1:
            self.hub.show_starters()

    def _show_check(self, job: Job) -> None:
        """Report a finished verification that found a damaged file or had nothing to compare with."""
        verification = result_of(job, Verification)
        if verification is None:
            return
        bad = [Path(file.path).name for file in verification.files if not file.ok]
        if bad:
            text = self.tr("{name} is damaged: {files} has changed. Download or copy it again.")
            self.banner.notify(text.format(name=job.title, files=", ".join(bad)), "bad")
        elif verification.basis == "none":
            text = self.tr("{name} was read completely. Its checksum is stored for later checks.")
            self.banner.notify(text.format(name=job.title), "info")
        else:
            self.banner.notify(self.tr("{name} is intact.").format(name=job.title), "ok")

    def _on_job_finished(self, job: Job) -> None:
        if job.state == "failed" and not self._unfinished.is_seen(job):  # its card has the reason
            self.banner.notify(f"{title_of(job)}. {failure_of(job)}".rstrip(), "bad")
        if job.state != "done":
            return
        self.refresh()
        moved = result_of(job, Moved) if job.kind is JobKind.MOVE else None
        if moved is not None:
            self._on_moved(moved)
        elif job.kind is JobKind.VERIFY:
            self._show_check(job)
        elif job.kind is JobKind.QUANTIZE:
            self._on_quantized(job)
        elif job.kind in {JobKind.PULL, JobKind.IMPORT, JobKind.CONVERT}:
            result = result_of(job, ModelMade)
            actions = [(self.tr("Chat with it"), lambda: self.chat_wanted.emit(result.model))] if result else []
            self.banner.notify(self.tr("{name} is ready.").format(name=job.title), "ok", *actions)


def arranged(
    models: Sequence[tuple[Model, float | None]], search: str, order: str
) -> list[tuple[Model, float | None]]:
    """The models whose name, architecture, type or capability contains every word, in this order."""
    words = search.casefold().split()

    def has(model: Model) -> bool:
        details = model.details
        facts = (model.name, model.id, details.architecture, details.quantization, model.format)
        text = " ".join((*(fact or "" for fact in facts), *map(capability_text, model.capabilities))).casefold()
        return all(word in text for word in words)

    keys: dict[str, Callable[[Model], object]] = {
        "": lambda _: 0,
        "name": lambda model: model.name.casefold(),
        "size": lambda model: -model.size_bytes,
        "added": lambda model: -model.added_at,
        "context": lambda model: -(model.details.context_train or 0),
    }
    return sorted((pair for pair in models if has(pair[0])), key=lambda pair: keys[order](pair[0]))  # type: ignore[arg-type,return-value]  # numbers or strings, never mixed
