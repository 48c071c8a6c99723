"""The power card on the Devices page: changes reach the server, and their result is shown."""

from types import SimpleNamespace

import msgspec

from app.gui.devices.page import DevicesPage
from engine.api.machine import PowerLimits, PowerState
from tests.gui.hands import press, texts
from tests.gui.wire import fact


class Desk:
    """The server's side of the route."""

    def __init__(self, server, **facts):
        self.wishes, self.facts, self.limits = [], facts, PowerLimits()
        server.routes["GET", "/tessera/v1/power"] = lambda _: self.state()
        server.routes["PUT", "/tessera/v1/power"] = self.put

    def state(self):
        return PowerState(limits=self.limits, **self.facts)

    def put(self, body):
        self.limits = msgspec.convert(body, PowerLimits)
        self.wishes.append(self.limits)
        return self.state()


def test_a_cap_and_a_mode_are_set_and_taken_back(qtbot, show, services, server):
    desk = Desk(server, measured=True, power_w=31.4)
    page = show(DevicesPage(services, SimpleNamespace(by_id={})))
    card = page.power
    qtbot.waitUntil(card.isVisible)
    assert "Using 31 W now." in texts(card)
    assert card.cap.isVisible()
    assert not card.battery.isVisible(), "this computer has none"
    assert not card.use.isEnabled()
    card.mode.setCurrentIndex(card.mode.findData("quiet"))
    card.cap.setText("15")
    press(card, "Apply")
    qtbot.waitUntil(lambda: desk.wishes == [PowerLimits(mode="quiet", cap_w=15)])
    qtbot.waitUntil(lambda: not card.use.isEnabled())
    desk.facts |= {"power_w": 14.6, "duty_frac": 0.4}
    page.refresh()
    qtbot.waitUntil(lambda: "Paused 60 % of the time." in texts(card))
    card.cap.clear()
    card.mode.setCurrentIndex(0)
    press(card, "Apply")
    qtbot.waitUntil(lambda: desk.wishes[-1] == PowerLimits())


def test_what_is_being_typed_stays_and_nonsense_is_not_sent(qtbot, show, services, server):
    desk = Desk(server, battery_percent=80.0, notes=(fact("A cap cannot be held: there is no meter."),))
    page = show(DevicesPage(services, SimpleNamespace(by_id={})))
    card = page.power
    qtbot.waitUntil(card.isVisible)
    assert "no power meter" in texts(card)
    assert "A cap cannot be held" in texts(card)
    assert card.battery.isVisible()
    assert not card.cap.isVisible(), "nothing here could hold it"
    card.battery.setText("0")
    assert not card.use.isEnabled()
    page.refresh()
    qtbot.wait(200)
    assert card.battery.text() == "0"
    assert desk.wishes == []
