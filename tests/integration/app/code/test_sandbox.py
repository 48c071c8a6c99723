"""Checks what an agent's command can access: its project, and nothing else without consent."""

import json
import shutil
import socket
import sys
import threading
from pathlib import Path

import pytest

from app.code.agent import sandbox
from app.code.agent.command import run_command
from app.code.agent.sandbox import SandboxPermissions
from app.code.agent.tools import Toolbox
from app.code.edits.journal import Journal
from app.code.edits.session import EditSession
from app.tools.consent import Consent
from tests.support.code_project import git

needs_sandbox = pytest.mark.skipif(sandbox.missing() is not None, reason=f"no sandbox: {sandbox.missing()}")


@pytest.fixture
def toolbox(index, tmp_path):
    """A tuple of (toolbox, consent requests so far); everything is allowed."""
    index.refresh()
    journal = Journal(tmp_path / "edits.db")
    asked = []
    consent = Consent(lambda request: asked.append(request) or "once")
    yield Toolbox(index, EditSession(index.workspace, journal), consent, lambda _event: None), asked
    journal.close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "diary.txt").write_text("private\n")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def accept_one(listener):
    listener.accept()[0].close()


def python(project, script, openings=None):
    return run_command([sys.executable, "-c", script], project, 90, openings or SandboxPermissions())


@needs_sandbox
def test_the_project_can_be_written_and_the_rest_is_not_there(project, home, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    script = f"""
import os
open("made.txt", "w").write("made")
print(os.path.exists({str(home / "diary.txt")!r}), os.environ.get("SSH_AUTH_SOCK"), os.listdir("/run"))
open({str(home / "left.txt")!r}, "w").write("only in memory")
open("/tmp/left.txt", "w").write("only in memory")
for place in ("/usr/planted", "/etc/planted"):
    try:
        open(place, "w")
    except OSError as error:
        print(place, error.strerror)
"""
    done = python(project, script)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("False None []")
    assert done.output.count("Read-only file system") == 2
    assert (project / "made.txt").read_text() == "made"
    assert sorted(p.name for p in home.iterdir()) == ["diary.txt"]
    assert not Path("/tmp/left.txt").exists()


@needs_sandbox
def test_the_network_is_closed_unless_it_is_opened(project, home):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=accept_one, args=(listener,))
        thread.start()
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 60)"
        refused = python(project, script)
        assert refused.exit_code == 1, refused.output
        assert python(project, script, SandboxPermissions(network=True)).exit_code == 0
        thread.join(60)


@needs_sandbox
def test_the_home_folder_is_there_when_it_is_opened(project, home):
    done = python(project, f"print(open({str(home / 'diary.txt')!r}).read())", SandboxPermissions(home=True))
    assert "private" in done.output


@needs_sandbox
@pytest.mark.parametrize("hooks", ["none", "a folder", "a link"])
def test_a_command_cannot_lead_the_persons_own_git_elsewhere(project, home, hooks):
    git(project, "init", "-q")
    folder = project / ".git" / "hooks"
    shutil.rmtree(folder, ignore_errors=True)
    if hooks == "a folder":
        folder.mkdir()
    elif hooks == "a link":
        (project / "shared-hooks").mkdir()
        folder.symlink_to("../shared-hooks")
    script = """
import os, shutil
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        print("refused", error.strerror)
shutil.copytree(".git", "evil", symlinks=True, ignore=shutil.ignore_patterns("commondir"))
open("evil/config", "a").write("[core]\\n fsmonitor = touch planted; false\\n")
attempt(lambda: open(".git/commondir", "w").write("../evil"))
attempt(os.replace, "evil/HEAD", ".git/commondir")
attempt(os.rename, ".git/hooks", ".git/older")
attempt(os.mkdir, ".git/hooks")
attempt(lambda: open(".git/hooks/post-checkout", "w").write("#!/bin/sh\\ntouch planted\\n"))
attempt(os.chmod, ".git/hooks/post-checkout", 0o755)
"""
    done = python(project, script)
    assert done.exit_code == 0, done.output
    assert done.output.count("refused") >= 2, done.output
    assert not (project / ".git" / "commondir").exists()
    assert {"none": not folder.exists(), "a folder": folder.is_dir(), "a link": folder.is_symlink()}[hooks]
    assert not (folder / "post-checkout").exists()
    git(project, "status")
    assert not (project / "planted").exists()


@needs_sandbox
def test_a_folder_that_belongs_to_a_repository_elsewhere_stays_there(project, home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    git(project, "init", "-q", "--separate-git-dir", str(elsewhere))
    before = (project / ".git").read_bytes()
    script = """
import os
for attempt in (lambda: open(".git", "w").write("gitdir: evil"), lambda: os.rename(".git", ".old")):
    try:
        attempt()
    except OSError as error:
        print("refused", error.strerror)
"""
    assert python(project, script).output.count("refused") == 2
    assert (project / ".git").read_bytes() == before


@needs_sandbox
def test_a_command_cannot_leave_what_the_persons_own_git_would_run(project, home):
    git(project, "init", "-q")
    (project / ".git" / "hooks").mkdir(exist_ok=True)
    script = """
import os, shutil, subprocess
def attempt(what, *arguments):
    try:
        what(*arguments)
        print("done", what.__name__)
    except OSError as error:
        print("refused", error.strerror)
attempt(lambda: open(".git/hooks/pre-commit", "w"))
attempt(lambda: open(".git/config", "a"))
attempt(os.rename, ".git", ".old")
attempt(os.rename, ".git/hooks", ".git/older")
attempt(os.replace, "tool.sh", ".git/config")
subprocess.run(["git", "add", "."], check=True)
who = ["-c", "user.name=T", "-c", "user.email=t@e.org"]
subprocess.run(["git", *who, "commit", "-qm", "In the sandbox"], check=True)
"""
    done = python(project, script)
    assert done.exit_code == 0, done.output
    assert done.output.count("refused") == 5, done.output
    assert b"In the sandbox" in git(project, "log", "--format=%s").stdout


@needs_sandbox
def test_what_a_command_leaves_running_ends_with_it_even_in_a_session_of_its_own(project, home):
    script = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', \"import time\\nfor n in range(600):\\n"
        " open('beat', 'w').write(str(n)); time.sleep(0.05)\"], start_new_session=True)\n"
        "import os, time\nwhile not os.path.exists('beat'): time.sleep(.02)"
    )
    assert python(project, script).exit_code == 0
    beat = (project / "beat").read_text()
    threading.Event().wait(0.3)
    assert (project / "beat").read_text() == beat


@needs_sandbox
def test_a_command_that_wants_more_is_shown_so(toolbox, home):
    tools, asked = toolbox
    for more in ({}, {"network": True}, {"network": True, "home": True}):
        tools.call("run", json.dumps({"argv": ["true"], **more}))
    assert [str(r.title) for r in asked] == ["Run a command in the project folder, in a sandbox"] * 3
    assert asked[0].warning == ""
    assert asked[1].warning == "It asks for the network."
    assert asked[2].warning == "It asks for the network and your home folder, to read and to write."
    assert len({r.key for r in asked}) == 3


def test_where_there_is_no_sandbox_the_person_is_told(toolbox, home, monkeypatch):
    tools, asked = toolbox
    monkeypatch.setattr(sandbox, "missing", lambda: "bubblewrap is not installed (package bubblewrap)")
    outcome = tools.call("run", json.dumps({"argv": [sys.executable, "-c", "print('ran')"]}))
    assert "ran" in outcome.text
    assert "sandbox" not in str(asked[0].title)
    assert asked[0].warning == (
        "No sandbox: bubblewrap is not installed (package bubblewrap). It can do whatever you can."
    )


@pytest.mark.parametrize("limit", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_time_limit_that_is_no_number_is_a_time_limit(toolbox, home, monkeypatch, limit):
    given = []
    monkeypatch.setattr(
        "app.code.agent.tools.run_command",
        lambda argv, folder, timeout_s, openings, cancelled, on_output: (
            given.append(timeout_s) or run_command([sys.executable, "-c", ""], folder, 90)
        ),
    )
    toolbox[0].call("run", f'{{"argv": ["sleep", "8"], "timeout_s": {limit}}}')
    assert given == [120.0]
