"""Fixtures of the walks: one screen for all, one window and server for walks that leave them unchanged."""

import shutil

import pytest

from tests.gui.walk.screen import PROGRAMS, Screen
from tests.gui.walk.walker import ANSWER_TOKENS, ROOT, Walk
from tests.support.fakes.fake_hub import FakeHub

CROWDED_S = 1800  # a walk of half a minute, with three others on two busy cores


def pytest_collection_modifyitems(items):
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    for item in items:
        if "gui/walk" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.slow)
            own = item.get_closest_marker("timeout")
            if own is None or own.args[0] < CROWDED_S:
                item.add_marker(pytest.mark.timeout(CROWDED_S))
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)} (apt-get install)"))


@pytest.fixture(autouse=True)
def no_leaks():
    """The window is a separate process here; its end is checked by `Walk.close`."""


@pytest.fixture(autouse=True)
def home():
    """Every window has separate folders; see `open_window`."""


@pytest.fixture(scope="session")
def screen():
    made = Screen()
    yield made
    made.close()


@pytest.fixture(scope="session")
def large_screen():
    made = Screen("1920x1080")
    yield made
    made.close()


@pytest.fixture(scope="session")
def hub():
    """A hub with one small downloadable model, over HTTP."""
    with FakeHub() as running:
        raw = (ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()
        based = {"license": "apache-2.0", "base_model": "org/Other-GGUF"}
        running.add("org/Spark-GGUF", {"spark-Q4_K_M.gguf": raw}, gguf={"total": 8_400_000}, card=based)
        running.add("org/Other-GGUF", {"other-Q8_0.gguf": raw}, gguf={"total": 8_400_000})
        yield running


@pytest.fixture(scope="module")
def open_window(screen, hub, tmp_path_factory):
    """Opens windows; those still open at the end of the module are closed."""
    opened = []

    def open_window(
        env=None,
        on=screen,
        home=None,
        files=(),
        *,
        network=True,
        disk_mib=0,
        answer_tokens=ANSWER_TOKENS,
    ):
        env = {"HF_ENDPOINT": hub.endpoint, **(env or {})}
        where = home or tmp_path_factory.mktemp("walk")
        made = Walk(on, where, env, files, network=network, disk_mib=disk_mib, answer_tokens=answer_tokens)
        opened.append(made)
        made.until("chat.composer.ready")
        return made

    yield open_window
    for made in opened:
        if made.process.poll() is None:
            made.close()


@pytest.fixture(scope="module")
def walk(open_window):
    """The window that the walks of a module share."""
    return open_window()
