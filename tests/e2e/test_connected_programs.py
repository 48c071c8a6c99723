"""Programs connected by `tessera launch NAME --connect` keep working after the first key is created."""

from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.code.integrations.registry import INTEGRATIONS
from engine.services import EngineFacade
from tests.support.servers import RunningServer

pytestmark = pytest.mark.e2e


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user's home folder without configuration of any program."""
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setattr(Path, "home", lambda: user)
    return user


def tessera(*arguments):
    done = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def written(user):
    return "\n".join(p.read_text() for p in user.rglob("*") if p.is_file() and "backup" not in p.name)


def test_every_program_keeps_its_way_in(tmp_path, tessera_home, user):
    server = RunningServer(tessera_home)
    try:

        def status(key=None, path="/v1/models"):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return httpx2.get(server.url + path, headers=headers).status_code

        tessera("launch", "aider", "--connect", "--dry-run")
        assert EngineFacade().program_keys.names() == ()
        keys = {}
        for name in INTEGRATIONS:
            shown = tessera("launch", name, "--connect", "--yes")
            keys[name] = EngineFacade().program_keys.key(name)
            assert keys[name] in written(user) + shown
            assert server.token not in written(user) + shown
        assert status() == 200, "connected programs do not make keys required"
        own = tessera("keys", "add", "me").splitlines()[0]
        assert status() == 401
        assert {status(key) for key in [own, *keys.values()]} == {200}
        assert status(keys["zed"], "/tessera/v1/jobs") == 403
        started = tessera("launch", "aider", "--dry-run")
        assert f"AIDER_OPENAI_API_KEY={keys['aider']}" in started
        assert keys["aider"] not in started.splitlines()[-1], "others see a command line"
        listed = tessera("keys", "list")
        assert all(name in listed for name in keys)
        tessera("launch", "continue", "--remove", "--yes")
        tessera("keys", "remove", "zed")
        assert status(keys["continue"]) == status(keys["zed"]) == 401
        assert status(keys["aider"]) == 200
        tessera("keys", "remove", "me")
        assert status() == 200
    finally:
        server.stop()


def test_a_program_connected_while_no_server_runs_gets_the_address_of_the_next(tessera_home, user, monkeypatch):
    monkeypatch.setenv("TESSERA_SERVER_PORT", "17999")
    said = tessera("launch", "continue", "--connect", "--yes")
    assert "http://127.0.0.1:17999/v1" in written(user)
    assert "tessera serve" in said
