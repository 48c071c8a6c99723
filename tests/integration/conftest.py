from pathlib import Path

import pytest

from tests.support.fakes.scripted import ScriptedServer

TEMPLATES = Path(__file__).resolve().parent.parent / "data" / "templates"


@pytest.fixture
def scripted(tmp_path):
    server = ScriptedServer(tmp_path / "home")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def _qwen(tmp_path_factory):
    """Thinks in <think> blocks and calls tools as Hermes models do."""
    template = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text("utf-8")
    server = ScriptedServer(tmp_path_factory.mktemp("qwen"), template=template)
    yield server
    server.stop()


@pytest.fixture
def qwen(_qwen):
    """The same server for a module's tests; what earlier tests left unsaid is dropped."""
    _qwen.forget()
    return _qwen
