"""Advice suits where Tessera runs: kernel parameters, old kernels, containers, services with a limit."""

import copy
import re

import pytest

from devices.detect import inventory
from devices.distribution import is_container, newer_kernel, nvidia_driver, parsed, set_kernel_parameters
from devices.doctor import diagnose
from devices.recording import RecordedHost
from devices.report import recorded_report
from tests.support.machines.machines import machines

RECORDINGS = machines()
HALO = "sh-flow-z13-linux-gtt96"
REFUSED = "sh-linux-driver-failed"
UBUNTU = 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="26.04"\n'
GRUB = {"/etc/default/grub": "ok"}


def changed(name, *, files=(), links=(), access=(), env=None, kernel=""):
    recording = copy.deepcopy(RECORDINGS[name])
    recording["files"] |= {"/etc/os-release": UBUNTU, **dict(files)}
    recording["links"] |= dict(links)
    recording["access"] |= dict(access)
    recording["env"] = env or {}
    recording["api"]["kernel"] = kernel or recording["api"]["kernel"]
    return recording


def gpu_of(recording):
    return next(d for d in inventory(RecordedHost(recording)).devices if d.kind in {"igpu", "dgpu"})


def without_driver(recording):
    """The recording with a GPU that no driver is bound to, and whose module is not loaded."""
    for section in ("files", "links", "access"):
        gone = re.compile(r"/drm/|/driver$|/sys/module/(amdgpu|i915|xe)/|/dev/dri")
        recording[section] = {path: value for path, value in recording[section].items() if not gone.search(path)}
    events = {path for path in recording["files"] if path.endswith("/uevent")}
    for path in events:
        recording["files"][path] = recording["files"][path].replace("DRIVER=amdgpu\n", "")
    return recording


@pytest.mark.parametrize(
    ("line", "removed"),
    [
        ("quiet splash nomodeset", "s/ *nomodeset//"),
        ("amdgpu.modeset=0 quiet", "s/ *amdgpu.modeset=0//"),
        ("modprobe.blacklist=nouveau,amdgpu", "s/ *modprobe.blacklist=nouveau,amdgpu//"),
        ("nomodeset module_blacklist=amdgpu", "s/ *nomodeset//; s/ *module_blacklist=amdgpu//"),
    ],
)
def test_a_driver_that_a_kernel_parameter_switches_off_is_no_matter_of_firmware(line, removed):
    """Ubuntu's installation with safe graphics leaves nomodeset behind."""
    gpu = gpu_of(without_driver(changed(HALO, files={"/proc/cmdline": line}, access=GRUB)))
    assert (gpu.state, gpu.reason) == ("driver_missing", "kernel parameters switch its driver off")
    assert f"sudo sed -i '{removed}' /etc/default/grub && sudo update-grub" in gpu.fix_hint
    assert "firmware" not in gpu.fix_hint


@pytest.mark.parametrize("line", ["quiet", "amdgpu.modeset=1", "modprobe.blacklist=nouveau", "amdgpu.gttsize=0"])
def test_other_kernel_parameters_are_not_blamed(line):
    gpu = gpu_of(without_driver(changed(HALO, files={"/proc/cmdline": line})))
    assert gpu.fix_hint == "Install amdgpu's firmware: `sudo apt install linux-firmware`; then reboot."


SED = "sudo sed -i 's/ *nomodeset//'"


@pytest.mark.parametrize(
    ("system", "file", "change"),
    [
        ("ID=fedora", "", 'sudo grubby --update-kernel=ALL --remove-args="nomodeset" && sudo reboot'),
        ("ID=nixos", "", "boot.kernelParams, without nomodeset; then: sudo nixos-rebuild boot, reboot"),
        ("ID=bazzite", "/run/ostree-booted", "sudo rpm-ostree kargs --delete-if-present=nomodeset && "),
        ("ID=pop", "/usr/bin/kernelstub", 'sudo kernelstub -d "nomodeset" && sudo reboot'),
        ("ID=arch", "/etc/default/limine", f"{SED} /etc/default/limine && sudo limine-update && sudo reboot"),
        ("ID=cachyos", "/etc/sdboot-manage.conf", f"{SED} /etc/sdboot-manage.conf && sudo sdboot-manage gen && "),
        ("ID=arch", "/etc/kernel/cmdline", f"{SED} /etc/kernel/cmdline && sudo mkinitcpio -P && sudo reboot"),
        ("ID=gentoo", "", "remove nomodeset from the kernel command line in your boot loader's settings, then: "),
    ],
)
def test_a_parameter_is_removed_without_adding_one(system, file, change):
    access = {file: "ok"} if file else {}
    host = RecordedHost(changed(HALO, files={"/etc/os-release": system}, access=access))
    assert change in set_kernel_parameters(host, remove="nomodeset")


def test_another_vendors_driver_is_not_said_to_have_refused_a_gpu():
    """With Intel's driver xe for the CPU's GPU, an AMD card without a driver needs firmware."""
    recording = without_driver(changed(HALO, files={"/proc/cmdline": "quiet"}))
    recording["files"]["/sys/module/xe/initstate"] = "live"
    assert gpu_of(recording).state == "driver_missing"


def test_a_refused_gpu_is_told_the_command_for_its_firmware():
    recording = changed(REFUSED, files={"/etc/os-release": "ID=arch"})
    assert "Update its firmware, `sudo pacman -S linux-firmware-amdgpu`, and reboot" in gpu_of(recording).fix_hint


def test_a_new_intel_gpu_that_its_driver_refuses_needs_a_newer_kernel():
    recording = changed("lnl-256v", files={"/proc/cmdline": "quiet"})
    for section in ("files", "links"):
        values = recording[section]
        recording[section] = {path: value for path, value in values.items() if not path.endswith("02.0/driver")}
    event = next(path for path in recording["files"] if path.endswith("02.0/uevent"))
    recording["files"][event] = re.sub("DRIVER=.*\n", "", recording["files"][event])
    recording["files"]["/sys/module/xe/initstate"] = "live"
    gpu = gpu_of(recording)
    assert (gpu.state, gpu.reason) == ("failed", "the xe driver is loaded but refused this GPU")
    assert gpu.fix_hint.startswith("Update the kernel")


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ('ID=ubuntu\nVERSION_ID="24.04"', "6.18.4: sudo apt install linux-generic-hwe-24.04 && sudo reboot; until"),
        ('ID=ubuntu\nVERSION_ID="25.10"', "6.18.4: sudo do-release-upgrade && sudo reboot"),
        ("ID=debian\nVERSION_ID=13", "then sudo apt install -t trixie-backports linux-image-amd64 && sudo reboot"),
        ("ID=fedora", "sudo dnf upgrade --refresh"),
        ("ID=bazzite\nID_LIKE=fedora", "rpm-ostree upgrade"),
        ("ID=arch", "sudo pacman -Syu"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"', "sudo zypper dup"),
        ("ID=almalinux\nID_LIKE=rhel", "at least 6.18.4; until then"),
    ],
)
def test_an_old_kernel_comes_with_the_command_for_a_newer_one(release, command):
    access = {"/run/ostree-booted": "ok"} if "bazzite" in release else {}
    recording = changed(HALO, files={"/etc/os-release": release}, access=access, kernel="6.17.0-35-generic")
    found = {finding.id: finding for finding in diagnose(recorded_report(RecordedHost(recording)))}
    assert command in found["kernel_too_old_for_gfx1151"].fix


def test_only_systems_with_recent_kernels_have_such_a_command():
    names = ("ID=linuxmint\nID_LIKE=ubuntu", "ID=steamos\nID_LIKE=arch", "ID=nixos", "ID=debian\nVERSION_ID=12")
    assert [newer_kernel(parsed(name, is_ostree=False)) for name in names] == ["", "", "", ""]


CONTAINERS = [
    {"access": {"/.dockerenv": "ok"}},
    {"access": {"/run/.containerenv": "ok"}},
    {"env": {"container": "flatpak"}},
    {"files": {"/run/systemd/container": "lxc"}},
]


@pytest.mark.parametrize("marks", CONTAINERS)
def test_in_a_container_the_computer_is_not_changed(marks):
    """Its boot loader, kernel and groups are those of the computer around it."""
    recording = changed(HALO, **marks, kernel="6.17.0")
    recording["files"]["/etc/os-release"] = "ID=fedora"
    recording["files"]["/sys/module/amdgpu/parameters/lockup_timeout"] = "2000"
    recording["access"] |= {"/dev/dri/renderD129": "denied", "/dev/kfd": "denied"}
    found = {finding.id: finding for finding in diagnose(recorded_report(RecordedHost(recording)))}
    for name in ("gpu_watchdog_short", "kernel_too_old_for_gfx1151"):
        assert (
            "to the computer's kernel command line (outside this container), then: sudo reboot" in found[name].fix
        )
        assert "dnf" not in found[name].fix
        assert "grubby" not in found[name].fix
    gpu = gpu_of(recording)
    assert gpu.state == "no_permission"
    assert "`--group-add $(stat -c %g /dev/dri/renderD129)`" in gpu.fix_hint
    assert "usermod" not in gpu.fix_hint
    del recording["files"]["/proc/cmdline"]
    assert gpu_of(without_driver(recording)).fix_hint.endswith("on the computer itself, outside this container.")


def test_wsl_is_not_taken_for_a_container():
    assert not is_container(RecordedHost(changed("sh-wsl2", files={"/run/systemd/container": "wsl"})))


def test_a_limit_of_a_service_is_not_called_a_containers():
    limit = {"/proc/self/cgroup": "0::/system.slice/tessera.service"}
    limit["/sys/fs/cgroup/system.slice/tessera.service/memory.max"] = str(16 << 30)
    recording = changed(HALO, files=limit)
    found = {finding.id: finding for finding in diagnose(recorded_report(RecordedHost(recording)))}
    assert "systemd: MemoryMax" in found["memory_limited"].fix


@pytest.mark.parametrize(
    ("kernel", "packages"),
    [
        ("7.1.9-arch1-1", "nvidia-open"),
        ("7.1.9-zen1-1-zen", "nvidia-open-dkms linux-zen-headers"),
        ("6.18.40-1-lts", "nvidia-open-dkms linux-lts-headers"),
        ("7.1.9-hardened1-1-hardened", "nvidia-open-dkms linux-hardened-headers"),
    ],
)
def test_archs_other_kernels_get_nvidias_driver_built_for_them(kernel, packages):
    system = parsed("ID=arch", is_ostree=False)._replace(kernel=kernel)
    assert nvidia_driver(system) == f"Install NVIDIA's driver: `sudo pacman -S {packages}`, then restart."
    recording = changed("nv-hybrid-addw4", files={"/etc/os-release": "ID=arch"}, kernel=kernel)
    for path, event in recording["files"].items():
        if path.endswith("/uevent"):
            recording["files"][path] = event.replace("DRIVER=nvidia\n", "")
    recording["links"] = {p: link for p, link in recording["links"].items() if not link.endswith("drivers/nvidia")}
    card = next(d for d in inventory(RecordedHost(recording)).devices if d.kind == "dgpu")
    assert f"`sudo pacman -S {packages}`" in card.fix_hint


LPDDR = {"TYPE": "LPDDR5", "FORM_FACTOR": "Row Of Chips"}
MAX_395 = "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"


@pytest.mark.parametrize(
    ("cpu", "modules", "width", "kind", "gbs", "has_advice"),
    [
        ("13th Gen Intel(R) Core(TM) i7-1360P", 2, 16, LPDDR, None, False),  # an HP Spectre's firmware says so
        ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 4, 16, LPDDR, None, False),
        ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 4, 32, LPDDR, 102.4, False),
        (MAX_395, 8, 16, LPDDR, 256, False),
        (MAX_395, 8, 16, {"TYPE": "<OUT OF SPEC>", "FORM_FACTOR": "Row of chips"}, 256, False),
        ("AMD Ryzen 5 7520U with Radeon Graphics", 4, 16, LPDDR, 51.2, False),
        ("13th Gen Intel(R) Core(TM) i7-1360P", 1, 64, {"TYPE": "DDR5", "FORM_FACTOR": "SODIMM"}, 51.2, True),
        ("AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", 1, 64, {}, 51.2, True),
    ],
)
def test_soldered_memory_gets_no_advice_to_add_a_module(cpu, modules, width, kind, gbs, has_advice):
    facts = {"DATA_WIDTH": width, "SIZE": 4 << 30, "SPEED_MTS": 6400, **kind}
    lines = (f"E:MEMORY_DEVICE_{n}_{name}={value}" for n in range(modules) for name, value in facts.items())
    recording = changed("mtl-zbook-power-g11", files={"/run/udev/data/+dmi:id": "\n".join(lines)})
    recording["files"]["/proc/cpuinfo"] = re.sub(
        "model name\t: .*", f"model name\t: {cpu}", recording["files"]["/proc/cpuinfo"]
    )
    machine = inventory(RecordedHost(recording))
    assert machine.memory.bandwidth_gbs == gbs
    assert any(finding.id == "single_channel" for finding in machine.findings) is has_advice


def test_a_ceiling_for_the_gpu_is_never_above_the_memory_that_linux_has():
    """Firmware has set 64 of 128 GiB aside: 85 % of the whole are more than Linux can give."""
    recording = changed("sh-linux-carveout64", files={"/proc/cmdline": "quiet amdgpu.gtt_size=120000"})
    machine = inventory(RecordedHost(recording))
    fix = next(finding.fix for finding in machine.findings if finding.id == "gtt_size_misspelt")
    pages = int(re.search(r"ttm\.pages_limit=(\d+)", fix)[1])
    assert 0.8 < pages * 4096 / machine.memory.total_bytes <= 0.9


@pytest.mark.parametrize(
    ("cpu", "has_npu"),
    [
        ("AMD Ryzen 9 7945HX with Radeon Graphics", False),
        ("AMD Ryzen 7 PRO 7745 8-Core Processor", False),
        ("AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", True),
        ("AMD Ryzen 7 PRO 8840U w/ Radeon 780M Graphics", True),
        ("AMD Ryzen 9 8945H w/ Radeon 780M Graphics", True),
        ("AMD Ryzen 7 8700G w/ Radeon 780M Graphics", True),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", True),
    ],
)
def test_an_npu_is_missed_only_where_the_processor_has_one(cpu, has_npu):
    recording = changed("nv-hybrid-addw4", files={"/proc/cmdline": "quiet amd_iommu=off"})
    recording["files"]["/proc/cpuinfo"] = re.sub(
        "model name\t: .*", f"model name\t: {cpu}", recording["files"]["/proc/cpuinfo"]
    )
    findings = inventory(RecordedHost(recording)).findings
    assert any(finding.id == "amd_iommu_off" for finding in findings) is has_npu


@pytest.mark.parametrize(
    ("gib", "pci", "limit_gib"),
    [
        (128, "1002:1586", 108),
        (64, "1002:1586", 54),
        (32, "1002:1586", 24),
        (32, "1002:15BF", 24),
        (16, "1002:1586", None),
        (64, "1002:164E", None),
    ],
)
def test_the_gpu_of_a_laptop_with_32_gb_may_use_more_than_half_too(gib, pci, limit_gib):
    """Half of 32 GB holds no model of 35 billion parameters. The two units of a desktop processor run none."""
    recording = changed(HALO, files={"/proc/cmdline": "quiet"})
    files = recording["files"]
    folder = next(path for path in files if path.endswith("/mem_info_gtt_total")).rpartition("/")[0]
    files |= {f"{folder}/mem_info_gtt_total": str(gib << 29), f"{folder}/mem_info_vram_total": str(1 << 29)}
    files["/proc/meminfo"] = f"MemTotal: {(gib << 20) - (1 << 19)} kB\nMemAvailable: {gib << 19} kB"
    files[f"{folder}/uevent"] = files[f"{folder}/uevent"].replace("1002:1586", pci)
    recording["files"] = {path: text for path, text in files.items() if not path.startswith("/sys/class/kfd")}
    found = [finding for finding in inventory(RecordedHost(recording)).findings if finding.id == "gtt_at_default"]
    assert bool(found) is (limit_gib is not None)
    if found:
        pages = int(re.search(r"ttm\.pages_limit=(\d+)", found[0].fix)[1])
        assert pages * 4096 >> 30 == limit_gib
