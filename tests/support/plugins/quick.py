"""The quick run, `--quick`: quick unit tests. They may not start a process, open Qt or load native code.

Unit tests may not start processes in any run, except for tests with the mark `process`. Qt and native libraries are
only forbidden in the quick run, because in a complete run other tests of the same worker have loaded them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "unit"
STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"})
NATIVE = ("PySide6", "ggml", "llama_cpp", "onnxruntime", "onnxruntime_genai", "openvino")
STARTING, LOADING, SLOW = "process", "native", "slow"


class _Gate:
    """Restrictions for the running test. Checking whether a library is installed is not an import."""

    def __init__(self) -> None:
        self.starts = False
        self.imports = False

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.starts and event in STARTS:
            pytest.fail(f"a unit test starts no process ({event}): tests/integration, or @pytest.mark.{STARTING}")
        if self.imports and event == "import" and str(arguments[0]).partition(".")[0] in NATIVE:
            pytest.fail(f"the quick run does without {arguments[0]}: @pytest.mark.{LOADING}")


_gate = _Gate()


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
    sys.addaudithook(_gate.audit)
    _gate.imports = config.getoption("--quick")


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
    _gate.starts = item.path.is_relative_to(UNIT) and item.get_closest_marker(STARTING) is None
    try:
        return (yield)
    finally:
        _gate.starts = False
