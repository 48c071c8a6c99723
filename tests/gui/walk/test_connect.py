"""Programs connected by the Connect page, each by its button: the change shown, written, and taken back."""

import json
import tomllib

import pytest

CONNECT = "window.page('connect')"
# The file each program reads, below the user's folder; None: its settings are for its owner to type.
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
    "Connect Zed": (
        ".config/zed/settings.json",
        lambda text: json.loads(text)["language_models"]["openai_compatible"]["Tessera"]["api_url"],
    ),
    "Connect aider": (".aider.conf.yml", str),
    "Connect llama.vim (Vim, Neovim)": (".vim/plugin/tessera_llama.vim", str),
    "Connect llama.vscode": (
        ".config/Code/User/settings.json",
        lambda text: json.loads(text)["llama-vscode.endpoint"],
    ),
}


@pytest.fixture(scope="module")
def walk(open_window):
    made = open_window()
    made.go("Connect")
    return made


def test_every_program_is_connected_and_let_go(walk):
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
    walk.click("Connect Cline (VS Code)", CONNECT)
    walk.until(f"'Base URL' in {CONNECT}.shown.toPlainText()")
    assert f"{walk.server()['url']}/v1" in walk.ask(f"{CONNECT}.shown.toPlainText()")
    assert not walk.ask(f"{CONNECT}.confirm.isVisible()")
    walk.picture("connect-by-hand")
    walk.click("Cancel", f"{CONNECT}.review")
    walk.until(f"not {CONNECT}.review.isVisible()")
