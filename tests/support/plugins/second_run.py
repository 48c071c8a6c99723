"""`--second-run`: runs failed tests twice more, one after another, and reports flaky ones by name.

A test that fails once and then passes twice says nothing about the current change, but it reveals a race. The run
is green, and the summary and a file name the test with its first failure in full. If a test fails again, or more
than `MOST_FAILURES` tests fail, the run stays red.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MOST_FAILURES = 8  # more mean a broken change or machine; all errors of one fixture count as one
RUNS = 2
RECORD = Path("build") / "flaky.jsonl"
RUN_BOUND_S = 3600.0  # of one repeated run; each test also has a time limit
_FIXTURE = "shared_fixture"  # attribute of a report: the failed fixture
CATEGORY = "flaky"
OF_A_WORKER = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST")  # variables that the next process must not inherit


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[object]:
    """Mark the exception of a shared fixture; pytest raises the same one for each of its tests."""
    try:
        return (yield)
    except BaseException as error:  # `pytest.fail` does not raise an Exception
        if fixturedef.scope != "function":
            vars(error).setdefault(_FIXTURE, f"{fixturedef.baseid}::{fixturedef.argname}")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if call.when == "setup" and call.excinfo is not None:
        setattr(report, _FIXTURE, getattr(call.excinfo.value, _FIXTURE, ""))
    return report


class SecondRun:
    """Decides at the end of the first run, and moves the reports of flaky tests to a separate category."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lines: list[str] = []  # output of the repeated runs, if the run stays red
        self._seconds = 0.0

    @property
    def _reporter(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")

    @pytest.hookimpl(trylast=True)  # the workers have ended: their fixtures are gone
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or session.shouldstop:
            return
        failed = self._failed()
        causes = {getattr(report, _FIXTURE, "") or report.nodeid for report in failed}
        if not failed or len(causes) > MOST_FAILURES:
            return
        nodeids = list(dict.fromkeys(report.nodeid for report in failed))
        began = time.monotonic()
        passed = all(self._passes_again(nodeids, run) for run in range(1, RUNS + 1))
        self._seconds = time.monotonic() - began
        if passed:
            self._report_as_flaky(failed)
            session.exitstatus = pytest.ExitCode.OK

    def _failed(self) -> list[pytest.TestReport]:
        return [*self._reporter.stats.get("failed", ()), *self._reporter.stats.get("error", ())]

    def _passes_again(self, nodeids: list[str], run: int) -> bool:
        """Return whether all of them pass in another process; missing or skipped tests count as failed."""
        self._reporter.write_line(
            f"\nrunning {len(nodeids)} failed tests again, one after another ({run} of {RUNS})"
        )
        with tempfile.TemporaryDirectory(prefix="second-run-") as folder:
            cache = Path(folder, "cache")
            (cache / "v" / "cache").mkdir(parents=True)
            (cache / "v" / "cache" / "lastfailed").write_text(json.dumps(dict.fromkeys(nodeids, True)))
            report = Path(folder, "report.xml")
            command = [sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures=none", "-n0"]
            command += ["-o", f"cache_dir={cache}", f"--junit-xml={report}", *_files_of(nodeids)]
            try:
                done = subprocess.run(
                    command,
                    cwd=self._config.rootpath,
                    env={k: v for k, v in os.environ.items() if not k.startswith(OF_A_WORKER)},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=RUN_BOUND_S,
                )
            except subprocess.TimeoutExpired:
                self._lines.append(f"run {run} again: not at its end after {RUN_BOUND_S:.0f} s")
                return False
            counts = _counts(report)
        if done.returncode == 0 and counts["tests"] == len(nodeids) and not counts["skipped"]:
            return True
        self._lines += [f"run {run} again, of {len(nodeids)} tests:", *done.stdout.splitlines()[-200:]]
        return False

    def _report_as_flaky(self, failed: list[pytest.TestReport]) -> None:
        stats = self._reporter.stats
        stats.pop("failed", None)
        stats.pop("error", None)
        stats[CATEGORY] = failed
        record = self._config.rootpath / RECORD
        try:
            record.parent.mkdir(exist_ok=True)
            with record.open("a", encoding="utf-8") as file:
                for report in failed:
                    file.write(json.dumps(_entry(report)) + "\n")
        except OSError as error:
            self._lines.append(f"flaky tests could not be written to {record}: {error}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        flaky = terminalreporter.stats.get(CATEGORY, [])
        if flaky:
            terminalreporter.section("FLAKY TESTS: failed once, then passed twice", sep="=")
            for report in flaky:
                terminalreporter.section(f"{report.nodeid} [{report.when}]", sep="_")
                terminalreporter._outrep_summary(report)
            terminalreporter.section("flaky tests", sep="=")
            for nodeid in dict.fromkeys(report.nodeid for report in flaky):
                terminalreporter.write_line(f"FLAKY {nodeid}")
            terminalreporter.write_line(
                f"Their first failures are in {RECORD}; {self._seconds:.0f} s of further runs."
            )
        for line in self._lines:
            terminalreporter.write_line(line)


def _files_of(nodeids: list[str]) -> list[str]:
    """The test files to collect again."""
    return list(dict.fromkeys(nodeid.partition("::")[0] for nodeid in nodeids))


def _counts(report: Path) -> dict[str, int]:
    """Test counts from the JUnit XML report; zeros if there is none."""
    try:
        head = report.read_text("utf-8", errors="replace")[:2000]
    except OSError:
        head = ""
    found = {name: re.search(rf'<testsuite [^>]*\b{name}="(\d+)"', head) for name in ("tests", "skipped")}
    return {name: int(match[1]) if match else 0 for name, match in found.items()}


def _entry(report: pytest.TestReport) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "test": report.nodeid,
        "when": report.when,
        "fixture": getattr(report, _FIXTURE, ""),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "failure": report.longreprtext,
        "sections": dict(report.sections),
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--second-run", action="store_true", help="run up to 8 failed tests twice more; name flaky ones"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("second_run") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondRun(config), "second run")
