"""Detects the Linux distribution, how it installs packages, and how it sets kernel parameters.

start.py uses it before any package is installed, so it imports only the standard library.
"""

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from devices.host import Host

Family = Literal["debian", "fedora", "arch", "suse", "nixos", "other"]

_FAMILIES: Final[dict[str, Family]] = {
    "debian": "debian",
    "ubuntu": "debian",
    "fedora": "fedora",
    "rhel": "fedora",
    "arch": "arch",
    "suse": "suse",
    "opensuse": "suse",
    "nixos": "nixos",
}
_INSTALL: Final[dict[Family, str]] = {
    "debian": "sudo apt install {}",
    "fedora": "sudo dnf install {}",
    "arch": "sudo pacman -S {}",
    "suse": "sudo zypper install {}",
}
_IMAGE_INSTALL: Final[dict[Family, str]] = {
    "fedora": "rpm-ostree install {}",
    "suse": "sudo transactional-update pkg install {}",
    "arch": "sudo steamos-readonly disable && sudo pacman-key --init && sudo pacman-key --populate && "
    "sudo pacman -S {}",
}
# The packages with NVIDIA's driver, and the repository that has them if it is off at first: for GPUs from Turing
# on, and for older ones, which driver 590 does not support. Sources: Arch's news of December 2025 on that driver,
# the packages of RPM Fusion, and of NVIDIA's repository for openSUSE (G07, G06).
_NVIDIA: Final[dict[Family, tuple[str, str]]] = {
    "debian": ("nvidia-driver", "contrib non-free"),
    "fedora": ("akmod-nvidia xorg-x11-drv-nvidia-cuda", "RPM Fusion nonfree"),
    "arch": ("nvidia-open", ""),
    "suse": ("nvidia-open-driver-G07-signed-kmp-meta nvidia-userspace-meta-G07", "NVIDIA"),
}
_NVIDIA_580: Final[dict[Family, tuple[str, str]]] = {
    "debian": _NVIDIA["debian"],
    "fedora": ("akmod-nvidia-580xx xorg-x11-drv-nvidia-580xx-cuda", "RPM Fusion nonfree"),
    "suse": ("nvidia-driver-G06-kmp-meta nvidia-userspace-meta-G06", "NVIDIA"),
}
_FIRST_TURING: Final = 0x1E00
# Arch's other kernels, by the end of their release. Arch's package nvidia-open is for its stock kernel only.
_ARCH_KERNELS: Final = re.compile(r"-(zen|lts|hardened|rt|rt-lts)$")
# Systems with a command that chooses the driver for the GPU and the kernel. Sources: their documentation.
_NVIDIA_COMMANDS: Final = {
    "pop": "sudo apt install system76-driver-nvidia",
    "cachyos": "sudo chwd -a",
    "manjaro": "sudo mhwd -a pci nonfree 0300",
}
# The driver is a part of other images of these systems. Source: ublue-os/bazzite.
_IMAGES_WITH_NVIDIA: Final = frozenset({"bazzite", "bluefin", "aurora"})
# openSUSE's packages that enable NVIDIA's repository. Source: openSUSE-repos.spec.
_SUSE_REPOSITORIES: Final = {
    f"opensuse-{name.lower()}": f"openSUSE-repos-{name}-NVIDIA" for name in ("Tumbleweed", "Slowroll", "Leap")
}
# The package with the firmware of AMD's GPUs. Source: the distributions' package lists and recipes.
_AMD_FIRMWARE: Final[dict[Family, str]] = {
    "debian": "firmware-amd-graphics",
    "fedora": "amd-gpu-firmware",
    "arch": "linux-firmware-amdgpu",
    "suse": "kernel-firmware-amdgpu",
}
# The suite with newer packages for a Debian release, which has to be enabled first.
BACKPORTS: Final = {"13": "trixie-backports"}
# Commands that bring a recent kernel, as part of an update of the whole system.
_KERNEL_UPDATES: Final = {
    "fedora": "sudo dnf upgrade --refresh",
    "arch": "sudo pacman -Syu",
    "cachyos": "sudo pacman -Syu",
    "endeavouros": "sudo pacman -Syu",
    "opensuse-tumbleweed": "sudo zypper dup",
}
# openSUSE's systems that change only as a whole, and SteamOS, whose packages are lost after its next update.
_IMAGES: Final = re.compile(r"opensuse-(?:microos|aeon|kalpa|leap-micro)|sl-micro|steamos")


class Distribution(NamedTuple):
    """`id` and `version` as in /etc/os-release; `name` is the display name. Empty if unknown.

    `image_based`: packages are layered on an image (Silverblue, Bazzite, MicroOS, SteamOS).
    `is_ubuntu`: Ubuntu, or a system made from it (Mint, Pop!_OS). `kernel` is the release of the running kernel.
    """

    id: str = ""
    version: str = ""
    name: str = "this system"
    family: Family = "other"
    image_based: bool = False
    is_ubuntu: bool = False
    kernel: str = ""

    def install(self, packages: str) -> str:
        """The command that installs packages, or only the packages if the command is unknown."""
        template = _IMAGE_INSTALL.get(self.family) if self.image_based else _INSTALL.get(self.family)
        template = template or "{}"
        return template.format(packages)

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers; empty for a rolling or testing release."""
        parts = self.version.split(".")
        return tuple(int(part) for part in parts) if all(p.isdecimal() and p.isascii() for p in parts) else ()


def distribution(host: "Host") -> Distribution:
    """The distribution according to /etc/os-release."""
    from devices.host import text

    if host.system != "linux":
        return Distribution()
    release = text(host, "/etc/os-release") or text(host, "/usr/lib/os-release")
    system = parsed(release, is_ostree=host.access("/run/ostree-booted") != "absent")
    return system._replace(kernel=str(host.api("kernel") or ""))


def parsed(os_release: str, *, is_ostree: bool) -> Distribution:
    """The distribution that the text of /etc/os-release names. is_ostree: the system was started from an image."""
    lines = (line.partition("=") for line in reversed(os_release.splitlines()))
    release = {key.strip(): value.strip().strip("\"'") for key, _, value in lines}  # the first of a repeated key
    own, version = release.get("ID", "")[:64], release.get("VERSION_ID", "")[:32]
    words = [own, *release.get("ID_LIKE", "").split()]
    family: Family = next((_FAMILIES[word] for word in words if word in _FAMILIES), "other")
    name = f"{release.get('NAME', own).removesuffix(' GNU/Linux').removesuffix(' Linux')} {version}".strip()[:64]
    image = (family == "fedora" and is_ostree) or _IMAGES.fullmatch(own) is not None
    return Distribution(own, version, name or "this system", family, image, "ubuntu" in words)


def nvidia_driver(system: Distribution, pci_id: str | None = None) -> str:
    """How this distribution installs NVIDIA's driver for the GPU with this `vvvv:dddd`."""
    chip = int(pci_id.partition(":")[2] or "0", 16) if pci_id else _FIRST_TURING
    is_old = chip < _FIRST_TURING
    if system.family == "nixos":
        options = '`services.xserver.videoDrivers = [ "nvidia" ];` and `hardware.nvidia.open = true;`'
        if is_old:
            package = "package = config.boot.kernelPackages.nvidiaPackages.legacy_580;"
            options = f"{options.partition(' and ')[0]} and `hardware.nvidia = {{ open = false; {package} }};`"
        return f"Set {options} in the system's configuration and rebuild it."
    if system.id in _IMAGES_WITH_NVIDIA:
        return f"Change to {system.name}'s image that contains NVIDIA's driver, then restart."
    command = "sudo ubuntu-drivers install" if system.is_ubuntu else None
    if command := _NVIDIA_COMMANDS.get(system.id, command):
        return f"Install NVIDIA's driver: `{command}`, then restart."
    if system.family == "arch" and is_old:
        return "Install NVIDIA's driver 580 from Arch's user repository: `nvidia-580xx-dkms`, then restart."
    package, repository = (_NVIDIA_580 if is_old else _NVIDIA).get(system.family, ("", ""))
    if not package or system.id == "steamos":
        return "Install NVIDIA's driver, then restart."
    if variant := _ARCH_KERNELS.search(system.kernel if system.family == "arch" else ""):
        package = f"nvidia-open-dkms linux-{variant[1]}-headers"
    command = system.install(package)
    if system.id in _SUSE_REPOSITORIES:
        command, repository = f"{system.install(_SUSE_REPOSITORIES[system.id])} && {command}", ""
    source = f" from the repository {repository} (enable it first)" if repository else ""
    return f"Install NVIDIA's driver{source}: `{command}`, then restart."


def amd_firmware(system: Distribution) -> str:
    """The command that installs the firmware of AMD's GPUs."""
    package = "linux-firmware" if system.is_ubuntu else _AMD_FIRMWARE.get(system.family, "linux-firmware")
    return system.install(package)


def npu_firmware(system: Distribution) -> str:
    """The command that updates the firmware of AMD's NPUs, which is in a package of other firmware."""
    if system.family == "debian" and not system.is_ubuntu:
        return "sudo apt upgrade"
    return system.install("kernel-firmware-platform" if system.family == "suse" else "linux-firmware")


def newer_kernel(system: Distribution) -> str:
    """The commands that install a kernel of at least 6.18, or a later release that has one; empty if unknown.

    Sources: Ubuntu's security notice USN-8569-1 (24.04 has Linux 7.0 since July 2026), and reports of Debian 13
    with Linux 7.0.10 of its backports.
    """
    if system.id == "ubuntu":
        is_noble = system.version == "24.04"
        return "sudo apt install linux-generic-hwe-24.04" if is_noble else "sudo do-release-upgrade"
    if system.id == "debian" and system.version in BACKPORTS:
        suite = BACKPORTS[system.version]
        return f"enable {suite}, then sudo apt install -t {suite} linux-image-amd64"
    if system.image_based and system.family == "fedora":
        return "rpm-ostree upgrade"
    return _KERNEL_UPDATES.get(system.id, "")


def iommu_switches(parameters: list[str]) -> str:
    """The kernel parameters that switch AMD's IOMMU off; empty if none does."""
    return " ".join(word for word in parameters if word in {"amd_iommu=off", "iommu=off"})


def is_container(host: "Host") -> bool:
    """Whether this process runs in a container, by the marks of the common engines."""
    from devices.host import text

    if host.access("/.dockerenv") != "absent" or host.access("/run/.containerenv") != "absent":
        return True
    # systemd writes this file in containers that it starts, such as LXC's and Proxmox's; WSL is not one of them.
    return host.env("container") is not None or text(host, "/run/systemd/container") not in {"", "wsl"}


def set_kernel_parameters(host: "Host", add: str = "", remove: str = "") -> str:
    """Commands that change the kernel command line for the next start, by boot loader.

    Both may have several parameters; those of `remove` are on the line now.
    """
    system, old_words = distribution(host), remove.split()
    if is_container(host):
        return _change_by_hand(add, old_words, "the computer's kernel command line (outside this container)")
    if system.family == "nixos":
        less = f", without {' and '.join(old_words)}" if old_words else ""
        words = " ".join(f'"{word}"' for word in add.split())
        change = f"boot.kernelParams = [ {words} ]{less}" if add else f"boot.kernelParams{less}"
        return f"in configuration.nix: {change}; then: sudo nixos-rebuild boot, reboot"
    if host.access("/run/ostree-booted") != "absent":
        less = "".join(f" --delete-if-present={word}" for word in old_words)
        more = "".join(f" --append-if-missing={word}" for word in add.split())
        return f"sudo rpm-ostree kargs{more}{less} && sudo systemctl reboot"
    if _has_program(host, "grubby") or system.family == "fedora":
        more = f' --args="{add}"' if add else ""
        less = f' --remove-args="{remove}"' if old_words else ""
        return f"sudo grubby --update-kernel=ALL{more}{less} && sudo reboot"
    if _has_program(host, "kernelstub"):  # Pop!_OS
        more = f'sudo kernelstub -a "{add}" && ' if add else ""
        less = f'sudo kernelstub -d "{remove}" && ' if old_words else ""
        return f"{more}{less}sudo reboot"
    return _edit_boot_files(host, system, add, old_words)


def _change_by_hand(add: str, old_words: list[str], where: str) -> str:
    """The same in words, for a place that no command is known for."""
    more = [f"add {add} to {where}"] if add else []
    less = f"remove {' and '.join(old_words)}" + ("" if add else f" from {where}")
    return f"{' and '.join([*more, *([less] if old_words else [])])}, then: sudo reboot"


def _edit_boot_files(host: "Host", system: Distribution, add: str, old_words: list[str]) -> str:
    """The same for boot loaders whose files are edited by hand."""
    less = [f"s/ *{word}//" for word in old_words]

    def edited(file: str, start: str) -> str:
        more = [f"s/^{start}=./&{add} /" if start else f"s/$/ {add}/"] if add else []
        return f"sudo sed -i '{'; '.join([*less, *more])}' {file} && "

    if host.access("/etc/default/limine") != "absent":
        edit = f"sudo sed -i '{'; '.join(less)}' /etc/default/limine && " if less else ""
        line = f"echo 'KERNEL_CMDLINE[default]+=\" {add}\"' | sudo tee -a /etc/default/limine && " if add else ""
        return f"{edit}{line}sudo limine-update && sudo reboot"
    if host.access("/etc/sdboot-manage.conf") != "absent":  # CachyOS with systemd-boot
        return f"{edited('/etc/sdboot-manage.conf', 'LINUX_OPTIONS')}sudo sdboot-manage gen && sudo reboot"
    if host.access("/etc/kernel/cmdline") != "absent":  # systemd-boot, and unified kernel images
        update = "sudo mkinitcpio -P" if system.family == "arch" else "sudo kernel-install add-all"
        update = next((f"sudo {p} {w}" for p, w in _CMDLINE_UPDATES.items() if _has_program(host, p)), update)
        return f"{edited('/etc/kernel/cmdline', '')}{update} && sudo reboot"
    if host.access("/etc/default/grub") == "absent":
        files = next((f for f in _BOOT_FILES if host.access(f) != "absent"), "")
        where = _BOOT_FILES.get(files, "the kernel command line in your boot loader's settings")
        return _change_by_hand(add, old_words, where)
    has_script = system.family == "debian" or system.id == "steamos" or _has_program(host, "update-grub")
    update = "update-grub" if has_script else "grub-mkconfig -o /boot/grub/grub.cfg"
    if system.family == "suse":
        update = "transactional-update grub.cfg" if system.image_based else "grub2-mkconfig -o /boot/grub2/grub.cfg"
    return f"{edited('/etc/default/grub', 'GRUB_CMDLINE_LINUX_DEFAULT')}sudo {update} && sudo reboot"


# Programs that bring /etc/kernel/cmdline to the boot entries: Proxmox's and openSUSE's own.
_CMDLINE_UPDATES: Final = {"proxmox-boot-tool": "refresh", "sdbootutil": "update-all-entries"}
# A file that shows a boot loader, and what to change there.
_BOOT_FILES: Final = {
    f"{folder}/loader/loader.conf": f"the options line of the files in {folder}/loader/entries"
    for folder in ("/boot", "/efi", "/boot/efi")
} | {"/boot/refind_linux.conf": "each line of /boot/refind_linux.conf"}


def _has_program(host: "Host", name: str) -> bool:
    return any(host.access(f"/usr/{folder}/{name}") != "absent" for folder in ("sbin", "bin"))
