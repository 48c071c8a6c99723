"""Terminal and window with a server on another computer, simulated by another process with another home."""

import os
import subprocess
import sys

import pytest

from app.client import ServerUnreachable
from app.client.remote_server import RemoteServer, parts_of
from engine.core.paths import user_paths
from tests.support.servers import ROOT, RunningServer


def tessera(home, *arguments, **environment):
    env = {**os.environ, "TESSERA_HOME": str(home), "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT, env={**env, **environment}, capture_output=True, text=True, timeout=100, input="",
    )  # fmt: skip


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """A server that accepts other computers, with a key for management."""
    home = tmp_path_factory.mktemp("far")
    made = tessera(home, "keys", "add", "me", "--manage")
    assert made.returncode == 0, made.stderr
    running = RunningServer(home)
    running.key = made.stdout.strip()
    yield running
    running.stop()


def test_connect_chat_and_back(far, tessera_home):
    link = f"{far.url}/chat#key={far.key}"
    said = tessera(tessera_home, "connect", link)
    assert said.returncode == 0, said.stderr
    assert f"Connected to {far.url}" in said.stdout
    assert (tessera_home / "config" / "connected-key.json").stat().st_mode & 0o777 == 0o600
    listed = tessera(tessera_home, "upstreams", "list")
    assert listed.returncode == 0, listed.stderr
    assert not (tessera_home / "state" / "server.json").exists()  # no local server was started
    assert far.key not in listed.stdout + said.stdout
    assert "Connected to" in tessera(tessera_home, "connect").stdout
    assert tessera(tessera_home, "connect", "--off").returncode == 0
    assert RemoteServer(user_paths()).url == ""


def test_a_wrong_key_and_a_server_that_is_gone_are_told(far, tessera_home):
    wrong = tessera(tessera_home, "connect", f"{far.url}/chat#key=tsr_wrong")
    assert wrong.returncode != 0
    assert "not valid" in wrong.stderr
    assert RemoteServer(user_paths()).url == ""  # nothing was stored
    gone = tessera(tessera_home, "upstreams", "list", TESSERA_SERVER="http://127.0.0.1:9")
    assert gone.returncode != 0
    assert "No Tessera server answers at http://127.0.0.1:9" in gone.stderr


def test_the_window_uses_it(far, monkeypatch):
    from app.gui.server_link import ServerLink

    monkeypatch.setenv("TESSERA_SERVER", f"{far.url}/chat#key={far.key}")
    link = ServerLink()
    assert link.start("127.0.0.1", 1) == far.url
    assert link.remote
    assert not link.owned
    assert "spark" in " ".join(m.id for m in link.chat_models())
    link.stop()  # does not end it
    assert far.process.poll() is None
    monkeypatch.setenv("TESSERA_SERVER", "http://127.0.0.1:9")
    with pytest.raises(ServerUnreachable):
        ServerLink().start("127.0.0.1", 1)


def test_the_phones_link(far, tmp_path):
    hidden = tessera(far.home, "phone")
    assert hidden.returncode != 0
    assert "tessera serve --host" in hidden.stderr  # only reachable from this computer
    server = RunningServer(tmp_path, "--host", "127.0.0.2", "--allow-host", "127.0.0.2")
    try:
        shown = tessera(tmp_path, "phone")
        assert shown.returncode == 0, shown.stderr
        assert f"{server.url}/chat#key=tsr_" in shown.stdout
        assert shown.stdout.count("█") > 50
        again = tessera(tmp_path, "phone")
        assert "tessera phone --name NAME" in again.stderr
    finally:
        server.stop()
    assert parts_of("http://10.0.0.1:7373/chat#key=tsr_a") == ("http://10.0.0.1:7373", "tsr_a")
    assert parts_of("http://10.0.0.1:7373/v1/") == ("http://10.0.0.1:7373", None)
