"""`tessera serve` reads host, port and offline mode from the settings; the command line has priority."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.servers import free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.e2e


@pytest.fixture
def serve(tmp_path):
    """Start `tessera serve` with these settings, environment and arguments; return its URL."""
    started = []

    def start(settings="", environ=(), words=()):
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "settings.toml").write_text(settings)
        env = {**os.environ, "TESSERA_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1", **dict(environ)}
        server = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", *words], cwd=ROOT, env=env, stderr=subprocess.DEVNULL
        )
        started.append(server)
        file = tmp_path / "state" / "server.json"
        wait_for(lambda: file.is_file() or server.poll() is not None, 60, "the server's address")
        return json.loads(file.read_text())

    yield start
    for server in started:
        server.terminate()
        server.wait(60)


def test_the_port_of_the_settings_is_served(serve):
    port = free_port()
    known = serve(f"[server]\nport = {port}\n[network]\noffline = true\n")
    assert known["url"] == f"http://127.0.0.1:{port}"
    answer = httpx2.get(
        f"{known['url']}/tessera/v1/hub/search?text=x",
        headers={"authorization": f"Bearer {known['token']}"},
    )
    assert "offline" in answer.text.lower()


def test_environment_and_command_line_come_first(serve):
    by_file, by_environment, by_word = free_port(), free_port(), free_port()
    known = serve(
        f"[server]\nport = {by_file}\n",
        {"TESSERA_SERVER_PORT": str(by_environment)},
        ("--port", str(by_word)),
    )
    assert known["url"].endswith(f":{by_word}")
