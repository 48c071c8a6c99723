"""Load settings, changed in the window with a real server: when each takes effect, and what is shown then."""

from types import SimpleNamespace

import httpx2
import pytest

from app.client import Client
from app.gui.devices.page import DevicesPage
from app.gui.jobs import Jobs
from app.gui.library.load_dialog import LoadDialog
from app.gui.library.page import LibraryPage
from app.gui.server_link import ServerLink
from tests.gui.hands import press
from tests.support.servers import RunningServer, unfinished_answer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = "spark"


def _chosen_cache(dialog):
    dialog.cache.setCurrentIndex(dialog.cache.findData("q8_0"))


def _chosen_context(dialog):
    dialog.own_context.setChecked(False)
    dialog.context.setValue(0)


# How each is set in the dialog, and its value in the load.
KINDS = {
    "context": (_chosen_context, ("n_ctx", 512)),
    "cache type": (_chosen_cache, ("type_k", "q8_0")),
    "threads": (lambda dialog: dialog.threads.setValue(1), ("n_threads", 1)),
    "layers": (lambda dialog: dialog.layers.setValue(0), ("n_gpu_layers", 0)),
    "concurrent requests": (lambda dialog: dialog.parallel.setValue(2), ("n_parallel", 2)),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    started = RunningServer(tmp_path_factory.mktemp("window"))
    yield started
    started.stop()


@pytest.fixture
def server(running):
    """Replaces the window's fake server."""
    link = ServerLink()
    link._client = Client(running.url, running.token)
    yield SimpleNamespace(api=link)
    link.disconnect()


@pytest.fixture
def client(running):
    headers = {"authorization": f"Bearer {running.token}"}
    with httpx2.Client(base_url=running.url, headers=headers, timeout=120) as made:
        made.put(f"/tessera/v1/models/{MODEL}/load-settings", json={})
        made.post(f"/tessera/v1/models/{MODEL}/pin", json={"device": None})
        made.post(f"/tessera/v1/models/{MODEL}/unload")
        made.post(f"/tessera/v1/models/{MODEL}/load", json={"n_ctx": 1024}).raise_for_status()
        yield made


def state(client):
    rows = client.get("/tessera/v1/loaded").json()["models"]
    return next((row for row in rows if row["id"] == MODEL), {"state": "not-loaded", "pid": None, "pending": []})


def settings(client):
    return client.get(f"/tessera/v1/models/{MODEL}/placement").json()["loaded"]["settings"]


@pytest.fixture
def library(qtbot, services, qapp, show):
    jobs = Jobs(services.api, services.background, services.models, qapp)
    page = show(LibraryPage(services, jobs))
    qtbot.waitUntil(lambda: any(card.model.id == MODEL for card in page.cards))
    yield page
    jobs.stop()
    jobs.deleteLater()


def opened(qtbot, library):
    """The dialog with the stored settings."""
    library._open_settings(MODEL, "Spark")
    dialog = library.window().findChild(LoadDialog)
    qtbot.waitUntil(dialog.load.isEnabled)
    return dialog


def closed(qtbot, library):
    qtbot.waitUntil(lambda: not library.window().findChildren(LoadDialog))


def is_reloaded(client, before):
    now = state(client)
    return now["state"] == "loaded" and now["pid"] not in (None, before) and now["pending"] == []


WAITS = "is answering. It reloads with these settings when the last answer ends."


@pytest.mark.parametrize("kind", KINDS)
def test_each_setting_takes_effect_now_or_after_the_last_answer(qtbot, running, client, services, library, kind):
    """First while the model generates, then back to automatic while it is idle; the dialog shows the value."""
    choose, (field, value) = KINDS[kind]
    before, usual = state(client)["pid"], settings(client)
    with unfinished_answer(running, client, MODEL, tokens=40):
        dialog = opened(qtbot, library)
        choose(dialog)
        press(dialog, "Save and load")
        closed(qtbot, library)
        qtbot.waitUntil(lambda: WAITS in library.banner.text)
        assert (state(client)["pid"], state(client)["pending"]) == (before, [field])
        again = opened(qtbot, library)
        assert again.choices == services.api.load_settings(MODEL).user, "the stored settings, not those in use"
        again.close()
        closed(qtbot, library)
    qtbot.waitUntil(lambda: is_reloaded(client, before))
    assert settings(client)[field] == value
    library.banner.notify("", "ok")
    between = state(client)["pid"]
    dialog = opened(qtbot, library)
    press(dialog, "Reset to automatic")
    press(dialog, "Save and load")
    closed(qtbot, library)
    qtbot.waitUntil(lambda: is_reloaded(client, between))
    assert WAITS not in library.banner.text
    assert field == "n_ctx" or settings(client)[field] == usual[field]


@pytest.mark.parametrize("busy", [False, True])
def test_a_pin_does_not_wait(qtbot, running, client, library, busy):
    before = state(client)["pid"]
    dialog = opened(qtbot, library)
    dialog.keep.setChecked(True)
    if busy:
        with unfinished_answer(running, client, MODEL, tokens=40):
            press(dialog, "Save")
            qtbot.waitUntil(lambda: state(client)["pinned"])
    else:
        press(dialog, "Save")
        qtbot.waitUntil(lambda: state(client)["pinned"])
    closed(qtbot, library)
    assert (state(client)["pid"], state(client)["pending"]) == (before, [])
    assert WAITS not in library.banner.text


@pytest.mark.parametrize("busy", [False, True])
def test_a_device_is_taken_now_or_after_the_last_answer(qtbot, running, client, services, show, busy):
    page, before = show(DevicesPage(services, SimpleNamespace(by_id={}))), state(client)["pid"]
    if busy:
        with unfinished_answer(running, client, MODEL, tokens=40):
            page._pin(MODEL, "cpu")
            qtbot.waitUntil(lambda: "is answering. It is loaded on cpu when the last" in page.banner.text)
            assert (state(client)["pid"], state(client)["pending"]) == (before, ["device"])
    else:
        page._pin(MODEL, "cpu")
        qtbot.waitUntil(lambda: "will run on cpu when it is next loaded" in page.banner.text)
    qtbot.waitUntil(lambda: is_reloaded(client, before))
