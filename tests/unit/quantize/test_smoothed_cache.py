"""Facts about a smoothed copy apply only to the measurements they were computed from."""

import pytest

from quantize.files.measurement_folder import WorkFolder, model_sha256
from quantize.job.source import cached_measurement, remember
from quantize.measure import run, sensitivity
from quantize.measure.sensitivity import swaps_file
from quantize.measurements import LossMeasurements, Measured, MeasureRequest


@pytest.fixture
def request_of(tmp_path):
    source, text = tmp_path / "m.gguf", tmp_path / "text.txt"
    source.write_bytes(bytes(4096))
    text.write_text("words", "utf-8")
    model_sha256(source, tmp_path / "cache")

    def make(**facts):
        return MeasureRequest(source=source, calibration=text, cache_dir=tmp_path / "cache", **facts)

    return make


def test_a_preview_with_other_types_or_of_another_tier_does_not_take_what_was_measured_for_less(
    request_of, tmp_path
):
    imatrix = tmp_path / "imatrix.gguf"
    imatrix.write_bytes(b"x")
    hashes = dict.fromkeys(("source_sha256", "calibration_sha256", "imatrix_sha256"), "")
    evidence = LossMeasurements(tier="balanced", tokens=1, probe_tokens=1, tensors=(), **hashes)
    done = request_of(qtypes=("Q4_K",))
    remember(done, Measured(evidence=evidence, imatrix=imatrix, folder=tmp_path), 7)
    measured, told_bytes = cached_measurement(done, even=True)
    assert measured is not None
    assert told_bytes == 7
    assert cached_measurement(request_of(qtypes=("Q4_K", "IQ2_S")), even=True) == (None, 0)
    assert cached_measurement(request_of(qtypes=("Q4_K",), tier="max"), even=True) == (None, 0)


def test_measurements_that_compared_other_positions_are_made_again(request_of, monkeypatch):
    request = request_of()
    folder = WorkFolder.open(request)
    before = run.evidence_key(request), swaps_file(folder, "balanced", request.probe_tokens)
    for module in (run, sensitivity):
        monkeypatch.setattr(module, "SCORED_STEP", 8)
    after = run.evidence_key(request), swaps_file(folder, "balanced", request.probe_tokens)
    assert before[0] != after[0]
    assert before[1] != after[1]
