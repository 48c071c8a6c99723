"""Unsent content of the chat page: drafts, attached files, and queued messages."""

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QMimeData, Qt
from PySide6.QtWidgets import QLabel, QWidget

from app.answer_facts import AnswerFacts
from app.attachments import MAX_TEXT_BYTES
from app.db import conversations, messages
from app.db.records import Attachment
from app.gui.chat.message_widget import folded
from tests.gui.hands import ask, press, shown, stored, texts


def test_documents_enter_the_context_and_are_shown(qtbot, tmp_path, services, page, server):
    file = tmp_path / "notes.py"
    file.write_text("print('hello')")
    page.composer.attach([str(file)])
    qtbot.waitUntil(lambda: len(page.composer.attachments) == 1)
    ask(qtbot, page, "What does it do?")
    assert "print('hello')" in server.bodies[0]["messages"][0]["content"]
    assert stored(services, page)[0].attachments[0].name == "notes.py"
    assert page.composer.attachments == []


def test_a_warning_about_the_draft_goes_when_it_is_not_true_any_more(qtbot, page):
    for _ in range(2):  # and returns
        page.composer.set_text("All work and no play. " * 20_000)
        qtbot.waitUntil(lambda: "Your draft has about" in page.banner.text and page.banner.isVisible())
        page.composer.clear()
        qtbot.waitUntil(lambda: not page.banner.isVisible())


def test_of_many_attached_files_twelve_are_named(qtbot, tmp_path, page):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("x")
    page.composer.attach([str(file) for file in tmp_path.glob("*.txt")])

    def named():
        return [made.text() for made in page.composer._chips.findChildren(QLabel) if made.isVisible()]

    qtbot.waitUntil(lambda: len(named()) == 13 and len(page.composer.attachments) == 20)
    assert named()[-1].startswith("8 more files")


def test_a_file_that_cannot_be_read_is_named(qtbot, tmp_path, page):
    page.composer.attach([str(tmp_path / "missing.txt")])
    qtbot.waitUntil(page.banner.isVisible)
    assert "missing.txt" in page.banner.text


def test_an_empty_file_is_named_and_not_attached(qtbot, tmp_path, page):
    empty = tmp_path / "empty.txt"
    empty.touch()
    page.composer.attach([str(empty)])
    qtbot.waitUntil(page.banner.isVisible)
    assert "empty.txt" in page.banner.text
    assert "it is empty" in page.banner.text
    assert page.composer.attachments == []


def test_drafts_survive_switching_and_restarting(qtbot, services, page):
    ask(qtbot, page, "First chat")
    first = page.controller.conversation.id
    page.composer.set_text("half a thought")
    page.new_chat()
    assert page.composer.text == ""
    page.composer.set_text("a question of a chat that is not there yet")
    page.open(first)
    qtbot.waitUntil(lambda: page.composer.text == "half a thought")
    page.new_chat()
    assert page.composer.text == "a question of a chat that is not there yet"


def test_what_is_attached_stays_with_its_chat(qtbot, tmp_path, page):
    """A file attached to one chat is not sent with a question of another one."""
    ask(qtbot, page, "First chat")
    first = page.controller.conversation.id
    page.new_chat()
    ask(qtbot, page, "Second chat")
    (tmp_path / "letter.txt").write_text("Only for the second chat")
    page.composer.attach([str(tmp_path / "letter.txt")])
    qtbot.waitUntil(lambda: len(page.composer.attachments) == 1)
    second = page.controller.conversation.id
    page.open(first)
    qtbot.waitUntil(lambda: page.controller.conversation.id == first)
    assert page.composer.attachments == []
    assert not [
        part for part in page.composer.findChildren(QLabel) if "letter.txt" in part.text() and part.isVisible()
    ]
    page.open(second)
    qtbot.waitUntil(lambda: page.controller.conversation.id == second)
    assert [item.name for item in page.composer.attachments] == ["letter.txt"]


def test_a_draft_that_does_not_fit_moves_into_a_new_chat(qtbot, tmp_path, services, page):
    ask(qtbot, page, "First chat")
    first = page.controller.conversation.id
    page.composer.set_draft("Too long for this one", [Attachment("long.txt", "text/plain", "words " * 10)])
    page._context.new_chat_wanted.emit()
    assert page.controller.conversation.id == 0
    assert page.composer.text == "Too long for this one"
    assert [item.name for item in page.composer.attachments] == ["long.txt"]
    page.open(first)
    qtbot.waitUntil(lambda: page.controller.conversation.id == first)
    assert (page.composer.text, page.composer.attachments) == ("", [])


def test_a_full_disk_keeps_the_text_in_the_editor(qtbot, services, page, monkeypatch):
    from app.db.errors import StoreUnwritable
    from app.gui.chat import chat_transactions

    def full(connection, draft):
        raise StoreUnwritable(services.store.opened.path, "database or disk is full")

    monkeypatch.setattr(chat_transactions, "ask", full)
    page.composer.set_draft("Precious words", [Attachment("notes.txt", "text/plain", "Precious notes")])
    page.composer.send()
    qtbot.waitUntil(page.banner.isVisible)
    assert page.composer.text == "Precious words"
    assert [item.text for item in page.composer.attachments] == ["Precious notes"]
    assert "disk is full" in page.banner.text
    assert not page.controller.busy


def test_typing_does_not_count_the_whole_branch_with_every_key(qtbot, page, monkeypatch):
    """In a chat of 2,000 messages each key press took 10 ms, measured with tests/bench/gui_latency.py."""
    ask(qtbot, page, "first")
    first = page.controller.conversation.id
    counted, count = [], page._context.refresh
    monkeypatch.setattr(page._context, "refresh", lambda: counted.append(1) or count())
    qtbot.keyClicks(page.composer.editor, "the tide comes in")
    assert counted == []
    shown = page.composer.meter.accessibleName()
    page.composer.set_text("x" * 4000)
    assert counted == []
    assert page.composer.meter.accessibleName() != shown, "the meter follows the draft all the same"
    assert page.composer.meter.level == "bad"
    page.new_chat()
    page.composer.set_text("short")
    assert page.composer.meter.level == "ok", "another branch is counted"
    page.open(first)
    qtbot.waitUntil(lambda: page.controller.conversation.id == first)
    assert counted


def test_without_a_server_a_message_waits_and_is_sent_when_the_model_is_there(qtbot, services, page, server):
    services.models.stop()
    services.models._on_error(RuntimeError("gone"))
    services.models.choices = ()
    services.models.changed.emit()
    assert not page.composer._send.isEnabled()
    assert page.bar.models.currentText() == "Starting…"
    page.composer.set_text("anyone?")
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    assert page.composer.text == ""
    qtbot.waitUntil(lambda: "Sent when the model is there:" in texts(page.composer))
    assert server.bodies == []
    services.models.refresh()
    qtbot.waitUntil(lambda: [m.content for m in page.controller.tree.path()] == ["anyone?", "Hello **world**"])
    assert "Sent when the model is there:" not in texts(page.composer)


def test_messages_sent_during_an_answer_wait_for_its_end_in_order(qtbot, page, server):
    server.hold.clear()
    for text in ("one", "two", "three"):
        page.composer.set_text(text)
        qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: texts(page.composer).count("Sent after this answer:") == 2)
    server.hold.set()
    qtbot.waitUntil(lambda: len(server.bodies) == 3 and not page.controller.busy)
    asked = [m.content for m in page.controller.tree.path() if m.role == "user"]
    assert asked == ["one", "two", "three"]


def test_a_waiting_message_stays_with_its_chat_and_is_not_sent_after_a_failure(qtbot, page, server):
    ask(qtbot, page, "first")
    first = page.controller.conversation.id
    server.hold.clear()
    for text in ("held", "waits", "and waits"):
        page.composer.set_text(text)
        qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(server.bodies) == 2)
    page.new_chat()
    assert page.composer.text == ""
    server.hold.set()
    page.open(first)
    qtbot.waitUntil(lambda: page.composer.text == "waits\n\nand waits")
    assert len(server.bodies) == 2
    server.error = (400, "no", "bad_request")
    server.hold.clear()
    for text in ("fails", "waits"):
        page.composer.set_text(text)
        qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    server.hold.set()
    qtbot.waitUntil(lambda: page.composer.text == "waits")
    assert page.controller.tree.path()[-1].status == "error"


def test_a_long_pasted_text_is_attached_and_a_long_message_is_folded(qtbot, page, server):
    data = QMimeData()
    data.setText("word " * 400_000)
    page.composer.editor.insertFromMimeData(data)
    assert page.composer.text == ""
    (given,) = page.composer.attachments
    assert (given.name, given.text) == ("pasted text 1.txt", data.text())
    data.setText("x" * (MAX_TEXT_BYTES + 1))
    page.composer.editor.insertFromMimeData(data)
    assert "it is larger than 8 MiB" in page.banner.text
    page.composer.clear()
    long = "line of a long message\n" * 20_000
    ask(qtbot, page, long)
    item = shown(page)[0]
    assert item.text_view.toPlainText() == folded(long.strip())
    bar = page.transcript.verticalScrollBar()
    assert page.transcript.at_end
    for words, most in (("Show more", 100_000), ("Show less", 4002)):
        at = bar.value()
        press(item, words)
        assert len(item.text_view.toPlainText()) <= most
        with qtbot.waitSignal(page.transcript.at_end_changed):
            pass
        assert bar.value() == min(at, bar.maximum()), "what was read last stays in sight"
        assert page.transcript.at_end == (bar.value() == bar.maximum())
        assert ("more characters are not shown" in texts(item)) == (words == "Show more")
    assert server.bodies[0]["messages"][0]["content"] == long.strip()


@pytest.mark.parametrize("long", [False, True])
def test_a_question_takes_as_much_height_as_it_needs_at_every_width(qtbot, page, server, long):
    """An item that keeps the height of a narrower window leaves the end of the chat blank."""
    ask(qtbot, page, "line of a message, that wraps somewhere " * (200 if long else 20))
    for width in (1000, 640, 1300, 640, 1000):
        page.resize(width, 700)
        qtbot.waitUntil(lambda: page.transcript.viewport().width() > 0 and resting_height(page) is not None)
        item = shown(page)[0]
        seen = [made for made in item.findChildren(QWidget) if made.isVisible()]
        lowest = max(made.mapTo(item, made.rect().bottomLeft()).y() for made in seen)
        assert lowest <= item.height() <= lowest + 16, (width, lowest, item.height())


def resting_height(page):
    """The height of the first message, once nothing waits to be laid out; None before."""
    before = [item.height() for item in shown(page)]
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
    QCoreApplication.processEvents()
    return before[0] if before == [item.height() for item in shown(page)] else None


def test_a_pasted_text_is_named_once_in_the_request(qtbot, page, server):
    data = QMimeData()
    data.setText("a long line\n" * 1000)
    page.composer.editor.insertFromMimeData(data)
    ask(qtbot, page, "Summarize it")
    content = server.bodies[0]["messages"][0]["content"]
    assert content == f"[pasted text 1.txt]\n{data.text()}\n[end of pasted text 1.txt]\n\nSummarize it"


def test_a_question_for_a_new_chat_keeps_its_files_and_the_draft_there(qtbot, services, page, server):
    page.composer.set_text("half a thought")
    page.controller.open(services.store.submit(_long_chat).result())
    qtbot.waitUntil(lambda: len(page.controller.tree.path()) == 4)
    failed = page.controller.tree.path()[-1]
    page.message_actions._apply_remedy(failed.id, "new")
    assert page.controller.conversation.id == 0
    assert page.composer.text == "Which boats?\n\nhalf a thought"
    assert [item.text for item in page.composer.attachments] == ["All boats"]


def _long_chat(connection):
    """A chat whose last question did not fit."""
    chat = conversations.create(connection, title="Boats", model="spark")
    before = messages.add(connection, chat.id, None, "user", "Hi")
    answer = messages.add(connection, chat.id, before.id, "assistant", "Hello")
    files = [Attachment("boats.txt", "text/plain", "All boats")]
    asked = messages.add(connection, chat.id, answer.id, "user", "Which boats?", attachments=files)
    facts = AnswerFacts(error="Too long.", error_code="context_length_exceeded")
    messages.add(connection, chat.id, asked.id, "assistant", "", status="error", facts=facts)
    return chat.id


def test_a_draft_too_long_for_the_model_is_told_before_anything_is_sent(qtbot, page, server):
    page.composer.set_text("x" * 9000)
    assert page.composer.meter.level == "bad"
    assert "this model takes 1024" in page.banner.text
    page.banner.hide()
    page.composer.set_text("x" * 9001)
    assert not page.banner.isVisible(), "a closed warning does not come back with every letter"


def test_a_sent_draft_does_not_come_back_in_the_next_new_chat(qtbot, page):
    ask(qtbot, page, "First chat")
    first = page.controller.conversation.id
    page.new_chat()
    page.composer.set_text("half a thought")
    page.open(first)
    qtbot.waitUntil(lambda: page.composer.text == "")
    page.new_chat()
    ask(qtbot, page, page.composer.text + ", thought through")
    page.new_chat()
    assert page.composer.text == ""


def test_the_draft_of_a_new_chat_is_there_after_a_restart_with_another_chat_open(qtbot, desktop):
    window = desktop.window
    ask(qtbot, window.chat, "First chat")
    first = window.chat.controller.conversation.id
    window.new_chat()
    window.chat.composer.set_text("half a thought")
    window.chat.open(first)
    qtbot.waitUntil(lambda: window.chat.controller.conversation.id == first)
    window.save_state()
    window.new_chat()
    window.chat.composer.clear()
    window._restore()
    qtbot.waitUntil(lambda: window.chat.controller.conversation.id == first)
    assert window.chat.composer.text == ""
    window.new_chat()
    assert window.chat.composer.text == "half a thought"
