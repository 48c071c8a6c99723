"""A cancelled search deletes its own record, and no other."""

import pytest

from engine.core.errors import Cancelled
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.measure.target import Subject
from engine.job_kinds.measure.work import BenchService, Task, TuneOptions, run
from engine.jobs.jobs import JobContext
from engine.placement.measurements import TrialOutcome, TrialSize, TunableSettings, TuneTrial
from tests.support.fakes.scripted import home_paths

BUDGET = TrialSize(prompt=8, answer=2, repeats=1)


@pytest.fixture
def service(tmp_path):
    return BenchService(home_paths(tmp_path), placer=None, admission=None, open_catalogue=None)


def begun(service, model, length, goal="speed"):
    """The record of an interrupted search."""
    path = service.journal("machine", model, length, goal)
    Journal(path, model).end(
        TuneTrial(knobs=TunableSettings(n_threads=2), budget=BUDGET, outcome=TrialOutcome(cost_s=1.0))
    )
    return path


def test_a_search_that_is_cancelled_before_it_begins_leaves_those_of_others(service):
    own = [begun(service, "mine", length) for length in (512, 2048)]
    others = [begun(service, "mine", 1512), begun(service, "mine", 512, "energy"), begun(service, "other", 512)]
    nameless = begun(service, "", 512)  # written before records had names
    control = JobContext()
    control.ask("cancelled")
    options = TuneOptions(subject=Subject(model="mine"), lengths=(512, 2048))
    with pytest.raises(Cancelled):
        run(service, Task(what="tune", tune=options), control)
    assert [path.exists() for path in own] == [False, False]
    assert [path.exists() for path in (*others, nameless)] == [True] * 4


def test_a_record_keeps_its_name_and_an_older_one_is_read(service):
    path = begun(service, "mine", 512)
    assert (Journal(path).model, len(Journal(path).trials)) == ("mine", 1)
    lines = [line for line in path.read_bytes().splitlines() if b'"head"' not in line]
    path.write_bytes(b"\n".join(lines))
    old = Journal(path, "mine")
    assert (old.model, len(old.trials)) == ("mine", 1)
