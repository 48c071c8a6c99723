"""Defines all pages in the order of the rail. Each page is imported and built when first shown."""

from typing import Any

from PySide6.QtWidgets import QWidget

from app.gui.app_context import Services
from app.gui.jobs import Jobs
from app.gui.main_window import MainWindow, PageEntry
from app.gui.server_link import ServerLink


class Pages:
    """Creates the pages and navigates between them."""

    def __init__(self, services: Services, jobs: Jobs, window: MainWindow, link: ServerLink) -> None:
        self._services, self._jobs, self._window, self._link = services, jobs, window, link
        window.chat.library_wanted.connect(self._find_models)
        window.chat.pull_wanted.connect(self._pull)
        window.chat.documents_wanted.connect(lambda: self._show("documents"))
        window.model_dropped.connect(self._offer)

    def entries(self) -> list[PageEntry]:
        """All pages except the chat."""
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

        return CodePage(self._services)

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

    def _settings(self) -> QWidget:
        from app.gui.settings_page import SettingsPage

        page = SettingsPage(self._services)
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
        self._show("library").pull(model)

    def _offer(self, path: str) -> None:
        self._show("library").offer(path)
