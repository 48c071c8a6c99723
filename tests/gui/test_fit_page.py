"""Make it fit: the forecast while the slider moves, the job, its report."""

import time

import pytest

from app.gui.fit.label_places import Box, place
from app.gui.fit.page import FitPage
from app.gui.jobs import Jobs
from tests.gui.fake_server import Events
from tests.gui.hands import press, texts


def plan(size, damage=0.01):
    return {
        "source_bytes": 17_000_000,
        "forecast": {"seconds": 90, "disk_bytes": 12 << 20, "memory_bytes": 1 << 30, "kld": damage},
        "plan": {
            "file_bytes": size, "smallest_bytes": 3_000_000, "damage": damage, "decode_cost": 0.9,
            "tensors": [{"name": "blk.0.attn_q.weight", "qtype": "Q4_K", "num_bytes": 900, "shape": [256, 256]}],
            "stock": [{"name": "Q4_K_M", "file_bytes": 5_700_000, "damage": 0.02}],
        },
    }  # fmt: skip


@pytest.fixture
def fit(show, services, server, qapp, qtbot):
    server.routes["GET", "/tessera/v1/models"] = {
        "models": [{"id": "spark", "name": "Spark", "size_bytes": 17_000_000}]
    }
    server.routes["GET", "/tessera/v1/jobs/events"] = Events([])
    server.routes["POST", "/tessera/v1/quantize/plan"] = lambda body: plan(body["budget_bytes"] or 17_000_000)
    jobs = Jobs(server.api, services.background, services.models, qapp)
    page = show(FitPage(services, jobs))
    qtbot.waitUntil(page.start.isEnabled)
    yield page
    jobs.stop()
    jobs.deleteLater()


def test_the_slider_forecasts_live_and_starts_a_job(qtbot, fit, server):
    server.routes["POST", "/tessera/v1/quantize"] = lambda body: (
        202,
        {"id": "quantize-1", "kind": "quantize", "title": "Spark", "state": "running", "params": {},
         "created_at": time.time(), "updated_at": time.time(), "result": None, "error": None,
         "progress": {"phase": "measure", "done": 40, "total": 100, "unit": "%"}},
    )  # fmt: skip
    fit.slider.setValue(500)
    qtbot.waitUntil(lambda: "Loss of quality" in texts(fit))
    budget = fit.budget_bytes
    qtbot.waitUntil(lambda: any((b or {}).get("budget_bytes") == budget for _, _, b in server.requests))
    qtbot.waitUntil(fit.start.isEnabled)
    fit.start.click()
    qtbot.waitUntil(lambda: "Making Spark fit" in texts(fit))
    assert "40 %" in texts(fit)
    body = next(body for method, path, body in server.requests if path == "/tessera/v1/quantize")
    assert body == {"model": "spark", "budget_bytes": budget, "tier": "balanced"}


def test_a_context_can_be_aimed_for_with_a_way_to_store_it(qtbot, fit, server):
    def fitted(body):
        made = plan(body.get("budget_bytes") or 5_500_000)
        if body.get("fit"):
            made["plan"]["kv"] = {"type_k": body["kv_type"] or "q8_0", "type_v": "q8_0"}
        else:
            made["forecast"]["largest_context"] = 16384
        return made

    server.routes["POST", "/tessera/v1/quantize/plan"] = fitted
    fit._forecast()
    qtbot.waitUntil(lambda: "Context up to 16384 fits" in texts(fit))
    fit.aim.kind.setCurrentIndex(1)
    qtbot.waitUntil(lambda: "For a context of 8192" in texts(fit) and "Context stored in q8_0" in texts(fit))
    assert not fit.slider.isVisible()
    fit.aim.context.setCurrentIndex(fit.aim.context.findData(32768))
    fit.aim.cache.setCurrentIndex(fit.aim.cache.findData("q4_0"))
    qtbot.waitUntil(lambda: "For a context of 32768" in texts(fit) and "Context stored in q4_0" in texts(fit))
    server.routes["POST", "/tessera/v1/quantize"] = (400, {"error": {"message": "not now"}})
    qtbot.waitUntil(fit.start.isEnabled)
    fit.start.click()
    qtbot.waitUntil(lambda: fit.banner.text == "not now")
    body = next(body for _, path, body in server.requests if path == "/tessera/v1/quantize")
    assert body == {"model": "spark", "tier": "balanced", "fit": True, "n_ctx": 32768, "kv_type": "q4_0"}


def test_names_in_the_plot_cover_neither_points_nor_each_other():
    points = [Box(10 * n - 5, 8 * n - 5, 10, 10) for n in range(20)]
    taken = list(points)
    for n in range(0, 20, 3):
        found = place(10 * n, 8 * n, 48, 14, taken)
        assert found is not None
        assert not any(found.meets(other) for other in taken)
        taken.append(found)
    assert place(0, 0, 48, 14, [Box(-500, -500, 1000, 1000)]) is None


def test_the_report_is_shown_and_leads_to_a_chat(qtbot, fit):
    measured = {"kld_mean": {"value": 0.005}, "kld_p99": 0.04, "top1_agreement_frac": {"value": 0.95},
                "perplexity": {"value": 17.4}}  # fmt: skip
    report = {"shipped": "ours", "file_bytes": 5_000_000, "stock_mix": "Q4_K_M", "ours": measured,
              "stock": {**measured, "kld_mean": {"value": 0.010}}, "plan": plan(5_000_000)["plan"]}  # fmt: skip
    job = {"id": "q", "kind": "quantize", "title": "Spark", "state": "done", "params": {},
           "created_at": time.time(), "updated_at": time.time() + 1, "progress": {}, "error": None,
           "result": {"model": "spark-5", "report": report}}  # fmt: skip
    fit._jobs._on_jobs([job])
    qtbot.waitUntil(lambda: "loses 50 % of what the stock mix Q4_K_M" in texts(fit))
    with qtbot.waitSignal(fit.chat_wanted) as wanted:
        press(fit.banner, "Chat with it")
    assert wanted.args == ["spark-5"]


def test_a_refused_size_says_why_and_cannot_start(qtbot, fit, server):
    message = "The smallest possible file has 3,039,776 bytes."
    server.routes["POST", "/tessera/v1/quantize/plan"] = (
        400,
        {"error": {"message": message, "code": "budget_too_small"}},
    )
    fit._forecast()
    qtbot.waitUntil(lambda: fit.banner.text == message)
    assert not fit.start.isEnabled()
