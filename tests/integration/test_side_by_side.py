"""Different kinds of work in one runner: embeddings with chats, long prompts with short ones."""

import asyncio
import random

import pytest

from engine.core.types import Delta, GenerationRequest, SamplingParams
from tests.support.runner_calls import CHAT, answered, with_runner

GREEDY = SamplingParams(temperature=0)


async def listen(runner, seen, prompt, **options):
    """Append the tokens of one answer to `seen` as they arrive."""
    request = GenerationRequest(
        prompt=prompt, **{"sampling": GREEDY, "max_tokens": 30, "ignore_eos": True, **options}
    )
    async for event in runner.generate(request):
        if isinstance(event, Delta):
            seen += event.token_ids
    return seen


def test_embeddings_and_chats_take_turns(bundled_model):
    """Counted in steps: each embedding decode of at most 512 tokens is followed by a step of the chat."""
    text = [list(range(300, 800))] * 12  # twelve decodes

    async def work(runner):
        alone = await runner.embed(text[:1])
        seen: list[int] = []
        chat = asyncio.create_task(
            listen(runner, seen, CHAT.format("Tell me a story."), max_tokens=200, speculate=False)
        )
        while not seen:  # noqa: ASYNC110 - the task fills it, once per event-loop iteration
            await asyncio.sleep(0)
        before = len(seen)
        told = await runner.embed(text)
        during, running = len(seen) - before, not chat.done()
        await chat
        return alone, told, during, running, seen

    alone, told, during, running, seen = with_runner(bundled_model, work)
    assert running  # the embeddings did not wait for the end of the chat
    assert during >= 8  # nor did the chat wait; deltas travel in frames, so a few are in flight
    assert len(seen) == 200
    assert all(vector == alone.vectors[0] for vector in told.vectors)
    quiet = with_runner(
        bundled_model, lambda r: listen(r, [], CHAT.format("Tell me a story."), max_tokens=200, speculate=False)
    )
    assert seen == quiet


@pytest.mark.timeout(400)
def test_a_long_prompt_is_read_while_short_ones_keep_coming(bundled_model):
    """Short prompts have priority in a step, but every other step belongs to the oldest request."""
    rng = random.Random(4)

    def ask(length, tokens):
        prompt = [rng.randrange(40, 200) for _ in range(length)]
        return GenerationRequest(prompt=prompt, max_tokens=tokens, ignore_eos=True, sampling=GREEDY)

    async def work(runner):
        long = asyncio.create_task(answered(runner, ask(1300, 4)))
        count = 0

        async def keep_asking():
            nonlocal count
            while not long.done():
                await answered(runner, ask(60, 1))
                count += 1

        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*(keep_asking() for _ in range(6))), 300)
        return count, (await long).done.usage

    count, usage = with_runner(bundled_model, work, n_ctx=2048, n_parallel=8, n_batch=64, n_ubatch=64)
    assert usage.completion_tokens == 4
    assert count > 10
