import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.settings import BY_NAME, SETTINGS, SettingsError, load, save


def test_defaults_are_valid_and_named_once():
    assert len(BY_NAME) == len(SETTINGS)
    for row in SETTINGS:
        assert row.parse(row.default) == row.default
        assert row.title
        assert row.description


def test_a_change_makes_a_new_object_and_survives_a_restart(tmp_path):
    file = tmp_path / "config" / "settings.toml"
    before = load(file, {})
    after = before.changed("window.theme", "dark").changed("chat.temperature", "0.25")
    save(after, file)
    assert before["window.theme"] == "system"
    assert load(file, {})["window.theme"] == "dark"
    assert load(file, {}).number("chat.temperature") == 0.25
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
        ("chat.temperature", math.nan),
        ("chat.temperature", math.inf),
        ("chat.temperature", -1),
        ("window.theme", "purple"),
        ("network.offline", "perhaps"),
        ("network.offline", 3),
        ("nothing.here", 1),
        ("chat.system_prompt", 5),
        ("chat.top_k", True),
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
    assert [problem.name for problem in settings.problems] == ["window.theme"]
    save(settings.changed("window.theme", "dark"), file)
    assert "thing = 3" in file.read_text(), "rows of a newer version are kept"


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
