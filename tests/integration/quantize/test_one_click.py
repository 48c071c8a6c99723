"""From a Hugging Face folder to a verified file in one job: dense, with experts, and in every tier."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from quantize.files.gguf_file import read_gguf
from quantize.files.imatrix import read_imatrix
from quantize.job.execute import quantize
from quantize.job.plan_file import read_plan
from quantize.job.report import summary
from quantize.job.request import QuantizeReport, QuantizeRequest
from quantize.native.source_weights import SourceWeights
from quantize.types import SizeTarget
from tests.support.models.measured_model import HELD_OUT, ignore, never
from tests.support.models.small_folder import (
    EXPERTS,
    NARROW,
    changed_copy,
    first_layers,
    short_text,
    small_file,
    with_experts,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("kept", "few_types")]


def run(source: Path, tmp_path: Path, **changes) -> QuantizeReport:
    facts = {
        "source": source,
        "out": tmp_path / "out.gguf",
        "goal": SizeTarget(kind="bpw", bpw=4.4),
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
    size = SizeTarget(kind="bpw", bpw=6.2)  # most of so small a model is its table, which presets keep in Q6_K
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


def on_grid(name, values):
    """A layer's weights in 4 bits: seven steps to the largest of each 32, the steps in bfloat16."""
    if not name.startswith("blk.") or values.ndim != 2:
        return values
    blocks = values.reshape(-1, 32)
    steps = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(7)
    steps = (steps.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return (np.clip(np.rint(blocks / steps), -7, 7) * steps).reshape(values.shape)


def test_tokens_added_to_a_table_trained_for_4_bits_are_counted(tmp_path):
    def trained(name, values):
        if name != "token_embd.weight":
            return on_grid(name, values)
        table = on_grid("blk.", values)
        table[-3:], table[0] = values[-3:], values[0]
        return table

    source = changed_copy(small_file(tmp_path / "plain.gguf", 1, NARROW), tmp_path / "trained.gguf", trained)
    before = SourceWeights(source)
    report = run(source, tmp_path, goal=SizeTarget(kind="bpw", bpw=4.6), tier="instant", verify=False)
    table = next(t for t in report.plan.tensors if t.name == "token_embd.weight")
    assert (table.qtype, table.exact, table.added_rows) == ("Q4_0", "Q4_0", 4)
    assert "rows of these tensors that fit no grid (tokens added later) and lose as usual: 4" in summary(report)
    rows = SourceWeights(Path(report.out)).rows(table.name)
    wrong = (rows != before.rows(table.name)).any(axis=1)
    assert np.flatnonzero(wrong).tolist() == [0, *range(len(rows) - 3, len(rows))]


def test_a_model_trained_for_4_bits_loses_nothing_in_any_tier(tmp_path):
    source = changed_copy(small_file(tmp_path / "plain.gguf", 1, NARROW), tmp_path / "trained.gguf", on_grid)
    before = SourceWeights(source)
    names = {n for n in before.names if n.startswith("blk.") and len(before.info(n).shape) == 2}
    size = SizeTarget(kind="bpw", bpw=6.6)  # 4.5 for the layer and 8.5 for the table
    quick = run(source, tmp_path, goal=size, tier="instant", export_plan=tmp_path / "plan.json")
    whole = run(source, tmp_path, goal=size, out=tmp_path / "whole.gguf")
    for report in (quick, whole):
        assert report.shipped == "ours"
        assert report.plan.exact == names
        assert report.kld_ratio < 0.2
        assert f"tensors whose weights already fit 4 bits and lose nothing more: {len(names)}" in summary(report)
        made = SourceWeights(Path(report.out))
        assert all(made.source_qtype(n) == "Q4_0" for n in names)
        assert all(np.array_equal(made.rows(n), before.rows(n)) for n in names)
    # What is left is the table, and inputs in 8 bits.
    assert quick.ours.kld_mean.value < 0.006
    plan = read_plan(tmp_path / "plan.json")
    facts = {"tier": plan.tier, "goal": plan.goal, "rounding": plan.rounding, "max_tokens": plan.max_tokens}
    again = run(source, tmp_path, out=tmp_path / "again.gguf", plan=plan, **facts)
    assert again.plan.exact == names
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()
    # Exactly llama-quantize's bytes can still be requested.
    stock = run(source, tmp_path, goal=size, tier="instant", rounding="stock", out=tmp_path / "stock.gguf")
    assert not stock.plan.exact
