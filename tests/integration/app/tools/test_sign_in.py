"""Signing in to an MCP server: real HTTP, the real client of the mcp package, a browser that follows at once."""

import stat
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.tools.catalogue import offered, remove_server
from app.tools.mcp_config import McpServerConfig, ServerList
from app.tools.mcp_server import McpServer, probe, sign_in
from app.tools.mcp_sign_in import Grant, SignIns
from engine.core.paths import user_paths
from tests.support.fakes.mcp_oauth import SignInServer


@pytest.fixture
def far(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))
    server = SignInServer()
    yield server
    server.stop()


def browse(page):
    """A user who is signed in there already: the page sends the browser back at once."""
    threading.Thread(target=lambda: urllib.request.urlopen(page, timeout=60).read(), daemon=True).start()


def config_of(far, **changes):
    return McpServerConfig("far", url=far.url, **changes)


def test_the_server_is_used_after_a_sign_in_and_again_after_a_restart(far, tmp_path):
    config = config_of(far)
    before = probe(config, tmp_path)
    assert before.needs_sign_in
    assert "tessera tools sign-in far" in before.problem
    assert not [path for _, path in far.asked if path != "/mcp"], (
        "nothing is registered before the user asks for it"
    )
    signed = sign_in(config, tmp_path, browse)
    assert (signed.problem, [spec.name for spec in signed.specs]) == ("", ["mcp__far__add"])
    file = user_paths().config / "mcp-tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    far.asked.clear()
    server = McpServer(config, tmp_path)
    server.start()
    assert server.call("mcp__far__add", {}).text == "5"
    server.stop()
    assert {path for _, path in far.asked} == {"/mcp"}, "no browser, no second registration"


def test_a_token_that_has_expired_is_renewed_and_stored(far, tmp_path):
    config = config_of(far)
    sign_in(config, tmp_path, browse)
    first = msgspec.structs.replace(SignIns().find(far.url), expires_s=time.time() - 1)
    SignIns().keep(far.url, first)
    far.tokens.clear()
    far.asked.clear()
    assert probe(config, tmp_path).problem == ""
    assert ("grant", "refresh_token") in far.asked
    assert ("POST", "/token") not in far.asked, "renewed where the sign-in was, not at the server of the tools"
    assert SignIns().find(far.url).tokens != first.tokens
    far.asked.clear()
    assert probe(config, tmp_path).problem == ""
    assert ("grant", "refresh_token") not in far.asked


def test_who_may_no_longer_is_asked_to_sign_in_again(far, tmp_path):
    config = config_of(far)
    sign_in(config, tmp_path, browse)
    far.tokens.clear()
    assert probe(config, tmp_path).needs_sign_in
    assert sign_in(config, tmp_path, browse).problem == ""


def test_a_sign_in_that_fails_stores_nothing(far, tmp_path):
    far.refuses = "access_denied"
    assert "the sign-in was refused: access_denied" in sign_in(config_of(far), tmp_path, browse).problem
    far.refuses = ""
    far.page = "http://192.0.2.1/authorize"
    opened = []
    assert "is not an https address" in sign_in(config_of(far), tmp_path, opened.append).problem
    assert opened == []
    assert SignIns().find(far.url) is None


def test_another_page_cannot_end_the_sign_in_and_the_user_can(far, tmp_path):
    statuses, signing = [], []

    def attack(page):
        back = parse_qs(urlsplit(page).query)["redirect_uri"][0]
        for query in ("code=evil&state=guessed", "code=evil", "error=x&state="):
            try:
                urllib.request.urlopen(f"{back}?{query}", timeout=60)
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
                error.close()
        signing[0].cancel()

    found = sign_in(
        config_of(far), tmp_path, lambda page: threading.Thread(target=attack, args=(page,)).start(), signing.append
    )
    assert "the sign-in was cancelled" in found.problem
    assert statuses == [404, 404, 404]


def test_a_key_of_the_user_is_sent_as_it_is(far, tmp_path):
    far.tokens.add("mine")
    assert probe(config_of(far, headers={"Authorization": "Bearer mine"}), tmp_path).problem == ""
    wrong = probe(config_of(far, headers={"authorization": "Bearer other"}), tmp_path)
    assert wrong.problem
    assert not wrong.needs_sign_in


def test_removing_and_signing_out_delete_the_tokens(far, tmp_path, monkeypatch):
    monkeypatch.setattr("webbrowser.open", browse)
    ServerList().add([config_of(far)])
    runner = CliRunner()
    done = runner.invoke(cli, ["tools", "sign-in", "far"])
    assert "far works and offers 1 tools" in done.output, done.output
    assert next(each for each in offered() if each.name == "far").signed_in
    assert runner.invoke(cli, ["tools", "sign-out", "far"]).exit_code == 0
    assert SignIns().find(far.url) is None
    SignIns().keep(far.url, Grant("{}", "{}"))
    remove_server("far")
    assert SignIns().find(far.url) is None
