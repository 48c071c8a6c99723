"""Projects: their form, the defaults of their chats, what reaches the model; export and import of all chats."""

import pytest
from PySide6.QtCore import Qt

from app.db import conversations, messages
from app.db.records import Folder
from app.gui.chat.page import ChatPage
from app.projects import MAX_CHARS, instructions_of
from app.tools.mcp_config import ServerList
from tests.support.fakes.mcp_servers import demo


@pytest.fixture
def page(show, services):
    return show(ChatPage(services))


def ask(qtbot, page, text):
    page.composer.set_text(text)
    page.composer.send()
    qtbot.waitUntil(lambda: bool(page.controller.tree.path()) and not page.controller.busy)


def test_a_project_gives_its_chats_instructions_files_model_and_tools(qtbot, page, server, services, tmp_path):
    ServerList().add([demo(tmp_path)])
    root = tmp_path / "boat"
    root.mkdir()
    (root / "AGENTS.md").write_text("Speak of ropes.")
    (root / "CLAUDE.md").write_text("@AGENTS.md")
    folder = services.store.submit(conversations.create_folder, "Boat").result()
    page.projects.edit(folder.id)
    qtbot.waitUntil(lambda: page.projects.dialog is not None)
    dialog = page.projects.dialog
    dialog.path.setText(str(root))
    dialog.instructions.setPlainText("Answer in one line.")
    dialog.tools["demo"].setChecked(True)
    qtbot.mouseClick(dialog.save, Qt.MouseButton.LeftButton)
    found = lambda: services.store.submit(conversations.folders).result()[0]
    qtbot.waitUntil(lambda: found().tools == ("demo",))
    assert (found().path, found().instructions) == (str(root), "Answer in one line.")

    page.sidebar.begun_in.emit(folder.id)
    qtbot.waitUntil(lambda: page.controller.conversation.folder_id == folder.id)
    qtbot.waitUntil(lambda: "ropes" in page.controller.project.instructions)
    assert page.controller.project.folder == root
    assert page.controller.conversation.tools == ("demo",)
    page.controller.change(tools=())
    ask(qtbot, page, "Hello")
    assert server.bodies[0]["messages"][0] == {
        "role": "system",
        "content": "Answer in one line.\n\nSpeak of ropes.",
    }
    kept = services.store.submit(conversations.listing).result()[0]
    assert kept.folder_id == folder.id
    assert kept.system_prompt == "", "the project's words stay the project's"

    page.new_chat()
    qtbot.waitUntil(lambda: page.controller.project.instructions == "")
    ask(qtbot, page, "Hello")
    assert [m["role"] for m in server.bodies[-1]["messages"]] == ["user"]


def test_instructions_are_bounded_and_stay_in_the_folder(tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    root = tmp_path / "p"
    root.mkdir()
    (root / "AGENTS.md").symlink_to(tmp_path / "secret")
    (root / "CLAUDE.md").write_bytes(b"x" * (MAX_CHARS + 5) + b"\xff")
    text = instructions_of(Folder(1, "p", str(root)))
    assert "SECRET" not in text
    assert "6 more characters were left out" in text
    assert instructions_of(Folder(1, "p", str(tmp_path / "gone"), "mine")) == "mine"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])  # as editors and shells on Windows write it
def test_instructions_in_other_encodings_are_read(tmp_path, encoding):
    (tmp_path / "AGENTS.md").write_text("Grüße nur auf Deutsch.", encoding)
    assert instructions_of(Folder(1, "p", str(tmp_path))) == "Grüße nur auf Deutsch."
    (tmp_path / "AGENTS.md").write_bytes(b"\x7fELF\x02\0\0\0" * 64)
    assert instructions_of(Folder(1, "p", str(tmp_path))) == ""


def test_all_chats_go_out_and_come_back(qtbot, page, server, services, tmp_path):
    for title in ("One: a/b", "Two"):
        page.new_chat()
        ask(qtbot, page, title)
    archive = tmp_path / "all.zip"
    with qtbot.waitSignal(page.import_export.exported):
        page.import_export.export_all_to(archive)
    with qtbot.waitSignal(page.import_export.imported) as done:
        page.import_export.import_from(archive)
    assert len(done.args[0]) == 2
    qtbot.waitUntil(lambda: page.controller.conversation.id == done.args[0][0])
    qtbot.waitUntil(lambda: "2 chats imported" in page.banner.text)
    rows = services.store.submit(conversations.listing).result()
    assert sorted(chat.title for chat in rows) == ["One: a/b", "One: a/b", "Two", "Two"]
    texts = [[m.content for m in services.store.submit(messages.of_conversation, c.id).result()] for c in rows]
    assert texts[0] in texts[1:]
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 no")
    with qtbot.waitSignal(page.import_export.failed) as failed:
        page.import_export.import_from(tmp_path / "bad.zip")
    assert "cannot be imported" in failed.args[0]
