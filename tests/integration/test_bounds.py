"""Each object that a caller can make is made until it is refused; the table is in SECURITY.md."""

import asyncio
import contextlib
import re
from pathlib import Path

import pytest

from app.db.memories import MemoryRefused, add_memory, remove_memory
from app.db.store import open_store
from app.imports.read import read_chats
from app.imports.types import ImportFailed
from app.tools.mcp_config import BadMcpConfig, read_mcp_config
from engine.core.errors import InputFault
from engine.core.keys import KeyStore
from engine.core.ownership import request_owner
from engine.core.paths import Paths
from engine.documents import collection_config
from engine.documents.collection_config import Definitions
from engine.jobs.jobs import JobKind, JobRegistry, Paused
from engine.library.catalogue import Catalogue
from engine.library.importing import link
from engine.placement.model_settings import ModelSettingsStore
from engine.remotes.registry import RemoteRegistry
from engine.remotes.types import Remote
from engine.server.middleware import MAX_HELD_BYTES, MAX_HELD_BYTES_OF_A_KEY, HeldBytes
from engine.server.openai.files import Files
from engine.server.openai.vector_stores import FileBatches
from engine.server.response_store.background import BackgroundJobs
from engine.server.response_store.conversations import Conversation, ConversationStore
from engine.server.response_store.responses import ResponseStore
from engine.server.streams import Making, StreamRegistry
from engine.upstreams.registry import UpstreamRegistry

SMALL = 5
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def sent_by(owner):
    before = request_owner.set(owner)
    try:
        yield
    finally:
        request_owner.reset(before)


def files(folder):
    store = Files(Paths(*[folder] * 5))
    return lambda n: store.add(f"{n}.txt", "user_data", b"x" * 100).id, store.remove


def stores(folder):
    made = Definitions(folder / "collections.json")
    return lambda n: made.add(f"s{n}", "vs", owner=request_owner.get()).id, made.remove


def collections(folder):
    made = Definitions(folder / "collections.json")
    return lambda n: made.add(f"c{n}").id, made.remove


def keys(folder):
    made = KeyStore(folder / "keys.json")
    return lambda n: made.add(f"k{n}", ("chat",)) and f"k{n}", made.remove


def aliases(folder):
    made = ModelSettingsStore(folder / "settings.json")
    return lambda n: made.set_alias(f"a{n}", "model") or f"a{n}", made.remove_alias


def upstreams(folder):
    made = UpstreamRegistry(folder)
    return lambda n: made.add(f"u{n}", f"http://127.0.0.1:{n + 1}").name, made.remove


def remotes(folder):
    made = RemoteRegistry(folder / "remotes.json")

    def make(n):
        made.put(Remote(name=f"r{n}", host=f"h{n}", user="u", host_key="ssh-ed25519 AAAA"))
        return f"r{n}"

    return make, made.remove


def facts(folder):
    store = open_store(folder / "chats.db").connection

    def make(n):
        return add_memory(store, f"fact {n}").id

    return make, lambda n: remove_memory(store, n)


def jobs(folder):
    registry = JobRegistry(folder / "jobs.json")

    def pause(params, control):
        control.check()
        raise Paused

    registry.register(JobKind.VERIFY, pause)

    def make(n):
        made = registry.start(JobKind.VERIFY, str(n), {}).id
        registry.wait(made)
        return made

    def remove(name):
        registry.cancel(name)
        registry.wait(name)

    return make, remove


# Row of the table: the location of its limit, and the functions that make and delete one by number and name.
REFUSED = {
    "uploaded file": ("engine.server.openai.files.MAX_FILES", files),
    "bytes of uploaded files": ("engine.server.openai.files.MAX_BYTES", files),
    "vector store": ("engine.documents.collection_config.MAX_COLLECTIONS", stores),
    "collection": ("engine.documents.collection_config.MAX_COLLECTIONS", collections),
    "API key": ("engine.core.keys.MAX_KEYS", keys),
    "alias": ("engine.placement.model_settings.MAX_ALIASES", aliases),
    "upstream": ("engine.upstreams.registry.MOST", upstreams),
    "remote computer": ("engine.remotes.registry.MOST", remotes),
    "remembered fact": ("app.db.memories.MAX_MEMORIES", facts),
    "unfinished job": ("engine.jobs.jobs.MAX_JOBS", jobs),
}
OF_A_KEY = {
    "uploaded file": ("engine.server.openai.files.MAX_FILES_OF_A_KEY", files),
    "bytes of uploaded files": ("engine.server.openai.files.MAX_BYTES_OF_A_KEY", files),
    "vector store": ("engine.documents.collection_config.MAX_OF_A_KEY", stores),
}
ELSEWHERE = {
    "conversation",
    "response",
    "background response",
    "resumable stream",
    "file batch",
    "values of an imported chat export",
    "bytes of tool server settings",
    "linked folder",
}


def limited(monkeypatch, kind, where):
    monkeypatch.setattr(where, SMALL * 100 if kind.startswith("bytes") else SMALL)


@pytest.mark.parametrize("kind", REFUSED)
def test_more_is_refused_and_room_comes_back(tmp_path, monkeypatch, kind):
    where, kind_of = REFUSED[kind]
    limited(monkeypatch, kind, where)
    make, remove = kind_of(tmp_path)
    made = [make(n) for n in range(SMALL)]
    for _ in range(3):
        with pytest.raises((InputFault, MemoryRefused)):
            make(SMALL)
    remove(made[2])
    make(SMALL)
    with pytest.raises((InputFault, MemoryRefused)):
        make(SMALL + 1)


@pytest.mark.parametrize("kind", OF_A_KEY)
def test_one_key_leaves_room_for_others(tmp_path, monkeypatch, kind):
    where, kind_of = OF_A_KEY[kind]
    limited(monkeypatch, kind, where)
    make, _ = kind_of(tmp_path)
    with sent_by("one"):
        for n in range(SMALL):
            make(n)
        with pytest.raises(InputFault):
            make(SMALL)
    with sent_by("other"):
        make(SMALL)


def response(store, number):
    body = {"id": f"resp_{number}", "output": [{"id": f"msg_{number}", "type": "message"}]}
    store.put(body, [], ())


def test_the_oldest_of_the_largest_owner_goes(monkeypatch):
    monkeypatch.setattr("engine.server.response_store.conversations.MAX_CONVERSATIONS", SMALL)
    monkeypatch.setattr("engine.server.response_store.responses.MAX_RESPONSES", SMALL)
    talks, answers = ConversationStore(), ResponseStore()
    with sent_by("one"):
        first = Conversation({})
        talks.put(first)
        response(answers, "first")
    with sent_by("other"):
        for n in range(4 * SMALL):
            talks.put(Conversation({}))
            response(answers, n)
    assert talks.get(first.id) is first
    assert answers.get("resp_first").owner == "one"
    with sent_by("other"), pytest.raises(InputFault):
        answers.item("msg_3", "input")
    assert answers.item(f"msg_{4 * SMALL - 1}", "input")


async def endless():
    await asyncio.Event().wait()
    yield b""


def test_a_response_that_is_discarded_is_gone_and_one_that_is_gone_already_is_no_error():
    answers = ResponseStore()
    response(answers, "first")
    answers.discard("resp_first")
    with pytest.raises(InputFault):
        answers.get("resp_first")
    answers.discard("resp_first")


def test_running_work_is_bounded_and_ends(monkeypatch):
    monkeypatch.setattr("engine.server.response_store.background.MAX_RUNNING", SMALL)
    monkeypatch.setattr("engine.server.streams.MAX_STREAMS", SMALL)

    class Items:
        def __init__(self, number):
            self.response = {"id": f"resp_{number}", "status": "in_progress"}

    async def fill():
        jobs, streams = BackgroundJobs(), StreamRegistry()
        making = Making(endless(), lambda _: b"", lambda: b"")
        running = []
        for number in range(SMALL):
            jobs.start(Items(number), endless())
            reading = streams.made("key", f"talk {number}", Making(endless(), lambda _: b"", lambda: b""))
            running.append(asyncio.ensure_future(anext(reading)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(InputFault):
            jobs.start(Items(SMALL), endless())
        with pytest.raises(InputFault):
            await anext(streams.made("key", "one more", making))
        jobs.forget("resp_0")
        await asyncio.sleep(0)
        jobs.start(Items(SMALL), endless())
        await streams.close()
        for task in running:
            task.cancel()

    asyncio.run(fill())


def test_running_work_of_one_key_leaves_room_for_others(monkeypatch):
    monkeypatch.setattr("engine.server.response_store.background.MAX_RUNNING_OF_A_KEY", SMALL)
    monkeypatch.setattr("engine.server.streams.MAX_STREAMS_OF_A_KEY", SMALL)

    class Items:
        def __init__(self, number):
            self.response = {"id": f"resp_{number}", "status": "in_progress"}

    async def fill():
        jobs, streams, running = BackgroundJobs(), StreamRegistry(), []

        def stream(key, name):
            reading = streams.made(key, name, Making(endless(), lambda _: b"", lambda: b""))
            running.append(asyncio.ensure_future(anext(reading)))

        with sent_by("many"):
            for number in range(SMALL):
                jobs.start(Items(number), endless())
                stream("many", f"talk {number}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            with pytest.raises(InputFault, match=f"{SMALL} answers are being made in the background for you"):
                jobs.start(Items(SMALL), endless())
            with pytest.raises(InputFault, match=f"{SMALL} streams of yours"):
                await anext(streams.made("many", "one more", Making(endless(), lambda _: b"", lambda: b"")))
        with sent_by("one"):
            jobs.start(Items("other"), endless())
            stream("one", "talk")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert streams.find("one", "talk")
        await streams.close()
        for number in (*range(SMALL), "other"):
            jobs.forget(f"resp_{number}")
        for task in running:
            task.cancel()

    asyncio.run(fill())


async def one_event():
    yield b"event"


def test_finished_work_of_one_key_does_not_displace_that_of_another(monkeypatch):
    monkeypatch.setattr("engine.server.response_store.background.MAX_FINISHED", SMALL)
    monkeypatch.setattr("engine.server.streams.MAX_STREAMS", SMALL)
    monkeypatch.setattr("engine.server.openai.vector_stores.MAX_BATCHES", SMALL)

    class Items:
        def __init__(self, number):
            self.response = {"id": f"resp_{number}", "status": "in_progress"}

    async def fill():
        jobs, streams, batches = BackgroundJobs(), StreamRegistry(), FileBatches()

        async def work(key, number):
            with sent_by(key):
                job = jobs.start(Items(number), one_event())
                async for _ in streams.made(key, number, Making(one_event(), lambda _: b"", lambda: b"")):
                    pass
                await job.task
                return batches.add("vs_1", (f"file-{number}",))

        batch = await work("one", "first")
        for number in range(4 * SMALL):
            await work("many", str(number))
        with sent_by("one"):
            assert jobs.find("resp_first")
            assert streams.find("one", "first").done
            assert batches.get("vs_1", batch).files == ("file-first",)
        with sent_by("many"):
            assert jobs.find(f"resp_{4 * SMALL - 1}")
            assert not jobs.find("resp_0")
            with pytest.raises(InputFault):
                streams.find("many", "0")

    asyncio.run(fill())


def test_the_events_of_finished_answers_have_a_limit_of_bytes(monkeypatch):
    monkeypatch.setattr("engine.server.response_store.background.MAX_FINISHED_BYTES", 2 * len(b"event"))

    class Items:
        def __init__(self, number):
            self.response = {"id": f"resp_{number}", "status": "in_progress"}

    async def fill():
        jobs = BackgroundJobs()
        for number in range(SMALL):
            await jobs.start(Items(number), one_event()).task
        jobs.start(Items(SMALL), one_event())
        return [number for number in range(SMALL) if jobs.find(f"resp_{number}")]

    assert asyncio.run(fill()) == [3, 4]


def test_large_bodies_of_one_key_leave_room_for_those_of_others():
    held = HeldBytes()
    held.change("many", MAX_HELD_BYTES_OF_A_KEY + 1)
    held.change("one", 1)
    assert held.is_full("many")
    assert not held.is_full("one")
    held.change("many", -1)
    assert not held.is_full("many")
    shared = HeldBytes()  # without keys
    shared.change("", MAX_HELD_BYTES)
    assert not shared.is_full("")
    shared.change("", 1)
    assert shared.is_full("")


def test_an_export_with_more_values_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("app.imports.read.MAX_VALUES", SMALL)
    path = tmp_path / "export.json"
    path.write_text("[1, 2, 3, 4, 5, 6, 7]")
    with pytest.raises(ImportFailed, match="5 values"):
        read_chats(path)


def test_more_linked_folders_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.library.importing.MAX_FOLDERS", SMALL)
    catalogue = Catalogue(Paths(*[tmp_path / "home"] * 5))
    for number in range(SMALL + 1):
        (tmp_path / str(number)).mkdir()
    for number in range(SMALL):
        link(catalogue, str(tmp_path / str(number)))
    with pytest.raises(InputFault, match="5 linked folders"):
        link(catalogue, str(tmp_path / str(SMALL)))
    link(catalogue, str(tmp_path / "0"))  # it is there already
    catalogue.close()


def test_larger_settings_of_tool_servers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("app.tools.mcp_config.MAX_CONFIG_BYTES", SMALL)
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}')
    with pytest.raises(BadMcpConfig):
        read_mcp_config(path)


def test_the_table_has_exactly_these_rows():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = text.partition("| Object |")[2].partition("\n\n")[0]
    rows = {re.split(r"\s*\|\s*", line)[1] for line in table.splitlines()[2:]}
    assert rows == REFUSED.keys() | OF_A_KEY.keys() | ELSEWHERE
    assert f"{collection_config.MAX_OF_A_KEY:,}" in table
