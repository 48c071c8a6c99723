"""Helpers for a real runner process: load, request, stop."""

import asyncio
from dataclasses import dataclass, field

from engine.core.types import Delta, Done, GenerationRequest, SamplingParams, Started, TokenLogprob
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
GREEDY = SamplingParams(temperature=0)
# The same tokens, but the request may use all cached tokens, so it need not repeat bit for bit.
LIKELIEST = SamplingParams(temperature=1.0, top_k=1)
# With these settings, results differ only by 32-bit rounding, whatever other requests share a step.
EXACT = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}
# With three words, sequences of four repeat soon: n-gram drafting finds drafts, and many are wrong.
WORDS = (7, 9, 30)
FEW = SamplingParams(temperature=0, logit_bias=dict.fromkeys(WORDS, 60.0))


def with_runner(path, work, **settings):
    async def main():
        runner = await RunnerProcess.start("llama", str(path))
        try:
            usual = {"n_threads": 1, "n_ctx": 1024, "kv_cells": 4096}
            await runner.load(LoadSettings(path=str(path), **{**usual, **settings}))
            return await work(runner)
        finally:
            await runner.stop()

    return asyncio.run(main())


@dataclass
class Answer:
    """All events of one request."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    started: Started | None = None
    done: Done | None = None


async def answered(runner, request):
    """Collect the whole response of a request."""
    answer = Answer()
    async for event in runner.generate(request):
        if isinstance(event, Delta):
            answer.text += event.text
            answer.ids += event.token_ids
            answer.logprobs += event.logprobs
        elif isinstance(event, Started):
            answer.started = event
        elif isinstance(event, Done):
            answer.done = event
    return answer


async def collect(runner, prompt, **options):
    request = GenerationRequest(
        prompt=prompt, **{"sampling": GREEDY, "max_tokens": 60, "ignore_eos": True, **options}
    )
    answer = await answered(runner, request)
    return answer.ids, answer.done.timings
