"""Documents and folders that want to reach what is outside of them."""

import os
import re
import zipfile

import documents_made as made
import pytest
from servers import wait_for

from engine.documents import kinds
from engine.documents.reading import Reader

SECRET = "the password is herring"


@pytest.fixture(scope="module")
def reader():
    made_one = Reader()
    yield made_one
    made_one.close()


def with_entity(path, secret):
    """Every XML part gets an entity that names `secret`, and says it in the place of its first text."""
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
    pages = list(reader.read(with_entity(path, secret), kinds.kind_of(path.name)))
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
