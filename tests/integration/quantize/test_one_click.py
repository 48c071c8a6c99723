"""From a Hugging Face folder to a verified file in one job: dense, with experts, and in every tier."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from quantize.files.gguf_file import read_gguf
from quantize.files.imatrix import read_imatrix
from quantize.job.execute import quantize
from quantize.job.request import QuantizeReport, QuantizeRequest
from quantize.types import Goal
from tests.support.models.measured_model import HELD_OUT, ignore, never
from tests.support.models.small_folder import EXPERTS, NARROW, first_layers, short_text, with_experts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("kept", "few_types")]


def run(source: Path, tmp_path: Path, **changes) -> QuantizeReport:
    facts = {
        "source": source,
        "out": tmp_path / "out.gguf",
        "goal": Goal(kind="bpw", bpw=4.4),
        "calibration": short_text(tmp_path / "text.txt"),
        "held_out": HELD_OUT,
        "cache_dir": tmp_path / "cache",
        "threads": 2,
        "verify_tokens": 4096,
    }
    return quantize(QuantizeRequest(**(facts | changes)), ignore, never)


def digest(folder: Path) -> str:
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(folder.iterdir()))).hexdigest()


def test_a_folder_becomes_a_file_that_beats_the_stock_mix_in_both_tiers(tmp_path):
    source = first_layers(tmp_path / "source", 1, NARROW)
    before = digest(source)
    size = Goal(kind="bpw", bpw=6.2)  # most of so small a model is its table, which presets keep in Q6_K
    report = run(source, tmp_path, goal=size)
    assert (report.shipped, report.rounding) == ("ours", "gptq")
    assert (tmp_path / "out.gguf").stat().st_size == report.file_bytes == report.plan.file_bytes
    assert report.kld_ratio < 0.8
    # The measurement is reused.
    most = run(source, tmp_path, goal=size, tier="max", out=tmp_path / "max.gguf")
    assert (most.shipped, most.rounding) == ("ours", "gptq")
    assert most.kld_ratio < 0.8
    assert digest(source) == before
    made = {"out.gguf", "out.tessera.json", "max.gguf", "max.tessera.json"}
    assert {p.name for p in tmp_path.iterdir()} == {"source", "text.txt", "cache"} | made


def test_experts_are_measured_and_rounded_each_for_itself(tmp_path):
    report = run(with_experts(tmp_path / "source"), tmp_path)
    routed = {t.name: t for t in read_gguf(tmp_path / "out.gguf").tensors if "_exps." in t.name}
    assert len(routed) == 3
    assert all(t.shape[-1] == EXPERTS and t.ggml_type.name not in {"F16", "F32"} for t in routed.values())
    found = next((tmp_path / "cache").rglob("imatrix.gguf"))
    counts = np.array([read_imatrix(found)[name].counts for name in routed])
    assert counts.shape == (3, EXPERTS)
    assert counts.min() > 0
    assert len(np.unique(counts[0])) > 1  # experts get different numbers of tokens
    assert report.shipped == "ours"
    assert report.kld_ratio < 0.9
