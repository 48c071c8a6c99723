"""The table of chips: its format, and the row of each recorded device, name and backend description."""

import copy
import json

import pytest
from msgspec.structs import replace

from devices.backends.ggml_child import reported_units
from devices.chips import GPU_CORES, LINK, TABLE, USUAL, chips, cpu_kind, gpu, gpu_of, read_chips, with_chips
from devices.host import CommandResult
from devices.probes import gpu_ids
from devices.probes.nvidia import COMMAND, with_nvidia_smi
from devices.probes.ram import apple_bandwidth, gpu_cores, system_memory
from devices.recording import RecordedHost
from devices.report import recorded_report
from devices.types import Device, Evidence, Memory, Runtime, SystemMemory
from engine.placement.chip_speeds import link_gbs
from tests.support.machines.machines import machines

MACHINES = {name: recorded_report(RecordedHost(recording)) for name, recording in machines().items()}
# As llama.cpp's Vulkan backend reports it: an Arrow Lake-H on Linux next to a card, in two of its formats.
VULKAN_LOG = """ggml_vulkan: Found 2 Vulkan devices:
ggml_vulkan: 0 = Intel(R) Arc(tm) 140T GPU (Mesa) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 32 | shared memory: 49152 | int dot: 1 | matrix cores: none
ggml_vulkan: 1 = NVIDIA (x) | uma: 0 | fp16: dot2 | bf16: 1 | fp4: 0 | warp size: 32 | shared memory: 49152 | int dot: 0 | matrix cores: NV_coopmat2v
"""  # noqa: E501


def card(name, **changes):
    found = Device(id="0000:01:00.0", kind="dgpu", vendor="NVIDIA", name=name, state="usable", memory=Memory())
    return replace(found, arch="sm_89", **changes)


def test_every_row_has_its_sources_and_leads_to_itself():
    rows = chips()
    assert len(rows.gpus) > 150
    for row in rows.gpus:
        assert row.fp16_matrix_tflops is None or row.fp16_tflops is None or row.fp16_matrix_tflops > row.fp16_tflops
        assert gpu(row.id) is row
    for row in rows.cpus:
        assert cpu_kind(row.id) is row


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t["gpus"].append(t["gpus"][0]), "twice: gfx902-vega8"),
        (lambda t: t["gpus"][0].update(fp16_tflops=-1), "fp16_tflops"),
        (lambda t: t["gpus"][0].update(sources=[]), "sources"),
        (lambda t: t["gpus"][0].update(fp15_tflops=1), "fp15_tflops"),
        (lambda t: t["gpus"][0].update(ids=["8086:46zz-46a0"]), "46zz"),
        (lambda t: t["cpus"].pop(), "match every name"),
    ],
)
def test_a_table_that_is_not_as_described_is_refused(damage, said):
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    damage(table)
    with pytest.raises(ValueError, match=said):
        read_chips(json.dumps(table).encode())


def test_recorded_devices_are_their_chips():
    found = {
        (name, d.kind): d.chip
        for name, machine in MACHINES.items()
        for d in machine.devices
        if d.kind in {"cpu", "igpu", "dgpu"}
    }
    assert found["sh-framework-desktop-linux", "igpu"] == "gfx1151-8060s"
    assert found["sh-linux-egpu-rdna4", "dgpu"] == "rx9070gre"  # the smallest of three with this id
    assert found["krk-linux", "igpu"] == "gfx1152-860m"
    assert found["hawk-ryzen7-260-win", "igpu"] == "gfx1103-780m"
    assert found["mtl-zbook-power-g11", "igpu"] == "xe-lpg-128"
    assert found["arl-h-win", "igpu"] == "xe-lpgplus-140t"
    assert found["lnl-256v", "igpu"] == "xe2-140v"
    assert found["nv-hybrid-addw4", "igpu"] == "uhd-32"
    assert found["x2-elite-windows", "igpu"] == "adreno-x2-90"
    assert found["simpledrm-card0", "dgpu"] == "a10g"
    processors = {name: chip for (name, kind), chip in found.items() if kind == "cpu"}
    assert processors["nv-hybrid-addw4"] == "intel-hx"
    assert processors["simpledrm-card0"] == "amd-two-chiplets"
    assert processors["sp-hx370-pci"] == "strix-point"
    assert processors["container-capped"] == "epyc"
    assert processors["m2"] == "apple"
    assert "other" not in processors.values()


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("NVIDIA GeForce RTX 4060", "rtx4060"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx4060ti"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "rtx4060m"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tis"),
        ("NVIDIA Graphics Device", "rtx4050m"),  # nothing distinguishes them: the smallest of its target
    ],
)
def test_names_tell_chips_of_one_target_apart(name, chip):
    assert gpu_of(card(name), "").id == chip


def test_a_backends_name_of_the_device_counts_too():
    runtime = Runtime("cuda", "CUDA0", 0, 0, 0, "usable", description="NVIDIA GeForce RTX 4060 Laptop GPU")
    assert gpu_of(card("NVIDIA GeForce RTX 4060", runtimes=(runtime,)), "").id == "rtx4060m"


@pytest.mark.parametrize(
    ("pci", "arch", "chip"),
    [
        ("8086:7d67", "xe-lpg", "xe-lpg-64"),
        ("8086:4692", "xe-lp", "uhd-24"),
        ("8086:4685", "xe-lp", "uhd-32"),
        ("8086:9a49", "xe-lp", "iris-xe-96"),
    ],
)
def test_intels_ids_tell_sizes_apart(pci, arch, chip):
    found = Device("0000:00:02.0", "igpu", "Intel", "Intel Graphics", "usable", Memory(), pci_id=pci, arch=arch)
    assert gpu_of(found, "").id == chip


@pytest.mark.parametrize(("units", "chip"), [(80, "gfx1151-8060s"), (64, "gfx1151-8050s"), (32, "gfx1151-8040s")])
def test_amds_count_of_units_tells_sizes_apart_where_no_name_does(units, chip):
    recording = copy.deepcopy(machines()["sh-flow-z13-linux-gtt96"])
    node = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    properties = recording["files"][node].replace("simd_count 80", f"simd_count {units}\nsimd_per_cu 2")
    recording["files"][node] = properties
    recording["files"]["/proc/cpuinfo"] = recording["files"]["/proc/cpuinfo"].replace("w/ Radeon 8060S", "")
    machine = recorded_report(RecordedHost(recording))
    assert next(d for d in machine.devices if d.kind == "igpu").chip == chip


def test_an_amd_gpu_with_an_unknown_id_is_integrated_by_its_target():
    recording = json.loads(json.dumps(machines()["sh-flow-z13-linux-gtt96"]).replace("1002:1586", "1002:15FF"))
    files = recording["files"]
    recording["files"] = {path: text for path, text in files.items() if "/hwmon/" not in path}
    machine = recorded_report(RecordedHost(recording))
    gpu_found = next(d for d in machine.devices if d.kind in {"igpu", "dgpu"})
    assert (gpu_found.kind, gpu_found.arch, gpu_found.chip) == ("igpu", "gfx1151", "gfx1151-8060s")


@pytest.mark.parametrize(
    ("name", "cores", "chip"),
    [
        ("Apple M4", 8, "m4-8"),
        ("Apple M4", 10, "m4"),
        ("Apple M5 Pro", 16, "m5-pro-16"),
        ("Apple M6 Pro", 20, "m5-pro"),  # a newer one is at least as fast
        ("Apple M5 Ultra", 80, "m3-ultra"),
        ("Apple M9", None, "m5-8"),
        ("Apple A18 Pro", 5, "a18-pro"),
    ],
)
def test_apples_chips_by_name_and_cores(name, cores, chip):
    evidence = () if cores is None else (Evidence("ioreg", GPU_CORES, str(cores)),)
    found = Device("gpu:apple", "igpu", "Apple", f"{name} GPU", "usable", Memory(), evidence=evidence)
    assert gpu_of(found, name).id == chip


@pytest.mark.parametrize(
    ("pci", "integrated"),
    [
        ("8086:fd80", True),
        ("8086:4628", True),
        ("8086:b640", True),
        ("8086:e220", False),
        ("1002:164c", True),
        ("10de:2e03", True),
    ],
)
def test_ids_that_came_later(pci, integrated):
    vendor, device = (int(part, 16) for part in pci.split(":"))
    found = gpu_ids.gpu_id(vendor, device)
    assert found is not None
    assert found.integrated is integrated


def test_only_arrow_lake_h_has_matrix_units():
    arl = MACHINES["arl-h-win"]
    igpu = next(d for d in arl.devices if d.kind == "igpu")
    assert igpu.arch == "xe-lpg+"

    def matrix(system, told=None):
        runtime = Runtime("vulkan", "Vulkan0", 0, 0, 0, "usable", matrix_units=told)
        given = replace(arl, system=system, devices=(arl.devices[0], replace(igpu, runtimes=(runtime,))))
        return with_chips(given).devices[1].runtimes[0].matrix_units

    assert matrix("windows") is True
    assert matrix("linux") is False, "Mesa gives llama.cpp none there"
    assert matrix("windows", told=False) is False
    assert matrix("linux", told=True) is True


def test_what_backends_say_while_they_start_is_understood():
    assert reported_units(VULKAN_LOG, 0) == {"matrix_units": False, "int_dot": True}
    assert reported_units(VULKAN_LOG, 1) == {"matrix_units": True, "int_dot": False}
    assert reported_units(VULKAN_LOG, 2) == {"matrix_units": None, "int_dot": None}
    assert reported_units("ggml_metal_device_init: has tensor            = true\n", 0)["matrix_units"] is True
    assert reported_units("", 0) == {"matrix_units": None, "int_dot": None}


def test_bandwidth_is_the_usual_one_only_where_nothing_tells():
    known = MACHINES["sh-framework-desktop-linux"].device("cpu").memory
    assert not known.bandwidth_source.startswith(USUAL)
    usual = MACHINES["sp-hx370-pci"]
    assert {d.memory.bandwidth_gbs for d in usual.devices if d.kind in {"cpu", "igpu"}} == {120}
    assert usual.device("cpu").memory.bandwidth_source.startswith(USUAL)
    assert MACHINES["nv-hybrid-addw4"].device("dgpu").memory.bandwidth_gbs == 272
    assert MACHINES["vm-firecracker"].device("cpu").memory.bandwidth_gbs is None  # a part of some machine's
    assert with_chips(usual) == usual


@pytest.mark.parametrize(
    ("name", "cores", "gbs"),
    [
        ("Apple M5 Pro", None, 307),
        ("Apple M5 Max", 32, 460),
        ("Apple M5 Max", 40, 614),
        ("Apple M5", 10, 153),
        ("Apple M4 Max", 40, 546),
        ("Apple M4 Max", None, 410),
        ("Apple M3 Max", 40, 400),
        ("Apple M3 Max", 30, 300),
        ("Apple A18 Pro", None, 60),
    ],
)
def test_apples_bandwidth_follows_the_gpus_cores(name, cores, gbs):
    assert apple_bandwidth(name, cores)[0] == gbs


def test_the_gpus_cores_are_read_from_its_driver():
    recording = dict(machines()["m5-max"])
    output = '    "gpu-core-count" = 40\n    "IOClass" = "AGXAcceleratorG17X"\n'
    command = "ioreg -rd1 -c AGXAccelerator"
    recording["commands"] = {**recording.get("commands", {}), command: {"returncode": 0, "stdout": output}}
    machine = recorded_report(RecordedHost(recording))
    assert machine.memory.bandwidth_gbs == 614
    assert machine.device("igpu").chip == "m5-max"
    assert gpu_cores(RecordedHost({"commands": {}})) is None
    assert CommandResult(None).stdout == ""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AMD Ryzen 9 7950X 16-Core Processor", "amd-two-chiplets"),
        ("AMD Ryzen 9 5900HX with Radeon Graphics", "amd-laptop"),
        ("AMD Ryzen 9 7945HX with Radeon Graphics", "amd-two-chiplets"),
        ("AMD Ryzen 9 PRO 7945 12-Core Processor", "amd-two-chiplets"),
        ("AMD Ryzen 7 PRO 7745 8-Core Processor", "amd-desktop"),
        ("AMD Ryzen 7 PRO 7840U w/ Radeon 780M Graphics", "amd-laptop"),
        ("AMD Ryzen Z1 Extreme", "amd-laptop"),
        ("AMD Ryzen 7 255 w/ Radeon 780M Graphics", "amd-laptop"),
        ("AMD Ryzen 7 H 255 w/ Radeon 780M Graphics", "amd-laptop"),
        ("AMD Ryzen 7 8840HS w/ Radeon 780M Graphics", "amd-laptop"),
        ("AMD Ryzen 7 8840HX with Radeon Graphics", "amd-two-chiplets"),
        ("AMD Ryzen 9 7940HX with Radeon Graphics", "amd-two-chiplets"),
        ("AMD Ryzen 9 8945HX with Radeon Graphics", "amd-two-chiplets"),
        ("AMD Ryzen 5 1500X Quad-Core Processor", "amd-desktop"),
        ("AMD Ryzen 7 7800X3D 8-Core Processor", "amd-desktop"),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "strix-halo"),
        ("AMD Ryzen Threadripper 3970X 32-Core Processor", "threadripper"),
        ("AMD Ryzen Threadripper PRO 5975WX 32-Cores", "threadripper"),
        ("AMD Ryzen Threadripper PRO 7965WX 24-Cores", "threadripper-pro-ddr5"),
        ("13th Gen Intel(R) Core(TM) i9-13900HX", "intel-hx"),
        ("13th Gen Intel(R) Core(TM) i7-1360P", "intel-laptop"),
        ("Intel(R) Core(TM) 7 150U", "intel-laptop"),
        ("11th Gen Intel(R) Core(TM) i5-1135G7 @ 2.40GHz", "intel-laptop-old"),
        ("Intel(R) Core(TM) i7-1065G7 CPU @ 1.30GHz", "intel-laptop-old"),
        ("Intel(R) Core(TM) i5-9500 CPU @ 3.00GHz", "intel-desktop-old"),
        ("12th Gen Intel(R) Core(TM) i5-12400F", "intel-desktop"),
        ("Intel(R) Core(TM) Ultra 7 265K", "intel-ultra-desktop"),
        ("Intel(R) Core(TM) Ultra 9 275HX", "intel-hx"),
        ("Intel(R) Core(TM) Ultra 7 258V", "lunar-lake"),
        ("Intel(R) Core(TM) Ultra X9 388H", "panther-lake"),
        ("Intel(R) N100", "intel-n"),
        ("Intel(R) Core(TM) i3-N305", "intel-n"),
        ("Intel(R) Core(TM) 3 N350", "intel-n"),
        ("Intel(R) Celeron(R) N5105 @ 2.00GHz", "intel-n"),
        ("Intel(R) Pentium(R) CPU  N3710  @ 1.60GHz", "intel-n"),
        ("Intel(R) Atom(TM) x7425E", "intel-n"),
        ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", "x1"),
        ("Snapdragon(R) X 10-core X1P64100 @ 3.40 GHz", "x1"),
        ("Snapdragon(R) X2 - X2E96100", "x2-elite-extreme"),
        ("Apple M3 Max", "apple-large"),
        ("Apple M4", "apple"),
        ("Apple A18 Pro", "apple-a"),
        ("Arm core 0xd87", "gb10-cpu"),  # as Linux names a GB10, whose slow cores come first
        ("Arm core 0xd0b", "arm-board"),  # a Raspberry Pi 5
        ("Intel(R) Core(TM) 5 320", "wildcat-lake"),
        ("Intel(R) Core(TM) 5 120F", "intel-desktop"),
        ("Intel(R) Core(TM) 9 273PQE", "intel-desktop"),
        ("Intel(R) Core(TM) 7 250H", "intel-laptop"),
        ("Intel(R) Core(TM) m3-7Y30 CPU @ 1.00GHz", "intel-y"),
        ("Intel(R) Core(TM) M-5Y10c CPU @ 0.80GHz", "intel-y"),
        ("Intel(R) Core(TM) i7-7Y75 CPU @ 1.30GHz", "intel-y"),
        ("Intel(R) Pentium(R) Gold G6405 CPU @ 4.10GHz", "intel-small"),
        ("12th Gen Intel(R) Pentium(R) 8505", "intel-small"),
        ("Intel(R) Celeron(R) 7305", "intel-small"),
        ("Intel(R) Processor U300", "intel-small"),
        ("Intel(R) Core(TM)2 Quad CPU    Q8400  @ 2.66GHz", "intel-first"),
        ("Intel(R) Core(TM) i7 CPU         920  @ 2.67GHz", "intel-first"),
        ("Intel(R) Core(TM) i5-3320M CPU @ 2.60GHz", "intel-ddr3"),
        ("Intel(R) Core(TM) i7-4790 CPU @ 3.60GHz", "intel-ddr3"),
        ("Intel(R) Core(TM) i5-5300U CPU @ 2.30GHz", "intel-laptop-old"),
        ("Intel(R) Core(TM) i7-6700K CPU @ 4.00GHz", "intel-desktop-old"),
        ("AMD Ryzen 7 7745HX with Radeon Graphics", "amd-one-chiplet-hx"),
        ("AMD Ryzen 5 7645HX with Radeon Graphics", "amd-one-chiplet-hx"),
        ("AMD Ryzen 7 8745HX with Radeon Graphics", "amd-one-chiplet-hx"),
        ("AMD Ryzen 7 7745U", "amd-laptop"),
        ("AMD Ryzen 7 8745HS w/ Radeon 780M Graphics", "amd-laptop"),
        ("AMD Ryzen AI Z2 Extreme", "strix-point"),
        ("AMD Ryzen Z2 A", "van-gogh"),
        ("AMD Custom APU 0405", "van-gogh"),
        ("AMD Ryzen Embedded V1605B with Radeon Vega Gfx", "amd-laptop"),
        ("AMD Athlon Silver 3050U with Radeon Graphics", "amd-small"),
        ("AMD 3020e with Radeon Graphics", "amd-small"),
        ("AMD FX(tm)-8350 Eight-Core Processor", "amd-old"),
        ("AMD A10-7850K Radeon R7, 12 Compute Cores 4C+8G", "amd-old"),
        ("something new", "other"),
    ],
)
def test_processors_are_known_by_the_names_they_tell(name, kind):
    assert cpu_kind(name).id == kind


def test_the_plain_x2_elite_has_the_narrower_bus():
    assert MACHINES["x2-elite-windows"].device("cpu").memory.bandwidth_gbs == 152
    assert cpu_kind("Snapdragon(R) X2 Elite Extreme - X2E-96-100").bandwidth_gbs == 228


@pytest.mark.parametrize(
    ("name", "arch", "chip"),
    [
        ("NVIDIA GeForce MX450", "sm_75", "mx450"),
        ("NVIDIA GeForce GTX 1050 Ti", "sm_61", "gtx1050ti"),
        ("NVIDIA GeForce GTX 1650 SUPER", "sm_75", "gtx1650s"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", "sm_86", "rtx3080tim"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120", "rtxpro6000"),
        ("Tesla P40", "sm_61", "p40"),
        ("NVIDIA GeForce GTX 970", "sm_52", "gtx970"),
        ("NVIDIA Quadro P620", "sm_61", "gt1030"),  # nothing distinguishes them: the smallest of its target
    ],
)
def test_old_and_small_cards_are_not_taken_for_large_ones(name, arch, chip):
    assert gpu_of(replace(card(name), arch=arch), "").id == chip


@pytest.mark.parametrize(
    ("files", "link"),
    [
        ({"0000:00:01.1": ("16", "16.0 GT/s PCIe"), "0000:03:00.0": ("16", "16.0 GT/s PCIe")}, "31.5"),
        # AMD's cards have a switch: the slot in front of it has four lanes
        ({"0000:00:01.1": ("4", "8.0 GT/s PCIe"), "0000:03:00.0": ("16", "16.0 GT/s PCIe")}, "3.9"),
        ({"0000:00:01.1": ("4", "2.5 GT/s PCIe"), "0000:03:00.0": ("63", "Unknown")}, "1.0"),
        ({"0000:00:01.1": (None, None), "0000:03:00.0": ("x", "")}, None),
        ({"0000:00:01.1": ("4", "2.5 GT/s PCIe", "removable"), "0000:03:00.0": ("4", "16.0 GT/s PCIe")}, "2.7"),
    ],
)
def test_the_slowest_link_to_a_card_is_known(files, link):
    from devices.probes.gpu_linux import _link
    from devices.probes.pci import PciFunction

    class Host:
        def readlink(self, path):
            return (
                "../../../devices/pci0000:00/0000:00:01.1/0000:03:00.0" if path.endswith("0000:03:00.0") else None
            )

        def read(self, path):
            address, _, name = path.removeprefix("/sys/bus/pci/devices/").partition("/")
            row = files[address]
            known = {
                "current_link_width": row[0],
                "max_link_speed": row[1],
                "removable": row[2] if row[2:] else "fixed",
            }
            return None if known[name] is None else known[name].encode()

    function = PciFunction("0000:03:00.0", 0x030000, 0x1002, 0x7550, None, "amdgpu", False, False)
    found = [e.value for e in _link(Host(), function) if e.key == LINK]
    assert found == ([] if link is None else [link])


@pytest.mark.parametrize(
    ("vendor", "name", "pci", "arch", "cpu", "chip"),
    [
        ("AMD", "AMD Radeon 760M Graphics", "1002:1900", "gfx1103", "", "gfx1103-760m"),
        ("AMD", "AMD Radeon 740M Graphics", "1002:15bf", "gfx1103", "", "gfx1103-740m"),
        ("AMD", "AMD Radeon 840M Graphics", "1002:1902", "gfx1153", "", "gfx1152-840m"),
        ("AMD", "AMD Radeon Graphics", "1002:1681", None, "AMD Ryzen 7 6800H with Radeon Graphics", "gfx1035-680m"),
        ("AMD", "AMD Radeon 660M/680M (Rembrandt)", "1002:1681", None, "AMD Ryzen 7 7735HS", "gfx1035-680m"),
        ("AMD", "AMD Radeon Graphics", "1002:1681", None, "AMD Ryzen 5 6600H with Radeon Graphics", "gfx1035-660m"),
        ("AMD", "AMD Ryzen Z1 Extreme", "1002:15bf", None, "AMD Ryzen Z1 Extreme", "gfx1103-780m"),
        ("AMD", "AMD Radeon Graphics", "1002:15bf", None, "AMD Ryzen Z1", "gfx1103-740m"),
        ("AMD", "AMD Ryzen Z2 Go", "1002:1681", "gfx1035", "AMD Ryzen Z2 Go", "gfx1035-680m"),
        ("AMD", "AMD Radeon Graphics", "1002:150e", None, "AMD Ryzen Z2 Extreme", "gfx1150-890m"),
        ("AMD", "AMD Ryzen Z2 A", None, None, "AMD Ryzen Z2 A", "gfx1033"),
        ("AMD", "AMD Radeon 8065S Graphics", "1002:1586", None, "", "gfx1151-8060s"),
        ("Intel", "Intel Graphics", "8086:b081", "xe3-lpg", "", "xe3-b370"),
        ("Intel", "Intel Graphics", "8086:b086", "xe3-lpg", "", "xe3-b390"),
        ("Intel", "Intel Arc B390 GPU", "8086:b082", "xe3-lpg", "", "xe3-b390"),
        ("NVIDIA", "NVIDIA GB10", "10de:2e12", "sm_121", "", "gb10"),
        ("NVIDIA", "NVIDIA RTX Spark N1X (6144-core Blackwell RTX GPU)", None, "sm_121", "", "n1x"),
        ("NVIDIA", "NVIDIA RTX Spark N1X (5120-core Blackwell RTX GPU)", None, "sm_121", "", "n1x-40"),
        ("NVIDIA", "NVIDIA N1X", "10de:2e06", "sm_121", "", "n1x-40"),
        ("Qualcomm", "Qualcomm Adreno X1-85 GPU", None, None, "Snapdragon(R) X Plus - X1P64100", "adreno-x1-85"),
        ("Qualcomm", "Qualcomm Adreno GPU", None, None, "Snapdragon(R) X Plus - X1P64100", "adreno-x1-85"),
    ],
)
def test_integrated_gpus_by_the_names_that_systems_report(vendor, name, pci, arch, cpu, chip):
    found = Device("0000:00:02.0", "igpu", vendor, name, "usable", Memory(), pci_id=pci, arch=arch)
    assert gpu_of(found, cpu).id == chip


@pytest.mark.parametrize(
    ("vendor", "name", "pci", "arch", "chip"),
    [
        ("AMD", "AMD Radeon RX 6650 XT", "1002:73ef", "gfx1032", "rx6600xt"),
        ("AMD", "AMD Radeon RX 6700S", "1002:73ef", "gfx1032", "rx6600m"),
        ("Intel", "Intel Graphics", "8086:e222", "xe2-hpg", "b65"),
        ("NVIDIA", "NVIDIA RTX PRO 5000 Blackwell", None, "sm_120", "rtxpro5000"),
        ("NVIDIA", "NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU", None, "sm_120", "rtx5090m"),
        ("NVIDIA", "NVIDIA RTX PRO 3000 Blackwell Generation Laptop GPU", None, "sm_120", "rtx5070tim"),
        ("NVIDIA", "NVIDIA RTX PRO 2000 Blackwell Generation Laptop GPU", None, "sm_120", "rtx5060m"),
        ("NVIDIA", "NVIDIA A10", None, "sm_86", "a10g"),
        ("NVIDIA", "NVIDIA H100 80GB HBM3", None, "sm_90", "h100-sxm"),
        ("NVIDIA", "NVIDIA H100 PCIe", None, "sm_90", "h100"),
        ("NVIDIA", "NVIDIA A100-SXM4-40GB", None, "sm_80", "a100-40"),
        ("NVIDIA", "NVIDIA RTX A5000 Laptop GPU", None, "sm_86", "rtx3080m"),
        ("NVIDIA", "NVIDIA RTX A4000 Laptop GPU", None, "sm_86", "rtxa4000-m"),
        ("NVIDIA", "NVIDIA RTX A2000 8GB Laptop GPU", None, "sm_86", "rtxa2000-m"),
        ("NVIDIA", "NVIDIA RTX 1000 Ada Generation Laptop GPU", "10de:28b9", "sm_89", "rtx4050m"),
        ("NVIDIA", "NVIDIA RTX 2000 Ada Generation Laptop GPU", "10de:28b8", "sm_89", "rtx2000ada-m"),
        # As in the PCI database, before its driver is installed.
        ("NVIDIA", "NVIDIA GeForce RTX 4060 Max-Q / Mobile", "10de:28e0", None, "rtx4060m"),
        ("NVIDIA", "NVIDIA GeForce RTX 3070 Mobile / Max-Q", "10de:249d", None, "rtx3070m"),
        ("NVIDIA", "NVIDIA GeForce RTX 5070 Ti Mobile", "10de:2f58", None, "rtx5070tim"),
    ],
)
def test_cards_by_the_names_that_systems_report(vendor, name, pci, arch, chip):
    found = Device("0000:01:00.0", "dgpu", vendor, name, "usable", Memory(), pci_id=pci, arch=arch)
    assert gpu_of(found, "AMD Ryzen 7 6800H").id == chip


def test_an_unknown_cpu_does_not_hide_the_published_bandwidth_of_a_gpu():
    machine = MACHINES["sp-hx370-pci"]
    cpu = replace(machine.device("cpu"), name="something new", memory=Memory(unified=True))
    spark = Device("000f:01:00.0", "igpu", "NVIDIA", "NVIDIA GB10", "usable", Memory(unified=True), arch="sm_121")
    found = with_chips(replace(machine, devices=(cpu, spark)))
    assert found.device("igpu").memory.bandwidth_gbs == 273
    assert found.device("cpu").memory.bandwidth_gbs is None


@pytest.mark.parametrize(
    ("cpu", "modules", "bits", "speed", "gbs"),
    [
        ("AMD Ryzen 9 7950X 16-Core Processor", 2, 64, 6000, 96.0),
        ("AMD Ryzen 9 7950X 16-Core Processor", 4, 64, 3600, 57.6),
        ("Intel(R) Core(TM) i5-9500 CPU @ 3.00GHz", 4, 64, 2666, 42.656),
        ("Intel(R) Core(TM) i9-10900X CPU @ 3.70GHz", 8, 64, 2933, 93.856),
        ("AMD Ryzen Threadripper 3970X 32-Core Processor", 8, 64, 3200, 102.4),
        ("AMD Ryzen Threadripper PRO 5975WX 32-Cores", 8, 64, 3200, 204.8),
        ("AMD EPYC 9274F 24-Core Processor", 12, 64, 4800, 460.8),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", 8, 32, 8000, 256.0),
        ("AMD RYZEN AI MAX+ PRO 495 w/ Radeon 8065S", 8, 32, 8533, 273.0),
        ("AMD Ryzen AI 9 HX 470 w/ Radeon 890M", 4, 32, 8533, 136.5),
    ],
)
def test_modules_that_share_a_channel_add_no_bandwidth(cpu, modules, bits, speed, gbs):
    facts = {"DATA_WIDTH": bits, "SIZE": 16 << 30, "SPEED_MTS": speed}
    lines = [f"E:MEMORY_DEVICE_{n}_{key}={value}" for n in range(modules) for key, value in facts.items()]
    files = {"/run/udev/data/+dmi:id": "\n".join(lines), "/proc/meminfo": "MemTotal: 64000000 kB\n"}
    memory = system_memory(RecordedHost({"system": "linux", "files": files}), cpu)
    assert memory.bandwidth_gbs == pytest.approx(gbs, rel=0.001)


def test_values_that_nvidia_smi_cannot_read_are_no_names():
    found = card("NVIDIA GeForce RTX 4060", state="present", pci="0000:01:00.0", driver_version="570.1")
    row = "00000000:01:00.0, [Unknown Error], [N/A], [GPU is lost], [N/A], [N/A]\n"
    host = RecordedHost({"commands": {" ".join(COMMAND): {"returncode": 0, "stdout": row}}})
    (after,) = with_nvidia_smi(host, (found,), SystemMemory())
    assert (after.name, after.arch, after.driver_version, after.memory) == (found.name, "sm_89", "570.1", Memory())


def test_nvidia_smi_does_not_hide_the_memory_that_an_integrated_gpu_shares():
    memory = Memory(64 << 30, 8 << 30, None, 45 << 30, unified=True)
    spark = Device("0000:01:00.0", "igpu", "NVIDIA", "NVIDIA N1X", "present", memory, pci="0000:01:00.0")
    row = "00000000:01:00.0, NVIDIA N1X, 8128, 5, 12.1, 616.00\n"
    host = RecordedHost({"commands": {" ".join(COMMAND): {"returncode": 0, "stdout": row}}})
    (found,) = with_nvidia_smi(host, (spark,), SystemMemory(total_bytes=56 << 30))
    assert found.arch == "sm_121"
    assert found.memory.budget_bytes == 53 << 30


def test_the_usual_link_of_a_laptops_card_is_that_of_a_laptop():
    card_of_laptop = replace(card("AMD Radeon RX 7600S"), vendor="AMD", arch=None, chip="rx7600s")
    assert link_gbs(card_of_laptop) == link_gbs(card("x", chip="rtx4060m")) < link_gbs(card("x", chip="rtx4060"))


def test_a_dgx_spark_is_known_by_all_its_parts():
    """Facts: hrw/arm-socs-table, issue 133; nvidia-smi reports no memory, and the first cores are slow ones."""
    cpus, folder, pci = range(20), "/sys/devices/system/cpu", "/sys/bus/pci/devices/000f:01:00.0"
    parts = {n: "0xd87" if n % 10 < 5 else "0xd85" for n in cpus}
    blocks = [
        f"processor\t: {n}\nFeatures\t: asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: {parts[n]}" for n in cpus
    ]
    files = {f"{folder}/cpu{n}/cpu_capacity": "718" if parts[n] == "0xd87" else "1024" for n in cpus}
    files |= {f"{folder}/cpu{n}/topology/thread_siblings_list": str(n) for n in cpus}
    files |= {
        f"{folder}/online": "0-19",
        "/proc/cpuinfo": "\n\n".join(blocks),
        "/proc/meminfo": "MemTotal: 125513984 kB",
    }
    files[f"{pci}/uevent"] = "DRIVER=nvidia\nPCI_CLASS=30000\nPCI_ID=10DE:2E12\nPCI_SLOT_NAME=000f:01:00.0"
    row = "0000000F:01:00.0, NVIDIA GB10, [N/A], [N/A], 12.1, 580.95.05\n"
    listed = {"name": "Vulkan0", "description": "NVIDIA GB10", "kind": "igpu", "device_id": "000f:01:00.0"}
    listed |= {"total_bytes": 119 << 30, "free_bytes": 112 << 30}
    recording = {
        "system": "linux",
        "files": files,
        "api": {"machine": "aarch64", "affinity": list(cpus)},
        "access": {"/dev/nvidiactl": "ok"},
        "commands": {" ".join(COMMAND): {"returncode": 0, "stdout": row}},
        "backends": [{"backend": "vulkan", "library": "x.so", "state": "usable", "devices": [listed]}],
    }
    machine = recorded_report(RecordedHost(recording))
    cpu, spark = machine.device("cpu"), machine.device("igpu")
    assert (cpu.chip, cpu.cores.threads, cpu.memory.bandwidth_gbs) == ("gb10-cpu", 10, 273)
    assert (spark.state, spark.arch, spark.chip, spark.memory.bandwidth_gbs) == ("usable", "sm_121", "gb10", 273)
    assert spark.memory.budget_bytes == 125513984 * 1024
