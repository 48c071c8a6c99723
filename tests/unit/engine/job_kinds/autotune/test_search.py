"""Successive halving finds what an exhaustive grid finds, at a fraction of its cost, and never a bad point."""

import asyncio
import itertools
import random

import msgspec
import pytest

from devices.types import CoreCounts, Device, Machine, Memory, Runtime, SystemMemory
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.autotune.run import rounds_for
from engine.job_kinds.autotune.search import OutOfTime, Search
from engine.job_kinds.autotune.space import (
    Dimension,
    attention,
    changed,
    dimensions,
    thread_counts,
    ubatches,
    valid,
)
from engine.placement.measurements import TrialOutcome, TrialSize, TunableSettings, TunedSetting, TuneTrial

DIMS = (
    Dimension(name="threads", levels=tuple({"n_threads": n} for n in (1, 2, 4))),
    Dimension(name="repack", levels=({"repack": True}, {"repack": False})),
    Dimension(name="attention", levels=attention(TunableSettings(flash_attn="on"))),
    Dimension(name="ubatch", levels=tuple({"n_ubatch": n} for n in (128, 256, 512))),
)
BASE = TunableSettings(n_threads=4, n_ubatch=512, flash_attn="on")
PROMPT = 512


def machine(*runtimes, cores=4, logical=8):
    counts = CoreCounts(cores, logical, cores, 0, logical, cores)
    cpu = Device("cpu", "cpu", "AMD", "CPU", "usable", Memory(), cores=counts)
    gpu = Device("0000:01:00.0", "dgpu", "AMD", "GPU", "usable", Memory(), runtimes=runtimes)
    return Machine("linux", "6", "x86_64", "", "", SystemMemory(), (cpu, gpu) if runtimes else (cpu,))


def grid():
    for levels in itertools.product(*(d.levels for d in DIMS)):
        knobs = TunableSettings(**{k: v for level in levels for k, v in level.items()})
        if valid(knobs):
            yield knobs


def landscape(seed):
    """Speeds that depend on every setting, on one pair together, and a little on chance."""
    rng = random.Random(seed)
    factor = {}
    for dim in DIMS:
        for level in dim.levels:
            factor[dim.name, dim.words(TunableSettings(**level))] = rng.uniform(0.6, 1.4)
    pair = rng.choice(list(itertools.combinations(DIMS, 2)))
    extra = {}

    def speed(knobs):
        found = 100.0
        for dim in DIMS:
            found *= factor[dim.name, dim.words(knobs)]
        key = tuple(d.words(knobs) for d in pair)
        return found * extra.setdefault(key, rng.uniform(0.95, 1.05))

    return speed


class Bench:
    """Measures a landscape; counts the tokens it costs."""

    def __init__(self, speed, bad=lambda _: False, noise=0.01, seed=0):
        self.speed, self.bad, self.noise = speed, bad, noise
        self.rng = random.Random(seed)
        self.cost = 0.0
        self.calls = []

    async def measure(self, knobs, budget):
        self.calls.append((knobs, budget))
        if self.bad(knobs):
            return TrialOutcome(failure="it crashed")
        speed = self.speed(knobs) * self.rng.uniform(1 - self.noise, 1 + self.noise)
        self.cost += 0.3 + budget.repeats * (budget.prompt / speed / 10 + budget.answer / speed)
        return TrialOutcome(prefill_tok_s=10 * speed, decode_tok_s=speed)


def search(bench):
    found = Search(BASE, DIMS, PROMPT, bench.measure)
    asyncio.run(found.run(rounds_for(PROMPT)))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_winner_is_within_3_percent_of_an_exhaustive_grid(seed):
    speed = landscape(seed)
    everything = Bench(speed)
    for knobs in grid():
        asyncio.run(everything.measure(knobs, rounds_for(PROMPT)[-1]))
    best = max(speed(k) * (0.95 if k.kv_type != "f16" else 1) for k in grid())
    bench = Bench(speed, seed=seed)
    winner = search(bench).ranked()[0]
    counted = speed(winner) * (0.95 if winner.kv_type != "f16" else 1)
    assert counted >= 0.97 * best
    assert len(everything.calls) == 54
    assert bench.cost < 0.5 * everything.cost


@pytest.mark.parametrize(
    "bad",
    [
        lambda k: k.repack,
        lambda k: k.flash_attn == "on" and k.n_ubatch > 128,
        lambda k: k == BASE,
        lambda k: k.n_threads == 4,
    ],
    ids=["repack", "large ubatch", "the defaults", "many threads"],
)
def test_points_that_crash_are_never_chosen(bad):
    found = search(Bench(landscape(3), bad))
    assert found.complete
    assert not any(bad(k) for k in found.ranked())


def test_nothing_works():
    found = search(Bench(landscape(3), lambda _: True))
    assert found.ranked() == []


def test_noise_does_not_replace_what_is_in_use():
    found = search(Bench(lambda _: 100.0, noise=0.004))
    assert found.ranked()[0] == BASE


def test_a_lossy_cache_must_gain_more_than_an_exact_one():
    slight = search(Bench(lambda k: 103.0 if k.kv_type == "q8_0" else 100.0, noise=0.0))
    assert slight.ranked()[0].kv_type == "f16"
    large = search(Bench(lambda k: 120.0 if k.kv_type == "q8_0" else 100.0, noise=0.0))
    assert large.ranked()[0].kv_type == "q8_0"


def test_every_choice_is_explained_by_its_measurement():
    found = search(Bench(lambda k: 150.0 if k.n_threads == 2 else 100.0, noise=0.0))
    best = found.ranked()[0]
    threads = next(c for c in found.choices(best) if c.name == "threads")
    assert threads.value == "2"
    assert threads.turn_s < threads.against_turn_s
    assert f"{threads.turn_s:.2f} s" in threads.words()
    assert (
        TunedSetting(name="a", value="b", turn_s=1, against="c", against_turn_s=None).words().endswith("c failed")
    )


def test_when_the_time_is_over_the_best_so_far_counts():
    bench = Bench(landscape(5))
    inner = bench.measure

    async def limited(knobs, budget):
        if len(bench.calls) >= 6:
            raise OutOfTime
        return await inner(knobs, budget)

    found = Search(BASE, DIMS, PROMPT, limited)
    asyncio.run(found.run(rounds_for(PROMPT)))
    assert not found.complete
    assert len(found.ranked()) == 6


# ---------------------------------------------------------------- the record


def journalled(path, bench, stop_after=None):
    """A search whose trials are recorded; it is killed in the middle of a trial."""
    journal = Journal(path)

    async def measure(knobs, budget):
        recorded = journal.recorded(knobs, budget)
        if recorded is not None:
            return recorded
        journal.begin(knobs, budget)
        if stop_after is not None and len(bench.calls) >= stop_after:
            raise KeyboardInterrupt
        outcome = await bench.measure(knobs, budget)
        journal.end(TuneTrial(knobs=knobs, budget=budget, outcome=outcome))
        return outcome

    found = Search(BASE, DIMS, PROMPT, measure)
    asyncio.run(found.run(rounds_for(PROMPT)))
    return found


@pytest.mark.parametrize("stop_after", [0, 1, 7, 12])
def test_a_killed_search_goes_on_where_it_was(tmp_path, stop_after):
    path = tmp_path / "state" / "search.jsonl"
    bench = Bench(landscape(7), noise=0.0)
    with pytest.raises(KeyboardInterrupt):
        journalled(path, bench, stop_after)
    done = list(bench.calls)
    with path.open("ab") as file:
        file.write(b'{"type":"ended","trial":{"kn')  # the kill truncated a line
    resumed = journalled(path, bench)
    assert len(bench.calls) == len(set(bench.calls))
    assert bench.calls[: len(done)] == done
    straight = search(Bench(landscape(7), noise=0.0))
    assert resumed.ranked() == straight.ranked()


def test_a_point_that_twice_ended_the_whole_search_is_bad(tmp_path):
    path = tmp_path / "search.jsonl"
    budget = TrialSize(prompt=8, answer=2, repeats=1)
    Journal(path).begin(BASE, budget)
    assert Journal(path).recorded(BASE, budget) is None
    Journal(path).begin(BASE, budget)
    assert "twice" in Journal(path).recorded(BASE, budget).failure


def test_a_record_of_nonsense_is_an_empty_one(tmp_path):
    path = tmp_path / "search.jsonl"
    path.write_bytes(b'\x00\xff\n[]\n{"type":"ended"}\n' + b"[" * 5000 + b"\n")
    assert Journal(path).trials == ()


# ---------------------------------------------------------------- the space


def test_the_space_follows_the_machine():
    names = {d.name for d in dimensions(BASE, machine(), PROMPT, 24)}
    assert names == {"threads", "repack", "flash attention and KV type", "ubatch", "mmap"}
    runtime = Runtime("vulkan", "Vulkan0", 0, 8 << 30, 8 << 30, "usable")
    broken = Runtime("rocm", "ROCm0", 0, 8 << 30, 8 << 30, "failed")
    device = dimensions(BASE, machine(runtime, broken), 4096, 24)[0]
    assert device.name == "device"
    assert device.levels == (
        {"devices": (), "n_gpu_layers": 0},
        {"devices": ("Vulkan0",), "n_gpu_layers": 25},
        {"devices": ("Vulkan0",), "n_gpu_layers": 12},
    )


def test_sizes_and_threads_that_make_no_difference_are_left_out():
    assert ubatches(200, 64) == (32, 64, 128, 256)
    assert ubatches(200, 512) == (32, 64, 128, 512)
    assert ubatches(8000, 512) == (256, 512, 1024, 2048)
    assert thread_counts(machine(cores=1, logical=1)) == (1,)
    assert thread_counts(machine(cores=2, logical=2)) == (1, 2)
    assert thread_counts(machine(cores=8, logical=16)) == (1, 4, 7, 8, 16)


def test_changes_stay_valid():
    assert all(valid(changed(BASE, level)) for level in attention(BASE))
    assert not valid(msgspec.structs.replace(BASE, flash_attn="off", kv_type="q8_0"))
    assert changed(BASE, {"n_ubatch": 4096}).n_batch == 4096
    assert changed(BASE, {"n_batch": 256}).n_ubatch == 256
    assert not valid(msgspec.structs.replace(BASE, n_threads=0))
