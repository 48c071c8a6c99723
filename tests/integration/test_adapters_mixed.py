"""Concurrent requests with different LoRA adapters, cancelled and cached, give the same results as alone."""

import asyncio
import contextlib
import random

from engine.core.types import GenerationRequest, SamplingParams
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.lora_adapter import write_adapter
from tests.support.runner_calls import answered

WISHES = ((), (("one", 1.0),), (("two", 1.0),), (("one", 0.5), ("two", 0.5)))
SYSTEM = "You are a helpful assistant that answers briefly. " * 12
QUESTIONS = ("What is a token?", "How do I use tar?")
# Logit gap at which either token may win: other batch shapes round differently.
TIE = 0.05


def prompt(question):
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


async def answer(runner, question, wish, **options):
    request = GenerationRequest(
        prompt=prompt(question),
        lora=wish,
        sampling=SamplingParams(temperature=0),
        max_tokens=24,
        ignore_eos=True,
        logprobs=2,
        **options,
    )
    whole = await answered(runner, request)
    return whole.ids, whole.logprobs


def same_up_to_ties(found, wanted):
    for got, token, probability in zip(found[0], wanted[0], wanted[1], strict=True):
        if got != token:
            best, second = (top[2] for top in probability.top)
            return best - second < TIE
    return True


def test_thirty_requests_with_adapters_are_answered_as_alone(bundled_model, tmp_path):
    files = (write_adapter(tmp_path / "one.gguf", 0.3, seed=1), write_adapter(tmp_path / "two.gguf", 0.3, seed=2))
    rng = random.Random(3)

    async def started(**settings):
        runner = await RunnerProcess.start("llama", str(bundled_model))
        base = {"path": str(bundled_model), "n_threads": 1, "n_ctx": 1024, "kv_cells": 4096, "lora": files}
        await runner.load(LoadSettings(**base, **settings))
        return runner

    async def main():
        runner = await started()
        alone = {(w, q): await answer(runner, q, w, speculate=False) for w in WISHES for q in QUESTIONS}
        await runner.stop()
        runner = await started(cache_ram_bytes=1 << 28, flash_attn="off")
        tasks = []
        for i in range(30):
            wish, question = rng.choice(WISHES), rng.choice(QUESTIONS)
            task = asyncio.ensure_future(answer(runner, question, wish, speculate=bool(i % 2)))
            tasks.append((wish, question, task))
            if i % 3 == 0:
                asyncio.get_running_loop().call_later(rng.random(), task.cancel)
        found = []
        for wish, question, task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                found.append((wish, question, await task))
        await runner.stop()
        return alone, found

    alone, found = asyncio.run(main())
    assert len({tuple(alone[wish, QUESTIONS[0]][0]) for wish in WISHES}) == len(WISHES)
    assert len(found) >= 20
    assert all(same_up_to_ties(answered, alone[wish, question]) for wish, question, answered in found)
