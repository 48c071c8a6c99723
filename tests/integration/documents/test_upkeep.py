"""Collections of several processes and requests: nothing runs on, is left behind, or is reported too early."""

import threading
import time
import unicodedata

import pytest
import watchfiles

from engine.core.errors import InputFault
from engine.core.paths import user_paths
from engine.documents import search
from engine.documents.reader_process import Reader
from engine.documents.registry import Collections
from tests.support.servers import wait_for


@pytest.fixture
def place(tmp_path):
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("The cormorant dives.")
    return tmp_path / "documents"


def settled(collections, live):
    wait_for(lambda: not collections.is_reading(live), 60, "reading")
    return live


def test_a_collection_that_is_removed_at_once_leaves_nothing_to_do(collections, place):
    settled(collections, collections.add("stays", sources=(str(place),)))
    for _ in range(5):
        collections.add("goes", sources=(str(place),))
        collections._mark_dirty(collections.remove("goes").id)  # as a change that comes at the same moment
    wait_for(lambda: not collections._dirty, 60, "the end of the work")
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.4, "a thread runs without work"


def test_a_change_before_the_folders_are_watched_is_read(collections, place, monkeypatch):
    """Until a large tree is watched, its changes are not reported. Each added collection begins it again."""
    watch = watchfiles.watch

    def slowly(*sources, **options):
        time.sleep(2)
        yield from watch(*sources, **options)

    monkeypatch.setattr(watchfiles, "watch", slowly)
    live = settled(collections, collections.add("sea", sources=(str(place),)))
    (place / "b.txt").write_text("The heron waits.")
    wait_for(lambda: search.by_words(live.store, "heron"), 30, "the change")


def test_a_refresh_that_waits_for_another_collection_is_not_done(collections, place, monkeypatch):
    first = settled(collections, collections.add("first", sources=(str(place),)))
    wait_for(lambda: collections._warmed, 60, "the reader for later changes")
    ask, may_go = Reader._send, threading.Event()

    def slowly(self, request):
        assert may_go.wait(60)
        return ask(self, request)

    monkeypatch.setattr(Reader, "_send", slowly)
    (place.parent / "b.txt").write_text("The heron waits.")
    second = collections.add("second", sources=(str(place.parent / "b.txt"),))
    wait_for(lambda: second.reading, 60, "the second one")
    collections.refresh("first")
    assert collections.is_reading(first)
    assert not first.reading
    may_go.set()
    settled(collections, first)


def test_a_refresh_while_another_process_writes_is_done_after_it(collections, place):
    live = settled(collections, collections.add("sea", sources=(str(place),)))
    other = Collections(user_paths())
    try:
        theirs = other.live("sea")
        theirs.checked_at = time.monotonic()
        other.refresh("sea")
        time.sleep(1.5)
        assert other.is_reading(theirs)
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.4, "a thread runs without work"
        wait_for(live.rest, 60, "an idle index, whose lock is free")
        settled(other, theirs)
    finally:
        other.close()


def test_an_index_without_a_collection_goes_with_the_next_start(tessera_home, place):
    first = Collections(user_paths())
    kept = settled(first, first.add("stays", sources=(str(place),))).folder
    used = settled(first, first.add("used", sources=(str(place),)))
    lost = settled(first, first.add("goes", sources=(str(place),))).folder
    first.live("goes").rest()
    for name in ("goes", "used"):  # as a process leaves it that is killed between the two steps
        first.definitions.remove(name)
    second = Collections(user_paths())
    try:
        assert used.owned()
        second.start()
        assert (kept.exists(), used.folder.exists(), lost.exists()) == (True, True, False)
    finally:
        second.close()
        first.close()


def test_one_name_is_one_collection_however_it_is_written(collections, place):
    live = collections.add(unicodedata.normalize("NFD", "M\u00fcller"), sources=(str(place),))
    assert collections.live("M\u00dcLLER") is live
    with pytest.raises(InputFault):
        collections.add("M\u00fcller")
