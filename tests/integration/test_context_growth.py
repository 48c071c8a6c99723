"""The context of a loaded model grows between steps: nothing is recomputed, and responses continue."""

import asyncio
import dataclasses
import functools
import sys

import msgspec
import pytest

from engine.core.errors import ContextCannotGrow, ContextOverflow, RunnerDied
from engine.core.paths import Paths
from engine.core.types import Delta, Done, GenerationRequest, Started
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.placement.types import ModelSettings
from engine.pool import pool as pools
from engine.pool.model_resolution import ResolvedModel
from engine.runner import protocol
from engine.runner.faults import RequestFailed
from engine.runner.llama.batch import scheduler as schedulers
from engine.runner.llama.native.model import LoadFailed
from engine.runner.llama.service import LlamaRunner
from engine.runner.protocol import ContextWanted, LoadSettings, Pace
from tests.support import runner_calls
from tests.support.fakes.free_pool import FreePool
from tests.support.models.architectures import ARCHITECTURES, write_architecture
from tests.support.runner_calls import EXACT, LIKELIEST, answered
from tests.support.servers import wait_for

TRAINED = 8192
# Lengths in tokens; ids below these are bytes of the vocabulary.
FIRST, LONG = 150, 700
with_runner = functools.partial(
    runner_calls.with_runner,
    n_ctx=256,
    kv_cells=0,
    max_ctx=TRAINED,
    n_parallel=2,
    cache_ram_bytes=64 << 20,
    **EXACT,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A function that writes a model of an architecture, trained for long texts."""
    folder = tmp_path_factory.mktemp("long")

    @functools.cache
    def written(name):
        kind = ARCHITECTURES[name]
        longer = dataclasses.replace(kind, meta={**kind.meta, "context_length": TRAINED})
        return write_architecture(folder / f"{kind.arch}.gguf", longer)

    return written


def text(length, seed=0):
    return [3 + (seed * 31 + i * i * 7 + i) % 200 for i in range(length)]


def asked(prompt, **options):
    usual = {"sampling": LIKELIEST, "max_tokens": 24, "ignore_eos": True, "speculate": False}
    return GenerationRequest(prompt=prompt, **{**usual, **options})


def grown_by(runner, sizes):
    """Let the runner grow step by step; return its requests and the results."""
    asks, done = [], []

    def on_wanted(wanted):
        asks.append(wanted)
        size = next(size for size in sizes if size >= wanted.tokens)
        task = asyncio.ensure_future(runner.resize(size, size))
        task.add_done_callback(lambda t: done.append(t.result()))

    runner.on_context_wanted = on_wanted
    return asks, done


def more_cells(runner, n_ctx):
    """Give the runner cells for two requests of its largest context; return its requests and the results."""
    asks, done = [], []

    def on_wanted(wanted):
        asks.append(wanted)
        task = asyncio.ensure_future(runner.resize(n_ctx, 2 * n_ctx))
        task.add_done_callback(lambda t: done.append(t.result()))

    runner.on_context_wanted = on_wanted
    return asks, done


async def conversation(runner, resized=None, *, through_disk=False):
    """Two turns, the second longer than the context; another stream runs concurrently.

    `resized`: the context is resized between the turns, with the result in this list; copies are in a file with
    `through_disk`.
    """
    first = await answered(runner, asked(text(FIRST)))
    other = asyncio.create_task(answered(runner, asked(text(40, seed=5), max_tokens=120)))
    if resized is not None:
        resized.append(await runner.resize(1024, 1024, through_disk=through_disk))
    second = await answered(runner, asked([*text(FIRST), *first.ids, *text(LONG, seed=9)]))
    return first, second, await other, await runner.stats()


RESERVES = sys.platform == "linux"


@pytest.mark.parametrize(
    ("name", "reserved"),
    [("Llama, Mistral", False), ("Gemma 3", False), ("Qwen 3.5", False), ("Gemma 3", True), ("Qwen 3.5", True)],
)
def test_a_conversation_grows_out_of_its_context(model, name, reserved):
    """Attention, sliding windows, recurrent and hybrid states: nothing is recomputed, copied or not."""
    path = model(name)

    async def growing(runner):
        asks, done = grown_by(runner, (512, 1024, 2048))
        return (*await conversation(runner), asks, done)

    async def copying(runner):
        done = []
        return (*await conversation(runner, done, through_disk=name == "Gemma 3"), [], done)

    if reserved:
        first, second, other, stats, asks, done = with_runner(path, growing)
        assert [a.tokens for a in asks] == [FIRST + 24 + LONG + 1]
    else:
        first, second, other, stats, _, done = with_runner(path, copying, max_ctx=0)
    alone = with_runner(path, conversation, n_ctx=2048)
    assert done[0].n_ctx == 1024
    assert done[0].reserved_cells >= (TRAINED if reserved and RESERVES else 1024)
    assert (done[0].state_bytes == 0) == (reserved and RESERVES)
    for mine, whole in zip((first, second, other), alone[:3], strict=True):
        assert mine.ids == whole.ids
        assert mine.started.cached_tokens == whole.started.cached_tokens
    assert stats.computed_tokens == alone[3].computed_tokens


def test_an_answer_continues_behind_the_end_of_its_context(model):
    async def work(runner):
        asks, _ = grown_by(runner, (512, 1024))
        answer = await answered(runner, asked(text(200), max_tokens=600))
        return answer, asks, await runner.stats()

    answer, asks, stats = with_runner(model("Llama, Mistral"), work)
    assert answer.done.finish_reason == "length"
    assert len(answer.ids) == 600
    assert [a.begun for a in asks] == [True, True]
    assert stats.computed_tokens == 200 + 599
    whole, *_ = with_runner(model("Llama, Mistral"), lambda r: answered_with(r, 200, 600), n_ctx=1024)
    assert answer.ids == whole.ids


def test_a_size_within_the_same_cells_is_granted_while_an_answer_is_written(model):
    """llama.cpp rounds a context up to 256 cells: 300 and 400 tokens have the same ones."""

    async def work(runner):
        begun = asyncio.Event()

        async def write():
            async for _ in runner.generate(asked(text(40), max_tokens=200)):
                begun.set()

        runner.pace(Pace(duty=0.05))
        writing = asyncio.create_task(write())
        await begun.wait()
        resized = await runner.resize(400, 400)
        runner.pace(Pace())
        await writing
        return resized.n_ctx, resized.kv_cells, resized.state_bytes

    assert with_runner(model("Llama, Mistral"), work, n_ctx=300) == (400, 512, 0)


async def answered_with(runner, length, max_tokens):
    return await answered(runner, asked(text(length), max_tokens=max_tokens)), await runner.stats()


def test_what_does_not_grow_ends_or_is_refused(model):
    """A server without enough memory keeps the context; no request hangs, and others continue."""

    async def work(runner):
        facts: list[ContextWanted] = []
        refused = ContextOverflow(LONG, 300)

        def on_wanted(wanted):
            facts.append(wanted)
            runner.keep_context(wanted, refused)

        runner.on_context_wanted = on_wanted
        with pytest.raises(ContextOverflow) as error:
            await answered(runner, asked(text(LONG)))
        assert error.value is refused
        answer = await answered(runner, asked(text(200), max_tokens=600))
        return answer, facts

    answer, facts = with_runner(model("Llama, Mistral"), work)
    assert len(answer.ids) == 256 - 200
    assert answer.done.finish_reason == "length"
    assert [f.begun for f in facts] == [False, True]


def test_a_prompt_longer_than_any_context_is_refused_at_once(model):
    async def work(runner):
        asks, _ = grown_by(runner, (512,))
        with pytest.raises(ContextOverflow) as error:
            await answered(runner, asked(text(TRAINED)))
        assert not asks
        return error.value.context_tokens

    assert with_runner(model("Llama, Mistral"), work) == 256


def test_a_smaller_context_keeps_prefixes_in_memory(model):
    async def work(runner):
        grown_by(runner, (1024,))
        first = await answered(runner, asked(text(LONG)))
        await runner.resize(256, 256)
        small = await answered(runner, asked(text(40, seed=3)))
        again = await answered(runner, asked([*text(LONG), *first.ids]))
        return small, again

    small, again = with_runner(model("Llama, Mistral"), work)
    assert len(small.ids) == 24
    assert again.started.cached_tokens >= LONG


class Source:
    def __init__(self, settings):
        self.settings = settings

    async def resolve(self, name, min_ctx=0):
        return ResolvedModel(model_id=name, engine="llama", settings=self.settings)

    def chosen(self, model):
        return ModelSettings()


def test_a_context_that_grows_for_a_client_that_leaves_is_counted(model, tmp_path):
    """The runner resizes anyway: its new size is known, and its memory is reserved."""
    placer = Placer(open_resources(Paths(*(tmp_path / n for n in ("config", "models", "state", "cache", "logs")))))
    path = str(model("Llama, Mistral"))
    settings = LoadSettings(path=path, n_ctx=256, kv_cells=256, max_ctx=TRAINED, n_threads=1)

    async def work():
        pool = FreePool(Source(settings), admission=MemoryAdmission(placer))
        try:
            loaded = await pool.acquire("m")
            resize, asked_for = loaded.runner.resize, asyncio.Event()

            async def noted(*sizes, **options):
                asked_for.set()
                return await resize(*sizes, **options)

            loaded.runner.resize = noted
            before = placer.ledger.reservations()[0].parts["kv"]
            growing = asyncio.create_task(pool.grow(loaded, 1024, exact=True))
            await asked_for.wait()
            growing.cancel()
            await asyncio.gather(growing, return_exceptions=True)
            now = placer.ledger.reservations()[0].parts["kv"]
            return growing.cancelled(), loaded.facts.n_ctx, loaded.settings.n_ctx, now // before
        finally:
            await pool.close()

    assert asyncio.run(work()) == (True, 1024, 1024, 4)


def test_the_memory_of_a_larger_context_is_reserved_before_it_is_taken(model, tmp_path):
    """And it is free again if the runner refuses."""
    placer = Placer(open_resources(Paths(*(tmp_path / n for n in ("config", "models", "state", "cache", "logs")))))
    path = str(model("Llama, Mistral"))
    settings = LoadSettings(path=path, n_ctx=256, kv_cells=256, max_ctx=TRAINED, n_threads=1)

    def reserved():
        return placer.ledger.reservations()[0].parts["kv"]

    async def work():
        pool = FreePool(Source(settings), admission=MemoryAdmission(placer))
        try:
            loaded = await pool.acquire("m")
            meanwhile = []

            async def refused(*_sizes, **_options):
                meanwhile.append(reserved())
                raise RequestFailed("resize_failed", "there is no memory")

            loaded.runner.resize, before = refused, reserved()
            with pytest.raises(ContextCannotGrow):
                await pool.grow(loaded, 1024, exact=True)
            return meanwhile[0] // before, reserved() // before
        finally:
            await pool.close()

    assert asyncio.run(work()) == (4, 1)


def test_the_longest_context_gets_cells_for_each_parallel_request(model, tmp_path):
    """Subagents of a model whose context has its largest size need not wait for each other."""
    placer = Placer(open_resources(Paths(*(tmp_path / n for n in ("config", "models", "state", "cache", "logs")))))
    usual = {"n_ctx": 256, "kv_cells": 256, "max_ctx": 256, "n_parallel": 3, "n_threads": 1}
    settings = LoadSettings(path=str(model("Llama, Mistral")), **usual)

    async def work(pool):
        loaded = await pool.acquire("m")
        before = placer.ledger.reservations()[0].parts["kv"]
        sizes = []
        for cells in (256, 257, 513, 769):
            await pool._growth.grow(loaded, 256, evicts=False, cells=cells)
            sizes.append((loaded.facts.n_ctx, loaded.settings.kv_cells))
        now = placer.ledger.reservations()[0].parts["kv"]
        await pool._shrink(loaded)
        loaded.settings = msgspec.structs.replace(loaded.settings, chosen_ctx=256)
        with pytest.raises(ContextOverflow):
            await pool._growth.grow(loaded, 256, evicts=False, cells=257)
        return sizes, now // before, loaded.settings.kv_cells

    async def with_pool():
        pool = FreePool(Source(settings), admission=MemoryAdmission(placer))
        try:
            return await work(pool)
        finally:
            await pool.close()

    assert asyncio.run(with_pool()) == ([(256, 256), (256, 512), (256, 768), (256, 768)], 3, 256)


def test_an_idle_context_goes_back_to_its_first_size(model, tmp_path, monkeypatch):
    """The pool's timer, with the real admission: prefixes stay, and the ledger's total shrinks."""
    monkeypatch.setattr(pools, "REAP_S", 0.02)
    monkeypatch.setattr(pools, "SHRINK_AFTER_S", 1e9)
    paths = Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))
    placer = Placer(open_resources(paths))
    usual = {"n_threads": 1, "n_parallel": 2, "cache_ram_bytes": 64 << 20, **EXACT}
    settings = LoadSettings(path=str(model("Llama, Mistral")), n_ctx=256, kv_cells=256, max_ctx=TRAINED, **usual)

    async def ask(pool, prompt):
        loaded = await pool.acquire("m")
        return [event async for event in pool.generate(loaded, asked(prompt))]

    async def until(condition):
        await asyncio.to_thread(wait_for, condition)

    async def work():
        pool = FreePool(Source(settings), admission=MemoryAdmission(placer))
        try:
            await ask(pool, text(LONG))
            loaded = pool.get("m")
            pid, grown = loaded.runner.pid, placer.ledger.reservations()[0].predicted_bytes
            assert loaded.facts.n_ctx == 2048
            monkeypatch.setattr(pools, "SHRINK_AFTER_S", 0.0)
            await until(lambda: loaded.facts.n_ctx == 256)
            await until(lambda: placer.ledger.reservations()[0].predicted_bytes < grown)
            monkeypatch.setattr(pools, "SHRINK_AFTER_S", 1e9)
            events = await ask(pool, text(LONG + 8))
            assert (loaded.runner.pid, loaded.facts.n_ctx) == (pid, 2048)
            return next(event.cached_tokens for event in events if isinstance(event, Started))
        finally:
            await pool.close()

    assert asyncio.run(work()) == LONG


def test_a_runner_that_is_killed_while_it_grows_loses_nothing_that_was_stored(model, tmp_path):
    """Waiting requests fail with an error; another runner restores the prefix from disk and grows."""
    first = []

    async def killed(runner):
        first.append(await answered(runner, asked(text(200))))
        await asyncio.to_thread(
            wait_for, lambda: any(f.is_file() and f.suffix == ".kv" for f in tmp_path.rglob("*")), 60
        )

        def on_wanted(wanted):
            task = asyncio.ensure_future(runner.resize(1024, 1024))
            task.add_done_callback(lambda t: t.exception())
            asyncio.get_running_loop().call_soon(runner.kill)

        runner.on_context_wanted = on_wanted
        with pytest.raises(RunnerDied):
            await answered(runner, asked([*text(200), *first[0].ids, *text(LONG, seed=9)]))

    async def again(runner):
        grown_by(runner, (1024,))
        return await answered(runner, asked([*text(200), *first[0].ids, *text(LONG, seed=9)]))

    stored = {"cache_dir": str(tmp_path), "cache_disk_bytes": 1 << 30}
    with_runner(model("Llama, Mistral"), killed, **stored)
    answer = with_runner(model("Llama, Mistral"), again, **stored)
    assert len(answer.ids) == 24
    assert answer.started.cached_tokens >= 200


def test_five_agents_share_the_cells_of_two(model):
    """All finish every turn, the common prefix is computed once, and evictions cause little recomputation."""
    common, own, answer, result, turns = 400, 300, 60, 110, 2

    async def agents(runner):
        async def agent(number):
            talk, lengths = [*text(common), *text(own, seed=number + 1)], []
            for turn in range(turns):
                found = await answered(runner, asked(talk, max_tokens=answer))
                lengths.append(len(found.ids))
                talk += [*found.ids, *text(result, seed=50 + number * turns + turn)]
            return lengths

        return await asyncio.gather(*map(agent, range(5))), await runner.stats()

    lengths, stats = with_runner(
        model("Llama, Mistral"), agents, n_ctx=2048, kv_cells=2048, max_ctx=0, n_parallel=4
    )
    assert lengths == [[answer] * turns] * 5
    least = common + 5 * (own + turns * answer + (turns - 1) * result)
    assert stats.computed_tokens < 1.5 * least


@pytest.mark.parametrize("max_ctx", [0, TRAINED])
def test_a_request_that_gives_way_goes_on_where_it_was(model, max_ctx):
    """Two answers outgrow the cells that both shared: one waits, and nothing is computed twice.

    Cells that are reserved for growing are not used.
    """

    async def both(runner):
        requests = [asked(text(60, seed=n), max_tokens=600) for n in range(2)]
        used = []

        async def watch():
            while True:
                used.append((await runner.stats()).kv_cells_used)
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*(answered(runner, request) for request in requests))
        watching.cancel()
        assert max(used) <= 1280  # 1,152, which llama.cpp rounds up
        return answers, await runner.stats()

    answers, stats = with_runner(model("Llama, Mistral"), both, n_ctx=768, kv_cells=1152, max_ctx=max_ctx)
    assert [len(a.ids) for a in answers] == [600] * 2
    assert stats.computed_tokens < 2 * (60 + 600) + 64


@pytest.mark.parametrize("memory", ["free", "full"])
@pytest.mark.parametrize("most", [TRAINED, 1024])
def test_a_request_does_not_wait_for_cells_that_can_be_had(model, memory, most):
    """It would fit alone: while a slow response uses the cells, the context grows, or it waits if that fails."""

    async def work(runner):
        asks, _ = grown_by(runner, (2048,)) if most == TRAINED else more_cells(runner, 1024)

        def on_wanted(ask):
            asks.append(ask)
            runner.keep_context(ask, ContextOverflow(0, 0))
            runner.pace(Pace())

        if memory == "full":
            runner.on_context_wanted = on_wanted
        runner.pace(Pace(duty=0.05))
        begun, written = asyncio.Event(), []

        async def write():
            async for event in runner.generate(asked(text(40, seed=5), max_tokens=950)):
                written.extend(getattr(event, "token_ids", ()))
                begun.set()

        other = asyncio.create_task(write())
        await begun.wait()
        short = asyncio.create_task(answered(runner, asked(text(LONG), max_tokens=8)))
        done, _ = await asyncio.wait({short, other}, return_when=asyncio.FIRST_COMPLETED)
        runner.pace(Pace())
        await other
        return asks, done == {short}, await short, written

    asks, is_first, short, written = with_runner(model("Llama, Mistral"), work, n_ctx=1024, max_ctx=most)
    expected = (1025, 0) if most == TRAINED else (1024, 1025)
    assert [(ask.wants_cells, ask.tokens, ask.cells) for ask in asks] == [(True, *expected)]
    assert is_first == (memory == "free")
    assert (len(short.ids), len(written)) == (8, 950)


class InProcess:
    """The llama.cpp runner in this process, step by step; `sent` is what a server would get."""

    def __init__(self, path):
        self.sent = []
        self._runner = LlamaRunner(self)
        usual = {"n_ctx": 256, "kv_cells": 256, "max_ctx": TRAINED, "n_threads": 1, "n_parallel": 2, **EXACT}
        assert self._runner._load(LoadSettings(path=str(path), **usual))

    def send(self, message):
        self.sent.append(message)

    @property
    def second(self):
        """The context of deterministic requests."""
        return self._runner._exact._loaded

    def tell(self, message):
        self._runner._control(message, self._runner._scheduler)

    def submit(self, number, prompt, **options):
        self.tell(protocol.Submit(id=number, request=asked(prompt, deterministic=True, **options)))

    def run(self, steps=2000):
        """Run until nothing is left to do, or for that many steps."""
        runner = self._runner
        for _ in range(steps):
            runner._step(runner._scheduler)
            runner._send_outputs(runner._exact.step())
            runner._request_room(runner._scheduler)
            if not runner._exact.busy:
                break
        else:
            pytest.fail("a request waits for ever")

    def wanted(self):
        return [message.id for message in self.sent if isinstance(message, ContextWanted)]

    def refused(self):
        return [(m.id, m.code) for m in self.sent if isinstance(m, protocol.Fault)]

    def answer(self, number):
        """The finish reason and the number of tokens of a response."""
        events = [e for m in self.sent if isinstance(m, protocol.Events) for i, e in m.items if i == number]
        (done,) = (event for event in events if isinstance(event, Done))
        return done.finish_reason, sum(len(event.token_ids) for event in events if isinstance(event, Delta))


def test_deterministic_requests_end_where_their_context_cannot_grow(model, monkeypatch):
    """The other context has grown; a later request gets a new one, if there is memory by then."""
    runner, resize, full = InProcess(model("Llama, Mistral")), schedulers.resize, []
    runner.submit(1, text(200), max_tokens=600)
    runner.submit(2, text(LONG))
    for _ in range(30):
        runner._runner._send_outputs(runner._runner._exact.step())
        runner._runner._request_room(runner._runner._scheduler)

    def refuses(loaded, *sizes, **options):
        if loaded is runner.second:
            full.append(sizes)
            raise LoadFailed("there is no memory")
        return resize(loaded, *sizes, **options)

    monkeypatch.setattr(schedulers, "resize", refuses)
    assert sorted(runner.wanted()) == [1, 2]
    runner.tell(protocol.Resize(id=9, n_ctx=1024, kv_cells=1024))
    assert full == [(1024, 1024)]
    runner.submit(3, text(LONG, seed=3))  # while the first one is still being answered
    runner.run()
    assert runner.answer(1) == ("length", 56)
    assert runner.refused() == [(2, "context_length_exceeded"), (3, "context_length_exceeded")]
    runner.submit(4, text(LONG, seed=3))
    runner.run()
    assert runner.answer(4) == ("length", 24)
    assert sorted(runner.wanted()) == [1, 2]
