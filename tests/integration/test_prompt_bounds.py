"""Prompts that cannot fit and texts that take long: limited before tokenization, and cancellable."""

import asyncio
import functools
import random
import time

import pytest

from engine.core.errors import ContextOverflow
from engine.core.types import GenerationRequest
from engine.runner.llama.native import vocabulary as module
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.text_limits import Stopped, TooManyTokens
from tests.support import runner_calls
from tests.support.runner_calls import GREEDY, answered
from tests.support.unhindered import Stopwatch

# Caches no larger than a test needs.
with_runner = functools.partial(runner_calls.with_runner, kv_cells=0)


async def collect(runner, prompt, **options):
    request = GenerationRequest(prompt=prompt, **{"sampling": GREEDY, "max_tokens": 40, **options})
    return (await answered(runner, request)).text


@pytest.mark.parametrize(
    ("part", "times"),
    [("a", 60_000_000), ("\U0001f600", 10_000_000), ("e'", 10_000_000), ("a", 40_000), ("<|im_end|>", 4000)],
    ids=["a", "emoji", "e'", "shorter", "control tokens"],
)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized_and_delays_nobody(bundled_model, part, times):
    """A prompt of 60 MB took minutes and gigabytes, on the decoding thread."""
    text = part * times

    async def scenario(runner):
        before = (await runner.stats()).rss_bytes
        hostile = [asyncio.create_task(collect(runner, text)) for _ in range(4)]
        await asyncio.sleep(0.05)
        started = Stopwatch(runner.pid)
        honest = await collect(runner, "Once upon a time", max_tokens=2)
        waited = started.seconds()
        ends = await asyncio.gather(*hostile, return_exceptions=True)
        return honest, waited, ends, (await runner.stats()).rss_bytes - before

    honest, waited, ends, grown = with_runner(bundled_model, scenario, n_ctx=1024)
    assert honest
    assert waited < 2.0
    assert all(isinstance(end, ContextOverflow) for end in ends), ends
    assert "at least" in str(ends[0])
    assert grown < 64 << 20


def open_vocabulary(path):
    """A file's vocabulary and a function that closes it; no weights are loaded."""
    api = start_backends()
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(path).encode(), params)
    return LlamaVocabulary(api, api.llama_model_get_vocab(model)), lambda: api.llama_model_free(model)


@pytest.mark.parametrize("longest", [None, 0], ids=["by its length", "by its first slices"])
def test_tokenizing_ends_where_too_many_tokens_are_certain_or_nobody_waits(bundled_model, longest):
    vocabulary, close = open_vocabulary(bundled_model)
    text = "a" * (8 << 20)
    try:
        if longest is not None:
            vocabulary.longest = longest
        with pytest.raises(TooManyTokens) as told:
            vocabulary.tokenize(text, add_special=False, parse_special=True, limit=4096)
        assert 4096 < told.value.at_least <= 1 << 20
        asked = iter([False, False])
        with pytest.raises(Stopped):
            vocabulary.tokenize(
                text, add_special=False, parse_special=True, limit=1 << 30, stopped=lambda: next(asked, True)
            )
    finally:
        close()


@pytest.mark.parametrize("source", ["bundled_model", "real_model"])
def test_a_text_tokenized_in_parts_has_the_tokens_of_the_whole(request, source, monkeypatch):
    vocabulary, close = open_vocabulary(request.getfixturevalue(source))
    marks = [vocabulary.pieces[t].decode() for t in sorted(vocabulary.control)[:12] if vocabulary.pieces[t]]
    picks = random.Random(5)
    words = ["Hello", " world", "\n", " ", "  ", "\t", "\U0001f600\xe9", "<|im", "|>", "<|im_start", "12345", "'s"]
    try:
        for _ in range(40):
            text = "".join(picks.choices([*words, *marks, *marks], k=600))
            for parse, begin in ((True, True), (True, False), (False, True)):
                monkeypatch.setattr(module, "PART_BYTES", 1 << 30)
                whole = vocabulary.tokenize(text, add_special=begin, parse_special=parse)
                monkeypatch.setattr(module, "PART_BYTES", 64)
                assert vocabulary.tokenize(text, add_special=begin, parse_special=parse) == whole
    finally:
        close()


def test_many_control_tokens_are_read_in_a_time_that_grows_with_their_number(bundled_model):
    """Asserts less than 5 s of CPU time for 80,000 control tokens; llama.cpp alone takes 24 s for 87,000."""
    vocabulary, close = open_vocabulary(bundled_model)
    try:
        begun = time.process_time()
        mark = next(
            vocabulary.pieces[t].decode() for t in sorted(vocabulary.control) if len(vocabulary.pieces[t]) > 6
        )
        assert len(vocabulary.tokenize(mark * 80_000, add_special=False, parse_special=True)) == 80_000
        assert time.process_time() - begun < 5
    finally:
        close()
