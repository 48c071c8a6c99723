"""What a file and its report say about its making."""

import msgspec
import pytest

from quantize.files.gguf_file import read_gguf
from quantize.files.provenance import Provenance, blank, read_provenance
from quantize.job.forecast import forecast
from quantize.job.report import read_report, report_path, summary, write_report
from quantize.job.request import QuantizeReport
from quantize.plan.model_spec import model_spec
from quantize.plan.plan import Question, make_plan
from quantize.plan.priors import prior_damage
from quantize.types import EvidenceRef, Goal


@pytest.fixture
def plan(shape):
    model = model_spec(read_gguf(shape.write()))
    question = Question(
        model=model,
        damage=prior_damage(model),
        evidence=EvidenceRef(tier="instant", has_imatrix=False),
        header_bytes=5000,
    )
    return model, make_plan(question, Goal(kind="bpw", bpw=4.5))


def told(model, plan, **changes) -> QuantizeReport:
    facts = {
        "source": "a.gguf",
        "source_sha256": "0" * 64,
        "source_bytes": 1,
        "out": None,
        "file_bytes": None,
        "shipped": "nothing",
        "plan": plan,
        "rounding": "stock",
        "forecast": forecast(model, plan, tier="instant", rounding="stock", threads=2, verified=False),
    }
    return QuantizeReport(**(facts | changes))


def test_provenance_never_changes_its_length():
    full = Provenance(
        tool="tessera",
        tier="balanced",
        rounding="sequential",
        goal="123456789012 bytes at 256x1048576 tokens",
        source_sha256="f" * 64,
        imatrix_sha256="f" * 64,
        evidence_sha256="f" * 64,
        plan_sha256="f" * 64,
        predicted_kld=0.123456789,
        kld_mean=1.23456789e-5,
        kld_p99=123.456789,
        stock_mix="IQ3_XXS",
        stock_kld_mean=0.1,
    )
    assert len(full.encode()) == len(Provenance().encode()) == len(blank())
    back = read_provenance(full.encode().decode())
    assert back is not None
    assert back.source_sha256 == full.source_sha256
    assert back.kld_mean == pytest.approx(full.kld_mean, rel=1e-4)
    assert read_provenance("not json") is None
    with pytest.raises(ValueError, match="room"):
        Provenance(goal="x" * 2000).encode()


def test_a_report_survives_its_file(tmp_path, plan):
    path = report_path(tmp_path / "model.gguf")
    assert path.name == "model.tessera.json"
    report = told(*plan)
    write_report(path, report)
    assert read_report(path) == report
    assert [p.name for p in tmp_path.iterdir() if p.name != "shape.gguf"] == [path.name]
    path.write_text("{}")
    assert read_report(path) is None


def test_the_summary_has_size_mix_and_forecast(plan):
    lines = summary(told(*plan, warnings=("mind the gap",)))
    assert "bits a weight" in lines[0]
    assert any("would take about" in line for line in lines)
    assert lines[-1] == "mind the gap"


def test_more_work_is_forecast_to_take_longer(plan):
    model, chosen = plan

    def seconds(tier, rounding, threads=1, verified=False):
        found = forecast(model, chosen, tier=tier, rounding=rounding, threads=threads, verified=verified)
        assert found.disk_bytes >= chosen.file_bytes
        assert found.memory_bytes > 0
        return found.seconds

    assert seconds("instant", "stock") < seconds("balanced", "stock") < seconds("balanced", "craft")
    assert seconds("balanced", "craft") < seconds("max", "sequential")
    assert seconds("balanced", "craft", threads=4) < seconds("balanced", "craft")
    assert seconds("balanced", "craft") < seconds("balanced", "craft", verified=True)


def test_plans_travel_as_json(plan):
    _, chosen = plan
    assert msgspec.json.decode(msgspec.json.encode(chosen), type=type(chosen)) == chosen


def test_the_forecast_of_the_bundled_model_is_what_was_measured(plan, bundled_model):
    """195 and 98 s were measured for tiers max and balanced: docs/log.md, sequential pass and one click."""
    model, chosen = model_spec(read_gguf(bundled_model)), plan[1]
    most = forecast(model, chosen, tier="max", rounding="sequential", threads=2, verified=True).seconds
    usual = forecast(model, chosen, tier="balanced", rounding="craft", threads=2, verified=True).seconds
    assert 130 < most < 290
    assert 65 < usual < 150
