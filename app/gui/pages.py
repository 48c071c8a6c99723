"""Which pages there are, in the order of the rail."""

from typing import Any

from PySide6.QtWidgets import QWidget

from app.gui.jobs import Jobs
from app.gui.main_window import MainWindow, PageEntry
from app.gui.server_link import ServerLink
from app.gui.services import Services


def page_entries(services: Services, jobs: Jobs, window: MainWindow, link: ServerLink) -> list[PageEntry]:
    """The pages beside the chat. Each is imported and built when it is first shown."""

    def chat_with(model: str) -> None:
        window.show_page("chat")
        window.chat.use_model(model)

    def pull(model: str) -> None:
        page: Any = window.page("library")
        window.show_page("library")
        page.pull(model)

    def show_library() -> None:
        page: Any = window.page("library")
        window.show_page("library")
        page.tabs.setCurrentIndex(1)

    window.chat.library_wanted.connect(show_library)
    window.chat.pull_wanted.connect(pull)

    def library() -> QWidget:
        from app.gui.library.page import LibraryPage  # noqa: PLC0415 - when it is first shown

        page = LibraryPage(services, jobs)
        page.chat_wanted.connect(chat_with)
        page.fit_wanted.connect(fit_model)

        def take(path: str) -> None:
            window.show_page("library")
            page.offer(path)

        window.model_dropped.connect(take)
        return page

    def fit() -> QWidget:
        from app.gui.fit.page import FitPage  # noqa: PLC0415 - when it is first shown

        page = FitPage(services, jobs)
        page.chat_wanted.connect(chat_with)
        return page

    def fit_model(model: str) -> None:
        page: Any = window.page("fit")
        window.show_page("fit")
        page.choose(model)

    def devices() -> QWidget:
        from app.gui.devices.page import DevicesPage  # noqa: PLC0415 - when it is first shown

        return DevicesPage(services)

    def dashboard() -> QWidget:
        from app.gui.dashboard import DashboardPage  # noqa: PLC0415 - when it is first shown

        return DashboardPage(services)

    def server() -> QWidget:
        from app.gui.server_page import ServerPage  # noqa: PLC0415 - when it is first shown

        page = ServerPage(services, link)
        page.start_pressed.connect(window.server_wanted)
        return page

    def settings() -> QWidget:
        from app.gui.settings_page import SettingsPage  # noqa: PLC0415 - when it is first shown

        return SettingsPage(services)

    return [
        PageEntry("code", "code", window.tr("Code"), lambda: _code_page(services)),
        PageEntry("library", "library", window.tr("Library"), library),
        PageEntry("fit", "fit", window.tr("Make it fit"), fit),
        PageEntry("devices", "devices", window.tr("Devices"), devices),
        PageEntry("dashboard", "dashboard", window.tr("Dashboard"), dashboard),
        PageEntry("server", "server", window.tr("Server"), server),
        PageEntry("settings", "settings", window.tr("Settings"), settings),
    ]


def _code_page(services: Services) -> QWidget:
    from app.gui.code.page import CodePage  # noqa: PLC0415 - when it is first shown

    return CodePage(services)
