"""The Code page over a loopback server: real project, real index, real files."""

import json
import subprocess
import sys
import threading
import time

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton

from app.code.diff_rows import aligned_rows
from app.gui.code.page import CodePage
from app.gui.code.review_panel import diff_rows
from app.gui.widgets.popups import Menu
from tests.gui.hands import settled

ANSWER = """Louder it is.

greet.py
<<<<<<< SEARCH
    return "hello " + name
=======
    return "HELLO " + name
>>>>>>> REPLACE

other.py
<<<<<<< SEARCH
def unrelated():
=======
def related():
>>>>>>> REPLACE

gone.py
<<<<<<< SEARCH
nothing
=======
something
>>>>>>> REPLACE
"""
GREET = 'def greet(name):\n    return "hello " + name\n'
OTHER = "def unrelated():\n    return 1\n"


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "greet.py").write_text(GREET)
    (root / "other.py").write_text(OTHER)
    return root


@pytest.fixture
def page(services, server, project, qtbot):
    services.models.refresh()
    qtbot.waitUntil(lambda: services.models.choices != ())
    page = CodePage(services)
    page.resize(1200, 800)
    page.show()
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(project)
    yield page
    page.controller.close_project()
    page.close()
    page.deleteLater()


def ask(page, qtbot, server, question, answer=ANSWER):
    server.pieces = [answer[i : i + 40] for i in range(0, len(answer), 40)]
    page.composer.set_text(question)
    with qtbot.waitSignal(page.controller.proposed):
        page.composer.send()


def test_an_answer_is_shown_reviewed_applied_and_undone(page, qtbot, server, project):
    ask(page, qtbot, server, "Make greet louder @greet.py")
    assert "Louder it is." in page.transcript.last_answer
    assert '```diff\n-    return "hello " + name\n+    return "HELLO " + name\n```' in page.transcript.last_answer
    assert 'return "hello " + name' in server.bodies[0]["messages"][-1]["content"]
    assert page.review.hunks.count() == 3
    assert page.review.chosen == [0, 1]
    assert "refused" in page.review.hunks.item(2).text()
    qtbot.waitUntil(lambda: "HELLO" in page.review.diff.right.toPlainText())
    assert "hello" in page.review.diff.left.toPlainText()
    page.review.hunks.item(1).setCheckState(Qt.CheckState.Unchecked)
    assert page.review.chosen == [0]
    with qtbot.waitSignal(page.controller.written):
        page.review.apply.click()
    assert (project / "greet.py").read_text() == GREET.replace("hello", "HELLO")
    assert (project / "other.py").read_text() == OTHER
    assert "greet.py" in page.banner.text
    with qtbot.waitSignal(page.controller.taken_back):
        page.review.undo.click()
    assert (project / "greet.py").read_text() == GREET
    assert not page.review.undo.isEnabled(), "there is nothing left to take back"


def test_what_went_in_is_shown_and_can_be_left_out(page, qtbot, server):
    ask(page, qtbot, server, "louder @greet.py @other.py @missing.py")
    assert {p.path for p in page.controller.context.items} == {"greet.py", "other.py"}
    assert "@missing.py" in page.used.text()
    (chip,) = [b for b in page.findChildren(QPushButton) if b.text().startswith("other.py 1–3 · ")]
    assert chip.accessibleName() == "Skip other.py 1–3"
    key = next(p.key for p in page.controller.context.items if p.path == "other.py")
    with qtbot.waitSignal(page.controller.proposed):
        page._dropper(key)()
    assert [p.path for p in page.controller.context.items] == ["greet.py"]
    last = server.bodies[-1]["messages"]
    assert "unrelated" not in last[-1]["content"]
    assert len(last) == 2


def test_a_conversation_goes_on_and_the_first_turn_stays_as_it_was(page, qtbot, server):
    ask(page, qtbot, server, "What does @greet.py do?", "It greets.")
    ask(page, qtbot, server, "And louder?", "No.")
    first, second = (body["messages"] for body in server.bodies)
    assert second[: len(first)] == first
    assert second[len(first)]["content"] == "It greets."


def test_a_file_changed_meanwhile_is_not_written(page, qtbot, server, project):
    ask(page, qtbot, server, "louder @greet.py")
    (project / "greet.py").write_text("precious\n")
    with qtbot.waitSignal(page.controller.failed):
        page.review.apply.click()
    assert "changed since" in page.banner.text
    assert (project / "greet.py").read_text() == "precious\n"
    assert (project / "other.py").read_text() == OTHER


def test_uncommitted_files_need_a_second_word(page, qtbot, server, project, services):
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=T", "-c", "user.email=t@x.org", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *command], cwd=project, check=True)
    (project / "greet.py").write_text(GREET + "# mine\n")
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(project)
    ask(page, qtbot, server, "louder @greet.py")
    with qtbot.waitSignal(page.controller.failed):
        page.review.apply.click()
    assert "uncommitted" in page.banner.text
    with qtbot.waitSignal(page.controller.written):
        page.controller.apply(*page.controller.attempted, allow_uncommitted=True)
    assert (project / "greet.py").read_text() == GREET.replace("hello", "HELLO") + "# mine\n"


def test_stopping_keeps_the_window_usable(page, qtbot, server):
    server.pieces = ["word "] * 3000
    server.pause_s = 0.004
    page.composer.set_text("talk")
    page.composer.send()
    qtbot.waitUntil(lambda: page.transcript.last_answer.count("word") > 700)
    server.hold.clear()  # it continues while the page is visible
    bar = page.transcript.verticalScrollBar()
    assert bar.maximum() > 0
    qtbot.waitUntil(lambda: bar.value() == bar.maximum())  # it scrolls along
    assert page.controller.busy
    page.composer._send.click()
    assert not page.controller.busy
    assert page.review.hunks.count() == 0
    server.pause_s = 0.0
    server.hold.set()
    ask(page, qtbot, server, "again", "fine")
    assert page.transcript.last_answer == "fine"
    assert len(server.bodies[-1]["messages"]) == 2


def test_a_question_stopped_while_its_context_is_looked_up_is_not_sent(page, qtbot, server):
    with page.controller._lock:  # the project is busy, as a large one is for seconds
        page.composer.set_text("talk")
        page.composer.send()
        assert page.controller.busy
        page.composer._send.click()
        assert not page.controller.busy
    ask(page, qtbot, server, "again", "fine")
    assert [body["messages"][-1]["content"].rsplit("\n", 1)[-1] for body in server.bodies] == ["again"]


def test_escape_ends_the_answer_of_the_page_that_is_shown(desktop, qtbot, server, project):
    window = desktop.window
    window.show_page("code")
    page = window.page("code")
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(project)
    server.pieces, server.pause_s = ["word "] * 500, 0.02
    page.composer.set_text("talk")
    page.composer.send()
    qtbot.waitUntil(lambda: "word" in page.transcript.last_answer)
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Escape)
    assert not page.controller.busy
    server.pause_s = 0.0
    page.controller.close_project()


def test_a_server_error_is_told_in_words(page, qtbot, server):
    server.error = {"message": "The prompt has 9000 tokens.", "code": "context_length_exceeded"}
    page.composer.set_text("x")
    with qtbot.waitSignal(page.controller.failed):
        page.composer.send()
    assert "9000" in page.banner.text
    assert not page.controller.busy


def test_pasted_output_goes_in_first(page, qtbot, server):
    QGuiApplication.clipboard().setText("Traceback: boom in greet")
    server.pieces = ["ok"]
    with qtbot.waitSignal(page.controller.proposed):
        page._task("output")()
    content = server.bodies[-1]["messages"][-1]["content"]
    assert content.startswith("Output\n```\nTraceback: boom in greet")
    assert "Find the cause" in content


def test_rows_are_aligned_with_context_and_gaps():
    before = "".join(f"line {n}\n" for n in range(1, 31))
    after = before.replace("line 10\n", "line ten\nand more\n").replace("line 25\n", "")
    rows = aligned_rows(before, after, context=1)
    shown = [r and (r.left and r.left.number, r.right and r.right.number, r.changed) for r in rows]
    assert shown == [
        None, (9, 9, False), (10, 10, True), (None, 11, True), (11, 12, False),
        None, (24, 25, False), (25, None, True), (26, 26, False), None,
    ]  # fmt: skip
    assert aligned_rows("a\n", "a\n") == []


def test_coloured_rows_join_to_the_text():
    rows = diff_rows("a.py", 'def f():\n    """doc\n    more"""\n', 'def g():\n    """doc\n    more"""\n')
    left = ["".join(text for text, _ in row.left) for row in rows if row.left is not None]
    assert left == ["def f():", '    """doc', '    more"""']
    assert any(colour == "string" for row in rows if row.right for _, colour in row.right)


def as_call(number, name, arguments):
    return {"index": 0, "id": f"c{number}", "function": {"name": name, "arguments": json.dumps(arguments)}}


def work(page, qtbot, server, *turns):
    """Let the fake model make these calls, one a turn; then it answers in words."""
    waiting = list(turns)
    real = server._chat

    def chat(handler):
        server.tool_calls = [as_call(len(waiting), *waiting.pop(0))] if waiting else []
        server.pieces = [] if server.tool_calls else ["All done."]
        real(handler)

    server._chat = chat
    page.agent.setChecked(True)
    page.composer.set_text("Make it louder")
    page.composer.send()


EDIT = (
    "edit",
    {"path": "greet.py", "search": '    return "hello " + name', "replace": '    return "HELLO" + name'},
)


def test_the_agent_asks_before_each_action_and_shows_what_it_does(page, qtbot, server, project):
    work(page, qtbot, server, ("plan", {"items": [{"text": "edit it"}]}), ("read", {"path": "greet.py"}), EDIT,
         ("run", {"argv": ["rm", "-rf", "/\x1b[2K"]}))  # fmt: skip
    qtbot.waitUntil(page.consent.isVisible)
    assert '+    return "HELLO" + name' in page.consent.detail.toPlainText()
    assert (project / "greet.py").read_text() == GREET
    assert page.consent.decline.hasFocus()
    page.consent.once.click()
    qtbot.waitUntil(lambda: "Run a command" in page.consent.title.text())
    assert "\\x1b[2K" in page.consent.detail.toPlainText()
    assert page.consent.warning.isVisible()
    with qtbot.waitSignal(page.controller.answered):
        page.consent.decline.click()
    assert "HELLO" in (project / "greet.py").read_text()
    shown = page.transcript.last_answer
    assert "☐ edit it" in shown
    assert "All done." in shown
    assert "declined this command" in shown
    assert not page.consent.isVisible()
    assert not page.controller.busy


def test_the_agent_s_files_go_back_to_before_a_step(page, qtbot, server, project, monkeypatch):
    monkeypatch.setattr(Menu, "below", lambda _menu, _widget: None)  # Qt's offscreen plugin cannot open it
    assert not page.steps.isVisible()
    more = ("write_file", {"path": "new.py", "content": "x = 1\n"})
    work(page, qtbot, server, EDIT, more)
    for _ in range(2):
        qtbot.waitUntil(page.consent.isVisible)
        page.consent.once.click()
        qtbot.waitUntil(lambda: not page.consent.isVisible() or "new.py" in page.consent.title.text())
    qtbot.waitUntil(lambda: not page.controller.busy)
    assert (project / "new.py").exists()
    page.steps.click()
    menu = page.findChild(Menu)
    texts = [action.text() for action in menu.actions()]
    assert len(texts) == 3
    assert texts[2].startswith("Back to before 2: write_file")
    with qtbot.waitSignal(page.controller.went_back):
        menu.actions()[2].trigger()
    assert not (project / "new.py").exists()
    assert "HELLO" in (project / "greet.py").read_text()
    with qtbot.waitSignal(page.controller.changes_found):
        page.controller.show_changes()
    assert 'return "HELLO" + name' in page.transcript.last_answer
    before = len(server.bodies)
    work(page, qtbot, server)
    qtbot.waitUntil(lambda: len(server.bodies) > before and not page.controller.busy)
    roles = [message["role"] for message in server.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"], "it goes on from there"


def test_a_stopped_agent_does_nothing_more(page, qtbot, server, project):
    work(page, qtbot, server, EDIT, EDIT)
    qtbot.waitUntil(page.consent.isVisible)
    with qtbot.waitSignal(page.controller.answered):
        page.composer._send.click()
    assert (project / "greet.py").read_text() == GREET
    assert not page.consent.isVisible()
    assert not page.controller.busy


def test_the_agent_s_switch_and_its_questions_are_on_the_page(page):
    assert page.agent.isVisible()
    assert page.isAncestorOf(page.consent)


def test_a_page_without_a_project_says_what_to_do(services):
    page = CodePage(services)
    page.show()
    assert page.empty.isVisible()
    assert not page.composer.isVisible()
    page.close()
    page.deleteLater()


def test_selected_lines_are_what_a_task_is_about(page, qtbot, server):
    files = page.files
    (item,) = files.tree.findItems("greet.py", Qt.MatchFlag.MatchExactly)
    files.tree.setCurrentItem(item)
    qtbot.waitUntil(lambda: files.source.path == "greet.py")
    assert files.source.toPlainText().splitlines()[0].split("  ", 1)[1] == "def greet(name):"
    cursor = files.source.textCursor()
    cursor.setPosition(files.source.document().findBlockByNumber(1).position() + 4)
    cursor.movePosition(cursor.MoveOperation.EndOfBlock, cursor.MoveMode.KeepAnchor)
    files.source.setTextCursor(cursor)
    selected = files.selected()
    assert (selected.path, selected.first, selected.last) == ("greet.py", 2, 2)
    assert selected.text == '    return "hello " + name'
    server.pieces = ["It greets."]
    with qtbot.waitSignal(page.controller.proposed):
        page._task("explain")()
    assert page.controller.context.items[0].title == "greet.py, lines 2-2"
    assert "It greets." in page.transcript.last_answer


def test_folders_are_filled_when_opened_and_a_gone_file_is_said(page, qtbot, project):
    (project / "inner").mkdir()
    page.files.show_paths(["inner/deep/a.py", "inner/b.py", "greet.py"])
    tree = page.files.tree
    top = [tree.topLevelItem(i).text(0) for i in range(tree.topLevelItemCount())]
    assert top == ["inner", "greet.py"]
    inner = tree.topLevelItem(0)
    assert inner.childCount() == 0
    inner.setExpanded(True)
    assert [inner.child(i).text(0) for i in range(inner.childCount())] == ["deep", "b.py"]
    tree.setCurrentItem(inner.child(1))
    qtbot.waitUntil(lambda: "inner/b.py" in page.files.heading.text())
    assert page.files.source.path is None


def test_stopping_the_agent_ends_its_command(page, qtbot, server, project):
    script = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    work(page, qtbot, server, ("run", {"argv": [sys.executable, "-c", script], "timeout_s": 600}))
    qtbot.waitUntil(page.consent.isVisible)
    page.consent.once.click()
    told = project / "pid"
    qtbot.waitUntil(lambda: told.exists() and told.read_text() != "")
    begun = time.monotonic()
    with qtbot.waitSignal(page.controller.answered):
        page.controller.stop()
    assert time.monotonic() - begun < 60, "the command went on to its own limit"
    assert "All done." not in page.transcript.last_answer


def test_closing_the_window_ends_an_agent_that_waits_for_an_answer(page, qtbot, server, project, services):
    """The end waits for the workers: it once waited forever, with no one to answer a question."""
    work(page, qtbot, server, EDIT)
    qtbot.waitUntil(page.consent.isVisible)
    ended = threading.Event()
    rescue = threading.Timer(20, lambda: ended.is_set() or page.controller.decide("no"))
    rescue.start()
    begun = time.monotonic()
    services.background.close()
    took = time.monotonic() - begun
    ended.set()
    rescue.cancel()
    assert took < 20, "it ended only because somebody answered"
    assert (project / "greet.py").read_text() == GREET, "what nobody allowed was not written"


def asked_again(page, qtbot, server, question, answer):
    """Ask, and wait until the session with the answer is in the list."""
    before = [each.num_turns for each in page.history._sessions]
    ask(page, qtbot, server, question, answer)
    qtbot.waitUntil(lambda: [each.num_turns for each in page.history._sessions] != before)


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


def test_the_agent_knows_the_earlier_tasks_of_its_session(page, qtbot, server):
    work(page, qtbot, server)
    qtbot.waitUntil(lambda: page.history.list.count() == 1)
    work(page, qtbot, server)
    qtbot.waitUntil(lambda: page.history._sessions[0].num_turns == 2)
    roles = [message["role"] for message in server.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    page.new_session.click()
    work(page, qtbot, server)
    qtbot.waitUntil(lambda: page.history.list.count() == 2)
    assert [message["role"] for message in server.bodies[-1]["messages"]] == ["system", "user"]


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


TWO = """greet.py
<<<<<<< SEARCH
def greet(name):
=======
def greet(name: str) -> str:
>>>>>>> REPLACE

greet.py
<<<<<<< SEARCH
    return "hello " + name
=======
    return "HELLO " + name
>>>>>>> REPLACE

made.py
<<<<<<< SEARCH
=======
x = 1
>>>>>>> REPLACE
"""


def in_view(page):
    lines = page.files.source.toPlainText().splitlines()
    return [line.split("  ", 1)[0].strip() for line in lines if line]  # the line of an edit's buttons is empty


def pressed(page, name):
    (found,) = [b for b in page.files.findChildren(QPushButton) if b.accessibleName() == name and b.isVisible()]
    return found


def test_edits_of_an_answer_are_decided_in_the_file(page, qtbot, server, project):
    ask(page, qtbot, server, "types @greet.py", TWO)
    page.review.hunks.setCurrentRow(0)
    page.review.in_file.click()
    qtbot.waitUntil(lambda: len(page.files.source.hunks) == 2)
    assert page.tabs.currentWidget() is page.files
    assert in_view(page) == ["1-", "+", "2-", "+", "3"]
    assert page.files.count.text() == "2 proposed edits, not written yet"
    with qtbot.waitSignal(page.controller.written):
        pressed(page, "Accept 1 of 2").click()
    assert (project / "greet.py").read_text() == GREET.replace("(name)", "(name: str) -> str")
    qtbot.waitUntil(lambda: in_view(page) == ["1", "2-", "+", "3"])
    qtbot.waitUntil(lambda: page.review.hunks.count() == 2)  # the others stay
    page.window().activateWindow()
    page.files.source.setFocus()
    qtbot.waitUntil(page.files.source.hasFocus)
    with qtbot.waitSignal(page.controller.rejected):
        qtbot.keyClick(page.files.source, Qt.Key.Key_Backspace, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: page.files.source.hunks == ())
    assert "HELLO" not in (project / "greet.py").read_text()
    undo = next(made for made in page.banner.findChildren(QPushButton) if made.text() == "Undo")
    undo.click()
    qtbot.waitUntil(lambda: len(page.files.source.hunks) == 1)
    with qtbot.waitSignal(page.controller.written):
        qtbot.keyClick(page.files.source, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert "HELLO" in (project / "greet.py").read_text()
    (new,) = page.files.tree.findItems("made.py", Qt.MatchFlag.MatchExactly)
    assert new.toolTip(0) == "made.py: has edits to review"
    page.files.tree.setCurrentItem(new)
    qtbot.waitUntil(lambda: page.files.source.path == "made.py" and len(page.files.source.hunks) == 1)
    with qtbot.waitSignal(page.controller.taken_back):
        page.review.undo.click()
    qtbot.waitUntil(lambda: page.review.hunks.count() == 2)
    assert "HELLO" not in (project / "greet.py").read_text()


def test_the_buttons_of_an_edit_cover_no_code(page, qtbot, server, project):
    ask(page, qtbot, server, "types @greet.py", TWO)
    page.review.hunks.setCurrentRow(0)
    page.review.in_file.click()
    source = page.files.source
    qtbot.waitUntil(lambda: len(source.hunks) == 2 and all(bar.isVisible() for bar in source._bars))
    block = source.document().firstBlock()
    while block.isValid():
        line = source.blockBoundingGeometry(block).translated(source.contentOffset()).toRect()
        covering = [bar for bar in source._bars if bar.geometry().intersects(line)]
        assert not (block.text() and covering), (block.text(), line, covering[0].geometry())
        block = block.next()


def test_edits_of_the_agent_are_decided_in_the_file(page, qtbot, server, project):
    more = ("write_file", {"path": "new.py", "content": "x = 1\n"})
    work(page, qtbot, server, EDIT, more)
    for _ in range(2):
        qtbot.waitUntil(page.consent.isVisible)
        page.consent.once.click()
        qtbot.waitUntil(lambda: not page.consent.isVisible() or "new.py" in page.consent.title.text())
    qtbot.waitUntil(lambda: set(page.files._pending) == {"greet.py", "new.py"})
    page.files.open("greet.py")
    qtbot.waitUntil(lambda: in_view(page) == ["1", "-", "2+", "3"])
    assert page.files.count.text() == "1 edit by the agent, written"
    with qtbot.waitSignal(page.controller.written):
        pressed(page, "Reject 1 of 1").click()
    assert (project / "greet.py").read_text() == GREET
    qtbot.waitUntil(lambda: page.files.source.hunks == ())
    page.files.open("new.py")
    qtbot.waitUntil(lambda: len(page.files.source.hunks) == 1)
    page.files.source.accepted.emit(list(page.files.source.hunks))
    qtbot.waitUntil(lambda: page.files._pending == {})
    assert (project / "new.py").exists()


def test_a_second_click_on_apply_writes_nothing_that_was_not_chosen(page, qtbot, server, project):
    ask(page, qtbot, server, "types @greet.py", TWO)
    page.review.hunks.item(1).setCheckState(Qt.CheckState.Unchecked)
    page.review.hunks.item(2).setCheckState(Qt.CheckState.Unchecked)
    shown, chosen = page.review.proposal, page.review.chosen
    with qtbot.waitSignal(page.controller.written):
        page.review.apply.click()
    page.controller.apply(shown, chosen)  # a click on the edits that were shown before
    qtbot.waitUntil(lambda: not page.controller.busy and page.review.hunks.count() == 2)
    assert page.review.chosen == []
    assert (project / "greet.py").read_text() == GREET.replace("(name)", "(name: str) -> str")


def test_a_line_of_the_view_is_a_line_of_the_file(page, qtbot, project):
    (project / "odd.py").write_bytes("a = 'x\u2028y\u2029z\rw'\nb = 2\n".encode())
    page.files.open("odd.py")
    qtbot.waitUntil(lambda: page.files.source.path == "odd.py")
    assert page.files.source.blockCount() == 3
    cursor = page.files.source.textCursor()
    cursor.setPosition(page.files.source.document().findBlockByNumber(1).position())
    page.files.source.setTextCursor(cursor)
    assert page.files.source.line == 2


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


@pytest.fixture
def other(tmp_path):
    root = tmp_path / "other"
    root.mkdir()
    (root / "b.py").write_text("b = 1\n")
    return root


def test_an_agent_of_the_project_before_leaves_nothing_in_the_next_one(page, qtbot, server, project, other):
    work(page, qtbot, server, ("read", {"path": "greet.py"}), EDIT)
    qtbot.waitUntil(page.consent.isVisible)
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(other)
    assert page.controller.agent is None, "its steps would restore files of the other project"
    assert not page.steps.isVisible()
    assert not page.consent.isVisible()
    assert not page.controller.busy
    assert page.controller.session.turns == []
    assert page.transcript.last_answer == ""
    assert (project / "greet.py").read_text() == GREET
    page.agent.setChecked(False)
    ask(page, qtbot, server, "What is b?")
    assert page.transcript.last_answer == "All done."


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


def test_undo_during_an_answer_takes_nothing_back_and_the_answer_can_still_be_stopped(page, qtbot, server, project):
    ask(page, qtbot, server, "Make greet louder @greet.py")
    with qtbot.waitSignal(page.controller.written):
        page.review.apply.click()
    qtbot.waitUntil(lambda: not page.controller.busy)
    server.pieces = ["word "] * 50
    server.hold.clear()
    page.composer.set_text("talk")
    page.composer.send()
    qtbot.waitUntil(lambda: len(server.bodies) == 2)
    page.controller.undo()
    with qtbot.waitSignal(page.controller.pending_changed):  # asked after it
        page.controller.refresh_pending()
    assert page.controller.busy
    assert "HELLO" in (project / "greet.py").read_text()
    page.composer._send.click()
    server.hold.set()
    assert not page.controller.busy


def test_a_commit_message_can_be_stopped_while_the_changes_are_read(page, qtbot, server, project):
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    with page.controller._lock:
        page.commit.click()
        assert page.controller.busy
        page.composer._send.click()
        assert not page.controller.busy
    settled(qtbot, page._services)
    assert server.bodies == []
