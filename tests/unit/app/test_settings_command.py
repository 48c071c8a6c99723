import json

import pytest
from click.testing import CliRunner

from app.cli.settings import command


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    return lambda *words: CliRunner().invoke(command, words)


def test_a_setting_is_set_and_read_back(run):
    assert run("set", "window.theme", "dark").exit_code == 0
    assert run("get", "window.theme").output.strip() == "dark"
    assert json.loads(run("list", "--json").output)["window.theme"] == "dark"
    assert run("path").output.strip().endswith("settings.toml")


def test_a_wrong_name_or_value_says_what_is_right(run, monkeypatch):
    assert "did you mean window.theme" in run("set", "window.them", "x").output
    assert "system, light, dark" in run("set", "window.theme", "plaid").output
    assert "at least 1024" in run("set", "server.port", "80").output
    monkeypatch.setenv("TESSERA_SERVER_PORT", "9000")
    result = run("set", "server.port", "9001")
    assert result.exit_code != 0
    assert "TESSERA_SERVER_PORT" in result.output


def test_the_window_without_a_display_says_so(monkeypatch):
    from app.cli.window import command as window

    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(window)
    assert result.exit_code == 1
    assert "tessera chat" in result.output
