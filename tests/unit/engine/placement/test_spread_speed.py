"""The speeds learned from a response of a model on two computers, and the forecasts for other divisions."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from devices.memory_ledger import Ledger
from engine.placement.chip_speeds import chip_speeds
from engine.placement.history import PlacementHistory
from engine.placement.placer import read_shape
from engine.placement.rpc_layers import Spreading, need
from engine.placement.steps import by_formula
from engine.placement.types import DryRun, Placement
from engine.remotes.registry import RemoteRegistry
from engine.remotes.types import Link, Remote, RemoteDevice, RemoteFacts, Seen
from engine.runner.protocol import LoadSettings, RemoteLayers
from tests.support.machines.machines import reports
from tests.support.models.shapes import scaled, write_hollow

HERE_GBS = 20.0


@pytest.fixture(scope="module")
def shape(tmp_path_factory):
    made = scaled(
        "qwen3", tied=False, layers=12, embd=2048, heads=16, kv_heads=4, head_dim=128, ffn=6144, vocab=1000
    )
    return read_shape(str(write_hollow(tmp_path_factory.mktemp("spread") / "m.gguf", made)))


@pytest.fixture
def spreading():
    registry = RemoteRegistry()
    registry.put(Remote(name="desk", host="desk", user="me", host_key="k"))
    device = RemoteDevice(
        name="CPU", description="c", kind="cpu", total_bytes=1 << 34, free_bytes=1 << 34, gbs=HERE_GBS
    )
    facts = RemoteFacts(host="desk", version="1", kernel="k", devices=(device,))
    link = Link(rtt_s=0.001, up_bytes_s=1e8, down_bytes_s=1e8)
    registry.saw("desk", Seen(state="ok", at=1.0, facts=facts, link=link))
    found = reports()["nv-hybrid-addw4"]
    cpu = found.device("cpu")
    known = replace(cpu, memory=replace(cpu.memory, bandwidth_gbs=HERE_GBS / chip_speeds().cpu.reads))
    here = replace(found, devices=(known, *registry.devices()))
    resources = SimpleNamespace(remotes=registry, ledger=Ledger(lambda: here), history=PlacementHistory(None))
    return Spreading(resources, here, "m", by_formula)


def divided(layers):
    return LoadSettings(
        path="m",
        n_ctx=1024,
        n_gpu_layers=layers,
        devices=("RPC0",),
        remotes=(RemoteLayers(remote="desk", layers=layers, index=0),),
    )


def expected(spreading, shape, layers):
    return 1 / sum(spreading.times(shape, divided(layers)))


@pytest.mark.parametrize("part", [0.3, 0.7, 1.5])
def test_the_same_division_is_expected_as_it_was_measured(spreading, shape, part):
    measured = part * expected(spreading, shape, 4)
    spreading.learn(shape, divided(4), measured)
    assert expected(spreading, shape, 4) == pytest.approx(measured, rel=1e-3)


def test_without_a_speed_measured_here_the_worker_is_not_blamed_for_all_of_it(spreading, shape):
    measured = 0.5 * expected(spreading, shape, 4)
    spreading.learn(shape, divided(4), measured)
    assert expected(spreading, shape, 8) == pytest.approx(measured, rel=0.05), "both read as fast as each other"


def test_a_speed_measured_here_alone_stands_and_the_rest_is_the_workers(spreading, shape):
    history = spreading._history
    history.record_speed("cpu", "cpu", 10**9, HERE_GBS)
    spreading.learn(shape, divided(4), 0.5 * expected(spreading, shape, 4))
    assert history.speed_gbs("cpu", "rpc") is None
    here, far, _ = spreading.times(shape, divided(4))
    assert far > 1.5 * here, "of twelve layers the worker has three and the output, and takes most of the time"


def test_a_speed_that_was_measured_on_a_busy_machine_does_not_stop_the_learning(spreading, shape):
    before = expected(spreading, shape, 4)
    spreading._history.record_speed("cpu", "cpu", 10**9, HERE_GBS / 4)
    spreading.learn(shape, divided(4), before)
    assert expected(spreading, shape, 4) == pytest.approx(before, rel=1e-3)


def test_several_workers_teach_nothing_since_one_time_cannot_tell_them_apart(spreading, shape):
    both = divided(4)
    far = both.remotes[0]
    both = replaced(both, devices=("RPC0", "RPC1"), remotes=(far, far))
    spreading.learn(shape, both, 1.0)
    assert spreading._history.speed_gbs("remote:desk/CPU", "rpc") is None


def test_the_best_division_has_the_memory_of_its_dry_run(spreading, shape):
    alone = LoadSettings(path="m", n_ctx=1024)
    here = Placement(
        device="cpu",
        device_name="CPU",
        backend="cpu",
        n_layers=12,
        settings=alone,
        need=need(shape, alone, spreading._machine, spreading._registry),
        fits=True,
    )
    asked = []
    spreading._dry_run = lambda settings: (
        asked.append(settings)
        or DryRun(kv_bytes=1, recurrent_bytes=0, output_bytes=1, compute_bytes={"RPC0": 7}, overhead_bytes=1)
    )
    there = spreading.instead_of(here, shape, "desk")
    assert there.settings in asked
    computes = {part.device: part.num_bytes for part in there.need.parts if part.name == "compute"}
    assert computes[there.device] == 7
