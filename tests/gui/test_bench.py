"""The bench page: live and stored results as plots, comparisons, exports."""

import csv
import json

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QFileDialog

from app.gui.bench.page import BenchPage
from app.gui.jobs import Jobs
from tests.gui.fake_server import Events


def point(length, prefill, decode):
    def spread(value):
        return {"median": value, "low": 0.9 * value, "high": 1.1 * value}

    return {
        "length": length,
        "prefill_tok_s": spread(prefill),
        "decode_tok_s": spread(decode),
        "ttft_s": spread(0.5),
        "itl_s": [0.01, 0.02, 0.03],
        "power_w": None,
    }


def result(model, decode, number, **changes):
    return {
        "id": number, "model": model, "description": "d", "size_bytes": 1, "n_params": 2, "backend": "cpu",
        "machine": "Linux", "threads": 2, "type_k": "f16", "type_v": "f16", "load_s": 0.5, "rss_bytes": 1 << 30,
        "points": [point(512, 800.0, decode - 1), point(128, 900.0, decode)], "concurrency": [], "drift": 1.0,
        "stand_in": False, "started_at": 1.7e9 + 100 * number, "n_ubatch": 512, **changes,
    }  # fmt: skip


def job(state, **changes):
    return {
        "id": "measure-1", "kind": "measure", "title": "Measure spark", "params": {}, "state": state,
        "created_at": 1.0, "updated_at": 4e9, "progress": {}, "result": None, "error": None, **changes,
    }  # fmt: skip


@pytest.fixture
def page(qtbot, services, server):
    server.routes["GET", "/tessera/v1/bench"] = {
        "results": [result("spark", 100.0, 2), result("qwen3-8b Q4_K_M", 23.0, 1, stand_in=True)]
    }
    server.routes["GET", "/tessera/v1/bench/shapes"] = {"shapes": ["qwen3-8b"]}
    server.routes["GET", "/tessera/v1/stats/utilization"] = {
        "samples": [
            {"at": 1.0, "cpu_frac": 0.5, "devices": []},
            {"at": 2.0, "cpu_frac": 1.0, "devices": [{"device": "03:00.0", "kind": "igpu", "busy_frac": 0.25}]},
        ]
    }
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
    assert "stand-in" in page.table.item(1, 1).text()
    page.table.clearSelection()
    assert page.decode.lines == {}
    assert not page.csv.isEnabled()


def test_how_busy_the_machine_is(qtbot, page):
    qtbot.waitUntil(lambda: "IGPU 03:00.0" in page.busy.series)
    assert page.busy.series["Processor"] == [50.0, 100.0]


def test_a_model_is_measured_and_watched(qtbot, page, server):
    server.routes["POST", "/tessera/v1/bench"] = job("queued")
    page.lengths.setText("64, 128")
    page.start.click()
    qtbot.waitUntil(page.stop.isVisible)
    sent = next(body for method, path, body in server.requests if (method, path) == ("POST", "/tessera/v1/bench"))
    assert sent == {"model": "spark", "lengths": [64, 128], "repeats": 3}
    assert not page.start.isEnabled()
    live = {"model": "spark", "points": [point(64, 500.0, 70.0)]}
    progress = {"done": 3, "total": 6, "note": "128 tokens, 1 of 3", "partial": live}
    page.jobs.started(job("running", progress=progress, updated_at=4e9 + 1))
    assert page.decode.lines["now: spark"] == [(64.0, 70.0)]
    assert "128 tokens" in page.note.text()
    assert page.progress.value() == 3
    server.routes["GET", "/tessera/v1/bench"] = {"results": [result("spark", 120.0, 3)]}
    page.jobs.started(job("done", updated_at=4e9 + 2, result={"report": {}}))
    qtbot.waitUntil(lambda: page.table.rowCount() == 1)
    assert page.start.isEnabled()
    assert not page.stop.isVisible()
    assert not any(name.startswith("now") for name in page.decode.lines)


def test_a_shape_is_tuned_and_the_result_told(qtbot, page, server):
    page.model.setCurrentIndex(1)
    assert page.mix.isVisible()
    server.routes["POST", "/tessera/v1/autotune"] = job("queued")
    page.tune.click()
    qtbot.waitUntil(page.stop.isVisible)
    sent = next(body for _, path, body in server.requests if path == "/tessera/v1/autotune")
    assert sent == {"shape": "qwen3-8b", "type": "Q4_K_M", "lengths": [128, 512, 2048]}
    best = {"n_threads": 2, "n_ubatch": 256, "flash_attn": "on", "kv_type": "f16"}
    report = {"model": "qwen3-8b", "prompt_tokens": 512, "turn_s": 1.5, "default_turn_s": 2.0, "best": best}
    page.jobs.started(job("done", updated_at=4e9 + 2, result={"reports": [report]}))
    assert "1.50 s a turn, 2.00 s before" in page.banner.text
    assert "ubatch 256" in page.banner.text


def test_a_measurement_can_be_stopped_and_a_failure_is_told(qtbot, page, server):
    server.routes["POST", "/tessera/v1/bench"] = job("running")
    page.start.click()
    qtbot.waitUntil(page.stop.isVisible)
    server.routes["POST", "/tessera/v1/jobs/measure-1/cancel"] = job("cancelled", updated_at=4e9 + 3)
    page.stop.click()
    qtbot.waitUntil(lambda: not page.stop.isVisible())
    server.routes["POST", "/tessera/v1/bench"] = job("running", id="measure-2")
    page.start.click()
    qtbot.waitUntil(lambda: len([r for r in server.requests if r[:2] == ("POST", "/tessera/v1/bench")]) == 2)
    fault = {"code": "not_enough_memory", "message": "It needs 9 GiB; 7 GiB are free."}
    page.jobs.started(job("failed", id="measure-2", updated_at=4e9 + 9, error=fault))
    qtbot.waitUntil(lambda: "9 GiB" in page.banner.text)


def test_a_job_that_ends_before_the_answer_that_began_it_is_told(qtbot, page, server):
    fault = {"code": "not_enough_memory", "message": "It needs 9 GiB; 7 GiB are free."}
    page.jobs.started(job("failed", id="measure-3", updated_at=4e9 + 9, error=fault))
    assert "9 GiB" not in page.banner.text  # whose job that is, is not known yet
    server.routes["POST", "/tessera/v1/bench"] = job("running", id="measure-3")
    page.start.click()
    qtbot.waitUntil(lambda: "9 GiB" in page.banner.text)
    assert page.start.isEnabled()


@pytest.mark.parametrize("text", ["", "a", "0", "12,,5", "-4", "99999999999"])
def test_lengths_that_are_none_are_not_sent(page, server, text):
    page.lengths.setText(text)
    page.start.click()
    assert "numbers" in page.banner.text
    assert not [r for r in server.requests if r[0] == "POST"]


def test_results_are_exported(qtbot, page, tmp_path, monkeypatch):
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
    name = str(everything.with_suffix(""))
    monkeypatch.setattr(QFileDialog, "getSaveFileName", staticmethod(lambda *_: (name, "")))
    page.json.click()
    qtbot.waitUntil(lambda: "out.json" in page.banner.text)
    assert [r["model"] for r in json.loads(everything.read_text())] == ["spark", "qwen3-8b Q4_K_M"]
    page.save(tmp_path / "missing" / "out.csv")
    qtbot.waitUntil(lambda: "missing" in page.banner.text)
