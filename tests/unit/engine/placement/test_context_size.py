"""The default context of a model, by the memory that is free in addition to its weights."""

import pytest
from msgspec.structs import replace

from devices.memory_ledger import Ledger
from devices.recording import RecordedHost
from devices.report import recorded_report
from engine.message_catalog import sentence
from engine.placement.history import PlacementHistory
from engine.placement.load_settings import AGENT_CONTEXT, FREE_FRAC
from engine.placement.placer import read_shape
from engine.placement.steps import place
from engine.placement.types import DryRun, PlacementLimits
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings
from tests.bench import default_context
from tests.support.machines.machines import machines
from tests.support.models.shapes import scaled, write_hollow

GIB = 1 << 30
MACHINES = {name: recorded_report(RecordedHost(recording)) for name, recording in machines().items()}
OPEN = PlacementLimits(max_ctx=65536)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Sparse files by the context they were trained for; 64k of cache are 1.5 GB."""
    folder = tmp_path_factory.mktemp("contexts")

    def write(trained):
        shape = scaled("llama", vocab=1000, layers=24, kv_heads=4, context=trained)
        return str(write_hollow(folder / f"{trained}.gguf", shape))

    return {trained: write(trained) for trained in (4096, 8192, 40960, 131072)}


def placed(path, machine, overrides=OPEN, n_ctx=8192, **changes):
    settings = LoadSettings(path=path, n_ctx=n_ctx, kv_cells=4 * n_ctx, n_parallel=4, n_batch=2048, **changes)
    ledger = Ledger(lambda: machine)
    return place(read_shape(path), settings, overrides, machine, ledger, PlacementHistory(None)), ledger


def with_free(machine, free_bytes):
    return replace(machine, memory=replace(machine.memory, available_bytes=free_bytes))


def why(placement):
    return [sentence(reason) for reason in placement.reasons if reason.kind.startswith("context_")]


def test_with_room_it_gets_64k_or_what_it_was_trained_for(models):
    machine = MACHINES["vm-firecracker"]
    large, _ = placed(models[131072], with_free(machine, 60 * GIB))
    assert (large.settings.n_ctx, large.settings.kv_cells) == (65536, 65536)
    assert why(large)[0].startswith("64k of context, the maximum unless a request needs more")
    trained, _ = placed(models[40960], with_free(machine, 60 * GIB))
    assert trained.settings.n_ctx == 40960
    assert why(trained)[0].startswith("40k of context, the length it was trained for")
    small, _ = placed(models[8192], with_free(machine, 60 * GIB))
    assert (small.settings.n_ctx, why(small)) == (8192, [])


def test_the_less_memory_the_less_context_and_beyond_32k_a_quarter_stays_free(models):
    machine = MACHINES["vm-firecracker"]
    seen = {}
    for quarter_gib in range(40, 0, -1):
        placement, ledger = placed(models[131072], with_free(machine, quarter_gib * GIB // 4))
        n_ctx = placement.settings.n_ctx
        seen.setdefault(n_ctx, why(placement))
        assert n_ctx <= min(seen), "less memory never gives more"
        if n_ctx > 8192:
            weights = placement.need.part_bytes("weights")
            free = ledger.available("cpu") - weights
            assert placement.fits
            part = 1 - FREE_FRAC if n_ctx > AGENT_CONTEXT else 1
            assert placement.need.device_bytes("cpu") - weights <= part * free
    assert list(seen) == [65536, 32768, 16384, 8192]
    assert "64k would leave less than a quarter" in seen[32768][0]
    assert "32k would not fit" in seen[16384][0]


@pytest.mark.parametrize(
    ("overrides", "changes", "expected"),
    [
        (PlacementLimits(max_ctx=65536, n_ctx=4096), {}, 4096),
        (PlacementLimits(), {}, 8192),
        (OPEN, {"engine_args": EngineArgs(n_ctx=8192)}, 8192),
    ],
)
def test_what_was_asked_for_counts_first(models, overrides, changes, expected):
    machine = with_free(MACHINES["vm-firecracker"], 60 * GIB)
    placement, _ = placed(models[131072], machine, overrides, **changes)
    assert placement.settings.n_ctx == expected
    assert why(placement) == []


@pytest.mark.slow
def test_every_recorded_machine_with_room_for_32k_gives_it():
    """The 8B model by its header; tests/bench/default_context.py has all models."""
    found = [default_context.row(name, machine, "8B") for name, machine in MACHINES.items()]
    rows = [row for row in found if row is not None]
    assert {row.fits for row in rows} >= {"fits", "8-bit"}
    assert [row for row in rows if row.fits == "fits" and row.n_ctx < AGENT_CONTEXT] == []
    assert [row for row in rows if row.offered != (row.fits == "8-bit")] == []


@pytest.mark.slow
def test_an_8_bit_cache_is_offered_where_only_it_gives_32k(models):
    """With its measured loss, never chosen silently; the offered command has the stated effect."""
    machine, offered = MACHINES["vm-firecracker"], []
    for eighth_gib in range(8, 60):
        here = with_free(machine, eighth_gib * GIB // 8)
        usual, _ = placed(models[131072], here)
        assert usual.settings.type_k == "f16"
        offers = [reason for reason in usual.reasons if reason.kind == "context_8_bit"]
        small, _ = placed(models[131072], here, replace(OPEN, type_k="q8_0"))
        gains = usual.fits and usual.settings.n_ctx < AGENT_CONTEXT <= small.settings.n_ctx
        assert bool(offers) == gains
        assert not [reason for reason in small.reasons if reason.kind == "context_8_bit"]
        offered += offers
    assert offered
    said = sentence(offered[0])
    assert said.startswith("with an 8-bit cache it gets 32k of context instead of")
    assert "tessera models load MODEL --kv q8_0" in said
    assert "KL divergence of 0.00006 nats per token" in said
    trained, _ = placed(models[8192], with_free(machine, 2 * GIB))
    assert "context_8_bit" not in {reason.kind for reason in trained.reasons}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_no_layer_leaves_a_gpu_for_a_longer_context(models, name):
    usual, _ = placed(models[131072], MACHINES[name], PlacementLimits())
    large, _ = placed(models[131072], MACHINES[name])
    assert (large.device, large.backend, large.fits) == (usual.device, usual.backend, usual.fits)
    assert large.settings.n_gpu_layers == usual.settings.n_gpu_layers
    assert large.settings.n_ctx >= usual.settings.n_ctx


def test_a_dry_run_that_finds_no_room_after_all_brings_back_the_usual_context(models):
    machine = with_free(MACHINES["vm-firecracker"], 6 * GIB)
    settings = LoadSettings(path=models[131072], n_ctx=8192, kv_cells=8192, n_batch=2048)
    asked = []

    def says(at):
        asked.append(at.n_ctx)
        if at.n_ctx == 8192:
            return None
        return DryRun(kv_bytes=64 * GIB, recurrent_bytes=0, output_bytes=0, compute_bytes={}, overhead_bytes=0)

    ledger = Ledger(lambda: machine)
    placement = place(read_shape(models[131072]), settings, OPEN, machine, ledger, PlacementHistory(None), says)
    assert asked[0] > 8192
    assert placement.settings.n_ctx == 8192
    assert placement.fits
    assert why(placement) == []
