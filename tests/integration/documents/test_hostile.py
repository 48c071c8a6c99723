"""Documents and folders that try to access files outside of themselves."""

import contextlib
import itertools
import os
import re
import sys
import zipfile
from pathlib import Path

import pytest

from engine.core.paths import user_paths
from engine.documents import file_types, registry
from engine.documents import registry as indexing
from engine.documents.formats import mail
from engine.documents.reader_process import Reader
from engine.documents.store import Store
from engine.documents.types import Chunk, PageRead, ReadAnswer
from engine.documents.walk import Walk
from tests.support import documents_made as made
from tests.support.servers import wait_for

SECRET = "the password is herring"


@pytest.fixture(scope="module")
def reader():
    made_one = Reader()
    yield made_one
    made_one.close()


def with_entity(path, secret):
    """Add an entity that refers to `secret` to every XML part, and use it as the first text."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    entity = f'<!DOCTYPE any [<!ENTITY far SYSTEM "{secret.as_uri()}">]>'.encode()
    changed = 0
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in parts.items():
            if name.endswith((".xml", ".xhtml", ".opf")):
                root = re.search(rb"<[A-Za-z]", raw).start()
                said, count = re.subn(rb">([^<>&]*[a-z]{3}[^<>&]*)</", rb">&far;</", raw[root:], count=1)
                parts[name] = raw[:root] + entity + said
                changed += count
            archive.writestr(name, parts[name])
    assert changed
    return path


@pytest.mark.parametrize("kind", ["docx", "xlsx", "pptx", "epub"])
def test_an_entity_that_names_a_file_is_not_read(reader, tmp_path, kind):
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    path = tmp_path / f"a.{kind}"
    more = {"pptx": [[("Boats", "The dory")]], "epub": [["Chapter one is about boats."]]}.get(kind, [])
    getattr(made, kind)(path, *more)
    pages = list(reader.read(with_entity(path, secret), file_types.kind_of(path.name)))
    assert SECRET not in repr(pages)
    assert pages


def test_links_and_pipes_of_a_folder_are_left_out(collections, folder, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(f"{SECRET}\n")
    (folder / "link.txt").symlink_to(secret)
    (folder / "zero.txt").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("..")
    os.mkfifo(folder / "pipe.txt")
    live = collections.add("sea", sources=(str(folder),))
    wait_for(lambda: live.checked_at and not live.reading, 120, "reading")
    names = {document.path.rpartition("/")[2] for document in live.store.documents()}
    assert names == {"tides.md", "herring.txt", "boats.pdf", "broken.pdf"}


def many_times(path, part, old, new):
    """Replace `old` with `new` in one part of the archive."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name).decode("utf-8", "surrogateescape") for name in archive.namelist()}
    assert old in parts[part]
    parts[part] = parts[part].replace(old, new, 1)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text.encode("utf-8", "surrogateescape"))
    return path


@pytest.mark.parametrize("kind", ["epub", "epub, by fragments", "pptx", "xlsx"])
def test_a_part_that_is_named_many_times_is_read_once(reader, tmp_path, kind):
    path = tmp_path / f"a.{kind[:4]}"
    if kind.startswith("epub"):
        made.epub(path, ["Chapter one is about boats.", "Chapter two is about tides."])
        items = "".join(f'<item id="f{n}" href="text/c0.xhtml#n{n}"/>' for n in range(3000))
        same = kind == "epub"
        spine = "".join(f'<itemref idref="{"c0" if same else f"f{n}"}"/>' for n in range(3000))
        many_times(path, "OEBPS/content.opf", "<spine>", f"<spine>{spine}")
        many_times(path, "OEBPS/content.opf", "<manifest>", f"<manifest>{'' if same else items}")
    elif kind == "pptx":
        made.pptx(path, [("Boats", "The dory"), ("Tides", "High water")])
        again = '<p:sldId id="256" r:id="rId1"/>'
        many_times(path, "ppt/presentation.xml", again, again * 3000)
    else:
        made.xlsx(path)
        with zipfile.ZipFile(path) as archive:
            (sheet,) = re.findall(r'<sheet [^>]*name="Stock"[^>]*/>', archive.read("xl/workbook.xml").decode())
        again = "".join(sheet.replace('"Stock"', f'"Stock {n}"') for n in range(300))
        many_times(path, "xl/workbook.xml", sheet, sheet + again)
    pages = [page for answer in reader.read(path, file_types.kind_of(path.name)) for page in answer.pages]
    assert 2 <= len(pages) <= 4
    assert not any(page.problem for page in pages)


@pytest.mark.parametrize("kind", ["mbox", "epub", "pptx"])
def test_one_damaged_part_leaves_the_others_readable(reader, tmp_path, monkeypatch, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "mbox":
        made.mbox(path, [made.message(f"mail {n}", f"Text of number {n}.") for n in range(3)])
        raw = path.read_bytes().replace(b"From: ida@example.org", b"From: " + b"(" * 3000 + b"x", 2)
        raw = raw.replace(b"From: " + b"(" * 3000 + b"x", b"From: ida@example.org", 1)  # only in the second
        path.write_bytes(raw)
    elif kind == "epub":
        deep = "<div>" * 200_000
        made.epub(path, ["Text of number 0.", deep, "Text of number 2."])
    else:
        made.pptx(path, [("A", "Text of number 0."), ("B", "<a:t>"), ("C", "Text of number 2.")])
    pages = [page for answer in reader.read(path, file_types.kind_of(path.name)) for page in answer.pages]
    text = repr(pages)
    assert "Text of number 0" in text
    assert "Text of number 2" in text
    assert kind == "epub" or any("damaged" in page.problem for page in pages)


@pytest.mark.parametrize(
    "head",
    [
        "To: " + "someone@example.org, " * 30_000,
        "From: " + "(" * 5000,
        "Content-Type: text/plain; charset=x-unknown",
        "Content-Type: text/plain; charset=rot13",
        'Content-Type: text/plain; charset="utf\0-8"',
    ],
    ids=["addresses", "brackets", "unknown", "no text", "zero"],
)
def test_a_mail_is_read_whatever_its_headers_are(tmp_path, head):
    """A long list of addresses took a minute; an unknown encoding name hid the text."""
    path = tmp_path / "a.eml"
    path.write_bytes(f"Subject: Boats\n{head}\n\nThe dory and the Übermut.\n".encode())
    [page] = mail.eml(path)
    assert "The dory and the Übermut." in repr(page)
    assert "Boats" in repr(page)


@pytest.mark.parametrize("html", ["", "<!-- -->", "\0"])
def test_a_mail_whose_html_is_empty_keeps_its_headers_and_attachments(tmp_path, html):
    (tmp_path / "m.eml").write_bytes(
        b'From: a@b.c\nSubject: Lyrics\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="B"\n\n'
        b"--B\nContent-Type: text/html\n\n" + html.encode() + b"\n"
        b'--B\nContent-Type: text/plain\nContent-Disposition: attachment; filename="s.txt"\n\nWrens sing.\n--B--\n'
    )
    [page] = mail.eml(tmp_path / "m.eml")
    text = "\n".join(block.text for block in page.blocks)
    assert "Subject: Lyrics" in text
    assert "Wrens sing." in text


class Unreadable:
    """A reader of a document whose pages cannot be read; it counts them."""

    def read(self, path, kind, first=1):
        for self.number in itertools.count(first):
            yield ReadAnswer((PageRead(self.number, "", (), "missing"),), done=False)


def test_a_document_of_unreadable_pages_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "MAX_UNREAD", 20)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("x")
    store, reader = Store(tmp_path / "index.db"), Unreadable()
    (found,) = Walk((str(tmp_path / "docs"),)).files()
    assert registry.read_file(store, found, reader, lambda: False) == "done"
    [document] = store.documents()
    assert (document.state, document.unread_pages, reader.number) == ("ready", 21, 21)
    assert "more than 20 of its pages" in document.problem
    store.close()


class Endless:
    """A reader whose first file never ends; it records which files it was asked to read."""

    ocr = False

    def __init__(self):
        self.asked = []

    def read(self, path, kind, first=1):
        self.asked.append((path.name, first))
        number = first
        while True:
            done = path.name != "a.txt"
            chunk = Chunk("", "text", f"zebra {number} " + "x" * 1000)
            yield ReadAnswer((PageRead(number, "", (chunk,), ""),), done=done)
            if done:
                return
            number += 1


def test_a_document_without_an_end_is_cut_and_the_others_are_read_before_that(tmp_path, monkeypatch):
    monkeypatch.setattr(indexing, "TURN_S", 0.0)
    monkeypatch.setattr(indexing, "MAX_CHARS", 30_000)
    place = tmp_path / "folder"
    place.mkdir()
    for name in ("a.txt", "b.txt", "z.txt"):
        (place / name).write_text(name)
    store, reader, progress = Store(tmp_path / "index.db"), Endless(), indexing.Progress()
    assert indexing.update(store, Walk((str(place),)), reader, progress, lambda: False)
    names = [name for name, _ in reader.asked]
    assert names[:3] == ["a.txt", "b.txt", "z.txt"]
    assert progress.done == progress.files == 3
    found = {row.title: row for row in store.documents()}
    assert [row.state for row in found.values()] == ["ready"] * 3
    assert "more than 30,000 characters" in found["a"].problem
    assert 30_000 < found["a"].chars < 32_500
    store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
def test_indexes_that_nobody_uses_hold_no_descriptors(tessera_home, tmp_path, monkeypatch):
    """Idle indexes are closed, also after a start, and opened again on use."""
    monkeypatch.setattr(registry, "MAX_OPEN", 4)
    monkeypatch.setattr(registry, "OPEN_S", 0.0)
    (tmp_path / "a.txt").write_text("The zebra has stripes.")
    made_one = registry.Collections(user_paths())
    try:
        keys = [made_one.add(f"c{n}", sources=(str(tmp_path),), follow=False).definition.id for n in range(20)]
        most = 0
        for collections in (made_one, registry.Collections(user_paths())):
            collections.start()

            def rested(collections=collections):
                nonlocal most
                most = max(most, sum(live.store.is_open for live in collections.all()))
                return all(live.checked_at for live in collections.all()) and not held()

            wait_for(rested, what="the reading of all")
            assert most <= 4
            for key in keys:
                assert collections.live(key).store.counts().chunks == 1
            if collections is made_one:
                made_one.close()
    finally:
        made_one.close()
        collections.close()


def held():
    """Open file descriptors of indexes and their locks."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.append(str(link.readlink()))
    return [name for name in found if name.startswith(str(user_paths().state / "collections"))]
