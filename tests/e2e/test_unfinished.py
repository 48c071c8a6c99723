"""Checks that killed work leaves no file that no page shows."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from devices.atomic_file import sweep_unfinished, unfinished
from tests.support.servers import ROOT, RunningServer, wait_for

WRITE = """
import sys, threading
from pathlib import Path
from devices.atomic_file import unfinished
with unfinished(Path(sys.argv[1])) as path:
    path.mkdir()
    (path / "data").write_bytes(b"x" * 1000)
    print("writing", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of writing, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path / "models" / "local" / "m")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    yield process, tmp_path / "models"
    process.kill()
    process.wait()
    process.stdout.close()


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_what_a_killed_process_wrote_is_deleted_and_a_live_ones_is_not(writer):
    process, models = writer
    before = files(models)
    assert len(before) == 2
    assert sweep_unfinished(models) == []
    assert files(models) == before
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(sweep_unfinished(models)) == 1
    assert files(models) == []


def test_files_of_earlier_versions_are_deleted_if_their_process_is_gone(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (
        f".partial/import-{gone.pid}-smol/a.gguf",
        f"local/.b.gguf.{gone.pid}.partial",
        f"p/{'0a' * 16}.{gone.pid}.part",
        f"p/film.{gone.pid}.part",
        f"p/import-{gone.pid}-notes",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / f"local/.c.gguf.{os.getppid()}.partial").write_bytes(b"x")
    (tmp_path / ".partial" / "owner--repository").mkdir()
    (tmp_path / ".partial" / "owner--repository" / "abc.part").write_bytes(b"a download that goes on later")
    (tmp_path / "local" / "note.txt").write_bytes(b"x")
    sweep_unfinished(tmp_path)
    assert files(tmp_path) == [
        ".partial/owner--repository/abc.part",
        f"local/.c.gguf.{os.getppid()}.partial",
        "local/note.txt",
        f"p/film.{gone.pid}.part",
        f"p/import-{gone.pid}-notes",
    ]


def test_only_an_old_temporary_file_is_deleted(tmp_path):
    for name in (".old.json.0123abcd.tmp", ".new.json.0123abcd.tmp", "0123abcd.tmp", ".notes.tmp"):
        (tmp_path / name).write_bytes(b"x")
        if "new" not in name:
            os.utime(tmp_path / name, (time.time() - 2 * 3600,) * 2)
    sweep_unfinished(tmp_path)
    assert files(tmp_path) == [".new.json.0123abcd.tmp", ".notes.tmp", "0123abcd.tmp"]


@pytest.mark.skipif(os.name != "posix", reason="ends a group of processes")
def test_a_server_deletes_the_stand_in_of_a_measurement_that_was_killed(tmp_path):
    stand_ins = tmp_path / "cache" / "stand-ins"
    bench = subprocess.Popen(
        [sys.executable, "-m", "app", "bench", "--shape", "smollm2-135m", "--type", "Q4_0"],
        cwd=ROOT,
        env={**os.environ, "TESSERA_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: any(p.stat().st_size for p in stand_ins.rglob("*.gguf")))
    finally:
        os.killpg(bench.pid, signal.SIGKILL)
        bench.wait()
    assert files(stand_ins)
    server = RunningServer(tmp_path)
    try:
        httpx.get(f"{server.url}/health", timeout=60).raise_for_status()
        wait_for(lambda: not list(stand_ins.iterdir()))
    finally:
        server.stop()


def test_a_long_name_has_room_for_what_is_added(tmp_path):
    with unfinished(tmp_path / ("名" * 84)) as path:
        path.write_bytes(b"x")
        path.rename(tmp_path / ("名" * 84))
    assert files(tmp_path) == ["名" * 84]


def test_a_server_deletes_what_killed_imports_and_uploads_left(tmp_path, writer):
    process, _ = writer
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = tmp_path / "state" / "files" / "file-0123"
    left.mkdir(parents=True)
    (left / "half.txt").write_bytes(b"x")
    server = RunningServer(tmp_path)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            sent = {"file": ("文" * 100 + ".txt", b"words"), "purpose": (None, "user_data")}
            made = client.post("/v1/files", files=sent)
            assert made.status_code == 200, made.text
            wait_for(lambda: not left.exists() and not files(tmp_path / "models" / "local"))
            assert client.get(f"/v1/files/{made.json()['id']}/content").content == b"words"
        stored = json.loads((tmp_path / "state" / "files.json").read_text())
        assert made.json()["id"] in json.dumps(stored)
        assert files(tmp_path / "state" / "files")[0].endswith("文.txt")
    finally:
        server.stop()
