"""Long chats: a warning before the context is full, summaries and their originals, an endless answer."""

import json
import sqlite3
from contextlib import closing

import pytest

from tests.support.servers import wait_for

OPTIONS = "chat.options"
LAST = "chat.controller.tree.path()[-1]"
LEAF = "chat.transcript.item(chat.controller.tree.leaf_id)"
FOLDS = "chat.controller.compactor.folds"


@pytest.fixture(scope="module")
def walk(open_window):
    """Short answers, so that the context of the demonstration's model (1,024 tokens) fills at the intended pace."""
    return open_window(env={"TESSERA_CHAT_MAX_TOKENS": "40"})


def folds(walk, columns):
    with closing(sqlite3.connect(walk.home / "state" / "chats.db")) as known:
        return known.execute(f"SELECT {columns} FROM folds").fetchall()


def are_kept(walk, columns, wanted):
    """Wait until these folds are in the database."""
    wait_for(lambda: folds(walk, columns) == wanted, 60, f"{wanted} in the database")


def file_of(walk, name, letters):
    made = walk.home / name
    made.write_text(("The light of the harbour turns. " * (letters // 32 + 1))[:letters])
    return made


def scroll_up(walk):
    x, y, width, height = walk.until("spot('Conversation')")
    walk.screen.hand("mousemove", x + width // 2, y + height // 2, "click", "--repeat", 30, "--delay", 5, 4)


def test_a_chat_that_nears_its_limit_is_summarized_or_left(walk):
    for number in (1, 2, 3):
        walk.attach(file_of(walk, f"part{number}.txt", 350))
        walk.say(f"What is part {number}?")
    assert folds(walk, "id") == []
    room = walk.ask("chat._context.n_ctx() - chat.composer.meter._used")
    walk.attach(file_of(walk, "more.txt", round((room - 100) * 3.5)))
    walk.until("spot('Summarize the older part', chat.banner)")
    walk.picture("near-the-limit")
    walk.click("Summarize the older part", "chat.banner")
    walk.until(f"len({FOLDS}) == 1")
    walk.until("'The older part of this chat was summarized' in chat.banner.text")
    are_kept(walk, "opened, edited", [(0, 0)])

    walk.attach(file_of(walk, "yet-more.txt", 3000))
    walk.until("'the model takes' in chat.banner.text")
    walk.click("New chat", "chat.banner")
    walk.until("len(chat.controller.tree) == 0 and not chat.controller.conversation.id")
    assert len(folds(walk, "id")) == 1, "the old chat keeps what it has"
    for name in ("more.txt", "yet-more.txt"):
        walk.click(f"Remove {name}", "chat.composer")
        walk.until(f"{name!r} not in [item.name for item in chat.composer.attachments]")
    walk.until("not chat.composer.attachments")


def test_a_summary_is_corrected_sent_whole_and_taken_back(walk):
    walk.click(walk.ask("chat.sidebar.tree.model().index(0, 0, chat.sidebar.tree.model().index(0, 0)).data()"))
    walk.until(f"len({FOLDS}) == 1")
    fold = f"chat.transcript.item(-{FOLDS}[0].id)"
    walk.until(f"{fold} is not None")
    scroll_up(walk)  # it is above the rest of the chat
    walk.click("Edit the summary", fold)
    walk.until("app.focusWidget().accessibleName() == 'Edit the summary'")
    walk.key("ctrl+a")
    walk.type("The lights of three harbours were looked at.")
    walk.until("written() == 'The lights of three harbours were looked at.'")
    walk.click("Save", fold)
    walk.until(f"'edited' in says({fold})")
    are_kept(walk, "summary, edited", [("The lights of three harbours were looked at.", 1)])
    walk.picture("summary")
    walk.tick("Send the original messages to the model", fold)
    walk.until(f"{FOLDS}[0].opened")
    are_kept(walk, "opened", [(1,)])
    walk.tick("Send the original messages to the model", fold)
    walk.until(f"not {FOLDS}[0].opened")
    walk.click(walk.until(f"{fold}.fold.accessibleName()"), fold)  # recreated by the last press
    walk.until("'What is part 1?' in reads(chat.transcript)")
    walk.click("Undo this summary", fold)
    walk.until(f"{FOLDS} == []")
    are_kept(walk, "id", [])
    walk.until("len(chat.transcript._keys) == len(chat.controller.tree.path())")


def test_one_goes_back_to_the_end_of_a_long_chat(walk):
    scroll_up(walk)
    walk.until("not chat.transcript.at_end")
    walk.click("Go to the end", "chat.transcript")
    walk.until("chat.transcript.at_end and not chat.transcript._to_end.isVisible()")
    walk.until(f"not {LEAF}.visibleRegion().isEmpty()")


def test_an_answer_that_says_the_same_again_and_again_is_ended_and_can_go_on(walk):
    walk.new_chat()
    walk.click("System prompt and sampling", "chat.bar")
    walk.open_advanced()
    walk.fill("Max tokens", "800", OPTIONS)
    walk.fill("Temperature", "0.00", OPTIONS)  # drawn at random, blanks between the items would differ
    passage = (
        "the lamp of the tower stands above the harbour and its light goes round over the sea until the day begins"
    )
    same = {"type": "array", "items": {"enum": [passage]}, "minItems": 100}
    walk.fill("JSON schema", json.dumps(same), OPTIONS)
    walk.until("'json_schema' in chat.controller.conversation.sampling")
    walk.say("Which lamps are there?")
    walk.until(f"'the answer repeated the same' in says({LEAF})")
    number, length = walk.ask(f"[{LAST}.id, len({LAST}.content)]")
    walk.picture("said-the-same")
    walk.fill("JSON schema", "", OPTIONS)
    walk.until("'json_schema' not in chat.controller.conversation.sampling")
    walk.click("Continue", LEAF)
    walk.until(f"not chat.controller.busy and len({LAST}.content) > {length}")
    assert walk.ask(f"{LAST}.id") == number, "it is the same answer, not another one"
    assert walk.ask(f"{LAST}.status") == "complete"
