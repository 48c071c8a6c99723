"""The provider of an ONNX folder on recorded machines, with reasons."""

import pytest
from msgspec.structs import replace

from devices.memory_ledger import Ledger
from engine.core.errors import BadModelFile
from engine.message_catalog import sentence, sentences
from engine.message_catalog.reasons import because
from engine.onnx.folder import OnnxFolder
from engine.placement.onnx import choose_provider, onnx_need, place_folder
from engine.placement.types import NO_OVERRIDES, PlacementLimits
from engine.runner.protocol import LoadSettings
from tests.support.machines.machines import reports

MACHINES = reports()


def with_npu(vendor):
    for machine in MACHINES.values():
        npu = next((d for d in machine.devices if d.kind == "npu" and d.vendor == vendor), None)
        if npu is not None and machine.system in {"linux", "windows"}:
            usable = replace(npu, state="present", reason="not tried yet")
            return replace(machine, devices=tuple(usable if d is npu else d for d in machine.devices))
    raise AssertionError(vendor)


@pytest.fixture
def folder(tmp_path):
    graph = tmp_path / "model.onnx"
    graph.write_bytes(bytes(1000))
    sizes = {"layers": 4, "kv_heads": 2, "head_size": 64, "context": 4096}
    return OnnxFolder(path=tmp_path, kind="generate", architecture="llama", graphs=(graph,), **sizes)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """OpenVINO's plugin seems to be installed."""
    package = tmp_path / "site" / "onnxruntime_ep_openvino"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "libonnxruntime_providers_openvino_plugin.so").touch()
    monkeypatch.syspath_prepend(str(package.parent))


def choose(folder, machine, overrides=NO_OVERRIDES, busy=False, environ=None, **settings):
    given = LoadSettings(path=str(folder.path), **settings)
    return choose_provider(folder, given, overrides, machine, busy, environ or {})


def test_without_a_wish_it_is_the_processor_and_the_npu_is_told_why(folder, plugin):
    choice = choose(folder, with_npu("Intel"))
    assert choice.provider == ""
    assert choice.alternatives[0].reason == because("npu_rule")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (PlacementLimits(mode="quiet"), "quiet"),
        (PlacementLimits(on_battery=True), "on battery"),
        (PlacementLimits(device="npu"), "pinned"),
    ],
)
def test_quiet_battery_and_pins_take_the_npu(folder, plugin, overrides, said):
    machine = with_npu("Intel")
    choice = choose(folder, machine, overrides)
    assert choice.provider == "OpenVINOExecutionProvider"
    assert choice.device.kind == "npu"
    assert said in sentences(choice.reasons)[0]
    assert "not tried on hardware" in "; ".join(sentences(choice.reasons))


def test_side_work_goes_there_while_the_integrated_gpu_chats(folder, plugin):
    import msgspec

    machine, encoder = with_npu("Intel"), msgspec.structs.replace(folder, kind="embedding")
    assert choose(encoder, machine).provider == ""
    assert choose(encoder, machine, busy=True).provider == "OpenVINOExecutionProvider"
    assert choose(folder, machine, busy=True).provider == ""  # a chat is not a background request


def test_a_wish_that_cannot_be_had_says_so_and_stays_on_the_processor(folder):
    choice = choose(folder, with_npu("Intel"), PlacementLimits(mode="quiet"))
    assert choice.provider == ""
    assert "quiet" in sentences(choice.reasons)[0]
    assert "pip install" in sentences(choice.reasons)[0]


def test_a_pin_that_cannot_be_had_is_an_error(folder):
    with pytest.raises(BadModelFile, match="pip install onnxruntime-qnn"):
        choose(folder, with_npu("Intel"), PlacementLimits(device="QNN"))


def test_amds_npu_takes_compiled_folders_only(folder):
    choice = choose(folder, with_npu("AMD"), PlacementLimits(mode="quiet"))
    assert choice.provider == ""
    assert "compiled for it" in sentence(choice.alternatives[0].reason)


def test_a_compiled_folder_without_its_runtime_says_what_to_install(folder):
    import msgspec

    compiled = msgspec.structs.replace(folder, providers=("RyzenAI",), release="1.8.0")
    with pytest.raises(BadModelFile, match="Install AMD's Ryzen AI Software"):
        choose(compiled, with_npu("AMD"))


def test_the_need_counts_a_full_cache_for_each_sequence(folder):
    settings = LoadSettings(path=str(folder.path), n_ctx=4096, n_parallel=2)
    assert onnx_need(folder, settings).part_bytes("kv") == 2 * 2 * 4 * 2 * 64 * 4 * 4096


def test_a_folder_too_large_does_not_fit(folder):
    import msgspec

    huge = msgspec.structs.replace(folder, own={"resident_bytes": 1 << 45})
    machine = with_npu("Intel")
    placement = place_folder(
        huge, LoadSettings(path="x"), NO_OVERRIDES, machine, Ledger(lambda: machine), environ={}
    )
    assert not placement.fits


def test_the_doctor_names_what_an_npu_lacks_and_what_was_not_tried():
    from engine.onnx.discovery import ProviderReport, findings
    from engine.onnx.providers import ADAPTERS

    machine = with_npu("AMD")
    ryzen = ADAPTERS["RyzenAIExecutionProvider"]

    def told(state, detail="x"):
        report = ProviderReport(ryzen.provider, ryzen.title, state, detail, ryzen.vendors, sentence(ryzen.tried))
        return [(f.severity, f.title) for f in findings((report,), machine)]

    assert told("not here")[0][0] == "advice"
    assert "is not usable" in told("not here")[0][1]
    assert told("failed") == [("warning", "AMD Ryzen AI is installed but does not load")]
    assert "not tried on hardware" in told("usable")[0][1]
    no_npu = replace(machine, devices=tuple(d for d in machine.devices if d.kind != "npu"))
    report = ProviderReport(ryzen.provider, ryzen.title, "not here", "x", ryzen.vendors, sentence(ryzen.tried))
    assert findings((report,), no_npu) == ()
