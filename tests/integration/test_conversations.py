"""/v1/conversations with the official client."""

import httpx2
import pytest

from tests.support.late import openai


@pytest.fixture
def client(qwen):
    with openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def texts(client, conversation):
    return [i.content[0].text for i in client.conversations.items.list(conversation, order="asc")]


def test_answers_go_on_from_a_conversation_and_add_to_it(qwen, client):
    made = client.conversations.create(
        metadata={"topic": "names"},
        items=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "I am Ada."}]}],
    )
    qwen.say("Hello", " Ada.")
    first = client.responses.create(model="spark", conversation=made.id, input="Hi", store=False)
    assert first.conversation.id == made.id
    assert "I am Ada." in qwen.prompts()[-1]
    qwen.say("Ada.")
    with client.responses.stream(model="spark", conversation=made.id, input="Who am I?") as stream:
        stream.until_done()
    assert "Hello Ada." in qwen.prompts()[-1]
    assert texts(client, made.id) == ["I am Ada.", "Hi", "Hello Ada.", "Who am I?", "Ada."]


def test_conversations_are_changed_read_and_forgotten(qwen, client):
    made = client.conversations.create()
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
    added = client.conversations.items.create(made.id, items=[said, said])
    one, two = (item.id for item in added.data)
    assert client.conversations.items.retrieve(one, conversation_id=made.id).content[0].text == "x"
    client.conversations.items.delete(one, conversation_id=made.id)
    assert [i.id for i in client.conversations.items.list(made.id)] == [two]
    for ask in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError, match="There is no item 'item_x' in this conversation") as caught:
            ask("item_x", conversation_id=made.id)
        assert caught.value.code == "item_not_found"
    assert client.conversations.retrieve(made.id).metadata == {"a": "b"}
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="spark", conversation=made.id, input="Hi")
    assert qwen.asked() == []


def test_items_may_hold_numbers_of_any_size(qwen, client):
    huge = 10**30
    said = {"type": "message", "role": "user", "x": huge, "content": [{"type": "input_text", "text": "x"}]}
    made = client.conversations.create(items=[said])
    assert texts(client, made.id) == ["x"]
    qwen.say("Yes.")
    client.responses.create(model="spark", input=[said])  # also stored


def test_items_are_listed_in_the_form_of_openais_document(qwen):
    qwen.say("Hello.")
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    with httpx2.Client(base_url=f"{qwen.url}/v1", timeout=60) as http:
        talk = http.post("/conversations", json={"items": said}).json()["id"]
        answer = http.post("/responses", json={"model": "spark", "input": said, "max_output_tokens": 9}).json()
        asked = http.get(f"/responses/{answer['id']}/input_items").json()["data"]
        kept = http.get(f"/conversations/{talk}/items").json()["data"]
    for listed in (kept, asked):
        for item, kind in zip(listed, ("output_text", "input_text"), strict=True):
            assert (item["type"], item["status"], item["content"][0]["type"]) == ("message", "completed", kind)
            assert item["id"]


BIG = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 60_000}]}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("engine.server.response_store.conversations.MAX_BYTES", 100_000)
    monkeypatch.setattr("engine.server.response_store.responses.MAX_BYTES", 100_000)


def test_a_conversation_is_bounded_in_all_that_it_holds(qwen, client, small):
    made = client.conversations.create(items=[BIG])
    with pytest.raises(openai.BadRequestError, match="limit is 0 MiB") as refused:
        client.conversations.items.create(made.id, items=[BIG])
    assert refused.value.code == "conversation_full"
    with pytest.raises(openai.BadRequestError, match="Start another conversation"):
        client.responses.create(model="spark", conversation=made.id, input="x" * 60_000)
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.conversations.create(items=[BIG, BIG])
    many = [{"type": "message", "role": "user", "content": "x"}] * 900  # small in JSON, large in memory
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.conversations.items.create(made.id, items=many)
    (item,) = client.conversations.items.list(made.id).data
    client.conversations.items.delete(item.id, conversation_id=made.id)
    client.conversations.items.create(made.id, items=[BIG])
    assert qwen.asked() == []
    other = client.conversations.create(items=[BIG])  # the oldest one is evicted
    assert len(client.conversations.items.list(other.id).data) == 1
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_labels_are_as_large_as_openai_allows(qwen, client):
    fits = {f"{n}".ljust(64, "k"): "v" * 512 for n in range(16)}
    made = client.conversations.create(metadata=fits)
    assert client.conversations.update(made.id, metadata=fits).metadata == fits
    for wrong in ({"a": "v" * 513}, {"k" * 65: "v"}, {str(n): "v" for n in range(17)}):
        for ask in (
            lambda wrong=wrong: client.conversations.create(metadata=wrong),
            lambda wrong=wrong: client.conversations.update(made.id, metadata=wrong),
            lambda wrong=wrong: client.responses.create(model="spark", input="Hi", metadata=wrong),
            lambda wrong=wrong: client.vector_stores.create(metadata=wrong),
        ):
            with pytest.raises(openai.BadRequestError, match="metadata"):
                ask()
    assert qwen.asked() == []
