"""Conditions for the NPU: low-power mode, battery, a busy GPU, the first token, and measured joules."""

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from devices.memory_ledger import DeviceBytes, Ledger
from devices.merge import merged
from devices.types import BackendDevice, BackendReport
from engine.message_catalog import sentence, sentences
from engine.message_catalog.reasons import because
from engine.onnx.folder import OnnxFolder
from engine.placement import onnx, speed
from engine.placement.chip_speeds import Rates
from engine.placement.external import place_external
from engine.placement.history import PlacementHistory
from engine.placement.npu_rule import PATIENCE_S, Offer, judge
from engine.placement.placer import read_shape
from engine.placement.steps import place
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.protocol import ExternalProgram, LoadSettings
from tests.support.machines.machines import reports
from tests.support.models.shapes import scaled, write_hollow

BATTERY = because("on_battery")


def opened(name):
    """A recorded machine on which OpenVINO opened CPU and NPU, and Vulkan the GPU."""
    found = reports()[name]
    given = [BackendDevice(f"openvino:{kind}", kind, kind.lower(), 0, 0) for kind in ("CPU", "NPU")]
    intel = BackendReport("openvino", "l.so", "usable", devices=tuple(given))
    return merged(replace(found, backends=(*found.backends, intel)))


@pytest.fixture(scope="module")
def shape(tmp_path_factory):
    return read_shape(str(write_hollow(tmp_path_factory.mktemp("rule") / "m.gguf", scaled("llama", vocab=1000))))


def placed(shape, machine, overrides=NO_OVERRIDES, ledger=None, history=None):
    ledger = ledger or Ledger(lambda: machine)
    return place(
        shape,
        LoadSettings(path="m", n_ctx=4096),
        overrides,
        machine,
        ledger,
        history or PlacementHistory(None),
        owner="m",
    )


def npu_of(machine):
    return next(d for d in machine.devices if d.kind == "npu")


@pytest.mark.parametrize(
    ("why", "npu", "other", "take", "said"),
    [
        (BATTERY, Offer("NPU", 200), Offer("GPU", 900), True, "after about 5.0 s there, 1.1 s on GPU"),
        (BATTERY, Offer("NPU", 20), Offer("GPU", 900), False, "after about 50.0 s there"),
        (BATTERY, Offer("NPU", 20), Offer("CPU", 10), True, "50.0 s there, 100.0 s on CPU"),
        (
            BATTERY,
            Offer("NPU", 200, 2.0),
            Offer("GPU", 900, 3.0),
            False,
            "2 tokens per joule measured here, 3 on GPU",
        ),
        (
            BATTERY,
            Offer("NPU", 200, 4.0),
            Offer("GPU", 900, 3.0),
            True,
            "4 tokens per joule measured here, 3 on GPU",
        ),
        (BATTERY, Offer("NPU", 200, 4.0), Offer("GPU", 900), True, "4 tokens per joule measured here"),
        (because("quiet"), Offer("NPU", 20, 1.0), Offer("GPU", 900, 3.0), True, "after about 50.0 s there"),
        (because("quiet"), Offer("NPU", 0), None, True, "an unknown time"),
    ],
)
def test_joules_that_were_measured_decide_then_the_first_token(why, npu, other, take, said):
    verdict = judge(why, "AMD", npu, other)
    assert verdict.take == take
    assert said in "; ".join(sentences(verdict.reasons))


def test_published_watts_are_told_as_such_until_a_meter_told():
    told = "; ".join(sentences(judge(BATTERY, "AMD", Offer("NPU", 500), Offer("GPU", 900)).reasons))
    assert "on NPU: 13 W instead of 52 W expected (published figures), not measured here" in told


@pytest.mark.parametrize("name", ["lnl-256v", "mtl-zbook-power-g11"])
def test_an_npu_that_openvino_opened_is_taken_quiet_on_battery_and_beside_a_busy_gpu(shape, name):
    machine = opened(name)
    for overrides in (PlacementLimits(mode="quiet"), PlacementLimits(on_battery=True)):
        found = placed(shape, machine, overrides)
        assert found.device == npu_of(machine).id
        assert any("first token of a prompt of 1,000 tokens" in r for r in sentences(found.reasons))
    assert placed(shape, machine).device != npu_of(machine).id
    igpu = next(d for d in machine.devices if d.kind == "igpu")
    ledger = Ledger(lambda: machine)
    ledger.reserve("other", {igpu.id: DeviceBytes(1 << 20)}, "k")
    beside = placed(shape, machine, ledger=ledger)
    assert beside.device == npu_of(machine).id
    assert "a small model, while the integrated GPU is busy" in sentences(beside.reasons)
    ledger.release("other")
    ledger.reserve("m", {igpu.id: DeviceBytes(1 << 20)}, "k")  # the model itself is not a reason to move it
    assert placed(shape, machine, ledger=ledger).device != npu_of(machine).id


def test_joules_of_this_computer_take_the_model_from_the_npu_again(shape):
    machine = opened("lnl-256v")
    npu, history = npu_of(machine), PlacementHistory(None)
    usual = placed(shape, machine, PlacementLimits(on_battery=True, device="cpu"))
    history.record_energy("m", npu.id, "openvino", 2.0)
    assert placed(shape, machine, PlacementLimits(on_battery=True), history=history).device == npu.id
    history.record_energy("m", usual.device, usual.backend, 5.0)
    found = placed(shape, machine, PlacementLimits(on_battery=True), history=history)
    assert (found.device, found.backend) == (usual.device, usual.backend)
    [why] = [sentence(a.reason) for a in found.alternatives if a.device == npu.id]
    assert "not now: on NPU: 2 tokens per joule measured here, 5 on" in why
    assert placed(shape, machine, PlacementLimits(mode="quiet"), history=history).device == npu.id


def test_each_response_moves_the_joules_by_a_quarter():
    history = PlacementHistory(None)
    for measured, known in ((4.0, 4.0), (8.0, 5.0), (1.0, 4.0)):
        history.record_energy("m", "npu", "openvino", measured)
        assert history.tokens_per_joule("m", "npu", "openvino") == known


def test_a_slow_first_token_keeps_a_model_off_the_npu_unless_it_must_be_quiet(shape, monkeypatch):
    machine = opened("lnl-256v")
    large = replaced(shape, tensors=tuple(replace(t, shape=(*t.shape, 1)) for t in shape.tensors))
    slow = npu_of(machine)
    monkeypatch.setattr(speed, "openvino_rates", lambda *_: Rates(gbs=0.001, gflops=0.001))  # no NPU is as slow
    found = placed(large, machine, PlacementLimits(on_battery=True))
    assert found.device != slow.id
    [why] = [sentence(a.reason) for a in found.alternatives if a.device == slow.id]
    assert "not now: first token of a prompt of 1,000 tokens after about" in why
    assert placed(large, machine, PlacementLimits(mode="quiet")).device == slow.id
    assert PATIENCE_S == 10


SPEECH = OnnxFolder(path=None, kind="embedding", architecture="moonshine", graphs=())


@pytest.mark.parametrize(
    ("name", "provider", "usable"),
    [
        ("lnl-256v", "OpenVINOExecutionProvider", True),
        ("x2-elite-windows", "QNNExecutionProvider", True),
        ("ptl-nuc16-no-driver", "OpenVINOExecutionProvider", False),
        ("sh-flow-z13-linux-gtt96", "RyzenAIExecutionProvider", False),
    ],
)
def test_dictation_and_embeddings_go_to_recorded_npus_beside_a_busy_gpu(name, provider, usable, monkeypatch):
    """With the provider's files installed; AMD's NPU accepts only compiled folders, and needs a driver."""
    monkeypatch.setattr("engine.onnx.providers.Adapter.problem", lambda *_: None)
    machine = reports()[name]
    settings = LoadSettings(path="x")
    chosen = onnx.choose_provider(SPEECH, settings, NO_OVERRIDES, machine, True, {})
    if usable:
        assert chosen.provider == provider
        assert "background requests, while the integrated GPU is busy" in sentences(chosen.reasons)
        assert any("not tried on hardware" in reason for reason in sentences(chosen.reasons))
        assert any("not measured here" in reason for reason in sentences(chosen.reasons))
    else:
        assert chosen.provider == ""
        assert "background requests, while the integrated GPU is busy, but" in sentences(chosen.reasons)[0]
    assert onnx.choose_provider(SPEECH, settings, NO_OVERRIDES, machine, False, {}).provider == ""
    pinned = onnx.choose_provider(SPEECH, settings, PlacementLimits(device="cpu"), machine, True, {})
    assert pinned.provider == ""


def test_strix_halos_npu_gets_fastflowlms_models_and_says_that_it_was_not_tried(monkeypatch):
    monkeypatch.setenv("TESSERA_FLM", "/nowhere")
    machine = reports()["sh-flow-z13-linux-gtt96"]
    settings = LoadSettings(path="llama3.2:1b", n_ctx=4096, external=ExternalProgram(name="flm", kind="flm"))
    found = place_external(settings, machine, Ledger(lambda: machine), "m")
    assert found.device == npu_of(machine).id
    assert "not tried on hardware by this project" in sentences(found.reasons)
    assert found.need.total_bytes > 3_000_000_000
    assert "3 GiB are reserved" in " ".join(sentences(found.reasons))
    assert found.fits
