"""Every recorded machine, read by the same probes as a live one: kind, state, memory, hints."""

import copy
import json
import re

import pytest

from devices.detect import inventory
from devices.isa import ggml_cpu_variant
from devices.recording import RecordedHost
from devices.report import recorded_report
from devices.types import Machine
from tests.support.machines.machines import SOURCE, machines, reports

GIB = 1 << 30
RECORDINGS = machines()

# id: (kind, state, architecture) of each device beside the CPU, in order.
EXPECTED: dict[str, list[tuple[str, str, str | None]]] = {
    "sh-framework-desktop-linux": [("igpu", "usable", "gfx1151")],
    "sh-flow-z13-linux-gtt96": [("igpu", "present", "gfx1151"), ("npu", "present", "XDNA2")],
    "sh-linux-carveout64": [("igpu", "present", "gfx1151")],
    "sh-linux-overcommit": [("igpu", "present", "gfx1151")],
    "sh-linux-halved": [("igpu", "present", "gfx1151")],
    "sh-linux-amdvlk-vs-rocm": [("igpu", "usable", "gfx1151")],
    "sh-zbook-ultra-64": [("igpu", "present", "gfx1151")],
    "sh-linux-driver-failed": [("igpu", "failed", "gfx1151")],
    "sh-linux-egpu-rdna4": [("dgpu", "present", None), ("igpu", "present", "gfx1151")],
    "sh-windows-dxgi-discrete": [("igpu", "present", "gfx1151")],
    "sh-windows-rocm714": [("igpu", "usable", "gfx1151")],
    "sh-wsl2": [("igpu", "usable", None)],
    "sp-hx370-pci": [("igpu", "present", "gfx1150"), ("npu", "driver_missing", "XDNA2")],
    "sp-proart-px13-dmi": [],
    "krk-linux": [("igpu", "present", "gfx1152"), ("npu", "present", "XDNA2")],
    "phx-8600g": [("npu", "present", "XDNA1")],
    "hawk-ryzen7-260-win": [("igpu", "present", "gfx1103"), ("npu", "present", "XDNA1")],
    "mtl-zbook-power-g11": [("igpu", "present", "xe-lpg"), ("dgpu", "present", None), ("npu", "present", "NPU")],
    "mtl-155h": [],
    "arl-h-win": [("igpu", "present", "xe-lpg+")],
    "arl-275hx-npu-present-unusable": [("npu", "present", "NPU")],
    "lnl-256v": [("igpu", "present", "xe2-lpg"), ("npu", "present", "NPU")],
    "ptl-nuc16-no-driver": [("igpu", "present", "xe3-lpg"), ("npu", "driver_missing", "NPU")],
    "x1-26-100": [],
    "x2-elite-windows": [("igpu", "present", None), ("npu", "present", "Hexagon")],
    "m4-max": [("igpu", "present", "metal"), ("npu", "present", "ane")],
    "m2": [("igpu", "present", "metal"), ("npu", "present", "ane")],
    "m5-max": [("igpu", "usable", "metal"), ("npu", "present", "ane")],
    "m4-no-devices": [("igpu", "present", "metal"), ("npu", "present", "ane")],
    "nv-hybrid-addw4": [("igpu", "present", "xe-lp"), ("dgpu", "present", "sm_89")],
    "vm-firecracker": [],
    "vm-llvmpipe": [],
    "container-capped": [],
    "simpledrm-card0": [("dgpu", "present", None)],
}


def report(name: str) -> Machine:
    return reports()[name]


def the(machine: Machine, kind: str):
    return next(device for device in machine.devices if device.kind == kind)


def test_every_machine_of_the_source_is_expected_here():
    listed = [entry["id"] for entry in json.loads(SOURCE.read_text(encoding="utf-8"))["machines"]]
    assert sorted(listed) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_devices_of(name):
    machine = report(name)
    cpu, *others = machine.devices
    assert cpu.kind == "cpu"
    assert [(d.kind, d.state, d.arch) for d in others] == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_no_device_has_more_memory_than_exists(name):
    machine = report(name)
    installed = machine.memory.installed_bytes
    for device in machine.devices:
        limit = device.memory.physical_bytes if device.kind == "dgpu" else installed
        for held in (device.memory.budget_bytes, device.memory.available_bytes):
            assert held is None or limit is None or held <= limit


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_not_usable_says_why_and_what_to_do(name):
    for device in report(name).devices:
        if device.state != "usable":
            assert device.reason
            assert device.fix_hint


@pytest.mark.parametrize(
    ("name", "budget_gib", "tolerance_gib"),
    [
        ("sh-flow-z13-linux-gtt96", 100, 0.1),  # 4 GiB carve-out and 96 GiB GTT
        ("sh-linux-carveout64", 126.5, 0.5),  # 64 GiB carve-out, 62.5 GiB GTT
        ("sh-linux-overcommit", 127, 0.5),  # the driver claims 132 GiB of a 128 GiB machine
        ("sh-zbook-ultra-64", 59.5, 0.2),
        ("sh-windows-dxgi-discrete", 19.6, 0.1),
        ("m4-max", 48, 0.1),
        ("m5-max", 37.4, 0.1),  # what Metal itself reports
        ("nv-hybrid-addw4", 30.7, 0.2),
    ],
)
def test_budget_of_the_integrated_gpu(name, budget_gib, tolerance_gib):
    budget = the(report(name), "igpu").memory.budget_bytes
    assert abs(budget / GIB - budget_gib) <= tolerance_gib


def test_a_carve_out_and_a_gtt_of_the_same_size_are_told_apart():
    gtt, carve = report("sh-flow-z13-linux-gtt96"), report("sh-linux-carveout64")
    assert the(gtt, "igpu").memory.shared_limit_bytes == 96 * GIB
    assert the(carve, "igpu").memory.dedicated_bytes == 64 * GIB
    assert carve.memory.total_bytes < 64 * GIB


def test_a_gpu_windows_calls_discrete_is_integrated_all_the_same():
    gpu = the(report("sh-windows-dxgi-discrete"), "igpu")
    assert gpu.memory.dedicated_bytes == 8354103296
    assert gpu.memory.unified


def test_two_backends_that_disagree_share_one_device():
    gpu = the(report("sh-linux-amdvlk-vs-rocm"), "igpu")
    assert [(r.backend, r.total_bytes >> 20) for r in gpu.runtimes] == [("vulkan", 85716), ("rocm", 131072)]


def test_an_egpu_does_not_rename_the_integrated_gpu():
    machine = report("sh-linux-egpu-rdna4")
    assert the(machine, "igpu").arch == "gfx1151"
    assert the(machine, "dgpu").memory.dedicated_bytes == 16 * GIB


def test_amd_iommu_off_is_named_as_the_reason_for_the_missing_npu():
    finding = next(f for f in report("sh-framework-desktop-linux").findings if f.id == "amd_iommu_off")
    assert "iommu=pt" in finding.fix


def test_a_refusing_driver_points_to_firmware():
    gpu = the(report("sh-linux-driver-failed"), "igpu")
    assert "linux-firmware" in gpu.fix_hint


def test_a_first_generation_npu_is_not_offered_for_language_models():
    for name in ("phx-8600g", "hawk-ryzen7-260-win"):
        assert "XDNA1" in the(report(name), "npu").reason


def test_an_npu_without_driver_names_the_module_to_load():
    assert "modprobe intel_vpu" in the(report("ptl-nuc16-no-driver"), "npu").fix_hint
    assert "modprobe amdxdna" in the(report("sp-hx370-pci"), "npu").fix_hint


def test_sr_iov_functions_are_one_gpu():
    assert len([d for d in report("ptl-nuc16-no-driver").devices if d.kind == "igpu"]) == 1


def test_hybrid_processors_get_one_thread_a_performance_core():
    cores = the(report("mtl-zbook-power-g11"), "cpu").cores
    assert (cores.physical, cores.logical, cores.performance, cores.threads) == (16, 22, 6, 6)
    assert the(report("m4-max"), "cpu").cores.threads == 12


def test_bandwidth_from_dmi():
    assert report("sp-proart-px13-dmi").memory.bandwidth_gbs == 120
    assert report("sh-framework-desktop-linux").memory.bandwidth_gbs == 256


def test_nvidia_figures_come_from_its_own_tool():
    gpu = the(report("nv-hybrid-addw4"), "dgpu")
    assert gpu.memory.dedicated_bytes == 6439305216
    assert gpu.driver_version == "570.1"


def test_a_container_sees_its_own_limit_with_page_cache_given_back():
    memory = report("container-capped").memory
    assert memory.limit_bytes == 90 * 10**9
    assert memory.available_bytes == 80 * 10**9


def test_a_sentinel_is_no_limit():
    assert report("vm-firecracker").memory.limit_bytes is None


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("vm-firecracker", "zen4"),
        ("sh-framework-desktop-linux", "zen4"),
        ("mtl-zbook-power-g11", "alderlake"),
        ("x1-26-100", "armv8.2_2"),
        ("m4-max", "apple_m4"),
        ("m2", "apple_m2_m3"),
        ("x2-elite-windows", None),
    ],
)
def test_ggml_variant(name, variant):
    machine = report(name)
    assert ggml_cpu_variant(frozenset(the(machine, "cpu").isa), machine.arch, machine.system) == variant


def test_wsl_shows_the_gpu_behind_dxg():
    machine = report("sh-wsl2")
    assert machine.environment == "wsl2"
    assert [r.backend for r in the(machine, "igpu").runtimes] == ["rocm"]


def test_wsl_takes_a_gpu_that_only_its_backend_knows():
    recording = copy.deepcopy(machines()["sh-wsl2"])
    cpu = recording["files"]["/proc/cpuinfo"]
    recording["files"]["/proc/cpuinfo"] = re.sub(
        "model name\t: .*", "model name\t: Intel(R) Core(TM) i7-13700H", cpu
    )
    listed = {"name": "CUDA0", "description": "NVIDIA GeForce RTX 4060 Laptop GPU", "kind": "gpu"}
    listed |= {"total_bytes": 8 << 30, "free_bytes": 7 << 30, "device_id": "0000:01:00.0"}
    recording["backends"] = [{"backend": "cuda", "library": "x.so", "state": "usable", "devices": [listed]}]
    (gpu,) = (d for d in recorded_report(RecordedHost(recording)).devices if d.kind in {"igpu", "dgpu"})
    assert (gpu.id, gpu.kind, gpu.vendor, gpu.chip) == ("dxg", "dgpu", "NVIDIA", "rtx4060m")
    assert gpu.state == "usable"


def test_an_unknown_operating_system_still_has_a_cpu():
    machine = inventory(RecordedHost({"system": "plan9"}))
    assert [(d.kind, d.state) for d in machine.devices] == [("cpu", "present")]
