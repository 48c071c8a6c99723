"""Headers of published models, evaluated by the program and by a script that shares no code with it."""

import numpy as np
import pytest

from devices.memory_ledger import Ledger
from engine.message_catalog import sentence
from engine.placement import llama_server
from engine.placement.dry_run import dry_run
from engine.placement.estimate import estimate, kv_layer_bytes
from engine.placement.history import PlacementHistory
from engine.placement.speed import Forecast, cache_read, weights_read
from engine.placement.steps import place
from engine.placement.types import PlacementLimits
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.load_limits import sequences
from engine.runner.protocol import LoadSettings
from tests.bench.default_context import placed_on
from tests.bench.recompute_shapes import recomputed
from tests.support.machines.opened_machines import opened
from tests.support.models import published_headers
from tests.support.runner_calls import EXACT

CONTEXT = 32_768


def settings(path, shape, **changes):
    given = {"n_ctx": CONTEXT, "kv_cells": CONTEXT, "n_parallel": 1, "repack": False, "max_draft": 0}
    given["lazy_tables"] = shape.lazy_table is not None
    return LoadSettings(path=str(path), **{**given, **changes})


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("headers")
    found = {}
    for number, name in enumerate(published_headers.FACTS):
        path = folder / f"{number}.gguf"
        found[name] = path, published_headers.shape(path, name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", published_headers.FACTS)
def test_bytes_and_cache_are_those_of_closed_formulas(headers, name):
    path, shape = headers[name]
    at = settings(path, shape)
    wanted = recomputed(name, CONTEXT, sequences(at, keeps_state=shape.recurrent))
    assert weights_read(shape) == pytest.approx(wanted["token_bytes"], rel=0.03)
    assert sum(kv_layer_bytes(shape, at)) == pytest.approx(wanted["cache_bytes"], rel=0.03)
    need = estimate(shape, at, frozenset())
    assert need.part_bytes("weights") == pytest.approx(wanted["resident_bytes"], rel=0.03)


@pytest.mark.process
@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Flash-Next", "DeepSeek-V4-Flash"])
def test_llama_cpp_itself_allocates_that_cache(headers, name):
    """A dry run of the header: none of the 100 GB of weights exist."""
    path, shape = headers[name]
    at = settings(path, shape)
    found = dry_run(at)
    assert found.kv_bytes == sum(kv_layer_bytes(shape, at))
    assert found.recurrent_bytes == pytest.approx(sum(layer.state_bytes for layer in shape.layers), rel=0.01)


@pytest.mark.parametrize(("name", "before"), [("Gemma 3n E4B", 0.65), ("Gemma 4 E4B", 0.65), ("Flash-Next", 0.12)])
def test_tables_that_are_looked_up_slow_no_forecast_down(headers, name, before):
    """`before`: the share of the correct speed that was forecast when a table counted as read for every token."""
    path, shape = headers[name]
    at = settings(path, shape)
    wanted = recomputed(name, CONTEXT)
    assert wanted["token_bytes"] / wanted["token_bytes_with_table"] == pytest.approx(before, abs=0.03)
    igpu = opened("sh-framework-desktop-linux").device("igpu")
    rule = Forecast(shape, settings(path, shape, n_gpu_layers=-1, devices=("x",)), ((igpu, "vulkan", 1.0),), None)
    assert rule.near == pytest.approx(weights_read(shape), rel=0.02)
    assert cache_read(shape, at, 1000) < sum(kv_layer_bytes(shape, at))


def test_sparse_attention_reads_its_index_and_few_tokens(headers):
    path, shape = headers["Flash-Next"]
    at = settings(path, shape)
    near, far = cache_read(shape, at, 2048), cache_read(shape, at, 32_768)
    assert near == pytest.approx(12 * 2 * 2048 * (1024 + 128), rel=0.01)
    assert far == pytest.approx(12 * 2 * (2048 * 1024 + 32_768 * 128), rel=0.01)


def test_a_large_table_stays_on_the_disk_unless_memory_is_locked(headers):
    """On an integrated GPU llama.cpp would otherwise read all 27 GiB of it into memory."""
    _, shape = headers["Flash-Next"]
    found = placed_on(opened("sh-framework-desktop-linux"), shape)(PlacementLimits())
    assert found.settings.lazy_tables
    reason = next(change.reason for change in found.changes if change.field == "lazy_tables")
    assert sentence(reason).startswith("its table of 26.8 GiB is read row by row")
    assert not llama_server.plain(found.settings).lazy_tables, "another build decides itself"
    assert headers["Gemma 3n E4B"][1].lazy_table is None, "llama.cpp does not mark its table"
    machine = opened("sh-framework-desktop-linux")
    locked = LoadSettings(path="m", use_mlock=True)
    ledger = Ledger(lambda: machine)
    assert not place(shape, locked, PlacementLimits(), machine, ledger, PlacementHistory(None)).settings.lazy_tables


SIX = [name for name in published_headers.FACTS if name != "Gemma 3n E4B"]


@pytest.mark.native
@pytest.mark.parametrize("name", SIX)
def test_a_small_model_of_the_same_make_computes_a_text_at_once_as_token_by_token(tmp_path, name):
    path = str(published_headers.write_small(tmp_path / "small.gguf", name))
    at = LoadSettings(
        path=path, n_ctx=512, n_threads=1, n_parallel=1, n_batch=64, n_ubatch=32, repack=False, **EXACT
    )
    loaded = llama_model.load(start_backends(), at, lambda _: True)
    try:
        batch, logits, text = Batch(loaded), Logits(loaded), [259 + 7 * i % 200 for i in range(48)]
        batch.add_prompt(text, 0, 0, last=True)
        assert batch.decode() == 0
        at_once = logits.rows(batch.outputs)[-1].copy()
        loaded.api.llama_memory_seq_rm(loaded.memory, 0, -1, -1)
        for position, token in enumerate(text):
            batch.clear()
            batch.add(token, position, 0)
            assert batch.decode() == 0
        alone = logits.rows(batch.outputs)[-1]
        assert np.isfinite(alone).all()
        assert np.ptp(alone) > 0.1
        assert alone == pytest.approx(at_once, abs=0.02 * float(np.ptp(alone)))
    finally:
        loaded.close()


@pytest.mark.parametrize(
    ("backend", "decode", "prompt"), [("vulkan", (9.1, 8.5), (107, 28)), ("rocm", (16.2, 11.4), (229, 70))]
)
def test_an_architecture_without_kernels_of_its_own_is_slow_as_its_owners_say(headers, backend, decode, prompt):
    """Source: kyuz0/amd-strix-halo-toolboxes, August 2026: DeepSeek-V4-Flash in IQ2_XXS, at 0 and at 64k."""
    path, shape = headers["DeepSeek-V4-Flash"]
    halo = opened("sh-framework-desktop-linux")
    at = settings(path, shape, n_ctx=131_072, kv_cells=131_072, n_gpu_layers=-1, devices=("x",), n_ubatch=1024)
    rule = Forecast(shape, at, ((halo.device("igpu"), backend, 1.0),), None)
    for depth, decode_tok_s, prompt_tok_s in zip((1, 65_536), decode, prompt, strict=True):
        assert 1 / rule.decode_s(depth) == pytest.approx(decode_tok_s, rel=0.05)
        assert 1 / rule.prompt_s(depth) == pytest.approx(prompt_tok_s, rel=0.1)


def test_deepseek_runs_on_rocm_where_both_backends_are(headers):
    _, shape = headers["DeepSeek-V4-Flash"]
    placement = placed_on(opened("sh-framework-desktop-linux"), shape)(PlacementLimits(max_ctx=65_536))
    assert placement.backend == "rocm"


@pytest.mark.parametrize(("backend", "decode", "deep"), [("vulkan", 27.8, 20.2), ("rocm", 18.4, 18.0)])
def test_flash_next_writes_as_its_owners_say(headers, backend, decode, deep):
    """Sources: halo-box/strix-llama.cpp#46, the mean of two builds at 48k; kyuz0/amd-strix-halo-toolboxes#125."""
    path, shape = headers["Flash-Next"]
    halo = opened("sh-framework-desktop-linux")
    at = settings(path, shape, n_ctx=65_536, kv_cells=65_536, n_gpu_layers=-1, devices=("x",), n_ubatch=1024)
    rule = Forecast(shape, at, ((halo.device("igpu"), backend, 1.0),), None)
    assert 1 / rule.decode_s(1) == pytest.approx(decode, rel=0.05)
    assert 1 / rule.decode_s(49_152) == pytest.approx(deep, rel=0.05)
