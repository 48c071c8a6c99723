"""An idle computer measures both kinds of attention with real runners; requests do not wait for it."""

import asyncio
import contextlib
import threading
import time

import msgspec
import pytest
from msgspec.structs import replace

from devices.backends.cpu_kernels import tiles_library
from devices.backends.libraries import library_folder
from engine.core.errors import Cancelled
from engine.core.types import DeviceCheck
from engine.job_kinds.bench import attention as attention_bench
from engine.job_kinds.measure import work
from engine.library.catalogue import Catalogue
from engine.message_catalog import sentences
from engine.placement import candidates, device_checks, quarantine
from engine.placement.cpu_choices import heads_of
from engine.placement.history import attention_key
from engine.placement.measurements import Comparison
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer, read_shape
from engine.placement.resources import open_resources
from engine.placement.results import machine_key
from engine.runner.protocol import LoadSettings
from engine.server import idle_measuring
from engine.server.auth import Access
from engine.server.canary import Canary
from engine.server.idle_measuring import IdleMeasuring, deep_length
from engine.server.models import ServedModels
from engine.server.state import ServerState
from engine.server.utilization import Utilization
from tests.support.fakes.free_pool import FreePool
from tests.support.fakes.scripted import TOKEN, home_paths
from tests.support.models.published_shapes import MODELS

CHECK = {"rows": 26, "kld_mean": 2.0, "kld_max": 3.0, "top_changed_frac": 0.5, "logprob_difference": 4.0}


@pytest.fixture(autouse=True)
def without_our_kernels(monkeypatch):
    """Disable Tessera's kernels, as on systems without them: with them, neither kind of attention is used."""
    monkeypatch.setattr(candidates, "tiles_library", lambda _folder: None)


@contextlib.asynccontextmanager
async def resting(home, model, service=None):
    """A server's components with the bundled model in a real runner, and idle-time measurement."""
    paths = home_paths(home)
    placer = Placer(open_resources(paths))
    models = ServedModels(lambda: Catalogue(paths), user_settings=placer.resources.settings, choose=placer.choose)
    pool = FreePool(models, admission=MemoryAdmission(placer))
    usage = Utilization(placer.machine_now, every_s=0.1)
    state = ServerState(
        models=models, pool=pool, access=Access(TOKEN), placer=placer, paths=paths, utilization=usage
    )
    if service is not None:
        state.bench_service = service
        work.register(state.jobs, service)
    usage.start()
    idle = asyncio.create_task(IdleMeasuring(state, idle_s=0.3, most_busy=2.0).run())
    try:
        yield state, await pool.acquire(model)
    finally:
        idle.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await idle
        await usage.stop()
        await pool.close()


def key_of(state, loaded):
    heads = heads_of(read_shape(loaded.settings.path))
    return attention_key(machine_key(state.placer.machine_now()), heads, loaded.settings.n_threads)


async def until(question, seconds=100.0):
    ends = asyncio.get_running_loop().time() + seconds
    while not question():
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0.05)


def test_a_resting_computer_measures_and_the_next_load_goes_by_it(tmp_path, monkeypatch):
    monkeypatch.setattr(attention_bench, "LENGTHS", (128,))
    monkeypatch.setattr(attention_bench, "STEADY", 1e9)  # other tests run concurrently

    async def scenario():
        async with resting(tmp_path, "spark") as (state, loaded):
            key, history = key_of(state, loaded), state.placer.history
            await until(lambda: history.attention(key) is not None)
            (point,) = history.attention(key).points
            assert point.length == 128
            assert min(point.fused_prompt_s, point.plain_prompt_s, point.fused_token_s, point.plain_token_s) > 0
            assert not list((state.paths.cache / "stand-ins").iterdir())
            assert idle_measuring.OWNER not in {r.owner for r in state.placer.ledger.reservations()}
            placed = state.placer.choose("spark", loaded.settings)
            assert any("attention measured here" in reason for reason in sentences(placed.reasons))
        # Stored for the next start.
        assert Placer(open_resources(home_paths(tmp_path))).history.attention(key).points == (point,)

    asyncio.run(scenario())


def test_who_comes_meanwhile_does_not_wait(tmp_path, monkeypatch):
    begun, ended = [], []

    async def endless(heads, *, threads, scratch):
        begun.append(heads)
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(heads)

    monkeypatch.setattr(idle_measuring, "measure_attention", endless)

    async def scenario():
        async with resting(tmp_path, "spark") as (state, loaded):
            await until(lambda: begun)
            loaded.waiting += 1  # like a request for the model
            await until(lambda: ended)
            loaded.waiting -= 1
            assert state.placer.history.attention(key_of(state, loaded)) is None
            await until(lambda: len(begun) > 1)  # tried again at the next idle time

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["unsteady", "broken"])
def test_what_cannot_be_measured_is_left_after_three_tries(tmp_path, monkeypatch, fault):
    tries = []

    async def failing(heads, *, threads, scratch):
        tries.append(heads)
        if fault == "broken":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(idle_measuring, "measure_attention", failing)

    async def scenario():
        async with resting(tmp_path, "spark") as (state, loaded):
            await until(lambda: len(tries) == idle_measuring.TRIES)
            await asyncio.sleep(1.5)
            assert len(tries) == idle_measuring.TRIES
            assert state.placer.history.attention(key_of(state, loaded)) is None

    asyncio.run(scenario())


@pytest.mark.skipif(tiles_library(library_folder()) is None, reason="the kernels were not built here")
def test_a_measurement_that_is_left_while_memory_is_looked_for_reserves_nothing(
    tmp_path, monkeypatch, bundled_model
):
    paths = home_paths(tmp_path)
    placer, begun, goes_on = Placer(open_resources(paths)), threading.Event(), threading.Event()
    reserve = placer.ledger.reserve

    def slow_reserve(*args):
        begun.set()
        assert goes_on.wait(60)
        return reserve(*args)

    monkeypatch.setattr(placer.ledger, "reserve", slow_reserve)

    async def main():
        models = ServedModels(lambda: Catalogue(paths), user_settings=placer.resources.settings)
        state = ServerState(models=models, pool=FreePool(models), access=Access(TOKEN), placer=placer, paths=paths)
        heads = heads_of(read_shape(str(bundled_model)))
        measuring = asyncio.create_task(IdleMeasuring(state)._measured("key", heads, 1))
        await asyncio.to_thread(begun.wait, 60)
        measuring.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(measuring, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()
        return measuring.cancelled()

    assert asyncio.run(main())
    assert placer.ledger.reservations() == ()


def test_attention_by_our_own_kernels_is_not_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "tiles_library", tiles_library)

    async def scenario():
        async with resting(tmp_path, "spark") as (state, loaded):
            assert "attention" in loaded.settings.tiles
            await asyncio.sleep(2)  # an idle period takes 0.3 s
            assert state.placer.history.attention(key_of(state, loaded)) is None
            assert not (state.paths.cache / "stand-ins").exists()

    asyncio.run(scenario())


class Compared:
    """A bench service with one comparison to make, which waits until it may end or is stopped."""

    def __init__(self, *, after="igpu/vulkan"):
        self.missing, self.after = ["a place"], after
        self.may_end, self.runs, self.stops = threading.Event(), 0, 0

    def unmeasured(self, _model):
        return self.missing

    def compare(self, options, control):
        self.runs += 1
        try:
            while not self.may_end.is_set():
                control.wait(0.02)
        except Cancelled:
            self.stops += 1
            raise
        self.missing = []
        return Comparison(model=options.model, places=(), before="cpu/cpu", after=self.after)


def test_devices_are_compared_once_at_rest_and_the_model_moves(tmp_path):
    service = Compared()

    async def scenario():
        async with resting(tmp_path, "spark", service) as (state, loaded):
            first = loaded.runner
            await until(lambda: service.runs == 1)
            loaded.waiting += 1  # like a request for the model
            await until(lambda: service.stops == 1)
            loaded.waiting -= 1
            assert state.pool.get("spark").runner is first
            await until(lambda: service.runs == 2)  # tried again at the next idle time
            service.may_end.set()
            await until(
                lambda: (now := state.pool.get("spark")) is not None and now.ready and now.runner is not first
            )
            jobs = [job for job in state.jobs.jobs() if job.params["what"] == "compare"]
            assert [job.state for job in jobs] == ["done", "cancelled"]

    asyncio.run(scenario())


def test_a_comparison_that_the_user_cancels_does_not_come_back(tmp_path):
    service = Compared()

    async def scenario():
        async with resting(tmp_path, "spark", service) as (state, loaded):
            await until(lambda: service.runs == 1)
            state.jobs.cancel(state.jobs.jobs()[0].id)
            await until(lambda: service.stops == 1)
            await asyncio.sleep(1.5)  # several idle times
            assert service.runs == 1
            assert state.pool.get("spark") is loaded

    asyncio.run(scenario())


@pytest.mark.parametrize("has_resumed", [False, True])
@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ({"done": ["a long text"], "nats": 0.001}, False),
        ({"done": ["a long text"], "wrong": "a long text", "nats": 2.0, "check": CHECK}, True),
        ({"done": [], "wrong": "matrix products", "reason": "product (q8_0)", "in_products": True}, True),
    ],
)
def test_long_texts_on_a_device_are_compared_once_while_nothing_runs(
    tmp_path, monkeypatch, answer, wrong, has_resumed
):
    """The child's answer is given; it is tested with faults in test_scenarios.py.

    After a resume, what was compared before counts no longer, and the model stays loaded.
    """
    asked, renewed, disabled = [], [], []

    def disable(resources, machine, settings, shape, sentence_of):
        disabled.append(settings)
        return quarantine.disable(resources, machine, settings, shape, sentence_of)

    monkeypatch.setattr(idle_measuring, "disable", disable)

    async def answered(_self, settings, depth):
        asked.append((settings, depth))
        return answer

    monkeypatch.setattr(IdleMeasuring, "_deep_answer", answered)

    async def scenario():
        begun_at = time.time()
        async with resting(tmp_path, "spark") as (state, loaded):
            state.canary = Canary(state.pool, state.placer, None)
            # as if a GPU computed it, which was compared for short texts
            loaded.settings = replace(loaded.settings, devices=("Vulkan0",), n_gpu_layers=99)
            shape, machine = read_shape(loaded.settings.path), state.placer.machine_now()
            checks = state.placer.resources.checks
            checks.record(loaded.settings, shape, machine, msgspec.convert(CHECK, DeviceCheck))
            if has_resumed:
                counter = tmp_path / "suspends"
                counter.write_text("1")
                monkeypatch.setattr(device_checks, "SUSPENDS", counter)

            async def again(model):
                renewed.append(model.pending)

            monkeypatch.setattr(state.pool, "load_again", again)
            await until(lambda: (v := checks.verdict(loaded.settings, shape, machine)) is not None and v.deep_at)
            await until(lambda: bool(renewed) is wrong)
            await asyncio.sleep(1)  # several idle times
            found = checks.verdict(loaded.settings, shape, machine)
            assert found.wrong is wrong
            answers = state.canary.state().found  # the window marks the answers since the load
            assert [(one.model, one.devices) for one in answers] == [("spark", ("Vulkan0",))] * wrong
            assert all(begun_at <= one.since <= one.found_at for one in answers)
            assert ("wrongly" in found.reason) is wrong
            affected = {"on", "off"} if "in_products" in answer else {loaded.settings.flash_attn}
            assert {one.flash_attn != "off" for one in disabled} == (
                {a != "off" for a in affected} if wrong else set()
            )
            # Without flash attention the products are the same, so the next settings are those of the CPU.
            sound = state.placer.sound(loaded.id, loaded.settings, shape).settings
            assert sound.devices == (() if "in_products" in answer else ("Vulkan0",))
            ((_, depth),) = asked
            assert depth == loaded.settings.n_ctx - idle_measuring.PIECE
            assert set(renewed) == ({("device",)} if wrong else set())
            assert idle_measuring.DEEP_OWNER not in {r.owner for r in state.placer.ledger.reservations()}

    asyncio.run(scenario())


def test_the_long_text_reaches_beyond_the_window_and_several_ubatches():
    settings = LoadSettings(path="m", n_ctx=32_768, n_ubatch=2048)
    shape = MODELS["8B"]
    assert deep_length(settings, shape) >= 2.5 * 2048
    assert deep_length(replace(settings, n_ubatch=512), replace(shape, sliding_window=4096)) > 4096
    assert deep_length(replace(settings, n_ctx=2048), shape) < 2048
