"""Collections from files to passages: kept up to date, resumed after interruptions, never lost."""

import gzip
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from devices import disk_speed
from engine.core.errors import InputFault
from engine.core.paths import user_paths
from engine.documents import collection_config, registry, search, walk
from engine.documents.errors import NoCollection
from engine.documents.registry import Collections
from engine.documents.types import NEEDS_OCR
from engine.documents.vectors import packed
from tests.support import documents_made as made
from tests.support.servers import ROOT, wait_for
from tests.support.starved import no_descriptors


def settled(live):
    wait_for(lambda: live.checked_at and not live.reading, 60, "reading")
    return live


def found(live, question):
    return [
        (Path(hit.path).name, hit.page) for hit in search.find(live.store, live.vectors, question, None, "words")
    ]


def test_files_become_passages_and_what_was_not_read_is_told(collections, folder):
    live = settled(collections.add("sea", sources=(str(folder),)))
    assert found(live, "What is an umiak made of?")[0] == ("boats.pdf", 2)
    counts = live.store.counts()
    assert (counts.documents, counts.failed, counts.pages) == (4, 1, 4)
    (problem,) = live.store.documents(problems=True)
    assert problem.path.endswith("broken.pdf")
    assert "damaged" in problem.problem


def test_text_without_an_extension_is_read_and_what_is_no_text_is_listed_with_the_reason(collections, tmp_path):
    (place := tmp_path / "project").mkdir()
    (place / "settings.jsonc").write_text('{\n  // The lantern is lit at dusk.\n  "lit": true\n}\n')
    (place / "buoy.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'>\n<text>Buoy seven</text>\n</svg>\n")
    for name in ("Makefile", "LICENSE-MIT", "Notes"):
        (place / name).write_text(f"{name} names the cormorant.\n")
    (place / "log.gz").write_bytes(gzip.compress(b"The heron waits.\n" * 100))
    (place / "program").write_bytes(b"\x7fELF\x02\0\0\0" * 64)
    live = settled(collections.add("project", sources=(str(place),)))
    assert found(live, "lantern")[0][0] == "settings.jsonc"
    assert found(live, "buoy")[0][0] == "buoy.svg"
    assert {name for name, _ in found(live, "cormorant")} == {"Makefile", "LICENSE-MIT", "Notes"}
    unread = {Path(row.path).name: row.problem for row in live.store.documents(problems=True)}
    assert unread == {
        "log.gz": ".gz archives are not read; add the unpacked files",
        "program": "it is not text",
    }


def test_scans_are_counted_and_read_again_once_ocr_is_wanted(collections, tmp_path):
    """Whether or not OCR is installed here: the page's new problem, or its text, shows that it was tried."""
    (place := tmp_path / "scans").mkdir()
    made.pdf(place / "a.pdf", [["Text of the first page."], [], []], pictures={1, 2})
    (place / "b.txt").write_text("High water.")
    live = settled(collections.add("scans", sources=(str(place),)))
    counts = live.store.counts()
    assert (counts.documents, counts.unread_pages, counts.scanned_pages) == (2, 2, 2)
    before = live.store.document(str(place / "b.txt")).read_at
    collections.change(live.definition.id, lambda old: msgspec.structs.replace(old, ocr=True))
    wait_for(lambda: not live.store.with_page_problems((NEEDS_OCR,)), 120, "another reading")
    settled(live)
    assert found(live, "first page")[0] == ("a.pdf", 1)
    assert live.store.document(str(place / "b.txt")).read_at == before, "only the scans are read again"


def test_changes_on_disk_are_followed(collections, folder):
    live = settled(collections.add("sea", sources=(str(folder),)))
    (folder / "new.md").write_text("# Gulls\n\nThe kittiwake nests on cliffs.\n")
    wait_for(lambda: found(live, "kittiwake"), 60, "the new file")
    (folder / "new.md").write_text("# Gulls\n\nThe fulmar spits oil.\n")
    wait_for(lambda: not found(live, "kittiwake") and found(live, "fulmar"), 60, "the change")
    (folder / "new.md").unlink()
    wait_for(lambda: not found(live, "fulmar"), 60, "the removal")
    (folder / ".hidden.md").write_text("secret kittiwake")
    (folder / "below").mkdir()
    (folder / "below" / "deep.txt").write_text("An eider dives.")
    wait_for(lambda: found(live, "eider"), 60, "a file in a new folder")
    assert not found(live, "kittiwake")


def test_what_changes_is_read_by_a_child_that_waits_for_it(collections, folder):
    live = settled(collections.add("sea", sources=(str(folder),)))
    wait_for(lambda: collections.follower.is_watching and not collections.is_reading(live), 60, "watching")
    wait_for(lambda: collections._quick.pid and collections._warmed >= {"markdown", "pdf"}, 60, "the child")
    assert collections._readers[False].pid is None  # no work left: the process was ended to free its memory
    waiting = collections._quick.pid
    if hasattr(os, "getpriority"):
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, waiting) == mine
    (folder / "new.md").write_text("# Gulls\n\nThe kittiwake nests on cliffs.\n")
    wait_for(lambda: found(live, "kittiwake"), 60, "the new file")
    assert collections._quick.pid == waiting
    looked, saved = live.checked_at, folder / ".new.md.part"
    saved.write_text("# Gulls\n\nThe skua steals fish.\n")  # as programs save: a new file, then a rename
    saved.replace(folder / "new.md")
    wait_for(lambda: found(live, "skua"), 60, "the saved file")
    assert live.checked_at == looked  # no check of all other files
    (folder / "long.txt").write_text("A long log of the harbour.\n" * 200_000 + "The fulmar spits oil.\n")
    wait_for(lambda: found(live, "fulmar"), 60, "the long file")
    assert collections._beside[False].pid
    if hasattr(os, "getpriority"):
        assert os.getpriority(os.PRIO_PROCESS, collections._beside[False].pid) == min(mine + 10, 19)


def test_a_moment_without_descriptors_forgets_no_document_and_misses_no_change(
    collections, folder, caplog, monkeypatch
):
    monkeypatch.setattr(registry, "LOOK_AGAIN_S", 1.0)
    live = settled(collections.add("sea", sources=(str(folder),)))
    (folder / "new.md").write_text("# Gulls\n")
    wait_for(lambda: found(live, "gulls"), 60, "the new file")
    documents = live.store.counts().documents
    with (folder / "new.md").open("a") as file, no_descriptors():
        file.write("The kittiwake nests on cliffs.\n")
        file.flush()
        collections.refresh("sea")
        wait_for(lambda: "could not be" in caplog.text, 60, "the complaint")
        wait_for(lambda: live.unseen, 60, "the reason")
        assert live.unseen.kind == "not_checked"
        assert live.store.counts().documents == documents
    wait_for(lambda: found(live, "kittiwake"), 60, "what was missed")
    wait_for(lambda: live.unseen is None, 60, "a whole check")
    (folder / "new.md").write_text("# Gulls\n\nThe fulmar spits oil.\n")
    wait_for(lambda: found(live, "fulmar"), 60, "the next change")
    (folder / "new.md").unlink()
    wait_for(lambda: not found(live, "fulmar"), 60, "the removal")
    assert live.store.counts().documents == documents - 1


def test_an_ordinary_folder_where_drives_are_mounted_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_speed, "_DRIVES", (tmp_path.parent,))
    (tmp_path / "a.md").write_text("Tides")
    looked = walk.Walk((str(tmp_path),))
    assert [Path(file.path).name for file in looked.files()] == ["a.md"]
    assert looked.offline == []


def test_what_lies_on_a_drive_that_is_not_connected_is_kept(collections, folder, monkeypatch):
    live = settled(collections.add("sea", sources=(str(folder),)))
    documents = live.store.counts().documents
    monkeypatch.setattr(walk, "drive_is_here", lambda path: False)
    shutil.move(folder, folder.with_name("elsewhere"))
    checked_at = live.checked_at
    collections.refresh("sea")
    wait_for(lambda: live.checked_at > checked_at and not live.reading, 60, "a look")
    assert live.store.counts().documents == documents
    monkeypatch.undo()
    collections.refresh("sea")
    wait_for(lambda: not live.store.counts().documents, 60, "a folder that is gone for good")


def test_vectors_go_with_their_passages_and_stay_where_the_text_does(collections, folder):
    live = settled(collections.add("sea", sources=(str(folder),)))
    live.store.use_model("m")
    every = live.store.without_vector(0, 100)
    live.store.add_vectors("m", [(chunk_id, packed([float(chunk_id), 1.0])) for chunk_id, _ in every])
    assert live.store.counts().embedded == live.store.counts().chunks == len(every)
    (folder / "herring.txt").unlink()
    wait_for(lambda: not found(live, "herring"), 60, "the removal")
    assert live.store.counts().embedded == live.store.counts().chunks == len(every) - 1
    (folder / "tides.md").write_text((folder / "tides.md").read_text() + "\n# Ebb\n\nIt goes out.\n")
    wait_for(lambda: found(live, "ebb"), 60, "the change")
    assert live.store.counts().embedded >= len(every) - 2
    assert live.store.counts().embedded <= live.store.counts().chunks


def test_a_second_process_reads_but_does_not_write(collections, folder):
    live = settled(collections.add("sea", sources=(str(folder),)))
    other = Collections(user_paths())
    try:
        theirs = other.live("sea")
        assert found(theirs, "umiak")
        assert live.owned()
        assert not theirs.owned()
    finally:
        other.close()


def test_names_are_checked(collections, folder):
    collections.add("sea", sources=(str(folder),))
    for name in ("SEA", "", " " * 9, "x" * 121):
        with pytest.raises(InputFault):
            collections.add(name)
    with pytest.raises(NoCollection):
        collections.live("nothing")


def test_removing_forgets_the_index_and_keeps_the_files(collections, folder):
    live = settled(collections.add("sea", sources=(str(folder),)))
    place = live.folder
    collections.remove("sea")
    assert not place.exists()
    assert len(list(folder.iterdir())) == 4
    assert collections.all() == []


def test_a_removed_collection_comes_back_as_it_was(collections, folder, monkeypatch):
    live = settled(collections.add("sea", sources=(str(folder),), ocr=True))
    before = live.store.indexed_files()
    key = collections.remove("sea", restorable=True).id
    assert collections.all() == []
    back = collections.restore(key)
    assert (back.definition, back.store.indexed_files()) == (live.definition, before), "nothing is read again"
    collections.remove(key, restorable=True)
    settled(collections.add("Sea", sources=(str(folder),)))
    with pytest.raises(InputFault, match="sea"):
        collections.restore(key)
    collections.remove("Sea")
    assert collections.restore(key).definition == live.definition, "the refusal lost nothing"
    collections.remove(key, restorable=True)
    monkeypatch.setattr(collection_config, "KEPT_REMOVED_S", 0.0)
    wait_for(lambda: not [f for f in live.folder.parent.iterdir() if f.name.startswith(key)], 60, "its end")
    with pytest.raises(NoCollection):
        collections.restore(key)


def test_an_index_that_outlived_its_removal_goes_with_the_next_start(tessera_home, folder):
    first = Collections(user_paths())
    kept = settled(first.add("sea", sources=(str(folder),))).folder
    lost = settled(first.add("more sea", sources=(str(folder),))).folder.with_suffix(".removed")
    first.remove("more sea", restorable=True)
    copy = shutil.copytree(lost, lost.with_suffix(".copy"))
    first.close()
    assert not lost.exists()
    copy.rename(lost)  # as a process leaves it that was killed within the ten minutes
    second = Collections(user_paths())
    try:
        second.start()
        assert (kept.exists(), lost.exists()) == (True, False)
    finally:
        second.close()


def test_a_damaged_index_is_made_again(tessera_home, folder):
    first = Collections(user_paths())
    place = settled(first.add("sea", sources=(str(folder),))).store.path
    first.close()
    for suffix in ("-wal", "-shm"):
        place.with_name(place.name + suffix).unlink(missing_ok=True)
    place.write_bytes(b"no database at all" * 1000)
    second = Collections(user_paths())
    try:
        second.start()
        assert found(settled(second.live("sea")), "umiak")[0] == ("boats.pdf", 2)
    finally:
        second.close()


# Slow enough that it cannot finish before it is killed five times, even on a busy machine.
_INDEXER = """
import sys, time
from engine.documents.reader_process import Reader
from engine.documents.registry import Collections
from engine.documents.types import NEEDS_OCR
from engine.documents.vectors import packed
from engine.core.paths import user_paths
ask = Reader._send
def slowly(self, request):
    time.sleep(0.3)
    return ask(self, request)
Reader._send = slowly
found = Collections(user_paths())
found.start()
live = found.live("big")
while not (live.checked_at and not live.reading):
    time.sleep(0.02)
found.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_five_times_nothing_is_lost_or_read_twice(tessera_home, tmp_path):
    place = tmp_path / "big"
    place.mkdir()
    for number in range(40):
        made.pdf(
            place / f"{number}.pdf",
            [[f"Volume {number}, page {page}, word w{number}x{page}."] for page in range(1, 61)],
        )
    first = Collections(user_paths())
    first.definitions.add("big", sources=(str(place),))
    first.close()
    seen = [0]
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", _INDEXER], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        try:
            wait_for(lambda: _pages() > seen[-1], 120, "some pages more")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        seen.append(_pages())
    assert seen == sorted(seen)
    assert seen[1] > 0
    last = Collections(user_paths())
    try:
        last.start()
        live = settled(last.live("big"))
        assert live.store.counts().pages == live.store.counts().chunks == 40 * 60
        assert found(live, "w17x44") == [("17.pdf", 44)]
        rows = live.store.connection.execute(
            "SELECT count(*), count(DISTINCT document_id || '/' || page) FROM chunk"
        ).get
        assert rows == (2400, 2400)
        assert (
            live.store.connection.execute("INSERT INTO full_text(full_text) VALUES('integrity-check')").get is None
        )
    finally:
        last.close()


def _pages():
    """Number of pages in the index, as another process sees it."""
    reading = Collections(user_paths())
    try:
        return reading.live("big").store.counts().pages
    finally:
        reading.close()


def test_a_file_that_changes_while_it_is_read_is_read_anew(collections, tmp_path):
    """The reader of the old version must lose its permission to write."""
    path = made.pdf(tmp_path / "long.pdf", [[f"Old page {n}."] for n in range(1, 400)])
    before = threading.active_count()
    live = collections.add("one", sources=(str(path),))
    wait_for(lambda: live.store.counts().pages >= 64, 60, "the first pages")
    made.pdf(path, [["New page alone."]])
    wait_for(lambda: found(live, "new alone") and not found(live, "old"), 60, "the new state")
    settled(live)
    assert live.store.counts().pages == 1
    assert threading.active_count() < before + 40
