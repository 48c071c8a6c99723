"""Lists that are reloaded: nothing is lost under the pointer, and a slow answer does not replace a newer one."""

import threading
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QCheckBox, QWidget

from app.db import conversations
from app.gui.chat.welcome import Welcome
from app.gui.devices.page import DevicesPage
from app.gui.library.hub_tab import HubTab
from app.gui.quantize.page import FitPage
from app.gui.widgets.basics import when_released
from engine.api.hub import Proposal, SearchResults, Starters
from engine.api.library import Models
from engine.api.machine import PowerLimits, PowerState
from tests.gui.fake_server import machine
from tests.gui.hands import ask, press, settled, texts
from tests.gui.wire import SPARK, hit, hub_option, hub_plan, sketch, starter


def test_what_is_made_anew_waits_for_the_mouse(qtbot, monkeypatch):
    owner, done = QWidget(), []
    qtbot.addWidget(owner)
    when_released(owner, lambda: done.append("at once"))
    assert done == ["at once"]
    monkeypatch.setattr(QGuiApplication, "mouseButtons", lambda: Qt.MouseButton.LeftButton)
    when_released(owner, lambda: done.append("later"))
    qtbot.wait(100)
    assert done == ["at once"]
    monkeypatch.setattr(QGuiApplication, "mouseButtons", lambda: Qt.MouseButton.NoButton)
    qtbot.waitUntil(lambda: done == ["at once", "later"])


@pytest.mark.parametrize("page", [Welcome, HubTab])
def test_a_recommendation_that_is_being_clicked_is_not_replaced(
    qtbot, show, services, server, jobs, monkeypatch, page
):
    server.routes["GET", "/tessera/v1/devices"] = machine()
    proposal = Proposal(starter=starter("small"), expected_bytes=5 << 30, expected_tok_s=7.25)
    server.routes["GET", "/tessera/v1/hub/starters"] = Starters(proposals=(proposal,))
    shown = show(Welcome(services) if page is Welcome else HubTab(services, jobs))
    if page is HubTab:
        shown.show_starters()
    qtbot.waitUntil(lambda: "about 7.3 tokens/s" in texts(shown))
    monkeypatch.setattr(QGuiApplication, "mouseButtons", lambda: Qt.MouseButton.LeftButton)
    services.models.take_proposals(Starters(proposals=(replace(proposal, expected_tok_s=8.5),)))
    qtbot.wait(50)
    assert "about 7.3 tokens/s" in texts(shown)
    monkeypatch.setattr(QGuiApplication, "mouseButtons", lambda: Qt.MouseButton.NoButton)
    qtbot.waitUntil(lambda: "about 8.5 tokens/s" in texts(shown))


@pytest.fixture
def chats(qtbot, page):
    """Three chats, and the list of them."""
    for words in ("Alpha", "Beta", "Gamma"):
        page.new_chat()
        ask(qtbot, page, words)
    qtbot.waitUntil(lambda: page.sidebar.model.item(0) is not None and page.sidebar.model.item(0).rowCount() == 3)
    return page.sidebar


def test_marked_chats_stay_marked_when_the_list_changes(qtbot, chats, services):
    listed = {chat.title: chat.id for chat in services.store.submit(conversations.listing).result()}
    chats._mark([listed["Alpha"], listed["Beta"]])
    marked = set(chats._selected())
    assert {listed["Alpha"], listed["Beta"]} <= marked
    services.store.submit(conversations.update, listed["Gamma"], title="Delta").result()
    chats.refresh()
    qtbot.waitUntil(lambda: "Delta" in {chats.model.item(0).child(n).text() for n in range(3)})
    assert set(chats._selected()) == marked


def test_a_list_of_chats_that_looks_as_before_is_left_alone(qtbot, chats):
    made = []
    chats.model.modelReset.connect(lambda: made.append(True))
    reads = []
    shown = chats._on_loaded

    def loaded(found):
        shown(found)
        reads.append(True)

    chats._on_loaded = loaded
    chats.refresh()
    qtbot.waitUntil(lambda: bool(reads))
    assert made == []


def test_a_switch_of_a_tool_is_the_same_one_after_it_was_pressed(qtbot, page):
    page.tools.toggle()
    panel = page.tools.panel
    qtbot.waitUntil(lambda: any(box.text() == "Calculator" for box in panel.findChildren(QCheckBox)))
    box = next(box for box in panel.findChildren(QCheckBox) if box.text() == "Calculator")
    reads = []
    read = panel._on_read

    def on_read(found):
        read(found)
        reads.append(True)

    panel._on_read = on_read
    box.click()
    qtbot.waitUntil(lambda: page.controller.conversation.tools == ("tessera:calculator",))
    qtbot.waitUntil(lambda: bool(reads))
    assert box.isVisible()
    box.click()
    qtbot.waitUntil(lambda: page.controller.conversation.tools == ())


def test_a_slow_search_does_not_take_the_place_of_what_was_opened_since(qtbot, show, services, server, jobs):
    late = threading.Event()

    def search(_):
        late.wait(60)
        return SearchResults(repositories=(hit("org/late"),))

    server.routes["GET", "/tessera/v1/hub/search"] = search
    server.routes["GET", "/tessera/v1/hub/plan"] = hub_plan(hub_option("Q4_K_M", 4 << 30))
    hub = show(HubTab(services, jobs))
    hub.search.setText("late")
    hub._search()
    hub.open("org/found")
    qtbot.waitUntil(lambda: "Q4_K_M" in texts(hub))
    late.set()
    settled(qtbot, services)
    assert "Q4_K_M" in texts(hub)
    assert "late" not in texts(hub)


def test_a_look_from_before_a_change_does_not_bring_old_bounds_of_power_back(qtbot, show, services, server):
    asked, late = threading.Event(), threading.Event()
    server.routes["GET", "/tessera/v1/power"] = PowerState(limits=PowerLimits(), measured=True)
    server.routes["PUT", "/tessera/v1/power"] = PowerState(limits=PowerLimits(cap_w=15), measured=True)
    page = show(DevicesPage(services, SimpleNamespace(by_id={})))
    qtbot.waitUntil(page.power.isVisible)
    page._timer.stop()
    qtbot.waitUntil(lambda: "power" not in page._pending)

    def old(_):
        asked.set()
        late.wait(60)
        return PowerState(limits=PowerLimits(), measured=True)

    server.routes["GET", "/tessera/v1/power"] = old
    page.refresh()
    qtbot.waitUntil(asked.is_set)
    page.power.cap.setText("15")
    press(page.power, "Apply")
    qtbot.waitUntil(lambda: not page.power.use.isEnabled())
    late.set()
    qtbot.waitUntil(lambda: "power" not in page._pending)
    assert page.power.cap.text() == "15"


def test_the_list_of_models_to_fit_is_left_alone_when_it_is_the_same(qtbot, show, services, server, jobs):
    server.routes["GET", "/tessera/v1/models"] = Models(models=(SPARK,))
    server.routes["POST", "/tessera/v1/quantize/plan"] = lambda body: sketch(body.get("budget_bytes") or 17_000_000)
    fit = show(FitPage(services, jobs))
    qtbot.waitUntil(fit.start.isEnabled)
    made = []
    fit.model.model().rowsRemoved.connect(lambda *_: made.append(True))
    fit._show_models((SPARK,))
    assert made == []
    fit._show_models(())
    assert made != []
