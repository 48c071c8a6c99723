"""`--second-run` on small separate suites: flaky tests, red runs, and the end of the summary."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.plugins.second_run import OF_A_WORKER

ROOT = Path(__file__).resolve().parents[2]
# Each run of the process adds a line, so a test knows its run number.
RUN = """
import os, pathlib, pytest
COUNT = pathlib.Path("runs")
if "PYTEST_XDIST_WORKER" not in os.environ:
    COUNT.write_text(COUNT.read_text() + "x" if COUNT.exists() else "x")
def run():
    return len(COUNT.read_text())
"""


def suite(folder, text, *arguments):
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -ra -p xdist\n")
    (folder / "conftest.py").write_text(RUN)
    (folder / "test_it.py").write_text("import pytest\nfrom conftest import run\n" + text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.plugins.second_run", "--second-run", *arguments],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(OF_A_WORKER)},
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )


def runs(folder):
    return len((folder / "runs").read_text())


@pytest.mark.parametrize("arguments", [(), ("-n", "2", "--dist", "loadfile")], ids=["alone", "workers"])
def test_a_test_that_fails_once_is_flaky_and_the_run_is_green(tmp_path, arguments):
    done = suite(
        tmp_path,
        "def test_good(): pass\n"
        "def test_bad():\n    print('seen before')\n    assert run() > 1, 'the first failure'\n",
        *arguments,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs(tmp_path) == 3
    last = done.stdout.strip().splitlines()[-1]
    assert "1 passed" in last
    assert "1 flaky" in last
    assert "failed" not in last
    assert "FLAKY test_it.py::test_bad" in done.stdout
    assert "the first failure" in done.stdout, "in full"
    (entry,) = map(json.loads, (tmp_path / "build" / "flaky.jsonl").read_text().splitlines())
    assert entry["test"] == "test_it.py::test_bad"
    assert "the first failure" in entry["failure"]
    assert "seen before" in str(entry["sections"])


@pytest.mark.parametrize(
    ("fails", "whole_runs"),
    [("True", 2), ("run() != 2", 3), ("run() < 3 and pytest.skip('not now') if run() == 2 else run() == 1", 2)],
    ids=["always", "in the third", "skipped in the second"],
)
def test_a_test_that_does_not_pass_twice_leaves_the_run_red(tmp_path, fails, whole_runs):
    done = suite(tmp_path, f"def test_bad():\n    assert not ({fails})\n")
    assert done.returncode == 1, done.stdout
    assert runs(tmp_path) == whole_runs
    assert "1 failed" in done.stdout.strip().splitlines()[-1]
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(("failures", "code"), [(8, 0), (9, 1)])
def test_more_than_eight_failures_are_not_run_again(tmp_path, failures, code):
    text = f"@pytest.mark.parametrize('n', range({failures}))\ndef test_bad(n):\n    assert run() > 1\n"
    done = suite(tmp_path, text)
    assert done.returncode == code, done.stdout
    assert runs(tmp_path) == (1 if code else 3)


@pytest.mark.parametrize(
    ("scope", "code", "arguments"),
    [("session", 0, ()), ("session", 0, ("-n", "2", "--dist", "load")), ("function", 1, ())],
)
def test_the_errors_of_a_shared_fixture_are_one_failure(tmp_path, scope, code, arguments):
    text = f"""
@pytest.fixture(scope={scope!r})
def shared():
    assert run() > 1, "the display is gone"

@pytest.mark.parametrize("n", range(20))
def test_it(shared, n):
    pass
"""
    done = suite(tmp_path, text, *arguments)
    assert done.returncode == code, done.stdout
    assert ("20 flaky" if code == 0 else "20 errors") in done.stdout.strip().splitlines()[-1]


def test_a_fixture_that_fails_at_its_end_is_flaky_too(tmp_path):
    text = """
@pytest.fixture(scope="module")
def shared():
    yield
    assert run() > 1, "the server did not end"

def test_one(shared): pass
def test_two(shared): pass
"""
    done = suite(tmp_path, text)
    assert done.returncode == 0, done.stdout
    assert "1 flaky" in done.stdout.strip().splitlines()[-1]
    assert "the server did not end" in done.stdout
    assert runs(tmp_path) == 3


def test_a_suite_that_cannot_be_collected_is_red_at_once(tmp_path):
    done = suite(tmp_path, "import missing_module\n")
    assert done.returncode == 2, done.stdout
    assert runs(tmp_path) == 1


def test_a_process_that_crashes_does_not_stop_the_others(tmp_path):
    """With workers it gives back all its files, also the one that it has run."""
    (tmp_path / "test_done.py").write_text("".join(f"def test_{n}(): pass\n" for n in "abc"))
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    done = suite(
        tmp_path,
        "import os\ndef test_bad():\n    os.environ.get('PYTEST_XDIST_WORKER') == 'gw0' and os._exit(3)\n"
        "def test_good(): pass\n",
        "-p", "tests.support.plugins.order", "-n", "1", "--dist", "loadfile",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FLAKY test_it.py::test_bad" in done.stdout
    assert "6 passed, 1 flaky" in done.stdout.strip().splitlines()[-1]
