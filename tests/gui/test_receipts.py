"""Receipts in the window: requested in a chat's options, copied from the answer's menu."""

import json

from PySide6.QtGui import QGuiApplication

from app.answer_facts import facts_of
from app.db.records import Message
from app.gui.chat.message_widget import MessageWidget
from app.gui.chat.option_fields import OutputOptions
from app.gui.chat.request import branch_body

RECEIPT = {
    "version": 1, "model": "m", "plan": {}, "asked": {}, "format": {}, "route": "chat", "body": {},
    "parts": dict.fromkeys(("file", "template", "plan", "adapters", "engine", "kernels", "driver", "device"), "0"),
    "answer": {"num_chars": 1, "sha256": "0"},
}  # fmt: skip


def test_the_option_asks_for_a_deterministic_answer_with_a_receipt(qtbot):
    options = OutputOptions()
    qtbot.addWidget(options)
    assert "receipt" not in options.own
    with qtbot.waitSignal(options.changed):
        options.receipt.setChecked(True)
    body = branch_body("m", [], sampling=options.own)
    assert (body["deterministic"], body["receipt"]) == (True, True)
    other = OutputOptions()
    qtbot.addWidget(other)
    other.show_values(options.own)
    assert other.receipt.isChecked()


def answer(theme, qtbot, **facts):
    message = Message(
        id=2, conversation_id=1, parent_id=1, role="assistant", content="a", reasoning="", status="complete",
        model="m", facts=facts_of(facts), created_s=0.0,
    )  # fmt: skip
    widget = MessageWidget(theme, message, [2], last=True, title="m")
    qtbot.addWidget(widget)
    return widget


def entries(widget):
    menu = widget.more()
    found = {action.text(): action for action in menu.actions()}
    return menu, found


def test_an_answer_with_a_receipt_offers_it(theme, qtbot):
    menu, found = entries(answer(theme, qtbot, receipt=RECEIPT))
    found["Copy the receipt"].trigger()
    assert json.loads(QGuiApplication.clipboard().text()) == RECEIPT
    menu.deleteLater()


def test_an_answer_without_one_does_not(theme, qtbot):
    menu, found = entries(answer(theme, qtbot))
    assert "Copy the receipt" not in found
    menu.deleteLater()
