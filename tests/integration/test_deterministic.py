"""Requests with `deterministic` give the same bits regardless of other requests and of load settings."""

import asyncio
import random

import msgspec

from engine.core.types import Constraint, GenerationRequest, SamplingParams
from tests.support.runner_calls import CHAT, answered, with_runner

WORDS = ["cat", "dog", "house", "river", "king", "snow", "tree", "bread", "moon", "sea"]
# Shorter and longer than one prompt chunk, and two with a common prefix longer than a chunk.
LENGTHS = (5, 70, 150)


def prompt(words):
    return CHAT.format("Tell a story about " + " ".join(random.Random(7).choices(WORDS, k=words)))


ASKED = [
    GenerationRequest(
        prompt=prompt(words),
        sampling=SamplingParams(temperature=temperature, seed=3),
        max_tokens=8,
        logprobs=2,
        ignore_eos=True,
        deterministic=True,
    )
    for words in LENGTHS
    for temperature in (0.0, 0.9)
]


def bits(answer):
    return answer.ids, [(entry.logprob, entry.top) for entry in answer.logprobs]


async def ask(runner, request):
    return bits(await answered(runner, request))


def plain(request):
    return msgspec.structs.replace(request, deterministic=False)


async def in_all_ways(runner):
    """Each request alone, concurrently with others, and after them."""
    first = [await ask(runner, request) for request in ASKED]
    beside = await asyncio.gather(*(ask(runner, r) for request in ASKED for r in (request, plain(request))))
    after = [await ask(runner, request) for request in reversed(ASKED)][::-1]
    return [first, beside[::2], after]


def test_a_deterministic_request_gives_the_same_bits_beside_others_after_them_and_in_other_loads(bundled_model):
    ways = with_runner(bundled_model, in_all_ways)
    others = {"n_ubatch": 128, "n_parallel": 2, "flash_attn": "off", "max_draft": 0}
    ways += with_runner(bundled_model, in_all_ways, **others)
    ways += with_runner(bundled_model, in_all_ways, flash_attn="on", type_k="q8_0", type_v="q8_0")
    assert all(way == ways[0] for way in ways)


def test_the_bits_do_not_depend_on_the_number_of_threads(bundled_model):
    short = msgspec.structs.replace(ASKED[2], max_tokens=3)  # thread synchronization on a busy machine is slow

    async def once(runner):
        return await ask(runner, short)

    assert with_runner(bundled_model, once, n_threads=1) == with_runner(bundled_model, once, n_threads=2)


def test_without_the_wish_the_bits_depend_on_how_the_model_was_loaded(bundled_model):
    """Proves that the previous test can detect a difference."""

    async def alone(runner):
        return [await ask(runner, plain(request)) for request in ASKED]

    fused = with_runner(bundled_model, alone, flash_attn="on")
    assert fused != with_runner(bundled_model, alone, flash_attn="off")


def test_a_cancelled_or_constrained_request_leaves_nothing_behind(bundled_model):
    async def work(runner):
        first = await ask(runner, ASKED[-1])
        async for _ in runner.generate(msgspec.structs.replace(ASKED[2], max_tokens=200)):
            break
        formed = msgspec.structs.replace(ASKED[0], constraint=Constraint(kind="regex", source="[a-f]{4}"))
        assert (await answered(runner, formed)).text.strip()
        return first, await ask(runner, ASKED[-1])

    before, after = with_runner(bundled_model, work)
    assert before == after
