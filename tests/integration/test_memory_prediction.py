"""Predicted against measured memory of loaded models, in real runners with a full context."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.paths import Paths
from engine.core.types import GenerationRequest
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.placement.types import ModelSettings
from engine.pool.model_resolution import ResolvedModel
from engine.runner.protocol import LoadSettings
from tests.bench.memory_prediction import measure
from tests.support.fakes.free_pool import FreePool
from tests.support.models.shapes import SHAPES, write_shape

ROOT = Path(__file__).resolve().parents[2]
# Large enough that the process itself (45 MiB, also predicted by the dry run) does not dominate the result.
CASES = [
    ("llama", {"layers": 10, "embd": 768}, 1024, "f16"),
    ("gemma3", {}, 1024, "q8_0"),
    ("lfm2", {"layers": 8, "embd": 768, "heads": 12}, 1024, "f16"),
    # repacked for the CPU: the file's own pages are dropped; otherwise 59 MiB more would stay
    ("llama-q4_0", {"layers": 10, "embd": 1024, "ffn": 3072}, 1024, "f16"),
]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs the kernel's own figures")
@pytest.mark.parametrize(("name", "changes", "n_ctx", "kv_type"), CASES)
def test_within_three_per_cent(name, changes, n_ctx, kv_type, tmp_path):
    path = write_shape(tmp_path / f"{name}.gguf", replace(SHAPES[name], **changes))
    row = measure(str(path), n_ctx, kv_type)
    assert abs(row.error_frac) <= 0.03, f"{row.need.resident_bytes} predicted, {row.measured_bytes} measured"


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs the kernel's own figures")
@pytest.mark.parametrize("plain", [False, True])
def test_the_bundled_model_within_three_per_cent(plain):
    row = measure(str(ROOT / "assets/models/spark-f16.gguf"), 2048 if plain else 1024, "f16", 2, plain=plain)
    assert abs(row.error_frac) <= 0.03, f"{row.need.resident_bytes} predicted, {row.measured_bytes} measured"


@pytest.mark.parametrize(("created", "moments"), [("nothing", ["unload"]), ("exact", []), ("embedding", [])])
def test_contexts_created_after_the_load_correct_no_prediction(
    created, moments, bundled_model, tmp_path, monkeypatch
):
    """The first deterministic request and the first embedding create one each, which the load did not predict."""
    monkeypatch.setattr("engine.pool.pool.STATS_S", 60.0)
    placer = Placer(open_resources(Paths(*(tmp_path / n for n in ("config", "models", "state", "cache", "logs")))))

    class Source:
        async def resolve(self, name, min_ctx=0):
            settings = LoadSettings(path=str(bundled_model), n_ctx=512, n_threads=1)
            return ResolvedModel(model_id=name, engine="llama", settings=settings)

        def chosen(self, model):
            return ModelSettings()

    async def work():
        pool = FreePool(Source(), admission=MemoryAdmission(placer))
        try:
            model = await pool.acquire("m")
            request = GenerationRequest(prompt=[1, 2, 3], max_tokens=1, deterministic=created == "exact")
            assert [event async for event in pool.generate(model, request)]
            if created == "embedding":
                await model.runner.embed(["a text"])
        finally:
            await pool.close()

    asyncio.run(work())
    assert [audit.moment for audit in placer.ledger.audits.all() if audit.moment == "unload"] == moments
