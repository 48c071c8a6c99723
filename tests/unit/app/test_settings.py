import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.setting import SettingsError
from app.settings import (
    BY_NAME,
    SETTINGS,
    export,
    given_environment,
    keep_models_folder,
    load,
    save,
)
from engine.core.errors import InputFault
from engine.core.paths import user_paths


def test_defaults_are_valid_and_named_once():
    assert len(BY_NAME) == len(SETTINGS)
    for row in SETTINGS:
        assert row.parse(row.default) == row.default
        assert row.title
        assert row.description


def test_a_change_makes_a_new_object_and_survives_a_restart(tmp_path):
    file = tmp_path / "config" / "settings.toml"
    before = load(file, {})
    after = before.changed("window.theme", "dark").changed("window.text_percent", "125")
    save(after, file)
    assert before["window.theme"] == "system"
    assert load(file, {})["window.theme"] == "dark"
    assert load(file, {}).integer("window.text_percent") == 125
    assert "server" not in file.read_text()


def test_the_environment_wins_and_is_not_written(tmp_path):
    file = tmp_path / "settings.toml"
    settings = load(file, {"TESSERA_SERVER_PORT": "9000"})
    assert settings.integer("server.port") == 9000
    assert settings.fixed == {"server.port"}
    save(settings, file)
    assert "9000" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server.port", 80),
        ("server.port", 2**63),
        ("server.port", "abc"),
        ("server.port", None),
        ("window.text_percent", math.nan),
        ("window.text_percent", math.inf),
        ("window.text_percent", -1),
        ("window.theme", "purple"),
        ("network.offline", "perhaps"),
        ("network.offline", 3),
        ("nothing.here", 1),
        ("chat.system_prompt", 5),
        ("chat.max_tokens", True),
    ],
)
def test_a_bad_value_is_refused_by_name(tmp_path, name, value):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path / "none.toml", {}).changed(name, value)
    assert caught.value.name == name


@pytest.mark.parametrize("content", [b"\xff\xfe broken", b"[window\ntheme", b'window = "text"'])
def test_a_broken_file_costs_no_start(tmp_path, content):
    file = tmp_path / "settings.toml"
    file.write_bytes(content)
    settings = load(file, {})
    assert settings["window.theme"] == "system"


def test_one_bad_row_costs_that_row_only(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('[window]\ntheme = "plaid"\ntext_percent = 150\n[future]\nthing = 3\n')
    settings = load(file, {})
    assert settings["window.theme"] == "system"
    assert settings["window.text_percent"] == 150
    assert [problem.name for problem in settings.problems] == ["window.theme", "future.thing"]
    save(settings.changed("window.theme", "dark"), file)
    assert "thing = 3" in file.read_text(), "rows of a newer version are kept"


COMMENTED = """# mine, do not touch
[window]
theme = "dark"        # at night
text_percent = 100    # the default, said all the same

[future]
thing = 3
[server]
# port of the proxy
port = 9000
"""


def test_a_change_keeps_comments_order_and_everything_else(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(COMMENTED)
    save(load(file, {}).changed("server.port", 9001), file)
    assert file.read_text() == COMMENTED.replace("9000", "9001")
    save(load(file, {}).changed("window.theme", "system").changed("chat.max_tokens", 7), file)
    text = file.read_text()
    assert "# mine, do not touch" in text
    assert "theme" not in text, "what is the default again is not said"
    assert load(file, {}).integer("chat.max_tokens") == 7
    assert load(file, {}).integer("server.port") == 9001


def test_what_the_environment_decides_stays_in_the_file_as_it_is(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(COMMENTED)
    save(load(file, {"TESSERA_SERVER_PORT": "7000"}).changed("chat.max_tokens", 7), file)
    assert load(file, {}).integer("server.port") == 9000


def test_a_file_that_is_no_toml_stays_and_the_line_is_named(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_bytes(b"[window]\ntheme = 'dark\n")
    now = load(file, {})
    assert "line 2" in str(now.problems[0])
    with pytest.raises(SettingsError, match="line 2"):
        save(now.changed("window.theme", "light"), file)
    assert file.read_bytes() == b"[window]\ntheme = 'dark\n"
    assert list(tmp_path.glob("*corrupt*")) == []


@pytest.mark.parametrize(
    ("content", "name", "line"),
    [
        ("# mine\n[server]\nprot = 3\n", "server.prot", 3),
        ("[server]\nport = 9000\n\n[ future ]\n'thing' = 3\n", "future.thing", 5),
        ("port = 9000\n", "port", 1),
        ("server.prot = 9000\n", "server.prot", 1),
        ("\nserver = { port = 9000, prot = 1 }\n", "server.prot", 2),
        ("[server]\n[server.tls]\nkey = 'x'\n", "server.tls", 2),
        ("[window]\ntheme = 'plaid'\n", "window.theme", 2),
        ("[models]\nfolder = 'relative/folder'\n", "models.folder", 2),
        ("[chat]\nmax_tokens = '5'\n", "chat.max_tokens", 2),
        ("[network]\noffline = 'true'\n", "network.offline", 2),
        ("[server]\nport = 18600.5\n", "server.port", 2),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(tmp_path, content, name, line):
    file = tmp_path / "settings.toml"
    file.write_text(content)
    (problem,) = load(file, {}).problems
    assert problem.name == name
    assert problem.where == f"{file}, line {line}"


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("TESSERA_SERVER_PROT", "5", "no setting has this name. Did you mean TESSERA_SERVER_PORT?"),
        ("TESSERA_MODELS_NOSUCH_THING", "5", "no setting has this name."),
        ("TESSERA_SERVER_PORT", "18600.5", "must be a number"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(tmp_path, variable, text, says):
    (problem,) = load(tmp_path / "none", {variable: text, "TESSERA_HOME": "x", "TESSERA_SERVER": "y"}).problems
    assert str(problem).startswith(f"environment variable {variable}: ")
    assert says in str(problem)


def test_an_empty_variable_is_unset_unless_it_is_text(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('[server]\nport = 9000\n[models]\ncache_type = "q8_0"\n[chat]\nsystem_prompt = "Be brief."\n')
    empty = ("TESSERA_SERVER_PORT", "TESSERA_MODELS_CACHE_TYPE", "TESSERA_CHAT_SYSTEM_PROMPT")
    now = load(file, dict.fromkeys(empty, ""))
    assert now.problems == ()
    assert (now["server.port"], now["models.cache_type"], now["chat.system_prompt"]) == (9000, "q8_0", "")
    assert now.fixed == {"chat.system_prompt"}


def test_a_file_of_windows_editor_and_a_choice_in_capitals_are_read(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_bytes(b'\xef\xbb\xbf[models]\r\ncache_type = "Q8_0"\r\n')
    now = load(file, {})
    assert (now.problems, now["models.cache_type"]) == ((), "q8_0")
    save(now.changed("server.port", 9000), file)
    assert load(file, {})["server.port"] == 9000


def test_a_file_is_no_folder_of_models(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(SettingsError, match="is a file"):
        load(tmp_path / "none", {}).changed("models.folder", str(tmp_path / "model.gguf"))


def test_a_folder_of_models_is_used_by_this_process_and_its_children(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_MODELS_FOLDER", str(tmp_path / "by-environment"))
    assert user_paths().models == tmp_path / "by-environment"
    assert load(tmp_path / "none.toml").text("models.folder") == str(tmp_path / "by-environment")
    monkeypatch.delenv("TESSERA_MODELS_FOLDER")
    export(load(tmp_path / "none.toml", {}).changed("models.folder", str(tmp_path / "by-file")))
    assert user_paths().models == tmp_path / "by-file"
    monkeypatch.delenv("TESSERA_MODELS_FOLDER")


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_file(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("s") / "settings.toml"
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    save(load(file, {}).changed("chat.system_prompt", text), file)
    assert load(file, {})["chat.system_prompt"] == text


def test_the_folder_of_a_move_is_stored_unless_the_environment_names_another(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_MODELS_FOLDER", "")  # restored at the end, although the code sets it
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    monkeypatch.delenv("TESSERA_MODELS_FOLDER", raising=False)
    keep_models_folder(None)
    assert load()["models.folder"] == ""
    keep_models_folder(tmp_path / "first")
    assert load()["models.folder"] == str(tmp_path / "first")
    assert "TESSERA_MODELS_FOLDER" not in given_environment()
    monkeypatch.setenv("TESSERA_MODELS_FOLDER", str(tmp_path / "given"))
    with pytest.raises(InputFault, match="TESSERA_MODELS_FOLDER"):
        keep_models_folder(None)
