"""Other computers on the server page: one with layers of a model, and one that is the window's server."""

import pytest

from app.client.remote_server import RemoteServer
from app.gui.devices.page import placement_card
from app.gui.server.page import OtherComputersPage
from app.gui.server.workers_card import _host_and_port
from engine.api.chat import ModelList
from engine.api.machine import PlacementAnswer
from engine.api.remotes import RemoteDevice, RemoteRow, Remotes
from engine.api.requests import NewKey
from tests.gui.hands import press, texts
from tests.gui.wire import fact, placement

SHOWN = "SHA256:NRFenoZxgl5+eRTPPWQwoxf36IPF+sbL2n06mEWEuZo"
DESK = RemoteRow(
    name="desk", host="desk-pc", user="you", port=22, worker_port=50052, use="faster", fingerprint=SHOWN,
    state="ok", rtt_ms=0.31, up_bytes_s=9e7, down_bytes_s=1.1e8, models=("qwen",),
    devices=(RemoteDevice(name="CUDA0", description="GeForce", kind="gpu", total_bytes=24 * 10**9,
                          free_bytes=20 * 10**9, gbs=800.0),),
)  # fmt: skip


def test_a_computer_is_added_after_its_host_key_was_seen(qtbot, show, services, server):
    asked, kept = [], []

    def put(body):
        asked.append(body)
        if "host_key" not in body:
            said = f"desk-pc shows the host key {SHOWN}, which this computer does not know."
            return 409, {"error": {"message": said, "code": "unknown_host_key", "type": "x", "param": None}}
        kept.append(DESK)
        return DESK

    def forget(_):
        kept.clear()
        return 204, None

    server.routes["GET", "/tessera/v1/remotes"] = lambda _: Remotes(remotes=tuple(kept))
    server.routes["PUT", "/tessera/v1/remotes/desk"] = put
    server.routes["DELETE", "/tessera/v1/remotes/desk"] = forget
    page = show(OtherComputersPage(services, server.api))
    card = page.remotes
    assert not card.add.isEnabled()
    card.name.setText("desk")
    card.where.setText("desk-pc")
    assert not card.add.isEnabled()  # no user
    card.where.setText("you@desk-pc")
    card.use.setCurrentIndex(1)
    card.add.click()
    qtbot.waitUntil(lambda: card.accept.isVisibleTo(card))
    assert SHOWN in texts(page)
    assert kept == []
    card.accept.click()
    qtbot.waitUntil(lambda: "0.3 ms, 110 MB/s" in texts(page))
    assert asked[-1] == {"host": "desk-pc", "user": "you", "use": "faster", "host_key": SHOWN}
    assert not card.accept.isVisibleTo(card)
    assert "GeForce: 18.6 GiB of 22.4 GiB free" in texts(page)
    press(page, "Remove")
    qtbot.waitUntil(lambda: "GeForce" not in texts(page))


def test_refusing_the_key_keeps_nothing(qtbot, show, services, server):
    said = {"error": {"message": f"{SHOWN}, which", "code": "unknown_host_key", "type": "x", "param": None}}
    server.routes["GET", "/tessera/v1/remotes"] = lambda _: Remotes()
    server.routes["PUT", "/tessera/v1/remotes/desk"] = lambda _: (409, said)
    card = show(OtherComputersPage(services, server.api)).remotes
    card.name.setText("desk")
    card.where.setText("you@desk-pc")
    card.add.click()
    qtbot.waitUntil(lambda: card.accept.isVisibleTo(card))
    card.refuse.click()
    assert not card.accept.isVisibleTo(card)


def test_a_link_makes_another_tessera_the_server(qtbot, show, services, server):
    server.routes["GET", "/v1/models"] = lambda _: ModelList(data=())
    page = show(OtherComputersPage(services, server.api))
    card = page.elsewhere
    assert not card.use.isEnabled()
    card.url.setText(f"{server.url}/chat#key=sk-canary")
    with qtbot.waitSignal(card.moved):
        card.use.click()
    assert RemoteServer().url == server.url
    assert "sk-canary" not in texts(page)
    card.url.setText("http://127.0.0.1:9")
    card.use.click()
    qtbot.waitUntil(lambda: "No Tessera server answers" in texts(page))
    assert RemoteServer().url == server.url  # an unreachable one is not stored
    with qtbot.waitSignal(card.moved):
        card.back.click()
    assert RemoteServer().url == ""


def test_a_code_is_for_servers_that_others_reach(qtbot, show, services, server, monkeypatch):
    made = []

    def make(body):
        made.append(body["name"])
        return NewKey(name=body["name"], key="sk-phone", scopes=("chat",))

    server.routes["POST", "/tessera/v1/keys"] = make
    page = show(OtherComputersPage(services, server.api))
    card = page.elsewhere
    assert not card.show_code.isEnabled()  # only this computer can reach it
    card.show_code.setEnabled(True)
    card.show_code.click()
    qtbot.waitUntil(lambda: not card.code.pixmap().isNull())
    assert "/chat#key=sk-phone" in card.shown.text()
    assert made == ["phone"]


@pytest.mark.parametrize(
    ("place", "host", "port"),
    [
        ("desk", "desk", 22),
        ("desk:2222", "desk", 2222),
        ("10.0.0.2:70", "10.0.0.2", 70),
        ("fe80::1", "fe80::1", 22),
        ("[fe80::1]", "fe80::1", 22),
        ("[fe80::1]:2222", "fe80::1", 2222),
        ("desk:", "desk:", 22),
    ],
)
def test_an_address_for_ssh_may_name_its_port(place, host, port):
    assert _host_and_port(place) == (host, port)


def test_a_model_is_pinned_to_a_device_by_the_name_the_server_knows(qtbot):
    wanted = []
    here = placement((fact("one"),))
    there = placement((fact("it is faster"),), device="remote:desk/CPU", backend="rpc")
    for placed in (here, there):
        answer = PlacementAnswer(placement=placed)
        made = placement_card("spark", "Spark", answer, lambda _, device: wanted.append(device), print)
        qtbot.addWidget(made)
        made.show()
        press(made, "Pin to this device")
        made.close()
    assert wanted == ["cpu/cpu", "remote:desk/CPU"]
