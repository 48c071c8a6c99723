"""A user's actions on a page, and the texts that it shows."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton

from app.db import messages


def press(widget, text):
    """Click the visible button with the text `text`."""
    next(b for b in widget.findChildren(QPushButton) if b.text() == text and b.isVisible()).click()


def texts(widget):
    """The text of all visible labels."""
    return " | ".join(made.text() for made in widget.findChildren(QLabel) if made.isVisible())


def ask(qtbot, page, text="Hi there"):
    """Send a question on the chat page, and wait for the end of the answer."""
    page.composer.set_text(text)
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.controller.busy)


def settled(qtbot, services):
    """Wait until every pending result has been delivered. No stream may be open."""
    for future in tuple(services.background._running):
        future.result(60)
    delivered = []
    services.background.watch(services.store.submit(lambda _: None), lambda _: delivered.append(1))
    qtbot.waitUntil(lambda: delivered == [1])


def stored(services, page):
    """The messages of the open chat on disk."""
    return services.store.submit(messages.of_conversation, page.controller.conversation.id).result()


def shown(page):
    """The messages that the chat page shows."""
    return [item for key in page.transcript._keys if (item := page.transcript.item(key))]
