"""Devices, dashboard, server, settings and the first run, against a server on loopback."""

import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QPoint
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QCheckBox, QComboBox, QLabel, QPlainTextEdit, QPushButton, QSpinBox

from app.gui.chat.welcome import Welcome
from app.gui.dashboard import DashboardPage
from app.gui.devices.facts import live_facts, plain_summary, pool_shares, summary
from app.gui.devices.page import DevicesPage, placement_card
from app.gui.documents.page import DocumentsPage
from app.gui.jobs import Jobs
from app.gui.library.hub_tab import HubTab
from app.gui.library.page import LibraryPage
from app.gui.quantize.page import FitPage
from app.gui.server.page import ServerPage
from app.gui.settings_page import SettingsPage
from app.gui.widgets.basics import Page
from app.gui.widgets.tensor_mosaic import Mosaic, Tile, bits_of, tiles_of_types
from app.gui.widgets.time_plot import TimePlot
from app.settings import SETTINGS, load
from app.suggestions import FOR_A_MODEL
from engine.api.chat import ModelRow
from engine.api.collections import Collections
from engine.api.hub import Proposal, Starters
from engine.api.library import Models
from engine.api.machine import (
    Alternative,
    BackendReport,
    CoreCounts,
    Device,
    DeviceUsage,
    Finding,
    LedgerState,
    LiveDevices,
    Memory,
    Pinned,
    PlacementAnswer,
    Pool,
    Reservation,
    SettingChange,
    SystemMemory,
)
from engine.api.models import LoadedModel, LoadedModels
from engine.api.requests import Key, Keys, NewKey, Program, RecentActivity, RequestRecord
from engine.api.stats import ModelUse, Stats, Work, WorkSamples
from tests.gui.fake_server import Events, machine
from tests.gui.hands import press, texts
from tests.gui.wire import fact, placement, starter
from tests.support.machines.opened_machines import assembled

MACHINE = machine(
    memory=SystemMemory(total_bytes=24 << 30),
    devices=(
        Device(
            id="cpu", kind="cpu", vendor="AMD", name="EPYC", state="usable", memory=Memory(physical_bytes=24 << 30),
            cores=CoreCounts(2, 2, 2, 0, 2, 2), isa=("avx512_vnni",),
        ),
        Device(
            id="0000:01", kind="dgpu", vendor="AMD", name="RX 9070", state="no_permission", memory=Memory(),
            reason="You are not in the group render.", fix_hint="sudo usermod -aG render $USER",
        ),
    ),
    backends=(BackendReport("vulkan", "", "not_built", reason="not part of this build"),),
    findings=(
        Finding("half-speed", "advice", "Memory runs at half speed", detail="One channel.", fix="Move a module."),
    ),
)  # fmt: skip
RESERVED = Reservation(
    owner="spark", key="llama|cpu", amounts={}, drawn={"ram": 4 << 30}, parts={"weights": 3 << 30, "kv": 1 << 30}
)
LEDGER = LedgerState(
    pools=(Pool(id="ram", kind="ram", capacity_bytes=24 << 30, free_bytes=10 << 30, reserve_bytes=0),),
    reservations=(RESERVED,),
)


def test_devices_show_state_reason_fix_and_who_holds_the_memory(qtbot, show, services, server):
    server.routes["GET", "/tessera/v1/devices"] = MACHINE
    server.routes["GET", "/tessera/v1/ledger"] = LEDGER
    server.routes["GET", "/tessera/v1/loaded"] = LoadedModels(models=(LoadedModel(id="spark", state="loaded"),))
    slower = Alternative(
        device="gpu0", backend="vulkan", n_gpu_layers=9, decode_tok_s=9.0, reason=fact("expected to be slower")
    )
    unable = Alternative(
        device="npu", backend="npu", n_gpu_layers=0, decode_tok_s=None, reason=fact("no kernels for it")
    )
    placed = placement((fact("It is the only device."),), alternatives=(slower, unable))
    server.routes["GET", "/tessera/v1/models/spark/placement"] = PlacementAnswer(placement=placed)
    live = DeviceUsage(device="cpu", busy_frac=0.42, temperature_c=61.2)
    server.routes["GET", "/tessera/v1/devices/live"] = LiveDevices(devices=(live,))
    pinned = Pinned(id="spark", device="gpu0/vulkan", unloaded=True)
    server.routes["POST", "/tessera/v1/models/spark/pin"] = pinned
    server.routes["POST", "/tessera/v1/models/spark/load"] = LoadedModel(id="spark", state="loaded")
    page = show(DevicesPage(services, SimpleNamespace(by_id={})))
    qtbot.waitUntil(lambda: "RX 9070" in texts(page) and "Spark (demo) · " in texts(page))
    qtbot.waitUntil(lambda: "42 % in use · 61 °C" in texts(page))
    qtbot.waitUntil(lambda: "It is the only device." in texts(page))
    for part in ("No permission", "You are not in the group render.", "sudo usermod", "AVX512-VNNI",
                 "Memory runs at half speed", "10.0 GiB free of 24.0 GiB", "EPYC"):  # fmt: skip
        qtbot.waitUntil(lambda part=part: part in texts(page))
    pins = [b for b in page.findChildren(QPushButton) if b.text() == "Pin" and b.isVisible()]
    assert len(pins) == 1, "where it cannot run it cannot be pinned"
    pins[0].click()
    qtbot.waitUntil(lambda: ("POST", "/tessera/v1/models/spark/pin", {"device": "gpu0/vulkan"}) in server.requests)
    qtbot.waitUntil(lambda: ("POST", "/tessera/v1/models/spark/load", {}) in server.requests)
    qtbot.waitUntil(lambda: "gpu0/vulkan" in page.banner.text)
    busy = Pinned(id="spark", device="gpu0/vulkan", applies="when_idle")
    server.routes["POST", "/tessera/v1/models/spark/pin"] = busy
    page._pin("spark", "gpu0/vulkan")
    qtbot.waitUntil(lambda: "is answering. It is loaded on gpu0/vulkan when the last" in page.banner.text)


def test_no_page_is_blank_while_its_answer_is_awaited(qtbot, show, services, server):
    """Devices shows what is known already; Documents and Library say that something comes."""
    asked = ("/tessera/v1/devices", "/tessera/v1/ledger", "/tessera/v1/collections", "/tessera/v1/models")
    answers = (MACHINE, LEDGER, Collections(collections=()), Models(models=()))
    held = threading.Event()

    def late(answer):
        def wait(_body):
            held.wait(60)
            return answer

        return wait

    for path, answer in zip(asked, answers, strict=True):
        server.routes["GET", path] = late(answer)
    services.models.machine = MACHINE
    awaited = "This appears as soon as the server answers."
    try:
        devices, documents = show(DevicesPage(services, SimpleNamespace(by_id={}))), show(DocumentsPage(services))
        library = show(LibraryPage(services, Jobs(server.api, services.background, services.models)))
        for page in (devices, documents, library):
            assert awaited in texts(page), page.title.text()
        assert "RX 9070" in texts(devices)
    finally:
        held.set()
    qtbot.waitUntil(lambda: "10.0 GiB free of 24.0 GiB" in texts(devices))
    qtbot.waitUntil(lambda: "No folders yet" in texts(documents) and "No models yet" in texts(library))
    for page in (devices, documents, library):
        assert awaited not in texts(page)
    library._jobs.stop()


def test_a_pinned_model_says_so_and_can_be_let_go(qtbot):
    wanted = []
    placed = placement((fact("one"),), load={"n_threads": 1})
    answer = PlacementAnswer(placement=placed, pinned="cpu")
    made = placement_card("spark", "Spark", answer, lambda model, device: wanted.append((model, device)), print)
    qtbot.addWidget(made)
    made.show()
    assert "Pinned" in texts(made)
    assert "1 thread" in texts(made)
    press(made, "Let Tessera choose")
    assert wanted == [("spark", None)]
    made.close()


def test_a_running_comparison_of_devices_is_shown_and_can_be_stopped(qtbot):
    stopped = []
    placed = placement((fact("one"),), load={"n_threads": 1})
    answer = PlacementAnswer(placement=placed, comparing="measure-1")
    made = placement_card("spark", "Spark", answer, lambda *_: None, stopped.append)
    qtbot.addWidget(made)
    made.show()
    assert "Measuring which device is fastest" in texts(made)
    press(made, "Stop measuring")
    assert stopped == ["measure-1"]
    made.close()


def test_the_card_shows_which_step_set_what(qtbot):
    change = SettingChange(step="requested", field="type_k", old="f16", new="q8_0", reason=fact("it was requested"))
    placed = placement((fact("one"),), changes=(change,))
    made = placement_card("spark", "Spark", PlacementAnswer(placement=placed), lambda *_: None, print)
    qtbot.addWidget(made)
    made.show()
    line = "type_k: f16 → q8_0 (requested: it was requested)"
    assert line not in texts(made)
    press(made, "Source of each setting")
    assert line in texts(made)
    press(made, "Source of each setting")
    assert line not in texts(made)
    made.close()


def test_what_a_device_does_now_in_words():
    assert live_facts(DeviceUsage(device="x", busy_frac=0.5, temperature_c=55, power_w=23.5)) == (
        "50 % in use · 55 °C · 23.5 W"
    )
    assert live_facts(DeviceUsage(device="x", asleep=True)) == "asleep"
    assert live_facts(DeviceUsage(device="x")) == ""


def test_the_machine_in_one_sentence():
    assert summary(MACHINE) == "EPYC, 24.0 GiB for models: up to about 37 billion parameters."
    assert "not been checked yet" in summary(machine())
    fits = "This computer runs models of up to about 37 billion parameters."
    assert plain_summary(MACHINE) == f"{fits}\nRX 9070 is not used; the page System says why."
    usable = msgspec.structs.replace(MACHINE.devices[1], state="usable")
    for devices, where in ((MACHINE.devices[:1], "its CPU"), ((MACHINE.devices[0], usable), "RX 9070")):
        shown = plain_summary(msgspec.structs.replace(MACHINE, devices=devices))
        assert shown == f"{fits}\nThey run on {where}."


@pytest.mark.parametrize(
    ("gpus", "where"),
    [
        (  # the integrated GPU has four times as much memory
            [("AMD Radeon 890M", 15, "1002:150e", "gfx1150"),
             ("NVIDIA GeForce RTX 5060 Laptop GPU", 8, "10de:0", "sm_120")],
            "Those of up to about 12 billion run on NVIDIA GeForce RTX 5060 Laptop GPU, larger ones in part."),
        ([("Radeon AI PRO R9700", 32, "1002:7551", "gfx1201")], "They run on Radeon AI PRO R9700."),
        ([("AMD Radeon 8060S", 24, "1002:1586", "gfx1151")], "They run on AMD Radeon 8060S."),
        ([("Intel UHD Graphics 620", 16, "8086:5917", None)],
         "They run on Intel UHD Graphics 620 or on its CPU, whichever is faster."),
    ],
)  # fmt: skip
def test_the_first_screen_names_the_device_that_dispatch_takes(gpus, where):
    computer = assembled("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 12, 32, 120, *gpus)
    fits = "This computer runs models of up to about 49 billion parameters."
    assert plain_summary(computer) == f"{fits}\n{where}"


def test_a_card_that_is_not_used_is_named_beside_the_integrated_gpu_that_is():
    parts = ("AMD Radeon 890M", 15, "1002:150e", "gfx1150"), ("RTX 5060 Laptop GPU", 8, "10de:0", "sm_120")
    computer = assembled("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 12, 32, 120, *parts)
    card = msgspec.structs.replace(computer.devices[2], state="present", runtimes=())
    computer = msgspec.structs.replace(computer, devices=(*computer.devices[:2], card))
    _, used, unused = plain_summary(computer).splitlines()
    assert used == "They run on AMD Radeon 890M."
    assert unused == "RTX 5060 Laptop GPU is not used; the page System says why."
    assert summary(computer).startswith("AMD Radeon 890M, 32.0 GiB for models")


def test_a_container_has_as_much_memory_as_its_limit():
    limited = msgspec.structs.replace(MACHINE, memory=SystemMemory(total_bytes=24 << 30, limit_bytes=8 << 30))
    limited = msgspec.structs.replace(limited, devices=())
    assert "8.0 GiB for models: up to about 12 billion" in summary(limited)


def test_memory_adds_up_to_what_is_used():
    shares = pool_shares(LEDGER.pools[0], LEDGER.reservations)
    assert sum(share.num_bytes for share in shares) == 14 << 30
    assert [share.owner for share in shares] == ["model 0", "other"]
    assert sum(size for _, size in shares[0].parts) == shares[0].num_bytes
    assert "context" in shares[0].tip


RECENT = RecentActivity(
    requests=(
        RequestRecord(
            id="r2", time=1_700_000_000.0, route="/v1/messages", program="claude-cli/2.0", address="127.0.0.1"
        ),
        RequestRecord(
            id="r1", time=1_700_000_000.0, route="/v1/chat/completions", program="OpenAI/Python",
            address="127.0.0.1", status=200, seconds=2.5, sent_bytes=99, running=False, model="spark",
            prompt_tokens=1200, cached_tokens=1000, completion_tokens=50, ttft_s=0.012, tok_s=431.5,
        ),
    ),
    programs=(
        Program(
            name="claude-cli/2.0", address="127.0.0.1", first_seen=0, last_seen=time.time(), num_requests=3,
            active=1, connected=True,
        ),
        Program(name="gone/1", address="10.0.0.9", first_seen=0, last_seen=5, num_requests=1),
    ),
)  # fmt: skip


def stats(generated, prompt=40, cached=10):
    used = ModelUse(
        model="spark", requests=3, prompt_tokens=prompt, cached_tokens=cached, generated_tokens=generated
    )
    other = ModelUse(model="other", generated_tokens=5)
    return Events([Stats(active=2, waiting=7, rss_bytes=3 << 29, use=(other, used))])


def work(ago, **counts):
    return Work(at=1_700_000_000.0 - ago, **counts)


def test_the_dashboard_reads_the_counters_and_what_was_before_it_was_opened(qtbot, show, services, server):
    server.routes["GET", "/tessera/v1/stats"] = stats(100)
    before = [
        work(3),
        work(2, prompt_tokens=40, cached_tokens=10, active=2),
        work(1, prompt_tokens=40, cached_tokens=10),
    ]
    now = work(0, prompt_tokens=80, cached_tokens=30, generated_tokens=90, active=2, waiting=7, rss_bytes=3 << 29)
    server.routes["GET", "/tessera/v1/stats/history"] = WorkSamples(samples=(*before, now))
    server.routes["GET", "/tessera/v1/requests"] = RECENT
    page = show(DashboardPage(services))
    qtbot.waitUntil(lambda: page.table.rowCount() == 2)
    assert page.table.texts() == [["other", "0", "0", "5"], ["Spark (demo)", "3", "40", "100"]]
    assert {name: page.plots[name].value.text() for name in ("active", "waiting", "memory")} == {
        "active": "2", "waiting": "7", "memory": "1.5",
    }  # fmt: skip
    running, done = page.history.texts()
    assert done[:3] == ["OpenAI/Python", "chat/completions", "Spark (demo)"]
    assert done[4:] == ["1200", "1000", "50", "12 ms", "431.5", "2.5 s"]
    assert running[2] == "—"
    assert running[4:] == ["—", "—", "—", "—", "—", "Running"]
    shown = {name: list(plot._curve.getData()[1]) for name, plot in page.plots.items()}
    assert shown["active"] == [0, 2, 0, 2]
    assert shown["speed"] == [0, 0, 90]
    assert shown["prompt"] == [30, 0, 20]
    assert shown["cache"] == [25, 0, 50]


def test_a_plot_keeps_three_minutes_and_a_scale_that_does_not_jump(qtbot, theme):
    plot = TimePlot(theme, "Speed", "tokens/s")
    qtbot.addWidget(plot)
    for second in range(400):
        plot.add(second % 7, now=float(second))
    ages, values = plot._curve.getData()
    assert len(values) == 181
    assert (min(ages), max(ages)) == (-180, 0)
    (low, high) = plot.plot.getViewBox().viewRange()[1]
    assert low < 0
    assert 10 < high < 11


def test_the_server_page_tells_where_and_what_to_paste(qtbot, show, services, server, monkeypatch):
    monkeypatch.setattr("app.gui.server.page._DONE_MS", 100)
    page = show(ServerPage(services, server.api))
    assert page.address.text() == f"{server.url}/v1"
    page.client.setCurrentIndex(page.client.findText("Zed"))
    assert server.url in page.snippet.toPlainText()
    assert '"spark"' in page.snippet.toPlainText()
    press(page, "Copy")
    assert QGuiApplication.clipboard().text() == page.snippet.toPlainText()
    assert not page.switch.isEnabled(), "a server that others started is not ours to stop"
    qtbot.waitUntil(lambda: page._copy_button.text() == "Copy")


def test_what_to_paste_names_a_key_once_keys_are_required(qtbot, show, services, server):
    found = [Keys(keys=(Key(name="continue", program=True),))]
    server.routes["GET", "/tessera/v1/keys"] = lambda _: found[0]
    page = show(ServerPage(services, server.api))
    qtbot.waitUntil(lambda: page.keys._rows.count() > 0)
    for index in range(page.client.count()):
        page.client.setCurrentIndex(index)
        assert "YOUR_KEY" not in page.snippet.toPlainText()
        assert "{" + "key" not in page.snippet.toPlainText()
    found[0] = Keys(keys=(Key(name="me"),), required=True)
    page.keys.refresh()
    qtbot.waitUntil(lambda: "YOUR_KEY" in page._hint.text())
    for index in range(page.client.count()):
        page.client.setCurrentIndex(index)
        text = page.snippet.toPlainText()
        # Zed stores keys outside its settings.
        assert ("YOUR_KEY" in text) == (page.client.currentText() != "Zed")
        assert "8192" not in text or services.models.get("spark").n_ctx == 8192


def test_the_server_page_shows_who_is_connected_and_what_was_asked(qtbot, show, services, server):
    server.routes["GET", "/tessera/v1/requests"] = RECENT
    page = show(ServerPage(services, server.api))
    qtbot.waitUntil(lambda: page.requests.rowCount() == 2)
    assert page.programs.texts() == [["claude-cli/2.0", "127.0.0.1", "now", "1", "3"]]
    server.routes["GET", "/tessera/v1/requests"] = RecentActivity()
    page._follow()
    qtbot.waitUntil(lambda: "No program has sent a request" in texts(page))
    assert not page.requests.isVisible()


def test_keys_are_made_shown_once_copied_and_revoked(qtbot, show, services, server, monkeypatch):
    monkeypatch.setattr("app.gui.server.page._DONE_MS", 100)
    keys, public = [], False

    def make(body):
        keys.append(Key(name=body["name"], scopes=tuple(body["scopes"]), created_at=1.7e9))
        return 201, NewKey(name=body["name"], key="tsr_secret", scopes=keys[-1].scopes)

    def revoke(_body):
        keys.clear()
        return 204, None

    server.routes["GET", "/tessera/v1/keys"] = lambda _: Keys(keys=tuple(keys), public=public)
    server.routes["POST", "/tessera/v1/keys"] = make
    server.routes["DELETE", "/tessera/v1/keys/My%20editor"] = revoke
    page = show(ServerPage(services, server.api))
    qtbot.waitUntil(lambda: "No key is needed" in texts(page))
    assert not page.keys.add.isEnabled()
    page.keys.name.setText("My editor")
    page.keys.scope.setCurrentIndex(1)
    page.keys.add.click()
    qtbot.waitUntil(lambda: "Every program must present" in texts(page))
    assert keys[0].scopes == ("chat", "manage")
    qtbot.waitUntil(lambda: "manages models" in texts(page))
    press(page, "Copy the key")
    assert QGuiApplication.clipboard().text() == "tsr_secret"
    press(page, "Revoke")
    qtbot.waitUntil(lambda: "No key is needed" in texts(page))
    assert "tsr_secret" not in texts(page)
    qtbot.waitUntil(lambda: page.keys._copy.text() == "Copy the key")
    public = True
    page.keys.refresh()
    qtbot.waitUntil(lambda: "accepts no other program until you create a key" in texts(page))


def test_a_refused_key_says_why(qtbot, show, services, server):
    server.routes["POST", "/tessera/v1/keys"] = (400, {"error": {"message": "A key needs a name of its own."}})
    page = show(ServerPage(services, server.api))
    page.keys.name.setText("twice")
    page.keys.add.click()
    qtbot.waitUntil(lambda: page.banner.text == "A key needs a name of its own.")


def test_every_setting_has_an_editor_and_a_change_reaches_the_file(qtbot, show, services, home):
    page = show(SettingsPage(services))
    assert page.editors.keys() == {row.name for row in SETTINGS}
    for row in SETTINGS:
        assert page.editors[row.name].accessibleName() == row.title
    page.search.setText("offline")
    assert page.editors["network.offline"].isVisible()
    assert not page.editors["window.theme"].isVisible()
    page.search.clear()
    page.show_section("Appearance")
    assert not page.editors["network.offline"].isVisible()
    theme = page.editors["window.theme"]
    assert isinstance(theme, QComboBox)
    theme.setCurrentIndex(theme.findData("dark"))
    theme.activated.emit(theme.currentIndex())
    port = page.editors["server.port"]
    assert isinstance(port, QSpinBox)
    assert port.value() == 7373
    page.show_section("Network")
    offline = page.editors["network.offline"]
    assert isinstance(offline, QCheckBox)
    offline.click()
    file = home / "config" / "settings.toml"
    qtbot.waitUntil(lambda: file.exists() and load(file, {}).flag("network.offline"))
    assert load(file, {})["window.theme"] == "dark"


def test_the_first_run_says_what_fits_and_offers_the_demo(qtbot, show, services, server):
    server.routes["GET", "/tessera/v1/devices"] = MACHINE
    proposal = Proposal(starter=starter("small"), expected_bytes=5 << 30, expected_tok_s=7.25)
    server.routes["GET", "/tessera/v1/hub/starters"] = Starters(proposals=(proposal,))
    page = show(Welcome(services))
    qtbot.waitUntil(lambda: "small" in texts(page) and "billion parameters" in texts(page))
    assert "about 5.0 GiB · about 7.3 tokens/s" in texts(page)
    with qtbot.waitSignal(page.asked) as asked:
        press(page, "What is quantization?")
    assert asked.args == ["What is quantization?"]
    with qtbot.waitSignal(page.pull_pressed) as pulled:
        press(page, "Download")
    assert pulled.args == ["small"]
    server.models.append(ModelRow(id="mine", name="Mine"))
    services.models.refresh()
    qtbot.waitUntil(lambda: "Everything stays on this computer" in texts(page))


def test_one_of_the_models_to_begin_with_is_recommended_and_says_why(qtbot, show, services, server):
    small, large = (
        Proposal(
            starter=starter(name),
            expected_bytes=5 << 30,
            recommended=why,
        )
        for name, why in (("small", "reading_speed"), ("large", ""))
    )
    server.routes["GET", "/tessera/v1/hub/starters"] = Starters(proposals=(small, large))
    page = show(Welcome(services))
    qtbot.waitUntil(lambda: "large" in texts(page))
    assert texts(page).count("Recommended") == 1
    assert "writes at reading speed" in texts(page)
    kinds = {
        b.accessibleName(): b.property("kind") for b in page.findChildren(QPushButton) if b.text() == "Download"
    }
    assert kinds == {"Download small": "primary", "Download large": ""}


def test_every_page_recommends_the_same_models_also_once_a_speed_is_known(qtbot, show, services, server):
    """The hub tab and the welcome view show one list; the newest response replaces it in both."""
    quick, large = (
        Proposal(starter=starter(name), expected_bytes=5 << 30, recommended=why, want=want)
        for name, why, want in (("quick", "smallest", "fast"), ("large", "", "balanced"))
    )
    server.routes["GET", "/tessera/v1/hub/starters"] = Starters(proposals=(quick, large))
    welcome = show(Welcome(services))
    qtbot.waitUntil(lambda: "Fast: short questions" in texts(welcome) and "at 100 Mbit/s" in texts(welcome))
    replace = msgspec.structs.replace
    timed = (replace(large, recommended="reading_speed", expected_tok_s=9.0), replace(quick, recommended=""))
    server.routes["GET", "/tessera/v1/hub/starters"] = Starters(proposals=timed)
    hub = show(HubTab(services, SimpleNamespace()))
    hub.show_starters()
    for page in (hub, welcome):
        qtbot.waitUntil(lambda page=page: "about 9.0 tokens/s" in texts(page))
        said = texts(page)
        assert said.index("large") < said.index("Recommended") < said.index("quick")


def test_the_first_run_with_the_real_model_asks_what_it_knows(qtbot, show, services, server):
    server.models[0] = msgspec.structs.replace(server.models[0], default=False)
    server.models.append(ModelRow(id="smol", name="SmolLM2", origin="installed", default=True))
    services.models.refresh()
    page = show(Welcome(services))
    qtbot.waitUntil(lambda: "Try it now with SmolLM2" in texts(page))
    qtbot.waitUntil(
        lambda: FOR_A_MODEL[-1].question in {b.text() for b in page.findChildren(QPushButton) if b.isVisible()}
    )
    for suggestion in FOR_A_MODEL:
        with qtbot.waitSignal(page.asked) as asked:
            press(page, suggestion.question)
        assert asked.args == [suggestion.question]


def test_tiles_follow_the_weights_not_the_bytes(qtbot, theme):
    assert bits_of("Q4_K") == 4.5
    assert bits_of("NOPE") == 0
    tiles = tiles_of_types({"Q4_K": 450, "F16": 1600}, 40)
    assert [tile.bits for tile in tiles].count(4.5) == 20
    mosaic = Mosaic(theme)
    qtbot.addWidget(mosaic)
    mosaic.show_tiles([Tile(4.5, "a"), Tile(16, "b")])
    mosaic.grab()
    assert "2 tensors" in mosaic.accessibleName()


def test_every_control_of_every_page_has_a_name(qtbot, show, services, server, qapp):
    """The text for a screen reader: text, accessible name or tooltip."""
    from PySide6.QtWidgets import QAbstractButton, QAbstractSpinBox, QLineEdit

    from app.gui.chat.page import ChatPage
    from app.gui.library.page import LibraryPage

    server.routes["GET", "/tessera/v1/models"] = Models(models=())
    server.routes["GET", "/tessera/v1/jobs/events"] = Events([])
    jobs = Jobs(server.api, services.background, services.models, qapp)
    pages = [ChatPage(services), LibraryPage(services, jobs), FitPage(services, jobs), DevicesPage(services, jobs),
             DashboardPage(services), ServerPage(services, server.api), SettingsPage(services)]  # fmt: skip
    nameless = []
    for page in pages:
        show(page)
        for kind in (QAbstractButton, QLineEdit, QPlainTextEdit, QComboBox, QAbstractSpinBox):
            for widget in page.findChildren(kind):
                inner = widget.objectName().startswith("qt_") or isinstance(
                    widget.parent(), QAbstractSpinBox | QLineEdit
                )
                words = widget.accessibleName() or (widget.text() if isinstance(widget, QAbstractButton) else "")
                if not inner and not words and not isinstance(widget.parent(), QComboBox):
                    nameless.append((type(page).__name__, type(widget).__name__, str(widget.parent())))
    jobs.stop()
    jobs.deleteLater()
    pages[0].save_draft()
    assert nameless == []


def test_a_control_stays_where_it_is_when_lists_above_it_arrive(qtbot, show):
    page = Page("Server")
    late = QLabel("a list that arrives late")
    late.hide()
    below = QPushButton("Use it")
    for item in (late, *(QPushButton(f"row {n}") for n in range(30)), below, QLabel("end\n" * 20)):
        page.content.addWidget(item)
    show(page)
    page.resize(600, 400)
    qtbot.waitUntil(lambda: page.verticalScrollBar().maximum() > 0)
    page.ensureWidgetVisible(below)
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
    at = below.mapTo(page, QPoint(0, 0))
    for shown in (True, False):
        late.setMinimumHeight(240)
        late.setVisible(shown)
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        assert below.mapTo(page, QPoint(0, 0)) == at
    page.verticalScrollBar().setValue(0)
    late.show()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
    assert page.verticalScrollBar().value() == 0, "what is new at the top is seen there"
