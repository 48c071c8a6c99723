"""Sampling on rows of logits, with llama.cpp's own chain and the bundled model's vocabulary."""

from collections import Counter

import numpy as np
import pytest

from engine.core.types import SamplingParams
from engine.runner.generation.sampler import NotFinite, token_logprob
from engine.runner.llama.batch import sampler as full_vocab_sampler
from engine.runner.llama.batch.sampler import ChainSampler, _highest, _nucleus
from engine.runner.llama.native.llama_api import start_backends

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def vocab(bundled_model):
    api = start_backends()
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(bundled_model).encode(), params)
    yield api, api.llama_model_get_vocab(model)
    api.llama_model_free(model)


def make(vocab, prompt=(), **params):
    api, handle = vocab
    return ChainSampler(api, handle, SamplingParams(**params), 1024, list(prompt))


def row(values, size=8192, floor=-30.0):
    logits = np.full(size, floor, np.float32)
    for token, value in values.items():
        logits[token] = value
    return logits


def frequencies(vocab, logits, draws=1500, **params):
    sampler = make(vocab, seed=11, **params)
    counts = Counter(sampler.sample(logits.copy()) for _ in range(draws))
    sampler.close()
    return {token: n / draws for token, n in counts.items()}


def test_greedy_takes_the_best(vocab):
    assert make(vocab, temperature=0).sample(row({5: 3.0, 9: 4.0})) == 9


def test_temperature_one_follows_the_distribution(vocab):
    logits = row({1: np.log(0.6), 2: np.log(0.3), 3: np.log(0.1)})
    share = frequencies(vocab, logits)
    assert share[1] == pytest.approx(0.6, abs=0.05)
    assert share[3] == pytest.approx(0.1, abs=0.04)


def test_the_same_seed_draws_the_same(vocab):
    logits = row(dict.fromkeys(range(50), 1.0))
    first = make(vocab, seed=3)
    second = make(vocab, seed=3)
    assert [first.sample(logits.copy()) for _ in range(20)] == [second.sample(logits.copy()) for _ in range(20)]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.65}, {1, 2}),
        ({"top_p": 0.65, "top_k": 100}, {1, 2}),
        ({"min_p": 0.4}, {1, 2}),
        ({"min_p": 0.4, "top_p": 0.99}, {1, 2}),
        ({"top_n_sigma": 1.5}, {1, 2}),
    ],
)
def test_filters_keep_what_they_should(vocab, params, kept):
    logits = row({1: np.log(0.55), 2: np.log(0.3), 3: np.log(0.1), 4: np.log(0.05)})
    assert set(frequencies(vocab, logits, draws=400, **params)) == kept


@pytest.mark.parametrize(("spread", "p"), [(0.1, 0.9), (1, 0.5), (3, 0.9), (3, 0.999), (8, 0.95)])
def test_the_nucleus_is_the_smallest_set_that_reaches_p(spread, p):
    rng = np.random.default_rng(5)
    logits = rng.normal(0, spread, 8192).astype(np.float32)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-logits)
    share = np.cumsum(weights[order]) / weights.sum()
    smallest = order[: int(np.searchsorted(share, p)) + 1]
    kept = _nucleus(logits, float(logits.max()), p)
    assert abs(len(kept) - len(smallest)) <= 1  # float32 sums may decide the last one
    assert len(set(kept.tolist()) ^ set(smallest.tolist())) <= 1


def test_the_min_p_shortcut_equals_the_full_chain(vocab):
    rng = np.random.default_rng(6)
    logits = rng.normal(0, 3, 8192).astype(np.float32)
    fast = make(vocab, seed=2, min_p=0.05)
    full = make(vocab, seed=2, min_p=0.05, order=("min_p", "temperature"))
    assert [fast.sample(logits.copy()) for _ in range(50)] == [full.sample(logits.copy()) for _ in range(50)]


def test_penalties_touch_only_what_was_said(vocab):
    sampler = make(vocab, prompt=[1], repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    sampler.accept(2)
    sampler.accept(2)
    logits = row({1: 4.0, 2: 4.0, 3: 4.0})
    before = logits.copy()
    sampler.adjust(logits)
    assert logits[1] == pytest.approx(2.0)  # in the prompt: repetition only
    assert logits[2] == pytest.approx(2.0 - 0.5 - 0.25 * 2)
    untouched = np.ones(8192, bool)
    untouched[[1, 2]] = False
    assert np.array_equal(logits[untouched], before[untouched])


def test_bias_decides(vocab):
    sampler = make(vocab, temperature=0, logit_bias={7: 100.0})
    logits = row({5: 10.0})
    sampler.adjust(logits)
    assert sampler.sample(logits) == 7


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 40}, {"min_p": 0.1}])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_an_error(vocab, bad, params):
    for at in (5, 8190):
        with pytest.raises(NotFinite):
            make(vocab, **params).sample(row({at: bad})[:8191])  # a prime number: blocks leave a rest


def test_dry_breaks_a_loop(vocab):
    loop = [10, 11, 12, 13] * 6
    sampler = make(vocab, prompt=loop, temperature=0, dry_multiplier=2.0)
    assert sampler.sample(row({10: 5.0, 20: 4.5})) == 20
    assert make(vocab, prompt=loop, temperature=0).sample(row({10: 5.0, 20: 4.5})) == 10


def test_log_probabilities_sum_to_one(vocab):
    logits = row({1: 2.0, 2: 1.0, 3: 0.0})
    entry = token_logprob(logits, 2, 3, [b"x"] * 8192)
    assert [t for t, _, _ in entry.top] == [1, 2, 3]
    assert sum(np.exp(p) for _, _, p in entry.top) == pytest.approx(1.0, abs=1e-3)
    assert entry.logprob == pytest.approx(entry.top[1][2])


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"typical_p": 0.25}, {2}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, {2, 3, 4}),
        ({"dynatemp_range": 0.5, "temperature": 0.5, "top_k": 1}, {1}),
    ],
)
def test_further_stages_do_what_they_are_named_for(vocab, params, kept):
    """XTC removes the most likely tokens above its threshold."""
    logits = row({1: np.log(0.55), 2: np.log(0.3), 3: np.log(0.1), 4: np.log(0.05)})
    assert set(frequencies(vocab, logits, draws=300, **params)) == kept


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_to_the_surprise_it_is_told(vocab, version):
    logits = row({1: np.log(0.55), 2: np.log(0.3), 3: np.log(0.1), 4: np.log(0.05)})
    calm = frequencies(vocab, logits, draws=300, mirostat=version, mirostat_tau=0.1)
    lively = frequencies(vocab, logits, draws=300, mirostat=version, mirostat_tau=5.0)
    assert lively[1] < 0.7
    assert calm[1] > 0.8


def test_dynamic_temperature_follows_how_sure_the_model_is(vocab):
    """At full range, a confident distribution is sampled at a lower temperature than a flat one."""
    sure = row({1: 6.0, 2: 4.0})
    fixed = frequencies(vocab, sure, temperature=1.0).get(2, 0)
    assert frequencies(vocab, sure, temperature=1.0, dynatemp_range=1.0).get(2, 0) < fixed / 2


def test_adaptive_p_prefers_tokens_near_its_target(vocab):
    logits = row({1: np.log(0.7), 2: np.log(0.2), 3: np.log(0.1)})

    def share(target):
        sampler = make(vocab, seed=4, adaptive_target=target)
        drawn = []
        for _ in range(600):
            drawn.append(sampler.sample(logits.copy()))
            sampler.accept(drawn[-1])
        sampler.close()
        return drawn.count(1) / len(drawn)

    assert share(0.1) < share(0.9) - 0.1


def test_the_order_of_stages_matters(vocab):
    """Min-p after a high temperature keeps tokens that it would remove before it."""
    logits = row({1: 3.0, 2: 0.0})
    hot = {"temperature": 4.0, "min_p": 0.2}
    assert set(frequencies(vocab, logits, **hot, order=("min_p", "temperature"))) == {1}
    assert {1, 2} <= set(frequencies(vocab, logits, **hot, order=("temperature", "min_p")))


def test_a_stage_left_out_does_nothing(vocab):
    logits = row({1: 2.0, 2: 1.9})
    params = {"top_k": 1, "repeat_penalty": 5.0, "prompt": [1]}
    assert set(frequencies_of(vocab, logits, **params)) == {2}
    assert set(frequencies_of(vocab, logits, **params, order=("top_k",))) == {1}
    assert set(frequencies_of(vocab, logits, **params, order=("penalties",))) > {2}


def test_penalties_after_a_filter_cannot_bring_back_what_it_cut(vocab):
    """Top-k of one keeps the repeated token; a later penalty cannot let in another one."""
    logits = row({1: 2.0, 2: 1.9})
    params = {"top_k": 1, "repeat_penalty": 5.0, "prompt": [1]}
    assert set(frequencies_of(vocab, logits, **params, order=("penalties", "top_k"))) == {2}
    assert set(frequencies_of(vocab, logits, **params, order=("top_k", "penalties"))) == {1}


def test_late_penalties_change_the_shares(vocab):
    logits = row({1: 2.0, 2: 2.0})
    params = {"presence_penalty": 2.0, "top_k": 2}
    sampler = make(vocab, seed=3, **params, order=("top_k", "penalties"))
    sampler.accept(1)

    def draw():
        adjusted = logits.copy()
        sampler.adjust(adjusted)
        assert np.array_equal(adjusted, logits)
        return sampler.sample(adjusted)

    drawn = Counter(draw() for _ in range(1000))
    sampler.close()
    assert drawn[1] / 1000 == pytest.approx(1 / (1 + np.e**2), abs=0.04)


def test_an_unknown_stage_is_an_error(vocab):
    with pytest.raises(KeyError):
        make(vocab, order=("top_z",))


def frequencies_of(vocab, logits, draws=200, prompt=(), **params):
    sampler = make(vocab, prompt=prompt, seed=11, **params)

    def draw():
        adjusted = logits.copy()
        sampler.adjust(adjusted)
        return sampler.sample(adjusted)

    counts = Counter(draw() for _ in range(draws))
    sampler.close()
    return counts


@pytest.mark.parametrize("size", [90, 8192, 49152, 49157])  # the last one is prime: its blocks leave a rest
@pytest.mark.parametrize("params", [{"top_k": 40, "top_p": 0.95, "min_p": 0.05}, {"top_k": 1}, {"top_k": 20}])
def test_only_the_highest_are_looked_at_and_the_same_is_drawn(vocab, size, params):
    """Without an earlier cut, llama.cpp sorts all of them with the same result, including masked ones."""
    rng = np.random.default_rng(size)
    cut, whole = (make(vocab, seed=5, temperature=0.8, **params) for _ in range(2))
    whole._plain = True
    for n in range(60):
        logits = (rng.standard_normal(size) * 3).astype(np.float32)
        if n % 3 == 1:
            logits[rng.permutation(size)[: size - 5]] = -np.inf
        if n % 3 == 2:
            logits[-1] = 20
        kept, top = _highest(logits, params["top_k"])
        assert top == logits.max()
        assert set(np.argsort(-logits)[: min(params["top_k"], 5)]) <= set(kept)
        assert cut.sample(logits.copy()) == whole.sample(logits.copy())
    assert size < 8192 or len(kept) < size / 10
    cut.close()
    whole.close()


@pytest.mark.parametrize("size", [90, 8192, 49152, 50001])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_a_draw_by_temperature_alone_is_the_chains(vocab, size, temperature):
    """Block sums sample what llama.cpp samples; if they cannot decide, its chain continues with the same number."""
    rng = np.random.default_rng(size)
    blocks, whole = (make(vocab, seed=5, temperature=temperature) for _ in range(2))
    assert blocks._full_vocab is not None
    whole._full_vocab = None
    asked = []
    run_chain = blocks._run_chain
    blocks._run_chain = lambda ids, logits: asked.append(len(ids)) or run_chain(ids, logits)
    for n in range(150):
        logits = (rng.standard_normal(size) * (n % 5)).astype(np.float32)  # every fifth: all equal
        if n % 7 == 1:
            logits[rng.permutation(size)[: size - 5]] = -np.inf
        assert blocks.sample(logits.copy()) == whole.sample(logits.copy())
    assert len(asked) < 30
    assert size < 49152 or asked
    blocks.close()
    whole.close()


@pytest.mark.parametrize(
    "params",
    [
        {"order": ("temperature",)},
        {"dynatemp_range": 0.5},
        {"mirostat": 2},
        {"typical_p": 0.9},
        {"xtc_probability": 0.5},
        {"top_n_sigma": 1.0},
        {"min_p": 0.1},
        {"adaptive_target": 0.5},
        {"dry_multiplier": 0.8},
        {"seed": 0xFFFFFFFF},
    ],
)
def test_other_stages_leave_the_draw_to_the_chain(vocab, params):
    sampler = make(vocab, **params)
    assert sampler._full_vocab is None
    sampler.close()


def test_the_random_numbers_are_those_that_the_standard_of_c_demands():
    """[rand.predef]: the 10,000th number of a std::mt19937 with its own seed is 4123659995."""
    generator = full_vocab_sampler.mersenne_twister(5489)
    for _ in range(9999):
        generator.getrandbits(32)
    assert generator.getrandbits(32) == 4123659995
