"""Recurrent states and sliding windows cannot be truncated: checks cache reuse of later turns, and their text."""

import asyncio
import contextlib
import random

import pytest

from engine.core.errors import InputFault
from engine.core.types import GenerationRequest, SamplingParams
from engine.placement.placer import read_shape
from engine.runner.llama.cache.checkpoints import BEFORE_END
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.architectures import ARCHITECTURES, write_architecture
from tests.support.runner_calls import answered

FIRST = list(range(20, 220))
MIB = 1 << 20
FEW = 3  # number of cancelled prompts; more if none of them was read yet


async def collect(runner, prompt, **options):
    """Tokens of the answer, number of cached tokens, and the finish reason."""
    request = GenerationRequest(
        prompt=prompt, sampling=SamplingParams(temperature=0), **{"max_tokens": 12, "ignore_eos": True, **options}
    )
    answer = await answered(runner, request)
    return answer.ids, answer.done.usage.cached_tokens, answer.done.finish_reason


def run(path, work, **settings):
    async def main():
        runner = await RunnerProcess.start("llama", str(path))
        try:
            defaults = {
                "n_ctx": 512,
                "kv_cells": 1024,
                "n_parallel": 2,
                "n_ubatch": 64,
                "cache_ram_bytes": 32 * MIB,
            }
            exact = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1}
            await runner.load(LoadSettings(path=str(path), **{**defaults, **exact, **settings}))
            return await work(runner)
        finally:
            await runner.stop()

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LFM2", "Mamba 2", "Gemma 2"])
def test_a_turn_that_departs_near_the_end_of_the_last_prompt(name, tmp_path):
    """As with templates that drop the reasoning of earlier turns."""
    path = write_architecture(tmp_path / "model.gguf", ARCHITECTURES[name])
    turn = [*FIRST[:-6], *range(300, 420)]

    async def conversation(runner):
        await collect(runner, FIRST, max_tokens=40)
        return await collect(runner, turn)

    ids, cached, _ = run(path, conversation)
    fresh, none, _ = run(path, lambda r: collect(r, turn), cache_ram_bytes=0)
    assert ids == fresh
    assert none == 0
    assert cached >= len(FIRST) - 6 - BEFORE_END


def test_without_memory_for_checkpoints_the_prompt_is_computed_again(tmp_path):
    path = write_architecture(tmp_path / "model.gguf", ARCHITECTURES["Mamba 2"])
    turn = [*FIRST[:-6], *range(300, 420)]

    async def conversation(runner):
        await collect(runner, FIRST, max_tokens=40)
        return await collect(runner, turn)

    ids, cached, _ = run(path, conversation, cache_ram_bytes=0)
    assert cached == 0
    assert ids == run(path, lambda r: collect(r, turn), cache_ram_bytes=0)[0]


def test_checkpoints_are_part_of_the_memory_for_prefixes(tmp_path):
    """The store has no room for the whole state with its checkpoint, which is in memory all the same."""
    path = write_architecture(tmp_path / "model.gguf", ARCHITECTURES["Mamba 2"])
    state_bytes = sum(layer.state_bytes for layer in read_shape(str(path)).layers)

    async def work(runner):
        await collect(runner, FIRST)
        return (await runner.stats()).cache_ram_bytes

    assert state_bytes <= run(path, work, cache_ram_bytes=3 * state_bytes) <= 1.5 * state_bytes


@pytest.mark.parametrize("name", ["Llama, Mistral", "LFM2", "Qwen 3.5"])
def test_a_prompt_that_was_left_while_it_was_read_is_read_right_the_next_time(name, tmp_path):
    """An abort stops a decode between two layers; state that some layers have already updated must not be used."""
    path = write_architecture(tmp_path / "model.gguf", ARCHITECTURES[name])
    rng = random.Random(5)
    prompts = [[rng.randrange(500) for _ in range(950)] for _ in range(8)]
    stays = name == "Llama, Mistral"  # its computed tokens can be reused

    async def leave(runner, prompt, after_s):
        reading = asyncio.create_task(collect(runner, prompt, max_tokens=1))
        await asyncio.sleep(after_s)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading

    async def work(runner):
        found, longer = [], 1.0
        for prompt in prompts:
            await leave(runner, prompt, longer * rng.uniform(0.005, 0.08))
            if not any(cached for _, cached in found):  # a busy machine may have read nothing yet
                longer *= 1.5
            again = await collect(runner, prompt)
            alone = await collect(runner, prompt, cache_prompt=False)
            found.append((again[0] == alone[0], again[1]))
            if len(found) >= FEW and (not stays or any(cached for _, cached in found)):
                break
        return found

    found = run(path, work, n_ctx=1024, kv_cells=4096)
    assert [right for right, _ in found] == [True] * len(found)
    if stays:
        assert any(cached for _, cached in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama, Mistral", "Gemma 2", "LFM2"])
def test_a_full_context_ends_the_answer_unless_a_shift_was_asked_for(name, tmp_path):
    path = write_architecture(tmp_path / "model.gguf", ARCHITECTURES[name])

    async def both(runner):
        ended = await collect(runner, FIRST, max_tokens=200)
        shifted = await collect(runner, FIRST, max_tokens=200, context_shift=True)
        with pytest.raises(InputFault, match="max_tokens"):
            await collect(runner, FIRST, max_tokens=None, context_shift=True)
        after = await collect(runner, FIRST[::-1])
        return ended, shifted, after

    ended, shifted, after = run(path, both, n_ctx=256)
    assert (len(ended[0]), ended[2]) == (256 - len(FIRST), "length")
    assert (len(shifted[0]), shifted[2]) == (200, "length")
    before = shifted[0][: 256 - len(FIRST) - 17]
    assert before == ended[0][: len(before)]
    # After the first shift the text continues from the shortened context.
    full = [*FIRST, *shifted[0][: 256 - len(FIRST) - 17]]
    left = [*full[:64], *full[64 + (len(full) - 64) // 2 :]]
    fresh = run(path, lambda r: collect(r, left, max_tokens=20), n_ctx=256, cache_ram_bytes=0)
    assert shifted[0][len(before) : len(before) + 20] == fresh[0]
    assert after[0] == run(path, lambda r: collect(r, FIRST[::-1]), n_ctx=256, cache_ram_bytes=0)[0]
