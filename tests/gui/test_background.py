"""The entry point to background work: results reach the main thread, or are dropped if their receiver is gone."""

import gc
import threading
import time
import weakref
from concurrent.futures import wait

import pytest
import shiboken6
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QTimer

from app import settings as table
from app.client import ServerUnreachable
from app.gui import background as door
from app.gui.app_context import LiveSettings
from app.gui.background import Background
from engine.api.library import Models

ROUNDS = 3_000


def test_receivers_that_are_destroyed_while_their_results_come_do_not_break_the_window(qapp, qtbot):
    """Workers end while the main thread destroys their receivers: a page that is left, a card that is removed."""
    background = Background()
    delivered, ended = [], []

    def work():
        time.sleep(0)
        ended.append(threading.get_ident())

    for turn in range(ROUNDS):
        page = QObject()
        for _ in range(4):
            background.run(work, delivered.append, parent=page)
        if turn % 8:
            qapp.processEvents()
        shiboken6.delete(page)
    qtbot.waitUntil(lambda: len(ended) == 4 * ROUNDS)
    last = []
    background.run(lambda: "the last", last.append)
    qtbot.waitUntil(lambda: last == ["the last"])
    background.close()
    assert threading.get_ident() not in ended
    assert len(delivered) < len(ended), "no receiver was destroyed before its result came"


def test_of_several_loads_only_the_newest_is_shown(qapp, qtbot):
    """Workers end in any order: an older result about a file must not replace a newer one."""
    background, page, go_on, shown = Background(), QObject(), threading.Event(), []

    def slow():
        go_on.wait(60)
        return "old"

    older = background.run(slow, shown.append, parent=page, newest="file")
    background.run(lambda: "other", shown.append, parent=page, newest="tree")
    qtbot.waitUntil(lambda: shown == ["other"])
    background.run(lambda: "new", shown.append, parent=page, newest="file")
    qtbot.waitUntil(lambda: shown == ["other", "new"])
    with qtbot.waitSignal(older.destroyed):
        go_on.set()
    assert shown == ["other", "new"]
    background.close()
    shiboken6.delete(page)


def test_a_result_that_comes_after_the_end_goes_nowhere(qapp):
    background = Background()
    come, delivered = threading.Event(), []
    background.run(come.wait, delivered.append)
    come.set()
    background.close()
    shiboken6.delete(background)
    qapp.processEvents()
    assert delivered == []


def test_the_end_does_not_wait_for_a_server_that_does_not_answer(server, monkeypatch):
    monkeypatch.setattr(door, "GRACE_S", 0.1)
    asked, answered, ended = threading.Event(), threading.Event(), []

    def late(_):
        asked.set()
        answered.wait(300)
        return Models(models=())

    def ask():
        with pytest.raises(ServerUnreachable) as told:
            server.api.get("/slow", Models)
        ended.append(told.value)

    server.routes["GET", "/slow"] = late
    background = Background()
    background.at_last(server.api.hang_up)
    background.run(ask)
    assert asked.wait(60)
    try:
        background.close()
        assert not answered.is_set()
        assert len(ended) == 1
        with pytest.raises(ServerUnreachable):
            server.api.get("/slow", Models)
    finally:
        answered.set()


class Paced:
    """A stream of numbers; each waits until `more` is released."""

    def __init__(self, count, more):
        self._count, self._more = count, more

    def __iter__(self):
        for number in range(self._count):
            assert self._more.acquire(timeout=300)
            yield number

    def close(self):
        pass


def test_a_silent_stream_wakes_nothing_and_loses_no_value(qapp, qtbot):
    """A timer of 33 ms for each open stream kept the CPU of an idle window awake."""
    background = Background()
    more, batches, done = threading.Semaphore(0), [], []
    job = background.stream(lambda: Paced(2_000, more), batches.append, done.append)
    more.release()
    qtbot.waitUntil(lambda: batches == [[0]])
    qapp.processEvents()
    assert [timer for timer in job.findChildren(QTimer) if timer.isActive()] == []
    for turn in range(1_999):
        more.release()
        if turn % 7 == 0:
            qapp.processEvents()
    qtbot.waitUntil(lambda: done == [None])
    assert [value for batch in batches for value in batch] == list(range(2_000))
    assert len(batches) < 1_000, "values are not shown together"
    background.close()


def test_the_door_may_go_before_its_ended_stream_is_deleted(qapp):
    """Deleting the stream also deleted `Background`, which it owned, and that deleted the stream again."""
    background, done = Background(), []
    job = background.stream(lambda: Paced(0, None), done.append, done.append)
    wait(tuple(background._running))
    background._results._deliver()
    assert done == [None]
    background.close()
    del background, job
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def test_what_answers_in_time_is_had_at_the_end(qapp):
    background = Background()
    hung_up, done = [], []
    background.at_last(lambda: hung_up.append(1))
    begun = threading.Event()

    def work():
        begun.set()
        time.sleep(0.05)
        done.append(1)

    background.run(work)
    assert begun.wait(60)
    background.close()
    assert (done, hung_up) == ([1], [])


def test_a_setting_that_no_worker_came_to_write_is_written_at_the_end(qapp, tmp_path, monkeypatch):
    monkeypatch.setattr(door, "GRACE_S", 0.1)
    background = Background(workers=1)
    held, begun = threading.Event(), threading.Event()
    background.at_last(held.set)
    background.run(lambda: (begun.set(), held.wait(300)))
    assert begun.wait(60)
    file = tmp_path / "settings.toml"
    settings = LiveSettings(background, file)
    settings.set("window.theme", "dark")
    background.close()
    assert table.load(file, {}).text("window.theme") != "dark"
    settings.close()
    assert table.load(file, {}).text("window.theme") == "dark"


def test_no_worker_deletes_what_belongs_to_the_window(qapp, qtbot):
    """Cyclic garbage, such as a closed page, is collected on the main thread."""
    deleted_on, many = [], []

    class Page:
        def __init__(self):
            self.itself = self

        def __del__(self):
            deleted_on.append(threading.current_thread())

    background = Background(qapp)
    try:
        Page()
        background.run(lambda: many.extend([] for _ in range(200_000)))
        qtbot.waitUntil(lambda: bool(deleted_on))
    finally:
        background.close()
        background.deleteLater()
    assert deleted_on == [threading.main_thread()]
    assert gc.isenabled()


@pytest.fixture
def look(qapp):
    """One look of the window's garbage collector, after work."""
    background = Background(qapp)
    (collector,) = background.findChildren(QTimer)
    young = []

    def once():
        young.clear()  # before the others are made: what is deleted is subtracted from the count
        young.extend([] for _ in range(2 * gc.get_threshold()[0]))
        collector.timeout.emit()

    yield once
    background.close()
    background.deleteLater()


class Page:
    """Only the garbage collector deletes it: it refers to itself."""

    def __init__(self):
        self.itself = self


def test_new_garbage_is_collected_at_the_next_look(look):
    for _ in range(3):
        left = weakref.ref(Page())
        look()
        assert left() is None


def test_garbage_that_was_in_use_for_long_is_collected_in_a_full_look(look):
    left = weakref.ref(page := Page())
    for _ in range(3):
        look()
    del page
    for _ in range(door.COMPLETE_AFTER + 1):
        look()
    assert left() is None
