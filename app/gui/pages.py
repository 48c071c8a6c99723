"""Defines all pages in the order of the rail. Each page is imported and built when first shown."""

from typing import Any

from PySide6.QtWidgets import QApplication, QWidget

from app.gui.app_context import AppContext
from app.gui.jobs import Jobs
from app.gui.main_window import MainWindow, PageEntry
from app.gui.server_link import ServerLink
from engine.api.jobs import Job, JobKind, ModelMade, result_of

_LONG_JOB_S = 30.0  # users watch a shorter job in the window


class Pages:
    """Creates the pages and navigates between them."""

    def __init__(self, services: AppContext, jobs: Jobs, window: MainWindow, link: ServerLink) -> None:
        self._services, self._jobs, self._window, self._link = services, jobs, window, link
        window.chat.library_wanted.connect(self._find_models)
        window.chat.pull_wanted.connect(self._pull)
        window.chat.documents_wanted.connect(lambda: self._show("documents"))
        window.models_dropped.connect(self._offer)
        window.chat.composer.models_given.connect(self._offer)
        self._first: set[str] = set()  # download jobs that were started from an empty chat
        self._awaiting_first = False
        jobs.changed.connect(self._on_job)
        jobs.finished.connect(self._on_finished)
        jobs.finished.connect(self._notify_of_end)
        window.chat.controller.busy_changed.connect(self._on_busy)
        self._next_steps = ""  # the text of their offer
        window.chat.banner.replaced.connect(self._on_replaced)

    def entries(self) -> list[PageEntry]:
        tr = self._window.tr
        chat = ("chat", "chat", tr("Chat"))
        models = ("models", "library", tr("Models"))
        server = ("server", "server", tr("Server"))
        system = ("system", "devices", tr("System"))
        return [
            PageEntry("documents", "folder", tr("Documents"), self._documents, chat),
            PageEntry("code", "code", tr("Code"), self._code),
            PageEntry("library", "library", tr("Library"), self._library, models),
            PageEntry("fit", "fit", tr("Make it fit"), self._fit, models),
            PageEntry("server", "server", tr("Overview"), self._server, server),
            PageEntry("connect", "external", tr("Connect"), self._connect, server),
            PageEntry("dashboard", "dashboard", tr("Dashboard"), self._dashboard, server),
            PageEntry("others", "server", tr("Other computers"), self._others, server),
            PageEntry("log", "file-text", tr("Log"), self._log, server),
            PageEntry("devices", "devices", tr("Devices"), self._devices, system),
            PageEntry("bench", "gauge", tr("Measure"), self._bench, system),
            PageEntry("settings", "settings", tr("Settings"), self._settings),
        ]

    def _documents(self) -> QWidget:
        from app.gui.documents.page import DocumentsPage

        page = DocumentsPage(self._services)
        page.chat_wanted.connect(self._ask_documents)
        page.model_wanted.connect(self._pull)
        return page

    def _code(self) -> QWidget:
        from app.gui.code.page import CodePage

        page = CodePage(self._services)
        page.composer.models_given.connect(self._offer)
        return page

    def _library(self) -> QWidget:
        from app.gui.library.page import LibraryPage

        page = LibraryPage(self._services, self._jobs)
        page.chat_wanted.connect(self._chat_with)
        page.fit_wanted.connect(self._fit_model)
        return page

    def _fit(self) -> QWidget:
        from app.gui.quantize.page import FitPage

        page = FitPage(self._services, self._jobs)
        page.chat_wanted.connect(self._chat_with)
        page.original_wanted.connect(lambda repo: self._show("library").show_original(repo))
        return page

    def _devices(self) -> QWidget:
        from app.gui.devices.page import DevicesPage

        return DevicesPage(self._services, self._jobs)

    def _bench(self) -> QWidget:
        from app.gui.bench.page import BenchPage

        return BenchPage(self._services, self._jobs)

    def _dashboard(self) -> QWidget:
        from app.gui.dashboard import DashboardPage

        return DashboardPage(self._services)

    def _connect(self) -> QWidget:
        from app.gui.connect.page import ConnectPage

        return ConnectPage(self._services, self._link)

    def _server(self) -> QWidget:
        from app.gui.server.page import ServerPage

        page = ServerPage(self._services, self._link)
        page.start_pressed.connect(self._window.server_wanted)
        return page

    def _others(self) -> QWidget:
        from app.gui.server.page import OtherComputersPage

        return OtherComputersPage(self._services, self._link)

    def _log(self) -> QWidget:
        from app.gui.server.page import LogPage

        return LogPage(self._services)

    def _settings(self) -> QWidget:
        from app.gui.settings_page import SettingsPage

        page = SettingsPage(self._services, len(self._window.destination_names))
        page.restart_wanted.connect(self._window.restart)
        return page

    def _show(self, name: str) -> Any:
        self._window.show_page(name)
        return self._window.page(name)

    def _chat_with(self, model: str) -> None:
        self._window.show_page("chat")
        self._window.chat.use_model(model)

    def _ask_documents(self, collection: str) -> None:
        self._window.new_chat()
        chat = self._window.chat.controller
        chat.change(sampling={**chat.conversation.sampling, "collection": collection})

    def _fit_model(self, model: str) -> None:
        self._show("fit").choose(model)

    def _find_models(self) -> None:
        self._show("library").tabs.setCurrentIndex(1)

    def _pull(self, model: str) -> None:
        self._awaiting_first = self._window.chat.isVisible()
        self._show("library").pull(model)

    def _on_job(self, job: Job) -> None:
        if self._awaiting_first and job.kind is JobKind.PULL and not job.ended:
            self._awaiting_first = False
            self._first.add(job.id)

    def _on_finished(self, job: Job) -> None:
        """After a download from the welcome view, chat with the model, unless the user went elsewhere."""
        if job.id not in self._first:
            return
        self._first.discard(job.id)
        model_made = result_of(job, ModelMade) if job.state == "done" else None
        if model_made is None:
            return
        chat, library = self._window.chat, self._window.page("library")
        if library.isVisible() or (chat.isVisible() and not chat.controller.tree.path()):
            self._chat_with(model_made.model)

    def _notify_of_end(self, job: Job) -> None:
        """Notify the user that a long job has ended, if another window is active."""
        window = self._window
        if job.state not in {"done", "failed"} or job.updated_at - job.created_at < _LONG_JOB_S:
            return
        if window.isActiveWindow():
            return
        from app.gui.job_card import title_of

        failed = job.state == "failed"
        words = title_of(job) if failed else window.tr("Finished: {task}").format(task=title_of(job))
        window.banner.notify(words, "bad" if failed else "ok")
        window.tray.tell(words)
        QApplication.alert(window)

    def _on_busy(self, busy: bool) -> None:
        """After the first answer of a local model that is not a demo, show once what else can be done.

        An offer that gave way to another message, such as one about a full context, is made again.
        """
        chat = self._window.chat
        path = chat.controller.tree.path()
        model = self._services.models.get(chat.controller.conversation.model)
        if busy or not path or path[-1].status != "complete" or chat.banner.isVisible():
            return
        if model is None or model.demo or model.remote or not self._window.first_time("next-steps"):
            return
        tr = self._window.tr
        chat.banner.notify(
            tr("That works. You can also ask about your own documents, or use this model in your editor."),
            "ok",
            (tr("Add documents"), lambda: self._show("documents")),
            (tr("Connect an editor"), lambda: self._show("connect")),
            (tr("Find more models"), self._find_models),
        )
        self._next_steps = chat.banner.text

    def _on_replaced(self, text: str) -> None:
        if text == self._next_steps:
            self._window.repeat_first_time("next-steps")

    def _offer(self, models: list[str]) -> None:
        self._show("library").offer(*models)
