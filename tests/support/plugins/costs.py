"""Extends `--durations=N` with the CPU time of each test file, including running and ended child processes.

On a shared machine, wall time depends on other users, while CPU time is what a file takes from all others. Time
that a file waits (wall time minus CPU time) only matters if too few other files run meanwhile.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

STARTS = frozenset({"subprocess.Popen", "os.fork"})
_OUT = "costs"  # key of the data that a pytest-xdist worker returns
_LEAST_S = 0.005  # like pytest's own --durations-min


@dataclass
class Cost:
    """Cost of one file: test time, CPU seconds here and in child processes, and started processes."""

    seconds: float = 0.0
    here: float = 0.0
    children: float = 0.0
    starts: int = 0


def _spent() -> tuple[float, float]:
    """CPU seconds of this process, and of all its child processes, running and ended."""
    own = os.times()
    children = own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            told = child.cpu_times()
        except psutil.Error:
            continue
        children += told.user + told.system + told.children_user + told.children_system
    return own.user + own.system, children


class Costs:
    """Sums up costs per file, and for collection; workers send theirs to the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._began = config, time.monotonic()
        self._by_file: dict[str, Cost] = {}
        self._file, self._starts, self._before = "", 0, (0.0, 0.0)
        # Workers report their own time.
        self._leads = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _arguments: tuple[object, ...]) -> None:
        self._starts += event in STARTS

    def _turn_to(self, file: str) -> Cost:
        """Attribute all costs from now on to that file."""
        if file != self._file and not self._leads:
            now = _spent()
            if self._file:
                cost = self._by_file[self._file]
                cost.here += now[0] - self._before[0]
                cost.children += max(0.0, now[1] - self._before[1])  # a child without a wait() is lost
                cost.starts += self._starts
            self._file, self._starts, self._before = file, 0, now
        return self._by_file.setdefault(file, Cost())

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        cost, began = self._turn_to("(collecting)"), time.monotonic()
        try:
            return (yield)
        finally:
            cost.seconds += time.monotonic() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        cost, began = self._turn_to(item.nodeid.partition("::")[0]), time.monotonic()
        try:
            return (yield)
        finally:
            cost.seconds += time.monotonic() - began

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._turn_to("(ending)")
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUT] = {file: vars(cost) for file, cost in self._by_file.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for file, told in getattr(node, "workeroutput", {}).get(_OUT, {}).items():
            mine = self._by_file.setdefault(file, Cost())
            for name, amount in told.items():
                setattr(mine, name, getattr(mine, name) + amount)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        whole = Cost(**{name: sum(getattr(c, name) for c in self._by_file.values()) for name in vars(Cost())})
        cores, seconds = os.cpu_count() or 1, time.monotonic() - self._began
        share = (whole.here + whole.children) / (cores * seconds)
        terminalreporter.section("processor seconds by file: here, in children (started), in how many seconds")
        terminalreporter.write_line(f"{share:.0%} of {cores} cores in {seconds:.0f} s")
        ordered = sorted(self._by_file.items(), key=lambda pair: -pair[1].here - pair[1].children)
        most = self._config.getoption("durations") or len(ordered)
        for file, cost in [("all", whole), *ordered[:most]]:
            if cost.here + cost.children > _LEAST_S:
                terminalreporter.write_line(
                    f"{cost.here:9.2f} {cost.children:9.2f} ({cost.starts}) {cost.seconds:9.2f}s {file}"
                )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("durations") is not None:
        config.pluginmanager.register(Costs(config), "costs of files")
