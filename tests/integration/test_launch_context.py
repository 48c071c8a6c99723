"""`tessera launch` ensures the context that a client needs, or refuses with a plan, before the client starts."""

import json
import os
import stat
import sys

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.client import Client
from app.code.integrations.context_needs import NEEDS, ContextNeed, ContextTooSmall, load_for, need_of
from app.code.integrations.registry import INTEGRATIONS
from engine.api.models import LoadOptions
from tests.support.models.shapes import scaled, write_hollow
from tests.support.servers import RunningServer

SMALL = ContextNeed(least=900, opening=400, source="a test")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    long = scaled("llama", layers=1, vocab=100, context=4096)
    write_hollow(home / "models" / "long.gguf", long)  # only its header is read
    server = RunningServer(home)
    yield server
    server.stop()


@pytest.fixture
def client(running):
    with Client(running.url, running.token) as made:
        yield made


def test_every_agent_has_a_need_with_its_source():
    for name, integration in INTEGRATIONS.items():
        need = need_of(name, integration.kind)
        assert (need is not None) >= (integration.kind == "agent")
        assert need is None or (need.source and need.opening < need.least)
    assert set(NEEDS) <= set(INTEGRATIONS)
    assert need_of("hermes", "agent").least == 64_000


def test_a_model_that_was_trained_for_less_is_refused_before_it_is_loaded(client):
    with pytest.raises(ContextTooSmall) as refused:
        load_for(client, "spark", "Hermes Agent", need_of("hermes", "agent"))
    said = str(refused.value)
    assert "Hermes Agent needs 64,000 tokens of context (its first request alone has about 19,000)" in said
    assert "it was trained for 1,024" in said
    assert "tessera models starters" in said
    assert client.loaded() == ()


def test_one_that_is_loaded_with_less_gets_more_and_what_the_user_chose_stays(client):
    client.set_load_settings("spark", LoadOptions(n_ctx=512))
    with pytest.raises(ContextTooSmall, match=r"you set it to 512\. Ways out:\n  - leave its context to Tessera"):
        load_for(client, "spark", "pi", SMALL)
    client.set_load_settings("spark", LoadOptions())
    assert load_for(client, "spark", "pi", SMALL) == 1024


def test_the_command_of_the_8_bit_offer_sets_the_cache(running, client, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(running.home))
    done = CliRunner().invoke(cli, ["models", "load", "spark", "--kv", "q8_0"])
    assert done.exit_code == 0, done.output
    assert client.load_settings("spark").user.type_k == "q8_0"
    client.set_load_settings("spark", LoadOptions())


def test_a_program_that_is_not_installed_gets_no_key(running, monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HOME", str(running.home))
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(cli, ["launch", "goose", "--model", "long"])
    assert (done.exit_code, "goose is not installed" in done.output) == (4, True), done.output
    assert json.loads(CliRunner().invoke(cli, ["keys", "list", "--json"]).output)["programs"] == []


def test_what_an_editor_lacks_is_said_with_a_command_that_helps(running, monkeypatch):
    """Cline cannot be started by Tessera, and no load gives a model more than it can have here."""
    monkeypatch.setenv("TESSERA_HOME", str(running.home))
    done = CliRunner().invoke(cli, ["launch", "cline", "--connect", "--dry-run", "--model", "long"])
    assert "this model can have 4,096 here" in done.output, done.output
    assert "`tessera fit long --ctx 32768`" in done.output
    assert "tessera launch cline" not in done.output


def test_another_model_that_has_enough_is_named(client):
    need = ContextNeed(least=2_000, source="a test")
    with pytest.raises(ContextTooSmall, match="use another model: --model long"):
        load_for(client, "spark", "pi", need)


def test_the_client_starts_only_with_enough(running, tmp_path, monkeypatch):
    """The command itself, with a fake `pi` program that records its start."""
    told = tmp_path / "told.json"
    program = tmp_path / "bin" / "pi"
    program.parent.mkdir()
    script = f"import json, sys; json.dump(sys.argv, open({str(told)!r}, 'w'))"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{script}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TESSERA_HOME", str(running.home))
    refused = CliRunner().invoke(cli, ["launch", "pi", "--model", "spark"])
    assert refused.exit_code != 0
    assert "pi needs 8,192 tokens of context" in refused.output
    assert not told.exists()
    monkeypatch.setitem(NEEDS, "pi", SMALL)
    CliRunner().invoke(cli, ["launch", "pi", "--model", "spark"])
    assert "--provider" in json.loads(told.read_text())
