"""GPU advice for Linux machines names the distribution's own packages, versions and commands."""

import copy
import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from devices.backends.backend_probe import try_backends
from devices.detect import detailed
from devices.distribution import amd_firmware, npu_firmware, nvidia_driver, parsed
from devices.doctor import diagnose
from devices.first_look import gpu_lines
from devices.gpu_advice import with_advice
from devices.kernel_packs import bundled
from devices.merge import merged
from devices.probes import gpu_linux
from devices.probes.pci import PciFunction
from devices.recording import RecordedHost
from devices.report import recorded_report
from devices.types import BackendDevice, BackendReport
from tests.support.machines.machines import machines, reports

RECORDINGS = machines()
HALO = "sh-flow-z13-linux-gtt96"
SYSTEMS = {
    "Debian 12": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\n',
    "Debian 13": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="13"\n',
    "Ubuntu 24.04": 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n',
    "Fedora 43": 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=43\n',
    "Arch": 'NAME="Arch Linux"\nID=arch\n',
    "openSUSE Tumbleweed": 'NAME="openSUSE Tumbleweed"\nID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n',
    "NixOS": 'NAME=NixOS\nID=nixos\nVERSION_ID="26.05"\n',
}
NO_DEVICE = BackendReport("vulkan", "libggml-vulkan.so", "no_device", "it loaded but found no device", "look")
NOT_BUILT = BackendReport("vulkan", "", "not_built", "its library is not installed", "install it")


def machine_on(system, report, *, name=HALO, mesa="", drivers=("radeon_icd.x86_64.json",), **parts):
    """The GPU advice for a machine with this system, Vulkan report, Mesa and list of drivers."""
    recording = copy.deepcopy(RECORDINGS[name])
    recording["files"]["/etc/os-release"] = SYSTEMS.get(system, system)
    for file in drivers:
        recording["files"][f"/usr/share/vulkan/icd.d/{file}"] = "{}"
    for command in ("dpkg-query -W -f ${Version}", "rpm -q --qf %{VERSION}"):
        recording["commands"][f"{command} mesa-vulkan-drivers"] = {"returncode": 0 if mesa else 1, "stdout": mesa}
    recording["access"] |= parts.get("access", {})
    recording["env"] |= parts.get("env", {})
    host = RecordedHost({**recording, "backends": []})
    return with_advice(host, detailed(host), (report,), live=parts.get("live", False))


@pytest.mark.parametrize(
    ("system", "command"),
    [
        ("Debian 12", "`sudo apt install mesa-vulkan-drivers`"),
        ("Ubuntu 24.04", "`sudo apt install mesa-vulkan-drivers`"),
        ("Fedora 43", "`sudo dnf install mesa-vulkan-drivers vulkan-loader`"),
        ("Arch", "`sudo pacman -S vulkan-radeon vulkan-icd-loader`"),
        ("openSUSE Tumbleweed", "`sudo zypper install libvulkan_radeon libvulkan1`"),
        ("NixOS", "`hardware.graphics.enable = true;`"),
    ],
)
def test_a_missing_driver_is_named_as_the_distribution_calls_it(system, command):
    (line,) = gpu_lines(machine_on(system, NO_DEVICE, drivers=("lvp_icd.json",)))
    assert "no Vulkan driver for AMD is installed" in line
    assert command in line


MINT = 'NAME="Linux Mint"\nID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22.1"\n'


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("Debian 13", "repository contrib non-free (enable it first): `sudo apt install nvidia-driver`, then"),
        ("Ubuntu 24.04", "NVIDIA's driver: `sudo ubuntu-drivers install`, then restart."),
        (MINT, "NVIDIA's driver: `sudo ubuntu-drivers install`, then restart."),
        (
            "Fedora 43",
            "RPM Fusion nonfree (enable it first): `sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda`",
        ),
        ("NAME=Pop\nID=pop\nID_LIKE='ubuntu debian'", "`sudo apt install system76-driver-nvidia`"),
        ("ID=cachyos\nID_LIKE=arch", "`sudo chwd -a`, then restart."),
        ("ID=manjaro\nID_LIKE=arch", "`sudo mhwd -a pci nonfree 0300`, then restart."),
        ("NAME=Bazzite\nID=bazzite\nID_LIKE=fedora", "Change to Bazzite's image that contains NVIDIA's driver"),
        ("Arch", "NVIDIA's driver: `sudo pacman -S nvidia-open`, then restart."),
        (
            "openSUSE Tumbleweed",
            "NVIDIA && sudo zypper install nvidia-open-driver-G07-signed-kmp-meta nvidia-userspace-meta-G07`, then",
        ),
        (
            "ID=opensuse-leap\nID_LIKE='suse opensuse'\nVERSION_ID=16.0",
            "`sudo zypper install openSUSE-repos-Leap-NVIDIA && ",
        ),
        ("NixOS", '`services.xserver.videoDrivers = [ "nvidia" ];`'),
    ],
)
def test_nvidias_driver_is_named_with_the_repository_that_no_system_has_at_first(system, words):
    """Stock Debian, Fedora and openSUSE answer that there is no such package."""
    lines = gpu_lines(machine_on(system, SEES_INTEL, name="nv-hybrid-addw4", drivers=("intel_icd.json",)))
    (without_vulkan,) = (line for line in lines if "is not used" in line)
    assert words in without_vulkan
    recording = copy.deepcopy(RECORDINGS["nv-hybrid-addw4"])
    recording["files"]["/etc/os-release"] = SYSTEMS.get(system, system)
    host = RecordedHost({**recording, "backends": []})
    card = PciFunction("0000:01:00.0", 0x030000, 0x10DE, 0x28E0, None, None, virtual_function=False, asleep=False)
    state, _, hint = gpu_linux._state(host, card, "NVIDIA", [])
    assert (state, words in hint) == ("driver_missing", True), "the same where no driver is bound"


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("Debian 13", "`sudo apt install nvidia-driver`"),
        ("Ubuntu 24.04", "`sudo ubuntu-drivers install`"),
        ("Fedora 43", "`sudo dnf install akmod-nvidia-580xx xorg-x11-drv-nvidia-580xx-cuda`"),
        ("Arch", "driver 580 from Arch's user repository: `nvidia-580xx-dkms`, then restart."),
        ("openSUSE Tumbleweed", "sudo zypper install nvidia-driver-G06-kmp-meta nvidia-userspace-meta-G06`"),
        ("NixOS", "{ open = false; package = config.boot.kernelPackages.nvidiaPackages.legacy_580; };` in the"),
    ],
)
def test_a_card_from_before_turing_gets_the_last_driver_that_knows_it(system, words):
    """Driver 590 and the open kernel modules do not: after their installation a GTX 1080 has no driver at all."""
    release = parsed(SYSTEMS[system], is_ostree=False)
    assert words in nvidia_driver(release, "10de:1b80")
    assert nvidia_driver(release, "10de:1e02") == nvidia_driver(release, "10de:2684") == nvidia_driver(release)


@pytest.mark.parametrize(
    ("system", "gpu", "npu"),
    [
        ("Debian 13", "sudo apt install firmware-amd-graphics", "sudo apt upgrade"),
        ("Ubuntu 24.04", "sudo apt install linux-firmware", "sudo apt install linux-firmware"),
        ("Fedora 43", "sudo dnf install amd-gpu-firmware", "sudo dnf install linux-firmware"),
        ("Arch", "sudo pacman -S linux-firmware-amdgpu", "sudo pacman -S linux-firmware"),
        (
            "openSUSE Tumbleweed",
            "sudo zypper install kernel-firmware-amdgpu",
            "sudo zypper install kernel-firmware-platform",
        ),
    ],
)
def test_firmware_is_named_as_the_distribution_calls_it(system, gpu, npu):
    """Debian and openSUSE have no package linux-firmware."""
    release = parsed(SYSTEMS[system], is_ostree=False)
    assert (amd_firmware(release), npu_firmware(release)) == (gpu, npu)
    card = PciFunction("0000:01:00.0", 0x030000, 0x1002, 0x7550, None, None, virtual_function=False, asleep=False)
    files = {"/etc/os-release": SYSTEMS[system]}
    host = RecordedHost({**RECORDINGS["vm-firecracker"], "files": files, "backends": []})
    assert gpu_linux._state(host, card, "AMD", [])[2] == f"Install amdgpu's firmware: `{gpu}`; then reboot."


def test_on_an_image_packages_are_layered():
    (line,) = gpu_lines(machine_on("Fedora 43", NO_DEVICE, drivers=(), access={"/run/ostree-booted": "ok"}))
    assert "`rpm-ostree install mesa-vulkan-drivers vulkan-loader`, then restart" in line


@pytest.mark.parametrize(
    ("system", "mesa", "words"),
    [
        ("Debian 12", "22.3.6-1+deb12u1", "Upgrade Debian 12 to a release with Mesa 24.1 or newer."),
        ("Ubuntu 24.04", "23.2.1-1ubuntu3", "Upgrade Ubuntu 24.04 to a release with Mesa 24.1"),
        ("Fedora 43", "24.0.9", "Upgrade Fedora 43 to"),
    ],
)
def test_a_mesa_that_does_not_know_the_chip_is_told_with_both_versions(system, mesa, words):
    (line,) = gpu_lines(machine_on(system, NO_DEVICE, mesa=mesa))
    assert f"Mesa {mesa[:4]} does not know AMD Radeon 8060S: 24.1 or newer does" in line
    assert words in line


def test_a_new_enough_mesa_is_not_blamed():
    (line,) = gpu_lines(machine_on("Debian 13", NO_DEVICE, mesa="25.0.7-2"))
    assert "Mesa" not in line


def test_debian_13_has_a_newer_mesa_in_its_backports():
    (line,) = gpu_lines(machine_on("Debian 13", NO_DEVICE, mesa="23.0.1-1"))
    command = "`sudo apt install -t trixie-backports mesa-vulkan-drivers`"
    assert f"Enable trixie-backports, then install its newer one: {command}." in line


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "nv-hybrid-addw4",
            {"driver": "i915", "arch": None, "pci_id": "8086:0166"},
            "a GPU from before 2016 cannot run models",
        ),
        ("sh-linux-egpu-rdna4", {"driver": "radeon", "arch": None}, "amdgpu.si_support=1"),
        ("simpledrm-card0", {"driver": "nouveau", "arch": None}, "apt install nvidia-driver"),
    ],
)
@pytest.mark.parametrize("report", ["no_device", "not_built"])
def test_a_driver_without_what_the_kernels_need_is_not_installed_again(name, change, words, report, monkeypatch):
    """Ivy Bridge, a Radeon HD and nouveau have kernels and a driver, so the advice must not be to install them."""
    monkeypatch.setattr(bundled, "bundled_pack", lambda *_a, **_k: "a pack")
    attempt = bundled.Attempt(facts="", reason="its library loads but finds no device here")
    monkeypatch.setattr(bundled, "failed_attempt", lambda *_a: attempt)
    machine = detailed(RecordedHost({**RECORDINGS[name], "backends": []}))
    gpu = next(d for d in machine.devices if d.kind in {"igpu", "dgpu"})
    machine = replace(machine, devices=(machine.devices[0], replace(gpu, **change)))
    recording = copy.deepcopy(RECORDINGS[name])
    recording["files"]["/etc/os-release"] = SYSTEMS["Debian 12"]
    for driver in ("intel_hasvk_icd", "radeon_icd", "nouveau_icd"):
        recording["files"][f"/usr/share/vulkan/icd.d/{driver}.x86_64.json"] = "{}"
    reported = NO_DEVICE if report == "no_device" else NOT_BUILT
    (line,) = gpu_lines(with_advice(RecordedHost({**recording, "backends": []}), machine, (reported,)))
    assert "no Vulkan 1.2 with 16-bit storage" in line
    assert words in line
    assert "kernels install" not in line
    assert "mesa-vulkan-drivers" not in line


def other_gpu(name, driver, vendor, chip, report=NO_DEVICE, *, container=False):
    """The line of a recorded machine, its first GPU replaced by another one without Vulkan drivers."""
    recording = copy.deepcopy(RECORDINGS[name])
    recording["files"]["/etc/os-release"] = SYSTEMS["Debian 12"]
    if container:
        recording["access"]["/.dockerenv"] = "ok"
    machine = detailed(RecordedHost({**recording, "backends": []}))
    gpu = next(d for d in machine.devices if d.kind in {"igpu", "dgpu"})
    gpu = replace(gpu, driver=driver, vendor=vendor, name=chip, arch=None, state="present")
    machine = replace(machine, devices=(machine.devices[0], gpu))
    (line,) = gpu_lines(with_advice(RecordedHost({**recording, "backends": []}), machine, (report,), live=False))
    return line


def test_gpus_whose_driver_comes_from_elsewhere_are_not_told_to_install_one():
    """In a container NVIDIA's driver is the host's, and a driver does not help a board's GPU."""
    line = other_gpu("simpledrm-card0", "nvidia", "NVIDIA", "A10G", container=True)
    assert line.endswith("`--gpus all -e NVIDIA_DRIVER_CAPABILITIES=all`.")
    line = other_gpu("sh-linux-egpu-rdna4", "v3d", "Broadcom", "Broadcom GPU (v3d)", NOT_BUILT)
    assert line.endswith("is not used: such GPUs run models slower than their CPU.")
    for vendor in ("unknown", "AMD"):
        line = other_gpu("sh-wsl2", "dxgkrnl", vendor, "GPU behind WSL")
        assert line.endswith(
            "not to Vulkan. Start Tessera on Windows itself (`py start.py`), where Vulkan reaches the GPU."
        )


SEES_INTEL = BackendReport(
    "vulkan", "libggml-vulkan.so", "usable",
    devices=(BackendDevice("Vulkan0", "Intel(R) Graphics (RPL-S)", "igpu", 1 << 34, 1 << 34, "0000:00:02.0"),),
)  # fmt: skip
SEES_NVIDIA = replace(
    SEES_INTEL,
    devices=(BackendDevice("Vulkan0", "NVIDIA GeForce RTX 4060", "gpu", 1 << 33, 1 << 33, "0000:01:00.0"),),
)
ON_UBUNTU = {"system": "Ubuntu 24.04", "name": "nv-hybrid-addw4"}


@pytest.mark.parametrize(
    ("report", "drivers", "words"),
    [
        (SEES_INTEL, ["intel_icd.json"], "RTX 4060 is not used: no Vulkan driver for NVIDIA is installed. Install"),
        (SEES_INTEL, ["intel_icd.json", "nouveau_icd.json"], "no Vulkan driver for NVIDIA is installed"),
        (SEES_INTEL, ["intel_icd.json", "nvidia_icd.json"], "`nvidia-smi` must list the GPU."),
        (
            SEES_NVIDIA,
            ["nvidia_icd.json"],
            "no Vulkan driver for Intel is installed. Install it: `sudo apt install",
        ),
        (SEES_NVIDIA, ["nvidia_icd.json", "intel_icd.json"], "`vulkaninfo --summary`"),
    ],
)
def test_of_two_gpus_the_one_that_vulkan_does_not_see_is_told_why(report, drivers, words):
    machine = machine_on(report=report, drivers=drivers, **ON_UBUNTU)
    lines = gpu_lines(machine)
    assert sum("runs models with Vulkan kernels" in line for line in lines) == 1
    (unused,) = (line for line in lines if "is not used" in line)
    assert words in unused
    # Other kernels would not help: a driver is missing.
    findings = [f for f in diagnose(machine) if f.device in {"0000:00:02.0", "0000:01:00.0"}]
    assert [(f.id, f.severity) for f in findings] == [
        ("device_present", "warning" if report is SEES_INTEL else "advice")
    ]


def test_on_windows_the_gpu_that_vulkan_does_not_see_gets_its_vendors_driver():
    machine = detailed(RecordedHost({**RECORDINGS["nv-hybrid-addw4"], "backends": []}))
    (_, line) = gpu_lines(merged(replace(machine, system="windows", backends=(SEES_INTEL,))))
    assert "RTX 4060 is not used: its driver does not offer it to the installed kernels." in line
    assert "Install the current driver of the GPU's vendor, then restart: it brings Vulkan." in line


def test_two_gpus_without_a_driver_are_told_their_own():
    intel, nvidia = gpu_lines(machine_on(report=NO_DEVICE, drivers=(), **ON_UBUNTU))
    assert "no Vulkan driver for Intel is installed. Install it: `sudo apt install mesa-vulkan-drivers`" in intel
    assert "no Vulkan driver for NVIDIA is installed. Install NVIDIA's driver" in nvidia


def test_a_card_whose_target_the_kernel_does_not_report_needs_its_mesa_too():
    machine = machine_on("Ubuntu 24.04", NO_DEVICE, name="sh-linux-egpu-rdna4", mesa="24.2.8")
    card, halo = gpu_lines(machine)
    assert "Mesa 24.2 does not know AMD GPU 1002:7550: 25.0 or newer does" in card
    assert "its driver does not offer it to the installed kernels. Restart" in halo


def test_a_variable_that_hides_a_gpu_is_named():
    recording = {"env": {"VK_ICD_FILENAMES": "/opt/lvp_icd.json"}}
    (line,) = gpu_lines(machine_on("Debian 13", NO_DEVICE, mesa="25.0.7", **recording))
    assert "VK_ICD_FILENAMES is set, which limits the GPUs. Unset VK_ICD_FILENAMES" in line


def test_a_gpu_without_kernels_is_one_finding():
    recording = {**RECORDINGS[HALO], "backends": [{"backend": "vulkan", "library": "", "state": "not_built"}]}
    machine = recorded_report(RecordedHost(recording))
    assert [f.id for f in diagnose(machine) if f.device == machine.device("igpu").id].count(
        "backend_not_built"
    ) == 1
    assert not any(f.id == "device_present" for f in diagnose(machine) if f.device == machine.device("igpu").id)


@pytest.mark.parametrize(
    ("listed", "by_driver", "name"),
    [
        (
            "Navi 48 [Radeon RX 9070/9070 XT/9070 GRE]",
            "AMD Radeon RX 9070 XT (RADV GFX1201)",
            "AMD Radeon RX 9070 XT",
        ),
        ("Navi 48 [Radeon RX 9070/9070 XT/9070 GRE]", "", "AMD Radeon RX 9070/9070 XT/9070 GRE"),
        ("Navi 48", "", "AMD Navi 48"),
        ("", "AMD Radeon(TM)  RX 9070 XT", "AMD Radeon RX 9070 XT"),
    ],
)
def test_a_card_has_the_name_that_it_is_sold_by(listed, by_driver, name):
    recording = copy.deepcopy(RECORDINGS["sh-linux-egpu-rdna4"])
    recording["api"]["pci_name:1002:7550"] = listed
    device = {"name": "Vulkan0", "description": by_driver, "kind": "gpu", "device_id": "0000:04:00.0"}
    device |= {"total_bytes": 1 << 34, "free_bytes": 1 << 34}
    report = {"backend": "vulkan", "library": "", "state": "usable", "devices": [device] if by_driver else []}
    machine = recorded_report(RecordedHost({**recording, "backends": [report]}))
    assert [d.name for d in machine.devices[1:]] == [name, "AMD Radeon 8060S"]


def test_a_missing_loader_is_told_from_the_reason_the_library_did_not_load():
    failed = replace(NO_DEVICE, state="failed", reason="libvulkan.so.1: cannot open shared object file")
    (line,) = gpu_lines(machine_on("Debian 12", failed))
    assert "the Vulkan loader (libvulkan.so.1) is not installed" in line
    assert "apt install mesa-vulkan-drivers" in line


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("Debian 12", "upgrade to Debian 13 or newer"),
        ("Ubuntu 24.04", "upgrade to Ubuntu 25.04 or newer"),
        ("Debian 13", "`sudo apt install glslc libvulkan-dev spirv-headers`"),
        ("Fedora 43", "`sudo dnf install glslc vulkan-headers"),
        ("Arch", "`sudo pacman -S shaderc"),
    ],
)
def test_where_no_pack_came_along_the_tools_are_named_or_why_they_are_too_old(system, words, monkeypatch, tmp_path):
    monkeypatch.setattr(bundled, "bundled_pack", lambda *_a, **_k: None)
    (line,) = gpu_lines(machine_on(system, NOT_BUILT))
    assert words in line


def test_why_the_pack_that_came_along_was_not_taken(monkeypatch):
    monkeypatch.setattr(bundled, "bundled_pack", lambda *_a, **_k: "a pack")
    attempt = bundled.Attempt(facts="", reason="it needs glibc 2.34, this system has 2.31")
    monkeypatch.setattr(bundled, "failed_attempt", lambda *_a: attempt)
    (line,) = gpu_lines(machine_on("Debian 12", NOT_BUILT, live=True))
    assert "were not accepted: it needs glibc 2.34, this system has 2.31" in line


def test_a_device_without_its_node_in_a_container_is_told_how_to_pass_it_in():
    recording = copy.deepcopy(RECORDINGS[HALO])
    recording["access"]["/.dockerenv"] = "ok"
    for path in [p for part in ("files", "links", "access") for p in recording[part] if p.startswith("/dev/dri")]:
        for part in ("files", "links", "access"):
            recording[part].pop(path, None)
    recording["access"]["/dev/dri/renderD128"] = "absent"
    machine = detailed(RecordedHost({**recording, "backends": []}))
    (line,) = gpu_lines(merged(machine))
    assert "its device node is not in this container" in line
    assert "--device /dev/dri" in line


def test_the_line_of_a_gpu_that_is_used_and_of_a_machine_without_one():
    lines = gpu_lines(reports()["sh-framework-desktop-linux"])
    assert any(line.startswith("GPU: AMD Radeon 8060S runs models with") for line in lines)
    machine = detailed(RecordedHost({**RECORDINGS["vm-firecracker"], "backends": []}))
    assert gpu_lines(machine) == ("GPU: none found; models run on the CPU.",)


def test_doctor_prints_kernels_each_gpu_and_power_meters_on_lines_of_their_own(tmp_path):
    from app.cli.doctor import command

    (tmp_path / "machine.json").write_text(json.dumps(RECORDINGS["nv-hybrid-addw4"]))
    lines = (
        CliRunner()
        .invoke(command, ["--from", str(tmp_path / "machine.json")], env={"COLUMNS": "500"})
        .output.splitlines()
    )
    assert [line.partition(":")[0] for line in lines[:4]] == ["Kernels", "GPU", "GPU", "Power meters"]


def test_the_window_shows_the_lines_of_set_up_and_doctor_in_its_language():
    from devices import first_look

    german = {first_look.UNUSED: "GPU: {name} wird nicht benutzt: {reason}.", "no driver": "kein Treiber"}
    gpu = replace(reports()["sh-linux-driver-failed"].device("igpu"), reason="no driver", fix_hint="Reboot.")
    machine = replace(reports()["vm-firecracker"], devices=(replace(gpu, name="Arc(TM) 140V"),))
    assert gpu_lines(machine) == ("GPU: Arc 140V is not used: no driver. Reboot.",)
    told = gpu_lines(machine, lambda text: german.get(text, text))
    assert told == ("GPU: Arc 140V wird nicht benutzt: kein Treiber. Reboot.",)


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_every_recorded_machine_gets_a_line_for_each_gpu(name):
    machine = detailed(RecordedHost({**RECORDINGS[name], "backends": []}))
    machine = merged(replace(machine, backends=try_backends(machine, None, trials=())))
    lines = gpu_lines(machine)
    assert len(lines) == max(1, sum(d.kind in {"igpu", "dgpu"} for d in machine.devices))
    assert all(line.startswith("GPU: ") and not line.endswith(": ") for line in lines)


@pytest.mark.parametrize(
    ("system", "command", "printed", "versions"),
    [
        ("Debian 13", "dpkg-query -W -f ${Version} mesa-vulkan-drivers", "25.0.7-2", {"mesa": "25.0.7"}),
        ("Ubuntu 24.04", "dpkg-query -W -f ${Version} mesa-vulkan-drivers", "26.1.0~kisak1~n", {"mesa": "26.1.0"}),
        ("Fedora 43", "rpm -q --qf %{VERSION} mesa-vulkan-drivers", "26.0.5", {"mesa": "26.0.5"}),
        ("Arch", "pacman -Q vulkan-radeon", "vulkan-radeon 1:26.2.2-1\n", {"mesa": "26.2.2"}),
        (
            "Debian 13",
            "dpkg-query -W -f ${Version}  firmware-amd-graphics linux-firmware",
            "20251125-1~bpo13+1 ",
            {"linux_firmware": "20251125"},
        ),
        (
            "Ubuntu 24.04",
            "dpkg-query -W -f ${Version}  firmware-amd-graphics linux-firmware",
            "20240318.git3b128b60-0ubuntu2.10 ",
            {"linux_firmware": "20240318"},
        ),
        (
            "Fedora 43",
            "rpm -q --qf %{VERSION}  amd-gpu-firmware linux-firmware",
            "package amd-gpu-firmware is not installed\n20251125 ",
            {"linux_firmware": "20251125"},
        ),
        (
            "Arch",
            "pacman -Q linux-firmware-amdgpu linux-firmware",
            "linux-firmware-amdgpu 20251125-2\nlinux-firmware 20251125-2\n",
            {"linux_firmware": "20251125"},
        ),
        ("NixOS", "", "", {"mesa": "25.2.8"}),
    ],
)
def test_versions_of_mesa_and_firmware_are_those_of_the_packages(system, command, printed, versions):
    recording = copy.deepcopy(RECORDINGS[HALO])
    recording["files"]["/etc/os-release"] = SYSTEMS[system]
    recording["commands"] |= {command: {"returncode": int("not installed" in printed), "stdout": printed}}
    if system == "NixOS":
        recording["files"]["/run/opengl-driver/lib/libgallium-25.2.8.so"] = ""
    found = dict(recorded_report(RecordedHost({**recording, "backends": []})).versions)
    assert {name: found.get(name) for name in ("mesa", "linux_firmware") if name in found} == versions
