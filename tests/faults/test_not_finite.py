"""Logits that are not numbers: the request that causes them fails, and no other request is affected."""

import asyncio

import pytest

from engine.core.types import Delta, GenerationRequest, SamplingParams
from engine.runner.faults import RequestFailed
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.variants import write_poisoned

POISON = 7777
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [CHAT.format(text) for text in ("Explain what a file is. " * 12, "Tell me a story.", "a b c " * 60)]


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory, bundled_model):
    path = tmp_path_factory.mktemp("poisoned") / "poisoned.gguf"
    write_poisoned(bundled_model, path, POISON)
    return path


async def answer(runner, prompt, **options):
    usual = {"max_tokens": 30, "sampling": SamplingParams(temperature=0), "ignore_eos": True}
    request = GenerationRequest(prompt=prompt, **{**usual, **options})
    return "".join([e.text async for e in runner.generate(request) if isinstance(e, Delta)])


def run(path, work, **settings):
    async def main():
        runner = await RunnerProcess.start("llama", str(path))
        try:
            await runner.load(LoadSettings(path=str(path), n_ctx=1024, kv_cells=4096, n_threads=1, **settings))
            return await work(runner)
        finally:
            await runner.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("store_bytes", [0, 1 << 26])
def test_only_the_request_that_causes_it_fails(poisoned, store_bytes):
    async def work(runner):
        alone = [await answer(runner, prompt) for prompt in PROMPTS]
        bad = [*(await runner.tokenize(PROMPTS[0]))[:40], POISON, 5, 6, 7]
        together = await asyncio.gather(
            answer(runner, bad), *(answer(runner, p) for p in PROMPTS), answer(runner, bad), return_exceptions=True
        )
        after = [await answer(runner, prompt) for prompt in PROMPTS]
        stats = await runner.stats()
        return alone, together, after, stats

    alone, together, after, stats = run(poisoned, work, cache_ram_bytes=store_bytes)
    for failed in (together[0], together[-1]):
        assert isinstance(failed, RequestFailed)
        assert failed.code == "not_finite"
    assert together[1:-1] == alone
    assert after == alone
    assert stats.active == stats.waiting == 0


def test_it_fails_alone_too_and_leaves_nothing_behind(poisoned):
    async def work(runner):
        first = await answer(runner, PROMPTS[1])
        for _ in range(3):
            with pytest.raises(RequestFailed, match="not a number"):
                await answer(runner, [300, POISON, 301])
        return first, await answer(runner, PROMPTS[1])

    first, again = run(poisoned, work)
    assert first == again


def test_a_prefix_computed_beside_it_and_never_shown_is_not_used_again(poisoned):
    """A prompt cancelled next to the NaN request may leave NaN in the cache: the next one is computed again."""
    long = PROMPTS[0] * 4

    async def work(runner):
        bad = [300] * 40 + [POISON] + [301] * 200
        for _ in range(3):
            cancelled = asyncio.create_task(answer(runner, long))
            poison = asyncio.create_task(answer(runner, bad))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, poison, return_exceptions=True)
        return await answer(runner, long)

    kept = run(poisoned, work, cache_ram_bytes=1 << 26)
    assert kept == run(poisoned, lambda runner: answer(runner, long))


def test_embeddings_after_it_are_numbers(poisoned):
    async def work(runner):
        text = "a file is a list of bytes " * 20
        before = await runner.embed([text])
        with pytest.raises(RequestFailed, match="not a number"):
            await runner.embed([text, [300, POISON, 301]])
        return before, await runner.embed([text])

    before, after = run(poisoned, work)
    assert before.vectors == after.vectors


def test_requests_that_arrive_meanwhile_wait_for_a_suspect_of_low_priority(poisoned):
    """Its prompt takes many steps: it must not start again in each of them."""
    long = PROMPTS[0] * 4

    async def work(runner):
        begun = asyncio.Event()

        async def side():
            request = GenerationRequest(prompt=long, max_tokens=200, ignore_eos=True, priority="side")
            async for event in runner.generate(request):
                if isinstance(event, Delta):
                    begun.set()

        slow = asyncio.create_task(side())
        await begun.wait()
        with pytest.raises(RequestFailed, match="not a number"):
            await answer(runner, [300, POISON, 301], priority="side")
        text = await asyncio.wait_for(answer(runner, PROMPTS[1]), 30)
        await slow
        return text

    small = {"n_batch": 32, "n_ubatch": 32}
    expected = run(poisoned, lambda runner: answer(runner, PROMPTS[1]), **small)
    assert run(poisoned, work, **small) == expected
