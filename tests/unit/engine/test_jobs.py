"""The job registry: states, queueing, crashes, persistence, events."""

import asyncio
import json
import threading
import time

import pytest

from devices.errors import Cancelled as QuantizeCancelled
from engine.core.errors import EnvironmentFault, InputFault
from engine.jobs import jobs
from engine.jobs.jobs import JobContext, JobKind, JobRegistry, Paused, Subscription
from quantize.errors import BadFile


def until(registry, job_id, state):
    with registry.subscribe(job_id) as subscription:
        while True:
            for job in subscription.take(60):
                if job.state == state:
                    return job


def steps(params, control):
    for index in range(params["steps"]):
        control.check()
        control.report("working", index + 1, params["steps"], "steps")
        control.wait(0.01)
    return {"did": params["steps"]}


@pytest.fixture
def registry(tmp_path):
    made = JobRegistry(tmp_path / "jobs.json")
    made.register(JobKind.QUANTIZE, steps, parallel=2)
    yield made
    made.close()


def test_a_job_runs_reports_and_ends(registry):
    job = registry.start(JobKind.QUANTIZE, "three steps", {"steps": 3})
    done = registry.wait(job.id, 60)
    assert (done.state, done.result, done.progress.done, done.progress.unit) == ("done", {"did": 3}, 3, "steps")
    assert registry.jobs() == (done,)


def test_only_so_many_of_a_kind_run_at_once(registry):
    jobs = [registry.start(JobKind.QUANTIZE, str(n), {"steps": 5_000}) for n in range(3)]
    until(registry, jobs[0].id, "running")
    until(registry, jobs[1].id, "running")
    assert registry.get(jobs[2].id).state == "queued"
    registry.pause(jobs[2].id)
    assert registry.wait(jobs[2].id, 60).state == "paused"
    registry.resume(jobs[2].id)
    registry.cancel(jobs[0].id)
    until(registry, jobs[2].id, "running")
    assert registry.wait(jobs[0].id, 60).state == "cancelled"


def test_a_job_with_a_usable_result_can_be_finished(registry):
    begun, ready = threading.Event(), threading.Event()

    def improve(params, control):
        begun.set()
        ready.wait(60)
        control.report("measure", 1, 10, partial={"usable": "unmeasured"})
        while not control.stopping:
            time.sleep(0.01)
        return {"finished": control.finishing}

    registry.register(JobKind.QUANTIZE, improve)
    job = registry.start(JobKind.QUANTIZE, "a file", {})
    begun.wait(60)
    with pytest.raises(InputFault, match="no usable result"):
        registry.finish(job.id)
    ready.set()
    with registry.subscribe(job.id) as subscription:
        while not registry.get(job.id).progress.partial:
            subscription.take(60)
    registry.finish(job.id)
    done = registry.wait(job.id, 60)
    assert (done.state, done.result) == ("done", {"finished": True})
    with pytest.raises(InputFault, match="no usable result"):
        registry.finish(job.id)


def test_errors_become_facts_and_bugs_stay_bugs(registry, caplog):
    def fail(params, control):
        raise {
            "input": InputFault("no", "field"),
            "environment": EnvironmentFault("full"),
            "file": BadFile("p", "torn"),
            "stop": QuantizeCancelled(),
            "bug": KeyError("x"),
        }[params["how"]]

    registry.register(JobKind.VERIFY, fail)
    found = {}
    for how in ("input", "environment", "file", "stop", "bug"):
        job = registry.wait(registry.start(JobKind.VERIFY, how, {"how": how}).id, 60)
        found[how] = (job.state, job.error.code if job.error else None)
    assert found == {
        "input": ("failed", "invalid_request"),
        "environment": ("failed", "environment"),
        "file": ("failed", "bad_file"),
        "stop": ("cancelled", None),
        "bug": ("failed", "bug"),
    }
    assert "job crashed" in caplog.text
    registry.register(JobKind.VERIFY, lambda params, control: {"now": "fine"})
    failed = next(j for j in registry.jobs() if j.title == "environment")
    registry.resume(failed.id)
    assert registry.wait(failed.id, 60).result == {"now": "fine"}


def test_what_ran_when_the_process_died_is_paused_and_can_be_resumed(registry, tmp_path):
    job = registry.start(JobKind.QUANTIZE, "x", {"steps": 10_000})
    until(registry, job.id, "running")
    copy = tmp_path / "copy.json"
    copy.write_bytes((tmp_path / "jobs.json").read_bytes())
    told = registry.get(job.id).updated_at  # by progress that was never on the disk
    again = JobRegistry(copy)
    assert again.get(job.id).state == "paused"
    assert again.get(job.id).updated_at > told, "whoever follows takes the newest state"
    with pytest.raises(InputFault, match="no jobs of kind"):
        again.resume(job.id)
    other = JobRegistry(copy)
    assert other.cancel(job.id).state == "cancelled"
    again.register(JobKind.QUANTIZE, lambda params, control: {"resumed": params["steps"]})
    again.resume(job.id)
    assert again.wait(job.id, 60).result == {"resumed": 10_000}


def test_a_failed_job_can_be_cancelled_although_it_fails_again(registry):
    """Its clean-up function is called, and fails on the same file."""

    def stumble(params, control):
        raise InputFault("this is no model", "path")

    registry.register(JobKind.IMPORT, stumble)
    job = registry.start(JobKind.IMPORT, "x", {})
    assert registry.wait(job.id, 60).state == "failed"
    registry.cancel(job.id)
    assert registry.wait(job.id, 60).state == "cancelled"


def test_a_paused_job_that_is_cancelled_tidies_up(tmp_path):
    tidied = threading.Event()

    def work(params, control):
        try:
            control.wait(60)
        except Paused:
            raise
        except BaseException:
            tidied.set()
            raise

    registry = JobRegistry()
    registry.register(JobKind.PULL, work)
    job = registry.start(JobKind.PULL, "x", {})
    until(registry, job.id, "running")
    registry.pause(job.id)
    until(registry, job.id, "paused")
    registry.cancel(job.id)
    assert until(registry, job.id, "cancelled").error is None
    assert tidied.is_set()
    for action in (registry.pause, registry.resume, registry.cancel):
        with pytest.raises(InputFault):
            action(job.id)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'[{"id": 3}]'])
def test_a_damaged_list_is_kept_aside(raw, tmp_path):
    file = tmp_path / "jobs.json"
    file.write_bytes(raw)
    registry = JobRegistry(file)
    assert registry.jobs() == ()
    assert file.read_bytes() == raw, "looking changes nothing"
    registry.register(JobKind.VERIFY, lambda params, control: None)
    registry.wait(registry.start(JobKind.VERIFY, "x", {}).id, 60)
    (kept,) = tmp_path.glob("*.corrupt-*")
    assert kept.read_bytes() == raw
    assert [job.title for job in JobRegistry(file).jobs()] == ["x"]


@pytest.mark.slow
@pytest.mark.slow
def test_the_list_stays_bounded(tmp_path):
    registry = JobRegistry(tmp_path / "jobs.json")
    registry.register(JobKind.PULL, lambda params, control: None, parallel=8)
    for n in range(230):
        registry.wait(registry.start(JobKind.PULL, str(n), {}).id)
    assert len(registry.jobs()) <= 201
    assert len(json.loads((tmp_path / "jobs.json").read_bytes())["data"]) <= 201
    assert registry.jobs()[0].title == "229"


def test_a_job_begun_after_the_clock_was_set_back_is_kept_and_is_the_newest(registry, monkeypatch):
    monkeypatch.setattr(jobs, "_KEPT", 8)
    for number in range(8):
        registry.wait(registry.start(JobKind.QUANTIZE, str(number), {"steps": 0}).id, 60)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    job = registry.start(JobKind.QUANTIZE, "today, says the clock", {"steps": 1})
    assert registry.wait(job.id, 60).state == "done"
    assert registry.jobs()[0].id == job.id
    assert len(registry.jobs()) == 8


def test_a_job_never_seems_older_than_it_was_told(registry, monkeypatch):
    job = registry.start(JobKind.QUANTIZE, "a clock that goes back", {"steps": 5_000})
    before = until(registry, job.id, "running").updated_at
    monkeypatch.setattr(time, "time", lambda: before - 3600)
    registry.cancel(job.id)
    assert registry.wait(job.id, 60).updated_at >= before


def test_events_for_asyncio(registry):
    async def read():
        job = registry.start(JobKind.QUANTIZE, "x", {"steps": 5})
        with registry.subscribe(job.id) as subscription:
            return [change.state async for change in subscription.changes()]

    states = asyncio.run(read())
    assert states[-1] == "done"


def test_who_follows_every_job_is_let_go_at_the_end_with_what_was_told_last(registry):
    job = registry.start(JobKind.QUANTIZE, "x", {"steps": 1})
    last = registry.wait(job.id, 60)

    async def read():
        with registry.subscribe() as every, registry.subscribe(job.id) as one:
            following = asyncio.create_task(collected(every.changes()))
            await asyncio.sleep(0)
            registry.end_following()
            return await following, [change async for change in one.changes()]

    async def collected(changes):
        return [change async for change in changes]

    assert asyncio.run(read()) == ([last], [last])


def test_who_begins_to_follow_after_the_end_is_let_go_at_once(registry):
    job = registry.start(JobKind.QUANTIZE, "q", {"steps": 1})
    until(registry, job.id, "done")
    registry.end_following()

    async def follow():
        with registry.subscribe() as subscription:
            return [told.id async for told in subscription.changes()]

    assert asyncio.run(asyncio.wait_for(follow(), 60)) == [job.id]


def test_what_is_told_just_before_the_end_is_not_lost(registry, monkeypatch):
    first = registry.start(JobKind.QUANTIZE, "q", {"steps": 1})
    until(registry, first.id, "done")
    taken = Subscription.take

    def interrupted(self, timeout_s=0.0):
        """The last event and the end arrive directly after a check for events."""
        found = taken(self, timeout_s)
        if not self._over:
            self.push(found[0])
            self.end()
        return found

    async def follow():
        with registry.subscribe() as subscription:
            monkeypatch.setattr(Subscription, "take", interrupted)
            return [told.id async for told in subscription.changes()]

    assert asyncio.run(asyncio.wait_for(follow(), 60)) == [first.id, first.id]


def test_an_unknown_kind():
    with pytest.raises(InputFault, match="no jobs of kind"):
        JobRegistry().start(JobKind.PULL, "x", {})


def test_speed_and_time_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("engine.jobs.jobs.time.monotonic", lambda: now[0])
    seen = []
    control = JobContext(seen.append)
    for second in range(4):
        now[0] = 100.0 + second
        control.report("x", second * 10, 100)
    assert (seen[-1].speed, seen[-1].eta_s, seen[-1].stalled) == (10.0, 7.0, False)
    now[0] = 110.0
    control.report("x", 30, 100)
    assert (seen[-1].speed, seen[-1].eta_s, seen[-1].stalled) == (0.0, None, True)
    now[0] = 112.0
    control.report("x", 31, 100)
    assert 0 < seen[-1].speed < 1
    assert seen[-1].eta_s == pytest.approx(69 / seen[-1].speed)


@pytest.mark.parametrize("stores", [True, False])
def test_a_server_that_ends_waits_for_a_job_that_stores_its_result(tmp_path, monkeypatch, stores):
    monkeypatch.setattr(jobs, "_PAUSE_S", 0.05)
    goes_on, ends = threading.Event(), threading.Event()

    def work(_params, control):
        if stores:
            control.store()
        goes_on.set()
        assert ends.wait(60)  # it cannot be stopped

    registry = JobRegistry(tmp_path / "jobs.json")
    registry.register(JobKind.QUANTIZE, work)
    job = registry.start(JobKind.QUANTIZE, "one", {})
    assert goes_on.wait(60)
    timer = threading.Timer(0.5, ends.set)
    timer.start()
    registry.close()
    assert registry.get(job.id).state == ("done" if stores else "running")
    timer.join()
    registry.wait(job.id, 60)
