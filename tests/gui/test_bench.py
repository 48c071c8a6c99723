"""The bench page: live and stored results as plots, comparisons, exports."""

import csv
import json

import msgspec
import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QFileDialog

from app.gui.bench.page import BenchPage
from app.gui.jobs import Jobs
from engine.api.jobs import BenchPartial, JobKind, Measured, Progress, TunableSettings, TuneReport
from engine.api.measuring import BenchRequest, BenchResults, Shapes, SpeedAtLength, SpeedCurve, TuneRequest
from engine.api.stats import DeviceUsage, Usage, UsageSamples
from tests.gui.fake_server import Events
from tests.gui.wire import bench_result, failed, job, point

TOO_LARGE = "It needs 9 GiB; 7 GiB are free."


def measuring(state, **changes):
    return job(JobKind.MEASURE, state, **{"title": "Measure spark", "updated_at": 4e9, **changes})


@pytest.fixture
def page(qtbot, services, server):
    stored = (bench_result("spark", 100.0, 2), bench_result("qwen3-8b Q4_K_M", 23.0, 1, stand_in=True))
    server.routes["GET", "/tessera/v1/bench"] = BenchResults(results=stored)
    server.routes["GET", "/tessera/v1/bench/shapes"] = Shapes(shapes=("qwen3-8b",))
    gpu = DeviceUsage(device="03:00.0", kind="igpu", busy_frac=0.25)
    server.routes["GET", "/tessera/v1/stats/utilization"] = UsageSamples(
        samples=(Usage(at=1.0, cpu_frac=0.5), Usage(at=2.0, cpu_frac=1.0, devices=(gpu,)))
    )
    server.routes["GET", "/tessera/v1/jobs/events"] = Events([])
    services.models.start()
    qtbot.waitUntil(lambda: bool(services.models.choices))
    jobs = Jobs(services.api, services.background, services.models)
    made = BenchPage(services, jobs)
    made.jobs = jobs
    qtbot.addWidget(made)
    made.resize(1000, 900)
    made.show()
    qtbot.waitUntil(lambda: made.table.rowCount() == 2 and made.model.count() == 2)
    yield made
    made.close()
    jobs.stop()
    jobs.deleteLater()


def test_stored_results_are_drawn_and_compared(page):
    assert list(page.decode.lines.values()) == [[(128.0, 100.0), (512.0, 99.0)]]
    page.table.selectAll()
    names = list(page.decode.lines)
    assert len(names) == 2
    assert any(name.startswith("qwen3-8b") for name in names)
    assert [line[0] for line in page.prefill.lines.values()] == [(128.0, 900.0)] * 2
    assert "(simulated)" in page.table.item(1, 1).text()
    page.table.clearSelection()
    assert page.decode.lines == {}
    assert not page.csv.isEnabled()


CURVE = SpeedCurve(
    forecast=(SpeedAtLength(64, 1000.0, 100.0), SpeedAtLength(512, 500.0, 50.0)), usual_error=0.15, rare_error=0.6,
    expected=(SpeedAtLength(64, 1000.0, 100.0), SpeedAtLength(512, 500.0, 50.0)),
)  # fmt: skip


def test_the_forecast_of_the_chosen_model_is_drawn_and_replaced_by_what_was_measured(qtbot, page, server):
    server.routes["GET", "/tessera/v1/bench/curve"] = CURVE
    page.refresh()
    qtbot.waitUntil(lambda: "Forecast" in page.decode.lines)
    assert page.decode.lines["Forecast"] == [(64.0, 100.0), (512.0, 50.0)]
    assert page.prefill.lines["Forecast"] == [(64.0, 1000.0), (512.0, 500.0)]
    assert "Expected since measuring" not in page.decode.lines
    assert "less than 15 %, one in ten by more than 60 %" in page.off.text()
    assert ("Forecast: 100 tokens/s at 64 tokens") in [text for _, _, text in page.decode.chart.points]
    lower = (SpeedAtLength(64, 900.0, 80.0), SpeedAtLength(512, 450.0, 40.0))
    server.routes["GET", "/tessera/v1/bench/curve"] = msgspec.structs.replace(
        CURVE, expected=lower, measured=lower[:1]
    )
    page.refresh()
    qtbot.waitUntil(lambda: "Expected since measuring" in page.decode.lines)
    assert page.decode.lines["Measured points"] == [(64.0, 80.0)]
    assert "writing 80 tokens/s measured, 100 forecast; reading 900 measured, 1000 forecast" in page.off.text()
    page.model.setCurrentIndex(1)  # a shape: it has no forecast, only its own result
    assert [name.partition(",")[0] for name in page.decode.lines] == ["qwen3-8b Q4_K_M"]
    assert not page.off.isVisible()


def test_how_busy_the_machine_is(qtbot, page):
    qtbot.waitUntil(lambda: "IGPU 03:00.0" in page.busy.series)
    assert page.busy.series["CPU"] == [50.0, 100.0]


def test_a_model_is_measured_and_watched(qtbot, page, server):
    server.routes["POST", "/tessera/v1/bench"] = measuring("queued")
    page.lengths.setText("64, 128")
    page.start.click()
    qtbot.waitUntil(page.stop.isVisible)
    sent = next(body for method, path, body in server.requests if (method, path) == ("POST", "/tessera/v1/bench"))
    assert msgspec.convert(sent, BenchRequest) == BenchRequest(model="spark", lengths=(64, 128))
    assert not page.start.isEnabled()
    live = BenchPartial(model="spark", points=(point(64, 500.0, 70.0),))
    progress = Progress(done=3, total=6, note="128 tokens, 1 of 3", partial=msgspec.to_builtins(live))
    page.jobs.started(measuring("running", progress=progress, updated_at=4e9 + 1))
    assert page.decode.lines["now: spark"] == [(64.0, 70.0)]
    assert "128 tokens" in page.note.text()
    assert page.progress.value() == 3
    server.routes["GET", "/tessera/v1/bench"] = BenchResults(results=(bench_result("spark", 120.0, 3),))
    page.jobs.started(measuring("done", updated_at=4e9 + 2, result={}))
    qtbot.waitUntil(lambda: page.table.rowCount() == 1)
    assert page.start.isEnabled()
    assert not page.stop.isVisible()
    assert not any(name.startswith("now") for name in page.decode.lines)


def test_a_shape_is_tuned_and_the_result_told(qtbot, page, server):
    page.model.setCurrentIndex(1)
    assert page.mix.isVisible()
    server.routes["POST", "/tessera/v1/autotune"] = measuring("queued")
    page.tune.click()
    qtbot.waitUntil(page.stop.isVisible)
    sent = next(body for _, path, body in server.requests if path == "/tessera/v1/autotune")
    assert msgspec.convert(sent, TuneRequest) == TuneRequest(shape="qwen3-8b", lengths=(128, 512, 2048))
    report = TuneReport(
        model="qwen3-8b", prompt_tokens=512, turn_s=1.5, default_turn_s=2.0, prefill_tok_s=1.0, decode_tok_s=1.0,
        best=TunableSettings(n_threads=2, n_ubatch=256, flash_attn="on"), default=TunableSettings(),
        choices=(), trials=(), cost_s=1.0,
        complete=True, measured_at=1.0,
    )  # fmt: skip
    result = msgspec.to_builtins(Measured(reports=(report,)))
    page.jobs.started(measuring("done", updated_at=4e9 + 2, result=result))
    assert "1.50 s per request, 2.00 s before" in page.banner.text
    assert "ubatch 256" in page.banner.text


def test_settings_that_save_energy_are_looked_for_and_told(qtbot, page, server):
    server.routes["POST", "/tessera/v1/autotune"] = measuring("queued")
    page.save_energy.click()
    qtbot.waitUntil(page.stop.isVisible)
    assert not page.save_energy.isEnabled()
    sent = next(body for _, path, body in server.requests if path == "/tessera/v1/autotune")
    assert msgspec.convert(sent, TuneRequest).goal == "energy"
    report = TuneReport(
        model="spark", prompt_tokens=512, turn_s=2.5, default_turn_s=2.0, prefill_tok_s=1.0, decode_tok_s=1.0,
        best=TunableSettings(n_threads=1), default=TunableSettings(), choices=(), trials=(), cost_s=1.0,
        complete=True, measured_at=1.0,
        goal="energy", tokens_per_joule=3.25, default_tokens_per_joule=2.0,
    )  # fmt: skip
    result = msgspec.to_builtins(Measured(reports=(report,)))
    page.jobs.started(measuring("done", updated_at=4e9 + 2, result=result))
    assert "2.50 s per request, 2.00 s before" in page.banner.text
    assert "3.25 tokens per joule, 2.00 before" in page.banner.text


def test_a_measurement_can_be_stopped_and_a_failure_is_told(qtbot, page, server):
    server.routes["POST", "/tessera/v1/bench"] = measuring("running")
    page.start.click()
    qtbot.waitUntil(page.stop.isVisible)
    server.routes["POST", "/tessera/v1/jobs/measure-1/cancel"] = measuring("cancelled", updated_at=4e9 + 3)
    page.stop.click()
    qtbot.waitUntil(lambda: not page.stop.isVisible())
    server.routes["POST", "/tessera/v1/bench"] = measuring("running", id="measure-2")
    page.start.click()
    qtbot.waitUntil(lambda: len([r for r in server.requests if r[:2] == ("POST", "/tessera/v1/bench")]) == 2)
    page.jobs.started(failed(JobKind.MEASURE, TOO_LARGE, id="measure-2", updated_at=4e9 + 9))
    qtbot.waitUntil(lambda: "9 GiB" in page.banner.text)


def test_a_job_that_ends_before_the_answer_that_began_it_is_told(qtbot, page, server):
    page.jobs.started(failed(JobKind.MEASURE, TOO_LARGE, id="measure-3", updated_at=4e9 + 9))
    assert "9 GiB" not in page.banner.text  # the job's owner is not known yet
    server.routes["POST", "/tessera/v1/bench"] = measuring("running", id="measure-3")
    page.start.click()
    qtbot.waitUntil(lambda: "9 GiB" in page.banner.text)
    assert page.start.isEnabled()


@pytest.mark.parametrize("text", ["", "a", "0", "12,,5", "-4", "99999999999"])
def test_lengths_that_are_none_are_not_sent(page, server, text):
    page.lengths.setText(text)
    page.start.click()
    assert "numbers" in page.banner.text
    assert not [r for r in server.requests if r[0] == "POST"]


def test_results_are_exported(qtbot, page, tmp_path):
    page.table.selectAll()
    picture, table, everything = (tmp_path / f"out.{kind}" for kind in ("png", "csv", "json"))
    size = (page.decode.width(), page.decode.height() + page.prefill.height())
    page.save(picture)
    qtbot.waitUntil(picture.exists)
    qtbot.waitUntil(lambda: "out.png" in page.banner.text)
    image = QImage(str(picture))
    assert (image.width(), image.height()) == size, "as it was: what tells of the file takes room from the plots"
    colours = {image.pixel(x, y) for x in range(0, image.width(), 7) for y in range(0, image.height(), 7)}
    assert len(colours) > 4
    page.save(table)
    qtbot.waitUntil(lambda: "out.csv" in page.banner.text)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {r["model_filename"] for r in rows} == {"spark", "qwen3-8b Q4_K_M"}
    assert len(rows) == 8
    page.json.click()
    dialog = page.findChild(QFileDialog)
    dialog.selectFile(str(everything.with_suffix("")))
    dialog.accept()
    qtbot.waitUntil(lambda: "out.json" in page.banner.text)
    assert [r["model"] for r in json.loads(everything.read_text())] == ["spark", "qwen3-8b Q4_K_M"]
    page.save(tmp_path / "missing" / "out.csv")
    qtbot.waitUntil(lambda: "missing" in page.banner.text)
