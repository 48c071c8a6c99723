"""Late results: workers are blocked, so that each case happens every time."""

import threading

import msgspec
import pytest
from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtWidgets import QLineEdit, QPushButton

from app.attachments import read
from app.db import conversations, messages
from app.db.memories import add_memory
from app.db.records import Conversation
from app.gui.bench.page import BenchPage
from app.gui.chat import composer, project_of_chat
from app.gui.chat.memory import MemoryDialog
from app.gui.chat.tool_call_loop import ToolTurns
from app.gui.connect.page import ConnectPage
from app.gui.documents.page import DocumentsPage
from app.gui.library.load_dialog import LoadDialog
from app.gui.library.page import LibraryPage
from app.gui.quantize.converter_prompt import ForeignFamily
from app.gui.quantize.loss_chips import LossChips
from app.gui.quantize.page import FitPage
from app.gui.server.page import OtherComputersPage
from app.gui.widgets.basics import Banner, IconButton, button
from app.tools.builtin import CALCULATOR
from app.tools.consent import ConsentRequest
from engine.api.chat import ModelList
from engine.api.collections import Collections, Removed
from engine.api.converting import ConverterFetched, ConverterState
from engine.api.jobs import JobKind
from engine.api.library import Models
from engine.api.measuring import BenchResults, Shapes
from engine.api.models import ModelLoadSettings
from tests.gui.hands import ask, press, settled, texts
from tests.gui.wire import SPARK, bench_result, job, sketch


class Held:
    """The store's thread, blocked until the end of the block: later reads and writes wait."""

    def __init__(self, services):
        self._services, self._go_on = services, threading.Event()

    def __enter__(self):
        self._services.store.submit(lambda _: self._go_on.wait(60))

    def __exit__(self, *_):
        self._go_on.set()
        self._services.store.submit(lambda _: None).result(60)


class Turns:
    """A route whose first response waits for the test; later ones are immediate."""

    def __init__(self, first, *later):
        self._answers, self._number = (first, *later), 0
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self, _body):
        number, self._number = self._number, self._number + 1
        if not number:
            self.asked.set()
            self.go_on.wait(60)
        return self._answers[min(number, len(self._answers) - 1)]


def answers(services, conversation_id):
    rows = services.store.submit(messages.of_conversation, conversation_id).result(60)
    return [(row.role, row.content, row.status) for row in rows]


def test_a_message_whose_chat_is_left_at_once_is_not_answered_in_the_next_one(qtbot, services, page, server):
    ask(qtbot, page, "First")
    first = page.controller.conversation.id
    page.new_chat()
    with Held(services):
        page.composer.submit("Second")
        assert page.controller.busy
        page.open(first)
    qtbot.waitUntil(lambda: page.controller.conversation.id == first)
    settled(qtbot, services)
    assert not page.controller.busy
    assert [message.content for message in page.controller.tree.path()] == ["First", "Hello **world**"]
    assert len(server.bodies) == 1, "nobody waits for the answer"
    (second,) = [chat.id for chat in services.store.submit(conversations.listing).result() if chat.id != first]
    assert answers(services, second) == [("user", "Second", "complete"), ("assistant", "", "stopped")]
    ask(qtbot, page, "Go on")
    assert len(page.controller.tree.path()) == 4


def test_a_message_that_is_stopped_before_it_is_stored_is_not_answered(qtbot, services, page, server):
    with Held(services):
        page.composer.submit("Never mind")
        page.composer._send.click()
        assert not page.controller.busy
    qtbot.waitUntil(lambda: len(page.controller.tree.path()) == 2)
    settled(qtbot, services)
    assert [message.status for message in page.controller.tree.path()] == ["complete", "stopped"]
    assert server.bodies == []
    ask(qtbot, page, "Hello?")
    assert len(server.bodies) == 1


def test_a_new_chat_is_not_replaced_by_one_that_is_still_read(qtbot, services, page):
    ask(qtbot, page, "First")
    first = page.controller.conversation.id
    page.new_chat()
    with Held(services):
        page.open(first)
        page.new_chat()
    settled(qtbot, services)
    assert page.controller.conversation.id == 0
    assert page.controller.tree.path() == []


def test_a_double_click_on_temporary_keeps_the_draft(qtbot, services, page):
    page.composer.set_text("half a thought")
    page.new_temporary_chat()
    page.new_temporary_chat()
    qtbot.waitUntil(lambda: page.controller.conversation.id != 0)
    settled(qtbot, services)
    assert page.composer.text == "half a thought"


@pytest.fixture
def slow_file(tmp_path, monkeypatch):
    """A file whose reading waits for the test."""
    path, go_on = tmp_path / "long.txt", threading.Event()
    path.write_text("chapter one")

    def slow(file):
        go_on.wait(60)
        return read(file)

    monkeypatch.setattr(composer, "read", slow)
    yield path, go_on
    go_on.set()


def test_a_message_waits_for_its_files(qtbot, page, server, slow_file):
    path, go_on = slow_file
    page.composer.attach([str(path)])
    page.composer.set_text("What is in it?")
    page.composer.send()
    assert page.composer.text == "What is in it?"
    go_on.set()
    qtbot.waitUntil(lambda: bool(server.bodies) and not page.controller.busy)
    assert "chapter one" in server.bodies[0]["messages"][-1]["content"]
    assert page.composer.attachments == []


def test_a_file_goes_to_the_chat_for_which_it_was_chosen(qtbot, services, page, slow_file):
    path, go_on = slow_file
    ask(qtbot, page, "First")
    first = page.controller.conversation.id
    page.composer.attach([str(path)])
    page.new_chat()
    go_on.set()
    settled(qtbot, services)
    assert page.composer.attachments == []
    page.open(first)
    qtbot.waitUntil(lambda: [item.name for item in page.composer.attachments] == ["long.txt"])


def test_instructions_of_another_project_are_never_sent(qtbot, services, page, monkeypatch):
    for name in ("Garden", "Kitchen"):
        folder = services.store.submit(conversations.create_folder, name).result()
        services.store.submit(conversations.update_folder, folder.id, instructions=f"About the {name}").result()
    garden, kitchen = services.store.submit(conversations.folders).result()
    project = page.controller.project
    project.follow(Conversation(1, folder_id=garden.id))
    qtbot.waitUntil(lambda: project.instructions == "About the Garden")
    read_now, go_on = project_of_chat.instructions_of, threading.Event()

    def slow(folder):
        go_on.wait(60)
        return read_now(folder)

    monkeypatch.setattr(project_of_chat, "instructions_of", slow)
    project.follow(Conversation(2, folder_id=kitchen.id))
    assert project.instructions == ""
    go_on.set()
    qtbot.waitUntil(lambda: project.instructions == "About the Kitchen")


def test_what_a_cancelled_answer_still_asks_gets_no_decision(qtbot, services):
    """Its worker may request consent during the next answer: the user would decide about the wrong action."""
    parent = QObject()
    turns, asked, ready = ToolTurns(services, parent), [], []
    turns.consent_wanted.connect(asked.append)
    before = turns._servers_and_consent(1)[1]
    turns.stop()
    turns.prepare(Conversation(1), (CALCULATOR,), services.store.opened.path.parent, (), ready.append)
    qtbot.waitUntil(lambda: bool(ready))
    request = ConsentRequest(kind="tool", title="Delete", detail="all", key="x")
    given = []
    worker = threading.Thread(target=lambda: given.append(before.given(request, "f")), daemon=True)
    worker.start()
    worker.join(60)
    assert given == [False]
    assert asked == []


def test_calls_that_cannot_go_on_end_the_answer(qtbot, services, page, server, monkeypatch):
    page.controller.change(tools=(CALCULATOR,))
    call = {"name": "calculate", "arguments": "{}"}
    server.tool_calls, server.pieces = [{"index": 0, "id": "c1", "function": call}], []
    monkeypatch.setattr("app.gui.chat.tool_call_loop.carried_out", lambda *_: 1 / 0)
    page.composer.submit("What is 2 and 3?")
    qtbot.waitUntil(lambda: "Division" in page.banner.text)
    assert not page.controller.busy


def test_a_double_click_presses_a_button_once(qtbot, theme):
    """The second press of a double click would hit whatever replaced the button, such as the next row's Delete."""
    pressed = []
    for made, times in (
        (button("Revoke", lambda: pressed.append("revoke")), 1),
        (IconButton(theme, "trash", "Forget", lambda: pressed.append("forget")), 1),
        (IconButton(theme, "down", "Next edit", lambda: pressed.append("next"), steps=True), 2),
    ):
        qtbot.addWidget(made)
        made.show()
        pressed.clear()
        qtbot.mouseClick(made, Qt.MouseButton.LeftButton)
        qtbot.mouseDClick(made, Qt.MouseButton.LeftButton)
        qtbot.mouseRelease(made, Qt.MouseButton.LeftButton)
        assert len(pressed) == times, pressed


def test_a_name_that_is_edited_survives_a_new_list_of_chats(qtbot, services, page):
    ask(qtbot, page, "First")
    sidebar = page.sidebar
    qtbot.waitUntil(lambda: sidebar.model.item(0) is not None and sidebar.model.item(0).rowCount() == 1)
    sidebar._edit_name(page.controller.conversation.id)
    field = sidebar.tree.findChild(QLineEdit)
    field.setText("A better name")
    services.store.submit(conversations.create, title="Another", model="spark").result()
    sidebar.refresh()
    settled(qtbot, services)
    assert field.isVisible()
    qtbot.keyClick(field, Qt.Key.Key_Return)
    qtbot.waitUntil(
        lambda: (
            {sidebar.model.item(0).child(n).text() for n in range(sidebar.model.item(0).rowCount())}
            == {"A better name", "Another"}
        )
    )


def test_a_fact_that_is_edited_while_another_one_is_stored_stays(qtbot, services, theme):
    for words in ("I like tea", "I live in Ulm"):
        services.store.submit(add_memory, words).result()
    parent = QPushButton()
    qtbot.addWidget(parent)
    dialog = MemoryDialog(services, parent)
    dialog.show()

    def fields():
        return [field for field in dialog.findChildren(QLineEdit) if field.accessibleName().startswith("Fact: ")]

    qtbot.waitUntil(lambda: len(fields()) == 2)
    first, second = fields()
    first.setText("I like coffee")
    first.editingFinished.emit()
    second.setText("I live in")
    settled(qtbot, services)
    assert second.isVisible()
    assert second.text() == "I live in"
    assert first.accessibleName() == "Fact: I like coffee"
    next(tool for tool in dialog.findChildren(IconButton) if tool.toolTip() == "Forget: I like coffee").click()
    qtbot.waitUntil(lambda: len([field for field in fields() if field.isVisible()]) == 1)
    press(dialog, "Undo")
    qtbot.waitUntil(lambda: "I like coffee" in [field.text() for field in fields() if field.isVisible()])
    dialog.close()


def test_an_older_list_of_models_does_not_replace_a_newer_one(qtbot, services, server):
    """A refresh after a change is not lost while an earlier one is still running."""
    before, rows = list(server.models), server.models
    services.models.refresh()
    qtbot.waitUntil(lambda: len(services.models.choices) == 1)
    asked, go_on = threading.Event(), threading.Event()
    ask_models = server.api.chat_models

    def slow():
        asked.set()
        go_on.wait(60)
        return tuple(before)

    services.models._api.chat_models = slow
    services.models.refresh()
    assert asked.wait(60)
    services.models._api.chat_models = ask_models
    rows.append(msgspec.structs.replace(rows[0], id="other", name="Other"))
    services.models.refresh()
    qtbot.waitUntil(lambda: len(services.models.choices) == 2)
    go_on.set()
    settled(qtbot, services)
    assert len(services.models.choices) == 2


def test_a_library_asked_before_a_model_was_removed_does_not_bring_it_back(qtbot, show, services, server, jobs):
    gone = msgspec.structs.replace(SPARK, id="gone", name="Gone")
    server.routes["GET", "/tessera/v1/models"] = Models(models=(SPARK, gone))
    page = show(LibraryPage(services, jobs))
    qtbot.waitUntil(lambda: len(page.cards) == 2)
    settled(qtbot, services)
    for timer in page.findChildren(QTimer):
        timer.stop()
    old = server.routes["GET", "/tessera/v1/models"] = Turns(Models(models=(SPARK, gone)), Models(models=(SPARK,)))
    page.refresh()
    assert old.asked.wait(60)
    page.refresh()
    qtbot.waitUntil(lambda: len(page.cards) == 1)
    old.go_on.set()
    settled(qtbot, services)
    assert [card.model.id for card in page.cards] == ["spark"]


def test_the_model_that_was_chosen_waits_for_the_list_that_has_it(qtbot, show, services, server, jobs):
    """The server lists a new file only after it has scanned the folders again."""
    new = msgspec.structs.replace(SPARK, id="new", name="New")
    server.routes["GET", "/tessera/v1/models"] = Models(models=(SPARK,))
    server.routes["POST", "/tessera/v1/quantize/plan"] = lambda body: sketch(body.get("budget_bytes") or 17_000_000)
    page = show(FitPage(services, jobs))
    qtbot.waitUntil(page.start.isEnabled)
    settled(qtbot, services)
    turns = Turns(Models(models=(SPARK,)), Models(models=(SPARK, new)))
    turns.go_on.set()
    server.routes["GET", "/tessera/v1/models"] = turns
    page.choose("new")
    qtbot.waitUntil(lambda: page.model.currentData() == "new")


def test_a_job_that_ends_before_its_reply_frees_the_button(qtbot, services, server, jobs):
    changes, go_on = [], threading.Event()
    running = job(JobKind.MEASURE, "running", params={"what": "quick_test"})

    def start(_body):
        go_on.wait(60)
        return 202, running

    server.routes["POST", "/tessera/v1/quantize/quick-test"] = start
    parent = QPushButton()
    qtbot.addWidget(parent)
    banner = Banner(services.theme, parent)
    chips = LossChips(services, jobs, banner, lambda: changes.append(1), parent)
    chips._start("spark")
    jobs._on_jobs([msgspec.structs.replace(running, state="done", updated_at=running.updated_at + 1)])
    go_on.set()
    qtbot.waitUntil(lambda: bool(changes) or banner.text != "")
    assert banner.text == ""
    assert chips._job == ""


def test_the_model_that_is_converted_is_the_one_that_was_asked_about(qtbot, services, server, jobs):
    """The converter's download takes minutes, during which another model may be offered too."""
    state = ConverterState(
        installed=False, version="", path="", bytes=0, download_bytes=1, disk_bytes=1, seconds=1.0, architectures=()
    )
    server.routes["GET", "/tessera/v1/converter"] = state
    fetching = job(JobKind.FETCH, "running")
    server.routes["POST", "/tessera/v1/converter"] = lambda _: (202, fetching)
    sources = []

    def convert(body):
        sources.append(body["source"])
        return 202, job(JobKind.CONVERT, "running")

    server.routes["POST", "/tessera/v1/models/convert"] = convert
    parent = QPushButton()
    qtbot.addWidget(parent)
    parent.show()
    banner = Banner(services.theme, parent)
    family = ForeignFamily(services, jobs, banner, parent)
    family.offer(msgspec.structs.replace(SPARK, name="One", path="/one"))
    qtbot.waitUntil(lambda: "of One" in banner.text)
    press(banner, "Download and convert")
    qtbot.waitUntil(lambda: fetching.id in family._awaited)
    family.offer(msgspec.structs.replace(SPARK, name="Two", path="/two"))
    qtbot.waitUntil(lambda: "of Two" in banner.text)
    result = msgspec.to_builtins(ConverterFetched(path="/c", bytes=1))
    ended = msgspec.structs.replace(fetching, state="done", result=result, updated_at=fetching.updated_at + 1)
    jobs._on_jobs([ended])
    qtbot.waitUntil(lambda: sources == ["/one"])


def test_results_that_are_compared_stay_chosen_when_another_one_comes(qtbot, show, services, server, jobs):
    first, second = (
        msgspec.structs.replace(bench_result("spark", speed, number), id=number)
        for number, speed in ((1, 10.0), (2, 20.0))
    )
    server.routes["GET", "/tessera/v1/bench"] = BenchResults(results=(second, first))
    server.routes["GET", "/tessera/v1/bench/shapes"] = Shapes(shapes=())
    page = show(BenchPage(services, jobs))
    qtbot.waitUntil(lambda: page.table.rowCount() == 2)
    settled(qtbot, services)
    page.table.selectRow(1)
    assert [result.id for result in page.selected] == [1]
    third = msgspec.structs.replace(first, id=3)
    server.routes["GET", "/tessera/v1/bench"] = BenchResults(results=(third, second, first))
    page.refresh()
    qtbot.waitUntil(lambda: page.table.rowCount() == 3)
    assert [result.id for result in page.selected] == [1]


def test_a_change_that_is_written_leaves_the_next_review_open(qtbot, services, server, tmp_path):
    services.models.refresh()
    qtbot.waitUntil(lambda: services.models.choices != ())
    page = ConnectPage(services, server.api, tmp_path / "user")
    qtbot.addWidget(page)
    page.show()
    page.buttons["codex"][0].click()
    qtbot.waitUntil(page.review.isVisible)
    go_on, write = threading.Event(), page._write

    def slow():
        go_on.wait(60)
        return write()

    page._write = slow
    page.confirm.click()
    page.buttons["claude"][0].click()
    qtbot.waitUntil(lambda: "claude" in page._what.text().lower())
    assert page.review.isVisible()
    go_on.set()
    qtbot.waitUntil(lambda: page._states["codex"].text() == "Connected")
    assert page.review.isVisible()
    assert page.banner.text.lower().startswith("codex")


def test_of_two_plans_the_one_that_was_asked_last_is_shown(qtbot, services, server, tmp_path, monkeypatch):
    services.models.refresh()
    qtbot.waitUntil(lambda: services.models.choices != ())
    page = ConnectPage(services, server.api, tmp_path / "user")
    qtbot.addWidget(page)
    page.show()
    plan, asked, go_on = page._store.planned, threading.Event(), threading.Event()

    def slow(integration, *place):
        if integration.name == "codex":
            asked.set()
            go_on.wait(60)
        return plan(integration, *place)

    monkeypatch.setattr(page._store, "planned", slow)
    page.buttons["codex"][0].click()
    qtbot.waitUntil(asked.is_set)
    page.buttons["claude"][0].click()
    qtbot.waitUntil(page.review.isVisible)
    go_on.set()
    settled(qtbot, services)
    assert "claude" in page._what.text().lower()


def test_a_removed_collection_does_not_come_back_from_an_older_look(qtbot, show, services, server):
    sea = {"id": "col_1", "name": "Sea", "sources": ["/home/ida/sea"], "state": "ready", "documents": 3}
    some = msgspec.convert({"collections": [sea]}, Collections)
    server.routes["GET", "/tessera/v1/collections"] = some
    server.routes["DELETE", "/tessera/v1/collections/col_1"] = Removed(id="col_1", name="Sea")
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: "Sea" in texts(page))
    settled(qtbot, services)
    for timer in page.findChildren(QTimer):
        timer.stop()
    old = server.routes["GET", "/tessera/v1/collections"] = Turns(some, Collections(collections=()))
    page.refresh()
    assert old.asked.wait(60)
    press(page, "Remove")
    qtbot.waitUntil(page.empty.isVisible)
    old.go_on.set()
    settled(qtbot, services)
    assert page.empty.isVisible()


def test_stored_load_settings_are_not_replaced_before_they_are_shown(qtbot, services, server):
    stored = Turns(ModelLoadSettings(id="spark", context_train=4096))
    server.routes["GET", "/tessera/v1/models/spark/load-settings"] = stored
    parent = QPushButton()
    qtbot.addWidget(parent)
    dialog = LoadDialog(services, "spark", "Spark", parent)
    dialog.show()
    assert stored.asked.wait(60)
    assert not dialog.load.isEnabled()
    stored.go_on.set()
    qtbot.waitUntil(lambda: dialog.load.isEnabled() or dialog.banner.text != "")
    assert dialog.load.isEnabled()
    dialog.close()


def test_going_back_to_this_computer_stops_the_way_to_another_one(qtbot, show, services, server):
    page = show(OtherComputersPage(services, server.api))
    card, moved = page.elsewhere, []
    card.moved.connect(lambda: moved.append(card._remote.url))
    asked, go_on = threading.Event(), threading.Event()

    def slow(_handler, _method):
        asked.set()
        go_on.wait(60)
        server._send(_handler, 200, ModelList(data=()))

    server.answer, answer = slow, server.answer
    card.url.setText(server.url)
    card.use.click()
    qtbot.waitUntil(asked.is_set)
    server.answer = answer
    card._back()
    go_on.set()
    settled(qtbot, services)
    assert not card._remote.url
    assert set(moved) == {""}
