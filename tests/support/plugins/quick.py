"""The quick run, `--quick`: quick unit tests. They may not start a process, open Qt or load native code.

Unit tests may not start processes in any run, except for tests with the mark `process`. Qt and native libraries are
only forbidden in the quick run, because in a complete run other tests of the same worker have loaded them.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

UNIT = Path(__file__).resolve().parents[2] / "unit"
# An audit hook would see all starts, but it is called for every event: 3 % of the time of the window's tests.
STARTS: tuple[tuple[Any, str], ...] = (
    (subprocess.Popen, "__init__"),
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "system")),
)
NATIVE = ("PySide6", "ggml", "llama_cpp", "onnxruntime", "onnxruntime_genai", "openvino")
STARTING, LOADING, SLOW = "process", "native", "slow"


class _Gate:
    """Whether the running test may start processes."""

    is_closed = False


_gate = _Gate()


def _guarded(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def guarded(*arguments: Any, **options: Any) -> Any:
        if _gate.is_closed:
            name = start.__qualname__.removesuffix(".__init__")
            pytest.fail(f"a unit test starts no process ({name}): tests/integration, or @pytest.mark.{STARTING}")
        return start(*arguments, **options)

    return guarded


def _audit_imports(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse native libraries. Checking whether a library is installed is not an import."""
    if event == "import" and str(arguments[0]).partition(".")[0] in NATIVE:
        pytest.fail(f"the quick run does without {arguments[0]}: @pytest.mark.{LOADING}")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.addoption("--quick", action="store_true", help="unit tests without processes, Qt and native libraries")
    if pluginmanager.is_blocked("pytest-qt"):  # disabled by the user; its settings stay in pyproject.toml
        parser.addini("qt_api", "of pytest-qt")
        parser.addini("qt_log_level_fail", "of pytest-qt")
        parser.addini("qt_log_ignore", "of pytest-qt", type="linelist")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Unregister pytest-qt, which opens Qt before any test, even if no test needs it."""
    if config.getoption("--quick") and config.pluginmanager.has_plugin("pytest-qt"):
        config.pluginmanager.unregister(name="pytest-qt")


def pytest_configure(config: pytest.Config) -> None:
    for owner, name in STARTS:
        if hasattr(owner, name):
            setattr(owner, name, _guarded(getattr(owner, name)))
    if config.getoption("--quick"):
        sys.addaudithook(_audit_imports)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("--quick") or collection_path in UNIT.parents or collection_path.is_relative_to(UNIT):
        return None
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    left_out, kept = [], []
    for item in items:
        (left_out if any(map(item.get_closest_marker, (STARTING, LOADING, SLOW))) else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _gate.is_closed = item.path.is_relative_to(UNIT) and item.get_closest_marker(STARTING) is None
    try:
        return (yield)
    finally:
        _gate.is_closed = False
