"""Which pages there are, in the order of the rail."""

from app.gui.main_window import MainWindow, PageEntry
from app.gui.server_link import ServerLink
from app.gui.services import Services


def page_entries(services: Services, window: MainWindow, link: ServerLink) -> list[PageEntry]:
    """The pages beside the chat. Each is imported and built when it is first shown."""
    del services, window, link
    return []
