"""Two models answer one question side by side."""

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton

from app.db import conversations, messages
from app.gui.chat.answer_stats import FactsLine
from app.gui.chat.chat_transcript import PairWidget
from app.gui.chat.page import ChatPage
from engine.api.chat import ModelRow


@pytest.fixture
def page(qtbot, services, server):
    server.models[0] = msgspec.structs.replace(server.models[0], demo=False)
    server.models.append(ModelRow(id="other", name="Other", context_length=2048, capabilities=("chat",)))
    made = ChatPage(services)
    qtbot.addWidget(made)
    made.resize(1000, 700)
    made.show()
    services.models.start()
    qtbot.waitUntil(lambda: len(services.models.choices) == 2)
    qtbot.waitUntil(lambda: made.controller.conversation.model == "spark")
    yield made
    made.controller.stop()
    made.save_draft()
    made.close()


def ask(qtbot, page, text="Hi there"):
    page.composer.set_text(text)
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.controller.busy)


def facts_of(pane):
    """The line with speed and tokens."""
    (line,) = pane.findChildren(FactsLine)
    return line


def pair(page):
    return page.transcript.item(page.controller.tree.leaf_id)


def compare(qtbot, page):
    qtbot.mouseClick(page.bar.compare, Qt.MouseButton.LeftButton)
    assert page.bar.second.isVisible()
    assert page.bar.second.currentData() == "other"


def test_both_models_answer_one_question_and_the_chat_goes_on_from_the_chosen_one(qtbot, services, page, server):
    compare(qtbot, page)
    ask(qtbot, page)
    assert [body["model"] for body in server.bodies] == ["spark", "other"]
    assert server.bodies[0]["messages"] == server.bodies[1]["messages"]
    question, first, second = services.store.submit(
        messages.of_conversation, page.controller.conversation.id
    ).result()
    assert (first.model, second.model) == ("spark", "other")
    assert first.parent_id == second.parent_id == question.id
    assert (first.status, second.status) == ("complete", "complete")
    assert page.controller.conversation.model == "spark", "the second model is asked, not switched to"

    shown = pair(page)
    assert isinstance(shown, PairWidget)
    for message in (first, second):
        assert shown.pane(message.id).text_view.toPlainText() == "Hello world"
    assert shown.pane(first.id).x() < shown.pane(second.id).mapTo(shown, shown.rect().topLeft()).x()
    assert shown.pane(second.id).mapTo(shown, shown.pane(second.id).rect().bottomLeft()).y() <= shown.height()

    heights = {facts_of(shown.pane(message.id)).height() for message in (first, second)}
    assert len(heights) == 1, "the facts of both stand on one line each"
    assert max(heights) < 2 * shown.fontMetrics().height()

    go_on = next(b for b in shown.findChildren(QPushButton) if b.text() == "Continue from here")
    qtbot.mouseClick(go_on, Qt.MouseButton.LeftButton)
    assert page.controller.tree.leaf_id == first.id
    server.pieces = ["More"]
    ask(qtbot, page, "And then?")
    assert server.bodies[2]["messages"][1]["content"] == "Hello **world**"
    path = page.controller.tree.path()
    assert [m.model for m in path if m.role == "assistant"] == ["spark", "other"]


def test_the_second_waits_for_the_first_and_says_so(qtbot, page, server):
    compare(qtbot, page)
    server.hold.clear()
    page.composer.set_text("Hi")
    page.composer.send()
    qtbot.waitUntil(lambda: isinstance(pair(page), PairWidget))
    assert any("Waits for the first answer" in made.text() for made in pair(page).findChildren(QLabel))
    assert len(server.bodies) <= 1
    page.composer.set_text("typed meanwhile")
    server.hold.set()
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert len(server.bodies) == 2
    assert page.composer.text == "typed meanwhile"


def test_stopping_the_first_asks_no_second(qtbot, page, server):
    compare(qtbot, page)
    server.hold.clear()
    page.composer.set_text("Hi")
    page.composer.send()
    qtbot.waitUntil(lambda: page.controller.answering_id != 0)
    page.controller.stop()
    server.hold.set()
    assert not page.controller.busy
    assert len(server.bodies) <= 1
    assert page.controller.tree.path()[-1].status == "stopped"


def test_without_a_second_model_there_is_nothing_to_compare(qtbot, services, page, server):
    compare(qtbot, page)
    server.models.pop()
    services.models.refresh()
    qtbot.waitUntil(lambda: not page.bar.compare.isEnabled())
    assert page.controller.second_model == ""
    assert not page.bar.second.isVisible()


def test_a_chat_without_a_model_gets_the_one_of_the_chat_before_not_the_second_of_a_comparison(
    qtbot, services, page, server
):
    """The comparison leaves its second model loaded, which makes it the server's default."""
    compare(qtbot, page)
    ask(qtbot, page)
    first, second = server.models
    server.models[:] = [
        msgspec.structs.replace(first, default=False),
        msgspec.structs.replace(second, default=True, state="loaded"),
    ]
    services.models.refresh()
    qtbot.waitUntil(lambda: services.models.default == "other")
    imported = services.store.submit(conversations.create, title="Imported").result()
    services.store.submit(messages.add, imported.id, None, "user", "Hello").result()
    page.open(imported.id)
    qtbot.waitUntil(lambda: page.controller.conversation.id == imported.id)
    qtbot.waitUntil(lambda: bool(page.controller.conversation.model))
    assert page.controller.conversation.model == "spark"
