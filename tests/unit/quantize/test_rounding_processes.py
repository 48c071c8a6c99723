"""As many processes round tensors as their Hessians leave memory for."""

from types import SimpleNamespace

import psutil
import pytest

from quantize.child import Executor
from quantize.job.round_plan import _Rounding
from quantize.measure.run import parts_in_memory
from quantize.measurements import MeasureRequest, Progress, RoundRequest
from quantize.native.source_weights import SourceWeights
from quantize.types import Rounding


@pytest.fixture
def free_memory(monkeypatch):
    def limited_to(gib):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=gib << 30))

    return limited_to


@pytest.mark.parametrize(("gib", "width", "parts"), [(64, 14336, 6), (20, 14336, 2), (4, 14336, 1), (20, 2048, 16)])
def test_processes_are_as_many_as_hessians_fit(gib, width, parts, free_memory):
    free_memory(gib)
    assert parts_in_memory(16, width) == parts


@pytest.mark.parametrize(("rounding", "most"), [(Rounding.GPTQ, 2), (Rounding.ROWS, 2), (Rounding.STOCK, 4)])
def test_fewer_processes_round_wide_matrices_if_memory_is_short(rounding, most, tmp_path, shape, free_memory):
    free_memory(20)
    source = SourceWeights(shape.write(layers=6, ffn=14336))
    (tmp_path / "text").write_text("text")
    measure = MeasureRequest(
        source=source.path, calibration=tmp_path / "text", cache_dir=tmp_path / "cache", threads=4
    )
    names = [name for name in source.names if "attn_q.weight" in name or "ffn_down" in name]
    request = RoundRequest(measure=measure, types=dict.fromkeys(names, "Q4_K"), rounding=rounding)
    batches = []

    def run(tasks, _report, _cancelled):
        batches.append([task.names for _, task in tasks])
        return [0] * len(tasks)

    _Rounding(request, source, names, lambda _: None, lambda: False, Executor(run)).round(names)
    assert sorted(name for batch in batches for part in batch for name in part) == sorted(names)
    wide = [batch for batch in batches if any("ffn_down" in name for part in batch for name in part)]
    narrow = [batch for batch in batches if any("attn_q" in name for part in batch for name in part)]
    assert max(map(len, wide)) == most
    assert max(map(len, narrow)) == 4


def test_progress_does_not_start_again_with_the_wide_matrices(tmp_path, shape, free_memory):
    free_memory(20)
    source = SourceWeights(shape.write(layers=6, ffn=14336))
    (tmp_path / "text").write_text("text")
    measure = MeasureRequest(
        source=source.path, calibration=tmp_path / "text", cache_dir=tmp_path / "cache", threads=4
    )
    names = [name for name in source.names if "attn_q.weight" in name or "ffn_down" in name]
    request = RoundRequest(measure=measure, types=dict.fromkeys(names, "Q4_K"), rounding=Rounding.GPTQ)
    seen = []

    def run(tasks, report, _cancelled):
        for index, (_, task) in enumerate(tasks):
            whole = sum(source.info(name).num_values for name in task.names)
            for part in (0.5, 1.0):
                report(index, Progress(phase="round", done=part * whole, total=whole))
        return [0] * len(tasks)

    _Rounding(request, source, names, seen.append, lambda: False, Executor(run)).round(names)
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total == sum(source.info(name).num_values for name in names)
