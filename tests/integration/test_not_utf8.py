"""Bytes that are not UTF-8, in arguments, on standard input and in file names, against a real server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.client import Client
from engine.api.collections import CollectionRequest
from engine.core.sendable import encoded, sendable
from engine.documents.walk import Walk
from tests.support.servers import wait_for

ROOT = Path(__file__).parents[2]
WORD = b"caf\xe9"


def tessera(home, *arguments, given=b"", **env):
    """Run the command in a separate process, like a shell."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env={**os.environ, "TESSERA_HOME": str(home), **env},
        input=given,
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # depends on the locale
def test_a_chat_reads_any_bytes(server, errors):
    env = {"PYTHONIOENCODING": f"utf-8:{errors}"}
    few = ("--max-tokens", "2")
    for done in (
        tessera(server.home, "chat", "-p", "-", *few, given=b"-old\n+" + WORD + b"\n", **env),
        tessera(server.home, "chat", "-p", WORD, "--system", WORD, *few, **env),
        tessera(server.home, "chat", *few, given=WORD + b"\n/exit\n", **env),
    ):
        assert b"Traceback" not in done.stderr
        assert done.returncode == 0, done.stderr


def test_names_that_are_not_utf8_are_unknown_names(server):
    for arguments in (
        ("chat", WORD, "-p", "hi"),
        ("chat", "-p", "hi", "--draft", WORD),
        ("collections", "search", "papers", WORD),
        ("collections", "search", WORD, "word"),
        ("models", "show", WORD),
    ):
        done = tessera(server.home, *arguments)
        assert b"Traceback" not in done.stderr
        assert b"There is no " in done.stderr, done.stderr


def test_what_only_takes_text_says_so(tmp_path):
    done = tessera(tmp_path, "settings", "set", "server.host", WORD)
    assert done.returncode == 2
    assert b"is not UTF-8 text" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_file_whose_name_is_not_utf8_does_not_break_its_collection(server, tmp_path):
    folder = tmp_path / "papers"
    (folder / "sub").mkdir(parents=True)
    (folder / "good.txt").write_text("a lighthouse stands here")
    for name in (b"sch\xf6n.txt", b"sub/\xff.md"):
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_text("words")
    Path(os.fsdecode(bytes(folder) + b"/\xfe")).mkdir()
    with Client(server.url, server.token) as client:
        client.make_collection(CollectionRequest(name="not-utf8", sources=(str(folder),), embedding_model="none"))
        wait_for(lambda: client.collection("not-utf8").state == "ready", 60, "the collection")
        assert client.collection("not-utf8").documents == 1
        done = tessera(server.home, "collections", "list")
        client.remove_collection("not-utf8")
    assert done.returncode == 0, done.stderr
    assert b"not-utf8" in done.stdout
    files = {Path(file.path).name: file.skipped for file in Walk((str(folder),)).files()}
    assert files.pop("good.txt") == ""
    assert files == dict.fromkeys(["sch\ufffdn.txt", "\ufffd", "\ufffd.md"], "its name is not UTF-8; rename it")


def test_lone_surrogates_are_replaced_and_nothing_else():
    assert sendable("a\udce9b\ud800 é😀") == "a\ufffdb\ufffd é😀"
    assert (
        encoded({"k\udc80": ["x\udce9", 1, None, {"y": "é"}]})
        == '{"k\ufffd":["x\ufffd",1,null,{"y":"é"}]}'.encode()
    )
    assert encoded(["é"]) == '["é"]'.encode()
