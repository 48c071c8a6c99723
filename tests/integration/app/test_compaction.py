"""The rules of compaction without a model: which messages are summarized, sent and restored."""

import dataclasses
from types import SimpleNamespace

import pytest

from app.client import ChatDelta
from app.compaction import plan
from app.compaction.run import Compaction, put_together, quotes_in, quotes_of, text_question
from app.db import conversations, messages, summaries
from app.db.records import Message
from app.db.store import open_in_memory
from app.gui.chat.request import rendered


def count(text):
    return len(text) // 4


def of(message):
    return count(message.content)


@pytest.fixture
def db():
    return open_in_memory().connection


def chat_of(db, turns, size=200):
    chat = conversations.create(db, title="x")
    parent = None
    for turn in range(turns):
        parent = messages.add(db, chat.id, parent, "user", f"question {turn} " + "q" * size).id
        parent = messages.add(db, chat.id, parent, "assistant", f"answer {turn} " + "a" * size).id
    return chat.id, messages.of_conversation(db, chat.id)


class Words:
    """A stream with one text."""

    def __init__(self, text):
        self._text = text

    def __iter__(self):
        yield ChatDelta(text=self._text)

    def close(self):
        pass


def compaction(db, chat_id, path, n_ctx, asked=None):
    def keep(part, summary):
        takes = [fold.id for fold in part.merges]
        return summaries.add(db, chat_id, part.first_id, part.last_id, summary, takes_in=takes)

    def ask(sent, most):
        if asked is not None:
            asked.append(sent)
        return Words(f"Summary. {'s' * 120}")

    known = [fold for fold in summaries.of_conversation(db, chat_id) if fold.inside_id is None]
    return Compaction(path, known, "Be brief.", n_ctx, ask, keep, rendered, count, of)


def test_a_long_chat_fits_after_compaction_and_every_message_is_in_exactly_one_place(db):
    chat_id, path = chat_of(db, 120)
    asked = []
    made = compaction(db, chat_id, path, 1000, asked).run()
    assert made >= 8
    known = summaries.of_conversation(db, chat_id)
    what = plan.sent(path, known)
    assert plan.tokens_of(what, "Be brief.", count, of) < 700
    covered = [m.id for fold in plan.in_force(path, known) for m in plan.inside(path, fold)]
    assert covered + [m.id for m in what.messages] == [m.id for m in path]
    assert what.messages[0].role == "user"
    assert any(fold.inside_id for fold in known), "old summaries were summarized together"
    assert all(sum(count(m["content"]) for m in sent) < 1000 for sent in asked)


def test_a_summary_is_asked_for_behind_what_the_model_has_read_already(db):
    chat_id, path = chat_of(db, 7)
    asked = []
    compaction(db, chat_id, path, 1000, asked).run()
    (sent,) = asked
    assert sent[0] == {"role": "system", "content": "Be brief."}
    assert sent[1:-1] == rendered(path[: len(sent) - 2])


def test_a_fold_opens_closes_is_edited_and_taken_back_and_messages_are_as_they_were(db):
    chat_id, path = chat_of(db, 120)
    compaction(db, chat_id, path, 1000).run()
    outer = plan.in_force(path, summaries.of_conversation(db, chat_id))[0]
    inner = [f.id for f in summaries.of_conversation(db, chat_id) if f.inside_id == outer.id]
    summaries.rewrite(db, outer.id, "My words.")
    assert plan.sent(path, summaries.of_conversation(db, chat_id)).summaries[0].summary == "My words."
    summaries.set_opened(db, outer.id, opened=True)
    opened = plan.sent(path, summaries.of_conversation(db, chat_id))
    assert opened.messages[0] == path[0]
    summaries.remove(db, outer.id)
    assert inner
    back = plan.in_force(path, summaries.of_conversation(db, chat_id))
    assert {fold.id for fold in back[: len(inner)]} == set(inner)
    assert messages.of_conversation(db, chat_id) == path


def test_another_branch_keeps_only_the_folds_that_are_its_own(db):
    chat_id, path = chat_of(db, 12)
    compaction(db, chat_id, path, 1000).run()
    known = summaries.of_conversation(db, chat_id)
    assert plan.in_force(path, known)
    branch = [path[0], path[1], dataclasses.replace(path[2], id=9999)]
    assert plan.in_force(branch, known) == []


def test_the_last_question_is_never_folded_and_one_that_is_too_long_alone_is_left(db):
    chat_id, path = chat_of(db, 1, size=10_000)
    assert compaction(db, chat_id, path, 1000).run() == 0
    chat_id, path = chat_of(db, 2, size=20_000)
    asked = []
    assert compaction(db, chat_id, path, 1000, asked).run() == 1
    assert count(asked[0][0]["content"]) < 1000
    assert "characters left out" in asked[0][0]["content"]


def test_names_numbers_and_wishes_are_kept_word_for_word_through_every_later_summary():
    said = [
        Message(1, 1, None, "user", "It rained. My boat is called Alma. The code is 7301, remember it. Nice, yes?"),
        Message(2, 1, 1, "assistant", "Noted: 7301."),
    ]
    quotes = quotes_of(said)
    assert quotes == ["My boat is called Alma.", "The code is 7301, remember it."]
    fold = SimpleNamespace(summary=put_together("They talked.", quotes))
    again = SimpleNamespace(summary=put_together("Later.", quotes_in([fold])))
    assert quotes_in([again]) == quotes
    assert len(text_question(said * 1000, 5000)) < 6000
