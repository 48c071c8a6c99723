"""GPTQ rounding was once named `craft`: such files are still read, and written with the current name."""

import msgspec
import pytest

from engine.api.quantizing import LockRequest, QuantizeOptions
from engine.job_kinds.quantize.job import options_of
from quantize.files.measurement_folder import SharedInputGroup, WorkFolder, write_json
from quantize.files.provenance import Provenance
from quantize.job.plan_file import read_plan, write_plan
from quantize.job.portable_plan import PlanFile
from quantize.measure.rounding_error import has_errors, load_errors, measured_types
from quantize.measure.run import evidence_key, measured_before
from quantize.measurements import MeasureRequest
from quantize.types import EvidenceRef, Interval, Rounding, SizeTarget

NAME = "blk.0.attn_q.weight"
TYPES = ("Q4_K",)


def test_a_plan_says_how_its_file_is_rounded(tmp_path):
    path = tmp_path / "a.plan.json"
    claim = Interval(0.1, 0.1, 0.1)
    facts = {"architecture": "llama", "source_sha256": "", "calibration_sha256": "", "file_sha256": ""}
    plan = PlanFile(
        **facts, goal=SizeTarget(kind="bpw", bpw=4.5), tier="balanced", rounding=Rounding.GPTQ, max_tokens=1,
        types={NAME: "Q4_K"}, damage=0.1, kld=claim, file_bytes=1, provenance=Provenance(),
    )  # fmt: skip
    write_plan(path, plan)
    path.write_text(path.read_text("utf-8").replace('"gptq"', '"craft"'), "utf-8")
    assert '"craft"' in path.read_text("utf-8")
    assert read_plan(path) == plan


def test_reports_keep_the_names_that_scripts_read():
    said = msgspec.to_builtins(EvidenceRef(tier="balanced", has_imatrix=True, gptq=True))
    assert said["crafted"] is True
    assert msgspec.convert(said, EvidenceRef).gptq


def test_measurements_of_hours_are_not_made_anew(tmp_path):
    source, text = tmp_path / "m.gguf", tmp_path / "text.txt"
    source.write_bytes(bytes(4096))
    text.write_text("words", "utf-8")
    request = MeasureRequest(source=source, calibration=text, cache_dir=tmp_path / "cache", qtypes=TYPES)
    folder = WorkFolder.open(request)
    folder.imatrix.write_bytes(b"x")
    group = SharedInputGroup(name=NAME, members=(NAME,), width=256)
    by_type = dict.fromkeys(measured_types(group.width, TYPES), 0.1)
    ways = ("stock", "rows", "craft", "inputs")
    write_json(folder.part("errors", NAME, ".json"), {NAME: dict.fromkeys(ways, by_type)})
    hashes = dict.fromkeys(("source_sha256", "calibration_sha256", "imatrix_sha256"), "")
    errors = {"stock": {"Q4_K": 0.4}, "rows": {"Q4_K": 0.3}, "craft": {"Q4_K": 0.1}}
    tensor = {"name": NAME, "group": NAME, "alpha": 2.0, "errors": errors}
    evidence = {"tier": "balanced", "tokens": 1, "probe_tokens": 1, "tensors": [tensor], **hashes}
    write_json(folder.path / f"evidence-{evidence_key(request)}.json", evidence)

    assert set(load_errors(folder, group)[NAME]) == {"stock", "rows", "gptq", "inputs"}
    assert has_errors(folder, group, TYPES, gptq=True)
    found = measured_before(request)
    assert found is not None
    assert found.evidence.damage(Rounding.GPTQ) == {NAME: {"Q4_K": pytest.approx(0.2)}}


@pytest.mark.parametrize("name", ["gptq", "craft"])
def test_a_request_over_http(name):
    asked = msgspec.json.decode(msgspec.json.encode({"model": "/a.gguf", "rounding": name}), type=QuantizeOptions)
    assert asked.rounding is Rounding.GPTQ
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"model": "/a.gguf", "rounding": "best"}, QuantizeOptions)


def test_a_paused_job_of_an_earlier_version():
    recorded = {"source": "spark", "bpw": 4.5, "locks": [["attn", "Q8_0", True]], "tier": None, "plan_only": False}
    lock = LockRequest(pattern="attn", type="Q8_0", at_least=True)
    expected = QuantizeOptions(model="spark", bpw=4.5, locks=(lock,), tier=None)
    assert options_of(recorded) == expected
    assert options_of(msgspec.to_builtins(expected)) == expected
