"""Model names and lifetimes: aliases, manual loading and unloading, time to live, pins."""

import asyncio
import errno
import threading
import time

import httpx2
import pytest

from engine.core.errors import InputFault, NotEnoughMemory
from engine.placement.model_settings import ModelSettingsStore
from engine.placement.types import ModelSettings
from engine.pool.model_resolution import ResolvedModel
from engine.runner.protocol import LoadSettings
from engine.server import sse
from tests.support.fakes.free_pool import FreePool, Unlimited
from tests.support.fakes.scripted import TOKEN, ScriptedServer, starter

MANAGE = {"authorization": f"Bearer {TOKEN}"}


def chat(server, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    return httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def test_aliases_and_patterns_stand_for_a_model(scripted):
    put = httpx2.put(f"{scripted.url}/tessera/v1/aliases/claude-*", json={"model": "spark"}, headers=MANAGE)
    assert put.json() == {"alias": "claude-*", "model": "spark"}
    answer = chat(scripted, "claude-opus-9")
    assert (answer.status_code, answer.json()["model"]) == (200, "claude-opus-9")
    gone = httpx2.delete(f"{scripted.url}/tessera/v1/aliases/claude-*", headers=MANAGE)
    assert gone.status_code == 204
    assert chat(scripted, "claude-opus-9").status_code == 404
    assert httpx2.delete(f"{scripted.url}/tessera/v1/aliases/claude-*", headers=MANAGE).status_code == 404


def test_a_pattern_hides_no_model_and_no_alias_takes_a_models_name(scripted):
    names = scripted.state.models.user_settings
    names.set_alias("sp*", "no-such")
    try:
        assert chat(scripted, "spark").status_code == 200
        assert chat(scripted, "Spark (demo)").status_code == 200, "its other name"
        assert chat(scripted, "spare").status_code == 404
    finally:
        names.remove_alias("sp*")
    refused = httpx2.put(f"{scripted.url}/tessera/v1/aliases/Spark", json={"model": "spark"}, headers=MANAGE)
    assert refused.status_code == 400
    assert "There is already a model named 'Spark'." in refused.text


def test_an_alias_of_nothing_is_refused(scripted):
    put = httpx2.put(f"{scripted.url}/tessera/v1/aliases/a", json={"model": "no-such"}, headers=MANAGE)
    assert put.status_code == 404


def test_a_name_is_in_every_list_and_a_pattern_in_none(scripted):
    for alias in ("gpt-4o", "gpt-5*"):
        put = httpx2.put(f"{scripted.url}/tessera/v1/aliases/{alias}", json={"model": "spark"}, headers=MANAGE)
        assert put.status_code == 200
    try:
        rows = {row["id"]: row for row in httpx2.get(f"{scripted.url}/v1/models", headers=MANAGE).json()["data"]}
        assert (rows["gpt-4o"]["alias_of"], rows["gpt-4o"]["name"], rows["gpt-4o"]["default"]) == (
            "spark", "gpt-4o", False,
        )  # fmt: skip
        assert rows["gpt-4o"]["context_length"] == rows["spark"]["context_length"]
        tags = {row["name"] for row in httpx2.get(f"{scripted.url}/api/tags", headers=MANAGE).json()["models"]}
        assert {"gpt-4o:latest", "spark:latest"} <= tags
        assert not {"gpt-5*", "gpt-5*:latest"} & (tags | rows.keys())
    finally:
        for alias in ("gpt-4o", "gpt-5*"):
            httpx2.delete(f"{scripted.url}/tessera/v1/aliases/{alias}", headers=MANAGE)


def test_aliases_survive_and_follow_the_file(tmp_path):
    path = tmp_path / "config" / "model_settings.json"
    one, other = ModelSettingsStore(path), ModelSettingsStore(path)
    one.set_alias("GPT-4o", "spark")
    one.set_alias("gpt-*", "other")
    assert other.resolve("gpt-4o") == "spark"
    assert other.resolve("gpt-5-mini") == "other"
    assert other.resolve("llama") == "llama"
    assert other.resolve("gpt-oss", {"gpt-oss": 1}.get) == "gpt-oss", "a pattern hides no model"
    assert other.resolve("gpt-4o", {"gpt-4o": 1}.get) == "spark"
    other.remove_alias("gpt-4o")
    path.write_text("{ damaged")
    assert ModelSettingsStore(path).aliases() == {}
    with pytest.raises(InputFault):
        one.set_alias(" ", "spark")


def test_load_and_unload_by_hand(scripted):
    url = f"{scripted.url}/tessera/v1/models"
    loaded = httpx2.post(f"{url}/spark/load", json={"pinned": True, "ttl_s": 5}, headers=MANAGE).json()
    assert loaded["state"] == "loaded"
    assert loaded["pinned"]
    assert loaded["expires_in_s"] is None
    assert [m["id"] for m in httpx2.get(f"{scripted.url}/tessera/v1/loaded", headers=MANAGE).json()["models"]] == [
        "spark"
    ]
    assert httpx2.post(f"{url}/spark/unload", headers=MANAGE).json() == {"id": "spark", "unloaded": True}
    assert httpx2.post(f"{url}/spark/unload", headers=MANAGE).json()["unloaded"] is False
    assert httpx2.post(f"{url}/nothing/load", headers=MANAGE).status_code == 404
    assert httpx2.post(f"{url}/spark/load", json={"ttl_s": -1}, headers=MANAGE).status_code == 400


def test_a_load_takes_what_other_programs_send(scripted):
    url = f"{scripted.url}/tessera/v1/models/spark"

    def load(**body):
        return httpx2.post(f"{url}/load", json=body, headers=MANAGE)

    first = load().json()
    try:
        for name in ("n_ctx", "ctx", "num_ctx", "context_length"):
            assert load(**{name: 300}).json()["n_ctx"] == first["n_ctx"], "it has more than that"
            assert load(**{name: 0}).status_code == 400
        stays = load(n_parallel=2, kv_type="q8_0", keep_alive=-1).json()
        assert (stays["state"], stays["ttl_s"], stays["pid"]) == ("loaded", None, stays["pid"])
        chosen = httpx2.get(f"{url}/load-settings", headers=MANAGE).json()["user"]
        assert (chosen["n_parallel"], chosen["kv_type"]) == (2, "q8_0")
        assert load(keep_alive=60).json()["ttl_s"] == 60
        assert load(kv_type="q9").status_code == 400
        assert load(keep_alive=0).json()["error"]["param"] == "keep_alive"
    finally:
        httpx2.put(f"{url}/load-settings", json={}, headers=MANAGE)


def test_idle_work_loads_no_model(scripted):
    body = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "priority": "side"}

    def asked(**more):
        return httpx2.post(f"{scripted.url}/v1/chat/completions", json=body | more, timeout=60)

    def loaded():
        return httpx2.get(f"{scripted.url}/tessera/v1/loaded", headers=MANAGE).json()["models"]

    refused = asked()
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_not_loaded")
    assert '"model_not_loaded"' in asked(stream=True).text
    assert loaded() == []
    httpx2.post(f"{scripted.url}/tessera/v1/models/spark/load", json={}, headers=MANAGE).raise_for_status()
    assert asked().status_code == 200
    httpx2.post(f"{scripted.url}/tessera/v1/models/spark/unload", headers=MANAGE).raise_for_status()
    assert asked().status_code == 409
    assert loaded() == []


class Source:
    async def resolve(self, model, min_ctx=0):
        return ResolvedModel(model_id=model, engine="fake", settings=LoadSettings(path=model))

    def chosen(self, model):
        return ModelSettings()


class OneFits(Unlimited):
    """Admits one model."""

    def __init__(self):
        self.held = []

    async def reserve(self, model_id, settings, placement=None):
        if self.held:
            raise NotEnoughMemory(2, 1, "cpu")
        self.held.append(model_id)

    def attach(self, model_id, pid, buffers):
        assert model_id in self.held

    async def unloading(self, model_id, cached_bytes):
        assert model_id in self.held

    def release(self, model_id):
        if model_id in self.held:
            self.held.remove(model_id)


def run(coroutine):
    """Run in a separate thread, so that no other test's event loop is used."""
    result = []
    thread = threading.Thread(target=lambda: result.append(asyncio.run(coroutine)))
    thread.start()
    thread.join()
    return result


def test_the_idle_model_used_longest_ago_makes_room(tmp_path):
    async def scenario():
        pool = FreePool(Source(), starter(tmp_path), admission=OneFits())
        try:
            first = await pool.acquire("a")
            await pool.acquire("b")
            assert [m.id for m in pool.loaded] == ["b"]
            pool.get("b").pinned = True
            with pytest.raises(NotEnoughMemory):
                await pool.acquire("a")
            assert [m.id for m in pool.loaded] == ["b"]
            return first.ready
        finally:
            await pool.close()

    assert run(scenario()) == [False]


def test_max_models_evicts_and_a_dead_lease_is_renewed(tmp_path):
    async def scenario():
        from engine.core.types import Delta, GenerationRequest

        pool = FreePool(Source(), starter(tmp_path), max_models=1)
        try:
            a = await pool.acquire("a")
            await pool.acquire("b")
            events = [e async for e in pool.generate(a, GenerationRequest(prompt="x", max_tokens=2))]
            assert [m.id for m in pool.loaded] == ["a"]
            return "".join(e.text for e in events if isinstance(e, Delta))
        finally:
            await pool.close()

    assert run(scenario()) == ["fake fake "]


def test_an_idle_model_leaves_after_its_time_to_live(tmp_path):
    async def scenario():
        pool = FreePool(Source(), starter(tmp_path), ttl_s=0.2)
        try:
            await pool.acquire("a")
            kept = await pool.acquire("b")
            kept.pinned = True
            deadline = time.monotonic() + 60
            while pool.get("a") is not None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            return [m.id for m in pool.loaded]
        finally:
            await pool.close()

    assert run(scenario()) == [["b"]]


class ChangedWhilePlaced(Source):
    """A user sets the threads of a model while its first load is placed."""

    def __init__(self):
        self.user, self.placed = ModelSettings(), []

    async def resolve(self, model, min_ctx=0):
        before = self.user
        self.placed.append(before.n_threads)
        self.user = ModelSettings(n_threads=3)
        return ResolvedModel(model_id=model, engine="fake", settings=LoadSettings(path=model), chosen=before)

    def chosen(self, model):
        return self.user


def test_settings_that_are_set_while_a_load_is_placed_are_not_lost(tmp_path):
    async def scenario():
        source = ChangedWhilePlaced()
        pool = FreePool(source, starter(tmp_path))
        try:
            first = await pool.acquire("a")
            assert first.pending == ("n_threads",)
            again = await pool.acquire("a")
            return source.placed, again.pending, again is first
        finally:
            await pool.close()

    assert run(scenario()) == [([None, 3], (), False)]


class Starved(Unlimited):
    """Measuring a model's memory fails, and so does the first unloading."""

    def __init__(self):
        self.failed = 0

    async def unloading(self, model_id, cached_bytes):
        raise OSError(errno.EMFILE, "Too many open files")

    def release(self, model_id):
        self.failed += 1
        if self.failed == 1:
            raise OSError(errno.EMFILE, "Too many open files")


def test_idle_models_leave_also_after_a_moment_without_descriptors(tmp_path):
    async def scenario():
        pool = FreePool(Source(), starter(tmp_path), admission=Starved(), ttl_s=0.2)
        try:
            runners = [(await pool.acquire(name)).runner for name in ("a", "b")]
            deadline = time.monotonic() + 60
            while pool.loaded or any(runner.alive for runner in runners):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            return [runner.alive for runner in runners]
        finally:
            await pool.close()

    assert run(scenario()) == [[False, False]]


def test_a_cancelled_unload_still_ends_the_runner(tmp_path):
    async def scenario():
        pool = FreePool(Source(), starter(tmp_path))
        runner = (await pool.acquire("a")).runner
        unloading = asyncio.create_task(pool.unload("a"))
        await asyncio.sleep(0)
        unloading.cancel()
        await asyncio.gather(unloading, return_exceptions=True)
        await pool.close()
        return runner.alive

    assert run(scenario()) == [False]


def test_a_request_whose_model_is_being_unloaded_gets_the_next_load(tmp_path):
    async def scenario():
        from engine.core.types import Delta, GenerationRequest

        pool = FreePool(Source(), starter(tmp_path))
        try:
            model = await pool.acquire("a")
            unloading = asyncio.create_task(pool.unload("a"))
            await asyncio.sleep(0)
            assert model.ready  # its runner has not ended yet
            events = [e async for e in pool.generate(model, GenerationRequest(prompt="x", max_tokens=2))]
            await unloading
            assert [m is not model for m in pool.loaded] == [True]  # the runner that was about to end got nothing
            return "".join(e.text for e in events if isinstance(e, Delta))
        finally:
            await pool.close()

    assert run(scenario()) == ["fake fake "]


class Reserved(Unlimited):
    """Knows which models have memory."""

    def __init__(self):
        self.owners = set()

    async def reserve(self, model_id, settings, placement=None):
        self.owners.add(model_id)

    def attach(self, model_id, pid, buffers):
        assert model_id in self.owners

    def release(self, model_id):
        self.owners.discard(model_id)


def test_a_load_has_its_own_memory_although_the_model_before_it_is_still_ending(tmp_path):
    async def scenario():
        admission = Reserved()
        pool = FreePool(Source(), starter(tmp_path), admission=admission)
        try:
            first = await pool.acquire("a")
            stop, goes_on = first.runner.stop, asyncio.Event()

            async def slow_stop():
                await goes_on.wait()
                await stop()

            first.runner.stop = slow_stop
            unloading = asyncio.create_task(pool.unload("a"))
            loading = asyncio.create_task(pool.acquire("a"))
            for _ in range(5):
                await asyncio.sleep(0)
            goes_on.set()
            await unloading
            again = await loading
            assert not first.runner.alive
            return again.ready, set(admission.owners)
        finally:
            await pool.close()

    assert run(scenario()) == [(True, {"a"})]


def test_a_model_that_is_unloaded_before_its_runner_has_started_ends(tmp_path):
    """Another request waited for the same load: it gets its own."""

    async def scenario():
        runners, begun, goes_on = [], asyncio.Event(), asyncio.Event()
        usual = starter(tmp_path)

        async def start(engine, path):
            begun.set()
            await goes_on.wait()
            runners.append(await usual(engine, path))
            return runners[-1]

        pool = FreePool(Source(), start)
        try:
            first, second = (asyncio.create_task(pool.acquire("a")) for _ in range(2))
            await begun.wait()
            unloading = asyncio.create_task(pool.unload("a"))
            await asyncio.sleep(0)
            goes_on.set()
            assert await unloading
            await first
            again = await second
            assert pool.loaded == [again]
            return [runner.alive for runner in runners]
        finally:
            await pool.close()
            await asyncio.gather(*(runner.stop() for runner in runners))

    assert run(scenario()) == [[False, True]]


def test_models_that_are_being_loaded_count_as_loaded(tmp_path):
    async def scenario():
        pool = FreePool(Source(), starter(tmp_path), max_models=2)
        try:
            await pool.acquire("a")
            await asyncio.gather(pool.acquire("b"), pool.acquire("c"))
            return sorted(model.id for model in pool.loaded)
        finally:
            await pool.close()

    assert run(scenario()) == [["b", "c"]]


class Widening(OneFits):
    """Looks for the memory of deterministic requests until `goes_on` is set."""

    def __init__(self):
        super().__init__()
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

    async def widen(self, model_id, settings):
        self.begun.set()
        await self.goes_on.wait()


def test_a_model_stays_while_memory_for_a_request_is_looked_for(tmp_path):
    async def scenario():
        from engine.core.types import Delta, GenerationRequest

        admission = Widening()
        pool = FreePool(Source(), starter(tmp_path), admission=admission)

        async def answer():
            model = await pool.acquire("a")
            request = GenerationRequest(prompt="x", max_tokens=2, deterministic=True)
            return "".join([e.text async for e in pool.generate(model, request) if isinstance(e, Delta)])

        try:
            answering = asyncio.create_task(answer())
            await admission.begun.wait()
            with pytest.raises(NotEnoughMemory):
                await pool.acquire("b")
            admission.goes_on.set()
            return await answering
        finally:
            await pool.close()

    assert run(scenario()) == ["fake fake "]


class FullDisk(Unlimited):
    """The result of a load cannot be recorded."""

    async def compared(self, settings, check):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_load_that_fails_at_its_end_leaves_no_runner(tmp_path):
    async def scenario():
        pool = FreePool(Source(), starter(tmp_path), admission=FullDisk())
        try:
            with pytest.raises(OSError, match="No space left"):
                await pool.acquire("a")
            model = pool.get("a")
            assert not model.ready
            await asyncio.wait_for(model.runner._process.wait(), 60)
            return pool.loaded
        finally:
            await pool.close()

    assert run(scenario()) == [[]]


def test_a_stream_tells_the_load_and_its_place_while_it_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(sse, "EARLY_HEADERS_S", 0.05)
    monkeypatch.setattr(sse, "PING_S", 0.05)
    monkeypatch.setenv("TESSERA_FAKE_LOAD_S", "6")  # all three requests arrive before that
    server = ScriptedServer(tmp_path / "home")
    body = {"model": "spark", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 2}

    def comments():
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as answer:
            lines = list(answer.iter_lines())
        assert [line for line in lines if line][-1] == "data: [DONE]"
        return [line for line in lines if line.startswith(": loading")]

    try:
        found = []
        threads = [threading.Thread(target=lambda: found.append(comments())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        places = sorted(told[0].rpartition(" ")[2] for told in found)
        assert places == ["0", "1", "2"]
    finally:
        server.stop()
