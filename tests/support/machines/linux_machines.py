# ruff: noqa: C901, PLR0912, PLR0915 - one branch for each quirk of a recorded machine
"""Recorded Linux machines, including WSL."""

import re
from typing import Any

from tests.support.machines.machine_cpus import CPUS, ZEN5
from tests.support.machines.machine_layout import GIB, Layout, logged_backends

GPU_AT = {"1002": "0000:c3:00.0", "8086": "0000:00:02.0", "10de": "0000:01:00.0"}


def linux(entry: dict[str, Any]) -> dict[str, Any]:
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
    out.document["backends"] = logged_backends(entry)
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
        for function in range(1, 8):  # Panther Lake also lists its virtual functions
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


def wsl(entry: dict[str, Any]) -> dict[str, Any]:
    recording = linux(entry)
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
