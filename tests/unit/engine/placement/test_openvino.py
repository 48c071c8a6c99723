"""OpenVINO's devices in placement: when they are used, what they refuse, and the texts about them."""

import os

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from devices.backends.openvino import environment, target_of, trim
from devices.doctor import diagnose
from devices.memory_ledger import Ledger
from devices.merge import merged
from devices.types import BackendDevice, BackendReport
from engine.message_catalog import sentence, sentences
from engine.placement import openvino
from engine.placement.fallbacks import next_fallback, sound_fallbacks
from engine.placement.fit_report import offload_target
from engine.placement.history import PlacementHistory
from engine.placement.placer import read_shape
from engine.placement.steps import place
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.protocol import LoadSettings
from quantize.ggml_types import GgmlType
from tests.support.machines.machines import reports
from tests.support.models.shapes import scaled, write_hollow


def device(name, kind):
    return BackendDevice(name=name, description=name, kind=kind, total_bytes=0, free_bytes=0)


@pytest.fixture(scope="module")
def laptop():
    """Meteor Lake with its NPU's driver, where OpenVINO opened CPU and NPU."""
    found = reports()["mtl-zbook-power-g11"]
    devices = (device("openvino:CPU", "cpu"), device("openvino:NPU", "npu"))
    report = BackendReport("openvino", "libggml-openvino.so", "usable", devices=devices)
    return merged(replace(found, backends=(*found.backends, report)))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_hollow(tmp_path_factory.mktemp("openvino") / "m.gguf", scaled("llama", vocab=1000)))


@pytest.fixture(scope="module")
def shape(path):
    return read_shape(path)


def placed(shape, path, machine, overrides=NO_OVERRIDES, **changes):
    base = LoadSettings(path=path, n_ctx=8192, **changes)
    return place(shape, base, overrides, machine, Ledger(lambda: machine), PlacementHistory(None))


def retyped(shape, kind):
    matrices = [replace(t, ggml_type=kind) if len(t.shape) > 1 else t for t in shape.tensors]
    return replaced(shape, tensors=tuple(matrices))


def test_each_device_of_openvino_is_a_runtime_of_the_device_it_is(laptop):
    found = {d.kind: [r.device_name for r in d.runtimes if r.backend == "openvino"] for d in laptop.devices}
    assert found["cpu"] == ["openvino:CPU"]
    assert found["npu"] == ["openvino:NPU"]
    assert next(d for d in laptop.devices if d.kind == "npu").state == "usable"


def test_without_a_wish_llama_cpps_own_kernels_are_taken(shape, path, laptop):
    placement = placed(shape, path, laptop)
    assert placement.backend == "cpu"
    reasons = {a.backend: sentence(a.reason) for a in placement.alternatives}
    assert "pin openvino:" in reasons["openvino"]


@pytest.mark.parametrize("pin", ["cpu", "cpu/cpu"])
def test_the_processors_name_means_its_own_kernels(shape, path, laptop, pin):
    assert placed(shape, path, laptop, PlacementLimits(device=pin)).backend == "cpu"


@pytest.mark.parametrize("pin", ["openvino:CPU", "openvino:cpu", "cpu/openvino"])
def test_a_pin_takes_openvino_with_one_request_and_no_guesses(shape, path, laptop, pin):
    placement = placed(shape, path, laptop, PlacementLimits(device=pin))
    assert placement.settings.devices == ("openvino:CPU",)
    assert (placement.settings.n_parallel, placement.settings.max_draft) == (1, 0)
    assert offload_target(placement.settings, laptop) == (None, "openvino")


@pytest.mark.parametrize(
    "overrides",
    [PlacementLimits(mode="quiet"), PlacementLimits(on_battery=True), PlacementLimits(device="npu")],
)
def test_quiet_battery_and_a_pin_take_the_npu_and_say_what_is_not_known(shape, path, laptop, overrides):
    placement = placed(shape, path, laptop, overrides)
    assert placement.settings.devices == ("openvino:NPU",)
    assert placement.settings.n_ctx == openvino.NPU_CONTEXT == placement.settings.n_batch
    said = "; ".join(sentences(placement.reasons))
    assert "not tried on this hardware by this project" in said
    assert "not measured here" in said


def test_a_large_model_stays_off_the_npu_on_battery(shape, path, laptop):
    big = replaced(shape, tensors=tuple(replace(t, shape=(*t.shape, 2000)) for t in shape.tensors))
    assert placed(big, path, laptop, PlacementLimits(mode="quiet")).backend != "openvino"


@pytest.mark.parametrize(
    ("kind", "on_cpu", "on_npu"),
    [
        (GgmlType.F16, "", ""),
        (GgmlType.Q4_0, "", "rounded again"),
        (GgmlType.Q4_K, "lose their offsets", "rounded again"),
        (GgmlType.Q6_K, "8 bits with one scale per row", "rounded again"),
    ],
)
def test_the_card_says_what_a_type_costs(shape, laptop, kind, on_cpu, on_npu):
    for where, said in (("cpu", on_cpu), ("npu", on_npu)):
        runtime = next(r for r in laptop.device(where).runtimes if r.backend == "openvino")
        cost = openvino.cost(retyped(shape, kind), runtime)
        assert said in sentence(cost)
        assert bool(said) == bool(cost)


def test_types_and_features_it_does_not_take_are_refused_with_the_reason(shape, path, laptop):
    odd = retyped(shape, GgmlType.IQ4_XS)
    placement = placed(odd, path, laptop, PlacementLimits(device="openvino:CPU"))
    assert placement.backend == "cpu"
    assert "IQ4_XS" in sentences(placement.reasons)[0]
    adapted = placed(shape, path, laptop, PlacementLimits(device="openvino:CPU"), lora=("a.gguf",))
    assert "adapters" in sentence(adapted.reasons[0])


def test_after_a_failure_the_processor_gets_back_what_openvino_went_without(shape, path, laptop):
    settings = placed(shape, path, laptop, PlacementLimits(device="npu")).settings
    for fallback in (next_fallback(settings, laptop, (settings,)), sound_fallbacks(settings, laptop)[0]):
        assert fallback.settings.devices == ()
        assert fallback.settings.n_parallel > 1
        assert fallback.settings.max_draft > 0


def test_a_load_takes_more_than_the_file(shape, path, laptop):
    with_it = placed(shape, path, laptop, PlacementLimits(device="openvino:CPU")).need
    without = placed(shape, path, laptop, PlacementLimits(device="cpu"), n_parallel=1).need
    assert with_it.total_bytes >= without.total_bytes + openvino.RUNTIME_BYTES
    assert with_it.mapped_bytes("cpu") == 0


def test_the_backend_is_told_device_and_cache(tmp_path):
    assert target_of(("Vulkan0", "openvino:GPU.1")) == "GPU.1"
    assert target_of(("Vulkan0",)) == ""
    npu, cpu = environment("NPU", tmp_path), environment("CPU", tmp_path)
    assert npu["GGML_OPENVINO_DEVICE"] == "NPU"
    assert "GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR" not in npu
    assert cpu["GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR"] == str(tmp_path)


def test_compiled_models_have_a_limit_and_the_oldest_go(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    trim(tmp_path, most_bytes=250)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["middle", "new"]
    trim(tmp_path / "not there")


@pytest.mark.process
def test_a_runner_without_the_pack_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_KERNELS", str(tmp_path))
    with pytest.raises(KernelsMissing, match="kernel pack is not installed"):
        start_backends(("openvino:NPU",))


@pytest.mark.parametrize(
    ("name", "remedy", "why_not_there"),
    [
        ("lnl-256v", "openvino-linux-x86_64", "it runs ONNX models only"),
        ("ptl-nuc16-no-driver", "modprobe intel_vpu", "it runs ONNX models only"),
        ("x2-elite-windows", "onnxruntime-qnn", "it runs ONNX models only"),
        ("sh-flow-z13-linux-gtt96", "FastFlowLM", "it runs ONNX models only"),
    ],
)
def test_recorded_npus_get_their_remedy_and_no_gguf_file_without_it(shape, path, name, remedy, why_not_there):
    machine = reports()[name]
    npu = next(d for d in machine.devices if d.kind == "npu")
    assert remedy in (npu.fix_hint or "")
    placement = placed(shape, path, machine, PlacementLimits(on_battery=True))
    assert placement.device != npu.id
    assert why_not_there in next(sentence(a.reason) for a in placement.alternatives if a.device == npu.id)


def test_lunar_lakes_npu_takes_small_models_on_battery_once_openvino_opened_it(shape, path):
    found = reports()["lnl-256v"]
    report = BackendReport("openvino", "l.so", "usable", devices=(device("openvino:NPU", "npu"),))
    machine = merged(replace(found, backends=(*found.backends, report)))
    placement = placed(shape, path, machine, PlacementLimits(on_battery=True))
    assert placement.settings.devices == ("openvino:NPU",)
    assert "not tried on this hardware by this project" in "; ".join(sentences(placement.reasons))
    assert any(f.id == "openvino_untried" for f in diagnose(machine))


def test_what_openvino_could_not_open_is_a_finding(laptop):
    report = BackendReport("openvino", "l.so", "usable", "openvino:NPU: no compiler", devices=())
    found = diagnose(replace(laptop, backends=(report,)))
    assert any("no compiler" in f.detail for f in found)
