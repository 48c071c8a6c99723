"""Every setting, changed by hand: the file on disk afterwards, and the immediate change in the window."""

import sqlite3
import tomllib
from contextlib import closing

import pytest

from app.settings import BY_NAME
from tests.support.servers import wait_for

SETTINGS = "window.page('settings')"


@pytest.fixture(scope="module")
def walk(open_window):
    made = open_window()
    made.go("Settings")
    return made


def kept(walk, name):
    """The value in the settings file; None: the default."""
    try:
        found = tomllib.loads((walk.home / "config" / "settings.toml").read_text())
    except OSError:
        return None
    for part in name.split("."):
        found = found.get(part, {})
    return None if found == {} else found


def is_kept(walk, name, value):
    """Wait until this is in the file."""
    walk.until(f"desktop.services.settings.now[{name!r}] == {value!r}")
    on_disk = None if BY_NAME[name].default == value else value  # written after the window has it
    wait_for(lambda: kept(walk, name) == on_disk, 60, f"{name} in the file")


def chats(walk):
    """Chats on disk, including those in the trash."""
    with closing(sqlite3.connect(walk.home / "state" / "chats.db")) as known:
        return known.execute("SELECT count(*) FROM conversations").fetchone()[0]


def test_how_it_looks(walk):
    walk.choose("Contrast", "High", SETTINGS)
    is_kept(walk, "window.contrast", "high")
    walk.choose("Contrast", "Normal", SETTINGS)
    is_kept(walk, "window.contrast", "normal")
    walk.choose("Theme", "Light", SETTINGS)
    is_kept(walk, "window.theme", "light")
    walk.fill("Text size", "120", SETTINGS)
    before = walk.ask("app.font().pixelSize()")
    walk.key("Return")
    is_kept(walk, "window.text_percent", 120)
    walk.until(f"app.font().pixelSize() > {before}")
    walk.fill("Text size", "100", SETTINGS)
    walk.key("Return")
    is_kept(walk, "window.text_percent", 100)
    walk.click("Tray icon", SETTINGS)
    is_kept(walk, "window.tray", True)
    walk.click("Tray icon", SETTINGS)
    is_kept(walk, "window.tray", False)
    walk.choose("Language", "Deutsch", SETTINGS)
    is_kept(walk, "window.language", "de")
    walk.choose("Language", "English", SETTINGS)
    is_kept(walk, "window.language", "en")


def test_how_it_chats(walk):
    walk.click("Chat", SETTINGS)
    walk.choose("Model for new chats", "Spark (demo)", SETTINGS)
    is_kept(walk, "chat.model", "spark")
    walk.fill("System prompt", "Answer in one sentence.", SETTINGS)
    is_kept(walk, "chat.system_prompt", "Answer in one sentence.")
    walk.fill("Max tokens", "64", SETTINGS)
    walk.key("Return")
    is_kept(walk, "chat.max_tokens", 64)
    for title, name in (
        ("Summarize the older part of long chats", "chat.fold"),
        ("Titles by the model", "chat.titles"),
    ):
        walk.click(title, SETTINGS)
        is_kept(walk, name, value=False)
    walk.choose("Process your draft while you type", "Off", SETTINGS)
    is_kept(walk, "chat.read_ahead", "off")
    walk.choose("Memory across chats", "Automatic", SETTINGS)
    is_kept(walk, "chat.memory", "automatic")
    walk.fill("Folders that the file tool may read", str(walk.home), SETTINGS)
    walk.key("Return")
    is_kept(walk, "tools.folders", str(walk.home))
    walk.fill("Warn when the context is this full", "60", SETTINGS)
    walk.key("Return")
    is_kept(walk, "chat.context_warn_percent", 60)
    walk.fill("Daily backups to keep", "3", SETTINGS)
    walk.key("Return")
    is_kept(walk, "chat.backup_days", 3)
    walk.new_chat()
    walk.until("chat.controller.conversation.system_prompt == 'Answer in one sentence.'")
    walk.go("Settings")


def test_how_it_speaks(walk):
    walk.click("Voice", SETTINGS)
    walk.choose("Language of reading aloud", "Deutsch", SETTINGS)
    is_kept(walk, "voice.language", "de")
    walk.fill("Microphone", "Desk", SETTINGS)
    walk.key("Return")
    is_kept(walk, "voice.device", "Desk")
    walk.click("Dictation and reading aloud", SETTINGS)
    is_kept(walk, "voice.enabled", value=False)


def test_how_it_codes(walk):
    walk.click("Code", SETTINGS)
    walk.click("Reopen the last project", SETTINGS)
    is_kept(walk, "code.reopen", value=False)
    walk.fill("Editor", "zed", SETTINGS)
    walk.key("Return")
    is_kept(walk, "code.editor", "zed")


def test_how_models_are_loaded(walk):
    walk.click("Models", SETTINGS)
    for title, typed, name, kept in (
        ("Context", "2048", "models.context", 2048),
        ("Concurrent requests", "2", "models.parallel", 2),
        ("Device", "cpu", "models.device", "cpu"),
        ("Unload idle models after", "600", "models.keep_alive", 600),
        ("Models loaded at once", "3", "models.max_loaded", 3),
        ("Disk space for cached prompts", "512", "cache.prefix_mib", 512),
        ("Folder of the models", str(walk.home / "models"), "models.folder", str(walk.home / "models")),
    ):
        walk.fill(title, typed, SETTINGS)
        walk.key("Return")
        is_kept(walk, name, kept)
    walk.choose("KV cache type", "q8_0", SETTINGS)
    is_kept(walk, "models.cache_type", "q8_0")
    walk.click("Compare answers with the CPU", SETTINGS)
    is_kept(walk, "models.compare_answers", value=False)


def test_how_it_serves_and_what_it_reaches(walk):
    walk.click("Server", SETTINGS)
    walk.find("Port", SETTINGS, disabled=True)
    assert "TESSERA_SERVER_PORT" in walk.ask(f"says({SETTINGS})"), "it says why it cannot be changed"
    walk.fill("Address", "127.0.0.2", SETTINGS)
    walk.key("Return")
    is_kept(walk, "server.host", "127.0.0.2")
    walk.click("Start the server with the window", SETTINGS)
    is_kept(walk, "server.start_with_window", value=False)
    walk.click("Network", SETTINGS)
    for title, name in (
        ("Address of kernel packs", "kernels.address"),
        ("Keys of kernel packs", "kernels.keys"),
    ):
        walk.fill(title, "https://127.0.0.1/packs", SETTINGS)
        walk.key("Return")
        is_kept(walk, name, "https://127.0.0.1/packs")
    walk.click("Check recommended models", SETTINGS)
    is_kept(walk, "network.check_models", value=True)
    offline = walk.ask(f"spot('Offline', {SETTINGS})")
    walk.click("Check for new versions of Tessera", SETTINGS)
    is_kept(walk, "updates.notice", value=True)
    walk.until("'could not be read now' in window.banner.text and window.banner.isVisible()")
    assert walk.ask(f"spot('Offline', {SETTINGS})") == offline, "the answer moves no setting"
    walk.click("Offline", SETTINGS)
    is_kept(walk, "network.offline", value=True)
    walk.go("Library")
    walk.click("Find models")
    walk.fill("Search models", "Spark")
    walk.key("Return")
    walk.until("'is set to offline' in says(window.page('library'))")
    walk.go("Settings")


def test_the_trash_is_emptied_and_the_licences_are_read(walk):
    walk.new_chat()
    walk.say("What is Tessera?")
    walk.click("What is Tessera?", "chat.sidebar", button=3)
    walk.click("Delete")
    walk.until("'deleted' in chat.banner.text")
    assert chats(walk) == 1, "in the trash"
    walk.go("Settings")
    walk.click("Locations", SETTINGS)
    walk.click("Empty the trash of chats…", SETTINGS)
    walk.click("Discard")
    walk.dialog_closed()
    wait_for(lambda: chats(walk) == 0, 60, "an empty trash")
    walk.click("About", SETTINGS)
    walk.click("About Tessera and its licences…", SETTINGS)
    walk.until("app.activeModalWidget() is not None and app.activeModalWidget()._parts.count() > 5")
    walk.click("Copy version")
    walk.until("app.clipboard().text().startswith('Tessera ')")
    walk.fill("Search parts and licences", "httpx2")
    walk.click("httpx2", "app.activeModalWidget()._parts")
    walk.until("'httpx2' in app.activeModalWidget()._text.toPlainText()[:200]")
    walk.picture("about")
    walk.click("Close")
    walk.dialog_closed()
