"""Measurement with real runners: failing settings, a kill, KV cache type costs, the server's routes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import msgspec
import pytest

from engine.core.errors import NotEnoughMemory
from engine.core.paths import Paths
from engine.energy.meter import EnergyMeter
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.autotune.run import proof, trial, trial_settings
from engine.job_kinds.bench import shapes
from engine.job_kinds.bench.qtype_speed import PriceStore, measure_prices, planner_speeds
from engine.job_kinds.quantize.request import measured_speeds
from engine.placement.measurements import TrialSize, TunableSettings
from engine.runner.protocol import LoadSettings
from tests.conftest import ROOT
from tests.support.machines.simulated_meter import MACHINE, WORK_W, Metered

KNOBS = TunableSettings(n_threads=1, n_ubatch=64, n_batch=512)
BUDGET = TrialSize(prompt=64, answer=4, repeats=1)


@contextmanager
def freely(_settings):
    yield


@contextmanager
def never(_settings):
    raise NotEnoughMemory(10, 5, "cpu")
    yield


def tried(bundled_model, knobs=KNOBS, admit=freely, limit_s=120.0):
    return asyncio.run(trial(LoadSettings(path=str(bundled_model)), knobs, BUDGET, admit, limit_s))


def test_a_trial_measures(bundled_model):
    found = tried(bundled_model)
    assert found.failure is None
    assert found.prefill_tok_s > 0
    assert found.decode_tok_s > 0
    assert found.cost_s > 0


@pytest.mark.timeout(400)
def test_a_trial_counts_the_joules_that_its_runner_drew(bundled_model, monkeypatch):
    monkeypatch.setattr(
        "devices.sensors.UsageSampler._cpu_frac", lambda _: 0.0
    )  # nothing else runs on that computer
    host = Metered()
    energy = EnergyMeter(host, MACHINE)
    asyncio.run(energy.rest())
    at_rest = len(host.looks)
    budget = TrialSize(prompt=256, answer=64, repeats=3, joules=True)
    settings = LoadSettings(path=str(bundled_model))
    found = asyncio.run(trial(settings, KNOBS, budget, freely, 300.0, energy))
    assert found.failure is None
    assert len(found.joules) >= 3
    worked = [cpu_s for _, cpu_s in host.looks[at_rest:]]
    assert sum(found.joules) == pytest.approx(WORK_W * (worked[-1] - worked[0]), rel=0.3)
    assert found.tokens_per_joule == pytest.approx(len(found.joules) * 65 / sum(found.joules))
    plain = asyncio.run(trial(settings, KNOBS, BUDGET, freely, 300.0, energy))
    assert (plain.failure, plain.tokens_per_joule, plain.joules) == (None, None, ())


def test_a_device_that_is_not_there_is_a_bad_point(bundled_model):
    found = tried(bundled_model, msgspec.structs.replace(KNOBS, devices=("Vulkan9",), n_gpu_layers=9))
    assert "Vulkan9" in found.failure
    assert found.turn_s(64) == float("inf")


def test_a_setting_that_is_refused_is_a_bad_point(bundled_model):
    found = tried(bundled_model, msgspec.structs.replace(KNOBS, kv_type="q4_0", flash_attn="off"))
    assert "flash attention" in found.failure


def test_a_runner_that_hangs_is_a_bad_point(bundled_model):
    assert "no end after" in tried(bundled_model, limit_s=0.01).failure


def test_memory_is_asked_for_before_a_load(bundled_model):
    assert tried(bundled_model, admit=never).failure


def test_a_runner_that_crashes_is_a_bad_point(bundled_model, monkeypatch):
    async def crash(self, length, tokens):
        os.kill(self._runner.pid, signal.SIGSEGV)
        return await inner(self, length, tokens)

    from engine.job_kinds.bench.measure import Meter

    inner = Meter.run
    monkeypatch.setattr(Meter, "run", crash)
    assert "process ended" in tried(bundled_model).failure


def test_the_winner_is_loaded_as_the_server_would(bundled_model):
    settings = trial_settings(KNOBS.apply(LoadSettings(path=str(bundled_model))), BUDGET)
    assert asyncio.run(proof(settings, freely, 120.0)) is None
    refused = msgspec.structs.replace(settings, type_v="q4_0", flash_attn="off")
    assert asyncio.run(proof(refused, freely, 120.0)) is not None


SEARCH = """
import asyncio, sys
sys.path.insert(0, ".")
from contextlib import nullcontext
from pathlib import Path
from engine.job_kinds.autotune import run
from engine.energy.meter import EnergyMeter
from engine.job_kinds.autotune.space import Dimension
from engine.placement.measurements import TunableSettings
from engine.runner.protocol import LoadSettings

energy = None
if sys.argv[3] == "energy":
    from tests.support.machines.simulated_meter import MACHINE, Metered
    from devices.sensors import UsageSampler
    UsageSampler._cpu_frac = lambda _: 0.0  # nothing else runs on the simulated computer
    energy = EnergyMeter(Metered(), MACHINE)
    asyncio.run(energy.rest())
run.rounds_for = lambda n, goal: (
    run.TrialSize(prompt=32, answer=2, repeats=1, joules=goal == "energy"),
    run.TrialSize(prompt=32, answer=3, repeats=1, joules=goal == "energy"),
)
dims = [Dimension(name="ubatch", levels=tuple({"n_ubatch": n} for n in (16, 32, 64)))]
report = asyncio.run(run.tune(
    LoadSettings(path=sys.argv[1], n_ctx=256), TunableSettings(n_threads=1, n_ubatch=64), dims,
    model="m", prompt_tokens=32, journal_path=Path(sys.argv[2]), admit=lambda _: nullcontext(), limit_s=300,
    step=lambda text, count: print(count, flush=True), energy=energy,
))
import msgspec
print(msgspec.json.encode(report).decode())
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("goal", ["speed", "energy"])
def test_a_search_that_was_killed_goes_on(bundled_model, tmp_path, goal):
    journal = tmp_path / "search.jsonl"
    command = [sys.executable, "-c", SEARCH, str(bundled_model), str(journal), goal]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if int(line) == 2:  # the second trial has begun
            break
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    first.stdout.close()
    before = Journal(journal).trials
    assert len(before) >= 1
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    *steps, last = second.stdout.splitlines()
    report = json.loads(last)
    after = {json.dumps([t["knobs"], t["budget"]], sort_keys=True): t["outcome"] for t in report["trials"]}
    for kept in json.loads(msgspec.json.encode(before)):
        assert after[json.dumps([kept["knobs"], kept["budget"]], sort_keys=True)] == kept["outcome"]
    assert len(steps) == len(after) - len(before)
    assert report["complete"]
    assert report["goal"] == goal
    assert bool(report["tokens_per_joule"]) == (goal == "energy")
    assert all(bool(t["outcome"]["joules"]) == (goal == "energy") for t in report["trials"])
    assert not journal.exists()


SMALL = shapes.Dimensions("llama", 1, 256, 4, 2, 64, 512, 512, tied=True)


@pytest.mark.slow
def test_types_are_priced_and_reach_the_planner(tmp_path):
    paths = Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))
    steps = []
    prices = asyncio.run(
        measure_prices(
            "m",
            threads=1,
            types=("Q4_K", "IQ3_S"),
            probe=SMALL,
            scratch=tmp_path,
            step=lambda *told: steps.append(told),
        )
    )
    assert [name for name, *_ in steps] == ["Q4_K", "IQ3_S"]
    assert all(ns > 0 for ns in prices.ns_per_weight.values())
    assert not list(tmp_path.glob("*.gguf"))
    from engine.placement.resources import MachineState
    from engine.placement.results import machine_key

    here = MachineState()
    assert measured_speeds(paths, here) == {}
    mine = msgspec.structs.replace(prices, machine_key=machine_key(here.settled()))
    PriceStore(paths.state / "type_prices.json").put(mine)
    assert measured_speeds(paths, here) == planner_speeds(prices)
    assert measured_speeds(paths, here, "gpu") == {}
