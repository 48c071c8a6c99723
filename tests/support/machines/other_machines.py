"""Recorded Windows and macOS machines."""

import re
from typing import Any

from tests.support.machines.machine_cpus import CPUS
from tests.support.machines.machine_layout import GIB, Layout, logged_backends

CLASS_KEY = r"SYSTEM\CurrentControlSet\Control\Class"
ENUM_KEY = r"SYSTEM\CurrentControlSet\Enum"


def windows(entry: dict[str, Any]) -> dict[str, Any]:
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
    out.document["backends"] = logged_backends(entry)
    return out.document


def macos(entry: dict[str, Any]) -> dict[str, Any]:
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
