"""Managing chats: folders and their projects, pins, export and import, presets, sampling, receipts.

Then its messages: edited answers, new chats from an old one, deleting one or many, a schema.
"""

import json
import sqlite3
import zipfile
from contextlib import closing

import pytest

from app.suggestions import FOR_THE_TOY
from tests.support.servers import wait_for

OPTIONS = "chat.options"
LAST = "chat.controller.tree.path()[-1]"
SAMPLING = "chat.controller.conversation.sampling"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def rows(walk, question):
    """Content of the chat database."""
    with closing(sqlite3.connect(walk.home / "state" / "chats.db")) as known:
        return known.execute(question).fetchall()


def are_rows(walk, question, wanted):
    """Wait until this is in the database: a separate thread writes it."""
    wait_for(lambda: rows(walk, question) == wanted, 60, f"{wanted} of {question}")


def named(walk, name):
    """Enter the name that a small dialog requests."""
    walk.until("app.activeModalWidget() is not None and 'Name:' in says()")
    walk.key("ctrl+a")
    walk.type(name)
    walk.until(f"written() == {name!r}")
    walk.key("Return")
    walk.dialog_closed()


def renamed(walk, name):
    """Type a name into the row of the list of chats that is being edited."""
    walk.until("'Name' in words_of(app.focusWidget())")
    walk.key("ctrl+a")
    walk.type(name)
    walk.until(f"written() == {name!r}")
    walk.key("Return")
    walk.until("'Name' not in words_of(app.focusWidget() or chat)")


def menu(walk, row, entry):
    """Choose an entry in the menu of a row of the list of chats."""
    walk.click(row, "chat.sidebar.tree", button=3)
    walk.until("app.activePopupWidget() is not None")
    walk.click(entry)
    walk.until("app.activePopupWidget() is None")


def test_a_chat_is_pinned_and_let_go(walk):
    walk.click("New chat (Ctrl+N)", "chat.sidebar")
    walk.say("What is Tessera?")
    menu(walk, "What is Tessera?", "Pin")
    walk.until("spot('Pinned', chat.sidebar.tree)")
    are_rows(walk, "SELECT pinned FROM conversations", [(1,)])
    walk.click("What is Tessera?", "chat.sidebar.tree", button=3)
    walk.click("Unpin")
    walk.until("not spot('Pinned', chat.sidebar.tree)")
    are_rows(walk, "SELECT pinned FROM conversations", [(0,)])


def test_a_chat_is_put_into_a_folder_and_the_folder_is_a_project(walk, tmp_path):
    walk.click("More", "chat.sidebar")
    walk.click("New folder")
    renamed(walk, "Lights")
    walk.until("spot('Lights', chat.sidebar.tree)")
    menu(walk, "Lights", "Rename")
    renamed(walk, "Harbours")
    walk.until("spot('Harbours', chat.sidebar.tree)")
    are_rows(walk, "SELECT name FROM folders", [("Harbours",)])
    walk.click("What is Tessera?", "chat.sidebar.tree", button=3)
    walk.click("Move to")
    walk.click("Harbours")
    walk.until("app.activePopupWidget() is None")
    walk.until("spot('What is Tessera?', chat.sidebar.tree)")
    are_rows(walk, "SELECT count(*) FROM conversations WHERE folder_id IS NOT NULL", [(1,)])

    walk.click("Harbours", "chat.sidebar.tree", button=3)
    walk.click("Project: instructions, folder, tools…")
    walk.until("app.activeModalWidget() is not None and 'Instructions' in says()")
    walk.fill("Instructions", "Answer as a pilot of the harbour would.")
    walk.choose("Model for new chats", "Spark (demo)")
    walk.click("Choose…")
    walk.name_file(tmp_path)
    walk.key("Return")
    walk.until(f"app.activeModalWidget() is not None and app.activeModalWidget().path.text() == {str(tmp_path)!r}")
    walk.picture("project")
    walk.click("Save")
    walk.dialog_closed()
    wanted = [("Answer as a pilot of the harbour would.", "spark", str(tmp_path))]
    are_rows(walk, "SELECT instructions, model, path FROM folders", wanted)
    walk.click("Harbours", "chat.sidebar.tree", button=3)
    walk.click("Project: instructions, folder, tools…")
    walk.until("app.activeModalWidget() is not None and 'Instructions' in says()")
    walk.fill("Folder", str(walk.home))
    walk.click("Save")
    walk.dialog_closed()
    are_rows(walk, "SELECT path FROM folders", [(str(walk.home),)])
    walk.click("Harbours", "chat.sidebar.tree", button=3)
    walk.click("New chat here")
    walk.until("len(chat.controller.tree) == 0 and chat.controller.conversation.folder_id")
    walk.say("Who is there?")
    are_rows(walk, "SELECT count(*) FROM conversations WHERE folder_id IS NOT NULL", [(2,)])
    walk.click("Who is there?", "chat.sidebar.tree", button=3)
    walk.click("Move to")
    walk.click("No folder")
    walk.until("app.activePopupWidget() is None")
    menu(walk, "Harbours", "Remove folder (chats stay)")
    walk.until("not spot('Harbours', chat.sidebar.tree)")
    are_rows(walk, "SELECT count(*), max(folder_id) FROM conversations", [(2, None)])


def test_all_chats_are_exported_and_come_back_by_import(walk):
    if rows(walk, "SELECT count(*) FROM conversations") == [(0,)]:
        walk.say(FOR_THE_TOY[0].question)
    archive = walk.home / "all.zip"
    walk.click("More", "chat.sidebar")
    walk.click("Export all chats…")
    walk.choose_file(archive)
    walk.until("'Exported to' in chat.banner.text")
    with zipfile.ZipFile(archive) as packed:
        assert any(name.endswith(".json") for name in packed.namelist())
    before = rows(walk, "SELECT count(*) FROM conversations")[0][0]
    walk.click("More", "chat.sidebar")
    walk.click("Import chats…")
    walk.choose_file(archive)
    walk.until(
        f"chat.sidebar.tree.model().rowCount() and {before} < len(desktop.services.store.submit("
        "__import__('app.db.conversations', fromlist=['x']).listing).result())"
    )
    are_rows(walk, "SELECT count(*) FROM conversations", [(2 * before,)])
    walk.until(f"'{before} chats imported' in chat.banner.text or '1 chat imported' in chat.banner.text")


def test_a_chat_comes_out_of_the_archive(walk):
    walk.new_chat()
    walk.say("Out of the way")
    menu(walk, "Out of the way", "Archive")
    walk.until("spot('Archived', chat.sidebar.tree)")
    walk.click("Archived", "chat.sidebar.tree")
    menu(walk, "Out of the way", "Move out of the archive")
    walk.until("not spot('Archived', chat.sidebar.tree) and spot('Out of the way', chat.sidebar.tree)")
    are_rows(walk, "SELECT count(*) FROM conversations WHERE archived", [(0,)])


def test_sampling_is_set_kept_for_the_model_and_given_back(walk):
    walk.new_chat()
    walk.click("System prompt and sampling", "chat.bar")
    walk.until(f"{OPTIONS}.isVisible() and not {OPTIONS}.limit.isVisible()")
    walk.click("Creativity", OPTIONS)
    walk.key("End")
    walk.until(f"{SAMPLING}.get('temperature') == 1.2")
    walk.picture("options")
    walk.open_advanced()
    walk.picture("options-advanced")
    fields = (
        ("Temperature", "0.30", "temperature", 0.3),
        ("Top P", "0.80", "top_p", 0.8),
        ("Min P", "0.10", "min_p", 0.1),
        ("Top K", "30", "top_k", 30),
        ("Repeat penalty", "1.10", "repeat_penalty", 1.1),
        ("Presence penalty", "0.20", "presence_penalty", 0.2),
        ("Frequency penalty", "0.10", "frequency_penalty", 0.1),
    )
    for title, text, name, value in fields:
        walk.fill(title, text, OPTIONS)
        walk.key("Tab")
        walk.until(f"{SAMPLING}.get({name!r}) == {value}")
    walk.click("Top K as the model recommends", OPTIONS)
    walk.until(f"'top_k' not in {SAMPLING}")
    walk.click("Save for this model", OPTIONS)
    walk.until(f"'temperature' not in {SAMPLING}")
    assert walk.manage("models/spark/sampling")["user"]["temperature"] == 0.3
    walk.until(f"{OPTIONS}.sampling.fields['temperature'].value() == 0.3")
    walk.fill("Temperature", "0.90", OPTIONS)
    walk.key("Tab")
    walk.until(f"{SAMPLING}.get('temperature') == 0.9")
    walk.click("Reset advanced options", OPTIONS)
    walk.until(f"'temperature' not in {SAMPLING}")
    walk.fill("Max tokens", "48", OPTIONS)
    walk.key("Tab")
    walk.until(f"{SAMPLING}.get('max_tokens') == 48")
    walk.say("What is Tessera?")
    assert walk.ask(f"{LAST}.facts.usage.completion_tokens") <= 48


def test_an_answer_carries_a_receipt_that_can_be_copied(walk):
    walk.open_advanced()
    walk.click("Attach a receipt to answers", OPTIONS)
    walk.until(f"{SAMPLING}.get('receipt')")
    walk.say("What is quantization?")
    walk.until("'receipt' in str(chat.controller.tree.path()[-1].facts)")
    walk.click("More", "chat.transcript.item(chat.controller.tree.leaf_id)")
    walk.click("Copy the receipt")
    walk.until("app.clipboard().text().startswith('{')")
    assert "spark" in json.dumps(json.loads(walk.ask("app.clipboard().text()")))
    walk.click("Attach a receipt to answers", OPTIONS)
    walk.until(f"not {SAMPLING}.get('receipt')")


def test_a_preset_is_removed(walk):
    walk.fill("System prompt", "Answer in one sentence.", OPTIONS)
    walk.until("chat.controller.conversation.system_prompt == 'Answer in one sentence.'")
    walk.click("Save as preset…", OPTIONS)
    named(walk, "Short")
    walk.until(f"{OPTIONS}.preset.count() == 2")
    are_rows(walk, "SELECT name FROM presets", [("Short",)])
    walk.choose("Preset", "Short", OPTIONS)
    walk.click("Remove this preset", OPTIONS)
    walk.until(f"{OPTIONS}.preset.count() == 1")
    are_rows(walk, "SELECT name FROM presets", [])
    walk.click("System prompt and sampling", "chat.bar")


def more(walk, entry, place):
    """Choose an entry in the menu of one message of the chat."""
    walk.click("More", f"chat.transcript.item(chat.controller.tree.path()[{place}].id)")
    walk.click(entry)


def test_what_is_typed_after_a_click_is_for_the_model(walk):
    """The button that starts an answer disappears, and with it the keyboard focus."""
    walk.new_chat()
    question = FOR_THE_TOY[0].question
    walk.click(question, "chat")
    walk.until("len(chat.controller.tree.path()) > 0")
    walk.type("And then?")
    walk.until("chat.composer.text == 'And then?'")
    walk.key("ctrl+a", "BackSpace")
    walk.until("chat.composer.text == '' and not chat.controller.busy")
    walk.click("Answer again", f"chat.transcript.item({LAST}.id)")
    walk.type("Once more")
    walk.until("chat.composer.text == 'Once more'")
    walk.key("ctrl+a", "BackSpace")
    walk.until("chat.composer.text == '' and not chat.controller.busy")
    walk.click("Copy", f"chat.transcript.item({LAST}.id)")
    walk.until("app.focusWidget() is not chat.composer.editor")
    walk.type("Anywhere")
    walk.until("chat.composer.text == 'Anywhere'")
    walk.key("ctrl+a", "BackSpace")
    walk.until("chat.composer.text == ''")


def test_an_answer_is_edited_a_chat_forked_and_a_message_deleted(walk):
    walk.new_chat()
    walk.say("What is Tessera?")
    walk.say("What is quantization?")
    number = walk.ask("chat.controller.conversation.id")
    more(walk, "Edit this answer", 3)
    walk.until("spot('Edit this answer', chat.transcript)")
    walk.key("ctrl+a")
    walk.type("My own words")
    walk.until("app.focusWidget().toPlainText() == 'My own words'")
    walk.key("ctrl+Return")
    walk.until(f"{LAST}.content == 'My own words' and 'edited by you' in says(chat.transcript)")

    more(walk, "New chat from here", 1)
    walk.until(f"chat.controller.conversation.id != {number} and len(chat.controller.tree) == 2")
    walk.say("Go on")
    assert walk.ask("chat.sidebar.model.rowCount()") == 1, "both were begun today"

    more(walk, "Delete from here on", 2)
    walk.click("Delete", "chat.banner")
    walk.until("len(chat.controller.tree) == 2")


DRAWN = """```svg
<svg width="80" height="40"><rect width="80" height="40" fill="teal"/></svg>
```

| a | b |
|---|--:|
| one | 1 |"""


def test_code_is_saved_drawn_and_not_wrapped_and_a_table_copied(walk):
    walk.new_chat()
    walk.say("Draw something")
    more(walk, "Edit this answer", 1)
    walk.until("spot('Edit this answer', chat.transcript)")
    walk.key("ctrl+a")
    walk.ask(f"app.clipboard().setText({DRAWN!r})")
    walk.key("ctrl+v")
    walk.until(f"app.focusWidget().toPlainText() == {DRAWN!r}")
    walk.key("ctrl+Return")
    walk.until(f"{LAST}.content == {DRAWN!r}")
    answer = "chat.transcript.item(chat.controller.tree.leaf_id)"
    walk.picture("code and table")
    walk.click("More for this code", answer)
    walk.click("Do not wrap lines")
    walk.until(f"{answer}.text_view._unwrapped[0].isVisible()")
    walk.click("More for this code", answer)
    walk.click("Show the picture")
    walk.until("'Drawn without' in says()")
    walk.picture("drawing")
    walk.click("Close")
    walk.dialog_closed()
    walk.click("More for this code", answer)
    walk.click("Save as a file…")
    walk.choose_file(walk.home / "drawing.svg")
    wait_for(lambda: "teal" in (walk.home / "drawing.svg").read_text(), 60, "the saved code")
    view = f"{answer}.text_view"
    table = f"{view}._table_rect({view}.document().rootFrame().childFrames()[0]).center()"
    walk.screen.hand("mousemove", *walk.ask(f"{view}.viewport().mapToGlobal({table}).toTuple()"))
    walk.click("Copy table", answer)
    walk.picture("table menu")
    walk.click("Copy table for a spreadsheet")
    walk.until("app.clipboard().text() == 'a\\tb\\none\\t1\\n'")


def test_many_chats_are_deleted_together_and_come_back(walk):
    walk.new_chat()
    walk.say("Alpha")
    walk.new_chat()
    walk.say("Beta")
    walk.until("spot('Alpha', chat.sidebar) and spot('Beta', chat.sidebar)")
    walk.click("Alpha", "chat.sidebar")
    walk.until("chat.controller.conversation.title == 'Alpha'")
    walk.until("chat.sidebar.tree.currentIndex().data() == 'Alpha'")
    walk.screen.hand("keydown", "ctrl")
    walk.click("Beta", "chat.sidebar")
    walk.screen.hand("keyup", "ctrl")
    walk.until("len(chat.sidebar._selected()) == 2")
    walk.key("Delete")
    walk.until("'2 chats deleted' in chat.banner.text and not spot('Alpha', chat.sidebar)")
    walk.click("Undo", "chat.banner")
    walk.until("spot('Alpha', chat.sidebar) and spot('Beta', chat.sidebar)")


def test_several_chats_are_picked_exported_archived_and_deleted(walk):
    for name in ("Gamma", "Delta"):
        walk.new_chat()
        walk.say(name)
    menu(walk, "Gamma", "Select several")
    walk.until("spot('1 selected')")
    walk.click("Delta", "chat.sidebar.tree")
    walk.until("len(chat.sidebar._selected()) == 2 and spot('2 selected')")
    walk.picture("several chats")
    archive = walk.home / "two.zip"
    walk.click("Export the selected chats…")
    walk.choose_file(archive)
    walk.until("'Exported to' in chat.banner.text")
    with zipfile.ZipFile(archive) as packed:
        assert len([name for name in packed.namelist() if name.endswith(".md")]) == 2
    walk.click("Archive the selected chats")
    walk.until("not spot('Gamma', chat.sidebar.tree) and not spot('2 selected')")
    walk.click("Undo", "chat.banner")
    walk.until("spot('Gamma', chat.sidebar.tree) and spot('Delta', chat.sidebar.tree)")
    menu(walk, "Gamma", "Select several")
    walk.click("Delete the selected chats")
    walk.until("'Chat deleted' in chat.banner.text and not spot('Gamma', chat.sidebar.tree)")
    walk.click("Undo", "chat.banner")
    menu(walk, "Delta", "Select several")
    walk.click("End the selection")
    walk.until("not spot('1 selected')")


def test_a_temporary_chat_is_not_in_the_list_and_is_saved_on_request(walk):
    walk.new_chat()
    before = rows(walk, "SELECT count(*) FROM messages")
    walk.click("Temporary chat: it is not saved (Ctrl+Shift+N)", "chat.bar")
    walk.until("'Temporary chat. It is not saved' in says(chat)")
    walk.say("Between us")
    walk.picture("temporary chat")
    assert rows(walk, "SELECT count(*) FROM messages") == before
    walk.key("ctrl+n")
    walk.until("'Temporary chat. It is not saved' not in says(chat)")
    walk.key("ctrl+shift+n")
    walk.until("'Temporary chat. It is not saved' in says(chat)")
    walk.say("For the record")
    walk.click("Save this chat")
    walk.until(
        "chat.controller.conversation.title == 'For the record' and spot('For the record', chat.sidebar.tree)"
    )
    assert rows(walk, "SELECT count(*) FROM messages") == [(before[0][0] + 2,)]
    assert not walk.ask("spot('Between us', chat.sidebar.tree)")


def test_a_schema_and_a_stop_are_kept_with_the_chat_and_obeyed(walk):
    walk.new_chat()
    walk.click("System prompt and sampling", "chat.bar")
    walk.open_advanced()
    walk.click("JSON schema", "chat.options")
    walk.type('{"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}')
    walk.click("Seed", "chat.options")
    walk.type("7")
    walk.until("chat.controller.conversation.sampling.get('seed') == 7")
    walk.until("'json_schema' in chat.controller.conversation.sampling")
    walk.click("System prompt and sampling", "chat.bar")
    walk.say("Is it so?")
    assert isinstance(json.loads(walk.ask(f"{LAST}.content"))["n"], bool)


def test_imported_chats_keep_their_dates_and_the_first_is_opened(walk):
    said = {"sender": "human", "text": "When is low tide?"}
    dated = [
        {"name": f"Tides {year}", "updated_at": f"{year}-03-01T12:00:00Z", "chat_messages": [said]}
        for year in (2020, 2021)
    ]
    export = walk.home / "claude.json"
    export.write_text(json.dumps(dated))
    walk.click("More", "chat.sidebar")
    walk.click("Import chats…")
    walk.choose_file(export)
    walk.until("'2 chats imported' in chat.banner.text")
    walk.until("chat.controller.tree.path()[0].content == 'When is low tide?'")
    years = "[chat.sidebar.model.item(n).text() for n in range(chat.sidebar.model.rowCount())][-2:]"
    walk.until(f"{years} == ['2021', '2020']")
    walk.picture("imported")


def test_a_message_of_two_million_letters_is_folded_and_stays_readable(walk):
    """As it comes from another program: here, such a text becomes a file when it is pasted."""
    text = "The tide tables of the harbour of Skerry. " * 50_000
    said = {"sender": "human", "text": text}
    export = walk.home / "long.json"
    export.write_text(json.dumps([{"name": "Long", "updated_at": "2022-03-01T12:00:00Z", "chat_messages": [said]}]))
    walk.click("More", "chat.sidebar")
    walk.click("Import chats…")
    walk.choose_file(export)
    walk.until(
        f"len(chat.controller.tree.path()[0].content) > {len(text) - 2} and spot('Show more', chat.transcript)"
    )
    bubble = "chat.transcript.item(chat.controller.tree.leaf_id)"
    walk.until("'tokens; the model takes' in chat.banner.text")
    walk.click("Close", "chat.banner")  # its letters are not those of the message
    folded = walk.ask(f"{bubble}.height()")
    for opened in (False, True):
        if opened:
            top = walk.ask(f"{bubble}.y()")
            walk.click("Show more", "chat.transcript")
            walk.until(f"{bubble}.height() > {folded} and 'are not shown' in says({bubble})")
            assert walk.ask(f"{bubble}.y()") == top, "one reads on where one was"
        for width, height in ((900, 600), (1180, 780)):
            at = walk.ask("int(window.winId())")
            walk.screen.hand("windowsize", at, width, height)
            walk.until(f"window.width() == {width}")
            walk.settle()
            assert walk.ask(f"ink({bubble})") > 20, (opened, width, "letters, not an empty bubble")
            assert opened or walk.ask("spot('Show more', chat.transcript)"), width
        walk.picture(f"two-million-{opened}")
    walk.close()
    walk.start()
    walk.until("chat.composer.ready")
    walk.until(f"chat.controller.tree.path() and len(chat.controller.tree.path()[0].content) > {len(text) - 2}")
    walk.until(f"spot('Show more', chat.transcript) and ink({bubble}) > 20")
    walk.click("Show more", "chat.transcript")
    walk.click("Go to the end", "chat.transcript")
    walk.click("Show less", "chat.transcript")
    walk.until(f"spot('Show more', chat.transcript) and {bubble}.height() <= {folded}")
    walk.new_chat()
    walk.say("What is Tessera?")  # the window answers
    walk.until("chat.controller.tree.path()[-1].status == 'complete'")
