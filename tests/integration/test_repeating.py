"""Single requests: the same request gives the same bits, regardless of the cache and of earlier requests."""

import asyncio
import random

import pytest

from engine.core.types import GenerationRequest, SamplingParams
from tests.support.models.shapes import shallow, write_shape
from tests.support.runner_calls import answered, with_runner

SEEDED = SamplingParams(temperature=1.0, seed=5)
GREEDY = SamplingParams(temperature=0)
ANY = SamplingParams(temperature=1.0)
CACHE = {"cache_ram_bytes": 64 << 20, "cache_disk_bytes": 64 << 20}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """Random 4-bit weights, whose products use different kernels for one row and for many."""
    return write_shape(tmp_path_factory.mktemp("repeating") / "model.gguf", shallow("llama-q4_0"))


def tokens(count, seed=1):
    numbers = random.Random(seed)
    return [numbers.randrange(10, 200) for _ in range(count)]


def request(prompt, sampling=SEEDED, **options):
    return GenerationRequest(
        prompt=prompt, sampling=sampling, **{"max_tokens": 8, "logprobs": 1, "ignore_eos": True, **options}
    )


async def bits(runner, asked):
    answer = await answered(runner, asked)
    return answer.ids, [entry.logprob for entry in answer.logprobs]


# Shorter than a step, several steps long, and one with a common prefix.
PROMPTS = (tokens(37), tokens(150), tokens(150) + tokens(30, seed=2))
ASKED = [request(prompt, sampling) for prompt in PROMPTS for sampling in (SEEDED, GREEDY)]


async def twice(runner):
    return [[await bits(runner, asked) for asked in ASKED] for _ in range(2)]


async def after_others(runner):
    """The results after requests that compute and cache the same prefixes in steps of other shapes."""
    others = [request(tokens(n) + tokens(20, seed=n), ANY) for n in (30, 100, 140)]
    for other in others:
        await answered(runner, other)
    await asyncio.gather(*(answered(runner, other) for other in (*others, *ASKED)))
    return [await bits(runner, asked) for asked in ASKED]


async def in_all_ways(runner):
    before = await twice(runner)
    await asyncio.sleep(0.2)  # idle prefixes are copied out of the cells
    return [*before, await after_others(runner), *await twice(runner)]


@pytest.mark.parametrize("attention", ["on", "off"])
def test_the_same_request_gives_the_same_bits_whatever_is_cached(quantized, tmp_path, attention):
    settings = {**CACHE, "cache_dir": str(tmp_path), "flash_attn": attention}
    ways = with_runner(quantized, in_all_ways, **settings)
    assert list(tmp_path.glob("*/*.kv"))
    ways += with_runner(quantized, twice, **settings)  # prefixes come from disk
    ways += with_runner(quantized, twice, flash_attn=attention)  # no prefixes
    assert [way == ways[0] for way in ways] == [True] * len(ways)


def test_what_is_cached_is_used(quantized):
    async def cached(runner):
        await answered(runner, ASKED[2])
        return (await answered(runner, ASKED[4])).started.cached_tokens

    assert with_runner(quantized, cached) == 128


def test_the_second_turn_of_a_chat_does_not_depend_on_the_first_having_run(quantized):
    async def chat(runner):
        first = await answered(runner, request(PROMPTS[1], max_tokens=70))
        return [await bits(runner, second(first.ids)) for _ in range(2)]

    async def without_the_first(runner):
        answer = (await answered(runner, request(PROMPTS[1], max_tokens=70, cache_prompt=False))).ids
        return await bits(runner, second(answer))

    def second(answer):
        return request([*PROMPTS[1], *answer, *tokens(20, seed=9)], GREEDY)

    one, two = with_runner(quantized, chat)
    assert one == two == with_runner(quantized, without_the_first)


def test_an_answer_is_computed_again_while_nothing_runs(quantized):
    async def cached(runner):
        first = await answered(runner, request(PROMPTS[1], max_tokens=70))
        turn = request([*PROMPTS[1], *first.ids, *tokens(20, seed=9)], GREEDY)
        at_once = await answered(runner, turn)
        await answered(runner, request(PROMPTS[1], max_tokens=70))
        while (await runner.stats()).kv_cells_used != 192:  # noqa: ASYNC110 - whole steps; there is no event for it
            await asyncio.sleep(0.2)
        later = await answered(runner, turn)
        assert at_once.ids == later.ids
        return at_once.started.cached_tokens, later.started.cached_tokens

    assert with_runner(quantized, cached) == (128, 192)


def test_drafts_depend_on_the_text_alone(quantized):
    """Asserts the same bits regardless of measured step costs and other requests' acceptance rates."""
    copies = request(tokens(40) * 4, GREEDY, max_tokens=48)

    async def work(runner):
        found = [await bits(runner, copies)]
        await answered(runner, request(tokens(40) * 4, ANY, max_tokens=48))
        return [*found, await bits(runner, copies), await bits(runner, copies)]

    found = with_runner(quantized, work, max_draft=16)
    assert found[0] == found[1] == found[2]


def test_threads_and_the_size_of_steps_change_nothing(quantized):
    async def once(runner):
        return await bits(runner, ASKED[-1])

    settings = ({}, {"n_threads": 2}, {"n_ubatch": 128}, {"n_parallel": 2, "n_ctx": 512})
    found = [with_runner(quantized, once, flash_attn="off", **changed) for changed in settings]
    assert all(way == found[0] for way in found)


def test_without_a_seed_answers_differ(quantized):
    async def work(runner):
        return [(await answered(runner, request(PROMPTS[1], ANY))).ids for _ in range(4)]

    found = with_runner(quantized, work)
    assert len({tuple(ids) for ids in found}) > 1


@pytest.mark.parametrize("sampling", [SEEDED, GREEDY])
def test_choices_of_one_response_are_those_of_single_requests(quantized, tmp_path, sampling):
    """They come at the same time, with prefixes in memory, from disk, and without any."""
    settings = {**CACHE, "cache_dir": str(tmp_path)}

    def choices(group):
        seeds = [None if sampling.seed is None else sampling.seed + i for i in range(3)]
        return [
            request(PROMPTS[1], SamplingParams(temperature=sampling.temperature, seed=seed), choice_of=group)
            for seed in seeds
        ]

    async def single(runner):
        return [await bits(runner, choice) for choice in choices("")]

    async def together(runner):
        return await asyncio.gather(*(bits(runner, choice) for choice in choices("choices-1")))

    expected = with_runner(quantized, single)
    assert [with_runner(quantized, together, **settings) for _ in range(2)] == [expected] * 2
    assert with_runner(quantized, together) == expected


def test_choices_do_not_delay_other_requests(quantized):
    """With another request in the queue no choice can repeat, so none waits."""

    async def work(runner):
        choices = [request(PROMPTS[0], choice_of="choices-1", max_tokens=200) for _ in range(3)]
        other = asyncio.create_task(answered(runner, request(PROMPTS[1], ANY)))
        ends = await asyncio.gather(*(answered(runner, choice) for choice in choices))
        await other
        return (await runner.stats()).steps, ends

    steps, ends = with_runner(quantized, work, n_parallel=4)
    assert [len(end.ids) for end in ends] == [200] * 3
    assert steps < 500
