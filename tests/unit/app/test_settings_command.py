import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.cli.settings import command

ROOT = Path(__file__).resolve().parents[3]


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
    assert "did you mean window.theme?" in run("set", "window.them", "x").output
    assert "did you mean models.context?" in run("set", "context", "8192").output
    assert "`tessera settings list` shows all" in run("set", "nope", "1").output
    assert "system, light, dark" in run("set", "window.theme", "plaid").output
    assert "at least 1024" in run("set", "server.port", "80").output
    monkeypatch.setenv("TESSERA_SERVER_PORT", "9000")
    result = run("set", "server.port", "9001")
    assert result.exit_code != 0
    assert "TESSERA_SERVER_PORT" in result.output


def test_the_case_of_a_name_does_not_matter_for_its_suggestion_and_a_value_may_begin_with_a_hyphen(run):
    assert "did you mean window.theme?" in run("get", "Window.THEME").output
    assert "at least 0, not -5" in run("set", "chat.max_tokens", "-5").output
    assert run("set", "chat.system_prompt", "- Answer briefly.").exit_code == 0
    assert run("get", "chat.system_prompt").output.strip() == "- Answer briefly."


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("max_tokens = true", "must be a number, not true"),
        ("max_tokens = 2026-01-01", "must be a number, not 2026-01-01"),
        ("max_tokens = [5]", "must be a number, not [5]"),
        ("fold = 'maybe'", "must be true or false without quotes, not 'maybe'"),
    ],
)
def test_a_wrong_value_is_shown_as_the_file_writes_it(run, tmp_path, line, shown):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings.toml").write_text(f"[chat]\n{line}\n")
    assert shown in run("get", "chat.fold").output


def test_the_list_shows_values_default_and_variable(run):
    shown = run("list").output
    assert '[system, light, dark; default "system"; TESSERA_WINDOW_THEME]' in shown
    assert "[1024 to 65535; default 7373; TESSERA_SERVER_PORT]" in shown
    assert "[true, false; default false; TESSERA_NETWORK_OFFLINE]" in shown


@pytest.mark.parametrize(
    "words", [("models", "list"), ("serve", "--port", "0"), ("settings", "get", "server.port")]
)
def test_a_file_with_a_mistake_is_an_error_with_its_line(tmp_path, monkeypatch, words):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings.toml").write_text("[server]\nport = 9000\nprot = 3\n")
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert (
        "settings.toml, line 3: server.prot: there is no such setting; did you mean server.port?" in result.output
    )


def test_a_file_that_is_no_toml_is_not_overwritten(run, tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings.toml").write_text("[server\n")
    result = run("set", "server.port", "9000")
    assert result.exit_code == 2
    assert "line 1" in result.output
    assert (tmp_path / "config" / "settings.toml").read_text() == "[server\n"


def test_options_of_serve_come_from_settings_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings.toml").write_text(
        "[models]\ncontext = 512\nparallel = 2\nkeep_alive = 0\ncache_type = 'q8_0'\n"
    )
    monkeypatch.setenv("TESSERA_MODELS_PARALLEL", "3")
    seen = []
    monkeypatch.setattr("engine.server.run.serve", seen.append)
    assert CliRunner().invoke(cli, ["serve", "--kv", "f16"]).exit_code == 0
    assert seen[0].context == 512
    assert seen[0].overrides.n_parallel == 3
    assert seen[0].overrides.type_k == "f16"
    assert seen[0].ttl_s is None
    assert seen[0].overrides.device is None
    assert seen[0].max_models is None
    assert "[default: 512; setting models.context" in " ".join(
        CliRunner().invoke(cli, ["serve", "--help"]).output.split()
    )


def commands(group, path=()):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_option_with_a_default_shows_it():
    missing = []
    for path, found in commands(cli):
        context = click.Context(found, show_default=True)
        for option in found.params:
            if not isinstance(option, click.Option) or option.hidden or option.multiple:
                continue
            default = option.to_info_dict()["default"]
            if default not in {None, False, ""} and "default" not in option.get_help_record(context)[1]:
                missing.append((" ".join(path), option.name, default))
    assert missing == []


def test_the_window_without_a_display_says_so(monkeypatch):
    from app.cli.window import command as window

    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(window)
    assert result.exit_code == 4
    assert "tessera chat" in result.output


def test_help_and_doctor_work_with_an_error_in_the_settings(tmp_path, monkeypatch):
    """These commands help with a broken file: the error is printed, and defaults are used."""
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings.toml").write_text("[server]\nprot = 3\n")
    for words in (["doctor", "--help"], ["logs"]):
        monkeypatch.setattr("sys.argv", ["tessera", *words])
        result = CliRunner().invoke(cli, words)
        assert "line 2: server.prot: there is no such setting" in result.output
        assert "The default is used." in result.output
        assert result.exit_code != 2, result.output
    monkeypatch.setattr("sys.argv", ["tessera", "models", "list"])
    assert CliRunner().invoke(cli, ["models", "list"]).exit_code == 2


def test_reset_returns_to_the_defaults_also_from_a_value_that_is_invalid(run, tmp_path):
    file = tmp_path / "config" / "settings.toml"
    run("set", "window.theme", "dark")
    run("set", "chat.max_tokens", "5")
    file.write_text(file.read_text() + "# mine\n[models]\ncontext = 16384\n")
    assert run("reset", "window.theme", "chat.max_tokens").exit_code == 0
    assert run("get", "window.theme").output.strip() == "system"
    assert "max_tokens" not in file.read_text()
    assert run("get", "models.context").output.strip() == "16384"
    assert "# mine" in file.read_text()
    unknown = run("reset", "models.contxt")
    assert unknown.exit_code == 2
    assert "models.context" in unknown.output
    assert run("reset").exit_code == 2


def test_a_folder_in_the_place_of_the_file_is_one_sentence(in_process, monkeypatch, tmp_path):
    """The whole command, because main() formats file errors."""
    (tmp_path / "config" / "settings.toml").mkdir(parents=True)
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    done = in_process("settings", "set", "chat.max_tokens", "5")
    assert done.returncode == 4
    assert done.stderr == f"tessera: {tmp_path / 'config' / 'settings.toml'}: Is a directory.\n"
