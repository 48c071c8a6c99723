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
    """A model that thinks in <think> blocks and calls tools in the Hermes format."""
    template = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text("utf-8")
    server = ScriptedServer(tmp_path_factory.mktemp("qwen"), template=template)
    yield server
    server.stop()


@pytest.fixture
def qwen(_qwen):
    """The shared server, without replies left over from earlier tests."""
    _qwen.forget()
    return _qwen
