"""A real ggml Vulkan device, usually Mesa's software one: detection, dispatch, offload, equal answers.

Run by tests/optin/vulkan.py, which builds the libraries. Alone it is skipped without a Vulkan device.
"""

import asyncio
from pathlib import Path

import pytest

from devices.host_real import RealHost
from devices.report import live_report
from engine.core.paths import Paths
from engine.core.types import Delta, GenerationRequest, SamplingParams
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.placement.types import PlacementLimits
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

ROOT = Path(__file__).resolve().parents[2]
SPARK = str(ROOT / "assets/models/spark-f16.gguf")
# Kernels add in another order: log probabilities of a trained f16 model differ by less than this.
TOLERANCE = 0.05
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def machine():
    found = live_report(RealHost(), None)
    if not any(r.backend == "vulkan" for d in found.devices for r in d.runtimes):
        reasons = [f"{b.backend}: {b.state} {b.reason}" for b in found.backends]
        pytest.skip(f"no Vulkan device here ({'; '.join(reasons)})")
    return found


@pytest.fixture(scope="module")
def device(machine):
    return next(d for d in machine.devices if any(r.backend == "vulkan" for r in d.runtimes))


def test_detection(machine, device):
    assert device.state == "usable"
    assert len({d.id for d in machine.devices}) == len(machine.devices)
    assert device.memory.budget_bytes > 0
    assert device.memory.available_bytes <= device.memory.budget_bytes
    assert any(b.backend == "vulkan" and b.state == "usable" for b in machine.backends)


def test_dispatch(device, tmp_path):
    placer = Placer(open_resources(Paths(*(tmp_path / n for n in "abcde"))))
    settings = LoadSettings(path=SPARK, n_ctx=512, n_parallel=1)
    free_choice = placer.placement("spark", settings)
    pinned = placer.placement("spark", settings, PlacementLimits(device="vulkan"))
    assert pinned.device == device.id
    assert pinned.settings.devices == (device.runtimes[0].device_name,)
    assert pinned.settings.n_gpu_layers == pinned.n_layers + 1
    if device.vendor == "software":
        assert free_choice.device == "cpu"


def test_partial_offload_answers_as_the_processor_does(device):
    name = next(r.device_name for r in device.runtimes if r.backend == "vulkan")
    layers = asyncio.run(_layers())
    reference = asyncio.run(_logprobs(LoadSettings(path=SPARK, n_ctx=512, n_parallel=1)))
    for offloaded in (0, layers // 2, layers + 1):
        settings = LoadSettings(path=SPARK, n_ctx=512, n_parallel=1, devices=(name,), n_gpu_layers=offloaded)
        found = asyncio.run(_logprobs(settings))
        assert [token for token, _ in found] == [token for token, _ in reference], f"{offloaded} layers"
        worst = max(abs(a - b) for (_, a), (_, b) in zip(found, reference, strict=True))
        assert worst < TOLERANCE, f"{offloaded} layers differ by {worst}"


async def _layers() -> int:
    from engine.placement.placer import read_shape

    return len(read_shape(SPARK).layers)


async def _logprobs(settings: LoadSettings) -> list[tuple[int, float]]:
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        await runner.load(settings, lambda _phase, _fraction: None)
        request = GenerationRequest(
            prompt=PROMPT, max_tokens=24, ignore_eos=True, logprobs=0, sampling=SamplingParams(temperature=0)
        )
        found = []
        async for event in runner.generate(request):
            if isinstance(event, Delta):
                found += [(p.token_id, p.logprob) for p in event.logprobs]
        return found
    finally:
        await runner.stop()
