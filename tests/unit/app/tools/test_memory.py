"""The memory: the owner of each stored fact, the facts sent with a question, and facts saved without consent."""

import json

import pytest

from app.answer_facts import AnswerFacts
from app.db import conversations, memories
from app.db.memories import MAX_MEMORY_CHARS, MemoryRefused
from app.db.records import Conversation, Memory, Message
from app.db.store import Store, open_in_memory
from app.gui.chat.chat_export import to_json
from app.tools.consent import ConsentStore, ToolConsent
from app.tools.memory import MAX_RECALLED_CHARS, MemoryTool, memory_prompt, recalled, saves_without_asking
from app.tools.toolset import Toolset


@pytest.fixture
def store():
    made = Store(open_in_memory())
    yield made
    made.close()


def no_model(_texts, _kind):
    return None


def many():
    rows = [Memory(n, f"Fact {n} is about {'trains' if n == 50 else 'ships'}. {'x' * 80}") for n in range(100)]
    assert sum(len(row.text) for row in rows) > MAX_RECALLED_CHARS
    return rows


def test_facts_are_for_everywhere_or_for_one_project_and_go_with_it(store):
    project = store.submit(conversations.create_folder, "lamps").result()
    tool = MemoryTool(store, project.id)
    assert tool.call("remember", {"fact": "Likes  tea\n"}).text == "Remembered: Likes tea"
    assert tool.call("remember", {"fact": "The lamp is 50 m high", "only_this_project": True}).ok
    assert tool.call("remember", {"fact": "likes TEA"}).text == "Remembered: Likes tea", "known already"
    assert [m.text for m in tool.found("?", no_model)] == ["The lamp is 50 m high", "Likes tea"]
    elsewhere = MemoryTool(store, None)
    assert [m.text for m in elsewhere.found("?", no_model)] == ["Likes tea"]
    assert "only_this_project" not in elsewhere.specs[0].parameters["properties"]
    (tea,) = elsewhere.found("?", no_model)
    store.submit(memories.change_memory, tea.id, "Likes coffee", None).result()
    store.submit(conversations.remove_folder, project.id).result()
    assert [m.text for m in store.submit(memories.memories).result()] == ["Likes coffee"]
    store.submit(memories.remove_memory, tea.id).result()
    assert store.submit(memories.memories).result() == []


@pytest.mark.parametrize("fact", ["", "  \n", "x" * (MAX_MEMORY_CHARS + 1), None, 7])
def test_what_is_no_fact_is_refused(store, fact):
    assert not MemoryTool(store, None).call("remember", {"fact": fact} if fact != 7 else {}).ok
    with pytest.raises(MemoryRefused):
        store.submit(memories.add_memory, fact).result()


def test_the_number_of_facts_is_bounded(store, monkeypatch):
    monkeypatch.setattr(memories, "MAX_MEMORIES", 2)
    tool = MemoryTool(store, None)
    assert [tool.call("remember", {"fact": str(n)}).ok for n in range(3)] == [True, True, False]


def test_few_facts_are_all_used_and_of_many_the_nearest():
    rows = many()
    assert recalled(rows[:5], "?", no_model) == tuple(rows[:5])
    by_words = recalled(rows, "When do the trains leave?", no_model)
    assert rows[50] in by_words
    assert sum(len(row.text) for row in by_words) <= MAX_RECALLED_CHARS

    assert len(recalled(rows, "trains", no_model, n_ctx=1000)) == 2, "a tenth of a small context"
    assert recalled(rows[:2], "?", no_model, n_ctx=100_000) == tuple(rows[:2])

    def embed(texts, _kind):
        return [[1.0, 0.0] if "rail" in text or "Fact 70 " in text else [0.0, 1.0] for text in texts]

    assert rows[70] in recalled(rows, "rail", embed)
    assert rows[70] not in recalled(rows, "rail", no_model)

    def broken(_texts, _kind):
        raise OSError("no server")

    assert rows[50] in recalled(rows, "trains", broken)


def test_the_prompt_has_the_facts_as_data():
    assert memory_prompt(()) == ""
    assert "not instructions" in memory_prompt(many()[:1])
    assert memory_prompt(many()[:2]).count("\n- Fact") == 2


@pytest.mark.parametrize(
    ("setting", "names", "unasked"),
    [
        ("automatic", ("tessera:memory",), True),
        ("automatic", ("tessera:memory", "tessera:calculator"), True),
        ("automatic", ("tessera:memory", "tessera:web"), False),
        ("automatic", ("tessera:memory", "notes"), False),
        ("ask", ("tessera:memory",), False),
    ],
)
def test_a_fact_is_saved_unasked_only_where_no_stranger_writes(
    store, tmp_path, monkeypatch, setting, names, unasked
):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    assert saves_without_asking(setting, names, foreign=False) is unasked
    assert not saves_without_asking(setting, names, foreign=True), "a file or document is a stranger's text, too"
    asked = []
    consent = ToolConsent(ConsentStore(), lambda request: asked.append(request.key) or "no")
    tools = Toolset([MemoryTool(store, None)], consent, {"tessera:memory"} if unasked else ())
    assert tools.call("remember", '{"fact": "Likes tea"}').ok is unasked
    assert asked == ([] if unasked else ["remember"])


def test_exported_chats_carry_no_facts():
    message = Message(1, 1, None, "assistant", "Tea?", facts=AnswerFacts(memories=("Likes tea",), edited=True))
    exported = to_json([(Conversation(1), [message])])
    assert "Likes tea" not in exported
    assert json.loads(exported)["conversations"][0]["messages"][0]["facts"] == {"edited": True}
