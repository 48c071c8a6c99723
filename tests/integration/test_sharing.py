"""Concurrent prompts with a common, uncached prefix: it is computed once, in any order of arrival.

The engine runs in this process, step by step, so that requests arrive at chosen steps and computed tokens are
counted instead of timed.
"""

import random
import sys

import pytest

from engine.core.types import Delta, Done, GenerationRequest, SamplingParams, Started
from engine.runner.llama.batch import scheduler
from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.scheduler import Scheduler
from engine.runner.llama.cache import kv, kv_offload
from engine.runner.llama.cache.kv_offload import MIN_GAIN
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import load
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.protocol import LoadSettings
from tests.support.models.shapes import scaled, write_shape

# As few layers as have every kind of memory, and a quarter of the weights: sharing depends on neither.
SMALLER = {
    "lfm2": {"layers": 5, "embd": 256, "heads": 4, "kv_heads": 2, "ffn": 512, "recurrent_layers": (0, 1, 3, 4)},
    "mamba": {"layers": 3, "embd": 256, "ssm": (4, 512, 16, 16), "recurrent_layers": (0, 1, 2)},
    "gemma3": {"layers": 6, "embd": 256, "heads": 4, "kv_heads": 2, "ffn": 512, "sliding_window": 128},
}  # fmt: skip
PIECE = 32
ANSWER = 4


class Bench:
    """One model; every run has a new engine with an empty cache."""

    def __init__(self, path, **settings):
        usual = {"n_ctx": 2048, "n_parallel": 8, "kv_cells": 16384, "n_batch": PIECE, "n_ubatch": PIECE}
        usual |= {"n_threads": 1, "n_threads_batch": 1, "cache_ram_bytes": 256 << 20}
        usual |= {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}
        self.loaded = load(start_backends(), LoadSettings(path=str(path), **{**usual, **settings}), lambda _: True)
        self.vocabulary = LlamaVocabulary(self.loaded.api, self.loaded.vocab)
        self.alone = {}

    def engine(self, stored_bytes=0):
        self.loaded.api.llama_memory_clear(self.loaded.memory, True)
        store = PrefixStore(stored_bytes, 0, None, "x")
        return Scheduler(self.loaded, self.vocabulary, store, Adapters(self.loaded, ()))

    def run(self, prompts, arrive, leave=(), **options):
        """Answer `prompts[i]`, which arrives before step `arrive[i]` and is cancelled before `leave[i]`, if set."""
        run = Run(self.engine())
        waiting, leave, step = dict(enumerate(arrive)), dict(leave), 0
        while waiting or run.engine.busy:
            for i in [i for i, at in waiting.items() if at <= step]:
                del waiting[i]
                run.add(i, prompts[i], options)
            for i in [i for i, at in leave.items() if at <= step]:
                del leave[i]
                run.engine.cancel(i)
            run.step()
            step += 1
        return run

    def answer(self, prompt):
        key = tuple(prompt)
        if key not in self.alone:
            self.alone[key] = self.run([prompt], [0]).answers[0]
        return self.alone[key]


class Run:
    """A running engine. `read` counts computed prompt tokens, `first` those before each first token."""

    def __init__(self, engine):
        self.engine = engine
        self.read = 0
        self.answers, self.first, self.done = {}, {}, {}
        decode, batch = engine._batch.decode, engine._batch
        engine.pace.step_rows = lambda usual: usual  # tiny models: a step costs as much as fifty rows, or four

        def counted():
            self.read += batch.size - sum(s.decoding for s in engine._running)
            return decode()

        batch.decode = counted

    def add(self, i, prompt, options):
        # The likeliest token, from a request that reuses all cached tokens.
        greedy = SamplingParams(temperature=1.0, top_k=1)
        usual = {"max_tokens": ANSWER, "sampling": greedy, "ignore_eos": True, "speculate": False}
        request = GenerationRequest(prompt=prompt, **{**usual, **options})
        assert self.engine.add(i, request, prompt) is None
        self.answers[i] = []

    def finish(self):
        while self.engine.busy:
            self.step()

    def step(self):
        for item in self.engine.step():
            i, event = item
            if isinstance(event, Delta):
                self.first.setdefault(i, self.read)
                self.answers[i] += event.token_ids
            elif isinstance(event, Done):
                self.done[i] = event


def tokens(rng, count):
    return [rng.randrange(300, 4000) for _ in range(count)]


def distinct(prompts):
    """Tokens to compute if every common prefix is computed once."""
    return len({tuple(p[: i + 1]) for p in prompts for i in range(len(p))})


def bound(prompts):
    """In addition, each request computes the few last tokens of a prefix that are not worth waiting a step."""
    return distinct(prompts) + MIN_GAIN * len(prompts)


@pytest.fixture(scope="module")
def bench(bundled_model):
    made = Bench(bundled_model)
    yield made
    made.loaded.close()


@pytest.fixture(scope="module", params=["lfm2", "mamba", "gemma3"])
def stateful(request, tmp_path_factory):
    """Models whose state cannot be truncated: recurrent layers, and a sliding window."""
    shape = scaled(request.param, **SMALLER[request.param])
    made = Bench(write_shape(tmp_path_factory.mktemp("shape") / "model.gguf", shape))
    yield made
    made.loaded.close()


def test_owners_share_neither_what_runs_nor_what_idles(bench):
    """Counts computed prompt tokens instead of time: nothing is reused from another owner."""
    rng = random.Random(9)
    prompt = tokens(rng, 200)
    both = bench.run([prompt, prompt], [0, 2])  # the second follows the first's prefill
    assert both.read <= bound([prompt])
    apart = Run(bench.engine())
    for i, owner in enumerate(("a", "b", "")):
        apart.add(i, prompt, {"owner": owner})
        apart.step()
    apart.finish()
    assert apart.read == 3 * len(prompt)
    assert [apart.done[i].usage.cached_tokens for i in range(3)] == [0, 0, 0]
    apart.add(3, prompt, {"owner": "a"})
    apart.add(4, prompt, {"owner": "c"})
    apart.finish()
    assert apart.done[3].usage.cached_tokens == len(prompt) - 1
    assert apart.done[4].usage.cached_tokens == 0


def test_many_requests_of_one_owner_do_not_delay_those_of_another(bundled_model):
    """All slots answer one owner, and more of its requests wait: the other's is admitted before the next step.

    The preempted request continues where it was, and every answer is the same as alone.
    """
    bench = Bench(bundled_model, n_parallel=3)
    try:
        rng = random.Random(3)
        prompts = [tokens(rng, 20) for _ in range(8)]
        run = Run(bench.engine())
        for i in range(6):
            run.add(i, prompts[i], {"owner": "many", "max_tokens": 30})
        while len(run.answers[2]) < 3:
            run.step()
        run.add(6, prompts[6], {"owner": "one", "max_tokens": 30})
        before = run.read
        run.step()
        assert 6 in [s.id for s in run.engine._running]
        run.add(7, prompts[7], {"owner": "another", "max_tokens": 30})
        while 6 not in run.first or 7 not in run.first:
            run.step()
        assert run.first[7] - before < 20 + 20 + 3 * PIECE
        assert not run.done
        read = run.read
        run.finish()
        assert run.read - read <= sum(len(prompts[i]) for i in (3, 4, 5)) + 2 * MIN_GAIN  # no prompt is read again
        for i in (2, 6):
            alone = Run(bench.engine())
            alone.add(0, prompts[i], {"max_tokens": 30})
            alone.finish()
            assert run.answers[i] == alone.answers[0]
    finally:
        bench.loaded.close()


def test_who_follows_the_reading_hears_of_its_beginning_before_the_first_step(bench):
    bench.loaded.api.llama_memory_clear(bench.loaded.memory, True)
    engine = Scheduler(bench.loaded, bench.vocabulary, PrefixStore(0, 0, None, "x"), Adapters(bench.loaded, ()))
    prompt = tokens(random.Random(1), 3 * PIECE)
    usual = {"max_tokens": 1, "sampling": SamplingParams(temperature=0.0), "ignore_eos": True}
    assert engine.add(0, GenerationRequest(prompt=prompt, progress=True, **usual), prompt) is None
    told = engine.step()
    assert [(i, type(event)) for i, event in told] == [(0, Started)]
    assert engine.steps == 0
    events = [event for _ in range(9) for _, event in engine.step()]
    assert not any(isinstance(event, Started) for event in events)
    assert isinstance(events[-1], Done)


@pytest.mark.parametrize("seed", range(4))
def test_eight_that_share_read_it_once_whenever_they_come(bench, seed):
    rng = random.Random(seed)
    common = tokens(rng, rng.randrange(80, 300))
    prompts = [common + tokens(rng, rng.randrange(1, 40)) for _ in range(8)]
    gap = (0, 1, 3, rng.randrange(12))[seed % 4]
    arrive = [gap * i for i in range(8)]
    run = bench.run(prompts, arrive)
    assert run.read <= bound(prompts)
    for i in (rng.randrange(4), rng.randrange(4, 8)):
        assert run.answers[i] == bench.answer(prompts[i])
    cached = sum(run.done[i].usage.cached_tokens for i in range(8))
    assert cached == sum(map(len, prompts)) - run.read


@pytest.mark.parametrize("seed", range(3))
def test_beginnings_within_beginnings(bench, seed):
    rng = random.Random(seed)
    root = tokens(rng, 100)
    branches = [root + tokens(rng, 120), root + tokens(rng, 50)]
    prompts = [rng.choice([root, *branches]) + tokens(rng, rng.randrange(1, 90)) for _ in range(8)]
    prompts.append(tokens(rng, 60))
    run = bench.run(prompts, [rng.randrange(8) for _ in prompts])
    assert run.read <= bound(prompts)
    i = rng.randrange(8)
    assert run.answers[i] == bench.answer(prompts[i])


@pytest.mark.parametrize("seed", range(3))
def test_who_reads_may_leave(bench, seed):
    """The tokens that cancelled requests computed are kept; the next request continues."""
    rng = random.Random(seed)
    common = tokens(rng, 250)
    prompts = [common + tokens(rng, rng.randrange(1, 40)) for _ in range(8)]
    leave = {i: rng.randrange(1, 9) for i in rng.sample(range(8), 4)}
    run = bench.run(prompts, [0] * 8, leave)
    assert run.read <= bound(prompts)
    stayed = next(i for i in range(8) if i not in leave)
    assert run.answers[stayed] == bench.answer(prompts[stayed])


@pytest.fixture(scope="module")
def narrow(bundled_model):
    """A cache with room for two of the prompts below, and three if they share."""
    made = Bench(bundled_model, kv_cells=1024, n_ctx=1024)
    run = Run(made.engine())
    run.add(0, tokens(random.Random(1), 400), {})
    run.finish()
    api, context = made.loaded.api, made.loaded.context
    made.state_bytes = max(api.llama_state_seq_get_size(context, sequence) for sequence in range(8))
    yield made
    made.loaded.close()


@pytest.mark.parametrize(("seed", "stored"), [(0, 1), (1, 3), (2, 50), (6, 50)])
def test_prefixes_are_stored_and_restored_while_others_are_evicted(narrow, seed, stored):
    """`stored`: about how many fit in the store's memory; making room for one may evict what it continues."""
    rng = random.Random(seed)
    root = tokens(rng, 200)
    talks = [root + tokens(rng, 120) for _ in range(5)]
    run = Run(narrow.engine(stored_bytes=stored * narrow.state_bytes))
    asked = []
    for i in range(30):
        chosen = rng.randrange(5)
        asked.append(talks[chosen])
        run.add(i, talks[chosen], {})
        if rng.random() < 0.5:
            run.finish()
            run.engine.on_idle(lambda: False)
            talks[chosen] = talks[chosen] + tokens(rng, 60) if len(talks[chosen]) < 500 else root + tokens(rng, 120)
        elif rng.random() < 0.5:
            run.step()
    run.finish()
    assert all(run.answers[i] == narrow.answer(asked[i]) for i in range(0, 30, 7))


@pytest.mark.parametrize("quick", [False, True])
def test_large_states_are_not_copied_while_an_answer_waits(bench, monkeypatch, quick):
    """Neither idle prefixes that should give way, nor a long prompt that is being read: only when it has ended."""
    monkeypatch.setattr(kv_offload, "QUICK_COPY_BYTES", 1 << 30 if quick else 0)
    monkeypatch.setattr(kv, "IDLE_CELLS", 8)
    monkeypatch.setattr(scheduler, "SAVED_FROM", 64)
    rng, run = random.Random(5), Run(bench.engine(stored_bytes=256 << 20))
    engine, saved = run.engine, []
    engine.kv.spilling.save = lambda sequence: saved.append(len(sequence.tokens))
    run.add(0, tokens(rng, 10), {"max_tokens": 400})
    run.step()
    for i in (1, 2, 3):  # the third finds the cells of the first two idle
        run.add(i, tokens(rng, 300), {})
        while i not in run.done:
            run.step()
    assert (engine.kv.spilling._store.ram_bytes > 0, bool(saved)) == (quick, quick)
    run.finish()
    run.add(4, tokens(rng, 300), {})
    run.finish()
    assert engine.kv.spilling._store.ram_bytes > 0
    assert saved


def test_a_pause_copies_no_state_that_cannot_be_stored_or_takes_long(bench, monkeypatch):
    """A long conversation has gigabytes of state: its next turn would wait for the copy, and other programs pay."""
    buffers, buffer = [], kv_offload.state_buffer
    monkeypatch.setattr(kv_offload, "state_buffer", lambda size: buffers.append(size) or buffer(size))
    rng = random.Random(6)
    for stored_bytes in (1000, 256 << 20):
        run = Run(bench.engine(stored_bytes=stored_bytes))
        run.add(0, tokens(rng, 300), {})
        run.finish()
        with monkeypatch.context() as limits:
            limits.setattr(kv_offload, "QUICK_COPY_BYTES", 1000)
            run.engine.on_idle(lambda: False)
            assert buffers == []
            run.engine.kv.spilling.persist()
    assert len(buffers) == 1


@pytest.mark.parametrize("gap", [0, 1, 3])
def test_nobody_gets_its_first_token_later_than_without_sharing(bench, gap):
    """Measured in tokens computed before it, because all requests wait for those."""
    rng = random.Random(gap)
    common = tokens(rng, 200)
    prompts = [common + tokens(rng, 30 + i) for i in range(8)]
    arrive = [gap * i for i in range(8)]
    shared, apart = bench.run(prompts, arrive), bench.run(prompts, arrive, cache_prompt=False)
    assert apart.read == sum(map(len, prompts))
    assert max(shared.first[i] - apart.first[i] for i in range(8)) <= PIECE
    assert max(shared.first.values()) < max(apart.first.values()) / 3


@pytest.mark.parametrize("gap", [0, 3])
def test_states_that_cannot_be_cut_are_shared_where_the_texts_part(stateful, gap):
    rng = random.Random(gap)
    common = tokens(rng, 200)
    prompts = [common + tokens(rng, 30 + i) for i in range(4)]
    arrive = [gap * i for i in range(4)]
    run, apart = stateful.run(prompts, arrive), stateful.run(prompts, arrive, cache_prompt=False)
    assert run.read <= bound(prompts)
    # With nearly equal logits, the kernels' rounding in steps of many rows decides, shared or not.
    assert all(run.answers[i] in (stateful.answer(p), apart.answers[i]) for i, p in enumerate(prompts))


def test_states_survive_those_who_read_them_and_leave(stateful):
    rng = random.Random(9)
    common = tokens(rng, 200)
    prompts = [common + tokens(rng, 30 + i) for i in range(4)]
    for leaver, step in ((0, 3), (0, 7)):
        run = stateful.run(prompts, [0] * 4, {leaver: step})
        assert run.read <= bound(prompts)
        assert all(run.answers[i] == stateful.answer(prompts[i]) for i in range(4) if i != leaver)


def calls_per_answer(bench, count):
    """Calls of Python functions in a step that only continues `count` answers, for each of them."""
    rng = random.Random(count)
    common = tokens(rng, 100)
    run = Run(bench.engine())
    for i in range(count):
        run.add(i, common + tokens(rng, 5), {"max_tokens": 20})
    while len(run.first) < count:
        run.step()
    calls = 0

    def count_call(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        run.step()
    finally:
        sys.setprofile(None)
    assert run.engine.active == count
    run.engine.end_all()
    return calls / count


def test_an_answer_costs_no_more_beside_many_others(bench):
    assert calls_per_answer(bench, 8) < 0.9 * calls_per_answer(bench, 2)
