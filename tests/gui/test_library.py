"""The library page against a server on loopback."""

import time

import msgspec
import pytest
from PySide6.QtWidgets import QPushButton, QScrollArea, QWidget

from app.gui import formatted
from app.gui.job_card import JobCard
from app.gui.jobs import Jobs
from app.gui.library.compare_uploads import CompareUploads
from app.gui.library.hub_tab import FitFromHub
from app.gui.library.load_dialog import LoadDialog
from app.gui.library.page import DetailsDialog, LibraryPage
from engine.api.hub import (
    FitEstimate,
    OwnBuild,
    Proposal,
    SearchResults,
    Starters,
    UploadComparison,
    UploadLoss,
)
from engine.api.jobs import JobKind, Progress, Quantized
from engine.api.library import FileCheck, Linked, Model, Models, Origin, Removed, Tensor, Tensors, Verification
from engine.api.machine import PlacementAnswer
from engine.api.models import EffectiveValue, ModelLoadSettings
from engine.api.quantizing import QuantizeOptions
from engine.message_catalog.reasons import because
from tests.gui.fake_server import Events
from tests.gui.hands import press, texts
from tests.gui.wire import (
    DOWNLOADING,
    SPARK,
    fact,
    failed,
    hit,
    hub_option,
    hub_plan,
    job,
    placement,
    pulling,
    quantize_report,
    starter,
)


@pytest.fixture
def library(qtbot, services, server, qapp):
    other = msgspec.structs.replace(SPARK, id="other", name="Other")
    server.routes["GET", "/tessera/v1/models"] = Models(models=(SPARK, other))
    server.routes["GET", "/tessera/v1/models/spark"] = SPARK
    server.routes["GET", "/tessera/v1/jobs/events"] = Events([])
    first = starter("small")
    server.routes["GET", "/tessera/v1/hub/starters"] = Starters(
        proposals=(Proposal(starter=first, expected_bytes=5 << 30, reason=fact("It fits.")),)
    )
    services.models.start()
    jobs = Jobs(server.api, services.background, services.models, qapp)
    page = LibraryPage(services, jobs)
    qtbot.addWidget(page)
    page.resize(1000, 700)
    page.show()
    qtbot.waitUntil(lambda: len(page.cards) == 2)
    yield page
    jobs.stop()
    page.close()
    jobs.deleteLater()


def test_models_are_listed_with_their_facts(qtbot, library):
    qtbot.waitUntil(lambda: "Spark (demo)" in texts(library.cards[0]))
    shown = texts(library.cards[0])
    for part in ("Spark (demo)", "8.39 M parameters", "16.00 bits", "context", "vision"):
        assert part in shown


def test_chat_and_fit_name_the_model(qtbot, library):
    qtbot.waitUntil(lambda: "Other" in texts(library.cards[1]))
    with qtbot.waitSignal(library.chat_wanted) as chat:
        press(library.cards[1], "Chat")
    assert chat.args == ["other"]
    with qtbot.waitSignal(library.fit_wanted) as fit:
        press(library.cards[0], "Make it fit")
    assert fit.args == ["spark"]


def test_an_offline_or_broken_model_says_why_and_cannot_be_used(qtbot, library, server):
    offline = msgspec.structs.replace(SPARK, state="offline")
    broken = msgspec.structs.replace(SPARK, state="broken", problem="cut short")
    server.routes["GET", "/tessera/v1/models"] = Models(models=(offline, broken))
    library.refresh()
    qtbot.waitUntil(lambda: "Offline" in texts(library.cards[0]))
    qtbot.waitUntil(lambda: "cut short" in texts(library.cards[1]))
    assert not next(b for b in library.cards[0].findChildren(QPushButton) if b.text() == "Chat").isEnabled()


def test_a_download_shows_progress_and_can_be_paused_and_resumed(qtbot, library, server):
    server.routes["POST", "/tessera/v1/models/pull"] = lambda body: (202, pulling())
    server.routes["POST", "/tessera/v1/jobs/pull-1/pause"] = lambda body: pulling("paused")
    server.routes["POST", "/tessera/v1/jobs/pull-1/resume"] = lambda body: pulling("running")
    library.pull("org/model", "Q4_K_M")
    qtbot.waitUntil(lambda: bool(library.findChildren(JobCard)))
    (card,) = library.findChildren(JobCard)
    assert "5.0 MiB of 10.0 MiB" in texts(card)
    assert "5 s left" in texts(card)
    card._pause.click()
    qtbot.waitUntil(lambda: "Paused" in texts(card))
    card._pause.click()
    qtbot.waitUntil(lambda: "Paused" not in texts(card))
    body = next(body for method, path, body in server.requests if path == "/tessera/v1/models/pull")
    assert body == {"model": "org/model", "quant": "Q4_K_M"}


def test_a_failed_download_says_why_and_can_be_resumed(qtbot, library):
    library._jobs.started(pulling())
    (card,) = library.findChildren(JobCard)
    qtbot.waitUntil(lambda: not card.visibleRegion().isEmpty())
    library._jobs._on_jobs([failed(JobKind.PULL, "Needs 9 GB, 2 GB are free.")])
    assert "Needs 9 GB" in texts(card)
    assert card._pause.toolTip() == "Resume"
    assert not library.banner.isVisible(), "one sentence in one place"


def test_a_download_that_fails_out_of_sight_is_reported(qtbot, library):
    library._jobs.started(pulling())
    library.hide()
    library._jobs._on_jobs([failed(JobKind.PULL, "Needs 9 GB, 2 GB are free.")])
    assert "Needs 9 GB" in library.banner.text


def test_a_late_answer_does_not_bring_back_a_finished_job(qtbot, library):
    late = pulling("queued")
    library._jobs._on_jobs([pulling("done", updated_at=time.time() + 1)])
    library._jobs.started(late)
    assert library._jobs.by_id["pull-1"].state == "done"
    assert "is ready" in library.banner.text


def test_removing_asks_and_can_be_undone(qtbot, library, server):
    server.routes["DELETE", "/tessera/v1/models/spark"] = Removed(ticket="t1", model="spark", name="Spark")
    server.routes["POST", "/tessera/v1/trash/t1/restore"] = SPARK
    library._confirm_removal("spark", "Spark (demo)")
    assert not any(method == "DELETE" for method, *_ in server.requests)
    press(library.banner, "Remove")
    qtbot.waitUntil(lambda: "was removed" in library.banner.text)
    press(library.banner, "Undo")
    qtbot.waitUntil(lambda: ("POST", "/tessera/v1/trash/t1/restore", {}) in server.requests)


def test_suggestions_and_search_and_what_fits(qtbot, library, server):
    found = hit("org/found", 12345, 9, license="apache-2.0", updated="2026-05-01T10:00:00Z")
    server.routes["GET", "/tessera/v1/hub/search"] = SearchResults(repositories=(found,))
    fits = FitEstimate(fits=True, needed_bytes=5 << 30, available_bytes=16 << 30, decode_tok_s=22)
    server.routes["GET", "/tessera/v1/hub/plan"] = hub_plan(
        hub_option("Q4_K_M", 4 << 30, best=True, verdict=fits),
        hub_option("F16", 40 << 30, verdict=FitEstimate(fits=False, needed_bytes=9, available_bytes=0)),
    )
    library.tabs.setCurrentIndex(1)
    qtbot.waitUntil(lambda: "It fits." in texts(library.hub))
    library.hub.search.setText("found")
    library.hub._search()
    qtbot.waitUntil(lambda: "12.3 K downloads" in texts(library.hub))
    shown = texts(library.hub)
    assert all(part in shown for part in ("found", "by org", "apache-2.0", "12.3 K downloads", "9 likes", "26"))
    press(library.hub, "What fits?")
    qtbot.waitUntil(lambda: "Best for this computer" in texts(library.hub))
    assert "Does not fit" in texts(library.hub)
    assert "about 22 tokens/s" in texts(library.hub)
    with qtbot.waitSignal(library.hub.pull_pressed) as pulled:
        press(library.hub, "Download")
    assert pulled.args == ["org/found", "Q4_K_M"]


def test_files_are_compared_by_loss_before_a_download(qtbot, library, server):
    server.routes["GET", "/tessera/v1/hub/plan"] = hub_plan(
        hub_option("Q4_K_M", 4 << 30), hub_option("Q8_0", 8 << 30), hub_option("F16", 16 << 30)
    )
    running = job(JobKind.COMPARE, title="found", progress=Progress(phase="comparing", done=1 << 20, total=4 << 20))
    server.routes["POST", "/tessera/v1/hub/compare"] = lambda _: (202, running)
    library.tabs.setCurrentIndex(1)
    library.hub.open("org/found")
    qtbot.waitUntil(lambda: bool(library.hub.findChildren(CompareUploads)))
    offer = library.hub.findChildren(CompareUploads)[0]
    qtbot.waitUntil(lambda: "here some 430 MiB" in texts(offer))
    offer.others.click()
    press(offer, "Compare by loss")
    qtbot.waitUntil(lambda: not offer.go.isEnabled())
    asked = {"uploads": ["org/found"], "more": 5}
    assert ("POST", "/tessera/v1/hub/compare", asked) in server.requests
    assert "Comparing · 1.0 MiB of 4.0 MiB" in texts(library)
    found = UploadComparison(
        original="org/found:F16",
        uploads=(
            UploadLoss(repo="else/found", label="Q3_K_M", size_bytes=3 << 30, kld=0.25, low=0.05, high=1.5),
            UploadLoss(repo="org/found", label="Q4_K_M", size_bytes=4 << 30, kld=0.02, low=0.004, high=0.1),
            UploadLoss(
                repo="org/found",
                label="Q8_0",
                size_bytes=8 << 30,
                problem="damaged",
                problem_detail=because("upload_damaged", tensor="output.weight"),
            ),
        ),
        fetched_bytes=1 << 20,
        total_bytes=31 << 30,
    )
    library._jobs._on_jobs([job(JobKind.COMPARE, "done", title="found", result=msgspec.to_builtins(found))])
    qtbot.waitUntil(lambda: "expected loss 0.0200 (0.0040 to 0.1000)" in texts(library.hub))
    offer = next(made for made in library.hub.findChildren(CompareUploads) if made.isVisible())
    other, shown = texts(offer), texts(library.hub)
    assert "else/found:Q3_K_M" in other
    assert "12 times the least loss" in other or "13 times the least loss" in other
    assert "Compared with org/found:F16. 1.0 MiB of 31.0 GiB were read." in other
    assert "Q4_K_M | Least loss" in shown
    assert "output.weight contains infinite values or NaN" in shown
    assert shown.split(" | ").count("Q4_K_M") == shown.split(" | ").count("Q8_0") == 1, "each file stands once"
    assert offer.go.isEnabled()
    get = next(b for b in offer.findChildren(QPushButton) if b.accessibleName() == "Download else/found:Q3_K_M")
    with qtbot.waitSignal(library.hub.pull_pressed) as pulled:
        get.click()
    assert pulled.args == ["else/found", "Q3_K_M"]
    gone = []
    offer.destroyed.connect(lambda: gone.append(True))
    library.hub.open("org/found")  # the result stays
    qtbot.waitUntil(lambda: bool(gone))
    qtbot.waitUntil(lambda: "else/found:Q3_K_M" in texts(library.hub))


def test_make_it_fit_from_the_hub_names_size_effort_and_what_is_deleted(qtbot, library, server):
    ready = hub_option("Q4_K_M", 4 << 30)
    own = OwnBuild(source="F16", file_bytes=4 << 30, bits_per_weight=4.8, kld=0.02, based_on="priors")
    plan = hub_plan(ready, hub_option("F16", 13 << 30, details=SPARK.details))
    repository = msgspec.structs.replace(plan.repository, license="mit", likes=1200, updated="2026-05-01T10:00:00Z")
    plan = msgspec.structs.replace(plan, repository=repository, about="A model that was made for tests.")
    server.routes["GET", "/tessera/v1/hub/plan"] = msgspec.structs.replace(plan, build_from="F16", own=own)
    started = job(JobKind.QUANTIZE, params={"model": "org/found:F16", "download": True}, progress=DOWNLOADING)
    server.routes["POST", "/tessera/v1/quantize"] = lambda _: (202, started)
    library.show_original("org/found")
    qtbot.waitUntil(lambda: bool(library.hub.findChildren(FitFromHub)))
    offer = library.hub.findChildren(FitFromHub)[0]
    qtbot.waitUntil(lambda: "Downloads the original (13" in texts(offer))
    said = texts(library.hub)
    for part in ("by org", "1.2 K likes", "2026", "mit", "8.39 M parameters", "A model that was made for tests."):
        assert part in said
    assert offer.target.currentText() == "4.0 GiB, as Q4_K_M"
    offer.tier.setCurrentIndex(offer.tier.findData("instant"))
    offer.delete.setChecked(True)
    press(offer, "Make it fit")
    wanted = QuantizeOptions(
        model="org/found:F16", budget_bytes=4 << 30, tier="instant", download=True, keep_source=False
    )
    qtbot.waitUntil(lambda: any(path == "/tessera/v1/quantize" for _, path, _ in server.requests))
    body = next(body for _, path, body in server.requests if path == "/tessera/v1/quantize")
    assert msgspec.convert(body, QuantizeOptions) == wanted
    qtbot.waitUntil(lambda: "Downloading · " in texts(library))
    report = quantize_report(5_000_000, 0.02, 0.03)
    made = msgspec.to_builtins(Quantized(model="made-here", path="/made.gguf", report=report), enc_hook=str)
    done = msgspec.structs.replace(started, state="done", updated_at=started.updated_at + 1, result=made)
    library._jobs._on_jobs([done])
    assert "made-here is in your library" in library.banner.text
    with qtbot.waitSignal(library.chat_wanted) as chat:
        press(library.banner, "Chat with it")
    assert chat.args == ["made-here"]


def test_a_repository_without_an_original_names_the_one_that_has_it(qtbot, library, server):
    plan = hub_plan(hub_option("Q4_K_M", 4 << 30))
    repository = msgspec.structs.replace(plan.repository, base="org/base")
    server.routes["GET", "/tessera/v1/hub/plan"] = msgspec.structs.replace(plan, repository=repository)
    details = msgspec.structs.replace(SPARK.details, type_bytes={"Q4_K": 5_000_000})
    half = msgspec.structs.replace(SPARK, details=details, origin=Origin(kind="hub", repo="org/found"))
    server.routes["GET", "/tessera/v1/models"] = Models(models=(half,))
    library.refresh()
    qtbot.waitUntil(lambda: [(c.model, c.isVisible()) for c in library.cards] == [(half, True)])
    press(library.cards[0], "Make it fit")
    qtbot.waitUntil(lambda: "which is in org/base" in texts(library.hub))
    press(library.hub, "Look there")
    qtbot.waitUntil(lambda: "Reading the headers of org/base…" in texts(library.hub))


def test_offline_asks_nothing_of_the_network(qtbot, library, server):
    library._services.settings.set("network.offline", True)
    library.hub.search.setText("anything")
    library.hub._search()
    library.pull("org/model")
    qtbot.wait(50)
    assert "offline" in library.banner.text
    assert not any("hub" in path or "pull" in path for _, path, _ in server.requests)


def test_of_many_models_a_hundred_are_shown_and_the_filter_finds_the_others(qtbot, library, server):
    many = [msgspec.structs.replace(SPARK, id=f"m{number}", name=f"Lamp {number}") for number in range(130)]
    server.routes["GET", "/tessera/v1/models"] = Models(models=tuple(many))
    library.refresh()
    qtbot.waitUntil(lambda: len(library.cards) == 100)
    qtbot.waitUntil(lambda: "30 more: search for them" in texts(library))
    library.search.setText("Lamp 129")
    assert [card.model.id for card in library.cards] == ["m129"]
    assert "more: search" not in texts(library)


def test_a_dropped_model_is_offered_both_ways(qtbot, library, server):
    server.routes["POST", "/tessera/v1/models/link"] = Linked(added=("x",))
    library.offer("/some/where/model.gguf")
    press(library.banner, "Use it in its current folder")
    qtbot.waitUntil(
        lambda: ("POST", "/tessera/v1/models/link", {"where": "/some/where/model.gguf"}) in server.requests
    )


@pytest.mark.parametrize(
    ("added", "shown"),
    [(("spark",), "Spark (demo) is ready."), (("spark", "other"), "Spark (demo), Other is ready.")],
)
def test_after_a_model_was_linked_a_chat_with_it_is_one_click_away(qtbot, library, server, added, shown):
    server.routes["POST", "/tessera/v1/models/link"] = Linked(added=added)
    library.add("/some/where/model.gguf", link=True)
    qtbot.waitUntil(lambda: library.banner.text == shown)
    if len(added) > 1:
        assert "Chat with it" not in texts(library.banner)
        return
    with qtbot.waitSignal(library.chat_wanted) as chat:
        press(library.banner, "Chat with it")
    assert chat.args == ["spark"]


def test_a_folder_without_a_new_model_is_told(qtbot, library, server, tmp_path):
    server.routes["POST", "/tessera/v1/models/link"] = Linked(added=())
    library.add(str(tmp_path), link=True)
    qtbot.waitUntil(lambda: f"There is no new model in {tmp_path.name}." in library.banner.text)
    file = tmp_path / "known.gguf"
    file.touch()
    library.add(str(file), link=True)
    qtbot.waitUntil(lambda: library.banner.text == "known.gguf is already in the library.")


def test_details_show_the_mosaic_and_close(qtbot, library):
    library._show_details("spark")
    qtbot.waitUntil(lambda: library.findChild(DetailsDialog) is not None)
    dialog = library.findChild(DetailsDialog)
    qtbot.waitUntil(dialog.isVisible)
    assert "ab" * 32 in texts(dialog)
    dialog.close()


def test_the_card_of_a_model_is_shown(qtbot, library, server):
    card = "# SmolLM2\n\nmade by **Hugging Face**"
    sampling = {"temperature": EffectiveValue(value=0.6, source="model_card")}
    shown = Model(id="smol", name="SmolLM2", card_text=card, sampling=sampling)
    server.routes["GET", "/tessera/v1/models/smol"] = shown
    library._show_details("smol")
    qtbot.waitUntil(lambda: library.findChild(DetailsDialog) is not None)
    dialog = library.findChild(DetailsDialog)
    assert "made by Hugging Face" in dialog.card.toPlainText()
    assert "temperature 0.6 (The model's card)" in texts(dialog)
    dialog.close()


def test_the_mosaic_has_one_tile_for_each_tensor(qtbot, library, server):
    tensors = (
        Tensor(name="token_embd.weight", qtype="Q8_0", shape=(256, 4096), num_bytes=1_114_112),
        Tensor(name="blk.0.attn_norm.weight", qtype="F32", shape=(256,), num_bytes=1024),
        Tensor(name="blk.0.attn_q.weight", qtype="Q4_K", shape=(256, 256), num_bytes=36_864),
    )
    server.routes["GET", "/tessera/v1/models/spark/tensors"] = Tensors(tensors=tensors)
    library._show_details("spark")
    qtbot.waitUntil(lambda: library.findChild(DetailsDialog) is not None)
    dialog = library.findChild(DetailsDialog)
    assert [(tile.bits, tile.tip.split(" · ")[0]) for tile in dialog.mosaic._tiles] == [
        (8.5, "token_embd.weight"), (4.5, "blk.0.attn_q.weight"),
    ]  # fmt: skip
    assert dialog.mosaic.roles == ["attn_q"]
    boxes = {tile.role: box for box, tile in dialog.mosaic._grid()}
    assert boxes["attn_q"].bottom() <= boxes["token_embd"].top(), "what belongs to no layer stands below"
    assert "each of 2 tensors" in texts(dialog)
    dialog.close()


def test_a_server_error_is_shown_in_its_own_words(qtbot, library, server):
    server.routes["GET", "/tessera/v1/models"] = (
        503,
        {"error": {"message": "The catalogue is locked.", "code": "x"}},
    )
    library.refresh()
    qtbot.waitUntil(lambda: library.banner.text == "The catalogue is locked.")


@pytest.mark.parametrize(
    ("ok", "basis", "told"),
    [
        (True, "hub", "org/model is intact."),
        (True, "none", "org/model was read completely. Its checksum is stored"),
        (False, "earlier", "org/model is damaged: model.gguf has changed."),
    ],
)
def test_a_check_tells_what_it_found(qtbot, library, ok, basis, told):
    """A completed verification is done, whatever its result."""
    check = FileCheck(path="/models/model.gguf", sha256="a", expected="b", ok=ok)
    found = Verification(model="m", ok=ok, basis=basis, files=(check,))
    library._jobs._on_jobs([job(JobKind.VERIFY, "done", result=msgspec.to_builtins(found))])
    qtbot.waitUntil(lambda: told in library.banner.text)


def test_the_8_bit_cache_that_makes_room_for_32k_is_one_press_away(qtbot, services, server):
    loss = {"more": "32k", "tokens": "16k", "taken_gib": 1.5, "free_gib": 2.0, "loss": 0.00006}
    offer = because("context_8_bit", **loss)
    placed = placement((offer,), load={"n_ctx": 16384})
    server.routes["GET", "/tessera/v1/models/spark/load-settings"] = ModelLoadSettings(
        id="spark", context_train=65536
    )
    server.routes["GET", "/tessera/v1/models/spark/placement"] = PlacementAnswer(placement=placed)
    desk = QWidget()
    qtbot.addWidget(desk)
    dialog = LoadDialog(services, "spark", "Spark", desk)
    dialog.show()
    qtbot.waitUntil(dialog.eight_bit.isVisible)
    assert "32k of context instead of 16k" in texts(dialog)
    assert "0.00006 nats per token" in texts(dialog)
    assert dialog.choices.type_k is None
    plain = placement(load={"n_ctx": 32768})
    server.routes["GET", "/tessera/v1/models/spark/placement"] = PlacementAnswer(placement=plain)
    press(dialog, "Use an 8-bit cache")
    assert dialog.choices.type_k == "q8_0"
    qtbot.waitUntil(lambda: not dialog.eight_bit.isVisible())


@pytest.mark.parametrize("percent", [100, 200])
def test_the_buttons_of_the_load_settings_are_reachable_on_a_low_screen(qtbot, services, server, percent):
    services.theme.set("light", percent)
    path = "/tessera/v1/models/spark/load-settings"
    server.routes["GET", path] = ModelLoadSettings(id="spark", context_train=65536)
    placed = placement(load={"n_ctx": 32768})
    server.routes["GET", "/tessera/v1/models/spark/placement"] = PlacementAnswer(placement=placed)
    desk = QWidget()
    qtbot.addWidget(desk)
    dialog = LoadDialog(services, "spark", "Spark", desk)
    dialog.show()
    bar = dialog.findChild(QScrollArea).verticalScrollBar()
    qtbot.waitUntil(lambda: (bar.maximum() > 0) == (percent == 200))
    assert dialog.height() < dialog.screen().availableGeometry().height()
    bar.setValue(bar.maximum())
    assert not dialog.load.visibleRegion().isEmpty()


@pytest.mark.parametrize(("applies", "told"), [("when_idle", True), ("now", False)])
def test_settings_that_wait_for_the_last_answer_are_marked(qtbot, library, server, applies, told):
    path = "/tessera/v1/models/spark/load-settings"
    server.routes["GET", path] = ModelLoadSettings(id="spark", context_train=65536)
    server.routes["PUT", path] = ModelLoadSettings(id="spark", context_train=65536, applies=applies)
    placed = placement(load={"n_ctx": 32768})
    server.routes["GET", "/tessera/v1/models/spark/placement"] = PlacementAnswer(placement=placed)
    library._open_settings("spark", "Spark")
    dialog = library.window().findChild(LoadDialog)
    qtbot.waitUntil(lambda: dialog.own_context.isChecked() and any("placement" in r[1] for r in server.requests))
    dialog.own_context.setChecked(False)
    dialog.context.setValue(dialog.context.maximum())
    dialog.cache.setCurrentIndex(dialog.cache.findData("q8_0"))
    press(dialog, "Save")
    qtbot.waitUntil(lambda: any(method == "PUT" for method, *_ in server.requests))
    stored = next(body for method, _, body in server.requests if method == "PUT")
    assert (stored["n_ctx"], stored["kv_type"]) == (65536, "q8_0")
    words = "Spark is answering. It reloads with these settings when the last answer ends."
    qtbot.waitUntil(lambda: not library.window().findChildren(LoadDialog))
    assert (words in library.banner.text) == told


def test_models_are_filtered_ordered_and_added_up(qtbot, library):
    def named():
        return [card.model.name for card in library.cards]

    sizes = [card.model.size_bytes for card in library.cards]
    assert f"2 models, {formatted.size(sum(sizes))} on the disk" in texts(library)
    library.search.setText("oth")
    assert named() == ["Other"]
    library.search.setText("no such thing")
    assert named() == []
    library.search.clear()
    smaller = msgspec.structs.replace(SPARK, id="small", name="Small", size_bytes=5)
    library._show([(smaller, None), *library._shown])
    for order, expected in (("size", "Small"), ("name", "Spark (demo)")):
        library.order.setCurrentIndex(library.order.findData(order))
        library.order.activated.emit(library.order.currentIndex())
        assert named()[-1] == expected
