"""A real model's answers, from the question to the last token, as a user sees them."""

import contextlib
import os
import pty
import subprocess
import sys
import time

import psutil
import pytest

from tests.gui.walk.walker import ROOT
from tests.support.servers import wait_for

pytestmark = pytest.mark.timeout(1500)  # a real model on a busy computer
# Its answer must be long, because it is stopped in the middle, on fast machines too.
QUESTION = "Write a long story, at least two thousand words, about the keeper in the file."
PATIENCE_S = 600.0  # to load a small model and read a page, with other work on the computer
SAID = "chat.transcript.item(chat.controller.tree.leaf_id)"


@pytest.fixture(scope="module")
def walk(open_window, real_model, tmp_path_factory):
    """A window whose library has a small real model."""
    home = tmp_path_factory.mktemp("walk")
    (home / "models").mkdir()
    here = home / "models" / "SmolLM2-135M-Instruct.gguf"
    try:
        os.link(real_model, here)
    except OSError:
        here.symlink_to(real_model)
    return open_window(home=home, answer_tokens=0)


def choose_model(walk, name):
    walk.until(f"any({name!r} in c.title for c in desktop.services.models.choices)")
    walk.click("Model", "chat.bar")
    walk.until("app.focusWidget() is not None and app.focusWidget().accessibleName() == 'Search models'")
    walk.type(name[:5])
    walk.until(f"'here' in says() and {name!r} in says()", PATIENCE_S)  # its speed on this computer
    walk.click(f"Load {name}-135M-Instruct")
    walk.until("'Eject' in says()", PATIENCE_S)
    walk.click(f"Eject {name}-135M-Instruct")
    walk.until("'Load' in says().split(' | ')", PATIENCE_S)
    walk.key("Return")
    walk.until(f"{name!r} in desktop.services.models.get(chat.controller.conversation.model).title")


def test_the_window_says_where_an_answer_is_and_lists_its_chat_at_once(walk, tmp_path):
    choose_model(walk, "SmolLM2")
    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper of the lighthouse is Berta Quill. The sea was calm that day. " * 60)
    walk.attach(notes)
    walk.click("Message", "chat")
    walk.until("chat.composer.editor.hasFocus()")
    walk.type(QUESTION)
    walk.until(f"chat.composer.text == {QUESTION!r}")
    walk.key("Return")
    walk.until("len(chat.controller.tree)")
    seen = []

    def phase():
        told = walk.ask(
            f"getattr({SAID}, '_phase', None) and {SAID}._phase.text() if chat.transcript.items() else ''"
        )
        if told and (not seen or told != seen[-1]):
            seen.append(told)
        return told

    began, listed = time.monotonic(), False
    while not (phase() or "").startswith("Writing"):
        assert time.monotonic() - began < PATIENCE_S, seen
        if not listed and any(words.startswith("Reading your prompt ") for words in seen):
            listed = walk.until("chat.sidebar.model.rowCount() >= 1")  # its chat, while it is answered
        assert walk.ask("chat.controller.busy"), seen
        time.sleep(0.02)  # each check costs the window CPU time, and so delays the answer
    assert listed
    assert any(words.startswith("Starting the model ") for words in seen), seen
    read = [words for words in seen if words.startswith("Reading your prompt ") and " of " in words]
    assert read, seen
    assert any(" s" in words.split("·")[-1] for words in seen), seen
    walk.until("chat.controller.partial and len(chat.controller.partial.content) > 20")
    walk.click("Stop (Esc)", "chat")
    walk.until("not chat.controller.busy")
    walk.until("'tokens/s' in says(chat.transcript) and 'stopped by you' in says(chat.transcript)")
    assert walk.ask("chat.controller.tree.path()[-1].facts.first_s") > 1


def unloaded(walk):
    """Unload all models, so that the next answer starts with a load."""
    for model in walk.loaded():  # reported by the server: the window checks only from time to time
        walk.manage(f"models/{model}/unload", {})
    wait_for(lambda: walk.loaded() == [], PATIENCE_S, "the end of what was loaded")
    walk.until("not any(c.loaded for c in desktop.services.models.choices)")


def test_the_terminal_says_where_its_answer_is(walk):
    unloaded(walk)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "app", "chat", "--max-tokens", "8", "-p", "What is a lighthouse?"]
    env = {**walk.env, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=PATIENCE_S,
        )
        os.close(theirs)
        told = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed and all was read
                break
            if not piece:
                break
            told += piece
    finally:
        os.close(ours)
    assert done.returncode == 0
    assert done.stdout.strip()
    assert b"Starting the model " in told or b"Reading your prompt" in told, told
    assert b"\x1b[2K" in told, "and leaves nothing behind"


def test_an_answer_whose_runner_is_killed_keeps_its_text_and_is_tried_again(walk):
    walk.new_chat()
    walk.click("Message", "chat")
    walk.type(QUESTION)
    walk.until(f"chat.composer.text == {QUESTION!r}")
    walk.key("Return")
    walk.until("chat.controller.partial and len(chat.controller.partial.content) > 40", PATIENCE_S)
    server = walk.server()
    runners = []
    for child in psutil.Process(server["pid"]).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that ended meanwhile
            runners += [child] if "engine.runner.main" in " ".join(child.cmdline()) else []
    assert runners
    for runner in runners:
        runner.kill()
    walk.until("not chat.controller.busy", PATIENCE_S)
    message = "chat.controller.tree.path()[-1]"
    assert walk.ask(f"{message}.status") == "error"
    assert len(walk.ask(f"{message}.content")) > 40, "what had arrived stays"
    walk.picture("runner-killed")
    walk.click("Try again", "chat.transcript")
    walk.until("chat.controller.partial and len(chat.controller.partial.content) > 20", PATIENCE_S)
    walk.click("Stop (Esc)", "chat")
    walk.until("not chat.controller.busy")
    assert walk.server() == server, "the server went on"
