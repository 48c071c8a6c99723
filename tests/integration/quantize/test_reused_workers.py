"""A job's processes run one task after another, as long as they are sound and use little memory."""

import os
import signal

import msgspec
import pytest

from devices.errors import TesseraError
from quantize import child
from quantize.child import Child, ChildDied, reused_workers, run_task, run_tasks
from quantize.convert.folder import ConvertRequest
from quantize.measure.collect_hessians import MomentsRequest
from tests.support.models.measured_model import ROOT, ignore, never
from tests.support.servers import runs, wait_for

FOLDER = ROOT / "tests/data/spark-hf"


@pytest.fixture
def pids(monkeypatch):
    """The process id of each task, in order."""
    found = []

    class Noted(Child):
        def __init__(self, task, request):
            super().__init__(task, request)
            found.append(self.pid)

    monkeypatch.setattr(child, "Child", Noted)
    return found


def prepare(tmp_path, folder=FOLDER):
    return "prepare", ConvertRequest(folder=folder, out=tmp_path / "out.gguf")


def test_a_task_is_done_by_the_process_of_the_one_before_and_all_are_gone_at_the_end(tmp_path, pids):
    with reused_workers():
        first = run_task(*prepare(tmp_path), ignore, never)
        assert run_task(*prepare(tmp_path), ignore, never) == first
        assert run_tasks([prepare(tmp_path)] * 2, lambda *_: None, never) == [first] * 2
        assert len(set(pids)) == 2
        assert all(map(runs, pids))
    assert not any(map(runs, pids))


def test_within_another_the_processes_are_the_others_and_outlive_the_inner_one(tmp_path, pids):
    with reused_workers():
        with reused_workers():
            first = run_task(*prepare(tmp_path), ignore, never)
        assert runs(pids[0])
        with reused_workers():
            assert run_task(*prepare(tmp_path), ignore, never) == first
        assert len(set(pids)) == 1
    assert not any(map(runs, pids))


def test_by_itself_each_task_has_its_own_process(tmp_path, pids):
    for _ in range(2):
        run_task(*prepare(tmp_path), ignore, never)
        assert not runs(pids[-1])
    assert len(set(pids)) == 2


def test_one_that_holds_much_ends_with_its_task(tmp_path, pids, monkeypatch):
    monkeypatch.setattr(child, "_LITTLE_BYTES", 1)
    with reused_workers():
        for _ in range(2):
            run_task(*prepare(tmp_path), ignore, never)
            assert not runs(pids[-1])
    assert len(set(pids)) == 2


def test_one_that_had_layers_on_a_gpu_ends_with_its_task(request_for, tmp_path, pids):
    """The driver would hold memory that others need. This build has no GPU, so the request alone decides."""
    survey = msgspec.structs.replace(request_for, cache_dir=tmp_path, gpu_layers=1)
    moments = MomentsRequest(measure=survey, groups=("blk.0.attn_q.weight",))
    with reused_workers():
        for task in (("survey", survey), ("moments", moments)):
            run_task(*task, ignore, never)
            assert not runs(pids[-1])
    assert len(set(pids)) == 2


def test_one_that_failed_or_died_meanwhile_is_replaced(tmp_path, pids):
    with reused_workers():
        with pytest.raises(TesseraError):
            run_task(*prepare(tmp_path, tmp_path), ignore, never)
        assert not runs(pids[0])
        found = run_task(*prepare(tmp_path), ignore, never)
        os.kill(pids[1], signal.SIGKILL)
        # The main thread ends before the others, and the system notifies the parent only after the last one.
        os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)
        assert run_task(*prepare(tmp_path), ignore, never) == found
    assert len(set(pids)) == 3


def test_one_that_dies_in_its_second_task_is_told_by_that_ones_name(tmp_path, pids):
    with reused_workers():
        run_task(*prepare(tmp_path), ignore, never)
        second = child.Child(*prepare(tmp_path))
        assert second.pid == pids[0]
        os.kill(second.pid, signal.SIGKILL)
        with pytest.raises(ChildDied, match="prepare") as told:
            wait_for(second.poll, what="its end")
        assert told.value.exit_code == -signal.SIGKILL


def test_a_processor_of_another_arithmetic_has_processes_of_its_own(tmp_path, pids, monkeypatch):
    with reused_workers():
        run_task(*prepare(tmp_path), ignore, never)
        monkeypatch.setattr(child, "environment_of", lambda _request: {"OPENBLAS_CORETYPE": "Haswell"})
        run_task(*prepare(tmp_path), ignore, never)
    assert len(set(pids)) == 2
