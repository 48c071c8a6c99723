"""A temporary chat is not stored anywhere, unless it is saved later."""

from contextlib import closing

import apsw

from app.db import conversations, memories, messages
from app.db.store import TEMPORARY
from app.tools.builtin import MEMORY
from tests.gui.hands import ask


def everything(services):
    """The content of the chats' file.

    Read by the store's own library: another one that closes the file takes away the locks of this process.
    """
    with closing(apsw.Connection(str(services.store.opened.path))) as known:
        return [row for table in ("conversations", "messages") for row in known.execute(f"SELECT * FROM {table}")]


def test_a_temporary_chat_is_never_written_and_is_gone_when_left(qtbot, services, page, server):
    page.composer.set_text("typed before")
    page.bar.temporary.click()
    qtbot.waitUntil(page._temporary.isVisible)
    assert page.composer.text == "typed before"
    page.composer.clear()
    services.settings.set("chat.memory", "ask")
    services.store.submit(memories.add_memory, "My cat is called Ada").result()
    page.controller.change(tools=(MEMORY,))
    ask(qtbot, page)
    page.controller.change(draft="half a thought", system_prompt="Be brief.")
    page.controller.rewrite(page.controller.tree.leaf_id, "changed")
    ask(qtbot, page, "And then?")
    assert [m["content"] for m in server.bodies[1]["messages"]][1:] == ["Hi there", "changed", "And then?"]
    assert "Ada" not in str(server.bodies), "it remembers nothing, and uses no memory"
    number = page.controller.conversation.id
    services.store.submit(lambda _: None).result()
    assert everything(services) == []
    assert page.sidebar.model.rowCount() == 0
    page.new_chat()
    assert page._temporary.isHidden()
    memory = services.store.of(number)
    assert memory.submit(conversations.listing).result() == []
    assert memory.submit(lambda c: c.execute("SELECT count(*) FROM messages").get).result() == 0
    ask(qtbot, page)
    assert page.controller.conversation.id == 1, "an ordinary chat again"
    assert len(everything(services)) == 3


def test_a_temporary_chat_can_be_saved_after_all(qtbot, services, page):
    page.new_temporary_chat()
    qtbot.waitUntil(page._temporary.isVisible)
    assert not page._keep.isEnabled()
    ask(qtbot, page)
    page.message_actions._fork(page.controller.tree.leaf_id)
    qtbot.waitUntil(lambda: page.controller.conversation.id == TEMPORARY + 2)
    assert everything(services) == [], "a chat that begins at a temporary one is one"
    page._keep.click()
    qtbot.waitUntil(lambda: page.controller.conversation.id == 1)
    assert page.controller.conversation.title == "Hi there"
    kept = services.store.submit(messages.of_conversation, page.controller.conversation.id).result()
    assert [m.content for m in kept] == ["Hi there", "Hello **world**"]
    assert page._temporary.isHidden()
    qtbot.waitUntil(lambda: page.sidebar.model.rowCount() == 1)
