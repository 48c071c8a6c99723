"""The Code page over a loopback server: real project, real index, real files."""

import subprocess

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton

from app.code.diff_rows import aligned_rows
from app.gui.code.page import CodePage
from app.gui.code.review_panel import diff_rows
from tests.gui.code.asking import GREET, OTHER, TWO, ask, in_view, pressed
from tests.gui.hands import settled


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
    (chip,) = [b for b in page.findChildren(QPushButton) if b.text().startswith("other.py 1–2 · ")]
    assert chip.accessibleName() == "Skip other.py 1–2"
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
    with page.controller._lock:  # the project is busy, like a large one for seconds
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


def test_edits_of_an_answer_are_decided_in_the_file(page, qtbot, server, project):
    ask(page, qtbot, server, "types @greet.py", TWO)
    page.review.hunks.setCurrentRow(2)
    page.files.open("greet.py")
    qtbot.waitUntil(lambda: len(page.files.source.hunks) == 2)
    last = page.review.hunks.item(2).text()
    page.files.source.rejected.emit([page.files.source.hunks[0]])
    qtbot.waitUntil(lambda: page.review.hunks.count() == 2)
    assert page.review.hunks.currentItem().text() == last, "the edit that is looked at stays the current one"
    next(made for made in page.banner.findChildren(QPushButton) if made.text() == "Undo").click()
    qtbot.waitUntil(lambda: page.review.hunks.count() == 3)
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


def test_undo_and_apply_during_an_answer_say_why_nothing_happens(page, qtbot, server, project):
    ask(page, qtbot, server, "Make greet louder @greet.py")
    with qtbot.waitSignal(page.controller.written):
        page.review.apply.click()
    qtbot.waitUntil(lambda: not page.controller.busy)
    server.pieces = ["word "] * 50
    server.hold.clear()
    page.composer.set_text("talk")
    page.composer.send()
    qtbot.waitUntil(lambda: len(server.bodies) == 2)
    page.banner.hide()
    for press in (page.review.undo.click, lambda: page.controller.apply(*page.controller.attempted)):
        with qtbot.waitSignal(page.controller.refused):
            press()
        assert "while an answer runs" in page.banner.accessibleName()
        page.banner.hide()
    with qtbot.waitSignal(page.controller.pending_changed):  # requested after it
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
