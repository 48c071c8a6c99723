"""Sampling on rows of logits, with llama.cpp's own chain and the bundled model's vocabulary."""

from collections import Counter

import numpy as np
import pytest

from engine.runner.llama.binding import start_backends
from engine.runner.llama.sampler import NotFinite, Sampler, _nucleus, token_logprob
from engine.types import SamplingParams


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
    return Sampler(api, handle, SamplingParams(**params), 1024, list(prompt))


def row(values, size=8192, floor=-30.0):
    logits = np.full(size, floor, np.float32)
    for token, value in values.items():
        logits[token] = value
    return logits


def frequencies(vocab, logits, draws=1500, **params):
    sampler = make(vocab, seed=11, **params)
    counts = Counter(sampler.draw(logits.copy()) for _ in range(draws))
    sampler.close()
    return {token: n / draws for token, n in counts.items()}


def test_greedy_takes_the_best(vocab):
    assert make(vocab, temperature=0).draw(row({5: 3.0, 9: 4.0})) == 9


def test_temperature_one_follows_the_distribution(vocab):
    logits = row({1: np.log(0.6), 2: np.log(0.3), 3: np.log(0.1)})
    share = frequencies(vocab, logits)
    assert share[1] == pytest.approx(0.6, abs=0.05)
    assert share[3] == pytest.approx(0.1, abs=0.04)


def test_the_same_seed_draws_the_same(vocab):
    logits = row(dict.fromkeys(range(50), 1.0))
    first = make(vocab, seed=3)
    second = make(vocab, seed=3)
    assert [first.draw(logits.copy()) for _ in range(20)] == [second.draw(logits.copy()) for _ in range(20)]


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
    assert [fast.draw(logits.copy()) for _ in range(50)] == [full.draw(logits.copy()) for _ in range(50)]


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
    assert sampler.draw(logits) == 7


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_an_error(vocab, bad):
    with pytest.raises(NotFinite):
        make(vocab, temperature=0).draw(row({5: bad}))


def test_dry_breaks_a_loop(vocab):
    loop = [10, 11, 12, 13] * 6
    sampler = make(vocab, prompt=loop, temperature=0, dry_multiplier=2.0)
    assert sampler.draw(row({10: 5.0, 20: 4.5})) == 20
    assert make(vocab, prompt=loop, temperature=0).draw(row({10: 5.0, 20: 4.5})) == 10


def test_log_probabilities_sum_to_one(vocab):
    logits = row({1: 2.0, 2: 1.0, 3: 0.0})
    entry = token_logprob(logits, 2, 3, [b"x"] * 8192)
    assert [t for t, _, _ in entry.top] == [1, 2, 3]
    assert sum(np.exp(p) for _, _, p in entry.top) == pytest.approx(1.0, abs=1e-3)
    assert entry.logprob == pytest.approx(entry.top[1][2])
