"""A message that the user is editing keeps its editor and its text, whatever happens to the chat meanwhile."""

from itertools import pairwise

import pytest
from PySide6.QtWidgets import QLineEdit, QPushButton

from app.gui.widgets.virtual_list import Column, ColumnItem
from tests.gui.hands import ask, press, shown, stored


def words(page):
    return [message.content for message in page.controller.tree.path()]


def begin_long_answer(qtbot, page, server, question="Go on"):
    """Send a question whose answer runs until it is stopped."""
    server.pieces = [f"word{n} " for n in range(2000)]
    server.pause_s = 0.01
    page.composer.set_text(question)
    page.composer.send()
    qtbot.waitUntil(lambda: bool(page.controller.partial and "word3" in page.controller.partial.content))


def edit(page, position, text):
    """Open the editor of a message that is shown and write a text."""
    item = shown(page)[position]
    item.start_edit()
    item._editor._text.setPlainText(text)
    return item


def test_a_question_that_is_edited_while_its_answer_runs_is_asked_instead(qtbot, services, page, server):
    begin_long_answer(qtbot, page, server)
    item = edit(page, 0, "What I meant")
    server.pieces, server.pause_s = ["Right."], 0
    press(item, "Ask again")
    qtbot.waitUntil(lambda: words(page) == ["What I meant", "Right."] and not page.controller.busy)
    assert [m.status for m in stored(services, page) if m.content.startswith("word0")] == ["stopped"]


def test_messages_that_wait_are_not_sent_before_the_edited_one(qtbot, page, server):
    begin_long_answer(qtbot, page, server)
    page.composer.set_text("And then?")
    page.composer.send()
    item = edit(page, 0, "What I meant")
    server.pieces, server.pause_s = ["Right."], 0
    press(item, "Ask again")
    qtbot.waitUntil(lambda: words(page) == ["What I meant", "Right."] and not page.controller.busy)
    assert page.composer.text == "And then?"


def test_a_message_is_deleted_while_its_answer_runs(qtbot, page, server):
    ask(qtbot, page, "First")
    begin_long_answer(qtbot, page, server)
    page.message_actions._confirm_removal(page.controller.tree.path()[2].id)
    press(page.banner, "Delete")
    qtbot.waitUntil(lambda: words(page) == ["First", "Hello **world**"] and not page.controller.busy)


def test_an_earlier_answer_is_rewritten_while_another_one_runs(qtbot, services, page, server):
    ask(qtbot, page, "First")
    begin_long_answer(qtbot, page, server)
    press(edit(page, 1, "My own words"), "Save")
    assert page.controller.busy, "the running answer goes on"
    qtbot.waitUntil(lambda: [m.content for m in stored(services, page)][1] == "My own words")
    assert shown(page)[1].text_view.toPlainText() == "My own words"
    page.stop()


@pytest.mark.parametrize("comparing", [False, True])
def test_the_next_question_does_not_close_the_editor_of_an_answer(qtbot, page, server, comparing):
    ask(qtbot, page, "First")
    edit(page, 1, "My own words")
    if comparing:
        page.transcript.pair_with("other")
        page.transcript.pair_with("")
    ask(qtbot, page, "Second")
    item = shown(page)[1]
    assert item._editor._text.toPlainText() == "My own words"
    assert [b for b in item.findChildren(QPushButton) if b.text() == "Save"]
    press(item, "Save")
    qtbot.waitUntil(lambda: words(page)[1] == "My own words")
    assert shown(page)[1]._editor is None
    assert shown(page)[1].text_view.toPlainText() == "My own words"


def test_an_answer_that_is_continued_is_not_edited_any_more(qtbot, page, server):
    ask(qtbot, page, "First")
    edit(page, 1, "My own words")
    page.controller.continue_answer(page.controller.tree.leaf_id)
    qtbot.waitUntil(lambda: words(page)[1] == "Hello **world**Hello **world**" and not page.controller.busy)
    assert shown(page)[1]._editor is None


def test_an_open_editor_survives_scrolling_and_a_new_list_of_messages(qtbot, page, server):
    server.pieces = ["line\n\n" * 60]
    for number in range(3):
        ask(qtbot, page, f"Question {number}")
    first = page.controller.tree.path()[0].id
    page.transcript.scroll_to(first)
    qtbot.waitUntil(lambda: page.transcript.item(first) is not None)
    editor = page.transcript.item(first)
    editor.start_edit()
    editor._editor._text.setPlainText("What I meant")
    page.composer.editor.setFocus()
    page.transcript.scroll_to_end()
    page.controller.compactor.changed.emit()
    assert page.transcript.item(first) is editor
    assert not editor.geometry().intersects(page.transcript.viewport().rect()), "above what is seen"
    page.transcript.scroll_to(first)
    assert editor._editor._text.toPlainText() == "What I meant"


class Row(ColumnItem):
    def __init__(self):
        super().__init__()
        self.part = QLineEdit(self)

    def fit(self, width):
        return 300


def test_an_item_with_the_focus_moves_out_of_sight_with_its_neighbours(qtbot):
    column = Column(lambda _: Row(), lambda _: 300)
    qtbot.addWidget(column)
    column.resize(500, 600)
    column.show()
    column.set_keys(range(50))
    column.scroll_to(0)
    focused = column.item(0)
    focused.part.setFocus()
    qtbot.waitUntil(lambda: column.focusWidget() is focused.part)
    column.scroll_to_end()
    assert column.item(0) is focused
    tops = [column.item(key).y() for key in range(50) if column.item(key) is not None]
    assert all(below > above for above, below in pairwise(tops))
    assert focused.geometry().bottom() < 0
