"""Speculative decoding with a model's MTP head: known drafts, and the same text with any drafts."""

import asyncio

import pytest

from tests.support.models.mtp_model import MTP_MODELS, write_mtp_model
from tests.support.runner_calls import collect, with_runner

PROMPTS = [[7, 9, 30, 4] * n for n in (3, 9, 80)]
LENGTH = 32
# With these settings, results differ only by 32-bit rounding, whatever other requests share a step.
EXACT = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "max_rollback": 4}


# A head that is sometimes wrong for every architecture; the other kinds do not depend on the architecture.
HEADS = [*(("random", model) for model in MTP_MODELS), ("right", "qwen35"), ("newest", "deepseek2")]


@pytest.fixture(scope="module", params=HEADS, ids="-".join)
def head(request):
    return request.param


@pytest.fixture(scope="module")
def kind(head):
    return head[0]


@pytest.fixture(scope="module")
def model(head, tmp_path_factory):
    return write_mtp_model(tmp_path_factory.mktemp("mtp") / f"{head[0]}.gguf", *head)


def test_text_is_the_same_whatever_the_head_guesses(model, kind):
    async def work(runner):
        plain = [await collect(runner, p, speculate=False, max_tokens=LENGTH) for p in PROMPTS]
        drafted = [await collect(runner, p, speculate=True, max_tokens=LENGTH) for p in PROMPTS]
        together = await asyncio.gather(
            *(collect(runner, p, speculate=True, max_tokens=LENGTH) for p in PROMPTS[:2])
        )
        crowd = await asyncio.gather(*(collect(runner, p, speculate=True, max_tokens=LENGTH) for p in PROMPTS * 2))
        return plain, drafted, together, crowd

    plain, drafted, together, crowd = with_runner(model, work, mtp=True, **EXACT)
    expected = [ids for ids, _ in plain]
    assert [ids for ids, _ in drafted] == expected
    assert [ids for ids, _ in together] == expected[:2]
    assert [ids for ids, _ in crowd] == expected * 2
    assert all(timings.draft_tokens == 0 for _, timings in plain)
    assert [ids for ids, _ in with_runner(model, one_by_one, mtp=False, **EXACT)] == expected


async def one_by_one(runner):
    return [await collect(runner, p, speculate=False, max_tokens=LENGTH) for p in PROMPTS]


def unlike(length):
    """A prompt without repetition, so that only the head can draft."""
    return [(37 * i * i + 11 * i) % 500 for i in range(length)]


def test_guesses_are_those_of_the_head(model, kind):
    async def work(runner):
        return await collect(runner, unlike(40), speculate=True, max_tokens=40)

    _, timings = with_runner(model, work, mtp=True, **EXACT)
    assert timings.draft_tokens > 20
    if kind == "right":
        assert timings.draft_accepted == timings.draft_tokens


def test_a_second_turn_is_guessed_as_well(tmp_path):
    model = write_mtp_model(tmp_path / "right.gguf", "right")

    async def work(runner):
        first, _ = await collect(runner, unlike(300), speculate=True, max_tokens=20)
        longer = [*unlike(300), *first, *unlike(350)[300:]]
        again = await collect(runner, longer, speculate=True, max_tokens=20)
        plain = await collect(runner, longer, speculate=False, max_tokens=20)
        return again, plain

    (ids, timings), (plain, _) = with_runner(model, work, mtp=True, **EXACT)
    assert ids == plain
    assert timings.draft_accepted > 10


def test_a_head_that_is_unsure_costs_next_to_nothing(tmp_path):
    """Unsuccessful drafting is charged to the text like rejected drafts."""
    model = write_mtp_model(tmp_path / "random.gguf", "random")

    async def work(runner):
        return [await collect(runner, unlike(40), max_tokens=200, speculate=s) for s in (None, None, None, False)]

    *unsure, (plain, _) = with_runner(model, work, mtp=True, **EXACT)
    assert [ids for ids, _ in unsure] == [plain] * 3
    # The limit is one step's time, which a busy machine sometimes measures wrongly.
    assert min(timings.draft_tokens for _, timings in unsure) < 20


def test_a_file_without_such_a_head_is_served_without_it(bundled_model):
    async def work(runner):
        return await collect(runner, "Hello", max_tokens=5)

    ids, _ = with_runner(bundled_model, work, mtp=True)
    assert len(ids) == 5
