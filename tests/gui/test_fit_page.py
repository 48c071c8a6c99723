"""Make it fit: the forecast while the slider moves, the job, its report."""

import itertools
import threading
import time

import msgspec
import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QFileDialog, QPushButton

from app.gui import formatted
from app.gui.job_card import JobCard, note_of, step_text
from app.gui.jobs import Jobs
from app.gui.quantize.page import FitPage
from app.gui.quantize.report import report_card
from app.gui.quantize.size_loss_plot import Box, FrontierPlot, along, around, place
from engine.api.converting import ConverterState
from engine.api.jobs import JobKind, Progress, Quantized
from engine.api.library import Models, Origin
from engine.api.quantizing import QuantizeOptions
from quantize.job.gate import GateReport, compared
from quantize.plan.llama_cpp_preset_rules import WELL_KNOWN
from quantize.types import Interval, KvOption, PresetPlan
from tests.gui.fake_server import Events
from tests.gui.hands import press, settled, texts
from tests.gui.wire import SPARK, failed, job, quantize_report, sketch


@pytest.fixture
def fit(show, services, server, qapp, qtbot):
    server.routes["GET", "/tessera/v1/models"] = Models(models=(SPARK,))
    server.routes["GET", "/tessera/v1/jobs/events"] = Events([])
    server.routes["POST", "/tessera/v1/quantize/plan"] = lambda body: sketch(body.get("budget_bytes") or 17_000_000)
    jobs = Jobs(server.api, services.background, services.models, qapp)
    page = show(FitPage(services, jobs))
    qtbot.waitUntil(page.start.isEnabled)
    yield page
    jobs.stop()
    jobs.deleteLater()


def test_the_slider_forecasts_live_and_starts_a_job(qtbot, fit, server):
    server.routes["POST", "/tessera/v1/quantize"] = lambda body: (
        202,
        job(JobKind.QUANTIZE, title="Spark", progress=Progress(phase="measure", done=400, total=1000)),
    )
    fit.slider.setValue(500)
    qtbot.waitUntil(lambda: "Estimated loss of quality: " in texts(fit))
    budget = fit.budget_bytes
    qtbot.waitUntil(lambda: any((b or {}).get("budget_bytes") == budget for _, _, b in server.requests))
    qtbot.waitUntil(fit.start.isEnabled)
    fit.start.click()
    qtbot.waitUntil(lambda: "Making Spark fit" in texts(fit))
    assert "Step 3 of 6: measuring quality loss · 40 %" in texts(fit), "one bar over all steps, in words"
    body = next(body for method, path, body in server.requests if path == "/tessera/v1/quantize")
    assert msgspec.convert(body, QuantizeOptions) == QuantizeOptions(model="spark", budget_bytes=budget)


def test_a_job_with_a_first_version_can_be_stopped_and_keeps_it(qtbot, fit, server):
    progress = Progress(phase="moments", done=400, total=1000)
    running = job(JobKind.QUANTIZE, title="Spark", progress=progress)
    fit._jobs.changed.emit(running)
    (card,) = fit.findChildren(JobCard)
    assert not card._finish.isVisible()
    usable = msgspec.structs.replace(progress, partial={"usable": "unmeasured"})
    fit._jobs.changed.emit(running.changed(progress=usable))
    assert "a first version is ready" in texts(card)
    report = msgspec.structs.replace(
        quantize_report(17_000_000, 0.01, 0.02), stopped="unmeasured", ours=None, stock=None
    )
    result = msgspec.to_builtins(
        Quantized(model="spark-4", path="/models/spark-4.gguf", report=report), enc_hook=str
    )
    server.routes["POST", f"/tessera/v1/jobs/{running.id}/finish"] = lambda body: job(
        JobKind.QUANTIZE, "done", title="Spark", result=result
    )
    assert card._finish.accessibleName() == "Stop and keep the file so far"
    card._finish.click()
    qtbot.waitUntil(lambda: "this first version was made without measuring the model" in texts(fit))


def test_a_model_that_is_quantized_already_leads_to_its_original(qtbot, fit, server):
    details = msgspec.structs.replace(SPARK.details, type_bytes={"Q4_K": 5_000_000})
    origin = Origin(kind="hub", repo="org/Half-GGUF")
    half = msgspec.structs.replace(SPARK, id="half", name="Half", details=details, origin=origin)
    server.routes["GET", "/tessera/v1/models"] = Models(models=(SPARK, half))
    fit._refresh()
    qtbot.waitUntil(lambda: fit.model.count() == 2)
    fit.choose("half")
    qtbot.waitUntil(lambda: "already quantized to Q4_K" in fit.banner.text)
    assert not fit.start.isEnabled()
    with qtbot.waitSignal(fit.original_wanted) as wanted:
        press(fit.banner, "Get the original")
    assert wanted.args == ["org/Half-GGUF"]
    fit.choose("spark")
    qtbot.waitUntil(lambda: fit.start.isEnabled() and not fit.banner.isVisible())


def test_while_the_first_sizes_are_calculated_the_page_says_so(qtbot, fit, server):
    release, answer = threading.Event(), server.routes["POST", "/tessera/v1/quantize/plan"]

    def held(body):
        release.wait(60)
        return answer(body)

    server.routes["POST", "/tessera/v1/quantize/plan"] = held
    fit._on_model()
    assert fit.size_text.text() == "Calculating the sizes…"
    release.set()
    qtbot.waitUntil(fit.start.isEnabled)
    assert "bits" in fit.size_text.text()
    server.routes["POST", "/tessera/v1/quantize/plan"] = (500, {"error": {"message": "the disk is away"}})
    fit._on_model()
    qtbot.waitUntil(fit.banner.isVisible)
    assert fit.size_text.text() == "", "nothing is calculated any more"


def test_a_late_forecast_of_the_model_before_hides_no_message(qtbot, fit, server, services):
    details = msgspec.structs.replace(SPARK.details, type_bytes={"Q4_K": 5_000_000})
    half = msgspec.structs.replace(
        SPARK, id="half", name="Half", details=details, origin=Origin(kind="hub", repo="org/Half-GGUF")
    )
    server.routes["GET", "/tessera/v1/models"] = Models(models=(SPARK, half))
    fit._refresh()
    qtbot.waitUntil(lambda: fit.model.count() == 2)
    asked, release = threading.Event(), threading.Event()

    def late(body):
        asked.set()
        release.wait(60)
        return sketch(body["budget_bytes"])

    server.routes["POST", "/tessera/v1/quantize/plan"] = late
    fit._forecast()
    qtbot.waitUntil(asked.is_set)
    fit.choose("half")
    qtbot.waitUntil(lambda: "already quantized to Q4_K" in fit.banner.text)
    release.set()
    settled(qtbot, services)
    assert fit.banner.isVisible()
    assert not fit.start.isEnabled()


def test_without_any_model_the_page_leads_to_the_hub(qtbot, fit, server):
    server.routes["GET", "/tessera/v1/models"] = Models(models=())
    fit._refresh()
    qtbot.waitUntil(fit._none.isVisible)
    with qtbot.waitSignal(fit.original_wanted) as wanted:
        press(fit, "Get an original")
    assert wanted.args == [""]


def test_layers_on_the_gpu_and_what_was_evened_out_are_told(qtbot, fit, server, services):
    plain = sketch(5_500_000)
    server.routes["POST", "/tessera/v1/quantize/plan"] = msgspec.structs.replace(plain, gpu_layers=9)
    fit._forecast()
    qtbot.waitUntil(lambda: "Measures with 9 layers on the GPU" in texts(fit))
    assert "without the GPU" not in texts(fit)
    untimed = msgspec.structs.replace(plain.forecast, gpu_untimed=True, seconds=300.0)
    server.routes["POST", "/tessera/v1/quantize/plan"] = msgspec.structs.replace(
        plain, gpu_layers=9, forecast=untimed
    )
    fit._forecast()
    qtbot.waitUntil(lambda: "Takes about 5 min without the GPU" in texts(fit))
    tensors = [msgspec.structs.replace(t, qtype="Q5_0", exact="Q4_0") for t in plain.plan.tensors]
    tensors[0] = msgspec.structs.replace(tensors[0], added_rows=1064)
    trained = msgspec.structs.replace(plain.plan, tensors=tuple(tensors))
    server.routes["POST", "/tessera/v1/quantize/plan"] = msgspec.structs.replace(plain, plan=trained)
    fit._forecast()
    words = f"Tensors whose weights already fit 4 bits and lose nothing more: {len(trained.exact)}"
    qtbot.waitUntil(lambda: words in texts(fit))
    added = (
        f"Rows of these tensors that fit no grid (tokens added later) and lose as usual: {formatted.whole(1064)}"
    )
    assert added in texts(fit)
    report = msgspec.structs.replace(quantize_report(5_000_000, 0.01, 0.02), gpu_layers=9, smoothed=24)
    card = report_card(services.theme, report)
    qtbot.addWidget(card)
    card.show()
    assert "Measured with 9 layers on the GPU." in texts(card)
    assert "24 of its inputs were smoothed: LoRA adapters" in texts(card)
    report = msgspec.structs.replace(report, plan=trained, formats={"FP8": 7})
    card = report_card(services.theme, report)
    qtbot.addWidget(card)
    card.show()
    assert words in texts(card)
    assert "The source stores 7 weights as FP8. What that lost cannot be restored." in texts(card)
    assert words not in texts(report_card(services.theme, msgspec.structs.replace(report, shipped="stock")))


def test_a_context_can_be_aimed_for_with_a_way_to_store_it(qtbot, fit, server):
    def fitted(body):
        size = body.get("budget_bytes") or 5_500_000
        if body.get("fit"):
            kv = KvOption(type_k=body.get("kv_type", "q8_0"), type_v="q8_0", num_bytes=1, damage=0.0)
            return sketch(size, kv=kv)
        return sketch(size, largest_context=16384)

    server.routes["POST", "/tessera/v1/quantize/plan"] = fitted
    fit._forecast()
    qtbot.waitUntil(lambda: "Context up to 16384 fits" in texts(fit))
    fit.aim.kind.setCurrentIndex(1)
    qtbot.waitUntil(lambda: "For a context length of 8192" in texts(fit) and "KV cache type q8_0" in texts(fit))
    assert not fit.slider.isVisible()
    fit.aim.context.setCurrentIndex(fit.aim.context.findData(32768))
    fit.aim.cache.setCurrentIndex(fit.aim.cache.findData("q4_0"))
    qtbot.waitUntil(lambda: "For a context length of 32768" in texts(fit) and "KV cache type q4_0" in texts(fit))
    server.routes["POST", "/tessera/v1/quantize"] = (400, {"error": {"message": "not now"}})
    qtbot.waitUntil(fit.start.isEnabled)
    fit.start.click()
    qtbot.waitUntil(lambda: fit.banner.text == "Not now.")
    body = next(body for _, path, body in server.requests if path == "/tessera/v1/quantize")
    wanted = QuantizeOptions(model="spark", fit=True, n_ctx=32768, kv_type="q4_0")
    assert msgspec.convert(body, QuantizeOptions) == wanted


def test_names_in_the_plot_cover_neither_points_nor_each_other():
    points = [Box(10 * n - 5, 8 * n - 5, 10, 10) for n in range(20)]
    taken = list(points)
    for n in range(0, 20, 3):
        found = place(10 * n, 8 * n, 48, 14, taken)
        assert found is not None
        assert not any(found.meets(other) for other in taken)
        taken.append(found)
    assert place(0, 0, 48, 14, [Box(-500, -500, 1000, 1000)]) is None


def test_names_are_not_cut_off_at_the_edge():
    whole = Box(0, 0, 300, 200)
    assert all(not whole.meets(side) for side in around(whole))
    for x, y in ((2, 2), (298, 20), (2, 198), (298, 198), (150, 1)):
        found = place(x, y, 48, 14, around(whole))
        assert found is not None
        assert found.left >= 0
        assert found.top >= 0
        assert found.left + found.width <= 300
        assert found.top + found.height <= 200


def test_the_report_is_shown_and_leads_to_a_chat(qtbot, fit):
    made = Quantized(model="spark-5", path="/x", report=quantize_report(5_000_000, 0.005, 0.010))
    done = job(
        JobKind.QUANTIZE, "done", title="Spark", updated_at=time.time() + 1, result=msgspec.to_builtins(made)
    )
    fit._jobs._on_jobs([done])
    qtbot.waitUntil(lambda: "Its loss is 50 % of the loss of Q4_K_M" in texts(fit))
    with qtbot.waitSignal(fit.chat_wanted) as wanted:
        press(fit.banner, "Chat with it")
    assert wanted.args == ["spark-5"]


def test_a_guess_is_a_range_without_praise_and_a_measurement_replaces_it(qtbot, fit, server):
    qtbot.waitUntil(lambda: fit._range[1] and "Estimated loss of quality: " in texts(fit))
    said = texts(fit)
    assert "hardly any" not in said
    assert "From other models, not from this one" in said
    size = fit.budget_bytes
    shown(fit, quantize_report(size, 0.0668, 0.130), model="spark-5")
    qtbot.waitUntil(lambda: "Measured loss of quality: large (0.0668)" in texts(fit))
    assert "Estimated loss of quality" not in texts(fit)
    assert 0.0668 in [round(10**loss, 4) for _, loss in fit.plan_view.plot._points]
    fit.slider.setValue(fit.slider.value() + 200)
    qtbot.waitUntil(lambda: "Estimated loss of quality: " in texts(fit))


def test_a_quick_test_of_the_model_narrows_the_range(qtbot, fit, server):
    tested = {}

    def plan(body):
        found = sketch(body["budget_bytes"], damage=0.02)
        evidence = msgspec.structs.replace(found.plan.evidence, quick_test=bool(tested))
        factor = 2.0 if tested else 6.5
        forecast = msgspec.structs.replace(found.forecast, kld_low=0.02 / factor, kld_high=0.02 * factor)
        plan = msgspec.structs.replace(found.plan, evidence=evidence)
        return msgspec.structs.replace(found, plan=plan, forecast=forecast)

    server.routes["POST", "/tessera/v1/quantize/plan"] = plan
    running = job(JobKind.MEASURE, title="Quick test of Spark")
    server.routes["POST", "/tessera/v1/quantize/quick-test"] = lambda _body: (202, running)
    fit._forecast()
    qtbot.waitUntil(lambda: "Estimated loss of quality: 0.0031 to 0.1300" in texts(fit))
    press(fit.chips, "Test this model")
    qtbot.waitUntil(lambda: ("POST", "/tessera/v1/quantize/quick-test", {"model": "spark"}) in server.requests)
    tested["spark"] = True
    done = msgspec.structs.replace(running, state="done", updated_at=time.time() + 1)
    fit._jobs._on_jobs([done])
    qtbot.waitUntil(lambda: "Estimated loss of quality: 0.0100 to 0.0400" in texts(fit))
    assert "From a quick test of this model" in texts(fit)
    assert "Test this model" not in texts(fit)


def test_after_a_job_the_whole_curve_rests_on_what_was_measured(qtbot, fit, server):
    qtbot.waitUntil(lambda: len(fit._ours) >= 10)
    before = set(fit._ours)
    qtbot.waitUntil(lambda: "From other models, not from this one" in texts(fit))

    def measured(body):
        found = sketch(body["budget_bytes"], damage=0.004)
        told = msgspec.structs.replace(found.plan.evidence, sensitivity_sha256="0" * 64)
        return msgspec.structs.replace(found, plan=msgspec.structs.replace(found.plan, evidence=told))

    server.routes["POST", "/tessera/v1/quantize/plan"] = measured
    shown(fit, quantize_report(5_000_000, 0.005, 0.010), model="spark-5")
    qtbot.waitUntil(lambda: set(fit._ours.values()) == {0.004})
    assert set(fit._ours) == before, "the same sizes are asked for"
    asked = {body["tier"] for _, path, body in server.requests if path == "/tessera/v1/quantize/plan"}
    assert asked == {"balanced"}, "points of another tier rest on other measurements"
    qtbot.waitUntil(lambda: "Loss of quality: hardly any (0.0040)" in texts(fit))
    assert "From other models, not from this one" not in texts(fit)
    assert "spark-5 is in your library" in fit.banner.text


def checked(mix, before, after, cases=50):
    return compared(mix, [n < before for n in range(cases)], [n < after for n in range(cases)])


def shown(fit, report, model=""):
    made = Quantized(model=model, path="", report=report)
    done = job(
        JobKind.QUANTIZE, "done", title="Spark", updated_at=time.time() + 1, result=msgspec.to_builtins(made)
    )
    fit._jobs._on_jobs([done])


def test_a_task_is_chosen_asked_for_and_taken_back(qtbot, fit, server, tmp_path):
    def asked(gate):
        return any((body or {}).get("gate") == gate for _, _, body in server.requests)

    def choose(value):
        fit.gate.box.setCurrentIndex(fit.gate.box.findData(value))
        fit.gate.box.activated.emit(fit.gate.box.currentIndex())

    assert fit.gate.value is None
    choose("certify")
    qtbot.waitUntil(lambda: asked("certify"))
    choose("place")
    fit.gate.findChild(QFileDialog).reject()
    qtbot.waitUntil(lambda: fit.gate.value == "certify")
    choose("place")
    mine = tmp_path / "mine.jsonl"
    mine.write_text("")
    fit.gate.findChild(QFileDialog).fileSelected.emit(str(mine))
    qtbot.waitUntil(lambda: asked(str(mine)))
    assert fit.gate.box.currentText() == "mine.jsonl"
    fit.gate.box.setCurrentIndex(0)
    fit.gate.box.activated.emit(0)
    assert fit._request().gate is None


def test_text_of_ones_own_is_chosen_asked_for_and_taken_back(qtbot, fit, server, tmp_path):
    def choose(place):
        fit.text.box.setCurrentIndex(place)
        fit.text.box.activated.emit(place)

    assert fit._request().calibration is None
    choose(1)
    fit.text.findChild(QFileDialog).reject()
    qtbot.waitUntil(lambda: fit.text.box.currentIndex() == 0)
    choose(1)
    fit.text.findChild(QFileDialog).fileSelected.emit(str(tmp_path))
    qtbot.waitUntil(lambda: any((body or {}).get("calibration") == str(tmp_path) for *_, body in server.requests))
    assert fit.text.box.currentText() == f"{tmp_path.name} too"
    choose(0)
    assert fit._request().calibration is None


def test_a_veto_is_told_with_its_numbers_and_what_to_do(qtbot, fit):
    checks = (checked("ours", 38, 31), checked("stock", 38, 30))
    gate = GateReport(task="certify", reference="", checks=checks)
    report = quantize_report(5_000_000, 0.005, 0.010)
    report = msgspec.structs.replace(report, gate=gate, shipped="nothing", out=None, file_bytes=None)
    shown(fit, report)
    qtbot.waitUntil(lambda: "The new file was discarded: it did the task clearly worse" in fit.banner.text)
    qtbot.waitUntil(lambda: "Choose a larger file" in texts(fit))
    assert "Task certify: 38 of 50 correct before, 31 after. A likely loss of 3 to 23 points: discarded." in texts(
        fit
    )
    assert "Task certify, llama.cpp preset: 38 of 50 correct before, 30 after." in texts(fit)
    assert "Chat with it" not in texts(fit.banner)


def test_a_gate_that_lets_pass_and_ones_own_text_are_on_the_card(qtbot, fit):
    gate = GateReport(task="mine.jsonl", reference="", checks=(checked("ours", 38, 37),))
    report = quantize_report(5_000_000, 0.005, 0.010)
    ours = msgspec.structs.replace(report.ours, ratio=Interval(1.2, 1.1, 1.3))
    own = msgspec.structs.replace(report.ours, ratio=Interval(0.4, 0.35, 0.45))
    shown(fit, msgspec.structs.replace(report, gate=gate, ours=ours, own=own), "spark-5")
    qtbot.waitUntil(lambda: "Task mine.jsonl: 38 of 50 correct before, 37 after." in texts(fit))
    assert "no clear loss" in texts(fit)
    assert "On your own text: 60 % less loss than the llama.cpp preset." in texts(fit)
    assert "On general text: 20 % more loss than the llama.cpp preset." in texts(fit)


def test_the_card_says_where_a_gate_could_not_judge_as_it_should(qtbot, fit):
    gate = GateReport(task="certify", reference="in 8 bits", checks=(checked("ours", 1, 0),))
    shown(fit, msgspec.structs.replace(quantize_report(5_000_000, 0.005, 0.010), gate=gate), "spark-5")
    qtbot.waitUntil(lambda: "this quality gate was skipped" in texts(fit))
    assert "Compared with the original in 8 bits" in texts(fit)


def test_a_refused_size_says_why_and_cannot_start(qtbot, fit, server):
    message = "The smallest possible file has 3,039,776 bytes."
    server.routes["POST", "/tessera/v1/quantize/plan"] = (
        400,
        {"error": {"message": message, "code": "budget_too_small"}},
    )
    fit._forecast()
    qtbot.waitUntil(lambda: fit.banner.text == message)
    assert not fit.start.isEnabled()


def test_a_failed_forecast_is_asked_for_again_by_a_button(qtbot, fit, server):
    good = server.routes["POST", "/tessera/v1/quantize/plan"]
    server.routes["POST", "/tessera/v1/quantize/plan"] = (500, {"error": {"message": "the disk is away"}})
    fit._forecast()
    # a second failure, caused by the slider's first position, puts another button into the banner
    again = "Try again"
    qtbot.waitUntil(
        lambda: any(made.text() == again and made.isVisible() for made in fit.banner.findChildren(QPushButton))
    )
    assert fit.banner.text == "The disk is away."
    assert not fit.start.isEnabled()
    server.routes["POST", "/tessera/v1/quantize/plan"] = good
    press(fit.banner, again)
    qtbot.waitUntil(fit.start.isEnabled)
    assert not fit.banner.isVisible()


def test_what_a_job_failed_of_is_a_sentence(qtbot, fit):
    ended = failed(JobKind.QUANTIZE, "no room on spark-f16.gguf", title="Spark", updated_at=time.time() + 1)
    fit._jobs._on_jobs([ended])
    qtbot.waitUntil(lambda: fit.banner.text == "No room on spark-f16.gguf.")
    assert texts(fit).count("No room on spark-f16.gguf.") == 2, "the card of the job says the same"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("it is read-only", "It is read-only."),
        ("spark-f16.gguf: no such file", "spark-f16.gguf: no such file."),
        ("http://127.0.0.1 is away", "http://127.0.0.1 is away."),
        ("Why not?", "Why not?"),
        ("", ""),
    ],
)
def test_a_sentence_leaves_names_as_they_are(said, told):
    assert formatted.sentence(said) == told


def test_the_axis_of_the_loss_tells_what_the_points_have(qtbot, theme):
    """The value must not appear multiplied by a thousand when the axis gets its name."""
    plot = FrontierPlot(theme)
    qtbot.addWidget(plot)
    plot.show_points({5 << 20: 0.005, 8 << 20: 0.05}, [])
    for _ in range(2):
        axis = plot.getPlotItem().getAxis("left")
        assert axis.scale * axis.autoSIPrefixScale == 1
        plot.restyle()


def test_no_name_is_shown_before_it_has_its_place(qtbot, theme):
    """A new estimate names its points anew; until they are placed, the names would cover points and each other."""
    plot = FrontierPlot(theme)
    qtbot.addWidget(plot)
    plot.show()
    stock = [
        PresetPlan(name=name, file_bytes=(40 + number) << 18, damage=0.1 / (number + 1))
        for number, name in enumerate(WELL_KNOWN)
    ]
    for _ in range(2):
        plot.show_points({8 << 20: 0.2, 14 << 20: 0.004}, stock)
        assert len(plot._labels) == len(WELL_KNOWN)
        assert not any(item.isVisible() for item in plot._labels)
        assert plot._leaders.xData.size == 0
        qtbot.waitUntil(lambda: any(item.isVisible() for item in plot._labels))


def test_curve_and_tensors_stand_side_by_side_where_there_is_room(qtbot, fit):
    plan_view = fit.plan_view

    def beside():
        return plan_view.mosaic.mapTo(plan_view, QPoint()).x() > plan_view.plot.geometry().center().x()

    fit.resize(1280, 800)
    qtbot.waitUntil(beside)
    fit.resize(640, 800)
    qtbot.waitUntil(lambda: not beside())


def test_names_keep_off_a_line_too():
    points = along((0.0, 0.0), (100.0, 0.0), 6)
    assert points[0][0] > 0
    assert points[-1][0] < 100
    assert all(second[0] - first[0] <= 6 for first, second in itertools.pairwise(points))
    taken = [Box(x - 3, -3, 6, 6) for x, _ in points]
    found = place(50, 0, 40, 14, taken)
    assert found is not None
    assert not any(found.meets(other) for other in taken)


def test_a_family_that_is_not_ours_is_asked_for_then_converted_and_chosen(qtbot, fit, server):
    """Nothing is downloaded before the click; then both jobs start automatically."""
    granite = msgspec.structs.replace(
        SPARK, id="granite", name="Granite", path="/models/granite", format="safetensors"
    )
    made = msgspec.structs.replace(SPARK, id="granite-f16", name="Granite F16")
    state = ConverterState(
        installed=False, version="1", path="/c", bytes=0, download_bytes=320 << 20, disk_bytes=1 << 30, seconds=120,
        architectures=("GraniteForCausalLM",),
    )  # fmt: skip
    needed = (400, {"error": {"message": "not one of ours", "code": "converter_needed"}})
    plans = lambda body: needed if body["model"] == "granite" else sketch(17_000_000)
    server.routes["POST", "/tessera/v1/quantize/plan"] = plans
    server.routes["GET", "/tessera/v1/converter"] = state
    server.routes["GET", "/tessera/v1/models"] = Models(models=(granite,))
    fit.choose("granite")
    qtbot.waitUntil(lambda: "does not support the architecture of Granite" in fit.banner.text)
    assert "320 MiB" in fit.banner.text
    assert "1.0 GiB" in fit.banner.text
    assert not fit.start.isEnabled()
    asked = [path for method, path, _ in server.requests if method == "POST"]
    assert "/tessera/v1/converter" not in asked
    fetched = job(JobKind.CONVERT, "done", id="fetch", result={"path": "/c", "bytes": 1})
    ended = job(JobKind.CONVERT, "done", id="turn", result={"model": "granite-f16", "path": "/m", "type": "F16"})
    server.routes["POST", "/tessera/v1/converter"] = lambda body: (202, job(JobKind.CONVERT, id="fetch"))
    server.routes["POST", "/tessera/v1/models/convert"] = lambda body: (202, job(JobKind.CONVERT, id="turn"))
    press(fit.banner, "Download and convert")
    qtbot.waitUntil(lambda: "fetch" in fit._foreign._awaited)
    fit._jobs.finished.emit(fetched)
    qtbot.waitUntil(lambda: "turn" in fit._foreign._awaited)
    assert [body for _, path, body in server.requests if path == "/tessera/v1/models/convert"] == [
        {"source": "/models/granite"}
    ]
    server.routes["GET", "/tessera/v1/models"] = Models(models=(granite, made))
    fit._jobs.finished.emit(ended)
    qtbot.waitUntil(lambda: fit.model.currentData() == "granite-f16")


def test_the_time_left_is_the_jobs_own_however_long_it_waited(qapp):
    """The job compares its forecast with its pace; the time it waited in the queue does not count."""
    waited = job(JobKind.QUANTIZE, progress=Progress(phase="moments", done=10, total=1000, eta_s=200.0))
    waited = msgspec.structs.replace(waited, created_at=waited.updated_at - 3600)
    assert note_of(waited) == "Step 2 of 6: learning how it is used · 1 % · about 3 min left"
    unknown = msgspec.structs.replace(waited, progress=Progress(phase="convert", done=0, total=1000))
    assert note_of(unknown) == "Step 1 of 6: reading the model · 0 %"


def test_the_phases_of_a_job_are_six_steps_in_plain_words(qapp):
    phases = ["hash", "convert", "survey", "moments", "errors", "alpha", "plan", "round", "write", "verify", "gate"]
    told = [step_text(phase) for phase in phases]
    assert told == sorted(told), "in the order in which they happen"
    assert told[0] == "Step 1 of 6: reading the model"
    assert told[4] == told[5] == "Step 3 of 6: measuring quality loss"
    assert told[-1] == "Step 6 of 6: checking the result"
