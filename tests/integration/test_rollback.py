"""Speculative decoding of models with recurrent states, rolled back through copies: the text is the same."""

import asyncio
import ctypes
import random

import numpy as np
import pytest

from engine.placement.shape import ROLLBACK_ARCHITECTURES
from engine.runner.llama.cache.kv import KVCache
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.protocol import LoadSettings
from tests.support.models.architectures import ARCHITECTURES, write_architecture
from tests.support.runner_calls import EXACT, FEW, WORDS, collect, with_runner

MIB = 1 << 20
NAMES = [name for name, found in ARCHITECTURES.items() if found.arch in ROLLBACK_ARCHITECTURES]


def prompts():
    rng = random.Random(3)
    return [[rng.choice((*WORDS, 50)) for _ in range(length)] for length in (8, 20, 70, 130)]


def ask(runner, prompt, **options):
    return collect(runner, prompt, sampling=FEW, **{"max_tokens": 80, "speculate": True, **options})


async def turns(runner, *, speculate):
    """Four turns of a conversation, some of which end in the middle of a draft."""
    history, said = prompts()[1], []
    for _ in range(4):
        ids, _ = await ask(runner, history, max_tokens=37, speculate=speculate)
        said.append(ids)
        history = [*history, *ids, 50, 7, 9]
    return said


@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_same_whatever_is_guessed(name, tmp_path):
    path = str(write_architecture(tmp_path / "model.gguf", ARCHITECTURES[name]))

    async def plainly(runner):
        alone = [(await ask(runner, p, speculate=False))[0] for p in prompts()]
        return alone, await turns(runner, speculate=False)

    async def with_speculation(runner):
        alone = [await ask(runner, p) for p in prompts()]
        lengths = range(80, 0, -20)  # the last one ends up alone, and then drafts
        crowd = await asyncio.gather(
            *(ask(runner, p, max_tokens=n) for p, n in zip(prompts(), lengths, strict=True))
        )
        return alone, [ids for ids, _ in crowd], await turns(runner, speculate=True)

    expected, conversation = with_runner(path, plainly, **EXACT)
    alone, crowd, again = with_runner(path, with_speculation, max_rollback=4, cache_ram_bytes=64 * MIB, **EXACT)
    assert [ids for ids, _ in alone] == expected
    assert crowd == [ids[: len(part)] for ids, part in zip(expected, crowd, strict=True)]
    assert again == conversation
    assert sum(timings.draft_tokens for _, timings in alone) > 50
    assert sum(timings.draft_accepted for _, timings in alone) > 20


def test_a_state_that_cannot_be_taken_back_is_not_guessed_for(tmp_path):
    path = str(write_architecture(tmp_path / "model.gguf", ARCHITECTURES["Mamba 2"]))

    async def work(runner):
        return [await ask(runner, p) for p in prompts()]

    for settings in ({"max_rollback": 4}, {}):
        assert all(timings.draft_tokens == 0 for _, timings in with_runner(path, work, **settings, **EXACT))


class Cache:
    """A model's cache as the scheduler uses it, one step at a time."""

    def __init__(self, path):
        settings = LoadSettings(
            path=path,
            n_ctx=256,
            kv_cells=1024,
            n_parallel=3,
            n_threads=1,
            max_rollback=4,
            cache_ram_bytes=MIB,
            **EXACT,
        )
        self.loaded = llama_model.load(start_backends(), settings, lambda _: True)
        self.kv = KVCache(self.loaded, PrefixStore(0, 0, None, "f"))
        self.batch, self.logits = Batch(self.loaded), Logits(self.loaded)

    def step(self, *parts):
        """Decode (sequence, tokens) together; return the logits after the last token of each."""
        self.batch.clear()
        for sequence, tokens in parts:
            self.batch.add_prompt(tokens, len(sequence.tokens), sequence.seq_id, last=True)
        assert self.batch.decode() == 0
        for sequence, tokens in parts:
            self.kv.commit(sequence, tokens, alone=len(parts) == 1)
        return self.logits.rows(self.batch.outputs).copy()

    def fresh(self, tokens):
        """Decode from an empty state."""
        sequence = self.kv.acquire([], ())
        rows = self.step((sequence, tokens))
        self.kv.truncate(sequence, 0)
        self.kv.release(sequence)
        return rows[0]


@pytest.fixture
def cache(tmp_path):
    made = Cache(str(write_architecture(tmp_path / "model.gguf", ARCHITECTURES["Qwen 3.5"])))
    yield made
    made.loaded.close()


TEXT = [(37 * i * i + 11 * i) % 500 for i in range(30)]


def same(row, other):
    np.testing.assert_allclose(row, other, atol=1e-3)


def test_what_was_taken_back_can_be_gone_on_from_once(cache):
    sequence = cache.kv.acquire(TEXT, ())
    cache.step((sequence, TEXT))
    cache.step((sequence, [1, 2, 3, 4]))
    assert cache.kv.truncate(sequence, len(TEXT) + 2)
    assert sequence.tokens == [*TEXT, 1, 2]
    same(cache.step((sequence, [5]))[0], cache.fresh([*TEXT, 1, 2, 5]))
    assert not cache.kv.truncate(sequence, len(TEXT) + 2)  # the step before is too long ago


def test_no_more_is_taken_back_than_there_are_copies_of(cache):
    sequence = cache.kv.acquire(TEXT, ())
    cache.step((sequence, TEXT))
    cache.step((sequence, [1, 2]))
    assert not cache.kv.truncate(sequence, len(TEXT))
    cache.step((sequence, [3, 4, 5, 6, 7, 8]))
    assert not cache.kv.truncate(sequence, len(TEXT) + 3)
    assert cache.kv.truncate(sequence, len(TEXT) + 4)
    assert not cache.kv.truncate(sequence, len(TEXT) + 3)  # a rollback works only once


def test_beside_others_nothing_is_taken_back(cache):
    first, second = cache.kv.acquire(TEXT, ()), cache.kv.acquire([], ())
    cache.step((first, TEXT), (second, TEXT[::-1]))
    cache.step((first, [1, 2, 3]), (second, [4]))
    assert not cache.kv.truncate(first, len(TEXT) + 1)


def test_another_request_does_not_share_a_state_that_was_taken_back(cache):
    sequence = cache.kv.acquire(TEXT, ())
    cache.step((sequence, TEXT))
    cache.step((sequence, [1, 2, 3, 4]))
    cache.kv.truncate(sequence, len(TEXT) + 1)
    other = cache.kv.acquire([*sequence.tokens, 9], ())
    assert other is not sequence
    missing = [*sequence.tokens, 9][len(other.tokens) :]
    same(cache.step((other, missing))[0], cache.fresh([*TEXT, 1, 9]))
    same(cache.step((sequence, [8]))[0], cache.fresh([*TEXT, 1, 8]))


def test_a_state_that_was_taken_back_is_copied_as_it_then_is(cache):
    """As when a prefix is stored, or a prompt's checkpoint is taken."""
    sequence, api = cache.kv.acquire(TEXT, ()), cache.loaded.api
    cache.step((sequence, TEXT))
    cache.step((sequence, [1, 2, 3, 4]))
    cache.kv.truncate(sequence, len(TEXT) + 1)
    size = api.llama_state_seq_get_size(cache.loaded.context, sequence.seq_id)
    buffer = (ctypes.c_uint8 * size)()
    assert api.llama_state_seq_get_data(cache.loaded.context, buffer, size, sequence.seq_id) == size
    other = cache.kv.acquire([], ())
    assert api.llama_state_seq_set_data(cache.loaded.context, buffer, size, other.seq_id)
    other.tokens = list(sequence.tokens)
    same(cache.step((other, [8]))[0], cache.fresh([*TEXT, 1, 8]))
