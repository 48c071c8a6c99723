"""The chat's sampling: the model's recommendation, the chat's own values, values kept for the model."""

import msgspec

from app.db import conversations
from engine.api.models import EffectiveValue, ModelSampling
from tests.gui.hands import ask


def test_a_chat_follows_the_models_recommendation_until_it_has_its_own(qtbot, services, page, server):
    told = {
        "temperature": EffectiveValue(value=0.6, source="model_card"),
        "top_k": EffectiveValue(value=20, source="model_card"),
    }
    server.models[0] = msgspec.structs.replace(server.models[0], sampling=told)
    services.models.refresh()
    panel = page.options.sampling
    qtbot.waitUntil(lambda: panel.fields["temperature"].value() == 0.6)
    assert panel.states["temperature"].text() == "The model's card"
    assert panel.states["repeat_penalty"].text() == "Off"
    assert not panel.all.isEnabled()
    ask(qtbot, page)
    assert not {"temperature", "top_p", "min_p", "top_k", "repeat_penalty"} & set(server.bodies[-1])

    page.options.show()
    panel.fields["temperature"].setValue(0.3)
    qtbot.waitUntil(lambda: page.controller.conversation.sampling.get("temperature") == 0.3)
    assert panel.states["temperature"].text() == "Set for this chat; otherwise 0.6 (The model's card)"
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
    page.options.show()
    field = page.options.sampling.fields["temperature"]
    field.setFocus()
    field.selectAll()
    qtbot.keyClicks(field, "0.30")
    assert field.cleanText() == "0.30"
    services.models.changed.emit()  # before what was typed has reached the chat
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
    page.options.show()
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
