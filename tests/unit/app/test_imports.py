"""Exports of other programs, in their documented formats, are imported with their branches; garbage is refused."""

import contextlib
import json
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.db import conversations, messages
from app.db.records import Conversation, Message
from app.db.store import open_in_memory
from app.gui.chat.chat_export import import_chats, read_export, to_html, to_json
from app.gui.chat.tree import MessageTree
from app.imports.read import chats_of, read_chats
from app.imports.types import ImportFailed, date_of
from tests.support.examples import examples

CHATGPT = [
    {
        "title": "Tides", "create_time": 1.0, "update_time": 1767225600.5, "current_node": "a2",
        "mapping": {
            "root": {"id": "root", "message": None, "parent": None, "children": ["sys"]},
            "sys": {"id": "sys", "parent": "root", "children": ["u1"], "message": {
                "author": {"role": "system"}, "content": {"content_type": "text", "parts": ["Be brief."]}}},
            "u1": {"id": "u1", "parent": "sys", "children": ["t", "a2"], "message": {
                "author": {"role": "user"}, "content": {"content_type": "multimodal_text", "parts": [
                    {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"},
                    "When is low tide?"]}}},
            "t": {"id": "t", "parent": "u1", "children": ["a1"], "message": {
                "author": {"role": "tool"}, "content": {"content_type": "text", "parts": ["searched"]}}},
            "a1": {"id": "a1", "parent": "t", "children": [], "message": {
                "author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["At five."]},
                "metadata": {"model_slug": "gpt-4o"}}},
            "a2": {"id": "a2", "parent": "u1", "children": [], "message": {
                "author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["At six."]},
                "metadata": {"model_slug": "gpt-4o"}}},
        },
    }
]  # fmt: skip
CLAUDE = [
    {
        "uuid": "c", "name": "Tides", "created_at": "2026-01-01T00:00:00Z",
        "chat_messages": [
            {"uuid": "1", "sender": "human", "text": "When is low tide?", "content": [
                {"type": "text", "text": "When is low tide?"}],
             "attachments": [{"file_name": "tides.txt", "extracted_content": "Low at six."}],
             "files": [{"file_name": "map.png"}]},
            {"uuid": "2", "sender": "assistant", "text": "", "content": [
                {"type": "thinking", "thinking": "Look at the table."}, {"type": "text", "text": "At six."}]},
        ],
    }
]  # fmt: skip
OPEN_WEBUI = [
    {
        "id": "x", "title": "Tides", "updated_at": 1767225600,
        "chat": {"models": ["llama3"], "params": {"system": "Be brief."},
                 "history": {"currentId": "3", "messages": {
            "3": {"id": "3", "parentId": "1", "role": "assistant", "content": "At six.", "model": "llama3"},
            "1": {"id": "1", "parentId": None, "role": "user", "content": "When is low tide?"},
            "2": {"id": "2", "parentId": "1", "role": "assistant", "content": "At five.", "model": "q"},
        }}},
    }
]  # fmt: skip
LM_STUDIO = {
    "name": "Tides", "createdAt": 1767225600123, "systemPrompt": "Be brief.",
    "lastUsedModel": {"identifier": "qwen"},
    "messages": [
        {"currentlySelected": 0, "versions": [{"type": "singleStep", "role": "user", "content": [
            {"type": "text", "text": "When is low tide?"}]}]},
        {"currentlySelected": 1, "versions": [
            {"type": "multiStep", "role": "assistant", "senderInfo": {"senderName": "qwen"}, "steps": [
                {"type": "contentBlock", "content": [{"type": "text", "text": "At five."}]}]},
            {"type": "multiStep", "role": "assistant", "senderInfo": {"senderName": "qwen"}, "steps": [
                {"type": "contentBlock", "content": [{"type": "text", "text": "At six."}]}]}]},
    ],
}  # fmt: skip
WORDS = "When is low tide?"
JAN_THREAD = {
    "id": "t",
    "title": "Tides",
    "updated": 1767225600,
    "assistants": [{"model": {"id": "jan-nano"}, "instructions": "Be brief."}],
}
JAN_LINES = [
    {
        "id": "1",
        "role": "user",
        "content": [{"type": "text", "text": {"value": WORDS, "annotations": []}}],
    },
    {
        "id": "2",
        "role": "assistant",
        "content": [{"type": "text", "text": {"value": "At six.", "annotations": []}}],
    },
]


def files(tmp_path):
    """Name: the file as the program writes it."""
    found = {}
    for name, document in (("claude", CLAUDE), ("open_webui", OPEN_WEBUI), ("lm_studio", LM_STUDIO)):
        found[name] = tmp_path / f"{name}.json"
        found[name].write_text(json.dumps(document))
    found["chatgpt"] = tmp_path / "chatgpt.zip"
    with zipfile.ZipFile(found["chatgpt"], "w") as archive:
        archive.writestr("export/conversations.json", json.dumps(CHATGPT))
        archive.writestr("export/chat.html", "<script>")
    found["jan"] = tmp_path / "messages.jsonl"
    found["jan"].write_text("\n".join(json.dumps(line) for line in JAN_LINES))
    (tmp_path / "thread.json").write_text(json.dumps(JAN_THREAD))
    return found


@pytest.mark.parametrize("name", ["chatgpt", "claude", "open_webui", "lm_studio", "jan"])
def test_an_export_comes_in_with_its_branches(tmp_path, name):
    db = open_in_memory().connection
    (number,) = import_chats(db, read_export(files(tmp_path)[name]))
    (chat,) = conversations.listing(db)
    assert chat.id == number
    assert chat.created_s == pytest.approx(1767225600, abs=1), "2026-01-01"
    rows = messages.of_conversation(db, chat.id)
    path = MessageTree(rows, chat.leaf_id).path()
    assert chat.title == "Tides"
    assert [(m.role, m.content) for m in path] == [("user", "When is low tide?"), ("assistant", "At six.")]
    others = [m.content for m in rows if m not in path]
    assert others == (["At five."] if name in {"chatgpt", "open_webui", "lm_studio"} else [])
    assert chat.system_prompt == ("" if name == "claude" else "Be brief.")
    attached = [a.name for a in path[0].attachments]
    if name == "claude":
        assert attached == ["tides.txt", "map.png (not in the export)"]
        assert path[0].attachments[0].text == "Low at six."
        assert path[1].reasoning == "Look at the table."
    if name == "chatgpt":
        assert attached == ["image_asset_pointer (not in the export)"]


def test_what_we_export_comes_back(tmp_path):
    db = open_in_memory().connection
    import_chats(db, read_export(files(tmp_path)["chatgpt"]))
    (chat,) = conversations.listing(db)
    out = tmp_path / "ours.json"
    out.write_text(to_json([(chat, messages.of_conversation(db, chat.id))]))
    assert len(import_chats(db, read_export(out))) == 1
    first, second = (messages.of_conversation(db, c.id) for c in conversations.listing(db))
    assert [m.content for m in first] == [m.content for m in second]


DATES = [
    (("2026-01-01T00:00:00Z",), 1767225600),
    (("2026-01-01T01:00:00+01:00",), 1767225600),
    (("2026-01-01",), 1767225600),
    ((1767225600,), 1767225600),
    ((1767225600123,), 1767225600.123),
    (("soon", None, 1767225600), 1767225600),
    ((0, 1.0, -5, True, float("nan"), float("inf"), 10**400, "9999-99-99", [], {}), None),
]


@pytest.mark.parametrize(("values", "seconds"), DATES)
def test_dates_of_exports_are_read_or_left_out(values, seconds):
    assert date_of(*values) == seconds


def test_a_web_page_of_a_chat_loads_and_runs_nothing():
    hostile = "<script>x</script> ![p](http://127.0.0.1/p.png) [l](javascript:x) <img src=/etc/passwd>"
    rows = [Message(1, 1, None, "user", hostile)]
    page = to_html(Conversation(1, title="<b>title</b>", leaf_id=1), rows)
    assert "<script" not in page
    assert "<img" not in page
    assert 'href="javascript' not in page
    assert "&lt;b&gt;title" in page
    assert "p (http://127.0.0.1/p.png)" in page


GARBAGE = [
    b"",
    b"{",
    b"[]",
    b"[1]",
    b"{}",
    b'[{"mapping": 3}, 4]',
    b"[" * 100_000,
    b"PK\x03\x04",
    b'{"messages": [3]}',
]


@pytest.mark.parametrize("raw", GARBAGE)
def test_garbage_is_refused_or_empty_and_nothing_is_written(tmp_path, raw):
    path = tmp_path / "x.json"
    path.write_bytes(raw)
    db = open_in_memory().connection
    with contextlib.suppress(ImportFailed):
        import_chats(db, read_export(path))
    assert all(messages.of_conversation(db, chat.id) == [] for chat in conversations.listing(db))


def test_messages_in_a_circle_or_without_a_parent_are_not_lost():
    ring = {
        "a": {"parent": "b", "message": {"author": {"role": "user"}, "content": {"parts": ["A"]}}},
        "b": {"parent": "a", "message": {"author": {"role": "assistant"}, "content": {"parts": ["B"]}}},
        "c": {"parent": "gone", "message": {"author": {"role": "user"}, "content": {"parts": ["C"]}}},
    }
    (chat,) = chats_of([{"title": "x", "mapping": ring, "current_node": "zzz"}])
    assert sorted(message.text for message in chat.messages) == ["A", "B", "C"]
    known = set()
    for message in chat.messages:
        assert message.parent is None or message.parent in known
        known.add(message.key)


SCRAP = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["mapping", "message", "parent", "author", "role", "content", "parts", "chat_messages", "sender",
             "text", "chat", "history", "messages", "versions", "steps", "currentlySelected", "currentId", "user"]
        ), inner, max_size=4,
    ),
    max_leaves=25,
)  # fmt: skip


@pytest.mark.slow
@given(SCRAP)
@settings(max_examples=examples(300), deadline=None)
def test_no_document_breaks_the_reader(document):
    try:
        chats = chats_of(document)
    except ImportFailed:
        return
    db = open_in_memory().connection
    assert len(import_chats(db, chats)) == len(chats)
    db.close()


def test_an_archive_that_is_damaged_anywhere_is_refused(tmp_path):
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps(CHATGPT * 20))
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 7):
        for change in (0xFF, 0x10):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])
            try:
                read_chats(path)
            except ImportFailed:
                refused += 1
    assert refused > len(whole) / 14


def test_an_archive_in_several_files_comes_in_whole(tmp_path, monkeypatch):
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in (1, 0):
            chats = [{**CHATGPT[0], "title": f"Tides {number}{letter}"} for letter in "ab"]
            archive.writestr(f"conversations-00{number}.json", json.dumps(chats))
        archive.writestr("shared_conversations.json", "[]")
    assert [chat.title for chat in read_chats(path)] == ["Tides 0a", "Tides 0b", "Tides 1a", "Tides 1b"]
    monkeypatch.setattr("app.imports.read.MAX_OBJECTS", 80)  # enough for each file, not for both
    with pytest.raises(ImportFailed, match="more than 80 objects"):
        read_chats(path)


def test_a_thread_of_jan_may_hold_any_sign_and_begin_with_a_mark(tmp_path):
    """JSON texts hold line separators unescaped, and Windows programs begin files with a byte order mark."""
    said = "one\u2028two\u0085three\u2029four"
    lines = [{**line, "content": [{"type": "text", "text": {"value": said}}]} for line in JAN_LINES]
    text = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (tmp_path / "messages.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (chat,) = read_chats(tmp_path / "messages.jsonl")
    assert [message.text for message in chat.messages] == [said, said]


@pytest.mark.parametrize("name", ["conversations.json", "messages.jsonl"])
def test_more_values_than_an_export_has_are_refused_before_they_are_parsed(tmp_path, monkeypatch, name):
    monkeypatch.setattr("app.imports.read.MAX_OBJECTS", 1000)
    (tmp_path / name).write_text("{}\n" * 1001 if name.endswith("jsonl") else "[" + "{}," * 1000 + "{}]")
    with pytest.raises(ImportFailed, match="more than 1,000 objects"):
        read_export(tmp_path / name)
    text = [{"role": "user", "content": [{"text": {"value": "{" * 5000 + "," * 5000}}]}]
    (tmp_path / "messages.jsonl").write_text("\n".join(map(json.dumps, text)))
    assert len(read_chats(tmp_path / "messages.jsonl")[0].messages) == 1


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_long_rows_of_nodes_are_walked_once(hidden, turned):
    """Following the parents of each node would take minutes."""
    said = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["x"]}}
    count = 20_000
    nodes = {
        str(i): {"parent": str(i - 1) if i else None, "message": None if hidden and i < count - 2 else said}
        for i in range(count)
    }
    mapping = dict(reversed(nodes.items())) if turned else nodes
    [chat] = chats_of([{"title": "t", "mapping": mapping, "current_node": str(count - 1)}])
    assert (len(chat.messages), chat.leaf) == (2 if hidden else count, str(count - 1))
    assert [m.parent for m in chat.messages[:2]] == [None, chat.messages[0].key]
