"""The Code page over several projects, sessions and starts, with another server's model that writes edits."""

import json
import os
import shutil
import sys

import pytest

from tests.support.fakes.fake_upstream import MODEL, FakeUpstream
from tests.support.servers import wait_for

CODE = "window.page('code')"
EDIT = """So it is.

lamp.py
<<<<<<< SEARCH
    return height + wind
=======
    return height * wind
>>>>>>> REPLACE
"""


SCRIPT = "import time; print('\\x1b[32mlit\\x1b[0m the lamp', flush=True); time.sleep(3600)"
EDITOR = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/opened"
"""


class Talker(FakeUpstream):
    """Answers every question with one edit. As an agent it runs one command."""

    def talk(self, send, body, said):
        del said
        send(self.chunk({"role": "assistant", "content": ""}))
        if body.get("tools"):
            if body["messages"][-1]["role"] == "tool":
                send(self.chunk({"content": "It was stopped."}))
                send(self.chunk({}, "stop"))
                return 4
            made = {"name": "run", "arguments": json.dumps({"argv": [sys.executable, "-c", SCRIPT]})}
            send(self.chunk({"tool_calls": [{"id": "c1", "type": "function", "index": 0, "function": made}]}))
            send(self.chunk({}, "tool_calls"))
            return 4
        send(self.chunk({"content": EDIT}))
        send(self.chunk({}, "stop"))
        return 4


@pytest.fixture(scope="module")
def talker():
    running = Talker()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    """A folder with an editor that records the files it is given."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "code").write_text(EDITOR)
    (folder / "code").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def walk(open_window, talker, editor):
    made = open_window({"PATH": f"{editor}{os.pathsep}{os.environ['PATH']}"})
    made.manage("upstreams/desk", {"url": talker.url}, "PUT")
    made.manage("upstream-rules", {"model": "desk/*", "upstream": "desk"}, "PUT")
    made.until(f"any({MODEL!r} in c.id for c in desktop.services.models.choices)")
    return made


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """Two projects with the same file."""
    made = []
    for name in ("lighthouse", "harbour"):
        folder = tmp_path_factory.mktemp("projects") / name
        (folder / "parts").mkdir(parents=True)
        (folder / "lamp.py").write_text("def bright(height, wind):\n    return height + wind\n")
        (folder / "parts" / "lens.py").write_text("LENS = 1\n")
        made.append(folder)
    return made


def is_open(walk, folder):
    walk.until(f"{CODE}.folder.toolTip() == {str(folder)!r} and {CODE}.composer.ready")


def open_by_dialog(walk, folder, within):
    walk.click("Open folder", within)
    walk.choose_file(folder)
    is_open(walk, folder)


def asked(walk, question):
    """Ask, and wait until the session with the answer is in the list."""
    before = walk.ask(f"{CODE}.history._sessions[0].num_turns if {CODE}.history._sessions else 0")
    walk.fill("Question", question, CODE)
    walk.key("Return")
    walk.until(f"not {CODE}.controller.busy and len({CODE}.history._sessions) > 0")
    walk.until(
        f"{CODE}.history._sessions[0].num_turns != {before} or {CODE}.history._sessions[0].title == {question!r}"
    )


def test_sessions_are_read_continued_deleted_and_restored(walk, projects, talker):
    walk.go("Code")
    open_by_dialog(walk, projects[0], f"{CODE}.empty")
    entry = walk.ask(f"{CODE}.model.itemText({CODE}.model.findText({MODEL!r}, Qt.MatchFlag.MatchContains))")
    walk.choose("Model", entry, CODE)
    asked(walk, "Multiply it")
    walk.click("New session", CODE)
    walk.until(f"{CODE}.hint.isVisible()")
    asked(walk, "What is left?")
    walk.click("History", f"{CODE}.tabs")
    walk.picture("history")
    assert walk.ask(f"[{CODE}.history.list.item(n).text().split(chr(10))[0] for n in range(2)]") == [
        "What is left?",
        "Multiply it",
    ]
    walk.click("Multiply it", f"{CODE}.history")
    walk.until(f"{CODE}.past.isVisible() and 'So it is' in {CODE}.past.last_answer")
    walk.picture("session-read")
    assert not walk.ask(f"{CODE}.composer.isVisible()")
    walk.click("Back to the current session", CODE)
    walk.until(f"{CODE}.composer.isVisible() and 'What is left?' in reads({CODE}.transcript)")
    walk.click("Multiply it", f"{CODE}.history")
    walk.click("Continue this session", CODE)
    walk.until(f"{CODE}.composer.isVisible() and 'Multiply it' in reads({CODE}.transcript)")
    asked(walk, "Are you sure?")
    assert [m["role"] for m in talker.seen[-1][1]["messages"]] == ["system", "user", "assistant", "user"]
    walk.click("History", f"{CODE}.tabs")
    walk.click("What is left?", f"{CODE}.history")
    walk.until(f"{CODE}.past.isVisible()")
    walk.click("Delete session", CODE)
    walk.until(f"{CODE}.history.list.count() == 1 and 'Session deleted' in {CODE}.banner.text")
    walk.click("Undo", f"{CODE}.banner")
    walk.until(f"{CODE}.history.list.count() == 2")


def test_edits_are_accepted_and_rejected_in_the_file(walk, projects):
    lamp = projects[0] / "lamp.py"
    before = lamp.read_text()
    walk.click("Edits", f"{CODE}.tabs")
    walk.click("Show in the file", CODE)
    walk.until(f"len({CODE}.files.source.hunks) == 1 and {CODE}.files.source.hasFocus()")
    walk.picture("edit-in-the-file")
    walk.click("Reject 1 of 1", f"{CODE}.files")
    walk.until(f"'Edit rejected' in {CODE}.banner.text and {CODE}.files.source.hunks == ()")
    walk.click("Undo", f"{CODE}.banner")
    walk.until(f"len({CODE}.files.source.hunks) == 1")
    walk.click("Accept 1 of 1", f"{CODE}.files")
    walk.until(f"'Written: lamp.py' in {CODE}.banner.text and {CODE}.files.source.hunks == ()")
    assert lamp.read_text() == before.replace("+", "*")
    walk.click("Undo", f"{CODE}.banner")
    walk.until(f"len({CODE}.files.source.hunks) == 1")
    assert lamp.read_text() == before
    walk.click("Reject all", CODE)
    walk.until(f"{CODE}.files.source.hunks == ()")
    walk.click("Undo", f"{CODE}.banner")
    walk.until(f"len({CODE}.files.source.hunks) == 1")
    walk.click("Next edit (F7)", CODE)
    walk.click("Previous edit (Shift+F7)", CODE)
    walk.click("File", f"{CODE}.files")
    walk.key("F7", "ctrl+Return")
    walk.until(f"'Written: lamp.py' in {CODE}.banner.text and {CODE}.files.source.hunks == ()")
    walk.click("Undo", f"{CODE}.banner")
    walk.until(f"len({CODE}.files.source.hunks) == 1")
    walk.click("Accept all", CODE)
    walk.until(f"{CODE}.files.source.hunks == ()")
    assert lamp.read_text() == before.replace("+", "*")


def test_a_command_is_watched_and_stopped(walk, talker):
    walk.tick("Work with tools", CODE)
    walk.until(f"{CODE}.agent.isChecked()")
    walk.fill("Question", "Light it", CODE)
    walk.key("Return")
    walk.until(f"{CODE}.consent.isVisible()")
    walk.click("Allow once", f"{CODE}.consent")
    walk.until(f"{CODE}.terminal.isVisible() and 'lit the lamp' in {CODE}.terminal.output.toPlainText()")
    walk.picture("terminal")
    walk.click("Stop the command", CODE)
    walk.until(f"not {CODE}.controller.busy and 'It was stopped.' in {CODE}.transcript.last_answer")
    assert "stopped after" in walk.ask(f"says({CODE}.terminal)")
    assert "was stopped by the person" in talker.seen[-1][1]["messages"][-1]["content"]
    assert "lit the lamp" in walk.ask(f"{CODE}.transcript.last_answer")
    walk.tick("Work with tools", CODE)


def test_a_file_is_opened_in_the_editor_at_its_line(walk, projects, editor):
    walk.click("Files", f"{CODE}.tabs")
    walk.click("lamp.py", f"{CODE}.files")
    walk.until(f"{CODE}.files.source.path == 'lamp.py'")
    walk.click("File", f"{CODE}.files")
    walk.key("ctrl+Home", "Down")
    walk.until(f"{CODE}.files.source.line == 2")
    walk.click("Open in the editor", CODE)
    walk.until(f"'lamp.py opens in the editor' in {CODE}.banner.text")
    wait_for((editor / "opened").exists, 60, "the editor")
    wait_for(lambda: len((editor / "opened").read_text().splitlines()) == 2, 60, "its arguments")
    assert (editor / "opened").read_text().splitlines() == ["--goto", f"{projects[0] / 'lamp.py'}:2"]


def test_recent_projects_are_opened_and_missing_ones_are_removed(walk, projects):
    lighthouse, harbour = projects
    open_by_dialog(walk, harbour, CODE)
    walk.until(f"{CODE}.history.list.count() == 0")  # the history is the project's own
    walk.click("Recent projects", CODE)
    walk.until("spot('Search recent projects')")
    walk.picture("recent-projects")
    walk.key("Down", "Return")
    is_open(walk, lighthouse)
    shutil.move(harbour, harbour.with_name("moved"))
    walk.click("Recent projects", CODE)
    walk.until(f"'Not found: {harbour}' in says(app.activeModalWidget())")
    walk.key("Down", "Return")
    walk.until(f"'The folder {harbour} no longer exists' in {CODE}.banner.text")
    walk.click("Remove from the list", f"{CODE}.banner")
    walk.until(f"len({CODE}.recent._projects) == 1")
    assert walk.ask(f"{CODE}.folder.toolTip()") == str(lighthouse), "the open project stays"


def test_the_project_and_its_session_are_there_after_a_start(walk, projects):
    walk.close()
    walk.start()
    walk.go("Code")
    is_open(walk, projects[0])
    walk.until(f"'Light it' in reads({CODE}.transcript)")
    walk.click("Recent projects", CODE)
    walk.click("Remove lighthouse", "app.activeModalWidget()")
    walk.until(f"not {CODE}.recent.isEnabled()")
    walk.key("Escape")
