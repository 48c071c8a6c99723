"""Checks a command's other permissions: metadata, other processes, sockets, git's programs."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from app.code.agent import sandbox
from app.code.agent.command import run_command
from app.code.agent.sandbox import SandboxPermissions
from tests.support.code_project import git

pytestmark = pytest.mark.skipif(sandbox.missing() is not None, reason=f"no sandbox: {sandbox.missing()}")

# Runs each attempt and prints the names of those that succeeded.
ATTEMPTS = """
import ctypes, json, os, resource, socket, sys
home, other = sys.argv[1], int(sys.argv[2])
private, libc = home + "/private", ctypes.CDLL(None, use_errno=True)
open("own", "w").write("1"); os.mkdir("folder"); open("folder/inner", "w").close(); os.symlink("own", "link")
os.symlink(private, "out")
child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
attempts = {%s}
done = []
for name, attempt in attempts.items():
    try:
        attempt(); done.append(name)
    except OSError:
        pass
os.kill(child, 9)
print(json.dumps(done))
"""
OUTSIDE = """
    "chmod": lambda: os.chmod(private, 0), "chmod of the folder": lambda: os.chmod(home, 0o755),
    "through a link": lambda: os.chmod("out", 0), "relative": lambda: os.chmod(os.path.relpath(private), 0),
    "a folder's descriptor": lambda: os.chmod("private", 0, dir_fd=os.open(home, os.O_PATH)),
    "the file's descriptor": lambda: os.chmod("/proc/self/fd/%d" % os.open(private, os.O_PATH), 0),
    "an empty path": lambda: call(452, os.open(private, os.O_PATH), b"", 0, 0x1000),
    "a readable file": lambda: os.chmod(os.open("/usr/bin/env", os.O_RDONLY), 0o755),
    "times": lambda: os.utime(private, (1, 1)), "times of a link": lambda: os.utime("out", (1, 1)),
    "old times": lambda: libc.utimes(private.encode(), None) and call(-1),
    "owner": lambda: os.chown(private, 0, 0), "owner of a folder": lambda: os.lchown(home, 0, 0),
    "attribute": lambda: os.setxattr(private, "user.x", b"1"),
    "limit": lambda: resource.prlimit(other, resource.RLIMIT_NOFILE, (64, 64)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, other, 19),
    "priority of a group": lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(other), 19),
    "priority of a user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
    "processor": lambda: os.sched_setaffinity(other, {0}),
    "schedule": lambda: os.sched_setscheduler(other, os.SCHED_BATCH, os.sched_param(0)),
    "disk priority": lambda: call(251, 1, other, 3 << 13),
    "kernel settings": lambda: open("/proc/sys/kernel/core_pattern", "r+"),
    "VSOCK": lambda: socket.socket(socket.AF_VSOCK),
    "io_uring": lambda: call(425, 1, ctypes.create_string_buffer(128)),
"""
WITHIN = """
    "chmod": lambda: os.chmod("own", 0o700), "a descriptor": lambda: os.chmod(os.open("own", os.O_RDONLY), 0o755),
    "a folder's descriptor": lambda: os.chmod("inner", 0o600, dir_fd=os.open("folder", os.O_RDONLY)),
    "times": lambda: os.utime("own", ns=(5, 7)), "now": lambda: os.utime("folder/inner"),
    "times of the link": lambda: os.utime("link", (9, 9), follow_symlinks=False),
    "owner": lambda: os.chown("own", os.getuid(), os.getgid()),
    "of the link": lambda: os.lchown("link", os.getuid(), -1),
    "limit": lambda: resource.prlimit(child, resource.RLIMIT_NOFILE, (64, 64)), "nice": lambda: os.nice(1),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, child, 19),
    "processor": lambda: os.sched_setaffinity(0, {0}),
"""
MEANT_ON_INTEL = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of calls on x86-64")


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "private").write_text("private")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def succeeded(project, home, attempts, openings=None):
    argv = [sys.executable, "-c", ATTEMPTS % attempts, str(home), str(os.getpid())]
    done = run_command(argv, project, 90, openings or SandboxPermissions())
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@MEANT_ON_INTEL
def test_files_and_processes_outside_stay_as_they_are(project, home, kind):
    before = (home / "private").stat(), home.stat(), os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    done = succeeded(project, home, OUTSIDE)
    # The empty home folder of bubblewrap is the command's own, and its processes are all that it can see.
    assert set(done) <= (
        {"chmod of the folder", "owner of a folder", "priority of a user"} if kind == "bubblewrap" else set()
    )
    after = (home / "private").stat(), home.stat(), os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    assert [(s.st_mode, s.st_mtime, s.st_uid) for s in before[:2]] == [
        (s.st_mode, s.st_mtime, s.st_uid) for s in after[:2]
    ]
    assert before[2:] == after[2:]


def test_the_commands_own_files_and_processes_change_as_usual(project, home, kind):
    assert sorted(succeeded(project, home, WITHIN)) == sorted(re.findall(r'"([^"]*)": lambda', WITHIN))
    assert (project / "own").stat().st_mode & 0o777 == 0o755
    assert (project / "own").stat().st_mtime_ns == 7
    assert (project / "link").lstat().st_mtime == 9
    assert (project / "folder" / "inner").stat().st_mode & 0o777 == 0o600


def test_with_the_network_no_socket_of_the_desktop_is_reached(project, home, kind):
    attempts = """
    "UNIX": lambda: socket.socket(socket.AF_UNIX), "VSOCK": lambda: socket.socket(socket.AF_VSOCK),
    "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW), "internet": lambda: socket.socket(),
    "a pair": socket.socketpair,
    """
    assert set(succeeded(project, home, attempts, SandboxPermissions(network=True))) == {"internet", "a pair"}


def plant(*paths):
    return "\n".join(
        f"os.makedirs(os.path.dirname({path!r}) or '.', exist_ok=True); "
        f"attempt(lambda: open({path!r}, 'w').write('#!/bin/sh\\ntouch planted\\n')); "
        f"attempt(lambda: os.chmod({path!r}, 0o755))"
        for path in paths
    )


HELPER = "import os\ndef attempt(what):\n    try:\n        what()\n    except OSError:\n        pass\n"


@pytest.mark.parametrize(
    ("settings", "existing", "planted"),
    [
        ("[core]\n\thooksPath = .husky\n", ".husky/pre-commit", ".husky/pre-commit"),
        ("[core]\n\thooksPath = .husky\n", ".husky/other", ".husky/post-commit"),
        ("[core]\n\thooksPath = .husky/_\n", ".husky/pre-commit", ".husky/pre-commit"),
        ("[core]\n\thooksPath = ./tools/../git-hooks\n", "git-hooks/pre-commit", "git-hooks/pre-commit"),
        ("[include]\n\tpath = ../shared.config\n", "shared.config", "shared.config"),
        ('[includeIf "gitdir:**"]\n\tpath = ../a.config\n', "a.config", "a.config"),
    ],
)  # fmt: skip
def test_what_the_settings_of_git_name_stays_as_it_is(project, home, kind, settings, existing, planted):
    git(project, "init", "-q")
    (project / existing).parent.mkdir(exist_ok=True)
    (project / existing).write_text("# as it was\n")
    with (project / ".git" / "config").open("a") as config:
        config.write(settings)
    assert (
        run_command([sys.executable, "-c", HELPER + plant(planted)], project, 90, SandboxPermissions()).exit_code
        == 0
    )
    assert (project / existing).read_text() == "# as it was\n"
    assert planted == existing or not (project / planted).exists()


def test_included_settings_of_included_settings_are_protected(project, home, kind):
    git(project, "init", "-q")
    with (project / ".git" / "config").open("a") as config:
        config.write("[include]\n\tpath = ../one\n")
    (project / "one").write_text("[include]\n\tpath = deep/two\n")
    (project / "deep").mkdir()
    (project / "deep" / "two").write_text("")
    run_command([sys.executable, "-c", HELPER + plant("deep/two")], project, 90, SandboxPermissions())
    assert (project / "deep" / "two").read_text() == ""


def test_a_rebase_that_would_run_something_new_is_named(project, home, kind):
    git(project, "init", "-q")
    todo = project / ".git" / "rebase-merge" / "git-rebase-todo"
    todo.parent.mkdir()
    todo.write_text("exec make test\npick 1234567 a change\n")
    script = f"open({str(todo)!r}, 'a').write('x touch planted\\n')"
    output = run_command([sys.executable, "-c", script], project, 90, SandboxPermissions()).output
    assert "x touch planted" in output
    assert "make test" not in output
    assert run_command(["true"], project, 90, SandboxPermissions()).output == ""


def test_hooks_that_did_not_exist_are_named(project, home, kind):
    git(project, "init", "-q")
    with (project / ".git" / "config").open("a") as config:
        config.write("[core]\n\thooksPath = later\n")
    output = run_command(
        [sys.executable, "-c", HELPER + plant("later/pre-commit")], project, 90, SandboxPermissions()
    ).output
    assert output.strip().startswith("later was made by the command"), output
    assert Path(project / "later").is_dir()
