"""Compaction killed again and again: no message is lost, no fold is incomplete, and it continues to the end."""

import json
import random
import subprocess
import sys
import time

import pytest

from app.client import Client
from app.compaction import plan
from app.db import messages, summaries
from app.db.store import open_store
from tests.support.long_chats import compaction, fill
from tests.support.servers import ROOT, RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
N_CTX = 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = RunningServer(tmp_path_factory.mktemp("compaction"))
    yield running
    running.stop()


def test_nothing_is_lost_when_it_is_killed(server, tmp_path):
    store = tmp_path / "chats.db"
    connection = open_store(store).connection
    chat_id = fill(connection, 9_000, words_a_turn=150)
    before = messages.of_conversation(connection, chat_id)
    connection.close()
    pick = random.Random(4)
    told = json.loads((server.home / "state" / "server.json").read_text())
    command = [
        sys.executable,
        "-m",
        "tests.support.long_chats",
        server.url,
        told["token"],
        str(store),
        str(chat_id),
        "spark",
    ]
    kills = 0
    for _ in range(5):
        process = subprocess.Popen([*command, str(N_CTX)], cwd=ROOT)
        time.sleep(1.0 + pick.random() * 2)
        kills += process.poll() is None
        process.kill()
        process.wait()
        opened = open_store(store)
        connection = opened.connection
        assert opened.quarantined is None
        assert messages.of_conversation(connection, chat_id) == before
        known = summaries.of_conversation(connection, chat_id)
        assert all(fold.summary.strip() for fold in known)
        for fold in plan.in_force(before, known):
            assert plan.inside(before, fold)
        connection.close()
    assert kills >= 1, "it was over before it could be killed"
    connection = open_store(store).connection
    with Client(server.url, server.token) as client:
        work = compaction(connection, client, chat_id, "spark", N_CTX)
        work.run()
        assert work.tokens() < plan.FOLD_AT * N_CTX
    assert messages.of_conversation(connection, chat_id) == before
    assert len(summaries.of_conversation(connection, chat_id)) >= 8
    connection.close()
