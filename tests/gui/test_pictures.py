"""Images in a chat and models without vision: no image blocks the answers of its chat."""

import pytest
from PySide6.QtWidgets import QPushButton

from app.db.records import Attachment
from app.gui.code.page import CodePage
from engine.api.chat import ModelRow
from tests.gui.hands import ask

PICTURE = Attachment("pic.png", "image/png", data=b"\x89PNG picture")
WITH_VISION = ModelRow(id="seer", name="Seer", context_length=1024, capabilities=("chat", "vision"), origin="user")
ELSEWHERE = ModelRow(id="far", name="Far", context_length=1024, capabilities=("chat",), origin="remote")


def send(qtbot, page, text, *attachments):
    page.composer.attachments = list(attachments)
    page.composer._show_chips()
    ask(qtbot, page, text)


def images(server):
    """The images of the last request, and all its text."""
    parts = [
        part
        for message in server.bodies[-1]["messages"]
        for part in (
            [{"type": "text", "text": message["content"]}]
            if isinstance(message["content"], str)
            else message["content"]
        )
    ]
    return (
        sum(part["type"] == "image_url" for part in parts),
        "\n".join(part["text"] for part in parts if "text" in part),
    )


@pytest.fixture
def offered(page, server, services, qtbot):
    server.models = [*server.models, WITH_VISION, ELSEWHERE]
    services.models.refresh()
    qtbot.waitUntil(lambda: len(services.models.choices) == 3)
    return page


def test_a_model_of_text_only_is_told_of_a_picture_and_answers(qtbot, offered, server):
    page = offered
    page.composer.attachments = [PICTURE]
    page.composer._show_chips()
    assert "cannot see" in page.composer._chips.findChildren(type(page.composer._hint))[0].text()
    send(qtbot, page, "What is this?", PICTURE)
    assert images(server) == (0, "[pic.png: a picture, which this model cannot see]\n\nWhat is this?")
    assert "Spark (demo) cannot see images" in page.banner.text
    assert "pic.png" in page.banner.text
    send(qtbot, page, "And now?")
    assert images(server)[0] == 0
    assert page.controller.tree.path()[-1].status == "complete"


def test_after_a_change_of_models_each_gets_what_it_can_take(qtbot, offered, server):
    page = offered
    page.controller.change(model="seer")
    send(qtbot, page, "What is this?", PICTURE)
    assert images(server) == (1, "What is this?")
    page.controller.change(model="spark")
    send(qtbot, page, "Say more")
    assert images(server)[0] == 0
    question = page.controller.tree.path()[0].id
    page.controller.edit(question, "What is that?")
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert images(server) == (0, "[pic.png: a picture, which this model cannot see]\n\nWhat is that?")
    page.controller.change(model="seer")
    page.controller.edit(page.controller.tree.path()[0].id, "What, then?")
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert images(server) == (1, "What, then?")
    page.controller.change(model="far")  # the capabilities of another server's model may be unknown
    page.controller.edit(page.controller.tree.path()[0].id, "And there?")
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert images(server)[0] == 1


def test_a_picture_that_is_refused_can_be_left_out_and_stays_out(qtbot, offered, server):
    page = offered
    page.controller.change(model="seer")
    server.error = {
        "message": "WebP images cannot be decoded here",
        "code": "invalid_request",
        "param": "messages",
    }
    send(qtbot, page, "What is this?", PICTURE)
    leaf = page.controller.tree.leaf_id
    assert page.controller.tree.path()[-1].status == "error"
    server.error = None
    widget = page.transcript.item(leaf)
    button = next(b for b in widget.findChildren(QPushButton) if b.text() == "Answer without the images")
    button.click()
    qtbot.waitUntil(lambda: not page.controller.busy)
    expected = "[pic.png: a picture, which could not be read]\n\nWhat is this?"
    assert images(server) == (0, expected)
    assert page.controller.tree.path()[-1].status == "complete"
    send(qtbot, page, "And now?")
    assert images(server)[0] == 0
    send(qtbot, page, "This one?", Attachment("good.png", "image/png", data=b"\x89PNG good"))
    assert images(server)[0] == 1, "only the refused one is left out"


def test_other_errors_offer_nothing_about_pictures(qtbot, offered, server):
    page = offered
    server.error = {"message": "no", "code": "invalid_request"}
    send(qtbot, page, "Hello")
    widget = page.transcript.item(page.controller.tree.leaf_id)
    assert "Answer without the images" not in [b.text() for b in widget.findChildren(QPushButton)]


def test_the_code_page_says_that_it_reads_no_pictures(qtbot, services, server):
    page = CodePage(services)
    qtbot.addWidget(page)
    page.composer.sent.emit("", (PICTURE,))
    assert "Images are not supported here: pic.png" in page.banner.text
    assert server.bodies == []
    page.controller.close_project()
