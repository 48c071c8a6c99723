"""Models of many architectures, small and random: batches, shared prefixes and later turns as if alone."""

import asyncio

import pytest
from shapes import SHAPES, write_shape

from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from engine.types import Delta, Done, GenerationRequest, SamplingParams

# Two best log probabilities may come this close before the batch's shape decides between them.
TIE = 0.05
SYSTEM = list(range(100, 260))
PROMPTS = [SYSTEM + list(range(300 + 10 * i, 340 + 10 * i)) for i in range(4)]


async def collect(runner, prompt, **options):
    request = GenerationRequest(
        prompt=prompt,
        sampling=SamplingParams(temperature=0),
        logprobs=2,
        ignore_eos=True,
        **{"max_tokens": 16, **options},
    )
    entries, done = [], None
    async for event in runner.generate(request):
        if isinstance(event, Delta):
            entries += event.logprobs
        elif isinstance(event, Done):
            done = event
    return entries, done


def assert_same(a, b):
    for x, y in zip(a[0], b[0], strict=True):
        if x.token_id != y.token_id:
            assert x.top[0][2] - x.top[1][2] < TIE
            return


async def loaded(path, **settings):
    runner = await RunnerProcess.start("llama", str(path))
    await runner.load(LoadSettings(path=str(path), n_ctx=2048, kv_cells=8192, n_threads=1, **settings))
    return runner


async def walk(path):
    runner = await loaded(path, n_parallel=4)
    try:
        alone = [await collect(runner, p) for p in PROMPTS]
        together = await asyncio.gather(*(collect(runner, p) for p in PROMPTS))
        turn = PROMPTS[0] + [e.token_id for e in alone[0][0]] + [7, 8, 9]
        second = await collect(runner, turn)
        cut = runner.generate(GenerationRequest(prompt=PROMPTS[1] * 3, max_tokens=500, ignore_eos=True))
        async for event in cut:
            if isinstance(event, Delta):
                break
        await cut.aclose()
        after = await collect(runner, PROMPTS[2])
    finally:
        await runner.stop()
    fresh_runner = await loaded(path, n_parallel=1)
    try:
        fresh = await collect(fresh_runner, turn)
    finally:
        await fresh_runner.stop()
    return alone, together, turn, second, after, fresh


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_an_architecture_runs_as_if_alone(name, tmp_path):
    path = write_shape(tmp_path / f"{name}.gguf", SHAPES[name])
    alone, together, turn, second, after, fresh = asyncio.run(walk(path))
    for a, b in zip(alone, together, strict=True):
        assert_same(a, b)
    assert second[1].usage.cached_tokens > 0.9 * len(turn)
    assert_same(second, fresh)
    assert_same(after, alone[2])
