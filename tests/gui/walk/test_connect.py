"""Programs connected by the Connect page, each by its button: the change shown, written, and undone.

Then the Server page's cards: keys, other servers, layers elsewhere, another Tessera, and what programs paste.
"""

import json
import shutil
import tomllib
import urllib.error
import urllib.request

import pytest

from tests.support.fakes.fake_upstream import MODEL, FakeUpstream
from tests.support.fakes.ssh_hosts import SshHost
from tests.support.servers import RunningServer, free_port

CONNECT, SERVER, OTHERS = "window.page('connect')", "window.page('server')", "window.page('others')"
CLIPBOARD = "app.clipboard().text()"
# The file that each program reads, below the user's folder; None: users type its settings.
WRITTEN = {
    "Connect Claude Code": (".claude/settings.json", lambda text: json.loads(text)["env"]["ANTHROPIC_BASE_URL"]),
    "Connect Codex CLI": (
        ".codex/config.toml",
        lambda text: tomllib.loads(text)["model_providers"]["tessera"]["base_url"],
    ),
    "Connect OpenCode": (
        ".config/opencode/opencode.json",
        lambda text: json.loads(text)["provider"]["tessera"]["options"]["baseURL"],
    ),
    "Connect OpenClaw": (
        ".openclaw/openclaw.json",
        lambda text: json.loads(text)["models"]["providers"]["tessera"]["baseUrl"],
    ),
    "Connect VS Code chat (custom endpoint)": (".config/Code/User/chatLanguageModels.json", str),
    "Connect Zed": (
        ".config/zed/settings.json",
        lambda text: json.loads(text)["language_models"]["openai_compatible"]["Tessera"]["api_url"],
    ),
    "Connect aider": (".aider.conf.yml", str),
    "Connect pi": (".pi/agent/models.json", lambda text: json.loads(text)["providers"]["tessera"]["baseUrl"]),
    "Connect llama.vim (Vim, Neovim)": (".vim/plugin/tessera_llama.vim", str),
    "Connect llama.vscode": (
        ".config/Code/User/settings.json",
        lambda text: json.loads(text)["llama-vscode.endpoint"],
    ),
}


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def test_every_program_is_connected_and_let_go(walk):
    walk.go("Connect")
    user = walk.home / "user"
    for button, (file, address) in WRITTEN.items():
        title = button.removeprefix("Connect ")

        if button == "Connect Zed":
            (user / file).parent.mkdir(parents=True)
            (user / file).write_text('{"theme": "dark"}\n')
        was = (user / file).read_text() if (user / file).exists() else None
        walk.click(button, CONNECT)
        walk.until(f"{CONNECT}.review.isVisible() and {walk.server()['url']!r} in {CONNECT}.shown.toPlainText()")
        walk.click("Cancel", f"{CONNECT}.review")
        walk.until(f"not {CONNECT}.review.isVisible()")
        assert ((user / file).read_text() if (user / file).exists() else None) == was, "nothing is written unasked"
        walk.click(button, CONNECT)
        walk.click("Apply", f"{CONNECT}.review")
        walk.until(f"'is connected' in {CONNECT}.banner.text and {title!r} in {CONNECT}.banner.text")
        assert walk.server()["url"] in address((user / file).read_text())
        keys = json.loads((walk.home / "config" / "program-keys.json").read_text())["data"]
        # Zed asks its user for the key.
        assert button == "Connect Zed" or any(key in (user / file).read_text() for key in keys.values())
        walk.click(f"Remove {title}", CONNECT)
        walk.until(f"{CONNECT}.review.isVisible()")
        walk.click("Apply", f"{CONNECT}.review")
        walk.until(f"'is no longer connected' in {CONNECT}.banner.text and {title!r} in {CONNECT}.banner.text")
        left = (user / file).read_text() if (user / file).exists() else None
        assert left == was or "127.0.0.1" not in (left or ""), (button, left)
        if was is not None:
            assert left == was
        assert json.loads((walk.home / "config" / "program-keys.json").read_text())["data"] == {}


def test_a_program_whose_settings_nobody_may_write_says_what_to_enter(walk):
    walk.go("Connect")
    for button, label in (
        ("Connect goose", "OPENAI_HOST"),
        ("Connect Hermes Agent", "model.base_url"),
        ("Connect Cline (VS Code)", "Base URL"),
    ):
        walk.click(button, CONNECT)
        walk.until(f"{label!r} in {CONNECT}.shown.toPlainText()")
        assert walk.server()["url"] in walk.ask(f"{CONNECT}.shown.toPlainText()")
        assert not walk.ask(f"{CONNECT}.confirm.isVisible()")
        walk.picture("connect-by-hand")
        walk.click("Cancel", f"{CONNECT}.review")
        walk.until(f"not {CONNECT}.review.isVisible()")


@pytest.fixture
def upstream():
    running = FakeUpstream(key="sk-desk")
    yield running
    running.stop()


def test_another_server_is_added_checked_used_and_forgotten(walk, upstream):
    walk.go("Other computers")
    card = f"{OTHERS}.upstreams"
    walk.fill("Name of the other server", "desk", card)
    walk.fill("Address of the other server", upstream.url, card)
    walk.fill("Key of the other server", "sk-wrong", card)
    walk.click("Add", card)
    walk.until(f"'Rejects the key' in says({card})")
    walk.fill("Name of the other server", "desk", card)
    walk.fill("Address of the other server", upstream.url, card)
    walk.fill("Key of the other server", "sk-desk", card)
    walk.click("Add", card)
    walk.until(f"'Answers in' in says({card})")
    walk.click("Check desk", card)
    walk.until(f"'Answers in' in says({card}) and {MODEL!r} in says({card})")
    assert upstream.seen == [], "nothing was asked of its models"
    assert walk.manage("upstreams")["rules"] == []
    walk.click("Use desk", card)
    walk.until(f"'in use' in says({card})")
    assert [rule["upstream"] for rule in walk.manage("upstreams")["rules"]] == ["desk"]
    walk.until(f"any({MODEL!r} in c.id for c in desktop.services.models.choices)")
    walk.picture("upstream")
    walk.click("Stop using desk", card)
    walk.until(f"'in use' not in says({card})")
    assert walk.manage("upstreams")["rules"] == []
    walk.manage("upstream-rules", {"model": "big", "upstream": "desk", "as_model": MODEL, "queue": 2}, "PUT")
    walk.go("Connect")
    walk.go("Other computers")
    walk.click("Remove the rule for big", card)
    walk.until(f"'big goes to' not in says({card})")
    assert walk.manage("upstreams")["rules"] == []
    walk.click("Remove desk", card)
    walk.until(f"'can be used next to the local ones' in says({card})")
    assert walk.manage("upstreams")["upstreams"] == []


def test_a_computer_for_layers_is_added_once_its_host_key_was_seen(walk, tmp_path):
    walk.go("Other computers")
    card = f"{OTHERS}.remotes"
    host = SshHost(tmp_path)
    keys = walk.home / "user" / ".ssh"
    keys.mkdir(mode=0o700)
    shutil.copy(host.identity, keys / "id_ed25519")
    try:
        for answer in ("Do not add it", "It is the right computer"):
            walk.fill("Name of the other computer", "desk", card)
            walk.fill("User and address for SSH", f"you@127.0.0.1:{host.port}", card)
            walk.choose("When to send layers there", "also when it is faster", card)
            walk.click("Add", card)
            walk.until(f"{host.fingerprint!r} in says({card})")
            assert walk.manage("remotes")["remotes"] == [], "nothing is kept before it was looked at"
            walk.click(answer, card)
            walk.until(f"{host.fingerprint!r} not in says({card}) or spot('Remove desk', {card})")
        walk.until(f"spot('Remove desk', {card})")
        (kept,) = walk.manage("remotes")["remotes"]
        assert (kept["name"], kept["use"], kept["port"]) == ("desk", "faster", host.port)
        walk.picture("remote")
        walk.click("Check desk", card)
        walk.until(f"spot('Check desk', {card})")
        walk.click("Remove desk", card)
        walk.until(f"not spot('Remove desk', {card})")
        assert walk.manage("remotes")["remotes"] == []
    finally:
        host.stop()


def test_what_programs_paste_is_chosen_and_copied(walk):
    walk.go("Server")
    walk.choose("Program to connect", "curl", SERVER)
    walk.until(f"'curl' in {SERVER}.snippet.toPlainText()")
    walk.click("Copy", SERVER)
    walk.until(f"{CLIPBOARD} == {SERVER}.snippet.toPlainText()")
    assert walk.server()["url"] in walk.ask(CLIPBOARD)


def test_documents_are_offered_to_a_program_that_speaks_mcp(walk, tmp_path):
    card = f"{CONNECT}.documents"
    walk.go("Connect")
    walk.until(f"{card}._none.isVisible()")
    for name in ("Papers", "Letters"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.txt").write_text("High water comes every twelve hours.")
        walk.manage("collections", {"name": name, "sources": [str(tmp_path / name)]})
    walk.go("Server")
    walk.go("Connect")
    walk.until(f"{card}.collection.count() == 3")
    walk.choose("Documents that the program may read", "Letters", CONNECT)
    walk.choose("Program that reads documents", "Cursor", CONNECT)
    walk.click("Copy the text for documents", CONNECT)
    walk.until(f"'tessera-letters' in {CLIPBOARD}")
    server = json.loads(walk.ask(CLIPBOARD))["mcpServers"]["tessera-letters"]
    assert server["args"][-3:] == ["mcp", "--", "Letters"]
    assert "TESSERA_HOME" in server["env"]
    walk.choose("Documents that the program may read", "All of these", CONNECT)
    walk.until(f"'tessera-documents' in {card}.text.toPlainText()")


def test_a_key_that_may_manage_is_made_and_does(walk):
    walk.go("Server")
    walk.fill("Name of the new key", "phone", f"{SERVER}.keys")
    walk.choose("Permissions of the new key", "May also manage models", f"{SERVER}.keys")
    walk.click("Create a key", f"{SERVER}.keys")
    walk.until(f"{SERVER}.keys.key.isVisible() and {SERVER}.keys.key.text()")
    key = walk.ask(f"{SERVER}.keys.key.text()")
    asked = urllib.request.Request(f"{walk.server()['url']}/tessera/v1/loaded", headers={"x-api-key": key})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        assert json.load(answer) == {"models": []}
    walk.click("Revoke phone", f"{SERVER}.keys")
    walk.until("not spot('Revoke phone', window)")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=120)
    refused.value.close()


def test_another_tessera_is_used_and_left(walk, tmp_path):
    walk.go("Other computers")
    card = f"{OTHERS}.elsewhere"
    own = walk.server()["url"]
    assert not walk.ask(f"{card}.show_code.isEnabled()"), "only this computer reaches this server"
    other = RunningServer(tmp_path, "--port", str(free_port()))
    try:
        walk.fill("Address of another Tessera, or its link", other.url, card)
        walk.fill("Key of the other Tessera", other.token, card)
        walk.click("Use it", card)
        walk.until(f"'is used now' in {OTHERS}.banner.text")
        walk.until(f"desktop.link.url == {other.url!r} and desktop.services.models.reachable")
        walk.go("Chat")
        walk.say("What is Tessera?")
        assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
        assert walk.loaded() == [], "it was answered over there"
        walk.go("Other computers")
        walk.click("Use this computer's server", card)
        walk.until(f"desktop.link.url == {own!r} and desktop.services.models.reachable")
        walk.picture("elsewhere")
    finally:
        other.stop()
