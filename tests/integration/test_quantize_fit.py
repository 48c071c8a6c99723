"""Files quantized to fit: loaded by a real runner at the guaranteed context, filled, and measured."""

import asyncio
from pathlib import Path

import pytest

from devices.detect import inventory
from devices.host_real import RealHost
from devices.process_memory import process_memory
from engine.core.paths import Paths
from engine.core.types import GenerationRequest
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.job_kinds.quantize.request import fit_goal, machine_fit, promised, source_dry_run
from engine.placement.resources import open_resources
from engine.placement.shape import model_shape
from engine.runner.process import RunnerProcess
from quantize.errors import BudgetTooSmall
from quantize.files.gguf_split import read_gguf_model
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
from quantize.types import CALIBRATION, HELD_OUT

pytestmark = pytest.mark.usefixtures("kept")
SPARK = Path("assets/models/spark-f16.gguf")
CONTEXT = 1024


@pytest.fixture(scope="module")
def fitted():
    """A function from memory to its size target; all share one dry run."""
    settings = promised(SPARK, CONTEXT, 1)
    dry = source_dry_run(settings)
    assert dry is not None
    shape, isa = model_shape(read_gguf_model(SPARK)), inventory(RealHost()).isa
    return lambda memory: fit_goal(shape, memory, settings, isa, dry=dry)


def plan(tmp_path: Path, fit, **changes):
    request = QuantizeRequest(
        source=SPARK,
        out=tmp_path / "fit.gguf",
        goal=fit.goal,
        kv=fit.kv,
        doubled_head_types=fit.doubled_head_types,
        calibration=CALIBRATION,
        held_out=HELD_OUT,
        cache_dir=tmp_path / "cache",
        tier="instant",
        overwrite=True,
        threads=2,
        verify_tokens=1024,
    )
    import msgspec

    return quantize(msgspec.structs.replace(request, **changes), lambda _p: None, lambda: False)


async def used_bytes(settings) -> int:
    """Memory of a runner after it has filled its whole context."""
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        await runner.load(settings)
        prompt = [5 + i % 4000 for i in range(CONTEXT - 16)]
        request = GenerationRequest(prompt=prompt, max_tokens=8, ignore_eos=True)
        async for _event in runner.generate(request):
            pass
        held = process_memory(runner.pid)
        assert held is not None
        return held.pss_bytes
    finally:
        await runner.stop()


@pytest.mark.slow
@pytest.mark.parametrize("spare_mb", [5, 7, 9, 14])
def test_the_measured_memory_is_within_the_budget(tmp_path, fitted, spare_mb):
    import msgspec

    memory = fitted(1 << 30).goal.fixed_bytes + spare_mb * 1_000_000
    # One case is enough to verify the file, which may then be the preset of at most the same size.
    report = plan(tmp_path, fitted(memory), verify=spare_mb == 9)
    kv = report.plan.kv
    assert kv is not None
    settings = msgspec.structs.replace(
        promised(report.out, CONTEXT, 1), type_k=kv.type_k, type_v=kv.type_v, flash_attn="on", use_mmap=False
    )
    assert asyncio.run(used_bytes(settings)) <= memory


def test_the_cache_gives_way_before_the_weights_do(tmp_path, fitted):
    fixed = fitted(1 << 30).goal.fixed_bytes
    chosen = {}
    for spare_mb in (5, 7, 9, 30):
        made = plan(tmp_path, fitted(fixed + spare_mb * 1_000_000), plan_only=True).plan
        chosen[spare_mb] = (made.kv.type_k, made.kv.type_v)
        assert made.goal.n_ctx == CONTEXT
    assert chosen[30] == ("f16", "f16")
    assert chosen[5] == ("q4_0", "q4_0")
    assert len(set(chosen.values())) >= 3


def test_memory_that_cannot_do_names_what_can(tmp_path, fitted):
    fixed = fitted(1 << 30).goal.fixed_bytes
    with pytest.raises(BudgetTooSmall) as caught:
        plan(tmp_path, fitted(fixed + 1_000_000), plan_only=True)
    smallest = caught.value.smallest_bytes
    made = plan(tmp_path, fitted(smallest), plan_only=True)
    assert made.plan.kv.type_k == "q4_0"


def test_a_fit_reserves_no_more_context_than_the_model_was_trained_for(tmp_path):
    resources = open_resources(Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs"))))
    default, chosen = (
        machine_fit(SPARK, QuantizeOptions(model=str(SPARK), fit=True, **changes), resources)
        for changes in ({}, {"n_ctx": 512})
    )
    assert (default.goal.n_ctx, chosen.goal.n_ctx) == (1024, 512)
