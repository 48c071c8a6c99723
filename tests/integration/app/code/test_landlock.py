"""Checks what a command can access with Landlock if bubblewrap does not work."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.code.agent import sandbox
from app.code.agent.command import run_command
from app.code.agent.git_programs import ASIDE
from app.code.agent.sandbox import SandboxPermissions
from devices import landlock
from tests.support.code_project import git

pytestmark = pytest.mark.skipif(not landlock.version(), reason="no Landlock here")
HIDDEN = "SSH_AUTH_SOCK"


@pytest.fixture(autouse=True)
def without_bubblewrap(monkeypatch, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "diary.txt").write_text("private\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sandbox, "without_bubblewrap", lambda: "bubblewrap is not installed (package bubblewrap)")
    return home


def python(project, script, openings=None):
    return run_command([sys.executable, "-c", script], project, 90, openings or SandboxPermissions())


def accept_one(listener):
    with contextlib.suppress(OSError):  # closed because no client connected
        listener.accept()[0].close()


def test_it_is_a_sandbox():
    assert sandbox.missing() is None


def test_the_project_can_be_written_and_the_rest_is_closed(project, without_bubblewrap, tmp_path, monkeypatch):
    monkeypatch.setenv(HIDDEN, "/run/agent")
    beside = tmp_path / "beside.txt"
    beside.write_text("whole")
    script = f"""
import os, tempfile
open("made.txt", "w").write("made")
print(os.environ.get({HIDDEN!r}), len(tempfile.NamedTemporaryFile().name) > 0)
def attempt(what):
    try:
        what()
        print("DONE")
    except OSError as error:
        print("refused")
attempt(lambda: open({str(without_bubblewrap / "diary.txt")!r}).read())
attempt(lambda: os.listdir({str(without_bubblewrap)!r}))
attempt(lambda: open({str(without_bubblewrap / "new.txt")!r}, "w"))
attempt(lambda: open({str(beside)!r}, "w"))
attempt(lambda: os.truncate({str(beside)!r}, 0))
attempt(lambda: os.unlink({str(beside)!r}))
attempt(lambda: os.rename("made.txt", {str(tmp_path / "moved.txt")!r}))
attempt(lambda: os.link({str(beside)!r}, "linked.txt"))
attempt(lambda: open("/usr/planted", "w"))
attempt(lambda: open("/proc/{{}}/environ".format(os.getppid()), "rb").read())
"""
    done = python(project, script)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("None True")
    assert done.output.count("refused") == 10, done.output
    assert "DONE" not in done.output
    assert (project / "made.txt").read_text() == "made"
    assert beside.read_text() == "whole"


@pytest.mark.parametrize("family", ["AF_INET", "AF_UNIX"])
def test_sockets_are_closed_and_the_network_can_be_opened(project, tmp_path, family):
    kind = getattr(socket, family)
    address = ("127.0.0.1", 0) if family == "AF_INET" else str(tmp_path / "s")
    with socket.socket(kind) as listener:
        listener.bind(address)
        listener.listen()
        where = listener.getsockname()
        thread = threading.Thread(target=accept_one, args=(listener,), daemon=True)
        thread.start()
        script = f"import socket; s = socket.socket(socket.{family}); s.connect({where!r})"
        refused = python(project, script)
        assert refused.exit_code == 1, refused.output
        assert "PermissionError" in refused.output
        opened = python(project, script, SandboxPermissions(network=True))
        assert opened.exit_code == (0 if family == "AF_INET" else 1), opened.output


def test_the_home_folder_is_there_when_it_is_opened(project, without_bubblewrap):
    diary = without_bubblewrap / "diary.txt"
    assert "private" in python(project, f"print(open({str(diary)!r}).read())", SandboxPermissions(home=True)).output


def test_what_a_command_leaves_running_ends_with_it(project):
    beats = "import time\nfor n in range(600):\n open('beat', 'w').write(str(n)); time.sleep(0.05)"
    script = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {beats!r}], start_new_session=True)
while not os.path.exists('beat'): time.sleep(.02)
"""
    assert python(project, script).exit_code == 0
    beat = (project / "beat").read_text()
    threading.Event().wait(0.5)
    assert (project / "beat").read_text() == beat


@pytest.mark.skipif(landlock.version() < landlock.SCOPED_VERSION, reason="this kernel's Landlock knows no signals")
def test_other_programs_cannot_be_ended(project):
    other = subprocess.Popen(["sleep", "60"])
    try:
        done = python(project, f"import os; os.kill({other.pid}, 9)")
        assert "PermissionError" in done.output
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_persons_git_runs_nothing_that_a_command_wrote_into_the_repository(project):
    git(project, "init", "-q")
    git(project, "add", ".")
    before = (project / ".git" / "config").read_bytes()
    script = """
import os, subprocess
subprocess.run(["git", "config", "core.fsmonitor", "touch planted; false"], check=True)
os.makedirs(".git/hooks", exist_ok=True)
open(".git/hooks/post-index-change", "w").write("#!/bin/sh\\ntouch planted\\n")
os.chmod(".git/hooks/post-index-change", 0o755)
open(".git/commondir", "w").write("../evil")
"""
    done = python(project, script)
    assert done.exit_code == 0, done.output
    (project / "planted").unlink(missing_ok=True)
    assert (project / ".git" / "config").read_bytes() == before
    assert ASIDE in done.output
    git(project, "status")
    assert not (project / "planted").exists()


def test_a_repository_that_is_replaced_does_not_count(project):
    git(project, "init", "-q")
    done = python(project, "import os; os.rename('.git', 'old'); open('.git', 'w').write('gitdir: evil')")
    assert "look at it before you run git" in done.output
    assert not (project / ".git").is_file()


def test_where_neither_is_there_that_is_said(monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert "bubblewrap is not installed" in str(sandbox.missing())


def test_an_older_kernel_is_told_of(monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: 4)
    assert "end your other programs" in str(sandbox.weakness())


def test_the_command_is_given_whole(project):
    done = run_command(
        [sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", 'a "b"', "ü"],
        project,
        60,
        SandboxPermissions(),
    )
    assert json.loads(done.output) == ['a "b"', "ü"]
    assert Path.cwd() != project
