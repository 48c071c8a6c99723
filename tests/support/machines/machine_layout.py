"""Lays out the files of a recorded machine like its operating system."""

import re
from typing import Any

GIB = 1 << 30
PERFORMANCE_THREADS = {"Ultra 7 165H": 12, "Ultra 7 155H": 12, "i9-14900HX": 16, "Ultra 9 275HX": 8}


class Layout:
    """Builder of a recording."""

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
        doubled = threads - cores  # cores with two threads come first, as on hybrid Intel CPUs
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


def logged_backends(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Backend reports in the child's output format, from the log lines of the source."""
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
