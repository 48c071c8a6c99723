import pytest
from scripted import ScriptedServer


@pytest.fixture
def scripted(tmp_path):
    server = ScriptedServer(tmp_path / "home")
    yield server
    server.stop()
