"""A hundred attempts of ten kinds to leave the agent's sandbox. One that succeeds changes nothing that matters."""

import ctypes
import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from app.code.agent import sandbox
from app.code.agent.command import run_command
from app.code.agent.sandbox import SandboxPermissions

pytestmark = [
    pytest.mark.skipif(sandbox.missing() is not None, reason=f"no sandbox: {sandbox.missing()}"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of calls on x86-64"),
]

# Runs each attempt and prints the names of those that succeeded: they return something true.
ATTEMPTS = """
import ctypes, fcntl, json, os, signal, socket, struct, subprocess, sys, termios, time
facts = json.loads(sys.argv[1])
home, other, shared, queue, port, name, held, sockets, terminal = (facts[key] for key in (
    "home", "other", "shared", "queue", "port", "name", "held", "sockets", "terminal"))
private, libc = home + "/private", ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
open("own", "w").close(); open("own2", "w").close(); os.symlink(private, "out"); os.symlink(home, "outdir")
def call(*arguments):
    found = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if found < 0:
        raise OSError(ctypes.get_errno(), "")
    return True
def done(what):
    what(); return True
def read(path):
    with open(path, "rb") as file:
        return b"PRIVATE" in file.read(100_000)
def written(path):
    # In bubblewrap some of these folders are there, empty and in memory; the test looks at the real ones.
    with open(path, "w") as file:
        return file.write("x")
def apart(what):
    # In a process of its own, so that a success changes nothing for the other attempts.
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if what() else 1)
        except BaseException:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
def handle():
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    call(303, -100, private.encode(), buffer, ctypes.byref(ctypes.c_int()), 0)
    return call(304, os.open("/", 0), buffer, 0)
def memory(number):
    buffer = ctypes.create_string_buffer(8)
    ours, theirs = struct.pack("QQ", ctypes.addressof(buffer), 8), struct.pack("QQ", facts["address"], 8)
    return call(number, other, ours, 1, theirs, 1, 0)
def attached():
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(shared, None, 0)
    return address not in (None, ctypes.c_void_p(-1).value)
def key():
    found = libc.syscall(250, 10, -3, b"user", b"tessera-test", 0)
    return found > 0
def pair(what):
    return done(lambda: what(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]))
def raw_pair():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
    one.connect(sockets + "/datagrams"); return True
def owned(what):
    # Whether a program would run as its owner for anybody.
    return os.stat(what()).st_mode & 0o4000
def chmod(*arguments):
    call(*arguments); return "own"
def create(path, *arguments):
    call(*arguments); return path
attempts = {
# files of others, by detours
"/proc/PID/root": lambda: read(f"/proc/{other}/root{private}"),
"/proc/1/root": lambda: read(f"/proc/1/root{private}"),
"/proc/PID/cwd": lambda: read(f"/proc/{other}/cwd/private"),
"/proc/PID/fd": lambda: read(f"/proc/{other}/fd/{held}"),
"/proc/PID/environ": lambda: b"PRIVATE" in open(f"/proc/{other}/environ", "rb").read(),
"/proc/PID/cmdline": lambda: open(f"/proc/{other}/cmdline", "rb").read(),
"hard link": lambda: done(lambda: os.link(private, "linked")),
"hard link of a system file": lambda: done(lambda: os.link("/etc/hostname", "linked2")),
"move into the project": lambda: done(lambda: os.rename(private, "moved")),
"exchange": lambda: call(316, -100, private.encode(), -100, b"own", 2),
"file handle": handle, "openat2": lambda: call(437, -100, private.encode(), bytes(24), 24),
"link in the project": lambda: read("out"), "truncate": lambda: done(lambda: os.truncate(private, 0)),
"program of the home": lambda: done(lambda: os.posix_spawn(home + "/script", ["x"], {})),
"inherited descriptor": lambda: any(
    os.path.realpath(f"/proc/self/fd/{f}").startswith(home) for f in os.listdir("/proc/self/fd")),
# mounts and namespaces
"mount namespace": lambda: apart(lambda: call(272, 0x20000)),
"network": lambda: apart(lambda: call(272, 0x40000000)),
"user and mount": lambda: apart(lambda: call(272, 0x10020000) and call(165, b"x", b"/mnt", b"tmpfs", 0, 0)),
"namespace of another": lambda: apart(lambda: call(308, os.open(f"/proc/{other}/ns/mnt", 0), 0)),
"mount": lambda: apart(lambda: call(165, b"x", b"folder", b"tmpfs", 0, 0)),
"bind": lambda: apart(lambda: call(165, home.encode(), b".", b"", 4096, 0)),
"unmount the home": lambda: apart(lambda: call(166, home.encode(), 2)),
"unmount /tmp": lambda: apart(lambda: call(166, b"/tmp", 2)),
"open_tree": lambda: call(428, -100, b"/", 1), "fsopen": lambda: call(430, b"tmpfs", 0),
"chroot": lambda: apart(lambda: done(lambda: os.chroot("/"))),
"pivot_root": lambda: apart(lambda: call(155, b".", b".")),
# processes of others
"kill": lambda: done(lambda: os.kill(other, 0)), "tgkill": lambda: call(234, other, other, 0),
"group": lambda: done(lambda: os.killpg(facts["group"], 0)), "sigqueue": lambda: call(129, other, 0, bytes(128)),
"pidfd": lambda: done(lambda: signal.pidfd_send_signal(os.pidfd_open(other), 0)),
"its descriptor": lambda: call(438, os.pidfd_open(other), held, 0),
"ptrace": lambda: call(101, 16, other, 0, 0), "seize": lambda: call(101, 0x4206, other, 0, 0),
"read memory": lambda: memory(310), "write memory": lambda: memory(311),
"/proc/PID/mem": lambda: done(lambda: open(f"/proc/{other}/mem", "rb")),
"out of memory": lambda: written(f"/proc/{other}/oom_score_adj"),
"its name": lambda: written(f"/proc/{other}/comm"),
"advise": lambda: call(440, os.pidfd_open(other), struct.pack("QQ", 65536, 4096), 1, 20, 0),
"migrate": lambda: call(256, other, 8, struct.pack("Q", 1), struct.pack("Q", 1)),
"compare": lambda: call(312, os.getpid(), other, 0, 0, 0),
"robust list": lambda: call(274, other, bytes(8), bytes(8)),
# memory, messages and keys
"shared memory": attached, "remove it": lambda: call(31, shared, 0, 0),
"read messages": lambda: call(70, queue, ctypes.create_string_buffer(64), 32, 0, 0o24000),
"send messages": lambda: call(69, queue, ctypes.create_string_buffer(16), 8, 0o4000),
"list of shared memory": lambda: open("/proc/sysvipc/shm").read().count("\\n") > 1,
"memory by name": lambda: read("/dev/shm/" + name), "key of the session": key,
"new key": lambda: call(248, b"user", b"tessera-new", b"1", 1, -4), "link keys": lambda: call(250, 8, -4, -3),
# sockets
"TCP": lambda: done(lambda: socket.create_connection(("127.0.0.1", port), 2)),
"IPv6": lambda: done(lambda: socket.create_connection(("::1", port), 2)),
"MPTCP": lambda: done(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(("127.0.0.1", port))),
"fast open": lambda: done(lambda: socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", port))),
"abstract": lambda: done(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + name)),
"UNIX": lambda: done(lambda: socket.socket(socket.AF_UNIX).connect(sockets + "/stream")),
"a pair's end": lambda: pair(lambda s: s.connect(sockets + "/datagrams")), "raw pair": raw_pair,
"a pair's message": lambda: pair(lambda s: s.sendto(b"x", sockets + "/datagrams")),
"abstract message": lambda: pair(lambda s: s.sendto(b"x", "\\0" + name + "d")),
"crypto": lambda: done(lambda: socket.socket(38, socket.SOCK_SEQPACKET, 0)),
"Bluetooth": lambda: done(lambda: socket.socket(31, socket.SOCK_RAW, 1)),
"packets": lambda: done(lambda: socket.socket(17, socket.SOCK_RAW, 0)),
"VSOCK": lambda: done(lambda: socket.socket(40)), "XDP": lambda: done(lambda: socket.socket(44, socket.SOCK_RAW)),
# the kernel
"bpf": lambda: call(321, 0, ctypes.create_string_buffer(128), 72), "userfaultfd": lambda: call(323, 1),
"perf": lambda: call(298, struct.pack("II", 1, 112) + bytes(112), 0, -1, -1, 0),
"module": lambda: call(175, b"x", 1, b""), "ports": lambda: apart(lambda: call(172, 3)),
"clock": lambda: call(227, 0, struct.pack("qq", int(time.time()), 0)),
"io_uring": lambda: call(425, 1, ctypes.create_string_buffer(128)), "fanotify": lambda: call(300, 0, 0),
"old calls": lambda: call(0x40000000 | 39),
# devices
"block device": lambda: done(lambda: os.mknod("block", 0o60600, os.makedev(8, 0))),
"memory device": lambda: done(lambda: os.mknod("character", 0o20600, os.makedev(1, 1))),
"/dev/mem": lambda: done(lambda: os.open("/dev/mem", 0)),
"/dev/kmsg": lambda: done(lambda: os.open("/dev/kmsg", 1)),
"/dev/kvm": lambda: done(lambda: os.open("/dev/kvm", 2)),
"/dev/fuse": lambda: done(lambda: os.open("/dev/fuse", 2)),
"disks": lambda: any(
    done(lambda: os.open("/dev/" + d, 0)) for d in os.listdir("/dev") if d.startswith(("sd", "vd", "nvme"))),
"core": lambda: open("/proc/kcore", "rb").read(1), "sysrq": lambda: done(lambda: open("/proc/sysrq-trigger", "a")),
"core pattern": lambda: done(lambda: open("/proc/sys/kernel/core_pattern", "r+")),
"power": lambda: done(lambda: open("/sys/power/state", "a")),
"groups": lambda: done(lambda: os.mkdir("/sys/fs/cgroup/" + name)),
# terminals
"/dev/tty": lambda: done(lambda: os.open("/dev/tty", os.O_RDWR)),
"typed": lambda: any(fcntl.ioctl(fd, termios.TIOCSTI, b"x") is not None for fd in (0, 1, 2)),
"terminal of another": lambda: done(lambda: os.open(terminal, os.O_WRONLY | os.O_NOCTTY)),
"pasted": lambda: any(fcntl.ioctl(fd, 0x541C, b"\\3") is not None for fd in (0, 1, 2)),
# rights
"as its owner": lambda: owned(lambda: chmod(90, b"own", 0o4755)),
"by descriptor": lambda: owned(lambda: chmod(91, os.open("own", 0), 0o4755)),
"relative": lambda: owned(lambda: chmod(268, -100, b"own", 0o4755)),
"newer": lambda: owned(lambda: chmod(452, -100, b"own", 0o4755, 0)),
"created so": lambda: owned(lambda: create("made", 257, -100, b"made", os.O_CREAT | os.O_WRONLY, 0o4755)),
"created so, older": lambda: owned(lambda: create("made2", 2, b"made2", os.O_CREAT | os.O_WRONLY, 0o4755)),
"created so, oldest": lambda: owned(lambda: create("made3", 85, b"made3", 0o4755)),
"created so, newer": lambda: owned(lambda: create(
    "made4", 437, -100, b"made4", struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24)),
"as a node": lambda: owned(lambda: create("made5", 259, -100, b"made5", 0o104755, 0)),
"without a name": lambda: os.fstat(os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)).st_mode & 0o4000,
"capabilities": lambda: done(lambda: os.setxattr("own", "security.capability", bytes(20))),
"new privileges": lambda: "NoNewPrivs:\\t0" in open("/proc/self/status").read(),
# writing elsewhere
"/etc": lambda: written("/etc/" + name), "/usr": lambda: written("/usr/local/bin/" + name),
"timers": lambda: written("/var/spool/cron/crontabs/" + name),
}
succeeded = []
for label, attempt in attempts.items():
    try:
        if attempt():
            succeeded.append(label)
    except Exception:
        pass
for path in (home + "/new", "outdir/new2", "../new3", "/var/tmp/" + name, "/tmp/" + name, "/run/" + name,
             "/dev/shm/" + name + "2"):
    try:
        written(path)
    except OSError:
        pass
try:
    os.rename("own2", "../own2")
except OSError:
    pass
print(json.dumps([len(attempts), succeeded]))
"""
NAME = f"tessera-ways-{os.getpid()}"
ELSEWHERE = (
    "new",
    "new2",
    "../new3",
    "../own2",
    f"/var/tmp/{NAME}",
    f"/tmp/{NAME}",
    f"/run/{NAME}",
    f"/dev/shm/{NAME}2",
)


@pytest.fixture
def outside(monkeypatch):
    """What attempts look for: files, memory, messages, a key, sockets and a terminal of another program."""
    folder = Path(tempfile.mkdtemp(prefix="ways-", dir="/var/tmp"))
    home, libc = folder / "home", ctypes.CDLL(None, use_errno=True)
    home.mkdir()
    (home / "private").write_text("PRIVATE")
    (home / "script").write_text("#!/bin/sh\n")
    (home / "script").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    held = os.open(home / "private", os.O_RDONLY)
    os.set_inheritable(held, True)
    shared = libc.shmget(0, 4096, 0o1666)
    queue = libc.msgget(0, 0o1666)
    libc.msgsnd(queue, ctypes.create_string_buffer(b"\1" + bytes(7) + b"PRIVATE"), 8, 0)
    libc.syscall(248, b"user", b"tessera-test", b"PRIVATE", 7, -3)
    (memory := Path("/dev/shm") / NAME).write_text("PRIVATE")
    opened = [socket.create_server(("127.0.0.1", 0))]
    for address, how in (("stream", socket.SOCK_STREAM), ("datagrams", socket.SOCK_DGRAM)):
        for place in (str(folder / address), f"\0{NAME}{'d' * (address == 'datagrams')}"):
            opened.append(socket.socket(socket.AF_UNIX, how))
            opened[-1].bind(place)
            if address == "stream":
                opened[-1].listen()
    ends = os.openpty()
    secret = ctypes.create_string_buffer(b"PRIVATE")
    yield {
        "home": str(home), "other": os.getpid(), "shared": shared, "queue": queue, "name": NAME, "held": held,
        "port": opened[0].getsockname()[1], "sockets": str(folder), "terminal": os.ttyname(ends[1]),
        "address": ctypes.addressof(secret), "group": os.getpgrp(),
    }  # fmt: skip
    for descriptor in (held, *ends):
        os.close(descriptor)
    for end in opened:
        end.close()
    libc.shmctl(shared, 0, None)
    libc.msgctl(queue, 0, None)
    memory.unlink()
    shutil.rmtree(folder)


@pytest.mark.parametrize("network", [False, True])
def test_no_way_leads_out(outside, kind, network):
    project = Path(outside["sockets"]) / "project"
    project.mkdir()
    argv = [sys.executable, "-c", ATTEMPTS, json.dumps(outside)]
    done = run_command(argv, project, 90, SandboxPermissions(network=network))
    count, succeeded = json.loads(done.output.splitlines()[-1])
    assert count > 100
    assert set(succeeded) <= ({"TCP", "MPTCP", "fast open"} if network else set())
    home = Path(outside["home"])
    assert [path for path in ELSEWHERE if (home / path).exists()] == []
    assert (home / "private").read_text() == "PRIVATE"
