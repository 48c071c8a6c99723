"""A driver ends a runner in the middle of a long prompt: the next runner continues, and later loads know."""

import asyncio
import itertools
import os
import signal

import pytest
from msgspec.structs import replace

from devices.types import Runtime
from engine.core.errors import RunnerDied
from engine.core.paths import Paths
from engine.core.types import Delta, Done, GenerationRequest, Started
from engine.placement.fallbacks import prefill_fallbacks
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.placement.types import ModelSettings
from engine.pool.model_resolution import ResolvedModel
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.fakes.free_pool import FreePool
from tests.support.machines.machines import reports
from tests.support.models.shapes import scaled, write_shape

# A depth at which drivers did crash takes minutes: TESSERA_TEST_DEPTH=60000 runs these tests there.
DEPTH = int(os.environ.get("TESSERA_TEST_DEPTH", "8192"))
TOKENS = max(24_000, DEPTH + 4096)
CONTEXT = max(32_768, -(-TOKENS // 8192) * 8192 + 8192)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    small = scaled("llama", layers=1, embd=128, heads=2, kv_heads=1, ffn=256, vocab=600)
    return str(write_shape(tmp_path_factory.mktemp("deep") / "m.gguf", small))


@pytest.fixture
def paths(tmp_path):
    return Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))


def settings_for(path, paths, **changes):
    usual = {"n_ctx": CONTEXT, "kv_cells": CONTEXT, "n_parallel": 1, "n_threads": 1, "n_threads_batch": 1}
    stored = {"cache_dir": str(paths.cache / "prefixes"), "cache_disk_bytes": 1 << 30}
    return LoadSettings(path=path, **{**usual, **stored, **changes})


class Source:
    """Places the model as a server does, with the results of earlier loads."""

    def __init__(self, placer, settings):
        self.placer, self.settings = placer, settings

    async def resolve(self, model, min_ctx=0):
        placed = self.placer.choose(model, self.settings)
        return ResolvedModel(model_id=model, engine="llama", settings=placed.settings, placement=placed)

    def chosen(self, model):
        return ModelSettings()


def prompt(length=TOKENS):
    return GenerationRequest(prompt=[3 + i * 7 % 500 for i in range(length)], max_tokens=2)


async def killed_at(runner, depth, folder):
    """Kill a runner once its server knows that it is this deep, and a state is on disk."""
    for _ in itertools.count():
        if runner.prefill_depth >= depth and list(folder.rglob("*.kv")):
            break
        await asyncio.sleep(0.002)
    os.kill(runner.pid, signal.SIGKILL)
    return runner.prefill_depth


def asked(path, paths, deaths):
    """One long request, whose runner is killed `deaths` times; its events, the loads, and the notes."""
    loads = []

    async def start(engine, model_path):
        runner = await RunnerProcess.start(engine, model_path)
        load = runner.load

        async def seen(settings, progress=None):
            loads.append(settings)
            return await load(settings, progress)

        runner.load = seen
        if len(loads) < deaths:
            killers.append(asyncio.create_task(killed_at(runner, DEPTH, paths.cache)))
        return runner

    async def scenario():
        placer = Placer(open_resources(paths))
        pool = FreePool(Source(placer, settings_for(path, paths)), start, MemoryAdmission(placer))
        try:
            model = await pool.acquire("m")
            events = [event async for event in pool.generate(model, prompt())]
            return events, list(model.notes)
        finally:
            await pool.close()

    killers = []
    events, notes = asyncio.run(scenario())
    return events, loads, notes


@pytest.mark.native
@pytest.mark.timeout(240)
def test_the_second_try_continues_with_half_the_pieces_and_the_third_start_knows(path, paths):
    events, loads, notes = asked(path, paths, deaths=1)
    assert [type(e) for e in events if not isinstance(e, Delta)] == [Started, Done]
    assert events[-1].usage.completion_tokens == 2
    assert events[-1].usage.cached_tokens >= 8192, "it went on from what was stored"
    assert [s.n_ubatch for s in loads] == [512, 256]
    assert "tokens into a prompt" in notes[0]
    placed = Placer(open_resources(paths)).choose("m", settings_for(path, paths))
    assert placed.settings.n_ubatch == 256
    assert {c.step for c in placed.changes if c.field == "n_ubatch"} == {"prefill deaths"}
    short = Placer(open_resources(paths)).choose("m", settings_for(path, paths, n_ctx=4096, kv_cells=4096))
    assert short.settings.n_ubatch == 512, "a context that never gets there stays as it is"
    other = Placer(open_resources(paths)).choose("n", settings_for(path, paths))
    assert other.settings.n_ubatch == 512, "another model is not concerned"


@pytest.mark.native
@pytest.mark.timeout(240)
def test_without_a_smaller_step_the_client_is_told(path, paths):
    async def scenario():
        placer = Placer(open_resources(paths))
        admission = MemoryAdmission(placer)
        settings = settings_for(path, paths, n_ubatch=64, n_batch=64)
        assert await admission.after_prefill_death("m", settings, 9000) is None
        pool = FreePool(Source(placer, settings), RunnerProcess.start, admission)
        try:
            model = await pool.acquire("m")
            killer = asyncio.create_task(killed_at(model.runner, 8192, paths.cache))
            with pytest.raises(RunnerDied):
                async for _event in pool.generate(model, prompt()):
                    pass
            await killer
            assert (await pool.acquire("m")).ready, "the next request starts a new runner"
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_the_ladder_of_a_gpu_ends_on_the_cpu():
    machine = reports()["sh-linux-amdvlk-vs-rocm"]
    names = {r.backend: r.device_name for d in machine.devices for r in d.runtimes if isinstance(r, Runtime)}
    settings = LoadSettings(path="m", devices=(names["vulkan"],), n_gpu_layers=99, n_ubatch=128)
    steps, tried = [], [settings]
    while left := [f for f in prefill_fallbacks(tried[-1], machine) if f.settings not in tried]:
        tried.append(left[0].settings)
        steps.append(left[0].change.kind)
    assert steps[:3] == ["shorter_pieces", "matrix_units_off", "half_precision_off"]
    assert "other_backend" in steps
    assert steps[-1] in {"on_processor", "shorter_pieces"}
    assert tried[-1].devices == ()
    assert "GGML_VK_DISABLE_COOPMAT=1" in tried[2].variables


def test_another_vulkan_driver_is_tried_and_those_of_other_vendors_stay():
    machine = reports()["sh-linux-amdvlk-vs-rocm"]
    name = next(r.device_name for d in machine.devices for r in d.runtimes if r.backend == "vulkan")
    settings = LoadSettings(path="m", devices=(name,), n_gpu_layers=99, n_ubatch=128)

    def drivers(*files):
        listed = replace(machine, vulkan_drivers=tuple(f"/usr/share/vulkan/icd.d/{file}" for file in files))
        found = [f for f in prefill_fallbacks(settings, listed) if f.change.kind == "other_vulkan_driver"]
        return [f.settings.variables for f in found]

    both = drivers("amd_icd64.json", "nvidia_icd.json", "radeon_icd.x86_64.json")
    assert both == [
        ("VK_ICD_FILENAMES=/usr/share/vulkan/icd.d/amd_icd64.json:/usr/share/vulkan/icd.d/nvidia_icd.json",)
    ]
    assert drivers("radeon_icd.x86_64.json", "nvidia_icd.json") == []
    assert drivers("amd_icd64.json") == []
