"""A chat of 60,000 tokens in a context of 8,192: compacted with the real model, searched, opened, asked.

    python -m tests.bench.long_chat [--tokens 60000] [--context 8192] [--home FOLDER] [--threads N]

With --home a stopped run continues where it was; --threads 1 is faster beside programs that take the cores.
Prints how often it was compacted, what that took, whether the facts planted early stand in the folds, and what the
model answers from the summaries and from the opened originals.
"""

import argparse
import tempfile
import time
from pathlib import Path

from app.client import ChatResponse, Client, chat_body
from app.compaction import plan
from app.db import conversations, messages, summaries
from app.db.conversations import search
from app.db.store import open_store
from app.gui.chat.request import rendered
from engine.placement.model_settings import ModelSettingsStore
from engine.runner.engine_args import EngineArgs
from tests.support.long_chats import FACTS, compaction, fill
from tests.support.servers import RunningServer

MODEL = "smollm2-135m-instruct"


def answer(client, what, question):
    prompt = plan.system_prompt("", what.summaries)
    asked = [{"role": "system", "content": prompt}] if prompt else []
    asked += [*rendered(what.messages), {"role": "user", "content": question}]
    whole = ChatResponse()
    for piece in client.answer(chat_body(MODEL, asked, {"max_tokens": 40, "temperature": 0})):
        whole.take(piece)
    return whole


def prepared(given, threads):
    """The folder of the server and the chat: a new one, or the one of a run that was stopped."""
    source = next((Path.home() / ".cache" / "tessera" / "models").glob("smollm2-135m-instruct*.gguf"))
    home = given or Path(tempfile.mkdtemp())
    (home / "models").mkdir(parents=True, exist_ok=True)
    file = home / "models" / f"{MODEL}.gguf"
    if not file.exists():
        file.symlink_to(source)
    args = EngineArgs(n_threads=threads, n_threads_batch=threads) if threads else EngineArgs()
    ModelSettingsStore(home / "config" / "model_settings.json").change(MODEL, engine_args=args)
    (home / "state" / "server.json").unlink(missing_ok=True)  # a run that was killed leaves it
    return home


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--tokens", type=int, default=60_000)
    options.add_argument("--context", type=int, default=8192)
    options.add_argument("--home", type=Path)
    options.add_argument("--threads", type=int, default=0)
    given = options.parse_args()
    home = prepared(given.home, given.threads)
    server = RunningServer(home)
    try:
        connection = open_store(home / "chats.db").connection
        chats = conversations.listing(connection)
        chat_id = chats[0].id if chats else fill(connection, given.tokens)
        path = messages.of_conversation(connection, chat_id)
        with Client(server.url, server.token) as client:
            counts = {}
            whole = compaction(connection, client, chat_id, MODEL, given.context, counts=counts)
            print(f"{len(path)} messages, {sum(whole.of(m) for m in path)} tokens")
            begun, made = time.monotonic(), 0
            # As it grows: after every turn that leaves the context too full, as in the window's idle time.
            kept = summaries.of_conversation(connection, chat_id)
            places = {message.id: place for place, message in enumerate(path)}
            reached = max((places[fold.last_id] + 1 for fold in kept), default=0)
            if kept:
                print(f"{len(kept)} folds from before, up to message {reached}", flush=True)
            for upto in range(reached + 2, len(path) + 1, 2):
                new = compaction(connection, client, chat_id, MODEL, given.context, upto, counts).run()
                made += new
                if new:  # an hour's run that is stopped has printed this much
                    print(f"message {upto}: {made} folds after {time.monotonic() - begun:.0f} s", flush=True)
            known = summaries.of_conversation(connection, chat_id)
            took = f"{made} folds in {time.monotonic() - begun:.0f} s"
            print(f"{took}, {len(known)} in all, {len(plan.in_force(path, known))} in force", flush=True)
            now = compaction(connection, client, chat_id, MODEL, given.context, counts=counts)
            print(f"context now {now.tokens()} tokens", flush=True)
            for question, expected, said in FACTS:
                hit = search(connection, expected)[-1]
                holding = [f for f in known if f.first_id <= hit.message_id <= f.last_id]
                fold = next(f for f in holding if f.inside_id is None)
                held = expected in fold.summary
                folded = answer(client, plan.sent(path, known), question).content
                # The innermost summary, opened: the one made first; the outer ones are replaced by it.
                innermost = min(holding, key=lambda f: f.last_id - f.first_id)
                what = plan.sent(path, known)
                originals = tuple(plan.inside(path, innermost))
                opened = answer(
                    client, plan.CompactedContext(what.summaries[1:], (*originals, *what.messages[-2:])), question
                ).content
                print(f"{expected}: found in fold {fold.id}, in its summary {held}, said {said!r}")
                print(f"   from the summaries: {expected in folded} {folded!r}")
                print(f"   from the originals: {expected in opened} {opened!r}", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
