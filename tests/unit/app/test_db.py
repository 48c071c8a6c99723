import contextlib
import os
import random

import apsw
import pytest

from app.answer_facts import NO_FACTS, AnswerFacts, ToolCall
from app.db import backup, conversations, messages
from app.db.conversations import search
from app.db.errors import StoreFromNewerVersion
from app.db.records import Attachment
from app.db.store import MIGRATIONS, Store, open_in_memory, open_store
from engine.api.chat import Usage


@pytest.fixture
def db():
    opened = open_in_memory()
    yield opened.connection
    opened.connection.close()


def test_the_folders_of_a_new_database_are_created(tmp_path):
    path = tmp_path / "new" / "state" / "chats.db"
    open_store(path).connection.close()
    assert path.is_file()


def test_a_conversation_keeps_its_fields(db):
    made = conversations.create(db, title="One", model="m", sampling={"temperature": 0.5}, draft="half a")
    assert conversations.get(db, made.id) == made
    assert made.sampling == {"temperature": 0.5}
    conversations.update(db, made.id, pinned=True)
    assert conversations.get(db, made.id).pinned is True
    with pytest.raises(TypeError):
        conversations.update(db, made.id, created_s=1)


def test_listing_is_pinned_first_then_touched_last(db):
    a, b, c = (conversations.create(db, title=t).id for t in "abc")
    conversations.update(db, a, pinned=True)
    conversations.touch(db, b)
    assert [item.id for item in conversations.listing(db)] == [a, b, c]


def test_order_does_not_depend_on_the_clock(db, monkeypatch):
    chat = conversations.create(db).id
    for clock in (2e9, 1.0, 5e9):
        monkeypatch.setattr("app.db.messages.time.time", lambda now=clock: now)
        messages.add(db, chat, None, "user", str(clock))
    assert [m.content for m in messages.of_conversation(db, chat)] == ["2000000000.0", "1.0", "5000000000.0"]


def test_messages_make_a_tree_with_attachments(db):
    chat = conversations.create(db).id
    root = messages.add(
        db, chat, None, "user", "look", attachments=[Attachment("a.txt", "text/plain", "inside", None)]
    )
    answer = messages.add(db, chat, root.id, "assistant", "", status="streaming", model="m")
    messages.write_text(db, answer.id, content="hal", reasoning="hm", status="streaming")
    facts = AnswerFacts(usage=Usage(total_tokens=3), tool_calls=(ToolCall("add", "{}", "c1"),), ok=False)
    messages.finish(db, answer.id, content="half", reasoning="hm", status="complete", facts=facts)
    first, second = messages.of_conversation(db, chat)
    assert first.attachments[0].text == "inside"
    assert (second.parent_id, second.content, second.facts) == (root.id, "half", facts)
    assert conversations.get(db, chat).leaf_id == answer.id


def test_search_finds_words_prefixes_and_survives_any_input(db):
    chat = conversations.create(db, title="Birds").id
    one = messages.add(db, chat, None, "user", "The Köln goldfinch sings")
    assert [hit.message_id for hit in search(db, "koln gold")] == [one.id]
    assert "\x02goldfinch\x03" in search(db, "goldf")[0].excerpt
    for hostile in ['"', "a OR", "NEAR(", "* -", "'; DROP TABLE messages", "content:x", "\x00", "((", "^a"]:
        search(db, hostile)
    assert search(db, "goldfinch sparrow") == []
    conversations.trash(db, [chat])
    assert search(db, "goldfinch") == []
    conversations.untrash(db, [chat])
    assert len(search(db, "goldfinch")) == 1


def test_the_index_follows_streaming_edits_and_deletes(db):
    chat = conversations.create(db).id
    m = messages.add(db, chat, None, "assistant", "", status="streaming")
    for text in ("alpha", "alpha beta"):
        messages.write_text(db, m.id, content=text, reasoning="", status="streaming")
    assert search(db, "beta") == []
    messages.finish(db, m.id, content="alpha beta gamma", reasoning="", status="complete", facts=NO_FACTS)
    assert len(search(db, "gamma")) == 1
    messages.write_text(db, m.id, content="alpha", reasoning="", status="streaming")
    assert search(db, "gamma") == []
    messages.finish(db, m.id, content="delta", reasoning="", status="stopped", facts=NO_FACTS)
    assert len(search(db, "delta")) == 1
    db.execute("INSERT INTO messages_index(messages_index) VALUES ('integrity-check')")
    conversations.trash(db, [chat])
    assert conversations.empty_trash(db) == 1
    assert db.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM messages_index WHERE messages_index MATCH 'delta'").get == 0


def test_a_removed_folder_keeps_its_conversations(db):
    folder = conversations.create_folder(db, "Work")
    chat = conversations.create(db, folder_id=folder.id).id
    conversations.rename_folder(db, folder.id, "Home")
    assert conversations.folders(db)[0].name == "Home"
    conversations.remove_folder(db, folder.id)
    assert conversations.get(db, chat).folder_id is None


def test_presets_are_saved_by_name(db):
    conversations.save_preset(db, "Terse", "Be brief", {"temperature": 0})
    conversations.save_preset(db, "Terse", "Be very brief", {})
    (preset,) = conversations.presets(db)
    assert preset.system_prompt == "Be very brief"
    conversations.remove_preset(db, preset.id)
    assert conversations.presets(db) == []


def test_interrupted_answers_are_marked_at_the_next_start(tmp_path):
    path = tmp_path / "chats.db"
    first = open_store(path)
    chat = conversations.create(first.connection).id
    messages.add(first.connection, chat, None, "assistant", "half", status="streaming")
    first.connection.close()
    second = open_store(path)
    assert messages.of_conversation(second.connection, chat)[0].status == "interrupted"
    assert len(search(second.connection, "half")) == 1
    second.connection.close()


def test_daily_backups_are_complete_and_few(tmp_path):
    path = tmp_path / "chats.db"
    store = Store(open_store(path))
    chat = store.submit(conversations.create, title="Kept").result()
    days = [f"2026110{n}" for n in range(1, 6)]
    made = [backup.back_up_daily(store.opened.connection, path, 3, day) for day in days]
    assert None not in made
    assert backup.back_up_daily(store.opened.connection, path, 3, days[-1]) is None
    assert sorted(f.name for f in backup.backups(path)) == [f"chats-{day}.db" for day in days[2:]]
    copy = open_store(backup.backups(path)[0])
    assert conversations.get(copy.connection, chat.id).title == "Kept"
    copy.connection.close()
    store.close()


@pytest.mark.parametrize("damage", ["header", "middle", "cut", "text"])
def test_a_damaged_file_is_kept_and_its_backup_restores_it(tmp_path, damage):
    path = tmp_path / "chats.db"
    store = Store(open_store(path))
    chat = store.submit(conversations.create, title="Precious").result()
    for n in range(200):
        store.submit(messages.add, chat.id, None, "user", f"message {n} " + "x" * 400).result()
    assert store.back_up_daily(7) is not None
    store.close()
    whole = path.read_bytes()
    damaged = {
        "header": b"\0" * 100 + whole[100:],
        "middle": whole[:4096] + random.Random(1).randbytes(len(whole) - 8192) + whole[-4096:],
        "cut": whole[: len(whole) // 2 + 37],
        "text": b"this was a database",
    }[damage]
    path.write_bytes(damaged)
    opened = open_store(path)
    assert opened.quarantined is not None
    assert opened.quarantined.read_bytes() == damaged, "the damaged file is kept as it was"
    assert conversations.listing(opened.connection) == []
    assert len(opened.restorable) == 1
    backup.restore(opened.restorable[0], opened.connection)
    assert conversations.listing(opened.connection)[0].title == "Precious"
    assert len(messages.of_conversation(opened.connection, chat.id)) == 200
    assert opened.connection.pragma("integrity_check") == "ok"
    opened.connection.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_this_user_can_read_the_chats_and_their_copies(tmp_path):
    path = tmp_path / "chats.db"
    earlier = os.umask(0o022)
    try:
        for _ in range(2):
            with contextlib.closing(open_store(path).connection) as connection:
                conversations.create(connection, title="Mine")
                backup.back_up(connection, path, "today")
                modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.rglob("*.*")}
                assert modes == dict.fromkeys(modes, 0o600)
                assert {"chats.db", "chats.db-wal", "chats-today.db"} <= modes.keys()
            path.chmod(0o644)  # as an earlier version created it
    finally:
        os.umask(earlier)


def test_a_damaged_backup_changes_nothing(tmp_path):
    opened = open_store(tmp_path / "chats.db")
    conversations.create(opened.connection, title="Here")
    bad = tmp_path / "bad.db"
    bad.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(apsw.Error):
        backup.restore(bad, opened.connection)
    assert conversations.listing(opened.connection)[0].title == "Here"
    opened.connection.close()


def test_a_newer_format_is_left_alone(tmp_path):
    path = tmp_path / "chats.db"
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", len(MIGRATIONS) + 1)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFromNewerVersion):
        open_store(path)
    assert path.read_bytes()[100:] == before[100:]
    assert list(tmp_path.glob("*corrupt*")) == []


def test_the_store_closes_twice_and_finishes_what_was_submitted(tmp_path):
    store = Store(open_store(tmp_path / "chats.db"))
    future = store.submit(conversations.create, title="last")
    store.close()
    store.close()
    assert future.result().title == "last"
