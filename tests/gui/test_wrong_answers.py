"""A device proves to be wrong: the window marks the answers that may be affected, and generates them again."""

import time

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton

from engine.api.machine import CanaryState, WrongAnswers
from tests.gui.hands import ask


def found(page, since, until, model=""):
    last = page.controller.tree.path()[-1]
    return CanaryState(
        found=(
            WrongAnswers(
                model=model or last.model, since=since, found_at=until, reason="rows differ", devices=("Vulkan0",)
            ),
        )
    )


def settled(qtbot, page):
    """Wait until the page has the server's response: the next background task ends after it."""
    done = []
    page._services.background.run(page._services.api.canary, done.append, done.append, page)
    qtbot.waitUntil(lambda: bool(done))


def test_the_open_chat_offers_to_answer_again(qtbot, page, server):
    ask(qtbot, page)
    given = page.controller.tree.path()[-1].created_s
    server.routes["GET", "/tessera/v1/canary"] = found(page, given - 100, given)
    page.wrong_answers._begun_s = given - 200
    page.wrong_answers.look()
    qtbot.waitUntil(page.banner.isVisible)
    assert "Vulkan0 gave other results than the CPU" in page.banner.accessibleName()
    (again,) = [made for made in page.banner.findChildren(QPushButton) if made.text() == "Answer again"]
    qtbot.mouseClick(again, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(server.bodies) == 2 and not page.controller.busy)
    assert server.bodies[1]["messages"] == server.bodies[0]["messages"]
    asked = len(server.requests)
    page.wrong_answers.look()
    qtbot.waitUntil(lambda: len(server.requests) > asked)
    settled(qtbot, page)
    assert not page.banner.isVisible()  # the new answer is from after the fault was found


def test_an_earlier_answer_has_a_line_also_when_its_chat_is_opened_again(qtbot, page, server):
    ask(qtbot, page)
    first = page.controller.tree.path()[-1]
    ask(qtbot, page)
    second = page.controller.tree.path()[-1]
    server.routes["GET", "/tessera/v1/canary"] = found(page, first.created_s - 100, first.created_s)

    def lines(message):
        pane = page.transcript.pane(message.id)
        return [] if pane is None else [made.text() for made in pane.findChildren(QLabel)]

    line = "This answer may be wrong: Vulkan0 gave other results than the CPU."
    assert line not in lines(first)
    page.wrong_answers.look()
    qtbot.waitUntil(lambda: line in lines(first))
    assert line not in lines(second)
    chat = page.controller.conversation.id
    page.new_chat()
    qtbot.waitUntil(lambda: page.controller.conversation.id != chat)
    page.open(chat)
    qtbot.waitUntil(lambda: line in lines(first))
    assert line not in lines(second)


def test_other_chats_are_named_once_and_other_models_not_at_all(qtbot, page, server):
    ask(qtbot, page)
    now = time.time()
    server.routes["GET", "/tessera/v1/canary"] = found(page, now + 5, now + 9)
    page.wrong_answers.look()
    qtbot.waitUntil(page.banner.isVisible)
    assert "Open their chats to answer again" in page.banner.accessibleName()
    page.banner.hide()
    asked = len(server.requests)
    page.wrong_answers.look()
    qtbot.waitUntil(lambda: len(server.requests) > asked)
    settled(qtbot, page)
    assert not page.banner.isVisible()
