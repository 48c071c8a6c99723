"""The door to background work: results reach the main thread, or nobody where their receiver is gone."""

import threading
import time

import shiboken6
from PySide6.QtCore import QObject

from app.gui.background import Background

ROUNDS = 3_000


def test_receivers_that_are_destroyed_while_their_results_come_do_not_break_the_window(qapp, qtbot):
    """Workers end while the main thread destroys what they work for: a page that is left, a card taken away."""
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


def test_a_result_that_comes_after_the_end_goes_nowhere(qapp):
    background = Background()
    come, delivered = threading.Event(), []
    background.run(come.wait, delivered.append)
    come.set()
    background.close()
    shiboken6.delete(background)
    qapp.processEvents()
    assert delivered == []
