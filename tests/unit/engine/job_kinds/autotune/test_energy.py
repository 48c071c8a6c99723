"""Tuning for energy on a simulated computer with a noisy meter: each goal gets its choice, despite the noise."""

import asyncio

import msgspec
import pytest

from devices.power import POWERCAP
from devices.recording import FORMAT, RecordedHost
from devices.types import Device, Machine, Memory, Runtime, SystemMemory
from engine.energy import meter as joules
from engine.energy.meter import EnergyMeter, NeverAtRest, NoPowerMeter
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.autotune.run import rounds_for
from engine.job_kinds.autotune.search import Search
from engine.job_kinds.autotune.space import CLEAR, LOSSY_WORTH, WORTH, Dimension, noise, worth
from engine.placement.measurements import ANSWER_TOKENS, TrialOutcome, TrialSize, TunableSettings, TuneTrial
from tests.support.machines.simulated_computer import Computer, Request

DIMS = (
    Dimension(name="threads", levels=tuple({"n_threads": n} for n in (1, 2, 4))),
    Dimension(name="mmap", levels=({"use_mmap": True}, {"use_mmap": False})),
    Dimension(name="ubatch", levels=tuple({"n_ubatch": n} for n in (128, 256, 512))),
)
BASE = TunableSettings(n_threads=4, n_ubatch=512)
PROMPT = 512


class Trials:
    """Runs on a simulated computer, whose ledger counts them; only the number of threads matters."""

    def __init__(self, seed, watts_power=1.4):
        self.computer = Computer(seed, watts_power=watts_power)
        self.computer.rest(30)
        self.requests = 0
        self.calls = []

    async def measure(self, knobs, budget):
        self.calls.append((knobs, budget))
        self.computer.threads = knobs.n_threads
        drawn, reads, writes = [], [], []
        for _ in range(budget.repeats):
            self.requests += 1
            request, begun = Request(self.requests, budget.prompt, budget.answer), self.computer.now
            self.computer.serve([(0.0, request)])
            reads.append(budget.prompt / (request.read_at - begun))
            writes.append(budget.answer / (self.computer.now - request.read_at))
            drawn.append(self.computer.joules[request.id])
            self.computer.rest(1)
        speeds = TrialOutcome(prefill_tok_s=max(reads), decode_tok_s=max(writes))
        if not budget.joules:
            return speeds
        per_joule = budget.repeats * budget.answer / sum(drawn)
        return msgspec.structs.replace(speeds, tokens_per_joule=per_joule, joules=tuple(drawn))


def search(goal, seed, watts_power=1.4):
    trials = Trials(seed, watts_power)
    found = Search(BASE, DIMS, PROMPT, trials.measure, goal)
    asyncio.run(found.run(rounds_for(PROMPT, goal)))
    assert found.complete
    return found, found.ranked()[0]


@pytest.mark.parametrize("seed", range(6))
def test_each_goal_chooses_its_own(seed):
    fast, fastest = search("speed", seed)
    saving, thriftiest = search("energy", seed)
    assert fastest.n_threads == 4
    assert thriftiest == msgspec.structs.replace(BASE, n_threads=2), "nothing else makes a difference"
    per_joule = {k.n_threads: o.tokens_per_joule for k, o in saving.results.items() if o.joules}
    assert per_joule[2] > 1.2 * per_joule[4]
    speeds = {k.n_threads: o.decode_tok_s for k, o in fast.results.items()}
    assert speeds[4] > 1.2 * speeds[2]


def test_fewer_joules_are_no_reason_to_be_more_than_twice_as_slow():
    found, best = search("energy", 0)
    slow = [k for k in found.results if k.n_threads == 1]
    assert slow
    assert min(found.results[k].turn_j() for k in slow) < found.results[best].turn_j()
    assert not set(slow) & set(found.ranked())
    assert found.turn_s(slow[0]) > 2 * found.turn_s(BASE)


def test_every_choice_is_explained_by_its_joules_and_seconds():
    found, best = search("energy", 0)
    threads = next(c for c in found.choices(best) if c.name == "threads")
    assert (threads.value, threads.against) == ("2", "4")
    assert threads.turn_j < threads.against_turn_j
    assert threads.turn_s > threads.against_turn_s
    assert f"{threads.turn_j:.3g} J and {threads.turn_s:.2f} s for a request against" in threads.words()
    assert 0 < found.joules_noise < 0.1
    rest = [c for c in found.choices(best) if c.name != "threads"]
    assert all(c.words().endswith("(no clear gain)") == (c.against_turn_j < c.turn_j) for c in rest)
    assert any(c.note for c in rest)
    slow = Search(
        BASE,
        (Dimension(name="threads", levels=({"n_threads": 1}, {"n_threads": 4})),),
        PROMPT,
        Trials(0).measure,
        "energy",
    )
    asyncio.run(slow.run(rounds_for(PROMPT, "energy")))
    assert slow.ranked()[0] == BASE
    assert slow.choices(BASE)[0].words().endswith("with 1 (too slow)")


@pytest.mark.parametrize("seed", range(6))
def test_noise_does_not_replace_what_is_in_use(seed):
    # The joules per token are the same for any number of threads.
    found, best = search("energy", seed, watts_power=0.8)
    assert best == BASE, found.choices(best)


def test_a_gain_counts_beyond_the_noise_of_as_many_runs():
    steady, shaky = TrialOutcome(joules=(10.0, 10.0, 10.0)), TrialOutcome(joules=(9.0, 11.0, 10.0))
    assert noise([steady]) == 0.0
    assert noise([shaky]) == pytest.approx(0.1)
    assert noise([steady, shaky]) == pytest.approx(0.1 / 2**0.5)
    assert worth(steady, steady, 0.0) == WORTH
    assert worth(steady, steady, 0.0, lossy=True) == LOSSY_WORTH
    assert worth(shaky, shaky, 0.1) == pytest.approx(1 - CLEAR * 0.1 * (2 / 3) ** 0.5)
    assert worth(shaky, shaky, 9.0) > 0
    assert worth(TrialOutcome(), TrialOutcome(), 0.1) == WORTH


@pytest.mark.parametrize("prompt", [1, 30, 128, 512, 2048, 8192])
def test_joules_are_counted_of_whole_turns_or_of_as_much_of_both_parts(prompt):
    short, whole = rounds_for(prompt, "energy")
    assert (whole.prompt, whole.answer) == (prompt, ANSWER_TOKENS)
    assert short.joules
    assert whole.joules
    assert short.answer == 8 or short.prompt / short.answer == pytest.approx(prompt / ANSWER_TOKENS, rel=0.1)
    assert not any(budget.joules for budget in rounds_for(prompt))


def test_a_trial_for_one_goal_is_never_taken_for_the_others(tmp_path):
    journal = Journal(tmp_path / "search.jsonl")
    speed = TrialSize(prompt=64, answer=8, repeats=2)
    energy = msgspec.structs.replace(speed, joules=True)
    journal.end(TuneTrial(knobs=BASE, budget=speed, outcome=TrialOutcome(prefill_tok_s=9.0, decode_tok_s=9.0)))
    again = Journal(tmp_path / "search.jsonl")
    assert again.recorded(BASE, speed).decode_tok_s == 9.0
    assert again.recorded(BASE, energy) is None
    found = TrialOutcome(prefill_tok_s=8.0, decode_tok_s=8.0, tokens_per_joule=2.5, joules=(3.0, 3.4))
    again.end(TuneTrial(knobs=BASE, budget=energy, outcome=found))
    assert Journal(tmp_path / "search.jsonl").recorded(BASE, energy) == found
    assert Journal(tmp_path / "search.jsonl").recorded(BASE, speed).joules == ()


# ---------------------------------------------------------------- meters

CARD = "0000:01:00.0"


def machine(runtimes=()):
    cpu = Device("cpu", "cpu", "x", "x", "usable", Memory())
    gpu = Device(CARD, "dgpu", "AMD", "A card", "usable", Memory(), pci=CARD, runtimes=runtimes)
    return Machine("linux", "6", "x86_64", "", "", SystemMemory(), (cpu, gpu))


def host(files=None, **parts):
    return RecordedHost({"format": FORMAT, "system": "linux", "files": files or {}, **parts})


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(joules, "EVERY_S", 0.01)
    monkeypatch.setattr(joules, "PATIENCE_S", 0.3)


@pytest.mark.usefixtures("at_once")
def test_without_a_meter_it_is_said_what_was_looked_for_and_what_to_do():
    with pytest.raises(NoPowerMeter) as told:
        asyncio.run(EnergyMeter(host(), machine()).rest())
    for word in ("RAPL", "zenpower", "battery", "NVIDIA", "Tuning for speed"):
        assert word in str(told.value)
    base = f"{POWERCAP}/intel-rapl:0"
    locked = host({f"{base}/name": "package-0"}, access={f"{base}/energy_uj": "denied"})
    with pytest.raises(NoPowerMeter, match=r"rapl package-0.*sudo chmod"):
        asyncio.run(EnergyMeter(locked, machine()).rest())


MONITOR = {
    f"/sys/bus/pci/devices/{CARD}/hwmon/hwmon1/power1_average": "90000000",
    "/sys/class/hwmon/hwmon3/name": "zenpower",
    "/sys/class/hwmon/hwmon3/power1_label": "SVI2_P_Core",
    "/sys/class/hwmon/hwmon3/power1_input": "12000000",
}


@pytest.mark.usefixtures("at_once")
def test_a_meter_of_a_card_alone_says_nothing_of_the_processor():
    card = {path: value for path, value in MONITOR.items() if CARD in path}
    with pytest.raises(NoPowerMeter, match="power meter for the CPU"):
        asyncio.run(EnergyMeter(host(card), machine()).rest())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("busy", [0.0, 0.9])
def test_the_rest_is_known_only_where_nobody_else_works(monkeypatch, busy):
    monkeypatch.setattr("devices.sensors.UsageSampler._cpu_frac", lambda _: busy)
    meter = EnergyMeter(host(MONITOR), machine())
    if busy:
        with pytest.raises(NeverAtRest, match="other programs"):
            asyncio.run(meter.rest())
    else:
        asyncio.run(meter.rest())
        assert meter._ledger.idle_w("cpu") == 12.0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("metered", [True, False])
def test_a_device_without_a_meter_is_not_taken_for_one_that_draws_nothing(monkeypatch, metered):
    monkeypatch.setattr("devices.sensors.UsageSampler._cpu_frac", lambda _: 0.0)
    files = MONITOR if metered else {path: value for path, value in MONITOR.items() if CARD not in path}
    meter = EnergyMeter(host(files), machine((Runtime("vulkan", "Vulkan0", 0, 1, 1, "usable"),)))
    asyncio.run(meter.rest())
    assert meter._missing(()) is None
    assert meter._missing(("Vulkan0",)) == (None if metered else "A card")
