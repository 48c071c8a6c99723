"""What is started a second time: the window, and the server."""

import subprocess
import sys

import psutil

from tests.gui.walk.walker import ROOT


def program(walk, *arguments):
    """The program from a terminal, with the folders of that window."""
    return subprocess.run(
        [sys.executable, "-m", "app", *map(str, arguments)],
        cwd=ROOT,
        env={**walk.env, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_a_second_start_brings_its_file_to_the_window_there_is(open_window, tmp_path):
    walk = open_window()
    walk.go("Server")
    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper is Berta Quill.")
    second = program(walk, "window", notes)
    assert second.returncode == 0, second.stderr
    walk.until("chat.isVisible() and 'notes.txt' in says(chat.composer)")
    walk.until("window.isActiveWindow()")

    server = walk.server()
    again = program(walk, "serve", "--port", walk.env["TESSERA_SERVER_PORT"])
    assert again.returncode != 0
    assert walk.env["TESSERA_SERVER_PORT"] in again.stderr
    assert "Traceback" not in again.stderr
    assert psutil.pid_exists(server["pid"])
    assert walk.server() == server, "the one that runs is left alone"
    walk.say("What is Tessera?")
    assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
    walk.close()
