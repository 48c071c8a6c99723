"""The agent on the Code page: its consent requests, its steps, and how it ends."""

import sys
import threading

from app.gui.widgets.popups import Menu
from tests.gui.code.asking import EDIT, GREET, ask, in_view, pressed, work


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


def test_stopping_the_agent_ends_its_command(page, qtbot, server, project):
    script = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    work(page, qtbot, server, ("run", {"argv": [sys.executable, "-c", script], "timeout_s": 600}))
    qtbot.waitUntil(page.consent.isVisible)
    page.consent.once.click()
    told = project / "pid"
    qtbot.waitUntil(lambda: told.exists() and told.read_text() != "")
    with qtbot.waitSignal(page.controller.answered):  # within 60 s; the command's own limit is 600 s
        page.controller.stop()
    assert "All done." not in page.transcript.last_answer


def test_closing_the_window_ends_an_agent_that_waits_for_an_answer(page, qtbot, server, project, services):
    """The end waits for the workers. Once it waited forever, because no one could answer a consent request."""
    work(page, qtbot, server, EDIT)
    qtbot.waitUntil(page.consent.isVisible)
    answered = []
    rescue = threading.Timer(60, lambda: (answered.append("no"), page.controller.decide("no")))
    rescue.start()
    services.background.close()
    rescue.cancel()
    assert answered == [], "it ended only because somebody answered"
    assert (project / "greet.py").read_text() == GREET, "what nobody allowed was not written"


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
