"""Projects and sessions of the Code page, one after another."""

import threading

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton

from app.gui.code.page import CodePage
from tests.gui.code.asking import ANSWER, ask, asked_again
from tests.gui.hands import settled


def test_sessions_are_listed_read_continued_and_deleted_with_undo(page, qtbot, server, project):
    asked_again(page, qtbot, server, "Make greet louder @greet.py", ANSWER)
    page.review.apply.click()
    qtbot.waitUntil(lambda: page.history._sessions[0].changed_files == ["greet.py", "other.py"])
    page.new_session.click()
    assert page.hint.isVisible()
    asked_again(page, qtbot, server, "What is new?", "Nothing.")
    assert len(server.bodies[-1]["messages"]) == 2, "a new session knows nothing of the earlier one"
    rows = [page.history.list.item(n).text() for n in range(2)]
    assert rows[0].startswith("What is new?\nCurrent session · ")
    assert rows[1].startswith("Make greet louder @greet.py\n")
    assert rows[1].endswith("1 request · changed: greet.py, other.py")

    page.tabs.setCurrentWidget(page.history)
    page.history.list.setFocus()
    page.history.list.setCurrentRow(1)
    with qtbot.waitSignal(page.controller.session_read):
        page.history.list.itemClicked.emit(page.history.list.item(1))
    assert page.past.isVisible()
    assert "Louder it is." in page.past.last_answer
    assert not page.composer.isVisible(), "it is read-only"
    page.reading.close_button.click()
    assert page.transcript.last_answer == "Nothing."
    assert page.composer.isVisible()

    with qtbot.waitSignal(page.controller.session_read):
        page.history.list.itemActivated.emit(page.history.list.item(1))
    page.reading.go_on.click()
    assert "Louder it is." in page.transcript.last_answer
    asked_again(page, qtbot, server, "And quieter?", "No.")
    told = [message["content"] for message in server.bodies[-1]["messages"]]
    assert "Make greet louder" in told[1]
    assert told[2] == ANSWER
    assert [each.num_turns for each in page.history._sessions] == [2, 1], "it is the same session"

    page.history.list.setCurrentRow(1)
    page.window().activateWindow()
    page.history.list.setFocus()
    qtbot.waitUntil(page.history.list.hasFocus)
    with qtbot.waitSignal(page.controller.session_deleted):
        qtbot.keyClick(page.history.list, Qt.Key.Key_Delete)
    qtbot.waitUntil(lambda: page.history.list.count() == 1)
    assert page.transcript.last_answer == "No.", "the current one stays"
    undo = next(made for made in page.banner.findChildren(QPushButton) if made.text() == "Undo")
    undo.click()
    qtbot.waitUntil(lambda: page.history.list.count() == 2)
    page.history.list.setCurrentRow(0)
    page.history.delete.click()
    qtbot.waitUntil(lambda: page.history.list.count() == 1)
    assert page.hint.isVisible(), "the current session was deleted, so a new one begins"


def test_the_name_of_the_project_is_whole_where_the_buttons_can_wrap(page, qtbot, services):
    services.theme.set("light", 150)
    page.resize(780, 560)  # in a window of 900 x 600
    qtbot.waitUntil(lambda: page.width() == 780 and page.folder.width() >= page.folder.sizeHint().width())
    page.folder.setText("a name that leaves the buttons no room " * 5)
    page.resize(779, 560)
    qtbot.waitUntil(lambda: page.width() == 779 and page.model.visibleRegion().boundingRect() == page.model.rect())
    assert page.folder.width() < page.folder.sizeHint().width()


def test_the_last_project_and_session_are_there_after_a_start(page, qtbot, server, project, services):
    asked_again(page, qtbot, server, "What does @greet.py do?", "It greets.")
    page.controller.close_project()
    later = CodePage(services)
    later.show()
    qtbot.waitUntil(lambda: later.controller.has_project and later.transcript.last_answer == "It greets.")
    asked_again(later, qtbot, server, "Sure?", "Yes.")
    assert [m["role"] for m in server.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]
    later.controller.close_project()
    later.close()
    later.deleteLater()
    services.settings.set("code.reopen", False)
    empty = CodePage(services)
    empty.show()
    qtbot.waitUntil(empty.recent.isEnabled)
    assert not empty.controller.has_project
    (link,) = [made for made in empty.empty.findChildren(QPushButton) if made.text() == "project"]
    with qtbot.waitSignal(empty.controller.opened):
        link.click()
    assert empty.hint.isVisible(), "a folder that is chosen begins a new session"
    empty.controller.close_project()
    empty.close()
    empty.deleteLater()


def test_a_damaged_history_does_not_keep_the_project_closed(page, qtbot, server, project, services):
    asked_again(page, qtbot, server, "What does @greet.py do?", "It greets.")
    damaged = page.controller._project.state / "sessions.db"
    page.controller.close_project()
    damaged.write_bytes(b"no database at all" * 100)
    later = CodePage(services)
    later.show()
    qtbot.waitUntil(lambda: later.controller.has_project and "not a database" in later.banner.text)
    ask(later, qtbot, server, "And now?", "It works.")
    assert later.transcript.last_answer == "It works."
    qtbot.waitUntil(lambda: not later.controller.busy)
    later.controller.close_project()
    later.close()
    later.deleteLater()


def test_of_two_folders_the_one_that_was_chosen_last_is_open(page, qtbot, other, project):
    with page.controller._lock:  # the first one is still being read
        page.open_folder(other)
        page.open_folder(project)
    qtbot.waitUntil(lambda: not page.controller.busy and page.folder.toolTip() == str(project))
    assert page.controller._project.workspace.root == project
    assert (page.files._paths) == ["greet.py", "other.py"]


def test_a_banner_of_the_project_before_takes_nothing_back_in_the_next_one(page, qtbot, server, other):
    ask(page, qtbot, server, "Make greet louder @greet.py")
    with qtbot.waitSignal(page.controller.written):
        page.review.apply.click()
    assert page.banner.isVisible()
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(other)
    assert not page.banner.isVisible()


def test_sessions_of_the_project_before_are_not_listed_in_the_next_one(page, qtbot, server, other):
    asked_again(page, qtbot, server, "What does @greet.py do?", "It greets.")
    sessions, go_on = page.controller._project.sessions, threading.Event()
    list_now = sessions.all

    def slow():
        found = list_now()
        go_on.wait(60)
        return found

    sessions.all = slow
    page.controller.refresh_history()
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(other)
    qtbot.waitUntil(lambda: page.history.list.count() == 0)
    go_on.set()
    settled(qtbot, page._services)
    assert page.history.list.count() == 0


def test_a_session_that_is_read_late_is_not_shown_after_going_back(page, qtbot, server):
    asked_again(page, qtbot, server, "What does @greet.py do?", "It greets.")
    page.new_session.click()
    asked_again(page, qtbot, server, "And now?", "Nothing.")
    sessions, go_on = page.controller._project.sessions, threading.Event()
    load_now = sessions.load

    def slow(session_id):
        go_on.wait(60)
        return load_now(session_id)

    sessions.load = slow
    items = {page.history.list.item(n).text().splitlines()[0]: page.history.list.item(n) for n in range(2)}
    page.history.list.itemClicked.emit(items["What does @greet.py do?"])
    page.history.list.itemClicked.emit(items["And now?"])
    with qtbot.waitSignal(page.controller.session_read):
        go_on.set()
    assert not page.past.isVisible()
    assert page.transcript.last_answer == "Nothing."
