"""Divides the rewriting of test files among the workers of a parallel run.

Every worker of pytest-xdist collects all tests. pytest rewrites the assertions of each file and stores the result
as bytecode, which takes 11 s of CPU time for all files, and in a new clone all workers would do that at the same
time. With this plugin, each worker first imports its share of the files; most others are bytecode when it collects.
"""

import os
from pathlib import Path

import pytest
from _pytest.pathlib import ImportMode, import_path

TESTS = Path(__file__).resolve().parents[2]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this worker's share. What cannot be imported is reported by the collection."""
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or [Path(path).resolve() for path in config.args] != [TESTS]:
        return
    groups = ("unit",) if config.getoption("--quick") else ("e2e", "faults", "gui", "integration", "real", "unit")
    files = sorted(file for group in groups for file in (TESTS / group).rglob("test_*.py"))
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in files[int(worker["workerid"].removeprefix("gw")) :: workers]:
        try:
            import_path(file, mode=ImportMode.importlib, root=config.rootpath, consider_namespace_packages=False)
        except Exception:
            continue
