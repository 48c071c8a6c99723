"""Requests that meet a load, an eviction or a growth of their model while they are under way."""

import asyncio
import errno
import os
import signal
import sys

import msgspec
import pytest

from devices.errors import TesseraError
from engine.core.errors import NotEnoughMemory
from engine.core.types import Delta, GenerationRequest
from engine.message_catalog.reasons import because
from engine.placement.types import Fallback, ModelSettings
from engine.pool.model_resolution import ResolvedModel
from engine.runner.protocol import ContextWanted, LoadSettings
from tests.support.fakes.free_pool import FreePool, Unlimited
from tests.support.fakes.scripted import starter
from tests.support.servers import wait_for

TRAINED = 65_536


class Source:
    """Places contexts of up to `most` tokens."""

    def __init__(self, most=TRAINED, **settings):
        self.most, self.settings = most, settings

    async def resolve(self, model, min_ctx=0):
        settings = LoadSettings(path=model, n_ctx=min(max(512, min_ctx), self.most), **self.settings)
        return ResolvedModel(model_id=model, engine="fake", settings=settings)

    def chosen(self, model):
        return ModelSettings()


class OneFits(Unlimited):
    """Has memory for one model."""

    def __init__(self):
        self.owners = set()

    async def reserve(self, model_id, settings, placement=None):
        if self.owners - {model_id}:
            raise NotEnoughMemory(2, 1, "cpu")
        self.owners.add(model_id)

    def release(self, model_id):
        self.owners.discard(model_id)


@pytest.fixture
def start(tmp_path):
    (tmp_path / "n_ctx_train").write_text(str(TRAINED))
    return starter(tmp_path)


async def answer(pool, model, **options):
    request = GenerationRequest(prompt="x", max_tokens=2, **options)
    return "".join([event.text async for event in pool.generate(model, request) if isinstance(event, Delta)])


def run(pool, work):
    async def scenario():
        try:
            return await asyncio.wait_for(work(), 60)
        finally:
            await pool.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize("has_runner", [False, True])
def test_a_request_that_has_its_model_waits_while_another_one_loads_it_again(start, has_runner):
    """The old runner is gone, or the new one reads its weights."""
    loads, begun, goes_on = [], asyncio.Event(), asyncio.Event()

    async def gated():
        loads.append(1)
        if len(loads) == 2:
            begun.set()
            await goes_on.wait()

    async def slow_start(engine, path):
        if not has_runner:
            await gated()
        runner = await start(engine, path)
        load = runner.load

        async def slow_load(*args):
            await gated()
            return await load(*args)

        if has_runner:
            runner.load = slow_load
        return runner

    pool = FreePool(Source(), slow_start)

    async def work():
        model = await pool.acquire("a")
        larger = asyncio.create_task(pool.acquire("a", min_ctx=1024))
        await begun.wait()
        answering = asyncio.create_task(answer(pool, model))
        for _ in range(20):
            await asyncio.sleep(0)
        goes_on.set()
        return (await larger).facts.n_ctx, await answering

    assert run(pool, work) == (1024, "fake fake ")


def test_a_model_is_not_loaded_again_for_a_context_that_it_does_not_get(start):
    pool = FreePool(Source(most=1024), start)

    async def work():
        pids = []
        for _ in range(3):
            model = await pool.acquire("a", min_ctx=TRAINED)
            pids.append(model.runner.pid)
        return model.facts.n_ctx, len(set(pids))

    assert run(pool, work) == (1024, 1)


def test_an_embedding_model_is_not_loaded_again_for_a_longer_context(start):
    pool = FreePool(Source(embeddings=True), start)

    async def work():
        pids = [(await pool.acquire("a", min_ctx=min_ctx)).runner.pid for min_ctx in (0, 1024, 2048)]
        return len(set(pids))

    assert run(pool, work) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="the runner is stopped by a signal")
def test_a_model_that_embeds_is_neither_evicted_nor_unloaded_as_idle(start, monkeypatch):
    monkeypatch.setattr("engine.pool.pool.REAP_S", 0.02)
    pool = FreePool(Source(), start, admission=OneFits(), ttl_s=0.1)

    async def work():
        model = await pool.acquire("a")
        os.kill(model.runner.pid, signal.SIGSTOP)
        try:
            embedding = asyncio.create_task(model.runner.embed(["text"]))
            await asyncio.sleep(0.4)  # longer than its time to live
            with pytest.raises(NotEnoughMemory):
                await pool.acquire("b")
            kept = pool.get("a") is model
        finally:
            os.kill(model.runner.pid, signal.SIGCONT)
        assert (await embedding).width == 4
        await asyncio.to_thread(wait_for, lambda: pool.get("a") is None)
        return kept

    assert run(pool, work)


class Narrow(Unlimited):
    """A second context fits only in place of another model."""

    def __init__(self):
        self.pool, self.created = None, []

    async def widen(self, model_id, settings):
        if len(self.pool.loaded) > 1:
            raise NotEnoughMemory(2, 1, "cpu")

    def widened(self, model_id):
        self.created.append(model_id)


@pytest.mark.parametrize("is_pinned", [False, True])
def test_an_idle_model_makes_room_for_deterministic_requests(start, is_pinned):
    admission = Narrow()
    pool = admission.pool = FreePool(Source(), start, admission=admission)

    async def work():
        model = await pool.acquire("a")
        (await pool.acquire("b")).pinned = is_pinned
        if is_pinned:
            with pytest.raises(NotEnoughMemory):
                await answer(pool, model, deterministic=True)
        else:
            assert await answer(pool, model, deterministic=True) == "fake fake "
        assert await answer(pool, model) == "fake fake "
        return [model.id for model in pool.loaded], admission.created

    assert run(pool, work) == ((["a", "b"], []) if is_pinned else (["a"], ["a"]))


class Growing(Unlimited):
    """Looks for the memory of a larger context: there is enough, or the search fails with `error`."""

    def __init__(self, error=None):
        self.error = error

    async def shortage(self, model_id, settings, copied):
        if self.error is not None:
            raise self.error

    async def resized(self, model_id, settings): ...


async def growable(pool):
    model = await pool.acquire("a")
    model.facts = msgspec.structs.replace(model.facts, max_ctx=TRAINED)
    return model


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOENT])
def test_a_request_is_refused_if_the_memory_for_its_context_cannot_be_looked_up(start, number):
    pool = FreePool(Source(max_ctx=TRAINED), start, admission=Growing(OSError(number, "it failed")))

    async def work():
        runner, refused = (await growable(pool)).runner, asyncio.Event()
        refusals = []

        def keep_context(request, error):
            refusals.append((request.id, isinstance(error, TesseraError)))
            refused.set()

        runner.keep_context = keep_context
        runner.on_context_wanted(ContextWanted(id=7, tokens=2048))
        await refused.wait()
        return refusals

    assert run(pool, work) == [(7, True)]


def test_a_request_for_a_larger_context_gets_it_from_a_new_load_if_the_runner_dies(start):
    pool = FreePool(Source(max_ctx=TRAINED), start, admission=Growing())

    async def work():
        runner = (await growable(pool)).runner

        async def dies(*_sizes, **_options):
            await runner.end()
            raise runner.died

        runner.resize = dies
        model = await pool.acquire("a", min_ctx=1024)
        return model.runner is runner, model.facts.n_ctx, await answer(pool, model)

    assert run(pool, work) == (False, 1024, "fake fake ")


def test_a_server_that_ends_does_not_wait_until_a_model_is_loaded_again(start):
    """A user has changed its settings, and loading takes minutes."""
    loads, begun = [], asyncio.Event()

    async def slow_start(engine, path):
        loads.append(1)
        if len(loads) > 1:
            begun.set()
            await asyncio.sleep(1000)
        return await start(engine, path)

    pool = FreePool(Source(), slow_start)

    async def scenario():
        model = await pool.acquire("a")
        model.pending = ("n_ctx",)
        await answer(pool, model)
        await begun.wait()
        await asyncio.wait_for(pool.close(), 30)
        return pool.models

    assert asyncio.run(scenario()) == []


class Ladder(Unlimited):
    """Shortens the steps of a runner that died."""

    async def retry(self, model_id, settings, error):
        shorter = msgspec.structs.replace(settings, n_ubatch=settings.n_ubatch // 2)
        return Fallback(settings=shorter, change=because("shorter_pieces", tokens=shorter.n_ubatch))


def test_requests_that_died_together_are_answered_although_the_first_one_leaves(start, tmp_path):
    (tmp_path / "script0000.jsonl").write_text('{"pieces": [], "die": 11}\n')
    loads, begun = [], asyncio.Event()

    async def slow_start(engine, path):
        loads.append(1)
        if len(loads) == 2:
            begun.set()
            await asyncio.sleep(1000)
        return await start(engine, path)

    pool = FreePool(Source(), slow_start, admission=Ladder())

    async def work():
        model = await pool.acquire("a")
        first, second = (asyncio.create_task(answer(pool, model)) for _ in range(2))
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second, model.settings.n_ubatch, len(loads)

    assert run(pool, work) == ("fake fake ", 256, 3)


@pytest.mark.parametrize("others_leave", [False, True])
def test_a_load_goes_on_for_other_requests_when_the_first_one_leaves(start, others_leave):
    """Clients with a short timeout would otherwise start a long load again and again."""
    loads, begun, goes_on = [], asyncio.Event(), asyncio.Event()

    async def slow_start(engine, path):
        loads.append("begun")
        begun.set()
        try:
            await goes_on.wait()
        except asyncio.CancelledError:
            loads.append("cancelled")
            raise
        return await start(engine, path)

    pool = FreePool(Source(), slow_start)

    async def work():
        first, second = (asyncio.create_task(pool.acquire("a")) for _ in range(2))
        await begun.wait()
        first.cancel()
        await asyncio.sleep(0.05)
        if others_leave:
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            return loads, pool.busy
        goes_on.set()
        ready = (await second).ready
        with pytest.raises(asyncio.CancelledError):
            await first
        return loads, ready

    assert run(pool, work) == ((["begun", "cancelled"], False) if others_leave else (["begun"], True))
