"""Speculative decoding with a draft model: the same text at temperature 0, the same distribution above."""

import asyncio
from collections import Counter

import pytest

from engine.core.errors import BadModelFile
from engine.core.types import SamplingParams
from tests.support.models.shapes import shallow, write_shape
from tests.support.models.variants import write_weaker
from tests.support.runner_calls import CHAT, collect, with_runner

PROMPTS = [CHAT.format(t) for t in ("Tell me a story.", "What is a token?", "List the files. " * 40)]
UNSURE = "red blue green " * 12  # a prompt whose continuation always has several likely tokens


@pytest.fixture(scope="module")
def weaker(tmp_path_factory, bundled_model):
    """The bundled model with enough noise to be wrong sometimes."""
    path = tmp_path_factory.mktemp("draft") / "weaker.gguf"
    write_weaker(bundled_model, path, 0.3)
    return str(path)


def test_greedy_text_is_the_same_and_many_guesses_are_right(bundled_model, weaker):
    async def work(runner):
        plain = [await collect(runner, p, speculate=False) for p in PROMPTS]
        drafted = [await collect(runner, p, speculate=True) for p in PROMPTS]
        together = await asyncio.gather(*(collect(runner, p, speculate=True) for p in PROMPTS[:2]))
        decided = [await collect(runner, p) for p in PROMPTS]
        return plain, drafted, together, decided

    plain, drafted, together, decided = with_runner(bundled_model, work, draft_path=weaker)
    assert [ids for ids, _ in drafted] == [ids for ids, _ in plain]
    assert [ids for ids, _ in together] == [ids for ids, _ in plain[:2]]
    assert [ids for ids, _ in decided] == [ids for ids, _ in plain]
    assert all(timings.draft_tokens == 0 for _, timings in plain)
    proposed = sum(timings.draft_tokens for _, timings in drafted)
    accepted = sum(timings.draft_accepted for _, timings in drafted)
    assert proposed > 40
    assert 0.2 * proposed < accepted < proposed  # drafts help, but are wrong often enough for a test


def test_a_copy_of_the_model_is_always_right(bundled_model):
    async def work(runner):
        return await collect(runner, PROMPTS[1], speculate=True)

    ids, timings = with_runner(bundled_model, work, draft_path=str(bundled_model))
    assert len(ids) == 60
    assert timings.draft_accepted >= 0.85 * timings.draft_tokens > 35


@pytest.mark.slow
def test_sampling_keeps_its_distribution(bundled_model, weaker):
    """Compares counts of the first six tokens: 120 seeds with drafts against 120 other seeds without."""
    sampling = {"temperature": 1.0, "top_k": 6}

    async def work(runner):
        async def counts(first, *, speculate):
            found = [Counter() for _ in range(6)]
            for block in range(first, first + 120, 2):
                answers = await asyncio.gather(
                    *(
                        collect(
                            runner, UNSURE, max_tokens=6, speculate=speculate,
                            sampling=SamplingParams(seed=seed, **sampling),
                        )
                        for seed in (block, block + 1)
                    )
                )  # fmt: skip
                for ids, timings in answers:
                    used[speculate] += timings.draft_tokens
                    for place, token in zip(found, ids, strict=True):
                        place[token] += 1
            return found

        used = Counter()
        return await counts(0, speculate=True), await counts(10_000, speculate=False), used

    drafted, plain, used = with_runner(bundled_model, work, draft_path=weaker)
    assert used[True] > 400
    assert used[False] == 0
    assert sum(len([t for t, n in place.items() if n >= 12]) > 1 for place in plain) >= 4  # several were likely
    for ours, theirs in zip(drafted, plain, strict=True):
        assert chi_square(ours, theirs) < 1.0


def chi_square(ours, theirs):
    """Chi-square statistic of two samples of equal size over its 99.9 % point; rare tokens are pooled."""
    common = [t for t in ours | theirs if ours[t] + theirs[t] >= 16]
    pairs = [(ours[t], theirs[t]) for t in common]
    pairs.append((sum(ours.values()) - sum(a for a, _ in pairs), sum(theirs.values()) - sum(b for _, b in pairs)))
    cells = [(a, b) for a, b in pairs if a + b]
    freedom = max(len(cells) - 1, 1)
    statistic = sum((a - b) ** 2 / (a + b) for a, b in cells)
    # Wilson-Hilferty approximation of the chi-square quantile; 3.09 is the normal quantile.
    return statistic / (freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3)


def test_the_check_sees_another_distribution():
    assert chi_square(Counter({1: 300, 2: 300}), Counter({1: 240, 2: 360})) > 1.0
    assert chi_square(Counter({1: 300, 2: 300}), Counter({1: 290, 2: 310})) < 1.0


def test_another_vocabulary_is_refused_with_both_sizes(bundled_model, tmp_path):
    other = write_shape(tmp_path / "other.gguf", shallow("llama"))
    with pytest.raises(BadModelFile, match=r"4096 tokens.*8192"):
        with_runner(bundled_model, lambda r: collect(r, "x"), draft_path=str(other))


def test_a_draft_file_that_is_none_is_refused(bundled_model, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(BadModelFile, match="draft model"):
        with_runner(bundled_model, lambda r: collect(r, "x"), draft_path=str(bad))
