"""What every test relies on: folders of its own, loopback only, and one real server for those that ask."""

import functools
import gc
import inspect
import itertools
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpcore2
import httpx2
import pytest
from hypothesis import HealthCheck, settings

from installers.bootstrap import model
from tests.support.servers import RunningServer

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# What start.py installed beside the sources is no part of a test that does not ask for it.
os.environ["TESSERA_INSTALLED_MODELS"] = "/nonexistent/models"
# Threads of a model that wait for each other sleep: tests at once on few cores would spin most of the time away.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# numpy's would still spin, ten times as long as small matrices take to multiply.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent

pytest_plugins = tuple(f"tests.support.plugins.{name}" for name in ("quick", "order", "costs", "second_run"))

# A request that says nothing else waits so many seconds, not five: four tests at once on two processors take their
# time, and how fast an answer comes is measured in tests/bench.
for part in ("connect", "read", "write", "pool"):
    setattr(inspect.signature(httpx2.get).parameters["timeout"].default, part, 60.0)

# Roots of trust take 20 ms of processor to read, and every request by itself reads them.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

# Property tests draw the same examples in every run; tests/optin/random_seeds.py draws others, and more. How
# long an example takes says how busy the computer is.
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
    """What is imported and collected is no garbage: some millions of objects, which nobody needs to go through."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths that nobody has; `mktemp` would look through all folders of before for the number of the next."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def tessera_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has folders of its own."""
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("TESSERA_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The bundled model's file."""
    return ROOT / "assets" / "models" / "spark-f16.gguf"


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct, the model of a fresh machine: a verified file in the cache. Do not write to it."""
    try:
        return Path(model.fetch(sys.executable, str(ROOT / "installers" / "lock" / "model.txt")))
    except RuntimeError as error:
        pytest.skip(f"the real model is not here and cannot be fetched: {error}")


@pytest.fixture(scope="session")
def installed_model(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation with that model, for `TESSERA_INSTALLED_MODELS`."""
    venv = tmp_path_factory.mktemp("installation")
    model.install(str(real_model), str(venv), str(ROOT))
    return Path(model.folder(str(venv)))


@pytest.fixture(scope="module")
def kept() -> Iterator[None]:
    """Jobs of a file share the processes that measure and round, as the tasks of one job do."""
    from quantize.child import reused_workers

    with reused_workers():
        yield


@pytest.fixture(scope="module")
def few_types() -> Iterator[None]:
    """Jobs measure six types."""
    from tests.support.models.measured_model import TYPES, measured_types

    with measured_types(*TYPES):
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A real server process with the bundled model, shared by the tests of a session that do not harm it."""
    running = RunningServer(tmp_path_factory.mktemp("server-home"))
    yield running
    running.stop()


def pytest_unconfigure() -> None:
    """llama_cpp opens the null device on import and never closes it; the warning would follow the summary."""
    opened = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        if opened is not None and hasattr(opened, name):
            getattr(opened, name).close()
