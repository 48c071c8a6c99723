"""Every file of a folder is read, or listed with the reason; a place that cannot be accessed stops nothing else."""

import os
import random
import socket
import stat
import sys
from pathlib import Path

import pytest

from engine.core.sendable import sendable
from engine.documents import search
from engine.documents.types import NEEDS_OCR
from engine.documents.walk import MAX_DEPTH, Walk
from tests.support import documents_made as made
from tests.support.servers import wait_for

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
MS_ENCRYPTED = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
WITHOUT_ZEROS = bytes(b or 1 for b in random.Random(5).randbytes(400))


def settled(live):
    wait_for(lambda: live.checked_at and not live.reading, 60, "reading")
    return live


def found(live, question):
    hits = search.find(live.store, live.vectors, question, None, "words")
    return {Path(hit.path).name for hit in hits}


def unread(live):
    """Reasons by path: of the file, or of its first unread page."""
    reasons = {}
    for row in live.store.documents(limit=1000, problems=True):
        page = next((problem for _, _, problem in live.store.pages(row.id) if problem), "")
        reasons[row.path] = row.problem or page
    return reasons


TEXTS = {
    "notes.2024": "The cormorant dries its wings.",
    "README.de": "The cormorant dives.",
    "boat.f90": "! cormorant",
    "app.log.1": "cormorant seen",
    "Dockerfile.dev": "FROM cormorant",
    "UPPER.TXT": "cormorant",
    "wide.ini": "name=cormorant".encode("utf-16"),
    "very-wide.ini": "name=cormorant".encode("utf-32"),
    "marked.csv": "\ufeffbird,sea\r\ncormorant,north\nheron,south\r",
    "mu\u0308we.txt": "cormorant",
    "M\u00fcwe.txt": "cormorant",
    "m\u00fcwe.txt": "cormorant",
    "two\nlines.txt": "cormorant",
    "n" * 250 + ".txt": "cormorant",
}
LISTED = {
    ".hidden.txt": b"cormorant",
    "empty.txt": b"",
    "blank.md": b" \n\n \t\n",
    "picture.PNG": PNG,
    "program.exe": b"MZ\x90\0\x03",
    "film.mp4": b"\0\0\0\x20ftypisom",
    "letter.msg": MS_ENCRYPTED,
    "locked.docx": MS_ENCRYPTED,
    "key.bin": WITHOUT_ZEROS,
    "text.pdf": b"The cormorant is no PDF.",
    "book.epub": b"PK\x03\x04",
    "ignored.txt": b"cormorant",
    "packed.tar.zst": b"(\xb5/\xfd",
    "broken.ipynb": b'{"cells": [',
    "notes.txt~": b"cormorant",
    "~$locked.docx": b"\x03Ida",
    "#notes.txt#": b"cormorant",
    "notes.txt.bak": b"cormorant",
    "film.mp4.part": b"cormorant",
    "uv.lock": b"cormorant",
    "measured.dat": b"1.5 2.5 cormorant\n" * 300_000,
    "node_modules/left.txt": b"cormorant",
    "Build/notes.txt": b"cormorant",
    ".git/config": b"cormorant",
    "sub/.cache/notes.txt": b"cormorant",
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names and files")
def test_every_file_is_read_or_listed(collections, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    for name, content in {**TEXTS, **LISTED}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / ".gitignore").write_text("ignored.txt\n")
    made.pdf(folder / "scan.pdf", [[]], pictures={0})
    (folder / "link.txt").symlink_to(folder / "README.de")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(folder / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)  # a socket's path has at most 107 bytes
        server.bind("socket.txt")
    for name in (b"sch\xf6n.txt", b"sub/\xff.md"):
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_text("cormorant")
    Path(os.fsdecode(bytes(folder) + b"/\xfe")).mkdir()

    live = settled(collections.add("all", sources=(str(folder),)))
    assert found_all(live) == set(TEXTS)
    reasons = unread(live)
    lost = [path for path in every_path(folder) if not is_listed(path, reasons)]
    assert {Path(path).name for path in lost} == set(TEXTS)
    assert all(reasons.values())
    assert reasons[str(folder / "picture.PNG")] == reasons[str(folder / "scan.pdf")] == NEEDS_OCR
    assert reasons[str(folder / "measured.dat")] == "it has 5 MiB, more than 4"
    counts = live.store.counts()
    assert counts.documents == len(TEXTS) + len(reasons) - counts.skipped
    assert len(live.store.documents(limit=1000)) == counts.documents


def found_all(live):
    rows = live.store.connection.execute(
        "SELECT DISTINCT path FROM chunk JOIN document ON document.id=document_id WHERE text LIKE '%cormorant%'"
    )
    return {Path(path).name for (path,) in rows}


def every_path(folder):
    """Every path that is no folder, as a text that can be sent."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*files, *folders)):
            if path.is_symlink() or not path.is_dir():
                yield sendable(str(path))


def is_listed(path, reasons):
    return path in reasons or any(str(parent) in reasons for parent in Path(path).parents)


@pytest.mark.skipif(os.name == "nt", reason="paths are shorter there")
def test_a_folder_too_deep_for_a_walk_is_listed(tmp_path):
    (tmp_path / "z.txt").write_text("The heron waits.")
    places = [tmp_path]
    try:
        for _ in range(1200):
            places.append(places[-1] / "d")
            places[-1].mkdir()
        files = {Path(file.path).name: file.skipped for file in Walk((str(tmp_path),)).files()}
        assert files == {"d": f"it is more than {MAX_DEPTH} folders deep", "z.txt": ""}
    finally:
        for place in reversed(places[1:]):
            place.rmdir()


def test_a_reason_goes_with_its_file(collections, tmp_path):
    (tmp_path / "folder").mkdir()
    place = tmp_path / "folder" / "link.txt"
    place.symlink_to("nowhere")
    live = settled(collections.add("one", sources=(str(place.parent),)))
    assert unread(live) == {str(place): "links are not followed"}
    place.unlink()
    place.write_text("The cormorant dives.")
    wait_for(lambda: found(live, "cormorant"), 60, "the file in its place")
    assert unread(live) == {}
    place.unlink()
    place.symlink_to("nowhere")
    collections.refresh("one")
    wait_for(lambda: unread(live) and not found(live, "cormorant"), 60, "the link")
    place.unlink()
    wait_for(lambda: not unread(live), 60, "the removal")


def test_an_ignore_file_counts_at_once(collections, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "secret.txt").write_text("The cormorant dives.")
    (folder / "public.txt").write_text("The heron waits.")
    live = settled(collections.add("one", sources=(str(folder),)))
    assert found(live, "cormorant")
    (folder / ".tesseraignore").write_text("secret.txt\n")
    wait_for(lambda: not found(live, "cormorant"), 60, "the rule")
    assert found(live, "heron")
    (folder / ".tesseraignore").unlink()
    wait_for(lambda: found(live, "cormorant"), 60, "the end of the rule")


@pytest.mark.skipif(os.name == "nt", reason="names may be longer there")
def test_a_source_that_cannot_be_accessed_stops_no_other(collections, tmp_path):
    """A name that is too long fails as a dead network mount does: with an error that is not "not found"."""
    folder, lost = tmp_path / "folder", tmp_path / ("n" * 300)
    folder.mkdir()
    (folder / "a.txt").write_text("The cormorant dives.")
    live = settled(collections.add("one", sources=(str(lost), str(folder))))
    assert found(live, "cormorant")
    assert unread(live) == {str(lost): os.strerror(36)}
    (folder / "b.txt").write_text("The heron waits.")
    wait_for(lambda: found(live, "heron"), 60, "a change")
    assert collections.remove("one").name == "one"


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no such users")
def test_a_folder_without_permission_is_listed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    locked = folder / "locked"
    locked.mkdir()
    (locked / "a.txt").write_text("The cormorant dives.")
    (folder / "b.txt").write_text("The heron waits.")
    locked.chmod(0)
    opened = [place for place in folder.parents if not place.stat().st_mode & stat.S_IXOTH]
    modes = [place.stat().st_mode for place in opened]
    is_root = os.geteuid() == 0
    walk = Walk((str(folder),))
    try:
        for place in (*opened, folder) if is_root else ():
            place.chmod(0o755)
        if is_root:
            os.seteuid(65534)
        files = {Path(file.path).name: file.skipped for file in walk.files()}
    finally:
        if is_root:
            os.seteuid(0)
        for place, mode in zip(opened, modes, strict=True):
            place.chmod(mode)
        locked.chmod(0o700)
    assert files == {"locked": "Permission denied", "b.txt": ""}
    assert not walk.unseen
