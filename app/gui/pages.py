"""Which pages there are, in the order of the rail."""

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

    def library() -> QWidget:
        from app.gui.library.page import LibraryPage  # noqa: PLC0415 - when it is first shown

        page = LibraryPage(services, jobs)
        page.chat_wanted.connect(chat_with)

        def take(path: str) -> None:
            window.show_page("library")
            page.offer(path)

        window.model_dropped.connect(take)
        return page

    def server() -> QWidget:
        from app.gui.server_page import ServerPage  # noqa: PLC0415 - when it is first shown

        page = ServerPage(services, link)
        page.start_pressed.connect(window.server_wanted)
        return page

    def settings() -> QWidget:
        from app.gui.settings_page import SettingsPage  # noqa: PLC0415 - when it is first shown

        return SettingsPage(services)

    return [
        PageEntry("library", "library", window.tr("Library"), library),
        PageEntry("server", "server", window.tr("Server"), server),
        PageEntry("settings", "settings", window.tr("Settings"), settings),
    ]
