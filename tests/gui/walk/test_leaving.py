"""Closing the window during work, and a server that is not available immediately."""

import os
import signal
import socket

import psutil
import pytest

from tests.gui.walk.walker import WAIT_S, Walk
from tests.support.servers import wait_for

pytestmark = pytest.mark.timeout(400)  # servers end and start, on a busy computer
FIT = "window.page('fit')"
STATES = "[j.state for j in desktop.jobs.by_id.values() if j.kind.value == 'quantize']"


def test_a_server_that_died_twice_is_started_by_hand_once_its_port_is_free(open_window):
    walk = open_window()
    for told in ("It is running again", "stopped again"):
        os.kill(walk.server()["pid"], signal.SIGKILL)
        walk.until(f"{told!r} in window.banner.text")
        walk.until(f"desktop.services.models.reachable == {told == 'It is running again'}")
    port = walk.env["TESSERA_SERVER_PORT"]
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(port)))
        other.listen()
        walk.click("Start the server", "window.banner")
        walk.until(f"spot('Try again', window.banner) and {port!r} in window.banner.text")
        walk.picture("port-taken")
    walk.click("Try again", "window.banner")
    walk.until("desktop.services.models.reachable and desktop.link.owned and chat.composer.ready")
    assert psutil.pid_exists(walk.server()["pid"])
    walk.say("What is Tessera?")
    assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
    walk.close()


def test_what_is_written_before_the_server_runs_waits_and_is_sent(screen, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        walk = Walk(screen, tmp_path / "home", {"TESSERA_SERVER_PORT": port})
        try:
            walk.click("Message", "chat")
            walk.type("What is Tessera?")
            walk.until("chat.composer.text == 'What is Tessera?'")
            walk.key("Return")
            walk.until("spot('What is Tessera?', chat.composer) and not chat.composer.text")
            walk.until(f"spot('Try again', window.banner) and {port!r} in window.banner.text")
            walk.picture("waits-for-the-server")
        except BaseException:
            walk.kill()
            raise
    walk.click("Try again", "window.banner")
    walk.until("len(chat.controller.tree) == 2 and not chat.controller.busy")
    assert walk.ask("[m.status for m in chat.controller.tree.path()]") == ["complete", "complete"]
    assert not walk.ask("spot('What is Tessera?', chat.composer)"), "it waits no longer"
    walk.close()


def test_closing_with_work_under_way_asks_first(open_window):
    walk = open_window()
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    walk.click("Make it fit", f"{FIT}.start")
    walk.until(f"{STATES} == ['running']")
    walk.key("ctrl+q")
    walk.until("'would start from the beginning' in window.banner.text")
    walk.picture("leaving")
    walk.click("Stay", "window.banner")
    walk.until("not window.banner.isVisible()")
    assert walk.ask(STATES) == ["running"], "it keeps running"
    server = walk.server()["pid"]
    walk.key("ctrl+q")
    walk.until("'would start from the beginning' in window.banner.text")
    walk.click("Close", "window.banner._actions.itemAt(0).widget()")
    assert walk.process.wait(WAIT_S) == 0, walk.told()
    walk.forget()
    wait_for(lambda: not psutil.pid_exists(server), 60, "the end of the server")
    assert not [file for file in (walk.home / "models").rglob("*") if file.is_file()], "no half file stays"
