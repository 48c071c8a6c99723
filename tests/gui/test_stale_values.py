"""What a page shows stays true when it changes elsewhere, and what the user reads stays where it is."""

import pytest
from PySide6.QtWidgets import QMessageBox, QPushButton

from app.client import ServerUnreachable
from app.gui import formatted
from app.gui.documents.page import DocumentsPage
from app.gui.library.load_dialog import LoadDialog
from app.gui.server.page import LogPage
from app.gui.settings_page import SettingsPage
from app.server_process import server_log
from engine.api.collections import Collection, Collections
from engine.api.models import LoadOptions, ModelLoadSettings
from tests.gui.hands import settled, texts


def test_number_fields_of_the_settings_follow_a_change_from_elsewhere(qtbot, desktop, home):
    window = desktop.window
    window.show_page("settings")
    page = window.page("settings")
    field = page.editors["window.text_percent"]
    assert field.value() == 100
    window._zoom(10)
    assert field.value() == 110
    field.stepUp()
    assert desktop.services.settings.now.integer("window.text_percent") > 110, "not from the old number"


def test_emptying_the_trash_says_that_it_was_done(qtbot, show, services):
    page = show(SettingsPage(services))
    page._confirm_empty_trash()
    box = page.findChild(QMessageBox)
    box.button(QMessageBox.StandardButton.Discard).click()
    qtbot.waitUntil(lambda: page.banner.text == "The trash of chats is empty.")


@pytest.mark.parametrize("n_ctx", [5000, 10_000, 4096, 300_000])
def test_load_settings_keep_a_stored_context_until_the_slider_is_moved(qtbot, services, server, n_ctx):
    stored = ModelLoadSettings(id="spark", context_train=131_072, user=LoadOptions(n_ctx=n_ctx))
    server.routes["GET", "/tessera/v1/models/spark/load-settings"] = stored
    parent = QPushButton()
    qtbot.addWidget(parent)
    dialog = LoadDialog(services, "spark", "Spark", parent)
    dialog.show()
    qtbot.waitUntil(dialog.load.isEnabled)
    assert dialog.choices == stored.user
    assert (
        f"{formatted.whole(n_ctx)} tokens" == dialog._context_words.text() == dialog.context.accessibleDescription()
    )
    dialog.context.setValue(dialog.context.value() - 1)
    assert dialog.choices.n_ctx < n_ctx
    dialog.close()
    settled(qtbot, services)


def test_a_model_that_only_stays_loaded_can_be_reset(qtbot, services, server):
    server.routes["GET", "/tessera/v1/models/spark/load-settings"] = ModelLoadSettings(id="spark")
    parent = QPushButton()
    qtbot.addWidget(parent)
    dialog = LoadDialog(services, "spark", "Spark", parent)
    dialog.show()
    qtbot.waitUntil(dialog.load.isEnabled)
    assert not dialog.reset.isEnabled()
    dialog.keep.setChecked(True)
    assert dialog.reset.isEnabled()
    dialog.close()
    settled(qtbot, services)


def test_lines_of_the_log_stay_in_sight_and_selected_while_it_grows(qtbot, show, services):
    page = show(LogPage(services))
    path = server_log()
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"line {number} \N{ROCKET} {'word ' * 40}" for number in range(400)]

    def write(first, last):
        path.write_text("\n".join(lines[first:last]), "utf-8")
        page._read_log()
        qtbot.waitUntil(lambda: page._text == "\n".join(lines[first:last]))

    write(0, 200)
    bar = page.log.verticalScrollBar()
    assert bar.value() == bar.maximum(), "the newest lines are shown"
    page.log.find("line 100 ")
    bar.setValue(page.log.textCursor().block().firstLineNumber())
    for last in (201, 260):
        write(last - 200, last)
        assert page.log.textCursor().selectedText() == "line 100 "
        assert page.log.cursorForPosition(page.log.rect().topLeft()).block().text() == lines[100]
        assert page.log.toPlainText() == "\n".join(lines[last - 200 : last])
    bar.setValue(bar.maximum())
    write(61, 261)
    assert bar.value() == bar.maximum()
    lines[:] = ["another log"] * 400
    write(0, 3)
    assert page.log.toPlainText() == "another log\nanother log\nanother log"


def test_a_problem_of_a_page_that_asks_again_and_again_can_be_closed_and_goes_with_its_cause(
    qtbot, show, services, server
):
    route = "GET", "/tessera/v1/collections"
    server.routes[route] = (500, {"error": {"message": "The index is damaged.", "code": "internal"}})
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: page.banner.isVisible() and "index is damaged" in page.banner.text)
    page.banner._close.click()
    page.refresh()
    settled(qtbot, services)
    assert not page.banner.isVisible(), "the same problem is shown once"
    server.routes[route] = Collections(collections=())
    page.refresh()
    qtbot.waitUntil(page.empty.isVisible)
    server.routes[route] = (500, {"error": {"message": "The index is damaged.", "code": "internal"}})
    page.refresh()
    qtbot.waitUntil(page.banner.isVisible)
    server.routes[route] = Collections(collections=())
    page.refresh()
    qtbot.waitUntil(lambda: not page.banner.isVisible())


def test_documents_ask_nothing_of_a_server_that_is_gone_and_show_it_when_it_is_back(qtbot, show, services, server):
    route = "GET", "/tessera/v1/collections"
    server.routes[route] = Collections(collections=())
    page = show(DocumentsPage(services))
    qtbot.waitUntil(page.empty.isVisible)
    services.models.stop()
    settled(qtbot, services)
    services.models._on_error(ServerUnreachable("this computer", "none is running"))
    num_requests = len(server.requests)
    server.routes[route] = Collections(collections=(Collection(id="col_1", name="Sea"),))
    page.refresh()
    settled(qtbot, services)
    assert len(server.requests) == num_requests
    assert not page.banner.isVisible()
    services.models.refresh()
    qtbot.waitUntil(lambda: "Sea" in texts(page))
