"""A model that does not fit is refused before anything is loaded: by a limit of the shell, by a small machine."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from devices.recording import RecordedHost
from engine.core.errors import BadModelFile, FileRefused, NotEnoughMemory, RunnerDied
from engine.core.paths import Paths
from engine.core.types import Delta, GenerationRequest, ModelFacts, Started
from engine.message_catalog import command
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import MachineState, open_resources
from engine.placement.types import ModelSettings
from engine.pool.model_resolution import ResolvedModel
from engine.runner.pipes import BufferLog
from engine.runner.protocol import LoadSettings
from tests.support.fakes.free_pool import FreePool
from tests.support.machines.machines import machines
from tests.support.models.shapes import scaled, write_shape
from tests.support.servers import wait_for

ROOT = Path(__file__).resolve().parents[2]
LIMITED = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from pathlib import Path
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.core.errors import NotEnoughMemory
from engine.core.paths import user_paths
from engine.runner.protocol import LoadSettings
try:
    admission = MemoryAdmission(Placer(open_resources(user_paths())))
    admission.reserve_now("m", LoadSettings(path={path!r}, n_ctx={n_ctx}))
    print(json.dumps({{"refused": False}}))
except NotEnoughMemory as error:
    print(json.dumps({{"refused": True, **error.facts()}}))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    shape = scaled("llama", vocab=2000, layers=8, kv_heads=8, context=131072)
    return str(write_shape(tmp_path_factory.mktemp("fit") / "m.gguf", shape))


@pytest.fixture
def paths(tmp_path):
    return Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))


def shrunken(available_mib):
    recording = machines()["vm-firecracker"]
    free = (available_mib + 2048) * 1024
    meminfo = f"MemTotal: {8 << 20} kB\nMemAvailable: {free} kB\n"
    return MachineState(RecordedHost({**recording, "files": {**recording["files"], "/proc/meminfo": meminfo}}))


def placer_with(paths, available_mib):
    return Placer(open_resources(paths, shrunken(available_mib)))


class Source:
    def __init__(self, path, **settings):
        self.settings = LoadSettings(path=path, **settings)

    async def resolve(self, model, min_ctx=0):
        return ResolvedModel(model_id=model, engine="llama", settings=self.settings)

    def chosen(self, model):
        return ModelSettings()


async def never(engine, path):
    pytest.fail("a runner was started")


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit")
@pytest.mark.parametrize(("limit_gib", "n_ctx"), [(1, 65536), (2, 131072)])
def test_under_ulimit_v(path, tmp_path, limit_gib, n_ctx):
    code = LIMITED.format(limit=limit_gib << 30, path=path, n_ctx=n_ctx)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TESSERA_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["refused"]
    assert told["needed_bytes"] > told["available_bytes"]
    assert told["available_bytes"] < limit_gib << 30


def test_on_a_shrunken_machine_with_three_ways_out(path, paths):
    admission = MemoryAdmission(placer_with(paths, 600))
    pool = FreePool(Source(path, n_ctx=32768, n_parallel=4), never, admission)
    with pytest.raises(NotEnoughMemory) as refused:
        asyncio.run(_acquire(pool))
    error = refused.value
    assert error.needed_bytes > error.available_bytes > 0
    assert len(error.options) == 3
    assert "--kv q8_0" in command(error.options[0])


async def _acquire(pool):
    try:
        return await pool.acquire("m")
    finally:
        await pool.close()


def test_what_fits_is_admitted_and_given_back(path, paths):
    placer = placer_with(paths, 3000)
    before = placer.ledger.available("cpu")
    admission = MemoryAdmission(placer)
    admission.reserve_now("m", LoadSettings(path=path, n_ctx=4096))
    assert placer.ledger.available("cpu") < before
    assert placer.ledger.reservations()[0].parts["weights"] > 0
    admission.release("m")
    assert placer.ledger.available("cpu") == before


class Dying:
    """A runner that crashes for some settings and loads with others, and perhaps dies at its first token."""

    pid = 2**22 - 3
    alive = True
    active_requests = 0
    died = None

    def __init__(self, works, seen, generates=lambda _settings: True):
        self.works, self.seen, self.generates = works, seen, generates
        self.buffers = BufferLog()

    async def load(self, settings, progress):
        self.seen.append(settings)
        if not self.works(settings):
            raise RunnerDied(-11, "the runner was killed by SIGSEGV")
        return ModelFacts(
            architecture="llama", description="", n_params=1, size_bytes=1, n_vocab=1, n_ctx=settings.n_ctx,
            n_ctx_train=settings.n_ctx, n_parallel=1, n_embd=1, bos="", eos="", chat_template=None, add_bos=False,
            fim={}, metadata={}, backend="fake",
        )  # fmt: skip

    async def generate(self, request):
        yield Started(prompt_tokens=1, cached_tokens=0)
        if not self.generates(self.seen[-1]):
            self.alive, self.died = False, RunnerDied(-4, "the runner was killed by SIGILL")
            raise self.died
        yield Delta(text="ok", token_ids=(1,))

    async def stats(self):
        raise RunnerDied(None, "it does not answer")

    def kill(self):
        pass

    async def stop(self):
        pass


def test_the_ladder_is_climbed_down_told_and_remembered(path, paths):
    seen = []

    async def start(engine, model_path):
        return Dying(lambda s: not s.repack, seen)

    async def scenario():
        placer = placer_with(paths, 3000)
        pool = FreePool(Source(path, n_ctx=1024), start, MemoryAdmission(placer))
        model = await pool.acquire("m")
        notes = list(model.notes)
        await pool.close()
        return notes

    notes = asyncio.run(scenario())
    assert [s.n_ubatch for s in seen[:3]] == [512, 256, 128]
    assert seen[-1].repack is False
    assert "SIGSEGV" in notes[0]
    assert len(notes) == len(seen) - 1
    again = placer_with(paths, 3000)
    assert again.choose("m", LoadSettings(path=path, n_ctx=1024)).settings.repack is False


def generating(path, paths, generates, requests=1):
    """Send `requests` concurrent requests to a pool; its events, the tried settings, the notes, and the pool."""
    seen, placer = [], placer_with(paths, 3000)

    async def start(engine, model_path):
        return Dying(lambda s: True, seen, generates)

    async def scenario():
        pool = FreePool(Source(path, n_ctx=1024), start, MemoryAdmission(placer))
        model = await pool.acquire("m")

        async def ask():
            return [event async for event in pool.generate(model, GenerationRequest(prompt="x"))]

        told = await asyncio.gather(*(ask() for _ in range(requests)), return_exceptions=True)
        again = await asyncio.gather(pool.acquire("m"), return_exceptions=True)
        notes = list(model.notes)
        await pool.close()
        return told, notes, again[0]

    told, notes, again = asyncio.run(scenario())
    return told, seen, notes, again


def test_a_crash_at_the_first_token_goes_down_the_ladder_and_answers(path, paths):
    told, seen, notes, _ = generating(path, paths, lambda s: not s.repack)
    assert [type(event).__name__ for event in told[0]] == ["Started", "Delta"]
    assert [s.n_ubatch for s in seen[:3]] == [512, 256, 128]
    assert seen[-1].repack is False
    assert len(notes) == len(seen) - 1
    assert "first token" in notes[0]
    assert "SIGILL" in notes[0]
    remembered = placer_with(paths, 3000).choose("m", LoadSettings(path=path, n_ctx=1024)).settings
    assert (remembered.repack, remembered.n_ubatch) == (False, 128)


def test_requests_that_die_together_climb_down_once(path, paths):
    told, seen, _, _ = generating(path, paths, lambda s: s.n_ubatch < 512, requests=4)
    assert [s.n_ubatch for s in seen] == [512, 256]
    assert all([type(event).__name__ for event in events] == ["Started", "Delta"] for events in told)


def test_when_no_settings_generate_the_model_is_refused_for_a_while(path, paths):
    told, seen, _, again = generating(path, paths, lambda s: False)
    assert isinstance(told[0], RunnerDied)
    assert len(seen) <= 8
    assert isinstance(again, RunnerDied)
    assert "is not restarted for now" in str(again)
    free = placer_with(paths, 3000).choose("m", LoadSettings(path=path, n_ctx=1024)).settings
    assert free.repack, "settings that did not work are not remembered"


def test_a_runner_that_has_generated_is_not_changed_when_it_dies(path, paths):
    asked = []

    def generates(_settings):
        asked.append(1)
        return len(asked) != 2

    placer, seen = placer_with(paths, 3000), []

    async def start(engine, model_path):
        return Dying(lambda s: True, seen, generates)

    async def scenario():
        pool = FreePool(Source(path, n_ctx=1024), start, MemoryAdmission(placer))
        for _ in range(3):
            model = await pool.acquire("m")
            try:
                yield [event async for event in pool.generate(model, GenerationRequest(prompt="x"))]
            except RunnerDied as error:
                yield error
        await pool.close()

    async def collect():
        return [outcome async for outcome in scenario()]

    first, second, third = asyncio.run(collect())
    assert isinstance(second, RunnerDied)
    assert len(first) == len(third) == 2
    assert seen[0] == seen[1]
    assert len(seen) == 2


@pytest.mark.parametrize("while_idle", [False, True])
def test_the_memory_of_a_runner_that_has_died_is_free_again(path, paths, monkeypatch, while_idle):
    """No request follows, and the model may be too large for now: the memory is another model's."""
    monkeypatch.setattr("engine.pool.pool.REAP_S", 0.01)
    answers, placer = [], placer_with(paths, 3000)

    def generates(_settings):
        answers.append(1)
        return len(answers) == 1

    async def start(engine, model_path):
        return Dying(lambda s: True, [], generates)

    async def scenario():
        pool = FreePool(Source(path, n_ctx=1024), start, MemoryAdmission(placer))
        try:
            model = await pool.acquire("m")
            assert [event async for event in pool.generate(model, GenerationRequest(prompt="x"))]
            assert [r.owner for r in placer.ledger.reservations()] == ["m"]
            if while_idle:
                model.runner.alive = False
                await asyncio.to_thread(wait_for, lambda: not placer.ledger.reservations())
            else:
                with pytest.raises(RunnerDied):
                    _ = [event async for event in pool.generate(model, GenerationRequest(prompt="x"))]
            return placer.ledger.reservations()
        finally:
            await pool.close()

    assert asyncio.run(scenario()) == ()


def test_what_a_load_has_taken_so_far_is_counted_once(path, paths):
    """The system counts it as used already: while a large model is read, a small one may be loaded."""
    placer, left = placer_with(paths, 3000), []
    settings = LoadSettings(path=path, n_ctx=1024)
    free, need = placer.ledger.available("cpu"), placer.need_of(settings).total_bytes

    class Loading(Dying):
        pid = os.getpid()

        async def load(self, settings, progress):
            left.append(placer.ledger.available("cpu"))
            return await super().load(settings, progress)

    async def start(engine, model_path):
        return Loading(lambda s: True, [])

    asyncio.run(_acquire(FreePool(Source(path, n_ctx=1024), start, MemoryAdmission(placer))))
    assert left[0] > free - need


def test_a_load_whose_client_leaves_while_memory_is_looked_for_reserves_nothing(path, paths, monkeypatch):
    placer, begun, goes_on = placer_with(paths, 3000), threading.Event(), threading.Event()
    need = placer.need

    def slow_need(*args):
        begun.set()
        assert goes_on.wait(60)
        return need(*args)

    monkeypatch.setattr(placer, "need", slow_need)

    async def scenario():
        pool = FreePool(Source(path, n_ctx=1024), never, MemoryAdmission(placer))
        loading = asyncio.create_task(pool.acquire("m"))
        await asyncio.to_thread(begun.wait, 60)
        loading.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(loading, return_exceptions=True)
        await pool.close()
        await asyncio.get_running_loop().shutdown_default_executor()
        return loading.cancelled(), placer.ledger.reservations()

    assert asyncio.run(scenario()) == (True, ())


@pytest.fixture
def quiet(monkeypatch):
    """A computer on which no other program runs."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.mark.usefixtures("quiet")
def test_a_speed_seen_here_is_used_at_the_next_placement(path, paths, monkeypatch):
    monkeypatch.setattr("engine.placement.memory_admission.LARGE_READ_BYTES", 1 << 20)
    settings = LoadSettings(path=path, n_ctx=1024)
    placer = placer_with(paths, 3000)
    admission = MemoryAdmission(placer)
    admission.reserve_now("m", placer.choose("m", settings).settings)
    assert placer.placement("m", settings, exact=False).basis == "prior"
    admission.observed("m", 10, 1.0, 5.0)  # too short for a conclusion
    assert placer.placement("m", settings, exact=False).basis == "prior"
    admission.observed("m", 101, 2.0, 1024.0)
    again = placer_with(paths, 3000).placement("m", settings, exact=False)
    assert again.basis == "measured"
    assert again.decode_tok_s == pytest.approx(50, rel=0.01)


@pytest.mark.usefixtures("quiet")
def test_a_speed_seen_here_replaces_the_forecast_of_a_small_model_and_corrects_its_neighbours(
    path, paths, monkeypatch, tmp_path
):
    """The first answer decides at any size; another model gets the same correction, as an estimate."""
    settings = LoadSettings(path=path, n_ctx=1024)
    placer = placer_with(paths, 3000)
    before = placer.placement("m", settings, exact=False).decode_tok_s
    admission = MemoryAdmission(placer)
    admission.reserve_now("m", placer.choose("m", settings).settings)
    with monkeypatch.context() as busy:
        busy.setattr("os.getloadavg", lambda: (100.0, 100.0, 100.0))
        busy.setattr("devices.host._LOADAVG", tmp_path / "none")  # only the average decides
        admission.observed("m", 101, 999.0, 1024.0)  # next to other programs: no conclusion
    admission.observed("m", 101, 100 / before * 2, 1024.0)
    again = placer_with(paths, 3000)
    mine, other = (again.placement(name, settings, exact=False) for name in ("m", "other"))
    assert (mine.basis, other.basis) == ("measured", "prior")
    assert mine.decode_tok_s == other.decode_tok_s == pytest.approx(before / 2, rel=0.01)


@pytest.mark.usefixtures("quiet")
def test_short_answers_count_and_one_slow_answer_changes_little(path, paths):
    """Five answers of 48 tokens, one of them next to other work: the expected speed is the median of the five."""
    settings = LoadSettings(path=path, n_ctx=1024)
    placer = placer_with(paths, 3000)
    admission = MemoryAdmission(placer)
    admission.reserve_now("m", placer.choose("m", settings).settings)
    for tok_s in (40.0, 42.0, 9.0, 41.0, 43.0):
        admission.observed("m", 48, 47 / tok_s, 1024.0)
    now = placer.placement("m", settings, exact=False)
    assert now.basis == "measured"
    assert now.decode_tok_s == pytest.approx(41, rel=0.01)


@pytest.mark.usefixtures("quiet")
def test_what_one_model_read_does_not_replace_the_rule_for_another_on_the_processor(path, paths, monkeypatch):
    """The response times follow the rule, but the read speed depends on the type of the weights."""
    monkeypatch.setattr("engine.placement.memory_admission.LARGE_READ_BYTES", 1 << 20)
    settings = LoadSettings(path=path, n_ctx=1024)
    placer = placer_with(paths, 3000)
    before = placer.placement("m", settings, exact=False).decode_tok_s
    admission = MemoryAdmission(placer)
    admission.reserve_now("m", placer.choose("m", settings).settings)
    admission.observed("m", 101, 100 / before, 1024.0)
    placer.history.record_speed("cpu", "cpu", 1_000_000, 1.0)  # as if it read 1 MB/s
    other = placer.placement("other", settings, exact=False)
    assert (other.basis, other.decode_tok_s) == ("prior", pytest.approx(before, rel=0.01))


def test_when_nothing_helps_the_last_failure_is_raised(path, paths):
    seen = []

    async def start(engine, model_path):
        return Dying(lambda s: False, seen)

    pool = FreePool(Source(path, n_ctx=1024), start, MemoryAdmission(placer_with(paths, 3000)))
    with pytest.raises(RunnerDied):
        asyncio.run(_acquire(pool))
    assert len(seen) == len({json.dumps([s.n_ubatch, s.repack, s.use_mmap]) for s in seen})
    assert len(seen) <= 8


def test_a_file_that_is_at_fault_is_tried_once_on_a_gpu_too(path, paths):
    admission = MemoryAdmission(placer_with(paths, 3000))
    settings = LoadSettings(path=path, n_ctx=1024, devices=("CUDA0",), n_gpu_layers=99)
    assert asyncio.run(admission.retry("m", settings, FileRefused(path, "unknown model architecture"))) is None
    assert asyncio.run(admission.retry("m", settings, BadModelFile(path, "no buffer"))) is not None


def test_deterministic_requests_are_counted_and_refused_where_their_context_does_not_fit(path, paths):
    placer = placer_with(paths, 600)
    admission = MemoryAdmission(placer)
    small = LoadSettings(path=path, n_ctx=1024)
    admission.reserve_now("m", small)
    before = {r.owner for r in placer.ledger.reservations()}
    asyncio.run(admission.widen("m", small))
    (added,) = {r.owner for r in placer.ledger.reservations()} - before
    assert added == "m (deterministic)"
    with pytest.raises(NotEnoughMemory) as refused:
        asyncio.run(admission.widen("m", LoadSettings(path=path, n_ctx=131072)))
    assert refused.value.needed_bytes > refused.value.available_bytes > 0
    admission.started("m", os.getpid())
    admission.widened("m")
    assert [(row.owner, row.pid) for row in placer.ledger.reservations()] == [
        ("m", os.getpid()),
        (added, os.getpid()),
    ]
    admission.release("m")
    assert placer.ledger.reservations() == ()


def test_the_second_context_of_a_model_is_not_offered_for_unloading(path, paths):
    """It goes with its model."""
    placer = placer_with(paths, 600)
    admission = MemoryAdmission(placer)
    small = LoadSettings(path=path, n_ctx=1024)
    admission.reserve_now("m", small)
    asyncio.run(admission.widen("m", small))
    with pytest.raises(NotEnoughMemory) as refused:
        admission.reserve_now("second", LoadSettings(path=path, n_ctx=131072))
    assert "deterministic" not in str(refused.value.facts()["options"])
    total = sum(row.predicted_bytes for row in placer.ledger.reservations())
    assert admission.others("second") == [("m", total)]
