"""A chat's sampling: the model's recommendation, the chat's own values, and values stored for the model."""

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel

from app.db import conversations
from app.gui.chat.option_fields import KNOBS
from app.gui.chat.options import ChatOptions
from engine.api.models import EffectiveValue, ModelSampling
from tests.gui.hands import ask


def open_advanced(qtbot, page):
    page.options.show()
    if not page.options.advanced.is_open:
        qtbot.mouseClick(page.options.advanced.heading, Qt.MouseButton.LeftButton)


def test_a_chat_follows_the_models_recommendation_until_it_has_its_own(qtbot, services, page, server):
    told = {
        "temperature": EffectiveValue(value=0.6, source="model_card"),
        "top_k": EffectiveValue(value=20, source="model_card"),
    }
    server.models[0] = msgspec.structs.replace(server.models[0], sampling=told)
    services.models.refresh()
    panel = page.options.sampling
    qtbot.waitUntil(lambda: panel.fields["temperature"].value() == 0.6)
    assert panel.states["temperature"].text() == "0 to 2 · Default: 0.6 (The model's card)"
    assert panel.states["repeat_penalty"].text() == "0.5 to 2 · Default: 1 (Off)"
    assert not page.options.reset.isEnabled()
    ask(qtbot, page)
    assert not {"temperature", "top_p", "min_p", "top_k", "repeat_penalty"} & set(server.bodies[-1])

    page.options.show()
    panel.fields["temperature"].setValue(0.3)
    qtbot.waitUntil(lambda: page.controller.conversation.sampling.get("temperature") == 0.3)
    assert panel.states["temperature"].text() == "0 to 2 · Default: 0.6 (The model's card)"
    assert panel.resets["temperature"].isEnabled()
    assert not panel.resets["top_k"].isEnabled()
    assert page.options.advanced.heading.text() == "Advanced · 1 set"
    ask(qtbot, page, "And now?")
    assert server.bodies[-1]["temperature"] == 0.3
    assert "top_k" not in server.bodies[-1]

    panel.resets["temperature"].click()
    qtbot.waitUntil(lambda: "temperature" not in page.controller.conversation.sampling)
    assert panel.fields["temperature"].value() == 0.6
    ask(qtbot, page, "Again?")
    assert "temperature" not in server.bodies[-1]


def test_what_is_typed_is_not_written_anew_under_the_hands_nor_lost_to_a_look_at_the_models(
    qtbot, services, page, server
):
    open_advanced(qtbot, page)
    field = page.options.sampling.fields["temperature"]
    field.setFocus()
    field.selectAll()
    qtbot.keyClicks(field, "0.30")
    assert field.cleanText() == "0.30"
    services.models.changed.emit()  # before the typed text has reached the chat
    assert field.value() == 0.3
    qtbot.waitUntil(lambda: page.controller.conversation.sampling.get("temperature") == 0.3)


def test_values_are_kept_for_the_model(qtbot, services, page, server):
    sent = []
    path = "/tessera/v1/models/spark/sampling"
    server.routes["GET", path] = ModelSampling(id="spark", user={"top_k": 5})
    server.routes["PUT", path] = lambda body: sent.append(body) or server.routes["GET", path]
    panel = page.options.sampling
    panel.fields["temperature"].setValue(0.25)
    panel.keep.click()
    qtbot.waitUntil(lambda: bool(sent))
    assert sent == [{"values": {"top_k": 5, "temperature": 0.25}}]
    qtbot.waitUntil(lambda: not panel.own)


def test_the_reasoning_budget_is_offered_where_the_model_reasons_and_is_sent(qtbot, services, page, server):
    output = page.options.output
    open_advanced(qtbot, page)
    assert not output.reasoning.isVisible()
    server.models[0] = msgspec.structs.replace(server.models[0], capabilities=("chat", "reasoning"))
    services.models.refresh()
    qtbot.waitUntil(output.reasoning.isVisible)
    ask(qtbot, page)
    assert not {"thinking_budget", "enable_thinking"} & set(server.bodies[-1])
    output.reasoning.setValue(3)
    qtbot.waitUntil(lambda: page.controller.conversation.sampling.get("thinking_budget") == 512)
    ask(qtbot, page, "And now?")
    assert server.bodies[-1]["thinking_budget"] == 512
    output.reasoning.setValue(1)
    qtbot.waitUntil(lambda: page.controller.conversation.sampling.get("thinking_budget") == 0)
    ask(qtbot, page, "Again?")
    assert server.bodies[-1]["enable_thinking"] is False


def test_what_was_just_set_holds_for_the_question_that_follows_at_once(qtbot, page, server):
    page.options.show()
    page.options.sampling.fields["temperature"].setValue(0.3)
    ask(qtbot, page)
    assert server.bodies[-1]["temperature"] == 0.3


def test_what_was_just_set_stays_with_its_chat_when_another_is_begun(qtbot, services, page):
    page.options.show()
    ask(qtbot, page)
    number = page.controller.conversation.id
    page.options.prompt.setPlainText("Be short.")
    page.new_chat()
    assert page.controller.conversation.system_prompt == ""
    assert services.store.submit(conversations.get, number).result().system_prompt == "Be short."
    qtbot.wait(700)
    assert page.controller.conversation.system_prompt == ""


def test_creativity_has_three_steps_around_what_the_model_recommends(qtbot, services, page, server):
    told = {"temperature": EffectiveValue(value=0.6, source="model_card")}
    server.models[0] = msgspec.structs.replace(server.models[0], sampling=told)
    services.models.refresh()
    page.options.show()
    options, steps = page.options, page.options.creativity.steps
    qtbot.waitUntil(lambda: options.sampling.fields["temperature"].value() == 0.6)
    assert steps.value() == 1
    for key, name, temperature in (
        (Qt.Key.Key_Home, "Precise", 0.2),
        (Qt.Key.Key_End, "Creative", 1.2),
        (Qt.Key.Key_Left, "Balanced", None),
    ):
        steps.setFocus()
        qtbot.keyClick(steps, key)
        qtbot.waitUntil(lambda t=temperature: page.controller.conversation.sampling.get("temperature") == t)
        assert steps.accessibleDescription() == name
    options.sampling.fields["temperature"].setValue(1.5)
    assert (steps.value(), steps.accessibleDescription()) == (2, "Temperature 1.5")
    qtbot.waitUntil(lambda: page.controller.conversation.sampling.get("temperature") == 1.5)
    ask(qtbot, page)
    assert server.bodies[-1]["temperature"] == 1.5


@pytest.mark.parametrize("usual", [0, 0.1, 0.2, 1, 1.2, 1.8])
def test_precise_is_below_and_creative_above_whatever_is_recommended(qtbot, services, usual):
    options = ChatOptions(services)
    qtbot.addWidget(options)
    options.creativity.show_value(None, usual)
    precise, _, creative = options.creativity._temperatures
    assert 0 <= precise <= usual < creative <= 2


def test_options_are_folded_until_wanted_and_stay_as_left(qtbot, services, page):
    page.options.show()
    assert page.options.prompt.isVisible()
    assert page.options.documents.isVisible()
    assert page.options.creativity.isVisible()
    assert not page.options.limit.isVisible()
    open_advanced(qtbot, page)
    assert page.options.limit.isVisible()
    another = ChatOptions(services)
    qtbot.addWidget(another)
    another.show()
    assert another.advanced.is_open
    assert another.limit.isVisible()
    qtbot.mouseClick(another.advanced.heading, Qt.MouseButton.LeftButton)
    assert not another.limit.isVisible()
    third = ChatOptions(services)
    qtbot.addWidget(third)
    assert not third.advanced.is_open


def test_every_advanced_option_says_its_range_and_default_and_one_button_resets_all(qtbot, services, page):
    open_advanced(qtbot, page)
    options = page.options
    said = [each.text() for each in options.findChildren(QLabel) if each.isVisible()]
    # max tokens, seed, stops, schema, receipt
    assert sum("Default:" in text for text in said) == len(KNOBS) + 5, said
    options.sampling.fields["frequency_penalty"].setValue(0.5)
    options.limit.setValue(48)
    options.output.seed.setText("7")
    options.output.stops.setPlainText("END")
    options.output.schema.setPlainText("{}")
    options.output.receipt.setChecked(True)
    qtbot.waitUntil(lambda: len(page.controller.conversation.sampling) == 6)
    assert options.advanced.heading.text() == "Advanced · 6 set"
    options.prompt.setPlainText("Be short.")
    options.reset.click()
    usual = {"max_tokens": services.settings.now["chat.max_tokens"]}
    qtbot.waitUntil(lambda: page.controller.conversation.sampling == usual)
    assert options.limit.text() == "No limit"
    assert not options.output.own
    assert options.advanced.heading.text() == "Advanced"
    assert not options.reset.isEnabled()
    assert page.controller.conversation.system_prompt == "Be short."
