# ruff: noqa: C901, PLR0912, PLR0915 - one branch for each quirk of a recorded machine
"""Recordings of the machines in tests/data/machines/machines.json: files laid out as each system shows them.

The JSON holds values seen on real machines; this lays them out as sysfs, procfs, registry and sysctl do, so
that the probes that read a live machine read these. Where a machine's source does not tell a value the probes
need (core count of a named CPU, say), the product's published value is used.
"""

import json
import re
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "data" / "machines" / "machines.json"
GIB = 1 << 30
CLASS_KEY = r"SYSTEM\CurrentControlSet\Control\Class"
ENUM_KEY = r"SYSTEM\CurrentControlSet\Enum"
ZEN5 = (
    "avx avx2 fma f16c bmi2 sse4_2 avx_vnni avx512f avx512cd avx512bw avx512dq avx512vl avx512vbmi "
    "avx512_vnni avx512_bf16"
)
ZEN4 = ZEN5.replace("avx_vnni ", "")
INTEL_HYBRID = "sse4_2 avx avx2 fma f16c bmi2 avx_vnni"
HALO = ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", 16, 32, ZEN5)
# id prefix: CPU name, cores, threads, flags. Published values of the products named in the sources.
CPUS: dict[str, tuple[str, int, int, str]] = {
    "sh-": HALO,
    "sp-": ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 12, 24, ZEN5),
    "krk-": ("AMD Ryzen AI 7 350 w/ Radeon 860M", 8, 16, ZEN5),
    "phx-": ("AMD Ryzen 5 8600G w/ Radeon 760M Graphics", 6, 12, ZEN4),
    "hawk-": ("AMD Ryzen 7 260 w/ Radeon 780M Graphics", 8, 16, ZEN4),
    "mtl-155h": ("Intel(R) Core(TM) Ultra 7 155H", 16, 22, INTEL_HYBRID),
    "arl-275hx": ("Intel(R) Core(TM) Ultra 9 275HX", 24, 24, INTEL_HYBRID),
    "arl-h-win": ("Intel(R) Core(TM) Ultra 9 285H", 16, 16, INTEL_HYBRID),
    "ptl-": ("Intel(R) Core(TM) Ultra 5 325", 8, 8, INTEL_HYBRID),
    "vm-llvmpipe": ("AMD EPYC", 4, 4, ZEN4),
    "container-": ("AMD EPYC 9654 96-Core Processor", 96, 192, ZEN4),
    "simpledrm-": ("AMD Ryzen 9 7950X 16-Core Processor", 16, 32, ZEN4),
}
PERFORMANCE_THREADS = {"Ultra 7 165H": 12, "Ultra 7 155H": 12, "i9-14900HX": 16, "Ultra 9 275HX": 8}
GPU_AT = {"1002": "0000:c3:00.0", "8086": "0000:00:02.0", "10de": "0000:01:00.0"}
IOMMU_OFF = "amd_iommu=off"


class Layout:
    """A recording being written."""

    def __init__(self, system: str) -> None:
        self.document: dict[str, Any] = {"format": "tessera-machine/1", "system": system}
        for section in ("files", "links", "access", "commands", "registry", "sysctl", "env", "api"):
            self.document[section] = {}

    def file(self, path: str, content: object) -> None:
        self.document["files"][path] = f"{content}\n"

    def api(self, name: str, value: object) -> None:
        self.document["api"][name] = value

    def cpu(self, name: str, cores: int, threads: int, flags: str) -> None:
        block = "".join(
            f"processor\t: {n}\nvendor_id\t: {'GenuineIntel' if 'Intel' in name else 'AuthenticAMD'}\n"
            f"model name\t: {name}\nflags\t\t: fpu {flags}\n\n"
            for n in range(threads)
        )
        self.document["files"]["/proc/cpuinfo"] = block
        self.api("machine", "x86_64")
        self.api("affinity", list(range(threads)))
        doubled = threads - cores  # cores with two threads come first, as on hybrid Intel
        for cpu in range(threads):
            first = cpu // 2 * 2 if cpu < 2 * doubled else cpu
            siblings = f"{first}-{first + 1}" if cpu < 2 * doubled else str(cpu)
            base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
            self.file(f"{base}/thread_siblings_list", siblings)
            self.file(f"{base}/physical_package_id", 0)
        self.file("/sys/devices/system/cpu/online", f"0-{threads - 1}")
        fast = next((n for key, n in PERFORMANCE_THREADS.items() if key in name), threads)
        if fast < threads:
            self.file("/sys/devices/cpu_core/cpus", f"0-{fast - 1}")
            self.file("/sys/devices/cpu_atom/cpus", f"{fast}-{threads - 1}")

    def meminfo(self, total_kb: int, available_kb: int | None = None) -> None:
        free = available_kb if available_kb is not None else total_kb * 9 // 10
        self.file("/proc/meminfo", f"MemTotal: {total_kb} kB\nMemFree: {free // 2} kB\nMemAvailable: {free} kB")

    def dmi_memory(self, count: int, width: int, size_gb: int, speed: int) -> None:
        lines = [
            f"E:MEMORY_DEVICE_{n}_{key}={value}"
            for n in range(count)
            for key, value in (("DATA_WIDTH", width), ("SIZE", size_gb * GIB), ("SPEED_MTS", speed))
        ]
        self.file("/run/udev/data/+dmi:id", "\n".join(lines))

    def pci(self, address: str, class_code: str, pci_id: str, driver: str | None, revision: str = "0x00") -> str:
        base = f"/sys/bus/pci/devices/{address}"
        event = [
            f"PCI_CLASS={class_code.lstrip('0')}",
            f"PCI_ID={pci_id.upper()}",
            f"PCI_SLOT_NAME={address}",
        ]
        if driver:
            event.insert(0, f"DRIVER={driver}")
            self.document["links"][f"{base}/driver"] = f"../../../bus/pci/drivers/{driver}"
            self.file(f"/sys/module/{driver}/initstate", "live")
        self.file(f"{base}/uevent", "\n".join(event))
        self.file(f"{base}/revision", revision)
        self.file(f"{base}/power/runtime_status", "active")
        return base

    def drm(self, address: str, number: int) -> None:
        base = f"/sys/bus/pci/devices/{address}/drm"
        for name in (f"card{number}", f"renderD{128 + number}"):
            self.file(f"{base}/{name}/dev", "226:0")
            self.document["access"][f"/dev/dri/{name}"] = "ok"
        self.document["links"][f"/sys/class/drm/card{number}/device"] = f"../../../{address}"


def _mib(line: str) -> list[int]:
    return [int(found) << 20 for found in re.findall(r"(\d+) MiB", line)]


def _logged_backends(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Backend reports as the child would have printed them, from the log lines of the source."""
    lines = [
        line
        for key, value in entry.items()
        if key.startswith("log") and key != "log_missing_dll"
        for line in ([value] if isinstance(value, str) else value)
    ]
    reports = []
    for line in lines:
        listed = re.search(r"(ROCm|Vulkan)(\d) ?: (.*?) \((\d+) MiB, (\d+) MiB free\)", line)
        if listed:
            total, free = _mib(line)[-2:]
            device = {"name": f"{listed[1]}{listed[2]}", "description": listed[3], "kind": "igpu"}
            device |= {"total_bytes": total, "free_bytes": free, "device_id": None}
            reports.append(
                {
                    "backend": listed[1].lower(),
                    "library": f"libggml-{'hip' if listed[1] == 'ROCm' else 'vulkan'}.so",
                    "state": "usable",
                    "devices": [device],
                }
            )
    if "log_missing_dll" in entry and not reports:
        reports.append({"backend": "rocm", "library": "ggml-hip.dll", "state": "no_device"})
    return reports


def _linux(entry: dict[str, Any]) -> dict[str, Any]:
    name = entry["id"]
    out = Layout("linux")
    gpu, npu = entry.get("gpu", {}), entry.get("npu", {})
    cpu = entry.get("cpu")
    default = next((value for prefix, value in CPUS.items() if name.startswith(prefix)), None)
    if isinstance(cpu, dict) and "cores" in cpu:
        flags = " ".join(cpu["isa"]) + (" hypervisor" if "hypervisor" in cpu else "") if "isa" in cpu else ZEN5
        extra = " fma f16c bmi2" if "isa" in cpu and "avx2" in cpu["isa"] else ""
        out.cpu(cpu["model"], cpu["cores"], cpu["threads"], flags + extra + " sse4_2")
    elif default:
        out.cpu(*default)
    out.api("kernel", entry.get("kernel", "6.19.8"))
    out.file("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz root=UUID=0000 {entry.get('cmdline', 'quiet')}")
    if "dmi" in entry:
        out.file("/sys/class/dmi/id/product_name", entry["dmi"]["product"])
        out.file("/sys/class/dmi/id/sys_vendor", entry["dmi"].get("vendor", ""))
    vram, gtt = gpu.get("mem_info_vram_total"), gpu.get("mem_info_gtt_total")
    if name == "sh-framework-desktop-linux":
        out.dmi_memory(8, 32, 16, 8000)
    if name == "sp-proart-px13-dmi":
        out.dmi_memory(4, 32, 8, 7500)
    if "bios_vram_mib" in entry:
        vram = entry["bios_vram_mib"] << 20
    if name.startswith("sh-") and vram is None:
        vram = (64 if "carveout64" in name else 0.5) * GIB
    pages = re.search(r"pages_limit=(\d+)", entry.get("cmdline", ""))
    if name == "sh-linux-carveout64":
        gtt = int(re.search(r"(\d+)M of GTT", entry["dmesg"])[1]) << 20
    if gtt is None and pages:
        gtt = int(pages[1]) * 4096
    installed = 128 * GIB if name.startswith("sh-") else 32 * GIB
    total_kb = entry.get("MemTotal_kB") or (installed - int(vram or 0) - GIB) // 1024
    out.meminfo(total_kb, entry.get("MemAvailable_kB"))
    if name == "container-capped":
        out.file("/proc/self/cgroup", "0::/")
        out.file("/sys/fs/cgroup/memory.max", entry["real_limit_gb"] * 10**9)
        out.file("/sys/fs/cgroup/memory.current", 40 * 10**9)
        out.file("/sys/fs/cgroup/memory.stat", f"anon 1000\ninactive_file {30 * 10**9}")
        out.document["access"]["/.dockerenv"] = "ok"
    if name == "vm-firecracker":
        out.file("/proc/self/cgroup", "4:memory:/\n0::/")
        out.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    _linux_pci(entry, out, gpu, npu, vram, gtt)
    for path in entry.get("dev", []):
        out.document["access"][path] = "ok"
    out.document["backends"] = _logged_backends(entry)
    return out.document


def _linux_pci(
    entry: dict[str, Any],
    out: Layout,
    gpu: dict[str, Any],
    npu: dict[str, Any],
    vram: float | None,
    gtt: int | None,
) -> None:
    name = entry["id"]
    drivers = {"8086:7d1d": "intel_vpu", "10de": "nvidia", "8086": "i915"}
    for number, (address, what) in enumerate(entry.get("pci", {}).items()):
        class_code, pci_id = what.split()
        class_code = class_code.ljust(6, "0")
        driver = None
        if class_code.startswith("03") or pci_id in drivers:
            driver = drivers.get(pci_id) or drivers.get(pci_id[:4])
        base = out.pci(address, class_code, pci_id, driver)
        if class_code.startswith("03"):
            out.drm(address, number)
        elif pci_id in drivers:
            out.file(f"{base}/accel/accel0/dev", "261:0")
            out.document["access"]["/dev/accel/accel0"] = "ok"
    halo = name.startswith("sh-") and entry["os"] == "linux"
    pci_id = gpu.get("pci") or ("1002:1586" if halo else None)
    if pci_id:
        address = gpu.get("bdf", "0000:c5:00.0" if "driver-failed" in name else GPU_AT[pci_id[:4]])
        driver = None if "driver-failed" in name else "amdgpu"
        base = out.pci(address, "038000", pci_id, driver, gpu.get("rev", "0xc1"))
        if driver:
            out.drm(address, 1)
            out.file(f"{base}/hwmon/hwmon4/in1_input", 788)
            if vram is not None:
                out.file(f"{base}/mem_info_vram_total", int(vram))
                out.file(f"{base}/mem_info_vram_used", 128 << 20)
            if gtt is not None:
                out.file(f"{base}/mem_info_gtt_total", gtt)
                out.file(f"{base}/mem_info_gtt_used", 64 << 20)
            out.document["access"]["/dev/kfd"] = "ok"
            bus = int(address[5:7], 16)
            arch = {"1002:1586": 110501, "1002:150e": 110500, "1002:1114": 110502}.get(pci_id)
            if arch:
                node = "/sys/class/kfd/kfd/topology/nodes/1/properties"
                out.file(
                    node,
                    f"cpu_cores_count 0\nsimd_count 80\nlocation_id {bus << 8}\ngfx_target_version {arch}",
                )
        else:
            out.file("/sys/module/amdgpu/initstate", "live")
    if name == "sh-linux-egpu-rdna4":
        out.pci("0000:04:00.0", "030000", "1002:7550", "amdgpu")
        out.drm("0000:04:00.0", 0)
        out.file("/sys/bus/pci/devices/0000:04:00.0/mem_info_vram_total", 16 * GIB)
    _linux_npu(entry, out, npu)
    if name == "simpledrm-card0":
        out.document["links"]["/sys/class/drm/card0/device"] = "../../../simple-framebuffer.0"
        out.pci("0000:01:00.0", "030000", "10de:2237", "nvidia")
        out.drm("0000:01:00.0", 1)
        out.file("/sys/class/drm/card1/device/vendor", "0x10de")
        out.file("/sys/class/drm/card1/device/device", "0x2237")
    if "nvidia" in entry:
        mib = entry["nvidia"]["vram"] >> 20
        query = "pci.bus_id,name,memory.total,memory.used,compute_cap,driver_version"
        row = f"00000000:01:00.0, NVIDIA GeForce RTX 4060, {mib}, 5, {entry['nvidia']['compute_capability']}, 570.1"
        out.document["commands"][f"nvidia-smi --query-gpu={query} --format=csv,noheader,nounits"] = {
            "returncode": 0,
            "stdout": row + "\n",
        }


def _linux_npu(entry: dict[str, Any], out: Layout, npu: dict[str, Any]) -> None:
    event = dict(line.split("=") for line in entry.get("npu_uevent", []))
    if event:
        out.pci(event["PCI_SLOT_NAME"], event["PCI_CLASS"], event["PCI_ID"].lower(), None)
        out.pci("0000:00:02.0", "030000", "8086:b080", "xe")
        out.drm("0000:00:02.0", 0)
        for function in range(1, 8):  # Panther Lake lists its virtual functions too
            out.pci(f"0000:00:02.{function}", "030000", "8086:b080", "xe")
    if not npu or "pci" not in npu:
        return
    amd = npu["pci"].startswith("1022")
    address = npu.get("bdf", "0000:c5:00.1" if amd else "0000:00:0b.0")
    known = npu.get("driver") or ("amdxdna" if "dmesg" in entry or "vbnv" in npu else None)
    base = out.pci(address, "118000" if amd else "120000", npu["pci"], known, npu.get("rev", "0x00"))
    if known:
        out.file(f"{base}/accel/accel0/dev", "261:0")
        out.document["access"]["/dev/accel/accel0"] = "ok"
    if "fw_version" in npu:
        out.file(f"{base}/fw_version", npu["fw_version"])


def _windows(entry: dict[str, Any]) -> dict[str, Any]:
    name = entry["id"]
    out = Layout("windows")
    gpu, npu = entry.get("gpu", {}), entry.get("npu", {})
    cpu = next(
        (value for prefix, value in CPUS.items() if name.startswith(prefix)),
        ("Snapdragon X2 Elite", 12, 12, ""),
    )
    total = 32 * GIB - gpu.get("dedicated", 0)
    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    arm = name.startswith("x2")
    vendor = "Qualcomm Technologies Inc" if arm else "GenuineIntel" if "Intel" in cpu[0] else "AuthenticAMD"
    out.document["registry"][key] = {"ProcessorNameString": cpu[0] + "   ", "VendorIdentifier": vendor}
    out.api("machine", "arm64" if arm else "x86_64")
    out.api("windows_version", "10.0.26100")
    out.api("processor_features", [43, 46, 47, 66, 68] if arm else [38, 39, 40])
    out.api("logical_processors", [{"efficiency": 0, "logical": cpu[2] // cpu[1]}] * cpu[1])
    out.api("memory_status", {"total": total, "available": total // 2, "installed": 32 * GIB})
    ids = {
        "sh-": (0x1002, 0x1586),
        "arl-h": (0x8086, 0x7D51),
        "hawk": (0x1002, 0x1900),
        "x2": (0x4D4F4351, 0x36334330),
    }
    vendor_id, device_id = next(value for prefix, value in ids.items() if name.startswith(prefix))
    adapter = {"description": gpu.get("name", "Graphics"), "vendor_id": vendor_id, "device_id": device_id}
    adapter |= {
        "dedicated": gpu.get("dedicated", 128 << 20),
        "shared": gpu.get("shared", total // 2),
        "flags": 0,
    }
    software = {
        "description": "Microsoft Basic Render Driver",
        "vendor_id": 0x1414,
        "device_id": 0x8C,
        "flags": 2,
    }
    out.api("dxgi_adapters", [adapter | {"luid": "00000000:0000c0de"}, software | {"dedicated": 0, "shared": 1}])
    pnp = []
    if not arm:
        instance = rf"PCI\VEN_{vendor_id:04X}&DEV_{device_id:04X}&SUBSYS_00000000&REV_C1\4&1&0&0041"
        pnp.append(instance)
        out.document["registry"][f"{ENUM_KEY}\\{instance}"] = {
            "ClassGUID": "{4d36e968-e325-11ce-bfc1-08002be10318}",
            "LocationInformation": "@System32\\drivers\\pci.sys,#65536;PCI-Bus %1, Gerät %2;(197,0,0)",
        }
        out.document["registry"][rf"{CLASS_KEY}\{{4d36e968-e325-11ce-bfc1-08002be10318}}\0000"] = {
            "MatchingDeviceId": rf"PCI\VEN_{vendor_id:04X}&DEV_{device_id:04X}",
            "DriverVersion": gpu.get("driver", "32.0.1"),
        }
    npu_instance = npu.get("pnp") or (r"PCI\VEN_QCOM&DEV_0C40" if arm else None)
    if npu_instance:
        pnp.append(npu_instance + r"&SUBSYS_1\3&11&0")
        version = npu.get("driver") or entry.get("npu_driver")
        out.document["registry"][f"{ENUM_KEY}\\{pnp[-1]}"] = {"Driver": r"{f01a9d53}\0000", "Service": "npu"}
        out.document["registry"][rf"{CLASS_KEY}\{{f01a9d53}}\0000"] = {"DriverVersion": version}
    out.api("present_pnp_ids", pnp)
    out.document["backends"] = _logged_backends(entry)
    return out.document


def _macos(entry: dict[str, Any]) -> dict[str, Any]:
    out = Layout("macos")
    chip = {"m5-max": "Apple M5 Max", "m4-no-devices": "Apple M4"}.get(entry["id"], "")
    out.document["sysctl"] = {"machdep.cpu.brand_string": chip, "hw.memsize": 48 * GIB, "hw.pagesize": 16384}
    if entry["id"] == "m4-no-devices":
        out.document["sysctl"] |= {
            "hw.memsize": 16 * GIB,
            "hw.perflevel0.physicalcpu": 4,
            "hw.perflevel1.physicalcpu": 6,
        }
    out.document["sysctl"] |= {"vm.page_free_count": 200_000, "vm.page_purgeable_count": 20_000}
    out.document["sysctl"] |= {"hw.optional.arm64": 1, **entry.get("sysctl", {})}
    out.api("machine", "arm64")
    out.api("kernel", "25.0.0")
    size = next((re.search(r"([\d.]+) MB", line) for line in entry.get("log", []) if "WorkingSet" in line), None)
    if size:
        total = int(float(size[1]) * 1e6)
        device = {
            "name": "MTL0",
            "description": chip,
            "kind": "gpu",
            "total_bytes": total,
            "free_bytes": total,
        }
        report = {
            "backend": "metal",
            "library": "libggml-metal.dylib",
            "state": "usable",
            "devices": [device],
        }
        out.document["backends"] = [report]
    elif entry["id"] == "m4-no-devices":
        out.document["backends"] = [{"backend": "metal", "library": "libggml-metal.dylib", "state": "no_device"}]
    return out.document


def _wsl(entry: dict[str, Any]) -> dict[str, Any]:
    recording = _linux(entry)
    recording["api"]["kernel"] = "6.6.87.2-microsoft-standard-WSL2"
    recording["files"]["/proc/sys/kernel/osrelease"] = "6.6.87.2-microsoft-standard-WSL2\n"
    if "features" in entry:
        recording["api"]["machine"] = "arm64"
        recording["files"]["/proc/cpuinfo"] = "".join(
            f"processor\t: {n}\nFeatures\t: {entry['features']}\nCPU implementer\t: {entry['implementer']}\n"
            f"CPU part\t: {entry['part']}\n\n"
            for n in range(8)
        )
    return recording


def machines() -> dict[str, dict[str, Any]]:
    """Recording of every machine in machines.json, by id."""
    build = {"linux": _linux, "windows": _windows, "macos": _macos, "wsl2": _wsl}
    entries = json.loads(SOURCE.read_text(encoding="utf-8"))["machines"]
    return {
        entry["id"]: build[entry["os"].removesuffix("-vm").removesuffix("-container")](entry) for entry in entries
    }
