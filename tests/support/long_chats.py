"""A long stored chat, compacted against a server; also a separate program that a test can kill.

python -m tests.support.long_chats URL TOKEN STORE CONVERSATION MODEL N_CTX
"""

import sys
from pathlib import Path

from app.client import Client, chat_body
from app.compaction.run import Compaction
from app.db import conversations, messages, summaries
from app.db.store import open_store
from app.gui.chat.request import rendered

WORDS = (
    "The boat went out before the sun was up, and the water lay grey and still between the islands. "
    "We talked about ropes, about the price of tar, and about whether the old engine would last another winter. "
)
# (question, expected word in the answer, message that states the fact)
FACTS = (
    ("What is the name of my dog?", "Biscuit", "Remember this: the name of my dog is Biscuit."),
    ("In which city was I born?", "Trieste", "Remember this: I was born in the city of Trieste."),
    ("What is the code of the gate?", "7301", "Remember this: the code of the gate is 7301."),
)


def fill(connection, tokens, *, words_a_turn=300):
    """Create a chat of about `tokens` tokens with the facts in its first turns; return its id."""
    chat = conversations.create(connection, title="Long", model="m")
    parent, size, turn = None, 0, 0
    while size < tokens:
        said = FACTS[turn][2] + " " if turn < len(FACTS) else f"Turn {turn}. "
        text = said + WORDS * (words_a_turn // 74)
        answer = f"I have noted part {turn} of your log. " + WORDS * (words_a_turn // 150)
        question = messages.add(connection, chat.id, parent, "user", text)
        parent = messages.add(connection, chat.id, question.id, "assistant", answer, model="m").id
        size += (len(text) + len(answer)) // 4
        turn += 1
    return chat.id


def compaction(connection, client, chat_id, model, n_ctx, upto=None, counts=None):
    """Compact a chat like the window does, on this connection; `upto` ends the chat there.

    `counts`: token counts of known texts.
    """
    _, rows, known = messages.whole(connection, chat_id)
    counts = {} if counts is None else counts

    def count(text):
        if text not in counts:
            counts[text] = client.count_tokens(model, text) if text else 0
        return counts[text]

    def keep(part, summary):
        return summaries.add(
            connection, chat_id, part.first_id, part.last_id, summary, takes_in=[f.id for f in part.merges]
        )

    def ask(asked, most):
        return client.answer(chat_body(model, asked, {"max_tokens": most, "temperature": 0, "priority": "side"}))

    alive = [fold for fold in known if fold.inside_id is None]
    return Compaction(rows[:upto], alive, "", n_ctx, ask, keep, rendered, count, lambda m: count(m.content))


def main(url, token, store, chat_id, model, n_ctx):
    connection = open_store(Path(store)).connection
    with Client(url, token) as client:
        print(compaction(connection, client, int(chat_id), model, int(n_ctx)).run(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
