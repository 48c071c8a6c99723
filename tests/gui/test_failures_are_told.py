"""What fails is reported, and what the user wrote is kept."""

import pytest
from PySide6.QtCore import QMimeData, QUrl
from PySide6.QtGui import QColor, QImage

from app import settings as table
from app.db import conversations
from app.db.errors import StoreUnwritable
from app.db.records import Attachment
from app.gui.app_context import LiveSettings
from app.gui.chat import chat_transactions
from app.gui.chat.composer import Composer
from tests.gui.hands import ask, settled


@pytest.fixture
def full(services):
    """Refuses to change the database, as on a full disk."""

    def refuse(*_args, **_more):
        raise StoreUnwritable(services.store.opened.path, "database or disk is full")

    return refuse


def test_work_without_an_error_callback_reports_its_failure(qtbot, desktop, full):
    desktop.background.watch(desktop.services.store.submit(full))
    toast = desktop.window.banner
    qtbot.waitUntil(lambda: toast.isVisible() and "disk is full" in toast.text)
    assert toast.text.startswith("This could not be done: ")
    assert toast.tone == "bad"


@pytest.mark.parametrize("change", ["trash", "archive"])
def test_a_chat_that_could_not_be_deleted_or_archived_is_not_called_so(
    qtbot, services, page, monkeypatch, full, change
):
    ask(qtbot, page)
    number = page.controller.conversation.id
    monkeypatch.setattr(conversations, change, full)
    with qtbot.waitSignal(services.background.failed) as failed:
        page.sidebar.trash([number]) if change == "trash" else page.sidebar._archive([number], away=True)
    assert "disk is full" in str(failed.args[0])
    settled(qtbot, services)
    assert not page.banner.isVisible()
    assert page.controller.conversation.id == number, "it stays open"


def test_a_setting_that_could_not_be_saved_is_saved_at_the_end(qtbot, services, tmp_path, monkeypatch, qapp):
    path = tmp_path / "settings.toml"
    settings = LiveSettings(services.background, path, qapp)
    monkeypatch.setattr(table, "save", _refuse_once(table.save))
    with qtbot.waitSignal(settings.save_failed):
        settings.set("window.theme", "dark")
    settings.close()
    assert table.load(path, {})["window.theme"] == "dark"
    settings.deleteLater()


def _refuse_once(save):
    answers = [OSError(28, "No space left on device")]

    def refuse(*arguments):
        if answers:
            raise answers.pop()
        save(*arguments)

    return refuse


def test_messages_that_could_not_be_saved_come_back_in_front_of_the_newer_draft(qtbot, page, monkeypatch, full):
    monkeypatch.setattr(chat_transactions, "ask", full)
    notes = Attachment("notes.txt", "text/plain", "Precious notes")
    page.composer.set_draft("First", [notes])
    page.composer.send()
    page.composer.set_text("Second")
    page.composer.send()
    page.composer.set_draft("Third", [Attachment("new.txt", "text/plain", "New notes")])
    qtbot.waitUntil(page.banner.isVisible)
    assert page.composer.text == "First\n\nSecond\n\nThird"
    assert [item.name for item in page.composer.attachments] == ["notes.txt", "new.txt"]
    assert not page.controller.busy


def test_the_problem_of_each_file_is_named_up_to_five(qtbot, page, services, tmp_path):
    page.composer.attach([str(tmp_path / f"missing{number}.txt") for number in range(8)])
    settled(qtbot, services)
    lines = page.banner.text.split("\n")
    assert len(lines) == 6
    assert all("cannot be attached" in line for line in lines[:5])
    assert lines[5] == "Not attached: 3 more"


def test_a_message_field_without_a_queue_says_why_it_does_not_send(qtbot, services):
    composer = Composer(services.theme, services.background)
    qtbot.addWidget(composer)
    composer.set_text("What is this?")
    for busy, why in ((False, "there is no model yet"), (True, "the last request is still running")):
        composer.set_busy(busy)
        with qtbot.waitSignal(composer.failed) as failed:
            composer.send()
        assert why in failed.args[0]
        assert composer.text == "What is this?"


def test_an_image_of_the_clipboard_is_attached_and_an_address_is_text(qtbot, page, server):
    image = QImage(40, 30, QImage.Format.Format_RGB32)
    image.fill(QColor("red"))
    pasted = QMimeData()
    pasted.setImageData(image)
    editor = page.composer.editor
    for count in (1, 2):
        assert editor.canInsertFromMimeData(pasted)
        editor.insertFromMimeData(pasted)
        qtbot.waitUntil(lambda count=count: len(page.composer.attachments) == count)
    first, second = page.composer.attachments
    assert (first.name, second.name, first.mime) == ("pasted image 1.png", "pasted image 2.png", "image/png")
    assert QImage.fromData(first.data) == image
    both = QMimeData()
    both.setImageData(image)
    both.setText("a cell of a table")
    editor.insertFromMimeData(both)
    address = QMimeData()
    address.setUrls([QUrl("https://example.org/x.png")])
    editor.insertFromMimeData(address)
    assert page.composer.text == "a cell of a tablehttps://example.org/x.png"
    assert len(page.composer.attachments) == 2
