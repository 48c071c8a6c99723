"""The chat page against a server on loopback: a user's actions, and the resulting state on disk."""

import threading
from datetime import UTC, datetime

import msgspec
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QPoint, Qt
from PySide6.QtWidgets import QLabel, QPushButton

from app.answer_facts import ToolCall
from app.db import conversations, messages
from app.gui.chat.chat_transcript import FoldItem
from app.gui.chat.message_widget import MessageWidget
from app.gui.widgets.basics import IconButton
from engine.api.chat import ModelRow, TokenCount
from tests.gui.hands import ask, shown, stored


def texts_of(item):
    return [words.text() for words in item.findChildren(QLabel)]


def test_enter_sends_and_the_answer_is_shown_and_kept(qtbot, services, page, server):
    ask(qtbot, page)
    question, answer = stored(services, page)
    assert (question.role, question.content) == ("user", "Hi there")
    assert (answer.content, answer.status, answer.parent_id) == ("Hello **world**", "complete", question.id)
    assert answer.facts.usage.total_tokens == 15
    assert shown(page)[-1].text_view.toPlainText() == "Hello world"
    assert page.composer.text == ""
    assert page.controller.conversation.title == "Hi there"
    qtbot.waitUntil(lambda: page.sidebar.model.rowCount() == 1)
    body = server.bodies[0]
    assert body["messages"] == [{"role": "user", "content": "Hi there"}]
    assert body["stream_options"] == {"include_usage": True}


def test_shift_enter_breaks_the_line(qtbot, page, server):
    page.composer.set_text("one")
    page.composer.editor.moveCursor(page.composer.editor.textCursor().MoveOperation.End)
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(page.composer.editor, "two")
    assert page.composer.text == "one\ntwo"
    assert server.bodies == []


def test_the_question_is_on_the_disk_before_the_server_is_asked(qtbot, services, page, server):
    seen = []
    original = server.api.stream

    def stream(path, event, body):
        rows = services.store.submit(
            lambda c: c.execute("SELECT role, content, status FROM messages ORDER BY id").fetchall()
        ).result()
        seen.append(rows)
        return original(path, event, body)

    server.api.stream = stream
    ask(qtbot, page)
    assert seen == [[("user", "Hi there", "complete"), ("assistant", "", "streaming")]]


def test_the_second_question_carries_the_conversation(qtbot, page, server):
    ask(qtbot, page)
    ask(qtbot, page, "And then?")
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["Hi there", "Hello **world**", "And then?"]


def test_stop_keeps_what_arrived_and_ends_the_generation(qtbot, services, page, server):
    server.pieces = [f"word{n} " for n in range(2000)]
    server.pause_s = 0.01
    page.composer.set_text("Go on")
    page.composer.send()
    qtbot.waitUntil(lambda: bool(page.controller.partial and "word3" in page.controller.partial.content))
    page.composer._send.click()
    assert not page.controller.busy
    qtbot.waitUntil(lambda: stored(services, page)[1].status == "stopped")
    answer = stored(services, page)[1]
    assert answer.content.startswith("word0 word1")
    qtbot.waitUntil(lambda: server.disconnects == 1)


class HoldAfter(threading.Event):
    """Releases this many items of a stream; the others wait until it is set."""

    def __init__(self, items):
        super().__init__()
        self.items = items

    def wait(self, timeout=None):
        self.items -= 1
        return self.items > 0 or super().wait(timeout)


def test_text_is_saved_while_it_streams(qtbot, services, page, server):
    server.pieces = ["first ", "second ", "third "]
    server.hold = HoldAfter(2)  # the start of the answer and its first chunk
    page.controller.answer._save_timer.setInterval(50)
    page.composer.set_text("Go on")
    page.composer.send()
    qtbot.waitUntil(lambda: [m.content for m in stored(services, page)][1:] == ["first "])
    assert page.controller.busy
    assert stored(services, page)[-1].status == "streaming"
    server.hold.set()
    qtbot.waitUntil(lambda: not page.controller.busy)


def test_an_error_before_the_stream_is_shown_with_what_to_do(qtbot, services, page, server):
    server.error = {
        "message": "The prompt has 2000 tokens.",
        "code": "context_length_exceeded",
        "prompt_tokens": 2000,
    }
    ask(qtbot, page)
    answer = stored(services, page)[1]
    assert answer.status == "error"
    assert answer.facts.error_code == "context_length_exceeded"
    words = [b.text() for b in shown(page)[-1].findChildren(QPushButton)]
    assert words == ["Shorten the question"], "there is nothing before it that could be left out"
    next(b for b in shown(page)[-1].findChildren(QPushButton)).click()
    assert shown(page)[0]._editor is not None


def test_a_dying_runner_keeps_the_partial_answer_and_offers_to_try_again(qtbot, services, page, server):
    server.end_early = True
    ask(qtbot, page)
    answer = stored(services, page)[1]
    assert (answer.status, answer.content) == ("error", "Hello **world**")
    server.end_early = False
    item = shown(page)[-1]
    again = next(b for b in item.findChildren(QPushButton) if b.text() == "Try again")
    again.click()
    qtbot.waitUntil(lambda: len(page.controller.tree) == 3)
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert stored(services, page)[2].status == "complete"


def test_regenerate_makes_a_branch_and_the_switcher_shows_both(qtbot, services, page, server):
    ask(qtbot, page)
    first = page.controller.tree.leaf_id
    server.pieces = ["Another"]
    page.controller.regenerate(first)
    qtbot.waitUntil(lambda: not page.controller.busy)
    second = page.controller.tree.leaf_id
    assert page.controller.tree.siblings(second) == [first, second]
    assert shown(page)[-1].text_view.toPlainText() == "Another"
    page.controller.switch_branch(first)
    assert shown(page)[-1].text_view.toPlainText() == "Hello world"
    qtbot.waitUntil(
        lambda: services.store.submit(conversations.get, page.controller.conversation.id).result().leaf_id == first
    )


def test_editing_a_question_keeps_the_old_branch(qtbot, page, server):
    ask(qtbot, page)
    question = page.controller.tree.path()[0]
    item = page.transcript.item(question.id)
    assert isinstance(item, MessageWidget)
    item.start_edit()
    item._editor.focusProxy().setPlainText("Hi again")
    next(b for b in item.findChildren(QPushButton) if b.text() == "Ask again").click()
    qtbot.waitUntil(lambda: len(page.controller.tree) == 4)
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["Hi again"]
    assert page.controller.tree.siblings(page.controller.tree.path()[0].id)[0] == question.id


def test_continue_goes_on_in_the_same_message(qtbot, services, page, server):
    ask(qtbot, page)
    server.pieces = [", and more"]
    page.controller.continue_answer(page.controller.tree.leaf_id)
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert stored(services, page)[1].content == "Hello **world**, and more"
    assert server.bodies[1]["messages"][-1]["role"] == "assistant"
    assert server.bodies[1]["continue_final_message"] is True


def test_an_answer_that_the_loop_guard_ended_says_so_and_offers_to_continue(qtbot, services, page, server):
    server.runaway = {"choice": 0, "kind": "loop", "passage": "You are not alone.", "times": 58}
    ask(qtbot, page)
    assert server.bodies[0]["loop_guard"] is True
    item = shown(page)[-1]
    assert any("58 times" in text and "You are not alone." in text for text in texts_of(item))
    assert not any("length limit" in text for text in texts_of(item))
    server.runaway, server.pieces = None, [", and more"]
    go_on = next(b for b in item.findChildren(QPushButton) if b.text() == "Continue")
    qtbot.mouseClick(go_on, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(server.bodies) == 2 and not page.controller.busy)
    assert stored(services, page)[1].content == "Hello **world**, and more"
    assert stored(services, page)[1].facts.runaway is None
    assert not any("58 times" in text for text in texts_of(shown(page)[-1]))


def test_an_answer_that_turned_into_noise_says_so(qtbot, page, server):
    server.runaway = {"choice": 0, "kind": "noise", "nats": 9.3}
    ask(qtbot, page)
    assert any("random text" in text for text in texts_of(shown(page)[-1]))


def test_reasoning_is_folded_and_kept(qtbot, services, page, server):
    server.reasoning = ["Let me ", "think"]
    ask(qtbot, page)
    assert stored(services, page)[1].reasoning == "Let me think"
    item = shown(page)[-1]
    assert item._reasoning is not None
    assert not item._reasoning.isVisible()
    fold = next(b for b in item.findChildren(QPushButton) if "Reasoning" in b.text())
    before = item.height()
    fold.click()
    assert item._reasoning.isVisible()
    assert item._reasoning.toPlainText() == "Let me think"
    qtbot.waitUntil(lambda: item.height() > before)


def test_tool_calls_are_cards(qtbot, page, server):
    server.pieces = []
    server.tool_calls = [
        {"index": 0, "id": "c1", "function": {"name": "look_up", "arguments": '{"ci'}},
        {"index": 0, "function": {"arguments": 'ty": "Bern"}'}},
    ]
    ask(qtbot, page)
    message = page.controller.tree.path()[-1]
    assert message.facts.tool_calls == (ToolCall("look_up", '{"city": "Bern"}', "c1"),)
    texts = [view.toPlainText() for view, _ in shown(page)[-1]._views]
    assert any("Bern" in text for text in texts)


def test_the_context_warns_before_it_overflows_and_offers_a_choice(qtbot, page, server):
    server.pieces = ["word " * 400]
    for n in range(3):
        ask(qtbot, page, f"question {n} " + "long " * 100)
    page.composer.set_text("x" * 4000)
    assert page.composer.meter.level == "bad"
    assert page.banner.isVisible()
    server.routes["POST", "/tokenize"] = lambda body: TokenCount(count=len(body["content"]) // 4)
    server.pieces = ["They counted long words."]
    next(b for b in page.banner.findChildren(QPushButton) if b.text() == "Summarize the older part").click()
    qtbot.waitUntil(lambda: "was summarized" in page.banner.text)  # all of it: no summary is being made any more
    assert page.controller.compactor.folds
    page.composer.set_text("short")
    page.composer.send()
    qtbot.waitUntil(lambda: not page.controller.busy)
    sent = next(body for body in reversed(server.bodies) if body["messages"][-1]["content"] == "short")["messages"]
    assert "They counted long words." in sent[0]["content"]
    assert len(sent) < 8
    assert len(page.controller.tree.path()) == 8, "nothing is lost from the transcript"
    key = -page.controller.compactor.folds[0].id
    page.transcript.scroll_to(key)
    qtbot.waitUntil(lambda: isinstance(page.transcript.item(key), FoldItem))
    fold = page.transcript.item(key)
    assert "They counted long words." in fold.text.text()
    fold.fold.click()
    qtbot.waitUntil(lambda: page.transcript.item(page.controller.tree.path()[0].id) is not None)
    assert page.transcript.item(key) is not None, "it stays in sight"
    page.transcript.item(key).undone.emit(-key)
    qtbot.waitUntil(lambda: all(fold.id != -key for fold in page.controller.compactor.folds))
    assert page.transcript.item(key) is None


def test_a_long_chat_is_folded_in_idle_time_aside_and_its_new_beginning_is_read(qtbot, page, server):
    server.routes["POST", "/tokenize"] = lambda body: TokenCount(count=len(body["content"]) // 4)
    server.pieces = ["word " * 150]
    for n in range(3):
        ask(qtbot, page, f"question {n} " + "long " * 50)
    compactor = page.controller.compactor
    assert compactor.folds == []
    compactor._idle.setInterval(10)
    server.pieces = ["They counted long words."]
    compactor.on_answered(page.controller.conversation, page.controller.tree.path(), 900)
    qtbot.waitUntil(lambda: server.bodies[-1].get("max_tokens") == 1)
    assert compactor.folds
    aside = [body for body in server.bodies if body.get("priority") == "side"]
    assert len(aside) == len(compactor.folds) + 1
    assert "They counted long words." in aside[-1]["messages"][0]["content"]


def test_search_finds_and_opens_the_message(qtbot, page, server):
    server.pieces = ["The capital of Assyria was Assur."]
    ask(qtbot, page, "What was the capital?")
    first = page.controller.conversation.id
    page.new_chat()
    page.sidebar._search.setText("assyr")
    qtbot.waitUntil(lambda: page.sidebar.hits_model.rowCount() == 1)
    page.sidebar._on_chosen(page.sidebar.hits_model.index(0, 0))
    qtbot.waitUntil(lambda: page.controller.conversation.id == first)


def test_delete_can_be_undone(qtbot, services, page):
    ask(qtbot, page)
    number = page.controller.conversation.id
    page.sidebar.trash([number])
    qtbot.waitUntil(lambda: page.sidebar.model.rowCount() == 0)
    next(b for b in page.banner.findChildren(QPushButton) if b.text() == "Undo").click()
    qtbot.waitUntil(lambda: page.sidebar.model.rowCount() == 1)


def test_export_and_import_bring_a_chat_back_with_all_branches(qtbot, tmp_path, services, page, server):
    ask(qtbot, page)
    page.controller.regenerate(page.controller.tree.leaf_id)
    qtbot.waitUntil(lambda: not page.controller.busy)
    number = page.controller.conversation.id
    with qtbot.waitSignal(page.import_export.exported):
        page.import_export.export_to(number, tmp_path / "chat.json")
    with qtbot.waitSignal(page.import_export.exported):
        page.import_export.export_to(number, tmp_path / "chat.md")
    assert "Hello **world**" in (tmp_path / "chat.md").read_text()
    for name in ("chat.html", "chat.pdf"):
        with qtbot.waitSignal(page.import_export.exported):
            page.import_export.export_to(number, tmp_path / name)
    written = (tmp_path / "chat.html").read_text()
    assert "Hello <strong>world</strong>" in written
    assert "default-src 'none'" in written
    assert (tmp_path / "chat.pdf").read_bytes().startswith(b"%PDF-")
    with qtbot.waitSignal(page.import_export.failed):
        page.import_export.export_to(number, tmp_path / "no folder" / "chat.pdf")
    with qtbot.waitSignal(page.import_export.imported):
        page.import_export.import_from(tmp_path / "chat.json")
    rows = services.store.submit(conversations.listing).result()
    assert len(rows) == 2
    copy = services.store.submit(messages.of_conversation, rows[0].id).result()
    assert [m.content for m in copy] == ["Hi there", "Hello **world**", "Hello **world**"]
    assert copy[1].parent_id == copy[2].parent_id == copy[0].id


def test_a_second_click_closes_the_panel_that_the_first_one_opened(qtbot, page):
    for name, panel in (("System prompt and sampling", lambda: page.options), ("Tools", lambda: page.tools.panel)):
        button = next(b for b in page.bar.findChildren(IconButton) if b.accessibleName() == name)
        at = button.mapTo(page, QPoint(0, 0))
        for opened in (True, False):
            qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
            assert panel().isVisible() == opened
            QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
            assert button.mapTo(page, QPoint(0, 0)) == at
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert page.tools.panel.isVisible()
    assert not page.options.isVisible(), "one panel at a time"


def test_the_toy_is_offered_only_where_there_is_nothing_else_or_where_it_answers(qtbot, services, page, server):
    def offered(box):
        return [box.itemData(at) for at in range(box.count())]

    assert offered(page.bar.models) == ["spark"]
    server.models[0] = msgspec.structs.replace(server.models[0], default=False)
    server.models.append(ModelRow(id="smol", name="SmolLM2", origin="installed", default=True))
    services.models.refresh()
    qtbot.waitUntil(lambda: len(services.models.choices) == 2)
    assert offered(page.bar.models) == ["spark", "smol"], "this chat's model is the toy"
    page.new_chat()
    qtbot.waitUntil(lambda: page.controller.conversation.model == "smol")
    assert offered(page.bar.models) == ["smol"]
    page.use_model("spark")
    qtbot.waitUntil(lambda: page.bar.models.currentData() == "spark")
    assert page.composer.ready


def test_search_shows_a_chat_once_with_its_date_and_the_number_of_places(qtbot, page):
    for text in ("lighthouse of Skerry", "the lighthouse again"):
        ask(qtbot, page, text)
    page.sidebar._search.setText("lighthouse")
    qtbot.waitUntil(lambda: page.sidebar.hits_model.rowCount() == 1)
    shown_text = page.sidebar.hits_model.item(0).text()
    assert "2 places" in shown_text
    assert str(datetime.now(UTC).astimezone().year) in shown_text
    qtbot.keyClick(page.sidebar._search, Qt.Key.Key_Escape)
    assert page.sidebar._search.text() == ""


def test_icons_follow_the_text_size(qtbot, services, page):
    button = page.bar.findChild(IconButton)
    before = button.iconSize().width()
    services.theme.set("light", 150)
    assert button.iconSize().width() == round(before * 1.5)


def test_the_open_chat_can_be_archived_and_taken_back(qtbot, services, page):
    ask(qtbot, page)
    qtbot.waitUntil(lambda: page.sidebar.model.rowCount() == 1)
    page.sidebar._archive([page.controller.conversation.id], away=True)
    qtbot.waitUntil(lambda: page.banner.isVisible() and "Archived" in page.banner.text)
    (undo,) = [made for made in page.banner.findChildren(QPushButton) if made.text() == "Undo"]
    undo.click()
    qtbot.waitUntil(lambda: not services.store.submit(conversations.listing).result()[0].archived)


def test_the_keyboard_goes_to_the_message_field_when_its_panel_closes(qtbot, page):
    page._toggle_options()
    page.options.prompt.setFocus()
    page._toggle_options()
    qtbot.waitUntil(lambda: page.composer.editor.hasFocus() or not page.isActiveWindow())
    assert page.window().focusWidget() is page.composer.editor


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('{\n  "n": 1\n}', ['{\n  "n": 1\n}']),
        ("[1, 2]\n", ["[1, 2]"]),
        ("{not json}", []),
        ("[1] a footnote", []),
        ('{"a": "```"}', []),
        ("17", []),
    ],
)
def test_an_answer_that_is_json_is_shown_as_code(qtbot, page, server, content, code):
    server.pieces = [content]
    ask(qtbot, page)
    assert [each.code for each in shown(page)[-1].text_view.code] == code
    assert page.controller.tree.path()[-1].content == content
