"""The store of chats: power cuts, full disks, damaged files and two writers."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest

from app.db import backup, conversations, messages
from app.db.errors import StoreUnwritable
from app.db.store import MIGRATIONS, open_or_memory, open_store

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys
from pathlib import Path
from app.db import conversations, messages
from app.db.store import open_store
from app.db.store import Store
store = Store(open_store(Path(sys.argv[1])))
chat = store.submit(conversations.create, title="x").result()
print("chat", chat.id, flush=True)
n = 0
while True:
    sent = store.submit(messages.add, chat.id, None, "user", f"message {n}").result()
    print("saved", sent.id, flush=True)          # the acknowledgement
    answer = store.submit(messages.add, chat.id, sent.id, "assistant", "", status="streaming").result()
    for k in range(3):
        store.submit(messages.write_text, answer.id, content="word " * k, reasoning="", status="streaming")
    store.submit(messages.finish, answer.id, content="done", reasoning="", status="complete",
                 facts=NO_FACTS).result()
    n += 1
"""


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_no_acknowledged_message_is_lost_by_200_kills(tmp_path):
    """One long-lived parent kills forked writers, so that 200 kills cost seconds, not minutes."""
    path = tmp_path / "chats.db"
    open_store(path).connection.close()
    forker = """
    import os, signal, sys, random
    from pathlib import Path
    from app.db import conversations, messages
    from app.db.store import open_store
    from app.db.store import Store
    path = Path(sys.argv[1])
    rng = random.Random(7)
    for round_number in range(200):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            store = Store(open_store(path))
            chat = store.submit(conversations.create, title=str(round_number)).result()
            while True:
                sent = store.submit(messages.add, chat.id, None, "user", f"round {round_number}").result()
                os.write(write_end, b"%d\\n" % sent.id)
                answer = store.submit(messages.add, chat.id, sent.id, "assistant", "",
                                      status="streaming").result()
                store.submit(messages.write_text, answer.id, content="w " * 50, reasoning="",
                             status="streaming")
                store.submit(messages.finish, answer.id, content="done", reasoning="",
                             status="complete", facts=NO_FACTS).result()
        os.close(write_end)
        with os.fdopen(read_end) as acknowledged:
            for _ in range(rng.randint(1, 6)):
                print(acknowledged.readline().strip(), flush=True)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for line in acknowledged.read().split():
                print(line, flush=True)
    """
    with start(forker, path) as process:
        saved = [int(line) for line in process.stdout.read().split()]
        assert process.wait(timeout=100) == 0
    assert len(saved) >= 200
    opened = open_store(path)
    assert opened.quarantined is None
    kept = {row[0] for row in opened.connection.execute("SELECT id FROM messages WHERE role = 'user'")}
    assert set(saved) <= kept
    assert opened.connection.pragma("integrity_check") == "ok"
    opened.connection.execute("INSERT INTO messages_index(messages_index) VALUES ('integrity-check')")
    opened.connection.close()


def test_a_kill_of_a_separate_process_keeps_what_it_acknowledged(tmp_path):
    path = tmp_path / "chats.db"
    with start(WRITER, path) as process:
        saved = []
        for line in process.stdout:
            if line.startswith("saved"):
                saved.append(int(line.split()[1]))
            if len(saved) == 20:
                process.kill()
                break
        saved += [int(line.split()[1]) for line in process.stdout if line.startswith("saved")]
    opened = open_store(path)
    kept = {row[0] for row in opened.connection.execute("SELECT id FROM messages WHERE role = 'user'")}
    assert set(saved) <= kept
    statuses = {row[0] for row in opened.connection.execute("SELECT DISTINCT status FROM messages")}
    assert statuses <= {"complete", "interrupted"}
    opened.connection.close()


@pytest.mark.skipif(os.name != "posix", reason="file size limits are POSIX")
def test_a_full_disk_refuses_and_the_next_write_succeeds(tmp_path):
    """RLIMIT_FSIZE makes the kernel refuse growth of the files, as a full disk does."""
    code = """
    import resource, signal, sys
    from pathlib import Path
    from app.db import conversations, messages
    from app.db.store import open_store
    from app.db.errors import StoreUnwritable
    from app.db.store import Store
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = Path(sys.argv[1])
    store = Store(open_store(path))
    chat = store.submit(conversations.create, title="x").result()
    first = store.submit(messages.add, chat.id, None, "user", "before").result()
    size = sum(f.stat().st_size for f in path.parent.iterdir() if f.is_file())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    refused = 0
    for n in range(3):
        try:
            store.submit(messages.add, chat.id, first.id, "user", "x" * (1 << 20)).result()
        except StoreUnwritable as error:
            assert error.reason, error
            refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.submit(messages.add, chat.id, first.id, "user", "after").result()
    texts = [m.content for m in store.submit(messages.of_conversation, chat.id).result()]
    assert texts == ["before", "after"], texts
    assert store.opened.connection.pragma("integrity_check") == "ok"
    store.close()
    print("refused", refused)
    """
    with start(code, tmp_path / "chats.db") as process:
        out = process.stdout.read()
        assert process.wait(timeout=100) == 0
    assert out.split() == ["refused", "3"]


@pytest.mark.parametrize(
    ("old_version", "killed_step"), list(itertools.combinations_with_replacement(range(len(MIGRATIONS)), 2))
)
def test_a_kill_inside_a_migration_leaves_the_old_format_or_the_new(tmp_path, old_version, killed_step):
    path = tmp_path / "chats.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    for step in range(old_version):
        connection.execute(MIGRATIONS[step])
    connection.pragma("user_version", old_version)
    if old_version:
        connection.execute("INSERT INTO conversations(title, created_s) VALUES ('old', 1)")
        connection.execute(
            "INSERT INTO messages(conversation_id, role, content, created_s) VALUES (1, 'user', 'old words', 1)"
        )
    connection.close()
    child = os.fork()
    if child == 0:
        open_store(path, before_step=lambda s: s == killed_step and os.kill(os.getpid(), signal.SIGKILL))
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    if old_version:
        (copy,) = backup.backups(path)
        saved = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
        assert saved.pragma("user_version") == old_version
        assert saved.execute("SELECT content FROM messages").get == "old words"
        saved.close()
    half = apsw.Connection(str(path))
    assert half.pragma("user_version") == killed_step
    half.close()
    opened = open_store(path)
    assert opened.quarantined is None
    assert opened.connection.pragma("user_version") == len(MIGRATIONS)
    assert opened.connection.pragma("integrity_check") == "ok"
    if old_version:
        found = opened.connection.execute(
            "SELECT count(*) FROM messages_index WHERE messages_index MATCH 'words'"
        ).get
        assert found == 1
        assert messages.of_conversation(opened.connection, 1)[0].content == "old words"
    opened.connection.close()


def test_a_home_that_cannot_be_written_works_in_memory(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    store, reason = open_or_memory(blocked / "below" / "chats.db")
    assert isinstance(reason, StoreUnwritable)
    assert store.in_memory
    assert store.submit(conversations.create, title="still works").result().title == "still works"
    assert store.back_up_daily(3) is None
    store.close()


def test_spaces_and_odd_letters_in_the_path(tmp_path):
    path = tmp_path / "a b ü ☃" / "chats #1?.db"
    opened = open_store(path)
    conversations.create(opened.connection, title="x")
    opened.connection.close()
    assert path.exists()
