"""GPUs of a Linux machine from sysfs: memory pools, driver, permission, whether they share the CPU's RAM."""

import re

from devices import types
from devices.chips import GPU_CORES, LINK
from devices.distribution import amd_firmware, distribution, is_container, nvidia_driver, set_kernel_parameters
from devices.host import Host, fields, number, read_number, text
from devices.probes import fix_hints, gpu_ids
from devices.probes.pci import ADDRESS, BUS, PciFunction
from devices.types import Device, Evidence, Memory, State, SystemMemory

DRM = "/sys/class/drm"
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
# GPUs of ARM systems-on-chip are not on a PCI bus. Source: the kernel's drivers/gpu/drm, driver names.
SOC_DRIVERS = {
    "msm_dpu": "Qualcomm",
    "msm": "Qualcomm",
    "adreno": "Qualcomm",
    "asahi": "Apple",
    "panfrost": "Arm",
}
SOC_DRIVERS |= {"panthor": "Arm", "lima": "Arm", "v3d": "Broadcom"}
# The kernel modules of a vendor's GPUs, newest first.
DRIVER_MODULES = {"AMD": ("amdgpu",), "Intel": ("xe", "i915"), "NVIDIA": ("nvidia",)}
# Kernel parameters with lists of modules that are not loaded. Source: man pages of modprobe.d and dracut.
BLACKLISTS = frozenset({"modprobe.blacklist", "module_blacklist", "rd.driver.blacklist"})
# Memory always left to the rest of the system, although drivers report all of the GTT as free.
RESERVE_FRAC = 0.1
MIN_RESERVE_BYTES = 2 << 30
# GB/s per lane and GT/s: 8b/10b coding up to 5 GT/s, then 128b/130b. Source: PCI Express.
SLOW_LANE_GBS, LANE_GBS, SLOW_GTS, MOST_LANES = 0.1, 0.123, 5.0, 32
# Bandwidth of a card behind Thunderbolt 3 or USB4; the bridges' own registers report 1 GB/s with any cable.
# Source: Intel's Thunderbolt 3 technology brief, 22 Gbit/s of PCI Express.
EXTERNAL_LINK_GBS = 2.7


def linux_gpus(host: Host, functions: tuple[PciFunction, ...], ram: SystemMemory, cpu_name: str) -> list[Device]:
    """Every GPU of the machine, usable or not, as one Device each."""
    kfd = kfd_nodes(host)
    displays = [f for f in functions if f.base_class == 0x03 and f.vendor not in gpu_ids.NOT_FOR_COMPUTE]
    gpus = [_pci_gpu(host, f, kfd, ram, cpu_name) for f in displays]
    gpus += _cards_without_pci(host, {f.address for f in functions}, ram)
    if not displays and host.access("/dev/dxg") == "ok":
        gpus.append(_wsl_gpu(ram, cpu_name))
    return gpus


def kfd_nodes(host: Host) -> dict[str, dict[str, int]]:
    """PCI address → properties of AMD's compute topology; CPU-only nodes have no address."""
    nodes: dict[str, dict[str, int]] = {}
    for node in host.listdir(KFD_NODES):
        raw = fields(text(host, f"{KFD_NODES}/{node}/properties"), " ")
        properties = {key: value for key, item in raw.items() if (value := number(item)) is not None}
        location = properties.get("location_id")
        if location is None or not properties.get("simd_count"):
            continue
        domain = properties.get("domain", 0)
        address = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        nodes[address] = properties
    return nodes


def _integrated(
    host: Host, f: PciFunction, chip: gpu_ids.GpuId | None, kfd: dict[str, int]
) -> tuple[bool, Evidence]:
    """Whether the GPU shares the CPU's memory: by id, by sensor, by bus; never by memory size or name."""
    if chip is not None:
        return chip.integrated, Evidence("PCI id table", f.pci_id, chip.name)
    if f.vendor == 0x8086:
        slot = f.address.endswith(":00:02.0")
        return slot, Evidence(f.path, "address", f.address, 0.9)
    if f.vendor in {0x1002, 0x1022}:
        target = gpu_ids.gfx_name(kfd.get("gfx_target_version", 0))
        if target in gpu_ids.INTEGRATED_TARGETS:
            return True, Evidence(KFD_NODES, "gfx_target_version", str(target), 0.9)
        if kfd.get("cpu_cores_count"):
            return True, Evidence(KFD_NODES, "cpu_cores_count", str(kfd["cpu_cores_count"]), 0.9)
        for monitor in host.listdir(f"{f.path}/hwmon"):
            if host.read(f"{f.path}/hwmon/{monitor}/in1_input") is not None:
                return True, Evidence(f"{f.path}/hwmon/{monitor}/in1_input", "vddnb", "present", 0.9)
        return False, Evidence(f.path, "vddnb sensor", "absent", 0.6)
    return False, Evidence(f.path, "vendor", f"{f.vendor:04x}", 0.8)


def _pci_gpu(
    host: Host, f: PciFunction, kfd: dict[str, dict[str, int]], ram: SystemMemory, cpu_name: str
) -> Device:
    chip = gpu_ids.gpu_id(f.vendor, f.device)
    node = kfd.get(f.address, {})
    integrated, why = _integrated(host, f, chip, node)
    vendor = gpu_ids.VENDORS.get(f.vendor, f"vendor {f.vendor:04x}")
    cards = list(host.listdir(f"{f.path}/drm"))
    state, reason, hint = _state(host, f, vendor, cards)
    name, is_of_id = _name(host, f, vendor, chip, cpu_name if integrated else "")
    return Device(
        id=f.address,
        kind="igpu" if integrated else "dgpu",
        vendor=vendor,
        name=gpu_ids.plain_name(name),
        state=state,
        memory=_memory(host, f, ram, cards, integrated=integrated),
        pci=f.address,
        pci_id=f.pci_id,
        arch=gpu_ids.gfx_name(node.get("gfx_target_version", 0)) or (chip.arch if chip else None),
        driver=f.driver,
        driver_version=text(host, f"/sys/module/{f.driver}/version") or None if f.driver else None,
        asleep=f.asleep,
        reason=reason,
        fix_hint=hint,
        evidence=(
            Evidence(f"{f.path}/uevent", "PCI_ID", f.pci_id),
            why,
            *([Evidence("PCI ids", gpu_ids.NAME_OF_ID, name, 0.7)] if is_of_id else []),
            *_units(node),
            *([] if integrated else _link(host, f)),
        ),
    )


def _units(kfd: dict[str, int]) -> list[Evidence]:
    """The number of AMD's compute units. Source: the kernel's kfd_topology, which counts their SIMDs."""
    simds, per_unit = kfd.get("simd_count", 0), kfd.get("simd_per_cu", 0)
    return [Evidence(KFD_NODES, GPU_CORES, str(simds // per_unit))] if simds and per_unit else []


def _link(host: Host, f: PciFunction) -> list[Evidence]:
    """The slowest link between a card and the CPU: some cards contain a switch after the slot."""
    chain = ADDRESS.findall(host.readlink(f.path) or "")
    if any(text(host, f"{BUS}/{address}/removable") == "removable" for address in chain):
        return [Evidence(f"{f.path}/removable", LINK, str(EXTERNAL_LINK_GBS), 0.7)]
    speeds = [] if f.asleep else [gbs for address in chain if (gbs := _lanes_gbs(host, f"{BUS}/{address}"))]
    return [Evidence(f"{f.path}/current_link_width", LINK, f"{min(speeds):.1f}", 0.8)] if speeds else []


def _lanes_gbs(host: Host, path: str) -> float | None:
    """GB/s of one link at its full speed; its current speed is lower while nothing uses it."""
    lanes, speed = read_number(host, f"{path}/current_link_width"), text(host, f"{path}/max_link_speed")
    gts = re.match(r"(\d+(?:\.\d+)?) GT/s", speed or "")
    if gts is None or lanes is None or not 0 < lanes <= MOST_LANES:
        return None
    rate = float(gts[1])
    return lanes * rate * (SLOW_LANE_GBS if rate <= SLOW_GTS else LANE_GBS)


def _name(host: Host, f: PciFunction, vendor: str, chip: gpu_ids.GpuId | None, cpu_name: str) -> tuple[str, bool]:
    """The GPU's name, and whether it comes from its id only."""
    nvidia = fields(text(host, f"/proc/driver/nvidia/gpus/{f.address}/information"))
    product = nvidia.get("Model") or text(host, f"{f.path}/product_name")
    if product:
        return product, False
    part = re.search(r"w/ (Radeon.*)$", cpu_name)
    if part and vendor == "AMD":
        return f"AMD {part[1]}", False
    if chip is not None:
        return f"{vendor} {chip.name}", True
    listed = host.api(f"pci_name:{f.pci_id}")
    if isinstance(listed, str) and listed:
        return f"{vendor} {gpu_ids.product_name(listed)}", True
    return f"{vendor} GPU {f.pci_id}", True


def _state(host: Host, f: PciFunction, vendor: str, cards: list[str]) -> tuple[State, str, str | None]:
    if f.driver is None:
        return _without_driver(host, f, vendor)
    if f.driver == "vfio-pci":
        return "failed", types.SET_ASIDE_FOR_VM, fix_hints.vfio(f.address)
    if f.driver == "nvidia":
        if host.access("/dev/nvidiactl") == "absent" and is_container(host):
            return "failed", types.NOT_IN_CONTAINER, fix_hints.CONTAINER_NVIDIA
        if host.access("/dev/nvidiactl") == "denied":
            return "no_permission", "/dev/nvidiactl may not be opened", fix_hints.node("/dev/nvidiactl")
        return "present", types.NOT_TRIED, fix_hints.TRY
    render = next((name for name in cards if name.startswith("renderD")), None)
    if not cards:
        hint = fix_hints.firmware(f.driver, f.address, _firmware_command(host, f.driver))
        return "failed", f"{f.driver} is bound but offers no device node", hint
    node = f"/dev/dri/{render or cards[0]}"
    if host.access(node) == "absent" and is_container(host):
        return "failed", types.NOT_IN_CONTAINER, fix_hints.container_device("/dev/dri")
    group = fix_hints.container_group if is_container(host) else fix_hints.render_group
    if host.access(node) == "denied":
        return "no_permission", f"{node} may not be opened", group(node)
    if vendor == "AMD" and host.access("/dev/kfd") == "denied":
        return "present", "ROCm is out of reach: /dev/kfd may not be opened", group("/dev/kfd")
    return "present", types.NOT_TRIED, fix_hints.TRY


def _without_driver(host: Host, f: PciFunction, vendor: str) -> tuple[State, str, str]:
    modules = DRIVER_MODULES.get(vendor, ())
    blocking = _blocking_parameters(text(host, "/proc/cmdline").split(), modules)
    if blocking:
        change = fix_hints.kernel_parameters(set_kernel_parameters(host, remove=blocking))
        return "driver_missing", types.DRIVER_SWITCHED_OFF, change
    if is_container(host):
        return "driver_missing", types.NO_DRIVER_BOUND, fix_hints.OUTSIDE_CONTAINER
    loaded = next((module for module in modules if host.access(f"/sys/module/{module}") != "absent"), None)
    if loaded is not None and vendor != "NVIDIA":
        hint = fix_hints.firmware(loaded, f.address, _firmware_command(host, loaded))
        # Intel's drivers know the ids of coming GPUs, but use these only in a later kernel.
        hint = fix_hints.INTEL_DRIVER if vendor == "Intel" else hint
        return "failed", f"the {loaded} driver is loaded but refused this GPU", hint
    system = distribution(host)
    if vendor == "NVIDIA":
        return "driver_missing", types.NO_DRIVER_BOUND, nvidia_driver(system, f.pci_id)
    return "driver_missing", types.NO_DRIVER_BOUND, fix_hints.gpu_driver(vendor, amd_firmware(system))


def _blocking_parameters(words: list[str], modules: tuple[str, ...]) -> str:
    """The kernel parameters that keep these drivers from every GPU; NVIDIA's own ignores nomodeset."""
    words_off = [word for word in words if word == "nomodeset" and "nvidia" not in modules]
    for word in words:
        name, _, value = word.partition("=")
        is_list = name in BLACKLISTS and set(modules) & set(value.split(","))
        if is_list or (value == "0" and name in {f"{module}.modeset" for module in modules}):
            words_off.append(word)
    return " ".join(words_off)


def _firmware_command(host: Host, module: str) -> str:
    return amd_firmware(distribution(host)) if module == "amdgpu" and not is_container(host) else ""


def _memory(host: Host, f: PciFunction, ram: SystemMemory, cards: list[str], *, integrated: bool) -> Memory:
    def value(name: str) -> int | None:
        return read_number(host, f"{f.path}/{name}")

    vram, vram_used = value("mem_info_vram_total"), value("mem_info_vram_used")
    gtt, gtt_used = value("mem_info_gtt_total"), value("mem_info_gtt_used")
    if vram is None:
        card = next((name for name in cards if name.startswith("card")), "card0")
        vram = read_number(host, f"{f.path}/drm/{card}/lmem_total_bytes")
    if not integrated:
        free = None if vram is None or vram_used is None else max(0, vram - vram_used)
        return Memory(vram, vram, vram_used, None, None, free, unified=False)
    if gtt is None and f.driver in {"i915", "xe"}:
        gtt = ram.total_bytes  # Intel's drivers set no limit
    elif gtt is None and f.driver == "amdgpu" and ram.total_bytes is not None:
        gtt = ram.total_bytes // 2  # the kernel's default limit
    return unified_memory(ram, vram, vram_used, gtt, gtt_used)


def unified_memory(
    ram: SystemMemory, carve: int | None, carve_used: int | None, shared: int | None, shared_used: int | None
) -> Memory:
    """Memory of an integrated GPU: carve-out plus the part of system RAM it may map, clamped to what exists.

    The shared limit (GTT, DXGI) is system RAM and never added to it. Drivers may report more than exists
    (VRAM + GTT over RAM before kernel commit 5dafdd6), so it is clamped.
    """
    physical = physical_ram(ram, carve)
    if physical is not None:
        carve = None if carve is None else min(carve, physical)
        ceiling = physical - (carve or 0)
        shared = None if shared is None else min(shared, ceiling, ram.total_bytes or ceiling)
    available = None
    if ram.available_bytes is not None and (carve is not None or shared is not None):
        reserve = reserve_bytes(ram)
        carve_free = max(0, (carve or 0) - (carve_used or 0))
        shared_free = max(0, (shared or 0) - (shared_used or 0))
        available = carve_free + min(shared_free, max(0, ram.available_bytes - reserve))
        if ram.limit_bytes is not None:
            available = min(available, carve_free + ram.limit_bytes)
    return Memory(
        physical_bytes=physical,
        dedicated_bytes=carve,
        dedicated_used_bytes=None if carve is None or carve_used is None else min(carve_used, carve),
        shared_limit_bytes=shared,
        shared_used_bytes=None if shared is None or shared_used is None else min(shared_used, shared),
        available_bytes=available,
        unified=True,
        bandwidth_gbs=ram.bandwidth_gbs,
        bandwidth_source=ram.bandwidth_source,
    )


def physical_ram(ram: SystemMemory, carve: int | None = None) -> int | None:
    """Installed RAM: from DMI, else OS-visible RAM plus the carve-out."""
    if ram.installed_bytes is not None:
        return ram.installed_bytes
    return None if ram.total_bytes is None else ram.total_bytes + (carve or 0)


def reserve_bytes(ram: SystemMemory) -> int:
    """RAM that no model may take: the larger of 2 GiB and a tenth, but never more than a quarter."""
    total = ram.total_bytes or 0
    if ram.limit_bytes is not None:
        total = min(total, ram.limit_bytes)
    return min(max(MIN_RESERVE_BYTES, int(total * RESERVE_FRAC)), total // 4)


def _cards_without_pci(host: Host, addresses: set[str], ram: SystemMemory) -> list[Device]:
    """Cards of ARM systems-on-chip, and of PCI devices not on the bus list. simpledrm is not a GPU."""
    gpus: dict[str, Device] = {}
    for card in host.listdir(DRM):
        if not re.fullmatch(r"card[0-9]{1,3}", card, re.ASCII):
            continue
        base = f"{DRM}/{card}/device"
        link = host.readlink(base) or ""
        target = link.rpartition("/")[2]
        driver = (host.readlink(f"{base}/driver") or "").rpartition("/")[2]
        vendor, device = read_number(host, f"{base}/vendor"), read_number(host, f"{base}/device")
        if vendor is not None and device is not None:
            if target in addresses or vendor in gpu_ids.NOT_FOR_COMPUTE:
                continue
            chip = gpu_ids.gpu_id(vendor, device)
            name = gpu_ids.VENDORS.get(vendor, f"vendor {vendor:04x}")
            integrated = chip.integrated if chip else False
            gpus[target or card] = Device(
                id=target or card,
                kind="igpu" if integrated else "dgpu",
                vendor=name,
                name=f"{name} {chip.name}" if chip else f"{name} GPU {vendor:04x}:{device:04x}",
                state="present" if driver else "unknown",
                memory=Memory(unified=integrated),
                pci_id=f"{vendor:04x}:{device:04x}",
                arch=chip.arch if chip else None,
                driver=driver or None,
                reason=types.NOT_TRIED,
                fix_hint=fix_hints.TRY,
                evidence=(
                    Evidence(base, "vendor:device", f"{vendor:04x}:{device:04x}"),
                    Evidence("PCI ids", gpu_ids.NAME_OF_ID, name, 0.7),
                ),
            )
        elif driver in SOC_DRIVERS:
            gpus[target or card] = Device(
                id=target or card,
                kind="igpu",
                vendor=SOC_DRIVERS[driver],
                name=f"{SOC_DRIVERS[driver]} GPU ({driver})",
                state="present",
                memory=unified_memory(ram, None, None, ram.total_bytes, None),
                driver=driver,
                reason=types.NOT_TRIED,
                fix_hint=fix_hints.TRY,
                evidence=(Evidence(base, "driver", driver),),
            )
    return list(gpus.values())


def _wsl_gpu(ram: SystemMemory, cpu_name: str) -> Device:
    """WSL shows a GPU only as /dev/dxg: a backend must report which one it is."""
    part = re.search(r"w/ (Radeon.*)$", cpu_name)
    return Device(
        id="dxg",
        kind="igpu" if part else "dgpu",
        vendor="AMD" if part else "unknown",
        name=f"AMD {part[1]}" if part else "GPU behind WSL (/dev/dxg)",
        state="present",
        memory=unified_memory(ram, None, None, ram.total_bytes, None) if part else Memory(),
        driver="dxgkrnl",
        reason=types.NOT_TRIED,
        fix_hint=fix_hints.TRY,
        evidence=(Evidence("/dev/dxg", "access", "ok"),),
    )
