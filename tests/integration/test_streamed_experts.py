"""MoE models with streamed experts: the same text in little memory, and changes of the file during use."""

import asyncio
import ctypes
import os
import shutil
import sys
import threading

import numpy as np
import pytest

from engine.core.errors import BadModelFile, RunnerDied
from engine.core.expert_stats import ExpertUse, folder_of, use_store
from engine.core.startup_timing import StartupTimer
from engine.core.types import GenerationRequest, SamplingParams
from engine.placement.shape import model_shape
from engine.runner.expert_tensors import held_bytes, least_bytes, stacks
from engine.runner.llama import service
from engine.runner.llama.experts import expert_cache
from engine.runner.llama.experts.expert_cache import ExpertPredictor, Readers, ReadJob
from engine.runner.llama.experts.page_swap import Pages
from engine.runner.llama.native.batch import Batch
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_split import read_gguf_model
from tests.support.models.shapes import Q, scaled, write_shape
from tests.support.runner_calls import EXACT, answered, with_runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="experts are streamed on Linux only")
SETTINGS = {"repack": False, "max_draft": 0, **EXACT}
GREEDY = SamplingParams(temperature=0)
# Short prompts are decoded; a long one is read in chunks that need nearly all experts.
PROMPTS = ("one two", "three " * 60, "four five six " * 8)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    shape = scaled("qwen3moe", layers=4, embd=128, heads=2, ffn=128, vocab=600, experts=(16, 2, 96), qtype=Q.Q8_0)
    return write_shape(tmp_path_factory.mktemp("mixture") / "mixture.gguf", shape)


def sizes(path):
    """The minimum memory for its experts, and the size of all of them."""
    shape = model_shape(read_gguf_model(path))
    layers = stacks(shape.tensors, shape.experts)
    return least_bytes(layers, shape.experts), sum(16 * held_bytes(layer, 16) for layer in layers.values())


def request(prompt, tokens=12, **options):
    return GenerationRequest(prompt=prompt, sampling=GREEDY, max_tokens=tokens, ignore_eos=True, **options)


async def answers(runner):
    """Answers to the prompts one at a time, then concurrently with deterministic contexts and another request."""
    found = [(await answered(runner, request(prompt))).ids for prompt in PROMPTS]
    exact = [request(prompt, deterministic=True, logprobs=1) for prompt in PROMPTS]
    beside = await asyncio.gather(*(answered(runner, r) for r in exact), answered(runner, request("seven", 30)))
    found += [(a.ids, [entry.logprob for entry in a.logprobs]) for a in beside[:3]]
    return found, (await runner.stats()).experts


def decode_tokens(loaded, count):
    """Compute this many tokens, one in each batch."""
    batch = Batch(loaded)
    for position in range(count):
        batch.clear()
        batch.add(position * 97 % 600, position, 0)
        assert batch.decode() == 0


def test_the_text_is_the_same_with_streamed_experts_and_memory_stays_within_bounds(mixture):
    least, whole = sizes(mixture)
    plain, nothing = with_runner(mixture, answers, **SETTINGS)
    assert nothing is None
    for size in (least, (least + whole) // 2, 2 * whole):
        text, experts = with_runner(mixture, answers, expert_bytes=size, **SETTINGS)
        assert text == plain
        assert 0 < experts.cached_bytes <= min(size, whole)
        assert experts.asked > experts.there > 0
        assert (experts.read_bytes > whole) == (size < whole), "what was pushed out was read again"


def test_what_is_used_is_known_at_the_next_load(mixture, tmp_path):
    least, _ = sizes(mixture)
    cache = str(tmp_path / "prefixes")

    async def once(runner):
        answer = await answered(runner, request(PROMPTS[0], 40))
        return answer.ids

    with_runner(mixture, once, expert_bytes=least, cache_dir=cache, **SETTINGS)
    store = use_store(folder_of(cache), mixture)
    use = store.get()
    assert use.tokens > 40
    assert use.layers.keys() == {0, 1, 2, 3}
    assert all(len(counts) == 16 for counts in use.layers.values())
    per_token = [sum(counts) / use.tokens for counts in use.layers.values()]
    assert per_token[:3] == pytest.approx([2.0] * 3, rel=0.01), "two experts of each layer for a token"
    assert 0 < per_token[3] < per_token[0], "the last layer computes only what an answer needs"
    assert not use.is_meaningful
    assert sum(use.ranks) == 0, "nothing is known yet to rank by"
    with_runner(mixture, once, expert_bytes=least, cache_dir=cache, **SETTINGS)
    later = use_store(folder_of(cache), mixture).get()
    assert later.tokens > 1.9 * use.tokens
    assert 0 < sum(later.ranks) < later.tokens * 8
    assert later.hit_rate(0.25) < later.hit_rate(1.0) == 1.0
    moved = shutil.copy(mixture, tmp_path / mixture.name)
    assert use_store(folder_of(cache), moved).path == store.path
    os.truncate(moved, 100)
    assert use_store(folder_of(cache), moved).get() == ExpertUse()


def test_known_experts_are_read_before_anybody_asks(mixture, tmp_path):
    _, whole = sizes(mixture)
    cache = str(tmp_path / "prefixes")
    store = use_store(folder_of(cache), mixture)
    store.put(ExpertUse(tokens=1000.0, layers={layer: [1.0] * 16 for layer in range(4)}))

    async def rest(runner):
        for _ in range(600):
            found = (await runner.stats()).experts
            if found.read_bytes >= found.cached_bytes * 3 // 4:
                return found
            await asyncio.sleep(0.05)
        raise AssertionError("not everything that is known was read")

    assert with_runner(mixture, rest, expert_bytes=2 * whole, cache_dir=cache, **SETTINGS).cached_bytes > whole // 2


def test_a_file_that_is_removed_or_replaced_goes_on_with_what_was_loaded(mixture, tmp_path):
    least, _ = sizes(mixture)
    copy = shutil.copy(mixture, tmp_path / "copy.gguf")

    async def plain(runner):
        return [(await answered(runner, request(prompt))).ids for prompt in PROMPTS]

    async def gone(runner):
        copy.unlink()
        first = await plain(runner)
        copy.write_bytes(b"another file")
        return first, await plain(runner)

    expected = with_runner(mixture, plain, **SETTINGS)
    assert with_runner(copy, gone, expert_bytes=least, **SETTINGS) == (expected, expected)


@pytest.mark.parametrize("how", ["shorter", "changed"])
def test_a_file_that_changes_in_its_place_ends_the_runner_with_the_reason(mixture, tmp_path, how):
    least, _ = sizes(mixture)
    copy = shutil.copy(mixture, tmp_path / "copy.gguf")

    async def cut(runner):
        await answered(runner, request(PROMPTS[0]))
        if how == "shorter":
            os.truncate(copy, copy.stat().st_size - 4096)
        else:
            os.utime(copy, ns=(1, 1))
        with pytest.raises(RunnerDied) as told:
            await answered(runner, request(PROMPTS[1]))
        return str(told.value)

    reason = with_runner(copy, cut, expert_bytes=least, **SETTINGS)
    assert "shorter" in reason if how == "shorter" else "was changed" in reason
    assert "load it again" in reason


def test_a_load_that_cannot_stream_says_why(mixture, tmp_path):
    async def nothing(_runner):
        return None

    with pytest.raises(BadModelFile, match="as they are"):
        with_runner(mixture, nothing, expert_bytes=1 << 20, **{**SETTINGS, "repack": True})
    dense = write_shape(tmp_path / "dense.gguf", scaled("llama", layers=1, vocab=600))
    with pytest.raises(BadModelFile, match="no stacks of experts"):
        with_runner(dense, nothing, expert_bytes=1 << 20, **SETTINGS)


def test_the_next_layers_experts_are_predicted_by_its_own_router(tmp_path):
    """If layers add little, the next router chooses nearly the same experts from this layer's input."""
    shape = scaled("qwen3moe", layers=4, embd=128, heads=2, ffn=128, vocab=600, experts=(16, 2, 96), qtype=Q.Q8_0)
    path = write_shape(tmp_path / "quiet.gguf", shape)
    added = ("attn_output.weight", "ffn_down_exps.weight")
    for tensor in (t for part in read_gguf_model(path).parts for t in part.tensors if t.name.endswith(added)):
        blocks = np.memmap(path, np.uint8, "r+", tensor.offset, (tensor.nbytes // 34, 34))
        blocks[:, :2] = np.frombuffer(np.float16(1e-5).tobytes(), np.uint8)
    seen = []

    class Watched(ExpertPredictor):
        def note(self, read, right):
            seen.append((read, right))
            super().note(read, right)

    class Prompt(Readers):
        """Readers that begin a job as soon as it is queued, however busy the computer is."""

        def ahead(self, jobs):
            queued = list(jobs)
            super().ahead(queued)
            with self._news:
                assert self._news.wait_for(lambda: all(job.begun for job in queued), 60)

        def _begin(self, job):
            super()._begin(job)
            self._news.notify_all()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expert_cache, "ExpertPredictor", Watched)
        patch.setattr(expert_cache, "Readers", Prompt)
        settings = LoadSettings(path=str(path), n_ctx=512, expert_bytes=sizes(path)[0], n_threads=1, **SETTINGS)
        loaded, experts = service.load(start_backends(), settings, lambda _: True, StartupTimer())
        decode_tokens(loaded, 60)
        experts.close()
        loaded.close()
    read, right = (sum(column) for column in zip(*seen, strict=True))
    assert read > 20
    assert right > 0.9 * read


def test_an_expert_that_a_late_reader_evicts_is_complete_when_it_is_needed_again(mixture):
    settings = LoadSettings(path=str(mixture), n_ctx=512, expert_bytes=sizes(mixture)[0], n_threads=1, **SETTINGS)
    loaded, experts = service.load(start_backends(), settings, lambda _: True, StartupTimer())
    decode_tokens(loaded, 20)
    stream = experts._stream
    pages, readers = stream._pages, stream._readers
    begun, proceed = threading.Event(), threading.Event()
    evicted, zeros = [], []
    is_computed = False

    def take(victim, address, size):
        """A reader that gets no CPU time before it moves the pages."""
        begun.set()
        assert proceed.wait(60)
        return Pages._take(pages, victim, address, size)

    def as_file(span):
        if is_computed and span in evicted:
            zeros.append(ctypes.string_at(span.at(span.inner_begin), 64))
        Pages._as_file(pages, span)

    def wait_for(jobs):
        if late in jobs:
            proceed.set()
        Readers.wait_for(readers, jobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_take", take)
        patch.setattr(pages, "_as_file", as_file)
        patch.setattr(readers, "wait_for", wait_for)
        stream._prefetch(1, [int(np.flatnonzero(~stream._there[1])[0])])
        (late,) = stream._prefetched
        row, number = late.victim
        evicted += [stack.span(number) for stack in stream._stacks[row]]
        assert begun.wait(60)
        patch.setattr(pages, "_take", lambda *given: Pages._take(pages, *given))
        stream._ensure_loaded(row, np.array([number]))
        is_computed = True
        proceed.set()
        Readers.wait_for(readers, [late])
        assert zeros == [], "the layer reads these pages"
    experts.close()
    loaded.close()


def test_after_wrong_predictions_none_are_made_for_a_while():
    predictor = ExpertPredictor()
    for _ in range(20):
        predictor.note(4, 3)
    assert predictor._pause == 0
    for _ in range(40):
        predictor.note(4, 0)
    assert predictor._pause > 0


class Arriving(dict):
    """Jobs of which one finishes just before a lookup, as in a reader thread."""

    def __init__(self, stream_, jobs):
        super().__init__(jobs)
        self._stream, self._last = stream_, dict(jobs)

    def get(self, key, default=None):
        for job in self._last.values():
            self._stream._arrived(job)
        return super().get(key, default)

    def __contains__(self, key):
        self.get(key)
        return super().__contains__(key)


def test_an_expert_that_arrives_while_it_is_asked_for_is_counted_once():
    found = expert_cache.ExpertStream.__new__(expert_cache.ExpertStream)
    found._there, found._score = np.zeros((2, 4), bool), np.zeros((2, 4))
    found._sizes, found._used_bytes, found._capacity_bytes = [100, 100], 100, 800
    found._counts, found._prefetched = expert_cache._Counts(), []
    found._readers, found._leaving = Readers(0, found._arrived), {}
    job = ReadJob((1, 2), ())
    found._coming = Arriving(found, {(1, 2): job})
    found._ensure_loaded(1, np.array([2]))
    assert found._there[1, 2]
    assert found._used_bytes == 100
    found._there[1, 2] = False
    found._coming = Arriving(found, {(1, 2): job})
    found._prefetch(1, [2])
    assert found._prefetched == []
    assert found._used_bytes == 100
