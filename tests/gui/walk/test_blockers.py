"""Faults that once blocked a user: each walk fails if the fix is reverted."""

import os
import signal

import psutil
import pytest

from tests.support.servers import RunningServer, free_port, wait_for

pytestmark = pytest.mark.timeout(400)  # servers end and start, on a busy computer
JOBS = "list(desktop.jobs.by_id.values())"
LEAF = "chat.transcript.item(chat.controller.tree.leaf_id)"


def has_ended(number):
    """Whether no process with this id runs; its parent may not have waited for it yet."""
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ask(walk, text):
    """Type a question; return its answer."""
    walk.say(text)
    return walk.ask("chat.controller.tree.path()[-1].content")


def test_the_query_reaches_the_hub_and_a_failed_job_does_not_end_all_progress(walk, hub):
    walk.go("Library")
    walk.click("Find models")
    walk.click("Search models")
    walk.type("Other")
    walk.key("Return")
    walk.until("'Other-GGUF' in says()")
    assert "Spark-GGUF" not in walk.ask("says(window.page('library'))")
    walk.click("What fits?")
    walk.until("'Q8_0' in says()")
    assert walk.ask("window.page('library').banner.text") == ""

    file = hub.repos["org/Other-GGUF"].files.pop("other-Q8_0.gguf")  # withdrawn by its owner just now
    walk.click("Download")
    walk.until(f"any(j.state == 'failed' for j in {JOBS})")
    hub.repos["org/Other-GGUF"].files["other-Q8_0.gguf"] = file
    walk.click("Download")
    walk.until(f"any(j.state == 'done' for j in {JOBS})")
    walk.until("len(desktop.services.models.choices) == 2")


def test_the_editor_of_a_message_can_be_seen_and_used_by_keys(walk):
    walk.new_chat()
    assert ask(walk, "What is Tessera?")
    walk.click("Edit and ask again", "chat")
    walk.until("spot('Edit your message', chat)[3] > 50")
    walk.find("Ask again", "chat")
    assert walk.cuts("chat.transcript") == []
    walk.key("ctrl+a")
    walk.type("What is quantization?")
    walk.until("app.focusWidget().toPlainText() == 'What is quantization?'")
    walk.key("ctrl+Return")
    walk.until("chat.controller.tree.path()[0].content == 'What is quantization?' and not chat.controller.busy")


def test_a_server_that_dies_is_started_again_by_itself_and_then_by_a_button(walk):
    walk.new_chat()
    first = walk.server()
    os.kill(first["pid"], signal.SIGKILL)
    walk.until("'It is running again' in window.banner.text and desktop.services.models.reachable")
    second = walk.server()
    assert (second["pid"], second["token"]) != (first["pid"], first["token"])
    walk.until("chat.composer.ready")
    assert ask(walk, "What is Tessera?")
    assert walk.ask("len(chat.controller.tree)") == 2

    os.kill(second["pid"], signal.SIGKILL)
    walk.until("'stopped again' in window.banner.text")
    wait_for(lambda: has_ended(second["pid"]), 60, "the end of the server")
    walk.click("Message", "chat")
    walk.type("Still there?")
    walk.until("chat.composer.text == 'Still there?'")
    walk.key("Return")
    walk.until("chat.controller.tree.path()[-1].status == 'error'")
    count = walk.ask("len(chat.controller.tree)")
    walk.mark(LEAF)
    walk.click("Try again", "chat.transcript")
    walk.until(f"fresh({LEAF}) and chat.controller.tree.path()[-1].status == 'error' and not chat.controller.busy")
    assert walk.ask("len(chat.controller.tree)") == count, "an attempt that said nothing is no branch"
    walk.click("Start the server and try again", "chat.transcript")
    walk.until("chat.controller.tree.path()[-1].status == 'complete'")
    assert walk.ask("len(chat.controller.tree)") == count

    third = walk.server()
    walk.go("Server")
    walk.click("Stop", "window.page('server')")
    walk.until("not desktop.services.models.reachable")
    wait_for(lambda: not psutil.pid_exists(third["pid"]), 60, "the end of the server")
    walk.click("Start", "window.page('server')")
    walk.until("desktop.services.models.reachable and desktop.link.owned")


def test_a_window_that_was_killed_leaves_a_server_that_the_next_one_owns(open_window):
    walk = open_window()
    told = walk.server()
    walk.kill()
    assert psutil.pid_exists(told["pid"])
    again = open_window(home=walk.home, env={"TESSERA_SERVER_PORT": walk.env["TESSERA_SERVER_PORT"]})
    assert again.server() == told
    again.go("Server")
    again.until("'Started by this window' in says()")
    again.click("Stop", "window.page('server')")
    wait_for(lambda: not psutil.pid_exists(told["pid"]), 60, "the end of the server")
    again.close()


def test_a_window_that_is_asked_to_end_takes_its_server_along(open_window):
    walk = open_window()
    told = walk.server()
    walk.close()
    assert not psutil.pid_exists(told["pid"])
    assert walk.server() is None


def test_a_server_that_a_terminal_started_anew_is_followed_to_its_new_key(open_window, tmp_path_factory):
    home, port = tmp_path_factory.mktemp("walk"), str(free_port())
    first = RunningServer(home, "--port", port)
    try:
        walk = open_window(home=home, env={"TESSERA_SERVER_PORT": port})
        assert not walk.ask("desktop.link.owned")
        assert ask(walk, "What is Tessera?")
        walk.process.send_signal(signal.SIGSTOP)  # or it notices that none runs, and finds another one by itself
    finally:
        first.stop()
    second = RunningServer(home, "--port", port)
    try:
        walk.process.send_signal(signal.SIGCONT)
        assert second.token != first.token
        walk.until("desktop.services.models.reachable and chat.composer.ready")
        assert ask(walk, "What is quantization?")
        assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
        walk.go("Library")
        walk.until("'Spark (demo)' in says(window.page('library'))")
        walk.until(f"desktop.link.token == {second.token!r}")
        walk.close()
    finally:
        second.stop()
