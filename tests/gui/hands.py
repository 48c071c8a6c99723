"""What a user does to a page and reads on it."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton


def press(widget, text):
    """Click the visible button that says `text`."""
    next(b for b in widget.findChildren(QPushButton) if b.text() == text and b.isVisible()).click()


def texts(widget):
    """Everything that visible labels say."""
    return " | ".join(made.text() for made in widget.findChildren(QLabel) if made.isVisible())


def ask(qtbot, page, text="Hi there"):
    """Ask on the chat page, and wait for the end of the answer."""
    page.composer.set_text(text)
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.controller.busy)


def settled(qtbot, services):
    """Wait until every result that was under way has been delivered. No stream may be open."""
    for future in tuple(services.background._running):
        future.result(60)
    delivered = []
    services.background.watch(services.store.submit(lambda _: None), lambda _: delivered.append(1))
    qtbot.waitUntil(lambda: delivered == [1])
