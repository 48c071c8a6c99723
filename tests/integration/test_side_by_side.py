"""Different kinds of work in one runner: embeddings beside chats, and requests under different adapters."""

import asyncio
import random

import gguf
import numpy as np
from test_draft_model import CHAT, with_runner

from engine.types import Delta, GenerationRequest, SamplingParams

GREEDY = SamplingParams(temperature=0)


async def listen(runner, seen, prompt, **options):
    """Collect the tokens of one answer in `seen` as they come."""
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
        chat = asyncio.create_task(listen(runner, seen, CHAT.format("Tell me a story."), max_tokens=900))
        while not seen:  # noqa: ASYNC110 - it is filled by the task, one turn of the loop at a time
            await asyncio.sleep(0)
        before = len(seen)
        told = await runner.embed(text)
        during, running = len(seen) - before, not chat.done()
        await chat
        return alone, told, during, running, seen

    alone, told, during, running, seen = with_runner(bundled_model, work)
    assert running  # the embeddings did not wait for the chat's end
    assert during >= 8  # nor the chat for theirs; deltas travel in frames, so a few are under way
    assert len(seen) == 900 or len(seen) > 100
    assert all(vector == alone.vectors[0] for vector in told.vectors)
    quiet = with_runner(bundled_model, lambda r: listen(r, [], CHAT.format("Tell me a story."), max_tokens=900))
    assert seen == quiet


def write_adapter(path, seed):
    """A random adapter of rank 4 on the query projections of the bundled model."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for layer in range(8):
        name = f"blk.{layer}.attn_q.weight"
        writer.add_tensor(f"{name}.lora_a", rng.normal(0, 0.3, (4, 256)).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", rng.normal(0, 0.3, (256, 4)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_adapters_stay_apart_when_requests_come_go_and_share_prompts(bundled_model, tmp_path):
    """Thirty requests under four choices, a third of them cancelled: each text is the one it has alone."""
    adapters = tuple(write_adapter(tmp_path / f"{name}.gguf", seed) for name, seed in (("one", 1), ("two", 2)))
    wishes = [(), (("one", 1.0),), (("two", 1.0),), (("one", 0.5), ("two", 0.5))]
    prompts = [CHAT.format("Explain what a file is. " * 12 + end) for end in ("Why?", "How?", "When?")]

    async def work(runner):
        alone = {}
        for w, wish in enumerate(wishes):
            for p, prompt in enumerate(prompts):
                alone[w, p] = await listen(runner, [], prompt, lora=wish)
        rng = random.Random(5)
        jobs = []
        for i in range(30):
            w, p = rng.randrange(len(wishes)), rng.randrange(len(prompts))
            seen: list[int] = []
            task = asyncio.create_task(
                listen(runner, seen, prompts[p], lora=wishes[w], speculate=rng.random() < 0.5)
            )
            jobs.append((w, p, seen, task))
            if i % 3 == 0:
                victim = jobs[rng.randrange(len(jobs))]
                await asyncio.sleep(0.01)
                victim[3].cancel()
        await asyncio.gather(*(task for *_, task in jobs), return_exceptions=True)
        return alone, jobs, await runner.stats()

    alone, jobs, stats = with_runner(bundled_model, work, lora=adapters, cache_ram_bytes=1 << 26)
    assert len({tuple(text) for text in alone.values()}) >= 2 * len(wishes)
    whole = 0
    for w, p, seen, task in jobs:
        assert seen == alone[w, p][: len(seen)]
        whole += not task.cancelled()
    assert whole >= 15
    assert stats.active == stats.waiting == 0
